/*
 * Allocations that fail (failmalloc.so), and the calls that notice, for cm/ours/oom and rsocket/ours/oom.
 */
#ifndef TESTS_C_OOM_H
#define TESTS_C_OOM_H

#include "cases.h"

/* The functions of failmalloc.so without their prefix. */
static void (*arm)(long);
static long (*disarm)(void), (*held)(void);

/* The first call that failed, and its errno. */
static const char *failed_call;
static int failed_errno;

static inline bool step(bool good, const char *text, int error)
{
	if (!good && !failed_call) {
		failed_call = text;
		failed_errno = error;
	}
	return good;
}
#define STEP(expression)                                                   \
	__extension__({                                                    \
		errno = 0;                                                 \
		bool step_good_ = (expression);                            \
		step(step_good_, #expression, errno);                      \
	})

/*
 * Exit status of a child in which the n-th allocation was to fail: one failed, so that more may
 * follow, or there were not as many. Something else ended a child with another status.
 */
enum { MORE_FOLLOW = 100, NONE_FAILED };

/* Executes the program again with failmalloc.so, unless it is loaded already. */
static inline void load_failmalloc(char **argv)
{
	arm = (void (*)(long))optional_symbol("failmalloc_arm");
	disarm = (long (*)(void))optional_symbol("failmalloc_disarm");
	held = (long (*)(void))optional_symbol("failmalloc_held");
	if (!arm) {
		char self[512], preload[600];
		ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);

		self[len > 0 ? len : 0] = 0;
		snprintf(preload, sizeof(preload), "%.*s/../../shims/failmalloc.so",
			 (int)(strrchr(self, '/') - self), self);
		if (getenv("LD_PRELOAD"))
			skip_all("failmalloc.so could not be loaded");
		setenv("LD_PRELOAD", preload, 1);
		execv(self, argv);
		skip_all("could not start anew");
	}
}

#endif
