/*
 * A program with much thread-local memory: the C library puts it on every thread's stack, so the
 * library's own threads need a larger one.
 */
#define _GNU_SOURCE
#include "rscommon.h"

static __thread char much[1 << 20];

int main(int argc, char **argv)
{
	struct rspair pair;

	start(argc, argv);
	topic("thread-local memory");
	memset(much, 'm', sizeof(much));
	if (CHECK(rs_pair(&pair, AF_INET))) {
		CALL((int)rsend(pair.client, much, 1000, 0));
		CALL((int)rrecv(pair.server, much, 1000, MSG_WAITALL));
	}
	rs_pair_close(&pair);
	return finish();
}
