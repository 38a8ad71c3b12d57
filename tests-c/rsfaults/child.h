/* A child process at the other end of a connection. */
#ifndef TESTS_RSFAULTS_CHILD_H
#define TESTS_RSFAULTS_CHILD_H

#include "faults.h"

#include <sys/prctl.h>

static pid_t child;

static inline void say_to(int fd, const void *bytes, size_t len) { EXPECT(write(fd, bytes, len) == (ssize_t)len); }
static inline void hear_from(int fd, void *bytes, size_t len) { EXPECT(read(fd, bytes, len) == (ssize_t)len); }

/* Starts a child that executes `body` and exists until it is killed. */
static inline void begin_child(void (*body)(int from, int to), int *from, int *to)
{
	int up[2], down[2];

	EXPECT(!pipe(up) && !pipe(down));
	child = fork();
	EXPECT(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		body(down[0], up[1]);
		for (;;)
			pause();
	}
	close(up[1]);
	close(down[0]);
	*from = up[0];
	*to = down[1];
}

static inline void kill_child(void)
{
	EXPECT(!kill(child, SIGKILL));
	EXPECT(waitpid(child, NULL, 0) == child);
}

/* The child's server for connect_to_child(): sends a greeting to each client. */
static inline void serve(int from, int to)
{
	union address address;
	int fd = listen_far(&address);
	char byte;

	say_to(to, &address, sizeof(address));
	EXPECT((fd = raccept(fd, NULL, NULL)) >= 0);
	hear_from(from, &byte, 1);
	EXPECT(rsend(fd, "hello", 5, 0) == 5);
}

static inline int connect_to_child(int from, int to)
{
	union address address;
	int fd;

	hear_from(from, &address, sizeof(address));
	fd = connect_to(&address);
	/* Not earlier: soft-iWARP may fail a connect if data arrives with the answer (docs/compatibility.md). */
	say_to(to, "", 1);
	return fd;
}

/* ---- calls that wait --------------------------------------------------------------------------- */

/* The socket that the calls wait for: this end of the connection. */
static int survivor;

static inline ssize_t receives(void) { return rrecv(survivor, (char[8]){ 0 }, 8, 0); }
static inline ssize_t sends(void)
{
	static char bytes[1 << 16];
	ssize_t count;

	while ((count = rsend(survivor, bytes, sizeof(bytes), 0)) > 0)
		;
	return count;
}
static inline ssize_t polls(void)
{
	struct pollfd entry = { .fd = survivor, .events = POLLIN };

	EXPECT(rpoll(&entry, 1, -1) == 1);
	return entry.revents & (POLLIN | POLLHUP | POLLERR);
}

#endif
