// SPDX-License-Identifier: MIT OR Apache-2.0
// An echo server and its client, for the automatic mode of librspreload, which is preloaded or not. Ordinary calls only.
//
//	auto server ADDRESS PORT CONNECTIONS WAIT    prints "listening", then one line for each connection
//	auto client ADDRESS PORT WAIT [COUNT]        prints "connected MILLISECONDS", then "ok", for each connection
//
//	auto cancel ADDRESS PORT                     threads that are cancelled in connect
//
// ADDRESS of IPv4 or IPv6. Both ends check what a program may ask of its sockets. WAIT: block, poll, select, epoll, edge
// (EPOLLET); exclusive (a server's EPOLLEXCLUSIVE); before (a client's socket that is in the epoll instance before connect),
// limit (a blocking socket with SO_SNDTIMEO).
// Status 0; 3 if the connection is refused; 4 if the server cannot listen; 1 for anything else.
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 100000, TIMEOUT = 30000, REFUSED = 3, CANNOT_LISTEN = 4, SERVICE = 0x28 };

union address {
	struct sockaddr any;
	struct sockaddr_in four;
	struct sockaddr_in6 six;
	struct sockaddr_storage storage;
};

static const char *way;
static int epoll = -1;

static void fail(const char *what)
{
	fprintf(stderr, "auto: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void check(bool right, const char *what)
{
	if (!right)
		fail(what);
}

static bool is(const char *name)
{
	return strcmp(way, name) == 0;
}

static int option(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof value;

	check(getsockopt(fd, level, name, &value, &len) == 0, "getsockopt");
	return value;
}

static union address parse(const char *address, const char *port, socklen_t *len)
{
	union address result = { 0 };

	if (inet_pton(AF_INET, address, &result.four.sin_addr) == 1) {
		result.four.sin_family = AF_INET;
		result.four.sin_port = htons((in_port_t)atoi(port));
		*len = sizeof result.four;
	} else if (inet_pton(AF_INET6, address, &result.six.sin6_addr) == 1) {
		result.six.sin6_family = AF_INET6;
		result.six.sin6_port = htons((in_port_t)atoi(port));
		*len = sizeof result.six;
	} else {
		fail("the address");
	}
	return result;
}

static int port_of(const union address *address)
{
	return ntohs(address->any.sa_family == AF_INET ? address->four.sin_port : address->six.sin6_port);
}

// What every TCP socket answers.
static void check_socket(int fd, int family, bool listens)
{
	struct stat status;

	check(fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode), "fstat");
	check(option(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM, "SO_TYPE");
	check(option(fd, SOL_SOCKET, SO_DOMAIN) == family, "SO_DOMAIN");
	check(option(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP, "SO_PROTOCOL");
	check(option(fd, SOL_SOCKET, SO_ACCEPTCONN) == listens, "SO_ACCEPTCONN");
}

static void check_connected(int fd, int family)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof info;
	int count = -1;
	union address name;

	check_socket(fd, family, false);
	check(option(fd, SOL_SOCKET, SO_ERROR) == 0, "SO_ERROR");
	// The peer may have shut down already.
	check(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
		      (info.tcpi_state == TCP_ESTABLISHED || info.tcpi_state == TCP_CLOSE_WAIT),
	      "TCP_INFO");
	check(ioctl(fd, FIONREAD, &count) == 0 && count >= 0, "FIONREAD");
	check(fcntl(fd, F_SETOWN, getpid()) == 0 && fcntl(fd, F_GETOWN) == getpid(), "F_SETOWN");
	len = sizeof name;
	check(getsockname(fd, &name.any, &len) == 0 && name.any.sa_family == family && port_of(&name) != 0, "getsockname");
	len = sizeof name;
	check(getpeername(fd, &name.any, &len) == 0 && name.any.sa_family == family && port_of(&name) != 0, "getpeername");
	check(len == (family == AF_INET ? sizeof name.four : sizeof name.six), "getpeername's length");
}

static void add(int fd, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.u64 = 0x123456789abcdef0 };

	check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "EPOLL_CTL_ADD");
}

// Waits until the socket is ready, as the program was told to.
static void await(int fd, short events)
{
	struct pollfd one = { .fd = fd, .events = events };
	struct timeval limit = { .tv_sec = TIMEOUT / 1000 };
	struct epoll_event event;
	fd_set set;

	errno = 0;
	if (is("poll")) {
		check(poll(&one, 1, TIMEOUT) == 1 && one.revents & (events | POLLERR | POLLHUP), "poll");
	} else if (is("select")) {
		FD_ZERO(&set);
		FD_SET(fd, &set);
		check(select(fd + 1, events == POLLIN ? &set : NULL, events == POLLOUT ? &set : NULL, NULL, &limit) == 1 &&
			      FD_ISSET(fd, &set),
		      "select");
	} else if (epoll >= 0) {
		check(epoll_wait(epoll, &event, 1, TIMEOUT) == 1 && event.data.u64 == 0x123456789abcdef0 &&
			      event.events & (uint32_t)(events | POLLERR | POLLHUP),
		      "epoll_wait");
	}
}

static void echo(int fd)
{
	static char data[SIZE];
	ssize_t count;
	long total = 0;

	while ((count = recv(fd, data, sizeof data, 0)) > 0) {
		for (ssize_t sent = 0, more; sent < count; sent += more)
			if ((more = send(fd, data + sent, (size_t)(count - sent), 0)) <= 0)
				fail("the server's send");
		total += count;
	}
	check(count == 0, "the server's recv");
	check(close(fd) == 0, "close");
	printf("echoed %ld\n", total);
	fflush(stdout);
}

static int server(const char *address, const char *port, int connections)
{
	socklen_t len;
	union address own = parse(address, port, &len), peer, again;
	int family = own.any.sa_family, on = 1, fd = socket(family, SOCK_STREAM, 0);

	check(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0, "socket");
	if (bind(fd, &own.any, len) != 0 || listen(fd, 5) != 0) {
		fprintf(stderr, "auto: cannot listen: %s\n", strerror(errno));
		return CANNOT_LISTEN;
	}
	len = sizeof own;
	check(getsockname(fd, &own.any, &len) == 0, "getsockname");
	if (getenv("AUTO_CHECKS"))
		check_socket(fd, family, true);
	if (is("epoll") || is("edge") || is("exclusive")) {
		epoll = epoll_create1(EPOLL_CLOEXEC);
		add(fd, EPOLLIN | (is("edge") ? EPOLLET : is("exclusive") ? EPOLLEXCLUSIVE : 0));
	}
	if (!is("block"))
		check(fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "F_SETFL");
	printf("listening %d\n", port_of(&own));
	fflush(stdout);
	while (connections > 0) {
		int new;

		await(fd, POLLIN);
		while (connections > 0) {
			len = sizeof peer;
			new = accept(fd, &peer.any, &len);
			if (new < 0 && errno == EAGAIN && !is("block"))
				break;
			check(new >= 0, "accept");
			check(peer.any.sa_family == family, "the peer's family");
			if (getenv("AUTO_CHECKS")) {
				check_connected(new, family);
				check((fcntl(new, F_GETFL) & O_NONBLOCK) == 0, "F_GETFL");
			}
			len = sizeof again;
			check(getpeername(new, &again.any, &len) == 0 && port_of(&again) == port_of(&peer), "getpeername");
			echo(new);
			connections--;
			if (is("block"))
				break;
		}
	}
	check(close(fd) == 0, "close");
	return 0;
}

static long milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// Connects. Returns the errno.
static int begin(int fd, const union address *to, socklen_t len)
{
	struct timeval limit = { .tv_sec = TIMEOUT / 1000 };

	if (is("limit"))
		check(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0, "SO_SNDTIMEO");
	if (is("block") || is("limit"))
		return connect(fd, &to->any, len) == 0 ? 0 : errno;
	check(fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "F_SETFL");
	if (is("epoll") || is("edge") || is("before"))
		epoll = epoll_create1(EPOLL_CLOEXEC);
	if (is("before")) {
		struct epoll_event event;

		// An unconnected socket is reported at once: not by its edge again.
		add(fd, EPOLLOUT | EPOLLET);
		epoll_wait(epoll, &event, 1, 0);
	}
	if (connect(fd, &to->any, len) == 0)
		return 0;
	if (errno != EINPROGRESS)
		return errno;
	if (is("epoll") || is("edge"))
		add(fd, EPOLLOUT | (is("edge") ? EPOLLET : 0));
	await(fd, POLLOUT);
	return option(fd, SOL_SOCKET, SO_ERROR);
}

// Sends and receives at the same time.
static void exchange(int fd)
{
	static char out[SIZE], in[SIZE];
	size_t sent = 0, got = 0;
	ssize_t count;

	for (size_t i = 0; i < SIZE; i++)
		out[i] = (char)(i * 7 + i / 251);
	check(fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "F_SETFL");
	while (got < SIZE) {
		struct pollfd one = { .fd = fd, .events = (short)(sent < SIZE ? POLLIN | POLLOUT : POLLIN) };

		check(poll(&one, 1, TIMEOUT) == 1, "poll for data");
		if (one.revents & POLLOUT && sent < SIZE) {
			count = send(fd, out + sent, SIZE - sent, 0);
			check(count > 0 || errno == EAGAIN, "send");
			sent += count > 0 ? (size_t)count : 0;
			if (sent == SIZE)
				check(shutdown(fd, SHUT_WR) == 0, "shutdown");
		}
		if (one.revents & POLLIN) {
			count = recv(fd, in + got, SIZE - got, 0);
			check(count > 0 || errno == EAGAIN, "recv");
			got += count > 0 ? (size_t)count : 0;
		}
	}
	check(memcmp(in, out, SIZE) == 0, "the data");
	check(fcntl(fd, F_SETFL, 0) == 0 && recv(fd, in, 1, 0) == 0, "the end");
}

static int client(const char *address, const char *port)
{
	socklen_t len;
	union address to = parse(address, port, &len);
	int family = to.any.sa_family, on = 1, fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), error;
	int service = family == AF_INET ? SERVICE : 0;
	long start = milliseconds();

	check(fd >= 0, "socket");
	if (getenv("AUTO_CHECKS"))
		check_socket(fd, family, false);
	check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "TCP_NODELAY");
	if (service)
		check(setsockopt(fd, IPPROTO_IP, IP_TOS, &service, sizeof service) == 0, "IP_TOS");
	error = begin(fd, &to, len);
	if (error) {
		fprintf(stderr, "auto: connect: %s after %ld ms\n", strerror(error), milliseconds() - start);
		return error == ECONNREFUSED ? REFUSED : 1;
	}
	printf("connected %ld\n", milliseconds() - start);
	if (getenv("AUTO_CHECKS")) {
		check_connected(fd, family);
		check(option(fd, IPPROTO_TCP, TCP_NODELAY) != 0, "TCP_NODELAY afterwards");
		check(!service || option(fd, IPPROTO_IP, IP_TOS) == service, "IP_TOS afterwards");
		// The first one after an attempt in the background succeeds.
		if (!is("block") && !is("limit"))
			check(connect(fd, &to.any, len) == 0, "connect after the attempt");
		check(connect(fd, &to.any, len) == -1 && errno == EISCONN, "connect again");
	}
	exchange(fd);
	check(close(fd) == 0, "close");
	if (epoll >= 0)
		close(epoll);
	epoll = -1;
	puts("ok");
	return 0;
}

static int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	check(dir, "/proc/self/fd");
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

struct target {
	union address to;
	socklen_t len;
	int fd;
};

static void *connects(void *argument)
{
	const struct target *target = argument;

	connect(target->fd, &target->to.any, target->len);
	return NULL;
}

static void cancel_one(struct target *target)
{
	pthread_t thread;
	void *result;

	target->fd = socket(target->to.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	check(target->fd >= 0 && pthread_create(&thread, NULL, connects, target) == 0, "a thread");
	poll(NULL, 0, 100);
	check(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0, "pthread_join");
	check(result == PTHREAD_CANCELED, "the thread was not cancelled");
	check(close(target->fd) == 0, "close");
}

// Nothing is left of the attempts. The first one makes descriptors that stay.
static int cancels(const char *address, const char *port)
{
	struct target target;
	int before;

	target.to = parse(address, port, &target.len);
	cancel_one(&target);
	poll(NULL, 0, 1000);
	before = descriptors();
	for (int i = 0; i < 3; i++)
		cancel_one(&target);
	for (int left = 100; descriptors() != before && left > 0; left--)
		poll(NULL, 0, 50);
	printf("%d descriptors before, %d afterwards\n", before, descriptors());
	return descriptors() != before;
}

int main(int argc, char **argv)
{
	alarm(2 * TIMEOUT / 1000);
	if (argc == 6 && strcmp(argv[1], "server") == 0) {
		way = argv[5];
		return server(argv[2], argv[3], atoi(argv[4]));
	}
	if ((argc == 5 || argc == 6) && strcmp(argv[1], "client") == 0) {
		int status = 0;

		way = argv[4];
		for (int left = argc == 6 ? atoi(argv[5]) : 1; left > 0 && status == 0; left--)
			status = client(argv[2], argv[3]);
		return status;
	}
	if (argc == 4 && strcmp(argv[1], "cancel") == 0) {
		way = "block";
		return cancels(argv[2], argv[3]);
	}
	fputs("usage: auto server ADDRESS PORT CONNECTIONS WAIT | auto client ADDRESS PORT WAIT [COUNT] | auto cancel ADDRESS PORT\n",
	      stderr);
	return 2;
}
