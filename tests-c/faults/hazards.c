/* Steps that remove resources of the process: its devices, descriptors, memory. */
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include "steps.h"

/*
 * The kernel removes a software device only when all processes have closed and unmapped it, and the
 * library under test keeps it open. Drivers of real devices disconnect the processes from the device;
 * this step does the same. The descriptor numbers and addresses stay in use.
 */
void step_cut(void)
{
	int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
	FILE *maps = fopen("/proc/self/maps", "re");
	char path[64], link[256], line[512];
	unsigned long from, to;
	ssize_t length;

	for (int fd = 3; fd < 256; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		length = readlink(path, link, sizeof(link) - 1);
		link[length < 0 ? 0 : length] = '\0';
		if (strstr(link, "/uverbs") || strstr(link, "[infinibandevent]"))
			dup2(nothing, fd);
	}
	while (maps && fgets(line, sizeof(line), maps))
		if (strstr(line, "/uverbs") && sscanf(line, "%lx-%lx", &from, &to) == 2)
			mmap((void *)from, to - from, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	result("cut", nothing < 0 || !maps ? -1 : 0);
	if (maps)
		fclose(maps);
	close(nothing);
}

/* The lowest free descriptor number is used first: if all numbers up to the highest open one are in
 * use, exactly N more descriptors are available. */
void step_files(int n)
{
	int lowest = dup(0);
	struct rlimit files = { (rlim_t)(lowest + n), (rlim_t)(lowest + n) };
	close(lowest);
	result("setrlimit", setrlimit(RLIMIT_NOFILE, &files));
}

/* root may lock any amount. */
void step_memlock(int n)
{
	struct rlimit bytes = { (rlim_t)n, (rlim_t)n };
	result("setrlimit", setrlimit(RLIMIT_MEMLOCK, &bytes));
	result("setuid", setgroups(0, NULL) || setgid(65534) || setuid(65534));
}
