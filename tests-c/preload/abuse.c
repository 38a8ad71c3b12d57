/*
 * Unusual operations on descriptors, with rsockets of librspreload: abuse rxe|siw [CASES [TIMES]], with the library
 * preloaded. CASES is a pattern.
 * "abuse descriptors N" is the program that the exec cases start: prints whether N is open, and the number of open
 * ones.
 */
#include "abuse.h"

enum { ROUNDS = 20, COPIES = 10, THREADS = 8 };

const char *only_cases = "*";
int repetitions = 1;

/* Daemons close all descriptors that they do not know; later calls must work, including the library's. */
static void close_everything(void)
{
	int fd[2], limit;
	struct rlimit files;

	EXPECT(getrlimit(RLIMIT_NOFILE, &files) == 0);
	limit = files.rlim_cur < 4096 ? (int)files.rlim_cur : 4096;
	for (int turn = 0; turn < 3; turn++) {
		for (int i = 3; i < limit; i++)
			close(i);
		connected_pair(fd);
		EXPECT(talk(fd[0], fd[1]));
	}
}

/* The same, except for one connection, which must still work. */
static void close_all_others(void)
{
	int fd[2], more[2];

	connected_pair(fd);
	for (int turn = 0; turn < 3; turn++) {
		for (int i = 3; i < 1024; i++)
			if (i != fd[0] && i != fd[1])
				close(i);
		EXPECT(talk(fd[0], fd[1]));
		connected_pair(more);
		EXPECT(talk(more[0], more[1]));
	}
}

/* A socket may have any number of descriptors; it is closed with the last one. */
static void copies(void)
{
	int fd[2], copy[COPIES];
	char byte;

	connected_pair(fd);
	EXPECT(dup2(fd[0], fd[0]) == fd[0]);
	for (int i = 0; i < COPIES; i++) {
		int from = i ? copy[i - 1] : fd[0];

		if (i % 3 == 0)
			EXPECT((copy[i] = dup(from)) >= 0);
		else if (i % 3 == 1)
			EXPECT((copy[i] = dup2(from, 200 + i)) == 200 + i);
		else
			EXPECT((copy[i] = fcntl(from, F_DUPFD, 300)) >= 300);
		EXPECT(talk(copy[i], fd[1]));
	}
	EXPECT(close(fd[0]) == 0);
	EXPECT_ERROR((int)write(fd[0], "x", 1), EBADF);
	for (int i = 0; i < COPIES - 1; i++) {
		EXPECT(close(copy[i]) == 0);
		EXPECT_ERROR(close(copy[i]), EBADF);
	}
	EXPECT(talk(copy[COPIES - 1], fd[1]));
	EXPECT(!ready(fd[1], POLLIN, 0));
	EXPECT(close(copy[COPIES - 1]) == 0);
	EXPECT(read(fd[1], &byte, 1) == 0);
}

/* dup2() to numbers that are in use: of sockets, copies, files. */
static void dup2_onto(void)
{
	int a[2], b[2], pipes[2], copy;
	char byte;

	connected_pair(a);
	connected_pair(b);
	EXPECT(pipe(pipes) == 0);
	/* A socket to a copy of another: the other one loses a number. */
	EXPECT((copy = dup(b[0])) >= 0);
	EXPECT(dup2(a[0], copy) == copy);
	EXPECT(talk(copy, a[1]));
	EXPECT(talk(b[0], b[1]));
	/* A socket to another's last number: the other one is closed. */
	EXPECT(dup2(a[0], b[0]) == b[0]);
	EXPECT(read(b[1], &byte, 1) == 0);
	EXPECT(talk(b[0], a[1]));
	/* A socket to the end of a pipe. */
	EXPECT(dup2(a[0], pipes[1]) == pipes[1]);
	EXPECT(read(pipes[0], &byte, 1) == 0);
	EXPECT(talk(pipes[1], a[1]));
	/* A file to all of the socket's numbers: the socket is closed. */
	EXPECT(close(copy) == 0 && close(b[0]) == 0 && close(pipes[1]) == 0);
	EXPECT(dup2(pipes[0], a[0]) == a[0]);
	EXPECT(read(a[1], &byte, 1) == 0);
	EXPECT(read(a[0], &byte, 1) == 0);
	EXPECT_ERROR(dup2(a[1], 1 << 30), EBADF);
	EXPECT_ERROR(dup2(a[0] + 100, a[0]), EBADF);
}

/* ---- closing from elsewhere ------------------------------------------------ */

static int doomed[ROUNDS], refused[ROUNDS];
static volatile sig_atomic_t closed, close_failed;

static void close_one(int signal)
{
	int saved = errno, i = closed;

	(void)signal;
	if (i < ROUNDS && close(doomed[i]) != 0) {
		refused[i] = errno == EAGAIN;
		close_failed |= !refused[i];
	}
	closed = i + 1;
	errno = saved;
}

/*
 * A signal handler closes other sockets than those that the interrupted calls use. What is refused in the middle of a call
 * is closed later.
 */
static void close_in_handler(void)
{
	struct sigaction action = { .sa_handler = close_one, .sa_flags = SA_RESTART };
	/* A timer of the process's CPU time: ITIMER_REAL is the case's alarm. */
	struct itimerval timer = { .it_interval.tv_usec = 3000, .it_value.tv_usec = 3000 };
	int fd[2];

	connected_pair(fd);
	for (int i = 0; i < ROUNDS; i++)
		doomed[i] = stream_socket(0);
	EXPECT(sigaction(SIGPROF, &action, NULL) == 0);
	EXPECT(setitimer(ITIMER_PROF, &timer, NULL) == 0);
	while (closed < ROUNDS)
		EXPECT(talk(fd[0], fd[1]));
	memset(&timer, 0, sizeof(timer));
	EXPECT(setitimer(ITIMER_PROF, &timer, NULL) == 0);
	EXPECT(!close_failed);
	for (int i = 0; i < ROUNDS; i++)
		EXPECT(!refused[i] || close(doomed[i]) == 0);
	for (int i = 0; i < ROUNDS; i++)
		EXPECT_ERROR((int)write(doomed[i], "x", 1), EBADF);
	EXPECT(talk(fd[0], fd[1]));
}

static void *reader(void *argument)
{
	const int *fd = argument;
	char buffer[100];
	ssize_t n;

	do
		n = recv(*fd, buffer, sizeof(buffer), MSG_DONTWAIT);
	while (n > 0 || (n < 0 && errno == EAGAIN && sched_yield() == 0));
	return (void *)(intptr_t)(n < 0 ? errno : 0);
}

/* One thread receives, another closes the number: the result is 0 or EBADF, and no other connection is affected. */
static void close_in_thread(void)
{
	int fd[2], other[2];
	union address at;
	int listener = listening(0, &at);

	pair_from(listener, &at, other);
	for (int i = 0; i < ROUNDS; i++) {
		pthread_t thread;
		void *result;

		pair_from(listener, &at, fd);
		EXPECT(pthread_create(&thread, NULL, reader, &fd[0]) == 0);
		EXPECT(talk(other[0], other[1]));
		EXPECT(close(fd[0]) == 0);
		EXPECT(pthread_join(thread, &result) == 0);
		EXPECT((intptr_t)result == EBADF || (intptr_t)result == 0);
		EXPECT(close(fd[1]) == 0);
		EXPECT(talk(other[0], other[1]));
	}
}

static void *open_and_close(void *argument)
{
	char number = (char)(intptr_t)argument;

	for (int i = 0; i < ROUNDS * 5; i++) {
		int sock = stream_socket(i % 2 ? SOCK_NONBLOCK : 0), copy, pipes[2];
		char byte = 0;

		EXPECT((copy = dup(sock)) >= 0);
		EXPECT(pipe(pipes) == 0);
		EXPECT(write(pipes[1], &number, 1) == 1);
		EXPECT(close(sock) == 0);
		EXPECT(read(pipes[0], &byte, 1) == 1 && byte == number);
		EXPECT(fcntl(copy, F_GETFL) == (i % 2 ? O_RDWR | O_NONBLOCK : O_RDWR));
		EXPECT(close(copy) == 0);
		EXPECT(close(pipes[0]) == 0 && close(pipes[1]) == 0);
	}
	return NULL;
}

/* Other threads reuse free numbers immediately: no thread may use another thread's socket. */
static void many_threads(void)
{
	pthread_t threads[THREADS];
	int before;

	EXPECT(close(stream_socket(0)) == 0);
	before = open_descriptors();
	for (intptr_t i = 0; i < THREADS; i++)
		EXPECT(pthread_create(&threads[i], NULL, open_and_close, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_join(threads[i], NULL) == 0);
	EXPECT(open_descriptors() == before);
}

/* ---- limits ------------------------------------------------------------------ */

/* Returns whether the error means a lack of descriptors or memory, or a lost peer. */
static bool fits(int error)
{
	return error == EMFILE || error == ENOMEM || error == ECONNREFUSED || error == EADDRNOTAVAIL;
}

/* Tries to make a connection with a limit of `few` descriptors. */
static void try_with(const struct rlimit *few, const union address *at)
{
	struct rlimit old;
	int made, error;

	EXPECT(getrlimit(RLIMIT_NOFILE, &old) == 0);
	EXPECT(setrlimit(RLIMIT_NOFILE, few) == 0);
	made = socket(AF_INET, SOCK_STREAM, 0);
	error = made < 0 ? errno : 0;
	EXPECT(error == 0 || error == EMFILE);
	if (error == 0 && connect(made, &at->sa, sizeof(at->in)) != 0) {
		error = errno;
		EXPECT(fits(error));
	}
	EXPECT(made < 0 || close(made) == 0);
	EXPECT(setrlimit(RLIMIT_NOFILE, &old) == 0);
}

/* Accepts remaining connections until there are at most `before` descriptors again. */
static bool settles(int listener, int before)
{
	int made;

	for (int naps = 0; naps < 2000; naps++) {
		while ((made = accept(listener, NULL, NULL)) >= 0)
			EXPECT(close(made) == 0);
		if (open_descriptors() <= before)
			return true;
		/* A connection whose other end is closed may still be pending in the library. */
		poll(NULL, 0, 1);
	}
	return false;
}

/*
 * With few descriptors left, calls fail with the right errors and leak nothing. So often that a descriptor lost with one
 * of the limits is more than the library makes once.
 */
static void exhaustion(void)
{
	union address at;
	int listener = listening(SOCK_NONBLOCK, &at), fd[2], before, top;
	struct rlimit few;

	pair_from(listener, &at, fd);
	EXPECT(close(fd[0]) == 0 && close(fd[1]) == 0);
	EXPECT(getrlimit(RLIMIT_NOFILE, &few) == 0);
	before = open_descriptors();
	EXPECT((top = fcntl(0, F_DUPFD, 3)) >= 0 && close(top) == 0);
	for (int turn = 0; turn <= MADE_ONCE; turn++) {
		for (int left = 0; left < 14; left++) {
			few.rlim_cur = (rlim_t)(top + left);
			try_with(&few, &at);
			EXPECT(settles(listener, before + MADE_ONCE));
		}
	}
	EXPECT(close(listener) == 0);
	connected_pair(fd);
	EXPECT(talk(fd[0], fd[1]));
}

int abuse_exec_main(int number);
void abuse_processes(const char *self);
void abuse_loading(const char *self);

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "descriptors") == 0)
		return abuse_exec_main(atoi(argv[2]));
	start(argc, argv);
	if (argc > 2)
		only_cases = argv[2];
	if (argc > 3)
		repetitions = atoi(argv[3]);
	CASE(close_everything);
	CASE(close_all_others);
	CASE(copies);
	CASE(dup2_onto);
	CASE(close_in_handler);
	CASE(close_in_thread);
	CASE(many_threads);
	CASE(exhaustion);
	abuse_processes(argv[0]);
	abuse_loading(argv[0]);
	return finish();
}
