/*
 * A librdmacm.so.1 whose rsockets are kernel sockets, to test librspreload on machines without RDMA.
 *
 * Its descriptor numbers are high, so that code that confuses them with the program's, or uses them in an fd_set,
 * fails. It makes system calls only: the C library's functions would be intercepted by librspreload.
 *
 * RS_FAKE_LOG: a file to which a line is written for each rsocket and epoll instance that is created or closed.
 * RS_FAKE_BUSY: the first rclose fails with EAGAIN.
 * RS_FAKE_CLOSE_FAILS: rclose closes, and fails with EIO.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FIRST 2000
#define MOST 65536
/* The private level of abi/base, and its options. */
#define OWN_LEVEL 0x72736f63
#define IS_OWN 0
#define MARKS 14

/* One bit for each descriptor. */
static _Atomic uint64_t own[MOST / 64];

/* Moves a new descriptor to a high number. */
static int high(int fd)
{
	int to, error;

	if (fd < 0)
		return fd;
	to = syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, FIRST);
	error = errno;
	syscall(SYS_close, fd);
	errno = error;
	if (to >= 0 && to < MOST)
		own[to / 64] |= 1ull << to % 64;
	return to;
}

static void note(const char *what, int fd)
{
	const char *name = getenv("RS_FAKE_LOG");
	char line[64];
	int to, len;

	if (!name)
		return;
	to = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND, 0600);
	len = snprintf(line, sizeof(line), "%s %d\n", what, fd);
	syscall(SYS_write, to, line, (size_t)len);
	syscall(SYS_close, to);
}

int rsocket(int domain, int type, int protocol)
{
	int fd;

	if (getenv("RS_FAKE_FAIL")) {
		errno = ENODEV;
		return -1;
	}
	fd = high(syscall(SYS_socket, domain, type, protocol));
	if (fd < 0)
		return fd;
	note("socket", fd);
	if (!(type & SOCK_CLOEXEC))
		syscall(SYS_fcntl, fd, F_SETFD, 0);
	return fd;
}

int raccept(int fd, struct sockaddr *addr, socklen_t *len)
{
	/* The listener's flags are inherited, as in librdmacm. */
	int flags = syscall(SYS_fcntl, fd, F_GETFL, 0) & O_NONBLOCK ? SOCK_NONBLOCK : 0;
	int new, type;

	/* accept(2) is a cancellation point, syscall(3) is none. */
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
	new = syscall(SYS_accept4, fd, addr, len, flags);
	pthread_setcanceltype(type, &type);
	new = high(new);
	if (new >= 0)
		note("accept", new);
	return new;
}

int rclose(int fd)
{
	static _Atomic int refused;

	if (getenv("RS_FAKE_BUSY") && !refused++) {
		errno = EAGAIN;
		return -1;
	}
	if (fd >= 0 && fd < MOST)
		own[fd / 64] &= ~(1ull << fd % 64);
	note("close", fd);
	if (syscall(SYS_close, fd))
		return -1;
	errno = EIO;
	return getenv("RS_FAKE_CLOSE_FAILS") ? -1 : 0;
}

int repoll_create(int flags)
{
	int fd = high(syscall(SYS_epoll_create1, flags & ~O_NONBLOCK));

	if (fd >= 0)
		note("epoll", fd);
	return fd;
}

int rgetsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	struct {
		_Atomic uint64_t *words;
		size_t count;
	} marks = { own, MOST / 64 };

	if (level == OWN_LEVEL && name == MARKS && *len == sizeof(marks)) {
		memcpy(value, &marks, sizeof(marks));
		return 0;
	}
	if (level == OWN_LEVEL) {
		if (name != IS_OWN || fd < 0 || fd >= MOST || !(own[fd / 64] >> fd % 64 & 1)) {
			errno = EBADF;
			return -1;
		}
		*(int *)value = 1;
		return 0;
	}
	return syscall(SYS_getsockopt, fd, level, name, value, len);
}

int rfcntl(int fd, int cmd, ...)
{
	va_list list;
	long arg;

	va_start(list, cmd);
	arg = va_arg(list, long);
	va_end(list);
	return syscall(SYS_fcntl, fd, cmd, arg);
}

/* 0x10000: SOL_RDMA. */
int rsetsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	if (level == 0x10000) {
		char what[32];

		snprintf(what, sizeof(what), "option %d of", name);
		note(what, fd);
		note("to", *(const int *)value);
		return 0;
	}
	return syscall(SYS_setsockopt, fd, level, name, value, len);
}

#define SAME(type, name, call, declared, ...)                                                                          \
	type name declared                                                                                             \
	{                                                                                                              \
		return syscall(SYS_##call, __VA_ARGS__);                                                               \
	}

SAME(int, rbind, bind, (int fd, const struct sockaddr *addr, socklen_t len), fd, addr, len)
SAME(int, rlisten, listen, (int fd, int backlog), fd, backlog)
SAME(int, rconnect, connect, (int fd, const struct sockaddr *addr, socklen_t len), fd, addr, len)
SAME(int, rshutdown, shutdown, (int fd, int how), fd, how)
SAME(int, rgetpeername, getpeername, (int fd, struct sockaddr *addr, socklen_t *len), fd, addr, len)
SAME(int, rgetsockname, getsockname, (int fd, struct sockaddr *addr, socklen_t *len), fd, addr, len)
SAME(ssize_t, rread, read, (int fd, void *buf, size_t len), fd, buf, len)
SAME(ssize_t, rwrite, write, (int fd, const void *buf, size_t len), fd, buf, len)
SAME(ssize_t, rreadv, readv, (int fd, const struct iovec *list, int count), fd, list, count)
SAME(ssize_t, rwritev, writev, (int fd, const struct iovec *list, int count), fd, list, count)
SAME(ssize_t, rrecv, recvfrom, (int fd, void *buf, size_t len, int flags), fd, buf, len, flags, NULL, NULL)
SAME(ssize_t, rsend, sendto, (int fd, const void *buf, size_t len, int flags), fd, buf, len, flags, NULL, 0)
SAME(ssize_t, rrecvfrom, recvfrom,
     (int fd, void *buf, size_t len, int flags, struct sockaddr *addr, socklen_t *size), fd, buf, len, flags, addr, size)
SAME(ssize_t, rsendto, sendto,
     (int fd, const void *buf, size_t len, int flags, const struct sockaddr *addr, socklen_t size), fd, buf, len, flags,
     addr, size)
SAME(ssize_t, rrecvmsg, recvmsg, (int fd, struct msghdr *msg, int flags), fd, msg, flags)
SAME(ssize_t, rsendmsg, sendmsg, (int fd, const struct msghdr *msg, int flags), fd, msg, flags)
SAME(int, rpoll, poll, (struct pollfd *fds, nfds_t count, int timeout), fds, count, timeout)
SAME(int, rselect, select, (int count, fd_set *in, fd_set *out, fd_set *ex, struct timeval *timeout), count, in, out,
     ex, timeout)
SAME(int, repoll_ctl, epoll_ctl, (int epfd, int op, int fd, struct epoll_event *event), epfd, op, fd, event)
SAME(int, repoll_wait, epoll_wait, (int epfd, struct epoll_event *events, int most, int timeout), epfd, events, most,
     timeout)
