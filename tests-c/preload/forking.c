// SPDX-License-Identifier: MIT OR Apache-2.0
// A forking echo server and its clients, for fork mode (RDMAV_FORK_SAFE): each connection is accepted by one process
// and served by a child. Only ordinary socket calls are used; the tested library is preloaded.
//
//	forking server ADDRESS PORT CLIENTS WAIT   serves CLIENTS clients
//	forking client ADDRESS PORT COUNT WAIT [FROM]
//	                                           one client, which sends and checks COUNT messages; from the address FROM,
//	                                           where there is no RDMA, and when the server has said that it has RDMA
//
// WAIT: how both ends wait before they receive: block, poll, select, epoll (the last three are non-blocking). With exit
// the server blocks, and its first child, whose client says nothing, leaves by exit(3) while it waits for the client.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MESSAGE = 20000 };

static const char *way;

static void fail(const char *what)
{
	fprintf(stderr, "forking: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void await_epoll(int fd, uint32_t events)
{
	static int epoll = -1;
	static uint32_t last;
	struct epoll_event event = { .events = events, .data.u64 = 0x1234567800000000 };
	int op = epoll < 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;

	if (epoll < 0)
		epoll = epoll_create1(EPOLL_CLOEXEC);
	if (events != last && epoll_ctl(epoll, op, fd, &event) != 0)
		fail("epoll_ctl");
	last = events;
	if (epoll_wait(epoll, &event, 1, -1) != 1 || event.data.u64 != 0x1234567800000000)
		fail("epoll_wait");
}

static void await(int fd, short events)
{
	struct pollfd one = { .fd = fd, .events = events };
	fd_set set;

	if (strcmp(way, "poll") == 0 && poll(&one, 1, -1) != 1)
		fail("poll");
	if (strcmp(way, "epoll") == 0)
		await_epoll(fd, (uint32_t)events);
	if (strcmp(way, "select") == 0) {
		FD_ZERO(&set);
		FD_SET(fd, &set);
		if (select(fd + 1, events == POLLIN ? &set : NULL, events == POLLOUT ? &set : NULL, NULL, NULL) != 1)
			fail("select");
	}
}

static void leave(int signal)
{
	(void)signal;
	exit(0);
}

static void prepare(int fd)
{
	if (strcmp(way, "block") != 0 && strcmp(way, "exit") != 0 && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0)
		fail("fcntl");
}

// Receives all bytes. Returns false at the end of the stream.
static bool receive(int fd, char *to, size_t len)
{
	for (ssize_t count; len > 0; to += count, len -= (size_t)count) {
		await(fd, POLLIN);
		count = recv(fd, to, len, 0);
		if (count == 0)
			return false;
		if (count < 0 && errno != EAGAIN)
			fail("recv");
		if (count < 0)
			count = 0;
	}
	return true;
}

static void transmit(int fd, const char *from, size_t len)
{
	for (ssize_t count; len > 0; from += count, len -= (size_t)count) {
		count = send(fd, from, len, 0);
		if (count < 0 && errno != EAGAIN)
			fail("send");
		if (count < 0) {
			count = 0;
			await(fd, POLLOUT);
		}
	}
}

static int serve(int fd)
{
	static char message[MESSAGE];

	prepare(fd);
	while (receive(fd, message, sizeof message))
		transmit(fd, message, sizeof message);
	return 0;
}

static int server(int fd, const struct sockaddr_in *address, int clients)
{
	int one = 1, status, failed = 0;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(fd, (const struct sockaddr *)address, sizeof *address) != 0 || listen(fd, 64) != 0)
		fail("listen");
	for (int i = 0; i < clients; i++) {
		int connection = accept(fd, NULL, NULL);

		if (connection < 0)
			fail("accept");
		switch (fork()) {
		case -1:
			fail("fork");
			break;
		case 0:
			close(fd);
			if (i == 0 && strcmp(way, "exit") == 0) {
				signal(SIGALRM, leave);
				alarm(1);
			}
			exit(serve(connection));
		default:
			close(connection);
		}
	}
	while (wait(&status) > 0)
		failed += status != 0;
	return failed != 0;
}

static int client(int fd, const struct sockaddr_in *address, int count, const char *from)
{
	static char sent[MESSAGE], echoed[MESSAGE];
	struct sockaddr_in own = { .sin_family = AF_INET };

	if (from && (inet_pton(AF_INET, from, &own.sin_addr) != 1 || bind(fd, (struct sockaddr *)&own, sizeof own) != 0))
		fail("bind");
	if (connect(fd, (const struct sockaddr *)address, sizeof *address) != 0)
		fail("connect");
	// Not the library's recv(2): the word of fork mode arrives on the kernel's socket.
	if (from && syscall(SYS_recvfrom, fd, echoed, 1, MSG_PEEK, NULL, NULL) != 1)
		fail("no word");
	prepare(fd);
	for (int i = 0; i < count; i++) {
		for (size_t j = 0; j < sizeof sent; j++)
			sent[j] = (char)((size_t)i + j * 7);
		transmit(fd, sent, sizeof sent);
		if (!receive(fd, echoed, sizeof echoed) || memcmp(sent, echoed, sizeof sent) != 0)
			fail("echo");
	}
	return close(fd);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (argc < 6 || argc > 7 || fd < 0)
		fail("usage");
	inet_pton(AF_INET, argv[2], &address.sin_addr);
	address.sin_port = htons((uint16_t)atoi(argv[3]));
	way = argv[5];
	if (strcmp(argv[1], "server") == 0)
		return server(fd, &address, atoi(argv[4]));
	return client(fd, &address, atoi(argv[4]), argv[6]);
}
