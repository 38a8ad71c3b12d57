/*
 * Frame of the programs that are run on our library only: each case in a child of its own,
 * so that a library that crashes or hangs fails that case and not the rest.
 */
#ifndef TESTS_C_CASES_H
#define TESTS_C_CASES_H

#define _GNU_SOURCE
#include "common.h"

#include <poll.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

/* Time-out of a case; no case needs a fraction of it. HANG_FACTOR: by how much the machine is slower than usual. */
enum { HANG_SECONDS = 40 };
static inline unsigned int hang_seconds(void)
{
	const char *factor = getenv("HANG_FACTOR");

	return HANG_SECONDS * (factor ? (unsigned int)atoi(factor) : 1);
}

extern const char *case_name;

/*
 * What a case leaves behind, in memory that its processes share with the parent: a case may close
 * any descriptor.
 */
struct case_mark {
	pid_t parent;
	/* The child, once the case's body has returned. */
	volatile pid_t returned;
	volatile char failed;
	char why[500];
};
extern struct case_mark *case_mark;

/*
 * Ends the process. The parent prints the reason of a case's first failure; a program that fails
 * outside of its cases prints the reason itself.
 */
static inline __attribute__((noreturn, format(printf, 1, 2))) void fail_case(const char *format, ...)
{
	bool inside = case_mark && case_mark->parent != getpid();
	char why[sizeof(case_mark->why)];
	va_list list;

	va_start(list, format);
	vsnprintf(why, sizeof(why), format, list);
	va_end(list);
	if (!inside)
		printf("FAIL %s: %s\n", case_name, why);
	else if (!__atomic_test_and_set(&case_mark->failed, __ATOMIC_SEQ_CST))
		memcpy(case_mark->why, why, sizeof(why));
	fflush(stdout);
	_exit(1);
}

/* Reports an expression that is not true, and the errno that it left, and ends the process. */
static inline void expect(bool good, const char *text, int error, int line)
{
	if (!good)
		fail_case("line %d: %s (errno %s)", line, text, errno_name(error));
}
/* The expression may look at the errno of a call before it. */
#define EXPECT(expression)                                                 \
	do {                                                               \
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

/*
 * Waits for the library's thread to close descriptors. The limit is far from what that takes, and
 * ends a case before it counts as one that hangs.
 */
static inline void await_fds(int before)
{
	struct timespec now, since;

	clock_gettime(CLOCK_MONOTONIC, &since);
	do {
		if (open_fds() == before)
			return;
		pause_briefly();
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - since.tv_sec < hang_seconds() * 3 / 4);
	fail_case("%d descriptors are open, %d are expected", open_fds(), before);
}

/*
 * A case passes if its child ended with status 0 after the body had returned: exit(3) in the middle
 * is a failure.
 */
static inline void judge_case(const char *name, pid_t child, int status)
{
	char how[60] = "";

	if (WIFSIGNALED(status))
		snprintf(how, sizeof(how), "%s", WTERMSIG(status) == SIGALRM ? "hangs" : sigabbrev_np(WTERMSIG(status)));
	else if (WEXITSTATUS(status) && !case_mark->failed)
		snprintf(how, sizeof(how), "exit status %d", WEXITSTATUS(status));
	else if (case_mark->returned != child && !case_mark->failed)
		snprintf(how, sizeof(how), "the case ended its process");
	if (*how || case_mark->failed)
		printf("FAIL %s: %s%s%s\n", name, how, *how && case_mark->failed ? ", " : "", case_mark->why);
	else
		printf("PASS %s\n", name);
}

/* Maps by the system call: programs have functions of their own in place of mmap(2)'s. */
static inline bool begin_mark(void)
{
	if (!case_mark) {
		void *memory = (void *)syscall(SYS_mmap, NULL, sizeof(*case_mark), PROT_READ | PROT_WRITE,
					       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

		if (memory == MAP_FAILED)
			return false;
		case_mark = memory;
	}
	memset(case_mark, 0, sizeof(*case_mark));
	case_mark->parent = getpid();
	return true;
}

static inline void run_case(const char *name, void (*body)(void))
{
	int status = 0;
	pid_t child;

	case_name = name;
	fflush(stdout);
	child = begin_mark() ? fork() : -1;
	if (child == 0) {
		alarm(hang_seconds() + STACKS_SECONDS);
		body();
		case_mark->returned = getpid();
		fflush(stdout);
		_exit(0);
	}
	if (child < 0 || !await_child(child, &status))
		printf("FAIL %s: no child\n", name);
	else
		judge_case(name, child, status);
}

/*
 * A process that a case begins ends with this status after its last step; a process that ends in
 * another way, by exit(0) even, has not done what it should.
 */
enum { CHILD_DONE = 100 };
static inline bool child_done(pid_t child)
{
	int status = 0;

	return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == CHILD_DONE;
}

/*
 * Runs the case if the condition, which depends on the device alone, is true; prints that the case
 * was left out if not.
 */
#define CASE_IF(condition, function)                                       \
	do {                                                               \
		DECLARE_CASE;                                              \
		if (condition)                                             \
			run_case(#function, function);                     \
		else                                                       \
			leave_case(#function, #condition);                 \
	} while (0)
#define CASE(function) CASE_IF(true, function)

#endif
