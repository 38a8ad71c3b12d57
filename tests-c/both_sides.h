/*
 * Cases of stream sockets that are run twice, with the kernel's TCP and with rsockets: each makes the same calls on both sides,
 * and fails if it observes something else there.
 */
#ifndef TESTS_C_BOTH_SIDES_H
#define TESTS_C_BOTH_SIDES_H

#include "cases.h"
#include "rscommon.h"

#include <stdarg.h>

/* The C library declares these with unions of pointers. */
static inline int tcp_bind(int fd, const struct sockaddr *addr, socklen_t len) { return bind(fd, addr, len); }
static inline int tcp_accept(int fd, struct sockaddr *addr, socklen_t *len) { return accept(fd, addr, len); }
static inline int tcp_connect(int fd, const struct sockaddr *addr, socklen_t len) { return connect(fd, addr, len); }
static inline int tcp_getsockname(int fd, struct sockaddr *addr, socklen_t *len) { return getsockname(fd, addr, len); }
static inline int tcp_getpeername(int fd, struct sockaddr *addr, socklen_t *len) { return getpeername(fd, addr, len); }
static inline ssize_t udp_sendto(int fd, const void *buf, size_t len, int flags, const struct sockaddr *to, socklen_t to_len)
{
	return sendto(fd, buf, len, flags, to, to_len);
}
static inline ssize_t udp_recvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *from, socklen_t *from_len)
{
	return recvfrom(fd, buf, len, flags, from, from_len);
}

static const struct side {
	const char *name;
	int (*socket)(int domain, int type, int protocol);
	int (*bind)(int fd, const struct sockaddr *addr, socklen_t len);
	int (*listen)(int fd, int backlog);
	int (*accept)(int fd, struct sockaddr *addr, socklen_t *len);
	int (*connect)(int fd, const struct sockaddr *addr, socklen_t len);
	int (*shutdown)(int fd, int how);
	int (*close)(int fd);
	int (*poll)(struct pollfd *fds, nfds_t count, int timeout);
	int (*fcntl)(int fd, int command, ...);
	ssize_t (*send)(int fd, const void *buf, size_t len, int flags);
	ssize_t (*recv)(int fd, void *buf, size_t len, int flags);
	ssize_t (*read)(int fd, void *buf, size_t len);
	ssize_t (*readv)(int fd, const struct iovec *list, int count);
	int (*setsockopt)(int fd, int level, int name, const void *value, socklen_t len);
	int (*getsockopt)(int fd, int level, int name, void *value, socklen_t *len);
	int (*getsockname)(int fd, struct sockaddr *addr, socklen_t *len);
	int (*getpeername)(int fd, struct sockaddr *addr, socklen_t *len);
	ssize_t (*sendto)(int fd, const void *buf, size_t len, int flags, const struct sockaddr *to, socklen_t to_len);
	ssize_t (*recvfrom)(int fd, void *buf, size_t len, int flags, struct sockaddr *from, socklen_t *from_len);
} sides[] = {
	{ "TCP", socket, tcp_bind, listen, tcp_accept, tcp_connect, shutdown, close, poll, fcntl, send, recv, read, readv, setsockopt, getsockopt,
	  tcp_getsockname, tcp_getpeername, udp_sendto, udp_recvfrom },
	{ "rsockets", rsocket, rbind, rlisten, raccept, rconnect, rshutdown, rclose, rpoll, rfcntl, rsend, rrecv, rread, rreadv, rsetsockopt, rgetsockopt,
	  rgetsockname, rgetpeername, rsendto, rrecvfrom },
};

/* The side that the case runs on, and what it has observed there. */
static const struct side *now;
static char seen[2][4096];

static inline __attribute__((format(printf, 1, 2))) void note(const char *format, ...)
{
	char *text = seen[now - sides];
	size_t len = strlen(text);
	va_list list;

	va_start(list, format);
	vsnprintf(text + len, sizeof(seen[0]) - len, format, list);
	va_end(list);
	strncat(text, "\n", sizeof(seen[0]) - strlen(text) - 1);
}

/* A call: its result, and errno if it failed. */
#define SEE(expression)                                                                     \
	__extension__({                                                                     \
		errno = 0;                                                                  \
		long see_ret_ = (long)(expression);                                         \
		note("%s -> %ld%s%s", #expression, see_ret_, see_ret_ < 0 ? " " : "",       \
		     see_ret_ < 0 ? errno_name(errno) : "");                                \
		see_ret_;                                                                   \
	})

static inline union address address_of(uint16_t port)
{
	return now == sides ? make_addr(AF_INET, "127.0.0.1", port) : local_addr(AF_INET, port);
}

static inline union address name_of(int fd)
{
	union address name;
	socklen_t len = sizeof(name);

	EXPECT(!now->getsockname(fd, &name.sa, &len));
	return name;
}

static inline int bound_to(union address at)
{
	int fd = now->socket(AF_INET, SOCK_STREAM, 0);

	EXPECT(fd >= 0 && !now->bind(fd, &at.sa, sizeof(at.in)));
	return fd;
}

/* To a port by number: one that the kernel chose would not stay with a TCP socket that is disconnected. */
static inline int bound(void)
{
	int fd = bound_to(address_of(0));
	union address at = name_of(fd);

	EXPECT(!now->close(fd));
	return bound_to(at);
}

static inline int listener_at(union address *to)
{
	int fd = bound();

	EXPECT(!now->listen(fd, 4));
	*to = name_of(fd);
	return fd;
}

static inline int client(void)
{
	int fd = now->socket(AF_INET, SOCK_STREAM, 0);

	EXPECT(fd >= 0);
	return fd;
}

static inline int connect_to(int fd, union address to)
{
	return now->connect(fd, &to.sa, sizeof(to.in));
}

static inline void blocking(int fd, bool on)
{
	EXPECT(!now->fcntl(fd, F_SETFL, on ? 0 : O_NONBLOCK));
}

static inline short await(int fd, short events)
{
	struct pollfd entry = { .fd = fd, .events = events };

	EXPECT(now->poll(&entry, 1, -1) == 1);
	return entry.revents;
}

static inline int pending_error(int fd)
{
	int error = -1;
	socklen_t len = sizeof(error);

	EXPECT(!now->getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
	return error;
}

/* Notes whether data reaches a socket that `listener` accepts. */
static inline void see_use(int fd, int listener)
{
	char byte = 0;
	int server = now->accept(listener, NULL, NULL);

	EXPECT(server >= 0);
	SEE(now->send(fd, "u", 1, 0));
	SEE(now->recv(server, &byte, 1, MSG_WAITALL));
	EXPECT(byte == 'u' && !now->close(server));
}

/* ---- frame ------------------------------------------------------------------------------------------- */

static void (*body)(void);

static inline void on_both_sides(void)
{
	for (now = sides; now < sides + 2; now++)
		body();
	if (!strcmp(seen[0], seen[1]))
		return;
	printf("---- TCP\n%s---- rsockets\n%s", seen[0], seen[1]);
	fail_case("rsockets differ from TCP, see above");
}

#define BOTH_IF(condition, name)                                           \
	do {                                                               \
		DECLARE_CASE;                                              \
		body = name;                                               \
		if (condition)                                             \
			run_case(#name, on_both_sides);                    \
		else                                                       \
			leave_case(#name, #condition);                     \
	} while (0)
#define BOTH(name) BOTH_IF(true, name)

#endif
