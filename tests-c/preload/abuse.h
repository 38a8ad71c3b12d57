/*
 * Shared by the cases of abuse: connections between two sockets of this process. The preloaded library turns the
 * sockets into rsockets.
 */
#ifndef TESTS_PRELOAD_ABUSE_H
#define TESTS_PRELOAD_ABUSE_H

#include "cases.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>

extern char **environ;

/* The arguments of the program: which cases to run, and how often. */
extern const char *only_cases;
extern int repetitions;

#undef CASE
#define CASE(function)                                                                                                 \
	do {                                                                                                           \
		bool chosen_ = fnmatch(only_cases, #function, 0) == 0;                                                 \
                                                                                                                       \
		DECLARE_CASE;                                                                                          \
		if (!chosen_)                                                                                          \
			leave_case(#function, "not chosen");                                                           \
		for (int repeated = 0; chosen_ && repeated < repetitions; repeated++)                                  \
			run_case(#function, function);                                                                 \
	} while (0)

static inline bool is_automatic(void)
{
	const char *mode = getenv("RS_MODE");

	return mode && strcmp(mode, "auto") == 0;
}

/*
 * An rsocket has no owner, for which F_GETOWN fails. In automatic mode a new socket is one of the kernel's as well.
 */
static inline bool is_rsocket(int fd)
{
	return is_automatic() || fcntl(fd, F_GETOWN) == -1;
}

static inline int stream_socket(int flags)
{
	int fd = socket(AF_INET, SOCK_STREAM | flags, 0);

	EXPECT(fd >= 0 && is_rsocket(fd));
	return fd;
}

/*
 * Descriptors that the library makes once, at the moment at which it needs them first: two of the thread for closes in
 * the background, and one for each thread that sleeps until an rsocket has an event, which in automatic mode are the
 * library's and the program's. How many there are by now depends on who was faster.
 */
enum { MADE_ONCE = 4 };

/* Open descriptors of this process, the library's too. */
static inline int open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	EXPECT(dir != NULL);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count - 3;
}

static inline bool is_open(int fd)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return access(path, F_OK) == 0 || errno != ENOENT;
}

/* Returns a listening socket, and stores its address in `at`. */
static inline int listening(int flags, union address *at)
{
	int fd = stream_socket(flags);
	socklen_t size = sizeof(*at);

	*at = local_addr(AF_INET, 0);
	EXPECT(bind(fd, &at->sa, sizeof(at->in)) == 0);
	EXPECT(listen(fd, 20) == 0);
	EXPECT(getsockname(fd, &at->sa, &size) == 0);
	return fd;
}

struct dial {
	union address to;
	int fd;
};

static inline void *dial(void *argument)
{
	struct dial *d = argument;

	d->fd = stream_socket(0);
	EXPECT(connect(d->fd, &d->to.sa, sizeof(d->to.in)) == 0);
	return NULL;
}

static inline bool ready(int fd, short events, int milliseconds)
{
	struct pollfd p = { .fd = fd, .events = events };

	return poll(&p, 1, milliseconds) == 1;
}

/* A connected pair: fd[0] was accepted, fd[1] connected. */
static inline void pair_from(int listener, const union address *at, int fd[2])
{
	struct dial d = { .to = *at };
	pthread_t thread;

	EXPECT(pthread_create(&thread, NULL, dial, &d) == 0);
	/* The listener may be non-blocking. */
	EXPECT(ready(listener, POLLIN, -1));
	EXPECT((fd[0] = accept(listener, NULL, NULL)) >= 0);
	EXPECT(pthread_join(thread, NULL) == 0);
	EXPECT(is_rsocket(fd[0]));
	fd[1] = d.fd;
}

static inline void connected_pair(int fd[2])
{
	union address at;
	int listener = listening(0, &at);

	pair_from(listener, &at, fd);
	EXPECT(close(listener) == 0);
}

/* Sends some bytes in both directions, and compares them. */
static inline bool talk(int a, int b)
{
	static unsigned char seed;
	char out[1000], in[1000];

	for (int turn = 0; turn < 2; turn++) {
		size_t got = 0;

		memset(out, ++seed, sizeof(out));
		if (write(turn ? b : a, out, sizeof(out)) != (ssize_t)sizeof(out))
			return false;
		while (got < sizeof(in)) {
			ssize_t n = read(turn ? a : b, in + got, sizeof(in) - got);

			if (n <= 0)
				return false;
			got += (size_t)n;
		}
		if (memcmp(in, out, sizeof(in)) != 0)
			return false;
	}
	return true;
}

#endif
