/*
 * Tests the frame of the programs of cases (cases.h) without devices: tests/harness/test_frame.py
 * knows the verdict on each case. selftest DEVICE [setup]
 */
#include "cases.h"

static void passes(void)
{
	EXPECT(true);
}

static void looks_at_an_earlier_errno(void)
{
	errno = EAGAIN;
	EXPECT(errno == EAGAIN);
	EXPECT_ERROR(close(-1), EBADF);
}

static void shows_errno(void)
{
	errno = EBADF;
	EXPECT(getppid() == 0);
}

static void wrong_errno(void)
{
	errno = EAGAIN;
	EXPECT_ERROR(close(-1), EAGAIN);
}

static void stale_errno(void)
{
	errno = EAGAIN;
	EXPECT_ERROR(-1, EAGAIN);
}

static void exits_with_0(void)
{
	exit(0);
}

static void exits_at_once_with_0(void)
{
	_exit(0);
}

static void exits_with_3(void)
{
	exit(3);
}

static void crashes(void)
{
	raise(SIGKILL);
}

/* The alarm of a case that hangs. */
static void hangs(void)
{
	alarm(1);
	for (;;)
		pause();
}

/* Its output is lost, the failure is not. */
static void fails_without_stdout(void)
{
	close(1);
	errno = 0;
	EXPECT(!"possible");
}

static void await_failed(pid_t child)
{
	int status;

	EXPECT(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 1);
}

/* A process of the case fails, and the case goes on to its end. */
static void child_fails(void)
{
	pid_t child = fork();

	errno = 0;
	if (!child)
		EXPECT(!"in the child");
	await_failed(child);
}

/* A process of the case returns from the body in place of the case. */
static void child_returns(void)
{
	pid_t child = fork();

	if (!child)
		return;
	waitpid(child, NULL, 0);
	exit(0);
}

static void *fails_in_thread(void *unused)
{
	EXPECT(!"in the thread");
	return unused;
}

static void thread_fails(void)
{
	pthread_t thread;

	EXPECT(!pthread_create(&thread, NULL, fails_in_thread, NULL));
	for (;;)
		pause();
}

static void not_here(void)
{
}

int main(int argc, char **argv)
{
	const char *how = argc > 2 ? argv[2] : "";

	start(argc, argv);
	CASE(passes);
	CASE(looks_at_an_earlier_errno);
	CASE(shows_errno);
	CASE(wrong_errno);
	CASE(stale_errno);
	CASE(exits_with_0);
	CASE(exits_at_once_with_0);
	CASE(exits_with_3);
	CASE(crashes);
	CASE(hangs);
	CASE(fails_without_stdout);
	CASE(child_fails);
	CASE(child_returns);
	CASE(thread_fails);
	CASE_IF(on_siw(), not_here);
	/* Declared, although control does not get there. */
	if (!strcmp(how, "never"))
		CASE(not_here);
	if (!strcmp(how, "setup"))
		SETUP(close(-1) == 0);
	return finish();
}
