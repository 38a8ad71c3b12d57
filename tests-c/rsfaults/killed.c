/* One side is killed while the other waits for it: the call fails with the right error. */
#include "child.h"

#include <sys/epoll.h>

static int listener;

static void connect_there(int from, int to)
{
	union address address;

	(void)to;
	hear_from(from, &address, sizeof(address));
	EXPECT(rsend(connect_to(&address), "hello", 5, 0) == 5);
}

/* A connection with a child, whose greeting has arrived. */
static void connected(bool child_connects)
{
	union address address;
	char bytes[5];
	int from, to;

	begin_child(child_connects ? connect_there : serve, &from, &to);
	listener = -1;
	if (child_connects) {
		listener = listen_far(&address);
		say_to(to, &address, sizeof(address));
		EXPECT((survivor = raccept(listener, NULL, NULL)) >= 0);
	} else {
		survivor = connect_to_child(from, to);
	}
	EXPECT(rrecv(survivor, bytes, 5, MSG_WAITALL) == 5 && !memcmp(bytes, "hello", 5));
	close(from);
	close(to);
}

static void closed(void)
{
	EXPECT(!rclose(survivor));
	if (listener >= 0)
		EXPECT(!rclose(listener));
}

/* As server and as client, three times each: after the first time, no descriptor is leaked. */
static void in_both_roles(ssize_t (*body)(void), ssize_t result, int error)
{
	struct call call;
	int before = 0;

	for (int turn = 0; turn < 6; turn++) {
		connected(turn % 2);
		call_begin(&call, body);
		kill_child();
		call_end(&call, result, error);
		EXPECT_ERROR(rsend(survivor, "x", 1, 0), EPIPE);
		closed();
		if (turn < 2)
			before = open_fds();
		else
			await_fds(before);
	}
}

static ssize_t waits_in_set(void)
{
	int (*make)(int) = (int (*)(int))optional_symbol("repoll_create");
	int (*change)(int, int, int, struct epoll_event *) =
		(int (*)(int, int, int, struct epoll_event *))optional_symbol("repoll_ctl");
	int (*wait)(int, struct epoll_event *, int, int) =
		(int (*)(int, struct epoll_event *, int, int))optional_symbol("repoll_wait");
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	int set = make(0);

	EXPECT(set >= 0 && !change(set, EPOLL_CTL_ADD, survivor, &event));
	EXPECT(wait(set, &event, 1, -1) == 1);
	EXPECT(!rclose(set));
	return event.events & (EPOLLIN | EPOLLHUP | EPOLLERR);
}

static void killed_in_rrecv(void) { in_both_roles(receives, -1, ECONNRESET); }
static void killed_in_rsend(void) { in_both_roles(sends, -1, ECONNRESET); }

/* A socket that was only polled still has the error. */
static void polled(ssize_t (*body)(void))
{
	struct call call;

	for (int turn = 0; turn < 2; turn++) {
		connected(turn);
		call_begin(&call, body);
		kill_child();
		call_end(&call, POLLIN | POLLHUP | POLLERR, 0);
		EXPECT_ERROR(rrecv(survivor, (char[1]){ 0 }, 1, 0), ECONNRESET);
		EXPECT(rrecv(survivor, (char[1]){ 0 }, 1, 0) == 0);
		closed();
	}
}
static void killed_in_rpoll(void) { polled(polls); }
static void killed_in_repoll_wait(void) { polled(waits_in_set); }

/* Data that has arrived before is read first. */
static void killed_behind_data(void)
{
	char bytes[8];

	for (int turn = 0; turn < 2; turn++) {
		connected(turn);
		EXPECT(!rclose(survivor));
		if (listener >= 0)
			EXPECT(!rclose(listener));
		kill_child();
	}
	/* The greeting is read after the peer was killed. */
	struct pollfd entry = { .events = POLLIN };
	int from, to;

	begin_child(serve, &from, &to);
	entry.fd = survivor = connect_to_child(from, to);
	EXPECT(rpoll(&entry, 1, -1) == 1 && entry.revents == POLLIN);
	kill_child();
	entry.events = 0;
	EXPECT(rpoll(&entry, 1, -1) == 1 && entry.revents & POLLHUP);
	EXPECT(rrecv(survivor, bytes, 8, 0) == 5 && !memcmp(bytes, "hello", 5));
	EXPECT_ERROR(rrecv(survivor, bytes, 8, 0), ECONNRESET);
	EXPECT(!rclose(survivor));
}

/* ---- before the connection is established -------------------------------------------------------- */

static void listen_only(int from, int to)
{
	union address address;

	(void)from;
	listen_far(&address);
	say_to(to, &address, sizeof(address));
	/* Requests are not answered from now on. */
	raise(SIGSTOP);
}

static union address target;

static ssize_t connects(void)
{
	return rconnect(survivor, &target.sa, sizeof(target.in));
}

static void killed_in_rconnect(void)
{
	struct call call;
	int from, to;

	begin_child(listen_only, &from, &to);
	hear_from(from, &target, sizeof(target));
	EXPECT(waitpid(child, NULL, WUNTRACED) == child);
	EXPECT((survivor = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	call_begin(&call, connects);
	kill_child();
	call_end(&call, -1, ECONNREFUSED);
	EXPECT(!rclose(survivor));
}

/* Starts to connect, and is killed immediately. */
static void connect_and_die(int from, int to)
{
	union address address;
	int fd;

	(void)to;
	hear_from(from, &address, sizeof(address));
	EXPECT((fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) >= 0);
	EXPECT_ERROR(rconnect(fd, &address.sa, sizeof(address.in)), EINPROGRESS);
	/* The library's thread continues, so the child is killed at some step of the handshake. */
	for (int i = 0; i < (getpid() % 8) * 8; i++)
		sched_yield();
	raise(SIGKILL);
}

/* Returns the first connection with data; dead connections report an error. */
static ssize_t accepts(void)
{
	char bytes[5];

	for (;;) {
		ssize_t count;

		EXPECT((survivor = raccept(listener, NULL, NULL)) >= 0);
		count = rrecv(survivor, bytes, 5, MSG_WAITALL);
		if (count == 5)
			return 0;
		EXPECT(count <= 0 && !rclose(survivor));
	}
}

static void killed_in_raccept(void)
{
	struct call call;
	union address address;
	int from, to;

	listener = listen_far(&address);
	call_begin(&call, accepts);
	for (int i = 0; i < 8; i++) {
		begin_child(connect_and_die, &from, &to);
		say_to(to, &address, sizeof(address));
		EXPECT(waitpid(child, NULL, 0) == child);
	}
	begin_child(connect_there, &from, &to);
	say_to(to, &address, sizeof(address));
	call_end(&call, 0, 0);
	kill_child();
	closed();
}

void killed_cases(void)
{
	FAULT(killed_in_rrecv);
	FAULT(killed_in_rsend);
	FAULT(killed_in_rpoll);
	FAULT(killed_in_repoll_wait);
	FAULT(killed_behind_data);
	FAULT(killed_in_rconnect);
	FAULT(killed_in_raccept);
}
