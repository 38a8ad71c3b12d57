/*
 * Calls that block in a thread of their own: for programs in which another thread, or a signal, ends them.
 */
#ifndef TESTS_C_RSBLOCKED_H
#define TESTS_C_RSBLOCKED_H

#include "cases.h"
#include "rscommon.h"

#include <pthread.h>

static struct rspair pair __attribute__((unused));
static char data[200000];

struct blocked {
	pthread_t thread;
	ssize_t (*call)(int fd);
	int fd;
	volatile pid_t tid;
	ssize_t ret;
	int error;
};

static inline ssize_t call_recv(int fd)
{
	char byte;

	return rrecv(fd, &byte, 1, 0);
}

static inline ssize_t call_send(int fd)
{
	return rsend(fd, data, sizeof(data), 0);
}

static inline ssize_t call_accept(int fd)
{
	return raccept(fd, NULL, NULL);
}

static inline ssize_t call_connect(int fd)
{
	union address to = silent_addr(7994);

	return rconnect(fd, &to.sa, sizeof(to.in));
}

static inline ssize_t call_poll(int fd)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN };

	return rpoll(&entry, 1, -1);
}

static inline void *block(void *argument)
{
	struct blocked *blocked = argument;

	blocked->tid = gettid();
	errno = 0;
	blocked->ret = blocked->call(blocked->fd);
	blocked->error = errno;
	return NULL;
}

/* Starts the call. Returns when its thread sleeps. */
static inline void start_blocked(struct blocked *blocked, ssize_t (*call)(int), int fd)
{
	*blocked = (struct blocked){ .call = call, .fd = fd };
	EXPECT(!pthread_create(&blocked->thread, NULL, block, blocked));
	EXPECT(await_sleep(&blocked->tid));
}

static inline void join(struct blocked *blocked)
{
	EXPECT(!pthread_join(blocked->thread, NULL));
}

static inline bool failed_with(const struct blocked *blocked, int first, int second)
{
	return blocked->ret == -1 && (blocked->error == first || blocked->error == second);
}

/* Sends until there is no space, also after the peer of a new stream has provided more. */
static inline void fill_up(int fd)
{
	struct pollfd entry = { .fd = fd, .events = POLLOUT };

	do {
		while (rsend(fd, data, sizeof(data), MSG_DONTWAIT) > 0)
			;
	} while (rpoll(&entry, 1, 100) == 1 && entry.revents == POLLOUT);
}

#endif
