/* Shared by the cases of rsockets under faults. */
#ifndef TESTS_RSFAULTS_FAULTS_H
#define TESTS_RSFAULTS_FAULTS_H

#include "cases.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sched.h>
#include <signal.h>

/* Returns whether this case was selected. */
bool chosen(const char *name);
#define FAULT_IF(condition, function)                                      \
	do {                                                               \
		if (chosen(#function))                                     \
			CASE_IF(condition, function);                      \
		else                                                       \
			leave_case(#function, "not chosen");               \
	} while (0)
#define FAULT(function) FAULT_IF(true, function)

void killed_cases(void);
void link_cases(void);
void neighbour_cases(void);
void limit_cases(void);
void held_cases(void);
void removal_cases(void);

/* The far end of the lab's network. */
union address far_addr(void);
/* On InfiniBand the far end is a host with a network namespace of its own: rsockets that this thread creates belong to it. */
void enter_far_host(bool far);

static inline int listen_far(union address *address)
{
	socklen_t len = sizeof(*address);
	int fd;

	enter_far_host(true);
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	*address = far_addr();
	EXPECT(fd >= 0 && !rbind(fd, &address->sa, sizeof(address->in)) && !rlisten(fd, 8));
	enter_far_host(false);
	EXPECT(!rgetsockname(fd, &address->sa, &len));
	return fd;
}

static inline int connect_to(const union address *address)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	EXPECT(fd >= 0 && !rconnect(fd, &address->sa, sizeof(address->in)));
	return fd;
}

/* ---- a call in a thread ------------------------------------------------------------------------ */

struct call {
	ssize_t (*body)(void);
	ssize_t result;
	int error;
	pid_t tid;
	pthread_t thread;
};

static inline void *call_body(void *argument)
{
	struct call *call = argument;

	__atomic_store_n(&call->tid, gettid(), __ATOMIC_SEQ_CST);
	errno = 0;
	call->result = call->body();
	call->error = errno;
	return NULL;
}

/* Starts the call, and returns when its thread sleeps (usually in the call; the results are the same if not). */
static inline void call_begin(struct call *call, ssize_t (*body)(void))
{
	call->tid = 0;
	call->body = body;
	EXPECT(!pthread_create(&call->thread, NULL, call_body, call));
	await_sleep(&call->tid);
}

static inline void call_end(struct call *call, ssize_t result, int error)
{
	EXPECT(!pthread_join(call->thread, NULL));
	if (call->result != result || (result < 0 && call->error != error))
		printf("     returned %zd %s\n", call->result, errno_name(call->error));
	EXPECT(call->result == result && (result >= 0 || call->error == error));
}

#endif
