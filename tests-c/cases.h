/*
 * Frame of the programs that are run on our library only: each case in a child of its own,
 * so that a library that crashes or hangs fails that case and not the rest.
 */
#ifndef TESTS_C_CASES_H
#define TESTS_C_CASES_H

#define _GNU_SOURCE
#include "common.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Time-out of a case; no case needs a fraction of it. HANG_FACTOR: by how much the machine is slower than usual. */
enum { HANG_SECONDS = 40 };
static inline unsigned int hang_seconds(void)
{
	const char *factor = getenv("HANG_FACTOR");

	return HANG_SECONDS * (factor ? (unsigned int)atoi(factor) : 1);
}

extern const char *case_name;

/* In a case: prints what was not as expected and ends the child. */
static inline void expect(bool good, const char *text, int error, int line)
{
	if (good)
		return;
	printf("FAIL %s: line %d: %s (errno %s)\n", case_name, line, text, errno_name(error));
	fflush(stdout);
	_exit(1);
}
#define EXPECT(expression)                                                 \
	do {                                                               \
		errno = 0;                                                 \
		bool expect_good_ = (expression);                          \
		expect(expect_good_, #expression, errno, __LINE__);        \
	} while (0)
/* The call returns -1 and leaves this errno. */
#define EXPECT_ERROR(expression, number)                                   \
	do {                                                               \
		errno = 0;                                                 \
		int expect_ret_ = (expression);                            \
		int expect_errno_ = errno;                                 \
		expect(expect_ret_ == -1 && expect_errno_ == (number),     \
		       #expression " == -1 with " #number, expect_errno_,  \
		       __LINE__);                                          \
	} while (0)

/* Time for gdb, after which SIGALRM ends a child that hangs. */
enum { STACKS_SECONDS = 30 };

/*
 * Waits until the child has ended. If it hangs, gdb prints the stacks of its threads to stderr before it is ended. System
 * calls only: programs have functions of their own in place of the C library's. valgrind 3.19 does not know pidfd_open(2):
 * there the child's own alarm ends a case that hangs.
 */
static inline bool await_child(pid_t child, int *status)
{
	struct pollfd ended = { .fd = (int)syscall(SYS_pidfd_open, child, 0), .events = POLLIN };
	struct timespec limit = { .tv_sec = hang_seconds() };
	char command[100];

	if (ended.fd >= 0 && syscall(SYS_ppoll, &ended, 1, &limit, NULL, 0) == 0) {
		snprintf(command, sizeof(command), "gdb -q -batch -p %d -ex 'thread apply all bt 24' >&2 </dev/null", child);
		fprintf(stderr, "%s hangs:\n", case_name);
		if (system(command))
			fprintf(stderr, "gdb fails\n");
		kill(child, SIGALRM);
	}
	if (ended.fd >= 0)
		syscall(SYS_close, ended.fd);
	return waitpid(child, status, 0) == child;
}

static inline void run_case(const char *name, void (*body)(void))
{
	int status = 0;
	pid_t child;

	case_name = name;
	fflush(stdout);
	child = fork();
	if (child == 0) {
		alarm(hang_seconds() + STACKS_SECONDS);
		body();
		fflush(stdout);
		_exit(0);
	}
	if (child < 0 || !await_child(child, &status))
		printf("FAIL %s: no child\n", name);
	else if (WIFSIGNALED(status))
		printf("FAIL %s: %s\n", name, WTERMSIG(status) == SIGALRM ? "hangs"
		       : sigabbrev_np(WTERMSIG(status)));
	else if (WEXITSTATUS(status) == 0)
		printf("PASS %s\n", name);
}
#define CASE(function) run_case(#function, function)

#endif
