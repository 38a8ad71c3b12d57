/*
 * rpoll and rselect over rsockets, pipes and entries that are neither. Time-outs are in ours/state_errors:
 * 44.0 misses those of some milliseconds.
 */
#define _GNU_SOURCE
#include "rscommon.h"

static struct rspair pair;
static int ends[2];

static void show(const char *what, int ret, const struct pollfd *fds, int count)
{
	char text[256] = "";

	for (int i = 0; i < count; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), " %s", poll_str(fds[i].revents));
	obs("%s -> %d:%s", what, ret, text);
}

static void mixed(void)
{
	struct pollfd fds[4] = {
		{ .fd = pair.client, .events = POLLIN },
		{ .fd = ends[0], .events = POLLIN },
		{ .fd = pair.server, .events = POLLIN },
		{ .fd = ends[1], .events = POLLIN },
	};
	char byte;

	topic("mixed");
	show("nothing", rpoll(fds, 4, 0), fds, 4);
	SETUP(write(ends[1], "x", 1) == 1);
	show("pipe", rpoll(fds, 4, -1), fds, 4);
	CALL((int)rsend(pair.client, "x", 1, 0));
	poll_wait(pair.server, POLLIN);
	show("pipe and server", rpoll(fds, 4, -1), fds, 4);
	show("only the first two", rpoll(fds, 2, 0), fds, 2);
	SETUP(read(ends[0], &byte, 1) == 1);
	show("server", rpoll(fds, 4, -1), fds, 4);
	fds[0].events = POLLIN | POLLOUT;
	fds[3].events = POLLOUT;
	show("writing too", rpoll(fds, 4, -1), fds, 4);
	CALL((int)rrecv(pair.server, &byte, 1, 0));
	show("all read", rpoll(fds, 4, -1), fds, 4);
	fds[0].events = fds[3].events = 0;
	show("nothing", rpoll(fds, 4, 0), fds, 4);
}

/* A socket that can be read and written, alone and beside another one. */
static void only_requested(void)
{
	static const short list[] = { 0, POLLIN, POLLOUT, POLLPRI, POLLIN | POLLOUT };
	struct pollfd fds[2];
	char byte;
	int ret;

	topic("only requested");
	CALL((int)rsend(pair.client, "x", 1, 0));
	poll_wait(pair.server, POLLIN);
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		for (int count = 1; count <= 2; count++) {
			fds[0] = (struct pollfd){ .fd = pair.server, .events = list[i] };
			fds[1] = (struct pollfd){ .fd = pair.client };
			ret = rpoll(fds, (nfds_t)count, 0);
			obs("%s of %d -> %d: %x", poll_str(list[i]), count, ret, fds[0].revents);
		}
	CALL((int)rrecv(pair.server, &byte, 1, 0));
}

static void same_twice(void)
{
	struct pollfd fds[2] = {
		{ .fd = pair.client, .events = POLLIN }, { .fd = pair.client, .events = POLLOUT },
	};

	topic("one socket twice");
	show("poll", rpoll(fds, 2, 0), fds, 2);
}

static void not_open(void)
{
	struct pollfd fds[2] = {
		{ .fd = 901, .events = POLLIN }, { .fd = pair.listener, .events = POLLIN },
	};

	topic("closed descriptor");
	show("alone", rpoll(fds, 1, 0), fds, 1);
	show("with a socket", rpoll(fds, 2, 0), fds, 2);
	CALL(rpoll(NULL, 0, 0));
}

static void *wakes(void *argument)
{
	struct pollfd fds[2] = {
		{ .fd = pair.server, .events = POLLIN }, { .fd = ends[0], .events = POLLIN },
	};
	int ret;

	(void)argument;
	topic("waiting");
	ret = rpoll(fds, 2, -1);
	show("woken", ret, fds, 2);
	return NULL;
}

static void waiting(void)
{
	struct worker *worker;
	char byte;

	topic("waiting");
	worker = worker_start(wakes, NULL);
	CALL((int)rsend(pair.client, "x", 1, 0));
	worker_join(worker);
	CALL((int)rrecv(pair.server, &byte, 1, 0));
	worker = worker_start(wakes, NULL);
	SETUP(write(ends[1], "x", 1) == 1);
	worker_join(worker);
	SETUP(read(ends[0], &byte, 1) == 1);
}

/* ---- rselect ------------------------------------------------------------------ */

static const char *bits(const fd_set *set)
{
	static __thread char text[64];
	static const char *const names[] = { "client", "server", "reading", "writing", "listener" };
	int fds[5] = { pair.client, pair.server, ends[0], ends[1], pair.listener };

	text[0] = 0;
	for (int i = 0; i < 5; i++)
		if (FD_ISSET(fds[i], set)) {
			strcat(text, *text ? " " : "");
			strcat(text, names[i]);
		}
	return text;
}

static void select_once(const char *what, bool wait)
{
	struct timeval none = { 0, 0 };
	fd_set in, out;
	char in_text[64];
	int ret;

	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_SET(pair.client, &in);
	FD_SET(pair.server, &in);
	FD_SET(ends[0], &in);
	FD_SET(pair.listener, &in);
	if (!wait) {
		FD_SET(pair.client, &out);
		FD_SET(ends[1], &out);
	}
	ret = rselect(FD_SETSIZE, &in, &out, NULL, wait ? NULL : &none);
	strcpy(in_text, bits(&in));
	obs("%s -> %d: read {%s} write {%s}", what, ret, in_text, bits(&out));
}

static void selecting(void)
{
	struct timeval limit = { 0, 0 };
	fd_set in;
	char byte;

	topic("rselect");
	select_once("writable only", false);
	CALL((int)rsend(pair.client, "x", 1, 0));
	select_once("server has data", true);
	SETUP(write(ends[1], "x", 1) == 1);
	select_once("and the pipe", true);
	CALL((int)rrecv(pair.server, &byte, 1, 0));
	select_once("pipe only", true);
	SETUP(read(ends[0], &byte, 1) == 1);
	FD_ZERO(&in);
	FD_SET(pair.server, &in);
	obs("nothing -> %d, bits left: %s", rselect(pair.server + 1, &in, NULL, NULL, &limit), bits(&in));
	CALL(rselect(0, NULL, NULL, NULL, &limit));
}

/* ---- states ---------------------------------------------------------------------- */

static void states(void)
{
	int fd;
	char byte;

	topic("states");
	poll_now("connected", pair.client, POLLIN | POLLOUT);
	poll_now("connected", pair.client, POLLIN | POLLOUT | POLLPRI);
	poll_now("connected", pair.client, 0);
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	rs_nonblock(fd, true);
	rconnect(fd, &pair.to.sa, addr_len(&pair.to));
	obs("listener: %s", poll_str(poll_wait(pair.listener, POLLIN)));
	poll_now("listener", pair.listener, POLLIN);
	rclose(raccept(pair.listener, NULL, NULL));
	poll_now("listener", pair.listener, POLLIN);
	rclose(fd);
	CALL((int)rsend(pair.client, "x", 1, 0));
	CALL(rclose(pair.client));
	pair.client = -1;
	obs("peer gone: %s", poll_str(poll_gone(pair.server)));
	poll_now("data left", pair.server, POLLIN);
	CALL((int)rrecv(pair.server, &byte, 1, 0));
	poll_now("all read", pair.server, POLLIN);
	CALL((int)rrecv(pair.server, &byte, 1, 0));
	poll_now("end seen", pair.server, POLLIN);
}

static void only_files(void)
{
	struct pollfd fds[2] = {
		{ .fd = ends[0], .events = POLLIN }, { .fd = ends[1], .events = POLLOUT },
	};

	topic("no rsocket");
	show("pipe", rpoll(fds, 2, 0), fds, 2);
	fds[1].events = 0;
	show("nothing", rpoll(fds, 2, 0), fds, 2);
	close(ends[1]);
	show("closed end", rpoll(fds, 1, -1), fds, 1);
	close(ends[0]);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	topic("connect");
	if (!pipe(ends) && rs_pair(&pair, AF_INET)) {
		mixed();
	only_requested();
		same_twice();
		waiting();
		selecting();
		states();
		only_files();
		not_open();
	}
	rs_pair_close(&pair);
	return finish();
}
