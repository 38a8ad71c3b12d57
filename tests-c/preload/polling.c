// SPDX-License-Identifier: MIT OR Apache-2.0
// An echo server for fork mode (RDMAV_FORK_SAFE) that serves all connections in one process.
// Only ordinary socket calls are used; the tested library is preloaded. The clients are those of forking.c.
//
//	polling ADDRESS PORT CLIENTS WAIT
//
// The first client sends nothing until CLIENTS others have been served. Then it sends data, over TCP.
//
// Prints how many clients had the same port as an rsocket and over TCP: the project's clients do, and are identified by
// it.
//
// WAIT: how the server waits: poll, select, epoll, edge (EPOLLET), or try (it does not wait, but tries all sockets in
// turn).
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS = 32, ROOM = 30000 };

static struct connection {
	int fd;
	in_port_t port; // of the peer, when it was accepted
	char data[ROOM];
	size_t start, end, total;
} connections[CONNECTIONS];

static int count, listener, epoll, ended, same_port;
static const char *way;

static void fail(const char *what)
{
	fprintf(stderr, "polling: %s: %s\n", what, strerror(errno));
	exit(1);
}

static bool is(const char *name)
{
	return strcmp(way, name) == 0;
}

static short wanted(const struct connection *one)
{
	return one->start < one->end ? POLLOUT : POLLIN;
}

static void control(int op, int fd, uint32_t events, uint32_t place)
{
	struct epoll_event event = { .events = events, .data.u64 = 0x1234567800000000 | place };

	if (epoll_ctl(epoll, op, fd, &event) != 0)
		fail("epoll_ctl");
}

// Adds the connection to the epoll by various sequences of operations.
static void enter(int fd, uint32_t place)
{
	control(EPOLL_CTL_ADD, fd, EPOLLOUT, CONNECTIONS + 1);
	control(EPOLL_CTL_DEL, fd, 0, 0);
	control(EPOLL_CTL_ADD, fd, EPOLLOUT, CONNECTIONS + 1);
	control(EPOLL_CTL_MOD, fd, is("edge") ? EPOLLIN | EPOLLOUT | EPOLLET : EPOLLIN, place);
}

static void accept_all(void)
{
	for (;;) {
		struct sockaddr_in peer;
		socklen_t len = sizeof peer;
		int fd = accept4(listener, (struct sockaddr *)&peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0 && errno == EAGAIN)
			return;
		if (fd < 0 || count == CONNECTIONS)
			fail("accept");
		if (epoll >= 0)
			enter(fd, (uint32_t)count);
		connections[count].port = peer.sin_port;
		connections[count++].fd = fd;
	}
}

// Returns whether the peer still has the port that accept() returned.
static bool has_same_port(const struct connection *one)
{
	struct sockaddr_in peer = { .sin_port = 0 };
	socklen_t len = sizeof peer;

	return getpeername(one->fd, (struct sockaddr *)&peer, &len) == 0 && peer.sin_port == one->port;
}

// Reads and writes until one of them would block.
static void drive(uint32_t place)
{
	struct connection *one = &connections[place];
	short before = wanted(one);

	while (one->fd >= 0) {
		bool out = wanted(one) == POLLOUT;
		ssize_t done = out ? send(one->fd, one->data + one->start, one->end - one->start, MSG_NOSIGNAL)
				   : read(one->fd, one->data, ROOM);

		if (done < 0 && errno == EAGAIN)
			break;
		if (done < 0)
			fail(out ? "send" : "read");
		if (done == 0) {
			same_port += has_same_port(one);
			close(one->fd);
			one->fd = -1;
			ended += one->total > 0;
			return;
		}
		one->start = out ? one->start + (size_t)done : 0;
		one->end = out ? one->end : (size_t)done;
		one->total += (size_t)done;
	}
	if (is("epoll") && wanted(one) != before)
		control(EPOLL_CTL_MOD, one->fd, (uint32_t)wanted(one), place);
}

static void by_poll(void)
{
	struct pollfd list[CONNECTIONS + 1] = { { .fd = listener, .events = POLLIN } };

	for (int i = 0; i < count; i++)
		list[i + 1] = (struct pollfd){ .fd = connections[i].fd, .events = wanted(&connections[i]) };
	if (poll(list, (nfds_t)count + 1, -1) < 1)
		fail("poll");
	for (int i = count; i > 0; i--)
		if (list[i].revents != 0)
			drive((uint32_t)i - 1);
	if (list[0].revents != 0)
		accept_all();
}

static void by_select(void)
{
	struct timeval limit = { .tv_sec = 300 };
	fd_set in, out;
	int highest = listener;

	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_SET(listener, &in);
	for (int i = 0; i < count; i++) {
		int fd = connections[i].fd;

		if (fd >= 0)
			FD_SET(fd, wanted(&connections[i]) == POLLIN ? &in : &out);
		highest = fd > highest ? fd : highest;
	}
	if (select(highest + 1, &in, &out, NULL, &limit) < 1)
		fail("select");
	for (int i = 0; i < count; i++)
		if (connections[i].fd >= 0 && (FD_ISSET(connections[i].fd, &in) || FD_ISSET(connections[i].fd, &out)))
			drive((uint32_t)i);
	if (FD_ISSET(listener, &in))
		accept_all();
}

static void by_epoll(void)
{
	struct epoll_event events[8];
	int told = epoll_wait(epoll, events, 8, -1);

	if (told < 1)
		fail("epoll_wait");
	for (int i = 0; i < told; i++) {
		uint32_t place = (uint32_t)events[i].data.u64;

		if (events[i].data.u64 >> 32 != 0x12345678 || place > CONNECTIONS)
			fail("an event of another connection");
		if (place == CONNECTIONS)
			accept_all();
		else
			drive(place);
	}
}

static void by_trying(void)
{
	accept_all();
	for (int i = 0; i < count; i++)
		if (connections[i].fd >= 0)
			drive((uint32_t)i);
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int one = 1, clients;

	if (argc != 5)
		fail("usage");
	listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	inet_pton(AF_INET, argv[1], &address.sin_addr);
	address.sin_port = htons((uint16_t)atoi(argv[2]));
	clients = atoi(argv[3]);
	way = argv[4];
	epoll = is("epoll") || is("edge") ? epoll_create1(EPOLL_CLOEXEC) : -1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (const struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 64) != 0)
		fail("listen");
	if (epoll >= 0)
		control(EPOLL_CTL_ADD, listener, EPOLLIN, CONNECTIONS);
	for (bool checked = false; ended <= clients;) {
		if (ended == clients && !checked) {
			if (connections[0].total != 0)
				fail("the silent client has sent data");
			checked = true;
			printf("served %d\n", same_port);
			fflush(stdout);
		}
		if (is("poll"))
			by_poll();
		else if (is("select"))
			by_select();
		else if (epoll >= 0)
			by_epoll();
		else
			by_trying();
	}
	return 0;
}
