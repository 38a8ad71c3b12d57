/* repoll_*: epoll over rsockets and other descriptors, level-triggered as in 65.0. */
#define _GNU_SOURCE
#include "rscommon.h"

static struct repoll repoll;

static struct rspair pair;
static int ends[2], ep;

static const char *events_str(uint32_t events)
{
	return poll_str((short)events);
}

/* Waits without time-out (or polls); prints the members sorted by descriptor. */
static void show(const char *what, int limit)
{
	struct epoll_event events[8];
	char text[256] = "";
	int ret;

	errno = 0;
	ret = repoll.wait(ep, events, 8, limit);
	for (unsigned member = 0; member < 8; member++)
		for (int i = 0; i < ret; i++)
			if (events[i].data.u32 == member)
				snprintf(text + strlen(text), sizeof(text) - strlen(text), " %u:%s",
					 member, events_str(events[i].events));
	obs("%s -> %d%s", what, ret, text);
}

static int add(int fd, uint32_t events, uint32_t member)
{
	struct epoll_event event = { .events = events, .data.u32 = member };

	return repoll.control(ep, EPOLL_CTL_ADD, fd, &event);
}

static int modify(int fd, uint32_t events, uint32_t member)
{
	struct epoll_event event = { .events = events, .data.u32 = member };

	return repoll.control(ep, EPOLL_CTL_MOD, fd, &event);
}

static void members(void)
{
	char byte;

	topic("members");
	CALL(add(pair.server, EPOLLIN, 1));
	CALL(add(ends[0], EPOLLIN, 2));
	CALL(add(pair.client, EPOLLIN, 3));
	show("nothing", 0);
	SETUP(write(ends[1], "x", 1) == 1);
	show("pipe", -1);
	CALL((int)rsend(pair.client, "x", 1, 0));
	poll_wait(pair.server, POLLIN);
	show("server and pipe", -1);
	show("level-triggered", -1);
	SETUP(read(ends[0], &byte, 1) == 1);
	show("server", -1);
	CALL((int)rrecv(pair.server, &byte, 1, 0));
	show("nothing", 0);
	CALL(modify(pair.client, EPOLLIN | EPOLLOUT, 4));
	show("client writes", -1);
	CALL(modify(pair.client, EPOLLIN, 3));
	show("nothing", 0);
	CALL(repoll.control(ep, EPOLL_CTL_DEL, ends[0], NULL));
	SETUP(write(ends[1], "x", 1) == 1);
	show("pipe is no member", 0);
	SETUP(read(ends[0], &byte, 1) == 1);
}

static void *waiter(void *argument)
{
	(void)argument;
	topic("waiting");
	show("woken", -1);
	return NULL;
}

static void waiting(void)
{
	struct worker *worker;
	char byte;

	topic("waiting");
	worker = worker_start(waiter, NULL);
	CALL((int)rsend(pair.client, "x", 1, 0));
	worker_join(worker);
	CALL((int)rrecv(pair.server, &byte, 1, 0));
	show("nothing", 0);
}

static void peer_goes(void)
{
	topic("peer goes");
	CALL(repoll.control(ep, EPOLL_CTL_DEL, pair.client, NULL));
	CALL(rclose(pair.client));
	pair.client = -1;
	poll_gone(pair.server);
	show("server", -1);
	CALL(repoll.control(ep, EPOLL_CTL_DEL, pair.server, NULL));
	show("empty", 0);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	if (!find_repoll(&repoll))
		skip_all("this library has no repoll_*");
	topic("connect");
	if (!pipe(ends) && rs_pair(&pair, AF_INET) && SETUP((ep = repoll.create(0)) >= 0)) {
		members();
		waiting();
		peer_goes();
		CALL(rclose(ep));
	}
	rs_pair_close(&pair);
	close(ends[0]);
	close(ends[1]);
	return finish();
}
