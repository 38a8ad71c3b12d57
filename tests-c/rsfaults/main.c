/* rsockets under faults: killed peers, bad links, limits, slow links, removed devices. main DEVICE [CASE]. */
#include "faults.h"

#include <fnmatch.h>

/* Patterns that are separated by commas. */
static const char *only;

bool chosen(const char *name)
{
	char patterns[256], *rest = patterns, *pattern;

	if (!only)
		return true;
	snprintf(patterns, sizeof(patterns), "%s", only);
	while ((pattern = strsep(&rest, ",")))
		if (!fnmatch(pattern, name, 0))
			return true;
	return false;
}

union address far_addr(void)
{
	const char *text = getenv(on_siw() ? "SIW_PEER_ADDR" : on_ib() ? "IB_PEER_ADDR" : "RXE_PEER_ADDR");

	return make_addr(AF_INET, text ? text : "0.0.0.0", 0);
}

void enter_far_host(bool far)
{
	static int spaces[2] = { -1, -1 };

	if (!on_ib())
		return;
	if (spaces[0] < 0) {
		spaces[0] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
		spaces[1] = open("/run/netns/far", O_RDONLY | O_CLOEXEC);
	}
	EXPECT(!setns(spaces[far], CLONE_NEWNET));
}

int main(int argc, char **argv)
{
	start(argc, argv);
	only = argc > 2 ? argv[2] : NULL;
	killed_cases();
	limit_cases();
	link_cases();
	neighbour_cases();
	held_cases();
	removal_cases();
	return finish();
}
