/*
 * Datagram sockets: calls that wait and what ends them, full queues, strangers, peers that come
 * back. Run on ours only, for the reference's do not work over RoCE.
 */
#include "cases.h"
#include "rscommon.h"

#include <pthread.h>

static int bound_to(union address *name)
{
	int fd = rsocket(name->sa.sa_family, SOCK_DGRAM, 0);
	socklen_t len = sizeof(*name);

	EXPECT(fd >= 0);
	EXPECT(!rbind(fd, &name->sa, addr_len(name)));
	EXPECT(!rgetsockname(fd, &name->sa, &len) && len == addr_len(name));
	return fd;
}

static int bound(union address *name)
{
	*name = local_addr(AF_INET, 0);
	return bound_to(name);
}

static void send_to(int fd, const char *text, const union address *to)
{
	EXPECT(rsendto(fd, text, strlen(text), 0, &to->sa, addr_len(to)) == (ssize_t)strlen(text));
}

static void expect_text(int fd, const char *text)
{
	char buf[64];

	EXPECT(rrecv(fd, buf, sizeof(buf), 0) == (ssize_t)strlen(text));
	EXPECT(!memcmp(buf, text, strlen(text)));
}

/* Until both know each other's QP; the first datagrams take another way than the rest. */
static void acquaint(int a, const union address *a_name, int b, const union address *b_name)
{
	for (int i = 0; i < 4; i++) {
		send_to(a, "hello", b_name);
		expect_text(b, "hello");
		send_to(b, "hello yourself", a_name);
		expect_text(a, "hello yourself");
	}
}

/* ---- what ends a wait ------------------------------------------------------------------------ */

struct blocked {
	pthread_t thread;
	int fd, error;
	ssize_t ret;
};

static void *block(void *arg)
{
	struct blocked *blocked = arg;
	char buf[16];

	blocked->ret = rrecv(blocked->fd, buf, sizeof(buf), 0);
	blocked->error = errno;
	return NULL;
}

enum { THREADS = 4 };

static void start_blocked(struct blocked *blocked, int fd)
{
	for (int i = 0; i < THREADS; i++) {
		blocked[i] = (struct blocked){ .fd = fd };
		EXPECT(!pthread_create(&blocked[i].thread, NULL, block, &blocked[i]));
	}
}

/* Every waiting thread gets one datagram, by whichever way it comes. */
static void each_thread_gets_one(void)
{
	union address a_name, b_name;
	int a = bound(&a_name), b = bound(&b_name);
	struct blocked blocked[THREADS];

	for (int round = 0; round < 10; round++) {
		start_blocked(blocked, b);
		for (int i = 0; i < THREADS; i++)
			send_to(a, "x", &b_name);
		for (int i = 0; i < THREADS; i++) {
			EXPECT(!pthread_join(blocked[i].thread, NULL));
			EXPECT(blocked[i].ret == 1);
		}
		send_to(b, "y", &a_name);
		expect_text(a, "y");
	}
	EXPECT(!rclose(a) && !rclose(b));
}

static void close_ends_waits(void)
{
	for (int known = 0; known < 2; known++) {
		union address a_name, b_name;
		int a = bound(&a_name), b = bound(&b_name);
		struct blocked blocked[THREADS];

		if (known)
			acquaint(a, &a_name, b, &b_name);
		start_blocked(blocked, b);
		EXPECT(!rclose(b));
		for (int i = 0; i < THREADS; i++) {
			EXPECT(!pthread_join(blocked[i].thread, NULL));
			EXPECT(blocked[i].ret == -1 && blocked[i].error == EBADF);
		}
		EXPECT_ERROR(rclose(b), EBADF);
		EXPECT(!rclose(a));
	}
}

static void shutdown_ends_waits(void)
{
	union address a_name, b_name;
	int a = bound(&a_name), b = bound(&b_name);
	struct blocked blocked[THREADS];
	struct pollfd entry = { .fd = b, .events = POLLIN };

	EXPECT_ERROR(rshutdown(b, 77), EINVAL);
	acquaint(a, &a_name, b, &b_name);
	EXPECT(!rconnect(b, &a_name.sa, addr_len(&a_name)));
	start_blocked(blocked, b);
	EXPECT(!rshutdown(b, SHUT_RD));
	for (int i = 0; i < THREADS; i++) {
		EXPECT(!pthread_join(blocked[i].thread, NULL));
		EXPECT(blocked[i].ret == 0);
	}
	EXPECT(rpoll(&entry, 1, -1) == 1 && entry.revents == POLLIN);
	EXPECT(rsend(b, "x", 1, 0) == 1);
	EXPECT(!rshutdown(b, SHUT_WR));
	EXPECT_ERROR(rsend(b, "x", 1, 0), EPIPE);
	EXPECT(rpoll(&entry, 1, -1) == 1 && entry.revents == (POLLIN | POLLHUP));
	EXPECT(!rclose(a) && !rclose(b));
}

/* As with UDP, a socket that is not connected is shut down, too, although the call fails. */
static void shutdown_of_unconnected(void)
{
	union address name;
	int fd = bound(&name);
	struct blocked blocked[THREADS];

	start_blocked(blocked, fd);
	EXPECT_ERROR(rshutdown(fd, SHUT_RDWR), ENOTCONN);
	for (int i = 0; i < THREADS; i++) {
		EXPECT(!pthread_join(blocked[i].thread, NULL));
		EXPECT(blocked[i].ret == 0);
	}
	EXPECT_ERROR((int)rsendto(fd, "x", 1, 0, &name.sa, sizeof(name.in)), EPIPE);
	EXPECT(!rclose(fd));
}

static void timeouts(void)
{
	union address name;
	int fd = bound(&name);
	struct timeval time = { .tv_usec = 1000 }, got;
	socklen_t len = sizeof(got);
	char byte;

	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
	EXPECT(!rgetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &got, &len) && len == sizeof(got));
	EXPECT_ERROR((int)rrecv(fd, &byte, 1, 0), EAGAIN);
	time = (struct timeval){ .tv_sec = -1 };
	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
	EXPECT_ERROR((int)rrecv(fd, &byte, 1, 0), EAGAIN);
	time = (struct timeval){ 0 };
	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
	send_to(fd, "x", &name);
	EXPECT(poll_wait(fd, POLLIN) == POLLIN);
	EXPECT_ERROR((int)rrecv(fd, &byte, 1, MSG_ERRQUEUE), EAGAIN);
	EXPECT(rrecv(fd, &byte, 1, 0) == 1);
	EXPECT(!rfcntl(fd, F_SETFL, O_NONBLOCK));
	EXPECT_ERROR((int)rrecv(fd, &byte, 1, 0), EAGAIN);
	EXPECT(!rclose(fd));
}

/* ---- full queues, small packets ---------------------------------------------------------------- */

/* Unread datagrams are dropped, and the sender is not affected. */
static void nobody_reads(void)
{
	union address a_name, b_name;
	int a = bound(&a_name), b = bound(&b_name), got = 0;
	static char data[1000];
	ssize_t last;

	acquaint(a, &a_name, b, &b_name);
	for (int i = 0; i < 3000; i++)
		EXPECT(rsendto(a, data, sizeof(data), 0, &b_name.sa, addr_len(&b_name)) == sizeof(data));
	/* Some may be on their way for a while, and leave no space for what comes behind them. */
	do {
		send_to(a, "hello", &b_name);
		while ((last = rrecv(b, data, sizeof(data), MSG_DONTWAIT)) == sizeof(data))
			got++;
	} while (last != 5);
	EXPECT(got > 0 && got < 3000);
	while ((last = rrecv(b, data, sizeof(data), MSG_DONTWAIT)) == 5)
		;
	EXPECT(last == -1);
	acquaint(a, &a_name, b, &b_name);
	EXPECT(!rclose(a) && !rclose(b));
}

/* The kernel's sizes of the receive buffer hold, and one datagram always fits. */
static void receive_buffers(void)
{
	static const int sizes[] = { 0, 1, -1, 100, 1 << 20, 1 << 30 };
	int plain = socket(AF_INET, SOCK_DGRAM, 0);

	EXPECT(plain >= 0);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		union address a_name, b_name;
		int a = bound(&a_name), b = bound(&b_name), size = 0, usual = 0;
		socklen_t len = sizeof(size);

		EXPECT(!rsetsockopt(b, SOL_SOCKET, SO_RCVBUF, &sizes[i], sizeof(int)));
		EXPECT(!setsockopt(plain, SOL_SOCKET, SO_RCVBUF, &sizes[i], sizeof(int)));
		EXPECT(!rgetsockopt(b, SOL_SOCKET, SO_RCVBUF, &size, &len));
		EXPECT(!getsockopt(plain, SOL_SOCKET, SO_RCVBUF, &usual, &len) && size == usual);
		acquaint(a, &a_name, b, &b_name);
		EXPECT(!rclose(a) && !rclose(b));
	}
	EXPECT(!close(plain));
}

/* The smallest queues do for any number of datagrams that are answered. */
static void small_queues(void)
{
	int size = 1, buffer = 2048, value = 0;
	socklen_t len = sizeof(value);
	union address a_name = local_addr(AF_INET, 0), b_name;
	int a = rsocket(AF_INET, SOCK_DGRAM, 0), b = bound(&b_name);

	EXPECT(!rsetsockopt(a, SOL_RDMA, RDMA_SQSIZE, &size, sizeof(size)));
	EXPECT(!rsetsockopt(a, SOL_RDMA, RDMA_RQSIZE, &size, sizeof(size)));
	EXPECT(!rgetsockopt(a, SOL_RDMA, RDMA_RQSIZE, &value, &len) && value == 1);
	EXPECT(!rsetsockopt(a, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer)));
	EXPECT(!rbind(a, &a_name.sa, addr_len(&a_name)));
	len = sizeof(a_name);
	EXPECT(!rgetsockname(a, &a_name.sa, &len));
	for (int i = 0; i < 50; i++)
		acquaint(a, &a_name, b, &b_name);
	EXPECT_ERROR(rsetsockopt(a, SOL_RDMA, RDMA_RQSIZE, &size, sizeof(size)), EINVAL);
	EXPECT(!rclose(a) && !rclose(b));
}

/* ---- others --------------------------------------------------------------------------------------- */

/* A connected socket receives from its peer only. */
static void connected_to_one(void)
{
	union address a_name, b_name, c_name;
	int a = bound(&a_name), b = bound(&b_name), c = bound(&c_name);

	acquaint(a, &a_name, b, &b_name);
	acquaint(c, &c_name, b, &b_name);
	EXPECT(!rconnect(b, &a_name.sa, addr_len(&a_name)));
	for (int i = 0; i < 5; i++) {
		send_to(c, "unheard", &b_name);
		send_to(a, "heard", &b_name);
		expect_text(b, "heard");
	}
	EXPECT(!rclose(a) && !rclose(b) && !rclose(c));
}

/* No socket has the port: UDP reports it. */
static void refused(void)
{
	union address a_name, gone_name;
	int a = bound(&a_name), gone = bound(&gone_name), error = 0;
	socklen_t len = sizeof(error);
	struct pollfd entry = { .fd = a, .events = 0 };

	EXPECT(!rclose(gone));
	EXPECT(!rconnect(a, &gone_name.sa, addr_len(&gone_name)));
	EXPECT(rsend(a, "x", 1, 0) == 1);
	EXPECT(rpoll(&entry, 1, -1) == 1 && entry.revents == POLLERR);
	EXPECT(!rgetsockopt(a, SOL_SOCKET, SO_ERROR, &error, &len) && error == ECONNREFUSED);
	EXPECT(!rgetsockopt(a, SOL_SOCKET, SO_ERROR, &error, &len) && error == 0);
	EXPECT(!rclose(a));
}

/* A peer that comes back under its name with another QP is found again. */
static void peer_comes_back(void)
{
	union address a_name, b_name;
	int a = bound(&a_name), b = bound(&b_name);
	struct pollfd entry = { .events = POLLIN };

	acquaint(a, &a_name, b, &b_name);
	EXPECT(!rclose(b));
	b = bound_to(&b_name);
	entry.fd = b;
	do
		send_to(a, "are you there?", &b_name);
	while (rpoll(&entry, 1, 100) == 0);
	expect_text(b, "are you there?");
	EXPECT(!rclose(a) && !rclose(b));
}

/* Headers from anywhere do not affect peers that know each other. */
static void many_strangers(void)
{
	static const unsigned char header[] = { 0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0, 0, 17, 10, 9, 8, 7 };
	union address a_name, b_name;
	int a = bound(&a_name), b = bound(&b_name);
	struct timeval patience = { .tv_usec = 100000 };
	char buf[64];
	ssize_t got;

	acquaint(a, &a_name, b, &b_name);
	for (int i = 0; i < 600; i++) {
		int stranger = socket(AF_INET, SOCK_DGRAM, 0);

		EXPECT(sendto(stranger, header, sizeof(header), 0, &b_name.sa, sizeof(b_name.in)) == sizeof(header));
		close(stranger);
	}
	while (rrecv(b, buf, sizeof(buf), MSG_DONTWAIT) >= 0)
		;
	/*
	 * Until the path to b is found, which may take longer than acquaint, datagrams come over UDP, and those of the
	 * strangers may have filled its buffer: sent again until one arrives.
	 */
	EXPECT(!rsetsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)));
	do {
		send_to(a, "known", &b_name);
		while ((got = rrecv(b, buf, sizeof(buf), 0)) == 0)
			;
	} while (got < 0 && errno == EAGAIN);
	EXPECT(got == 5 && !memcmp(buf, "known", 5));
	EXPECT(!rclose(a) && !rclose(b));
}

/* A socket for both versions of IP: an IPv4 peer has a mapped address there. */
static void both_versions(void)
{
	union address any = any_addr(AF_INET6, 0), a_name, to = local_addr(AF_INET, 0), sender;
	int b = bound_to(&any), a = bound(&a_name);
	socklen_t len = sizeof(sender);
	char buf[16];

	to.in.sin_port = any.in6.sin6_port;
	for (int i = 0; i < 4; i++) {
		send_to(a, "four", &to);
		len = sizeof(sender);
		EXPECT(rrecvfrom(b, buf, sizeof(buf), 0, &sender.sa, &len) == 4 && len == sizeof(sender.in6));
		EXPECT(sender.sa.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&sender.in6.sin6_addr));
		EXPECT(sender.in6.sin6_port == a_name.in.sin_port);
		EXPECT(rsendto(b, "six", 3, 0, &sender.sa, len) == 3);
		expect_text(a, "six");
	}
	EXPECT(!rclose(a) && !rclose(b));
}

/* A child may close its copies; it has no sockets of its parent's. */
static void child_closes(void)
{
	union address a_name, b_name;
	int a = bound(&a_name), b = bound(&b_name), ends[2];
	char good = 0;
	pid_t child;

	acquaint(a, &a_name, b, &b_name);
	EXPECT(!pipe(ends));
	child = fork();
	if (child == 0) {
		bool refused = rrecv(b, &good, 1, MSG_DONTWAIT) == -1 && errno == EBADF;

		good = refused && !rclose(a) && !rclose(b);
		_exit(write(ends[1], &good, 1) != 1);
	}
	EXPECT(read(ends[0], &good, 1) == 1 && good);
	EXPECT(waitpid(child, NULL, 0) == child);
	acquaint(a, &a_name, b, &b_name);
	EXPECT(!rclose(a) && !rclose(b));
}

int main(int argc, char **argv)
{
	start(argc, argv);
	if (on_siw())
		skip_all("iWARP has no datagrams");
	CASE(each_thread_gets_one);
	CASE(close_ends_waits);
	CASE(shutdown_ends_waits);
	CASE(shutdown_of_unconnected);
	CASE(timeouts);
	CASE(nobody_reads);
	CASE(receive_buffers);
	CASE(small_queues);
	CASE(connected_to_one);
	CASE(refused);
	CASE(peer_comes_back);
	CASE(many_strangers);
	CASE(both_versions);
	CASE(child_closes);
	return finish();
}
