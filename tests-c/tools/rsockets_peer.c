/*
 * One end of a connection, for two ends on different libraries: peer server|client ADDRESS TEST.
 * Both ends run the same test. Each verifies the received data, and exits with 0 only if all of it is correct.
 * Sizes of this end come from the environment: PEER_SQ, PEER_RQ, PEER_INLINE, PEER_RCVBUF,
 * PEER_SNDBUF; PEER_TOTAL (the same on both ends) is the number of bytes in each direction.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <rdma/rsocket.h>

enum { PORT = 7600, PARALLEL = 32, REGION = 100000 };

static bool serving;
static const char *address;
static size_t total = 1000000;

static void fail(const char *what)
{
	printf("failed: %s (%s)\n", what, strerror(errno));
	exit(1);
}
#define NEED(expression)                                                   \
	do {                                                               \
		errno = 0;                                                 \
		if (!(expression))                                         \
			fail(#expression);                                 \
	} while (0)

/* ---- sockets -------------------------------------------------------------------- */

static void set_from(const char *variable, int fd, int level, int name)
{
	const char *text = getenv(variable);
	int value = text ? atoi(text) : 0;

	if (text)
		NEED(!rsetsockopt(fd, level, name, &value, sizeof(value)));
}

static int new_socket(int family)
{
	int fd = rsocket(family, SOCK_STREAM, 0), entries = 8, on = 1;

	NEED(fd >= 0);
	set_from("PEER_SQ", fd, SOL_RDMA, RDMA_SQSIZE);
	set_from("PEER_RQ", fd, SOL_RDMA, RDMA_RQSIZE);
	set_from("PEER_INLINE", fd, SOL_RDMA, RDMA_INLINE);
	set_from("PEER_RCVBUF", fd, SOL_SOCKET, SO_RCVBUF);
	set_from("PEER_SNDBUF", fd, SOL_SOCKET, SO_SNDBUF);
	NEED(!rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &entries, sizeof(entries)));
	NEED(!rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	return fd;
}

static socklen_t parse(struct sockaddr_storage *to)
{
	struct sockaddr_in *in = (void *)to;
	struct sockaddr_in6 *in6 = (void *)to;

	memset(to, 0, sizeof(*to));
	if (inet_pton(AF_INET, address, &in->sin_addr) == 1) {
		in->sin_family = AF_INET;
		in->sin_port = htons(PORT);
		return sizeof(*in);
	}
	NEED(inet_pton(AF_INET6, address, &in6->sin6_addr) == 1);
	in6->sin6_family = AF_INET6;
	in6->sin6_port = htons(PORT);
	return sizeof(*in6);
}

static int listening(void)
{
	struct sockaddr_storage to;
	socklen_t len = parse(&to);
	int fd = new_socket(to.ss_family);

	NEED(!rbind(fd, (struct sockaddr *)&to, len));
	NEED(!rlisten(fd, PARALLEL));
	return fd;
}

/* The client sends first: siw may fail a connect if data arrives with the answer (docs/compatibility.md). */
static int connected(int listener)
{
	struct sockaddr_storage to;
	socklen_t len = parse(&to);
	char greeting = 'x';
	int fd;

	if (serving) {
		NEED((fd = raccept(listener, NULL, NULL)) >= 0);
		NEED(rrecv(fd, &greeting, 1, 0) == 1);
	} else {
		fd = new_socket(to.ss_family);
		NEED(!rconnect(fd, (struct sockaddr *)&to, len));
		NEED(rsend(fd, &greeting, 1, 0) == 1);
	}
	return fd;
}

/* ---- data --------------------------------------------------------------------------- */

static unsigned char pattern(unsigned seed, size_t position)
{
	return (unsigned char)(seed * 31u + position + (position >> 8) * 7u + (position >> 16) * 13u);
}

/* Lengths of calls: one byte to 100000, the same sequence in every run. */
static size_t next_step(unsigned *state, size_t left)
{
	static const unsigned limits[] = { 1, 63, 65, 2048, 2049, 20000, 65536, 100000 };
	size_t step;

	*state = *state * 1103515245u + 12345u;
	step = 1 + (*state >> 16) % limits[(*state >> 8) % 8];
	return step < left ? step : left;
}

static void send_pattern(int fd, unsigned seed, size_t len)
{
	static __thread unsigned char data[100000];
	unsigned state = seed;
	size_t done = 0;

	while (done < len) {
		size_t step = next_step(&state, len - done);
		ssize_t ret;

		for (size_t i = 0; i < step; i++)
			data[i] = pattern(seed, done + i);
		NEED((ret = rsend(fd, data, step, 0)) > 0);
		done += (size_t)ret;
	}
}

static void receive_pattern(int fd, unsigned seed, size_t len)
{
	static __thread unsigned char data[100000];
	unsigned state = seed + 77;
	size_t done = 0;

	while (done < len) {
		ssize_t ret;

		NEED((ret = rrecv(fd, data, next_step(&state, len - done), 0)) > 0);
		for (ssize_t i = 0; i < ret; i++)
			NEED(data[i] == pattern(seed, done + (size_t)i));
		done += (size_t)ret;
	}
}

static void expect_end(int fd)
{
	char byte;

	NEED(rrecv(fd, &byte, 1, 0) == 0);
}

static void *send_all(void *argument)
{
	send_pattern((int)(intptr_t)argument, serving ? 1 : 2, total);
	return NULL;
}

/* Both directions simultaneously. */
static void exchange(int fd)
{
	pthread_t thread;

	NEED(!pthread_create(&thread, NULL, send_all, (void *)(intptr_t)fd));
	receive_pattern(fd, serving ? 2 : 1, total);
	pthread_join(thread, NULL);
}

/* ---- tests ----------------------------------------------------------------------------- */

static void test_stream(int fd)
{
	exchange(fd);
	NEED(!rshutdown(fd, SHUT_WR));
	expect_end(fd);
}

/* One end shuts down its half first; the other continues to send. */
static void half_close(int fd, bool first)
{
	if (first) {
		send_pattern(fd, 3, total);
		NEED(!rshutdown(fd, SHUT_WR));
		receive_pattern(fd, 4, total);
		expect_end(fd);
	} else {
		receive_pattern(fd, 3, total);
		expect_end(fd);
		send_pattern(fd, 4, total);
		NEED(!rshutdown(fd, SHUT_WR));
	}
}

static void test_client_first(int fd)
{
	half_close(fd, !serving);
}

static void test_server_first(int fd)
{
	half_close(fd, serving);
}

/* Writes the two halves of a region in reverse order, and a byte at the end. */
static void write_region(int fd, off_t offset, unsigned seed)
{
	static unsigned char data[REGION];

	for (size_t i = 0; i < REGION; i++)
		data[i] = pattern(seed, i);
	NEED(riowrite(fd, data + REGION / 2, REGION / 2 - 1, offset + REGION / 2, 0) == REGION / 2 - 1);
	NEED(riowrite(fd, data, REGION / 2, offset, 0) == REGION / 2);
	NEED(riowrite(fd, data + REGION - 1, 1, offset + REGION - 1, 0) == 1);
}

static void check_region(const unsigned char *region, unsigned seed)
{
	for (size_t i = 0; i < REGION; i++)
		NEED(region[i] == pattern(seed, i));
}

/* Takes mappings back before the peer needs to know of them. The reference gives back no credit of such a message. */
static void map_in_vain(int fd, unsigned char *region)
{
	for (int i = 0; i < 1000; i++) {
		NEED(riomap(fd, region, REGION, PROT_WRITE, 0, 0) == 0);
		NEED(!riounmap(fd, region, REGION));
	}
}

/* Each end maps three regions and writes to the peer's; a message follows the writes. */
static void test_iomap(int fd)
{
	static unsigned char regions[3][REGION];
	int64_t offsets[3] = { 0, 1 << 20, -1 }, theirs[3];
	unsigned mine = serving ? 10 : 20, other = serving ? 20 : 10;

	map_in_vain(fd, regions[0]);
	for (int i = 0; i < 3; i++)
		NEED((offsets[i] = riomap(fd, regions[i], REGION, PROT_WRITE, 0, offsets[i])) != -1);
	NEED(rsend(fd, offsets, sizeof(offsets), 0) == sizeof(offsets));
	NEED(rrecv(fd, theirs, sizeof(theirs), MSG_WAITALL) == sizeof(theirs));
	for (unsigned i = 0; i < 3; i++)
		write_region(fd, theirs[i], mine + i);
	exchange(fd);
	for (unsigned i = 0; i < 3; i++)
		check_region(regions[i], other + i);
	for (int i = 0; i < 3; i++)
		NEED(!riounmap(fd, regions[i], REGION));
	test_stream(fd);
}

/* Idle for several keepalive periods, then data. */
static void test_keepalive(int fd)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	int on = 1;

	NEED(!rsetsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &on, sizeof(on)));
	NEED(!rsetsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)));
	exchange(fd);
	if (serving) {
		NEED(rpoll(&entry, 1, -1) == 1);
	} else {
		NEED(rpoll(&entry, 1, 3500) == 0);
	}
	test_stream(fd);
}

static void *one_of_many(void *argument)
{
	int fd = (int)(intptr_t)argument;
	unsigned own = serving ? 5 : 6, other = serving ? 6 : 5;

	/* Alternates directions after 10 KB, so that one thread per connection is enough. */
	for (unsigned round = 0; round < 10; round++) {
		if (!serving)
			send_pattern(fd, own + round, 10000);
		receive_pattern(fd, other + round, 10000);
		if (serving)
			send_pattern(fd, own + round, 10000);
	}
	NEED(!rshutdown(fd, SHUT_WR));
	expect_end(fd);
	return NULL;
}

static void test_parallel(int listener)
{
	pthread_t threads[PARALLEL];
	int fds[PARALLEL];

	for (int i = 0; i < PARALLEL; i++)
		fds[i] = connected(listener);
	for (int i = 0; i < PARALLEL; i++)
		NEED(!pthread_create(&threads[i], NULL, one_of_many, (void *)(intptr_t)fds[i]));
	for (int i = 0; i < PARALLEL; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < PARALLEL; i++)
		NEED(!rclose(fds[i]));
}

static void run_test(const char *name, int listener)
{
	static const struct { const char *name; void (*body)(int); } tests[] = {
		{ "stream", test_stream }, { "client-first", test_client_first },
		{ "server-first", test_server_first }, { "iomap", test_iomap },
		{ "keepalive", test_keepalive },
	};

	if (!strcmp(name, "parallel")) {
		test_parallel(listener);
		return;
	}
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		if (!strcmp(name, tests[i].name)) {
			int fd = connected(listener);

			tests[i].body(fd);
			NEED(!rclose(fd));
			return;
		}
	errno = EINVAL;
	fail(name);
}

int main(int argc, char **argv)
{
	int listener = -1;

	if (argc != 4) {
		fprintf(stderr, "usage: %s server|client ADDRESS TEST\n", argv[0]);
		return 2;
	}
	serving = !strcmp(argv[1], "server");
	address = argv[2];
	if (getenv("PEER_TOTAL"))
		total = strtoul(getenv("PEER_TOTAL"), NULL, 10);
	if (serving)
		listener = listening();
	run_test(argv[3], listener);
	if (serving)
		NEED(!rclose(listener));
	printf("all as expected\n");
	return 0;
}
