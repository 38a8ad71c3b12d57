/*
 * The r* calls answered by the kernel's own sockets. Put in front of the library with LD_PRELOAD,
 * it shows the behaviour of TCP and UDP that rsockets should share.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <rdma/rsocket.h>

int rsocket(int domain, int type, int protocol)
{
	return socket(domain, type, protocol);
}

int rbind(int fd, const struct sockaddr *addr, socklen_t len)
{
	return bind(fd, addr, len);
}

int rlisten(int fd, int backlog)
{
	return listen(fd, backlog);
}

/* A socket of raccept inherits the status flags, one of accept does not. */
int raccept(int fd, struct sockaddr *addr, socklen_t *len)
{
	int accepted = accept(fd, addr, len);

	if (accepted >= 0)
		fcntl(accepted, F_SETFL, fcntl(fd, F_GETFL));
	return accepted;
}

int rconnect(int fd, const struct sockaddr *addr, socklen_t len)
{
	return connect(fd, addr, len);
}

int rshutdown(int fd, int how)
{
	return shutdown(fd, how);
}

int rclose(int fd)
{
	return close(fd);
}

ssize_t rrecv(int fd, void *buf, size_t len, int flags)
{
	return recv(fd, buf, len, flags);
}

ssize_t rrecvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *addr, socklen_t *addrlen)
{
	return recvfrom(fd, buf, len, flags, addr, addrlen);
}

ssize_t rrecvmsg(int fd, struct msghdr *msg, int flags)
{
	return recvmsg(fd, msg, flags);
}

/* rsockets raise no SIGPIPE. */
ssize_t rsend(int fd, const void *buf, size_t len, int flags)
{
	return send(fd, buf, len, flags | MSG_NOSIGNAL);
}

ssize_t rsendto(int fd, const void *buf, size_t len, int flags, const struct sockaddr *addr, socklen_t addrlen)
{
	return sendto(fd, buf, len, flags | MSG_NOSIGNAL, addr, addrlen);
}

ssize_t rsendmsg(int fd, const struct msghdr *msg, int flags)
{
	return sendmsg(fd, msg, flags | MSG_NOSIGNAL);
}

ssize_t rread(int fd, void *buf, size_t count)
{
	return read(fd, buf, count);
}

ssize_t rreadv(int fd, const struct iovec *iov, int iovcnt)
{
	return readv(fd, iov, iovcnt);
}

ssize_t rwrite(int fd, const void *buf, size_t count)
{
	return write(fd, buf, count);
}

ssize_t rwritev(int fd, const struct iovec *iov, int iovcnt)
{
	return writev(fd, iov, iovcnt);
}

int rpoll(struct pollfd *fds, nfds_t nfds, int timeout)
{
	return poll(fds, nfds, timeout);
}

int rselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds, struct timeval *timeout)
{
	return select(nfds, readfds, writefds, exceptfds, timeout);
}

int rgetpeername(int fd, struct sockaddr *addr, socklen_t *len)
{
	return getpeername(fd, addr, len);
}

int rgetsockname(int fd, struct sockaddr *addr, socklen_t *len)
{
	return getsockname(fd, addr, len);
}

int rsetsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	return setsockopt(fd, level, name, value, len);
}

int rgetsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	return getsockopt(fd, level, name, value, len);
}

int rfcntl(int fd, int cmd, ...)
{
	va_list arguments;
	long value;

	va_start(arguments, cmd);
	value = va_arg(arguments, long);
	va_end(arguments);
	return fcntl(fd, cmd, value);
}

off_t riomap(int fd, void *buf, size_t len, int prot, int flags, off_t offset)
{
	(void)fd, (void)buf, (void)len, (void)prot, (void)flags, (void)offset;
	errno = ENOTSUP;
	return -1;
}

int riounmap(int fd, void *buf, size_t len)
{
	(void)fd, (void)buf, (void)len;
	errno = ENOTSUP;
	return -1;
}

size_t riowrite(int fd, const void *buf, size_t count, off_t offset, int flags)
{
	(void)fd, (void)buf, (void)count, (void)offset, (void)flags;
	errno = ENOTSUP;
	return (size_t)-1;
}

int repoll_create(int flags)
{
	return epoll_create1(flags);
}

int repoll_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
	return epoll_ctl(epfd, op, fd, event);
}

int repoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout)
{
	return epoll_wait(epfd, events, maxevents, timeout);
}
