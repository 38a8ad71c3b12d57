/* Shared by all programs of this folder: a check that ends the program, and a clock. */
#ifndef BENCH_NEED_H
#define BENCH_NEED_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NEED(expression)                                                            \
	do {                                                                        \
		if (!(expression)) {                                                \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__,     \
				#expression, strerror(errno));                      \
			exit(1);                                                    \
		}                                                                   \
	} while (0)

/* Microseconds of a monotonic clock. */
static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

#endif
