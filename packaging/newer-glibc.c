/*
 * Functions that glibc 2.28 lacks and the C programs of the tests use: scripts/old-glibc compiles them. It writes
 * errno.cases and signal.cases, a line for each name, from the headers.
 */
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* Since 2.30. */
pid_t gettid(void)
{
	return (pid_t)syscall(SYS_gettid);
}

/* Since 2.32. */
const char *strerrorname_np(int number)
{
	switch (number) {
#include "errno.cases"
	}
	return number ? NULL : "0";
}

/* Since 2.32. */
const char *sigabbrev_np(int number)
{
	switch (number) {
#include "signal.cases"
	}
	return NULL;
}

/* Since 2.33. The older one has the same members with less room. */
struct mallinfo2 mallinfo2(void)
{
	struct mallinfo info = mallinfo();

	return (struct mallinfo2){
		.arena = (unsigned int)info.arena, .ordblks = (unsigned int)info.ordblks, .smblks = (unsigned int)info.smblks,
		.hblks = (unsigned int)info.hblks, .hblkhd = (unsigned int)info.hblkhd, .fsmblks = (unsigned int)info.fsmblks,
		.uordblks = (unsigned int)info.uordblks, .fordblks = (unsigned int)info.fordblks,
		.keepcost = (unsigned int)info.keepcost,
	};
}

/* Since 2.34. */
void closefrom(int first)
{
	for (long fd = sysconf(_SC_OPEN_MAX); fd-- > first;)
		close((int)fd);
}
