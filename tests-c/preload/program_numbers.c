/* The cases of program about descriptor numbers: values, flags, copies, closing. */
#include "program.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int lowest_number(void)
{
	int zero = dup(0), fd;

	close(0);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd == 0);
	CHECK(dup2(zero, 0) == 0 && close(zero) == 0);
	return 0;
}

int flags(void)
{
	int to = listener(SOCK_NONBLOCK | SOCK_CLOEXEC), fd, other, on = 1;
	pthread_t thread;
	struct pollfd wait = { .fd = to, .events = POLLIN };
	struct timeval limit = { .tv_usec = 60000 };
	struct timespec start, end;

	CHECK(fcntl(to, F_GETFD) == FD_CLOEXEC && fcntl(to, F_GETFL) & O_NONBLOCK);
	CHECK(accept(to, NULL, NULL) == -1 && errno == EAGAIN);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fcntl(fd, F_GETFD) == 0 && fcntl(fd, F_GETFL) == O_RDWR);
	CHECK(!pthread_create(&thread, NULL, connects, &fd) && poll(&wait, 1, -1) == 1);
	other = accept4(to, NULL, NULL, SOCK_CLOEXEC);
	CHECK(other >= 0 && !pthread_join(thread, NULL));
	/* It waits, although its listener does not. */
	CHECK(!setsockopt(other, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) && !clock_gettime(CLOCK_MONOTONIC, &start));
	CHECK(recv(other, &on, 1, 0) == -1 && errno == EAGAIN && !clock_gettime(CLOCK_MONOTONIC, &end));
	CHECK((end.tv_sec - start.tv_sec) * 1000000000L + end.tv_nsec - start.tv_nsec >= 60000000L);
	CHECK(fcntl(other, F_GETFD) == FD_CLOEXEC && !(fcntl(other, F_GETFL) & O_NONBLOCK));
	CHECK(fcntl(other, F_SETFL, O_NONBLOCK) == 0 && fcntl(other, F_GETFL) & O_NONBLOCK);
	CHECK(recv(other, &on, 1, 0) == -1 && errno == EAGAIN);
	CHECK(fcntl(other, F_SETFL, 0) == 0 && fcntl(other, F_SETFD, 0) == 0 && fcntl(other, F_GETFD) == 0);
	CHECK(works(fd, other));
	CHECK(accept4(to, NULL, NULL, 1) == -1 && errno == EINVAL);
	CHECK(fcntl(to, F_SETFL, 0) == 0 && ioctl(to, FIONBIO, &on) == 0);
	CHECK(accept(to, NULL, NULL) == -1 && errno == EAGAIN);
	CHECK(close(fd) == 0 && close(other) == 0 && close(to) == 0);
	CHECK(close(to) == -1 && errno == EBADF);
	return 0;
}

static int bind_to(in_addr_t host, struct sockaddr_in *to)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), error;

	to->sin_addr.s_addr = host;
	if (fd >= 0 && bind(fd, (struct sockaddr *)to, sizeof(*to)) == 0)
		return fd;
	error = errno;
	close(fd);
	errno = error;
	return -1;
}

/* One address or both are wildcards; an address of another host is no port in use. */
int port_in_use(void)
{
	in_addr_t hosts[] = { htonl(INADDR_ANY), address.sin_addr.s_addr };
	struct sockaddr_in other = { .sin_family = AF_INET };

	for (int i = 0; i < 4; i++) {
		struct sockaddr_in name = { .sin_family = AF_INET };
		socklen_t len = sizeof(name);
		int fd = bind_to(hosts[i & 1], &name);

		CHECK(fd >= 0 && getsockname(fd, (struct sockaddr *)&name, &len) == 0);
		CHECK(bind_to(hosts[i / 2], &name) == -1 && errno == EADDRINUSE);
		CHECK(close(fd) == 0);
	}
	CHECK(bind_to(inet_addr("192.0.2.7"), &other) == -1 && errno == EADDRNOTAVAIL);
	return 0;
}

int copies(void)
{
	int fds[2], others[2], copy, file = open("/dev/zero", O_RDONLY);
	char byte;

	CHECK(!pair(fds) && !pair(others));
	copy = dup(fds[0]);
	CHECK(copy > 0 && close(fds[0]) == 0 && works(copy, fds[1]) && works(fds[1], copy));
	CHECK(read(fds[0], &byte, 1) == -1 && errno == EBADF);
	CHECK(dup2(copy, 100) == 100 && works(100, fds[1]) && dup2(copy, 100) == 100 && works(100, fds[1]));
	CHECK(fcntl(copy, F_DUPFD, 200) == 200 && fcntl(200, F_GETFD) == 0);
	CHECK(fcntl(copy, F_DUPFD_CLOEXEC, 200) == 201 && fcntl(201, F_GETFD) == FD_CLOEXEC && works(201, fds[1]));
	CHECK(dup2(200, 200) == 200 && works(fds[1], 200));
	CHECK(close(copy) == 0 && close(200) == 0 && close(201) == 0 && works(100, fds[1]));
	/* The last number of the socket is closed: the other end reads the end of the stream. */
	CHECK(dup2(others[0], 100) == 100 && read(fds[1], &byte, 1) == 0 && works(100, others[1]));
	/* A file gets a socket's number, and a socket a file's. */
	CHECK(dup2(file, 100) == 100 && read(100, &byte, 1) == 1 && works(others[0], others[1]));
	CHECK(dup2(others[0], file) == file && works(file, others[1]) && works(others[1], file));
	CHECK(dup2(-1, file) == -1 && errno == EBADF && dup2(file, -1) == -1 && errno == EBADF);
	CHECK(works(file, others[1]));
	CHECK(close(100) == 0 && close(file) == 0 && close(fds[1]) == 0 && close(others[0]) == 0 && close(others[1]) == 0);
	return 0;
}

/* Closing and duplicating in a child of vfork() does not affect the parent. */
int guests(void)
{
	int fds[2], status;
	pid_t child;

	CHECK(!pair(fds));
	child = vfork();
	if (child == 0) {
		if (dup2(fds[0], 300) != 300 || dup2(1, fds[1]) != fds[1] || close(fds[0]) || close(fds[1]) || close(300))
			_exit(1);
		/* New descriptors get numbers of the parent's sockets. */
		if (dup(1) < 0 || socket(AF_UNIX, SOCK_DGRAM, 0) < 0 || epoll_create1(0) < 0)
			_exit(2);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(works(fds[0], fds[1]) && works(fds[1], fds[0]) && close(300) == -1 && errno == EBADF);
	CHECK(close(fds[0]) == 0 && close(fds[1]) == 0);
	return 0;
}

/* Closes all descriptors, like a daemon. */
int blind_close(void)
{
	int fds[2], fd;

	CHECK(!pair(fds));
	for (fd = 3; fd < 4096; fd++) {
		if (fd != fds[0] && fd != fds[1])
			close(fd);
	}
	CHECK(works(fds[0], fds[1]) && works(fds[1], fds[0]));
	CHECK(close(fds[0]) == 0 && close(fds[1]) == 0);
	return 0;
}

int limits(void)
{
	struct rlimit before, few;
	int fd = dup(0), count;

	close(fd);
	CHECK(!getrlimit(RLIMIT_NOFILE, &before));
	few = before;
	few.rlim_cur = fd;
	count = open_numbers();
	CHECK(!setrlimit(RLIMIT_NOFILE, &few));
	CHECK(socket(AF_INET, SOCK_STREAM, 0) == -1 && errno == EMFILE);
	few.rlim_cur = fd + 1;
	CHECK(!setrlimit(RLIMIT_NOFILE, &few));
	/* One number is free, but an rsocket needs more: the result is an ordinary socket. */
	CHECK(socket(AF_INET, SOCK_STREAM, 0) == fd && close(fd) == 0);
	CHECK(!setrlimit(RLIMIT_NOFILE, &before) && open_numbers() == count);
	return 0;
}

static int closed;

static void *closes(void *fd)
{
	if (close(*(int *)fd) == 0)
		__atomic_add_fetch(&closed, 1, __ATOMIC_RELAXED);
	return NULL;
}

int one_closer(void)
{
	int i, round;

	for (round = 0; round < 100; round++) {
		pthread_t threads[4];
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		closed = 0;
		for (i = 0; i < 4; i++)
			CHECK(!pthread_create(&threads[i], NULL, closes, &fd));
		for (i = 0; i < 4; i++)
			CHECK(!pthread_join(threads[i], NULL));
		CHECK(closed == 1);
	}
	return 0;
}

static void *answers(void *fd)
{
	return (void *)(long)write(*(int *)fd, "x", 1);
}

/* Like Python's settimeout(). */
int nonblocking_by_ioctl(void)
{
	int fds[2], on = 1, off = 0, fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in nobody = address;
	pthread_t thread;
	char byte;

	/* No host of the network has this address; on the loopback interface nobody listens there. */
	nobody.sin_addr.s_addr = htonl((ntohl(nobody.sin_addr.s_addr) & ~0xffu) | 250);
	nobody.sin_port = htons(7);
	CHECK(ioctl(fd, FIONBIO, &on) == 0 && connect(fd, (struct sockaddr *)&nobody, sizeof(nobody)) == -1);
	CHECK((errno == EINPROGRESS || errno == ECONNREFUSED) && close(fd) == 0);
	CHECK(!pair(fds));
	CHECK(ioctl(fds[0], FIONBIO, &on) == 0 && recv(fds[0], &byte, 1, 0) == -1 && errno == EAGAIN);
	CHECK(ioctl(fds[0], FIONBIO, &off) == 0 && !pthread_create(&thread, NULL, answers, &fds[1]));
	CHECK(read(fds[0], &byte, 1) == 1 && !pthread_join(thread, NULL));
	CHECK(ioctl(fds[0], FIONBIO, &on) == 0 && read(fds[0], &byte, 1) == -1 && errno == EAGAIN);
	CHECK(close(fds[0]) == 0 && close(fds[1]) == 0);
	return 0;
}

/* A number that the C library closes internally belongs to the next file opened with it. */
int closed_unseen(void)
{
	int fds[2], number = socket(AF_INET, SOCK_STREAM, 0);
	struct epoll_event ask = { .events = EPOLLIN, .data.u64 = 5 }, got;
	struct sockaddr name;
	socklen_t len = sizeof(name);
	FILE *file = fdopen(number, "r");

	CHECK(file && fclose(file) == 0 && socket(AF_UNIX, SOCK_DGRAM, 0) == number);
	CHECK(getsockname(number, &name, &len) == 0 && name.sa_family == AF_UNIX && close(number) == 0);
	CHECK(socket(AF_INET, SOCK_STREAM, 0) == number && (file = fdopen(number, "r")) && fclose(file) == 0);
	CHECK(epoll_create1(0) == number && !pair(fds) && !epoll_ctl(number, EPOLL_CTL_ADD, fds[0], &ask));
	CHECK(write(fds[1], "x", 1) == 1 && epoll_wait(number, &got, 1, -1) == 1 && got.data.u64 == 5);
	CHECK(close(number) == 0 && close(fds[0]) == 0 && close(fds[1]) == 0);
	return 0;
}

/* A child closes all descriptors with system calls, which the library does not see. */
static int cleans_up(void)
{
	int one, other, type, ends[64], i;
	socklen_t len = sizeof(type);

	CHECK(close_range(3, ~0U, 0) == 0);
	one = socket(AF_INET, SOCK_STREAM, 0);
	other = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(one == 3 && getsockopt(one, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_STREAM);
	CHECK(other > 3 && getsockopt(other, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_STREAM);
	CHECK(close(one) == 0 && close(other) == 0);
	for (i = 0; i < 64; i += 2)
		CHECK(pipe(ends + i) == 0 && write(ends[i + 1], "x", 1) == 1 && read(ends[i], &type, 1) == 1);
	for (i = 0; i < 64; i++)
		CHECK(close(ends[i]) == 0);
	return 0;
}

int closed_by_a_child(void)
{
	int fds[2], status;
	pid_t child;

	CHECK(!pair(fds));
	child = fork();
	if (child == 0)
		_exit(cleans_up());
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(works(fds[0], fds[1]) && works(fds[1], fds[0]) && close(fds[0]) == 0 && close(fds[1]) == 0);
	return 0;
}
