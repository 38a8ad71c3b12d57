/*
 * overhead OPERATION PAIRS [rsocket]: the time of a read, write or close of a pipe or file, of a small message over TCP
 * and its answer (echo), or of a TCP connection's set-up and end (connect), both by name, which a preloaded library
 * intercepts, and with the C library's own definitions. One process calls them alternately in short
 * blocks, so that other load on the machine affects both equally. Prints the medians in nanoseconds, and the median of
 * the ratios of adjacent blocks. With `rsocket` the process has an open rsocket, so that the preloaded library has to
 * look up every number.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Calls in a block; a connection is many. */
enum { BLOCK = 1000, CONNECTIONS = 20, MESSAGE = 64 };

struct calls {
	ssize_t (*read)(int, void *, size_t);
	ssize_t (*write)(int, const void *, size_t);
	int (*close)(int);
	ssize_t (*send)(int, const void *, size_t, int);
	ssize_t (*recv)(int, void *, size_t, int);
	int (*socket)(int, int, int);
	int (*connect)(int, const struct sockaddr *, socklen_t);
	int (*accept)(int, struct sockaddr *, socklen_t *);
};

static int pipes[2], zero, null, listener, ends[2];
static struct sockaddr_in address;
static char byte;

static void die(const char *text)
{
	perror(text);
	exit(1);
}

static void pipe_turns(const struct calls *c)
{
	for (int i = 0; i < BLOCK; i++)
		if (c->write(pipes[1], &byte, 1) != 1 || c->read(pipes[0], &byte, 1) != 1)
			die("pipe");
}

static void file_reads(const struct calls *c)
{
	for (int i = 0; i < BLOCK; i++)
		if (c->read(zero, &byte, 1) != 1)
			die("/dev/zero");
}

static void file_writes(const struct calls *c)
{
	for (int i = 0; i < BLOCK; i++)
		if (c->write(null, &byte, 1) != 1)
			die("/dev/null");
}

/* dup() is the cheapest way to get a descriptor to close; both times include it. */
static void closes(const struct calls *c)
{
	for (int i = 0; i < BLOCK; i++)
		if (c->close(dup(null)) != 0)
			die("/dev/null");
}

static void one_way(const struct calls *c, int from, int to)
{
	char message[MESSAGE] = "";

	if (c->send(from, message, sizeof(message), 0) != MESSAGE ||
	    c->recv(to, message, sizeof(message), MSG_WAITALL) != MESSAGE)
		die("message");
}

static void echoes(const struct calls *c)
{
	for (int i = 0; i < BLOCK; i++) {
		one_way(c, ends[0], ends[1]);
		one_way(c, ends[1], ends[0]);
	}
}

static void connect_ends(const struct calls *c)
{
	ends[0] = c->socket(AF_INET, SOCK_STREAM, 0);
	if (ends[0] < 0 || c->connect(ends[0], (struct sockaddr *)&address, sizeof(address)) != 0 ||
	    (ends[1] = c->accept(listener, NULL, NULL)) < 0)
		die("connection");
}

static void connections(const struct calls *c)
{
	for (int i = 0; i < CONNECTIONS; i++) {
		connect_ends(c);
		c->close(ends[1]);
		c->close(ends[0]);
	}
}

static void listen_here(void)
{
	socklen_t len = sizeof(address);

	address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	listener = socket(AF_INET, SOCK_STREAM, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
	    listen(listener, 16) != 0 || getsockname(listener, (struct sockaddr *)&address, &len) != 0)
		die("listener");
}

static double once(void (*run)(const struct calls *), const struct calls *c)
{
	struct timespec from, to;

	clock_gettime(CLOCK_MONOTONIC, &from);
	run(c);
	clock_gettime(CLOCK_MONOTONIC, &to);
	return ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) /
	       (run == connections ? CONNECTIONS : BLOCK);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, int count)
{
	qsort(values, (size_t)count, sizeof(*values), compare);
	return values[count / 2];
}

/* Returns whether the number is a placeholder instead of a kernel socket: it has no owner. */
static int is_rsocket(int fd)
{
	return fd >= 0 && fcntl(fd, F_GETOWN) == -1;
}

static void *definition(void *libc, const char *name)
{
	void *symbol = dlsym(libc, name);

	if (!symbol)
		die(name);
	return symbol;
}

static void measure(void (*run)(const struct calls *), int pairs)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW);
	const struct calls by_name = { read, write, close, send, recv, socket, connect, accept };
	double *own = calloc((size_t)pairs, sizeof(*own)), *named = calloc((size_t)pairs, sizeof(*named)),
	       *ratio = calloc((size_t)pairs, sizeof(*ratio));
	struct calls of_libc;

	if (!libc || !own || !named || !ratio)
		die("setup");
	*(void **)&of_libc.read = definition(libc, "read");
	*(void **)&of_libc.write = definition(libc, "write");
	*(void **)&of_libc.close = definition(libc, "close");
	*(void **)&of_libc.send = definition(libc, "send");
	*(void **)&of_libc.recv = definition(libc, "recv");
	*(void **)&of_libc.socket = definition(libc, "socket");
	*(void **)&of_libc.connect = definition(libc, "connect");
	*(void **)&of_libc.accept = definition(libc, "accept");
	/* In mode rdma it would be an rsocket, and calls on files are to be measured without one, too. */
	if (run == echoes || run == connections)
		listen_here();
	if (run == echoes)
		connect_ends(&by_name);
	for (int i = -2; i < pairs; i++) {
		/* The order alternates. */
		double a = i % 2 ? once(run, &of_libc) : 0, b = once(run, &by_name);

		if (i % 2 == 0)
			a = once(run, &of_libc);
		if (i < 0)
			continue;
		own[i] = a;
		named[i] = b;
		ratio[i] = b / a;
	}
	printf("%.1f %.1f %.3f\n", median(own, pairs), median(named, pairs), median(ratio, pairs));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(const struct calls *);
	} operations[] = { { "pipe", pipe_turns }, { "read", file_reads }, { "write", file_writes }, { "close", closes },
			 { "echo", echoes }, { "connect", connections } };
	int count = argc >= 3 ? atoi(argv[2]) : 0;

	if (pipe(pipes) != 0 || (zero = open("/dev/zero", O_RDONLY)) < 0 || (null = open("/dev/null", O_WRONLY)) < 0)
		die("open");
	if (argc == 4 && !is_rsocket(socket(AF_IB, SOCK_STREAM, 0)) && !is_rsocket(socket(AF_INET, SOCK_STREAM, 0))) {
		fputs("no rsocket\n", stderr);
		return 1;
	}
	for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]) && count > 0; i++) {
		if (strcmp(argv[1], operations[i].name) != 0)
			continue;
		measure(operations[i].run, count);
		return 0;
	}
	fputs("usage: overhead pipe|read|write|close|echo|connect PAIRS [rsocket]\n", stderr);
	return 2;
}
