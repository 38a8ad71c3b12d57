/* Children: before the first use, with copies of the parent's sockets, and with their own. */
#define _GNU_SOURCE
#include "rscommon.h"

#include <sys/wait.h>

static struct rspair pair;

static void whole_connection(void *argument)
{
	struct rspair own;
	char byte;

	(void)argument;
	topic("child");
	if (CHECK(rs_pair(&own, AF_INET))) {
		CALL((int)rsend(own.client, "x", 1, 0));
		CALL((int)rrecv(own.server, &byte, 1, 0));
	}
	rs_pair_close(&own);
}

static void ends_at_once(void *argument)
{
	(void)argument;
}

static void still_works(void)
{
	char buf[8] = "";

	CALL((int)rsend(pair.client, "parent", 6, 0));
	CALL((int)rrecv(pair.server, buf, 6, MSG_WAITALL));
	CALL((int)rsend(pair.server, "answer", 6, 0));
	CALL((int)rrecv(pair.client, buf, 6, MSG_WAITALL));
	obs("read %s", buf);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	topic("before first use");
	in_child("connection", whole_connection, NULL);
	topic("parent");
	if (rs_pair(&pair, AF_INET)) {
		still_works();
		topic("child ends");
		in_child("nothing", ends_at_once, NULL);
		still_works();
	}
	rs_pair_close(&pair);
	return finish();
}
