/* The cases of program about waiting: poll, select, epoll. */
#include "program.h"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

int polls(void)
{
	int fds[2], tube[2];
	struct pollfd list[5];

	CHECK(!pair(fds) && !pipe(tube));
	list[0] = (struct pollfd){ .fd = fds[0], .events = POLLIN };
	list[1] = (struct pollfd){ .fd = -1, .events = POLLIN, .revents = 99 };
	list[2] = (struct pollfd){ .fd = tube[0], .events = POLLIN };
	list[3] = (struct pollfd){ .fd = fds[1], .events = POLLIN | POLLOUT };
	list[4] = (struct pollfd){ .fd = 999, .events = POLLIN };
	CHECK(poll(list, 4, 0) == 1 && list[1].revents == 0 && list[3].revents == POLLOUT);
	CHECK(poll(list, 5, -1) == 2 && list[4].revents == POLLNVAL);
	CHECK(poll(list, 3, 20) == 0);
	CHECK(write(tube[1], "x", 1) == 1 && poll(list, 3, -1) == 1 && list[2].revents == POLLIN);
	CHECK(write(fds[1], "x", 1) == 1);
	CHECK(poll(list, 1, -1) == 1 && list[0].revents == POLLIN && list[0].fd == fds[0]);
	CHECK(poll(list, 3, -1) == 2);
	/* Only what is asked for is reported: of one socket, and of several. */
	for (int count = 1; count <= 2; count++) {
		list[1] = (struct pollfd){ .fd = fds[1], .revents = 99 };
		list[0].events = POLLOUT;
		CHECK(poll(list, count, -1) == 1 && list[0].revents == POLLOUT);
		list[0].events = POLLPRI;
		CHECK(poll(list, count, 0) == 0 && list[0].revents == 0);
		list[0].events = 0;
		CHECK(poll(list, count, 0) == 0 && list[0].revents == 0);
	}
	CHECK(list[1].revents == 0 && shutdown(fds[1], SHUT_WR) == 0);
	list[0].events = POLLRDHUP;
	CHECK(poll(list, 1, -1) == 1 && list[0].revents == POLLRDHUP);
	for (int count = 1; count <= 2; count++) {
		list[0].events = POLLIN;
		CHECK(poll(list, count, -1) == 1 && list[0].revents == POLLIN);
		list[0].events = POLLOUT;
		CHECK(poll(list, count, -1) == 1 && list[0].revents == POLLOUT);
	}
	CHECK(close(fds[0]) == 0 && close(fds[1]) == 0 && close(tube[0]) == 0 && close(tube[1]) == 0);
	return 0;
}

int selects(void)
{
	int fds[2], tube[2], copy, gone;
	fd_set in, out, none;
	struct timeval time = { 0, 20000 };

	CHECK(!pair(fds) && !pipe(tube));
	copy = dup(fds[0]);
	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_ZERO(&none);
	FD_SET(fds[0], &in);
	FD_SET(tube[0], &in);
	FD_SET(fds[0], &none);
	CHECK(select(FD_SETSIZE, &in, NULL, &none, &time) == 0 && time.tv_sec == 0 && time.tv_usec == 0);
	CHECK(!FD_ISSET(fds[0], &in) && !FD_ISSET(tube[0], &in) && !FD_ISSET(fds[0], &none));
	CHECK(write(fds[1], "x", 1) == 1 && write(tube[1], "x", 1) == 1);
	/* Entries beyond the count are ignored; both numbers of a socket; reading and writing. */
	FD_SET(fds[0], &in);
	FD_SET(copy, &in);
	FD_SET(fds[1], &in);
	FD_SET(copy, &out);
	FD_SET(copy + 1000, &out);
	CHECK(select(copy + 1, &in, &out, NULL, NULL) == 3);
	CHECK(FD_ISSET(fds[0], &in) && FD_ISSET(copy, &in) && !FD_ISSET(fds[1], &in) && FD_ISSET(copy, &out));
	FD_ZERO(&in);
	FD_SET(tube[0], &in);
	FD_SET(fds[1], &in);
	time = (struct timeval){ 100, 0 };
	CHECK(select(copy + 1, &in, NULL, NULL, &time) == 1 && FD_ISSET(tube[0], &in));
	CHECK(!FD_ISSET(fds[1], &in) && time.tv_sec >= 10);
	/* A closed number. The kernel ignores much higher ones. */
	CHECK((gone = dup(fds[0])) > 0 && close(gone) == 0);
	FD_SET(fds[1], &in);
	FD_SET(gone, &in);
	CHECK(select(gone + 1, &in, NULL, NULL, &time) == -1 && errno == EBADF && FD_ISSET(gone, &in));
	CHECK(select(-1, &in, NULL, NULL, &time) == -1 && errno == EINVAL);
	CHECK(close(fds[0]) == 0 && close(copy) == 0 && close(fds[1]) == 0 && close(tube[0]) == 0 && close(tube[1]) == 0);
	return 0;
}

/* Rsockets and other descriptors in one instance; edge-triggered, one-shot, changes, removals. */
int epolls(void)
{
	int fds[2], tube[2], epoll = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event ask = { .events = EPOLLIN, .data.u64 = 1 }, got[4];
	char byte;

	CHECK(epoll > 0 && !pair(fds) && !pipe(tube));
	CHECK(epoll_ctl(epoll, EPOLL_CTL_MOD, fds[0], &ask) == -1 && errno == ENOENT);
	CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, tube[0], &ask));
	ask.data.u64 = ~0ULL;
	CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, fds[0], &ask));
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[0], &ask) == -1 && errno == EEXIST);
	CHECK(epoll_wait(epoll, got, 4, 0) == 0 && epoll_wait(epoll, got, 4, 20) == 0);
	CHECK(write(fds[1], "x", 1) == 1 && epoll_wait(epoll, got, 4, -1) == 1);
	CHECK(got[0].data.u64 == ~0ULL && got[0].events == EPOLLIN);
	CHECK(write(tube[1], "x", 1) == 1 && epoll_wait(epoll, got, 4, -1) == 2 && epoll_wait(epoll, got, 1, -1) == 1);
	CHECK(read(tube[0], &byte, 1) == 1);
	ask = (struct epoll_event){ .events = EPOLLIN | EPOLLET, .data.u64 = 2 };
	CHECK(!epoll_ctl(epoll, EPOLL_CTL_MOD, fds[0], &ask));
	CHECK(epoll_wait(epoll, got, 4, -1) == 1 && got[0].data.u64 == 2 && epoll_wait(epoll, got, 4, 0) == 0);
	ask = (struct epoll_event){ .events = EPOLLIN | EPOLLOUT | EPOLLONESHOT, .data.u64 = 3 };
	CHECK(!epoll_ctl(epoll, EPOLL_CTL_MOD, fds[0], &ask) && epoll_wait(epoll, got, 4, -1) == 1);
	CHECK(got[0].events == (EPOLLIN | EPOLLOUT) && epoll_wait(epoll, got, 4, 0) == 0);
	CHECK(!epoll_ctl(epoll, EPOLL_CTL_DEL, fds[0], NULL));
	CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, fds[0], NULL) == -1 && errno == ENOENT);
	/* A closed member is removed automatically. */
	ask.events = EPOLLIN | EPOLLOUT;
	CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, fds[0], &ask) && close(fds[0]) == 0 && epoll_wait(epoll, got, 4, 0) == 0);
	CHECK(close(fds[1]) == 0 && close(tube[0]) == 0 && close(tube[1]) == 0 && close(epoll) == 0);
	return 0;
}

/* Each number of a socket is a separate member, with its own events and data. */
int epoll_copies(void)
{
	int fds[2], copy, epoll = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event ask = { .events = EPOLLIN, .data.u64 = 1 }, got[4];
	char byte;

	CHECK(epoll > 0 && !pair(fds) && (copy = dup(fds[0])) > 0);
	CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, fds[0], &ask));
	CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, copy, NULL) == -1 && errno == ENOENT);
	ask = (struct epoll_event){ .events = EPOLLOUT, .data.u64 = 2 };
	CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, copy, &ask));
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, copy, &ask) == -1 && errno == EEXIST);
	CHECK(epoll_wait(epoll, got, 4, -1) == 1 && got[0].data.u64 == 2 && got[0].events == EPOLLOUT);
	CHECK(write(fds[1], "x", 1) == 1 && recv(fds[0], &byte, 1, MSG_PEEK) == 1);
	/* An InfiniBand device raises its event a moment after the data can be read. */
	while (epoll_wait(epoll, got, 4, -1) == 1 && got[0].data.u64 == 2)
		sched_yield();
	CHECK(epoll_wait(epoll, got, 4, -1) == 2 && got[0].data.u64 + got[1].data.u64 == 3);
	ask = (struct epoll_event){ .events = EPOLLIN, .data.u64 = 4 };
	CHECK(!epoll_ctl(epoll, EPOLL_CTL_DEL, fds[0], NULL) && !epoll_ctl(epoll, EPOLL_CTL_MOD, copy, &ask));
	CHECK(epoll_wait(epoll, got, 4, -1) == 1 && got[0].data.u64 == 4 && got[0].events == EPOLLIN);
	CHECK(close(fds[0]) == 0 && close(copy) == 0 && epoll_wait(epoll, got, 4, 0) == 0);
	CHECK(close(fds[1]) == 0 && close(epoll) == 0);
	return 0;
}

/* The kernel reads the sets only up to the size of the descriptor table, and so must the library. */
int selects_by_table_size(void)
{
	enum { MANY = 1 << 16 };
	struct {
		fd_set in;
		unsigned char behind[MANY / 8];
	} memory;
	struct rlimit before, many;
	int fds[2], i;

	CHECK(!getrlimit(RLIMIT_NOFILE, &before) && !pair(fds));
	many = before;
	many.rlim_cur = before.rlim_max < MANY ? before.rlim_max : MANY;
	CHECK(!setrlimit(RLIMIT_NOFILE, &many));
	memset(&memory, 0xff, sizeof(memory));
	FD_ZERO(&memory.in);
	FD_SET(fds[0], &memory.in);
	CHECK(write(fds[1], "x", 1) == 1 && select(getdtablesize(), &memory.in, NULL, NULL, NULL) == 1);
	CHECK(FD_ISSET(fds[0], &memory.in) && !setrlimit(RLIMIT_NOFILE, &before));
	for (i = 0; i < MANY / 8; i++)
		CHECK(memory.behind[i] == 0xff);
	FD_ZERO(&memory.in);
	CHECK(close(fds[0]) == 0 && close(fds[1]) == 0);
	return 0;
}

/* A child's epoll_wait() may not report its parent's rsockets, but it must return. */
int epoll_of_the_parent(void)
{
	int fds[2], epoll = epoll_create1(0), status;
	struct epoll_event ask = { .events = EPOLLIN }, got;
	pid_t child;

	CHECK(epoll > 0 && !pair(fds) && !epoll_ctl(epoll, EPOLL_CTL_ADD, fds[0], &ask));
	CHECK(write(fds[1], "x", 1) == 1 && epoll_wait(epoll, &got, 1, -1) == 1);
	child = fork();
	if (child == 0) {
		alarm(60);
		_exit(epoll_wait(epoll, &got, 1, 20) < 0 || epoll_wait(epoll, &got, 1, 0) < 0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(epoll_wait(epoll, &got, 1, -1) == 1 && close(epoll) == 0 && close(fds[0]) == 0 && close(fds[1]) == 0);
	return 0;
}
