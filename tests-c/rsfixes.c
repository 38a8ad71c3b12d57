/*
 * What the reference's rsockets get wrong and ours do not, on single sockets and connections: a
 * case each. What threads and signals do is in rswake, epoll in rsepollfix, datagrams in rsdgram.
 */
#include "cases.h"
#include "rscommon.h"

#include <signal.h>
#include <sys/resource.h>

static struct rspair pair;

/* The call returns -1 and leaves one of two errnos. */
#define EXPECT_EITHER(expression, first, second)                           \
	EXPECT((expression) == -1 && (errno == (first) || errno == (second)))

/* ---- calls in the wrong state ----------------------------------------------------- */

static void unconnected_transfer(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	char byte = 'x';

	EXPECT_EITHER(rsend(fd, &byte, 1, 0), ENOTCONN, EPIPE);
	EXPECT_ERROR(rrecv(fd, &byte, 1, 0), ENOTCONN);
	EXPECT(rshutdown(fd, SHUT_RDWR) == -1 && errno == ENOTCONN);
	EXPECT(!rclose(fd));
	fd = rs_listener(AF_INET, &pair.to, NULL);
	EXPECT_EITHER(rsend(fd, &byte, 1, 0), ENOTCONN, EPIPE);
	EXPECT_ERROR(rrecv(fd, &byte, 1, 0), ENOTCONN);
	EXPECT(!rclose(fd));
}

static void send_after_end(void)
{
	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(!rshutdown(pair.client, SHUT_WR));
	EXPECT_EITHER(rsend(pair.client, "x", 1, MSG_NOSIGNAL), ECONNRESET, EPIPE);
	rs_pair_close(&pair);
	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(!rshutdown(pair.client, SHUT_RDWR));
	poll_gone(pair.server);
	EXPECT_EITHER(rsend(pair.client, "x", 1, MSG_NOSIGNAL), ECONNRESET, EPIPE);
	EXPECT_EITHER(rsend(pair.server, "x", 1, MSG_NOSIGNAL), ECONNRESET, EPIPE);
	rs_pair_close(&pair);
}

static void no_sigpipe(void)
{
	signal(SIGPIPE, SIG_DFL);
	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(!rclose(pair.server));
	pair.server = -1;
	poll_gone(pair.client);
	EXPECT(rsend(pair.client, "x", 1, 0) == -1);
	EXPECT(rwrite(pair.client, "x", 1) == -1);
	rs_pair_close(&pair);
}

static void no_peer_no_name(void)
{
	union address name;
	socklen_t len = sizeof(name);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	EXPECT_ERROR(rgetpeername(fd, &name.sa, &len), ENOTCONN);
	EXPECT(!rclose(fd));
	fd = rs_listener(AF_INET, &pair.to, NULL);
	EXPECT_ERROR(rgetpeername(fd, &name.sa, &len), ENOTCONN);
	EXPECT(!rclose(fd));
}

static void connect_twice(void)
{
	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT_ERROR(rconnect(pair.client, &pair.to.sa, addr_len(&pair.to)), EISCONN);
	EXPECT(rsend(pair.client, "x", 1, 0) == 1);
	rs_pair_close(&pair);
}

static void close_twice(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	EXPECT(!rclose(fd));
	EXPECT_ERROR(rclose(fd), EBADF);
	EXPECT_ERROR(rclose(-1), EBADF);
	EXPECT_ERROR(rsend(-1, "x", 1, 0), EBADF);
	EXPECT_ERROR(rclose(1 << 30), EBADF);
}

/* ---- lengths ------------------------------------------------------------------------ */

static void short_addresses(void)
{
	union address to = local_addr(AF_INET, 0), to6 = local_addr(AF_INET6, 0);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0), fd6 = rsocket(AF_INET6, SOCK_STREAM, 0);

	for (socklen_t len = 0; len < sizeof(to.in); len += 4) {
		EXPECT_ERROR(rbind(fd, &to.sa, len), EINVAL);
		EXPECT_ERROR(rconnect(fd, &to.sa, len), EINVAL);
	}
	EXPECT_ERROR(rbind(fd6, &to6.sa, sizeof(to.in)), EINVAL);
	EXPECT_ERROR(rconnect(fd6, &to6.sa, sizeof(to.in)), EINVAL);
	EXPECT(!rclose(fd));
	EXPECT(!rclose(fd6));
}

static void names_are_cut(void)
{
	unsigned char room[64];
	socklen_t len = 4;

	EXPECT(rs_pair(&pair, AF_INET));
	memset(room, 0xee, sizeof(room));
	EXPECT(!rgetsockname(pair.client, (struct sockaddr *)room, &len));
	EXPECT(len == sizeof(struct sockaddr_in) && room[3] != 0xee && room[4] == 0xee);
	len = 0;
	EXPECT(!rgetpeername(pair.client, (struct sockaddr *)(room + 8), &len));
	EXPECT(len == sizeof(struct sockaddr_in) && room[8] == 0xee);
	rs_pair_close(&pair);
}

/* One byte of room: at most one byte is written. */
static void short_options(void)
{
	static const int options[][2] = {
		{ SOL_SOCKET, SO_RCVBUF }, { SOL_SOCKET, SO_KEEPALIVE }, { SOL_SOCKET, SO_ERROR },
		{ SOL_SOCKET, SO_LINGER }, { IPPROTO_TCP, TCP_NODELAY }, { IPPROTO_TCP, TCP_MAXSEG },
		{ SOL_RDMA, RDMA_SQSIZE }, { SOL_RDMA, RDMA_INLINE }, { SOL_RDMA, RDMA_IOMAPSIZE },
	};
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		unsigned char room[16];
		socklen_t len = 1;
		int ret, error;

		memset(room, 0xee, sizeof(room));
		ret = rgetsockopt(fd, options[i][0], options[i][1], room, &len);
		error = errno;
		EXPECT(ret == 0 || error == EINVAL);
		for (size_t b = 1; b < sizeof(room); b++)
			EXPECT(room[b] == 0xee);
		if (options[i][1] != SO_ERROR)
			for (socklen_t set = 0; set < 4; set++)
				EXPECT_ERROR(rsetsockopt(fd, options[i][0], options[i][1], room, set), EINVAL);
	}
	EXPECT(!rclose(fd));
}

/* ---- options --------------------------------------------------------------------------- */

static int get_int(int fd, int level, int name)
{
	int value = -77;
	socklen_t len = sizeof(value);

	EXPECT(!rgetsockopt(fd, level, name, &value, &len));
	EXPECT(len == sizeof(value));
	return value;
}

static void kinds(void)
{
	int fd = rsocket(AF_INET6, SOCK_STREAM, 0);

	EXPECT(get_int(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM);
	EXPECT(get_int(fd, SOL_SOCKET, SO_DOMAIN) == AF_INET6);
	EXPECT(get_int(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP);
	EXPECT(get_int(fd, SOL_SOCKET, SO_ACCEPTCONN) == 0);
	EXPECT(get_int(fd, SOL_SOCKET, SO_BROADCAST) == 0);
	EXPECT(!rclose(fd));
	fd = rs_listener(AF_INET, &pair.to, NULL);
	EXPECT(get_int(fd, SOL_SOCKET, SO_ACCEPTCONN) == 1);
	EXPECT(get_int(fd, SOL_SOCKET, SO_DOMAIN) == AF_INET);
	EXPECT(!rclose(fd));
}

/* As TCP's: the values of keeping alive are kept, and a listener's options are its connections'. */
static void keepalive_options(void)
{
	static const int options[][3] = {
		{ IPPROTO_TCP, TCP_KEEPIDLE, 7200 }, { IPPROTO_TCP, TCP_KEEPINTVL, 75 },
		{ IPPROTO_TCP, TCP_KEEPCNT, 9 }, { SOL_SOCKET, SO_KEEPALIVE, 0 },
		{ IPPROTO_TCP, TCP_NODELAY, 0 },
	};
	int value = 1;

	EXPECT(rs_pair(&pair, AF_INET));
	for (size_t i = 0; i < 5; i++) {
		EXPECT(get_int(pair.server, options[i][0], options[i][1]) == options[i][2]);
		EXPECT(!rsetsockopt(pair.client, options[i][0], options[i][1], &value, sizeof(value)));
		EXPECT(get_int(pair.client, options[i][0], options[i][1]) == 1);
		EXPECT(!rsetsockopt(pair.listener, options[i][0], options[i][1], &value, sizeof(value)));
	}
	EXPECT(!rclose(pair.client) && !rclose(pair.server));
	pair.client = rsocket(AF_INET, SOCK_STREAM, 0);
	EXPECT(!rconnect(pair.client, &pair.to.sa, addr_len(&pair.to)));
	EXPECT((pair.server = raccept(pair.listener, NULL, NULL)) >= 0);
	for (size_t i = 0; i < 5; i++)
		EXPECT(get_int(pair.server, options[i][0], options[i][1]) == 1);
	rs_pair_close(&pair);
}

static void info_of_listener(void)
{
	struct tcp_info info = { .tcpi_state = 99 };
	socklen_t len = sizeof(info);
	int fd = rs_listener(AF_INET, &pair.to, NULL);

	EXPECT(!rgetsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
	EXPECT(info.tcpi_state == TCP_LISTEN && len <= sizeof(info));
	EXPECT(!rclose(fd));
}

/* The seconds of lingering are kept. */
static void linger_value(void)
{
	struct linger value = { 1, 7 }, back = { 0, 0 };
	socklen_t len = sizeof(back);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &value, sizeof(value)));
	EXPECT(!rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &back, &len));
	EXPECT(back.l_onoff == 1 && back.l_linger == 7);
	EXPECT(!rclose(fd));
}

static void type_of_service(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0), value = 8;

	EXPECT(!rsetsockopt(fd, IPPROTO_IP, IP_TOS, &value, sizeof(value)));
	EXPECT(get_int(fd, IPPROTO_IP, IP_TOS) == 8);
	EXPECT(!rclose(fd));
}

static void descriptor_flags(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	EXPECT(rfcntl(fd, F_GETFL) & O_NONBLOCK);
	EXPECT(rfcntl(fd, F_GETFD) == FD_CLOEXEC);
	EXPECT(!rfcntl(fd, F_SETFD, 0));
	EXPECT(rfcntl(fd, F_GETFD) == 0 && fcntl(fd, F_GETFD) == 0);
	EXPECT(!rfcntl(fd, F_SETFD, FD_CLOEXEC));
	EXPECT(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	EXPECT_EITHER(rfcntl(fd, F_DUPFD, 100), EINVAL, ENOTSUP);
	EXPECT_EITHER(rfcntl(fd, F_DUPFD_CLOEXEC, 100), EINVAL, ENOTSUP);
	EXPECT(!rclose(fd));
}

static long elapsed_ms(const struct timespec *since)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - since->tv_sec) * 1000 + (now.tv_nsec - since->tv_nsec) / 1000000;
}

/* Runs the expression and demands that it took no less than so many milliseconds. */
#define EXPECT_LASTS(ms, expression)                                       \
	do {                                                               \
		struct timespec since_;                                    \
		clock_gettime(CLOCK_MONOTONIC, &since_);                   \
		EXPECT(expression);                                        \
		EXPECT(elapsed_ms(&since_) >= (ms));                       \
	} while (0)

static void transfer_timeouts(void)
{
	static char data[100000];
	struct timeval limit = { 0, 60000 }, back = { 9, 9 };
	socklen_t len = sizeof(back);

	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(!rsetsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
	EXPECT(!rsetsockopt(pair.client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)));
	EXPECT(!rgetsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &back, &len));
	EXPECT(back.tv_sec == 0 && back.tv_usec >= 60000 && len == sizeof(back));
	EXPECT_LASTS(60, rrecv(pair.server, data, 1, 0) == -1 && errno == EAGAIN);
	EXPECT_LASTS(60, rrecv(pair.server, data, 1, MSG_WAITALL) == -1 && errno == EAGAIN);
	while (rsend(pair.client, data, sizeof(data), MSG_DONTWAIT) > 0)
		;
	EXPECT_LASTS(60, rsend(pair.client, data, sizeof(data), 0) == -1 && errno == EAGAIN);
	rs_pair_close(&pair);
}

static void accept_timeout(void)
{
	struct timeval limit = { 0, 60000 };
	int fd = rs_listener(AF_INET, &pair.to, NULL);

	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
	EXPECT_LASTS(60, raccept(fd, NULL, NULL) == -1 && errno == EAGAIN);
	EXPECT(!rclose(fd));
}

/* ---- polling ---------------------------------------------------------------------------- */

static void poll_timeouts(void)
{
	struct timeval limit = { 0, 60000 };
	struct pollfd entry;
	fd_set in;

	EXPECT(rs_pair(&pair, AF_INET));
	entry = (struct pollfd){ .fd = pair.client, .events = POLLIN };
	EXPECT_LASTS(1, rpoll(&entry, 1, 1) == 0);
	EXPECT_LASTS(60, rpoll(&entry, 1, 60) == 0);
	EXPECT_LASTS(700, rpoll(&entry, 1, 700) == 0);
	FD_ZERO(&in);
	FD_SET(pair.client, &in);
	EXPECT_LASTS(60, rselect(pair.client + 1, &in, NULL, NULL, &limit) == 0);
	EXPECT(!FD_ISSET(pair.client, &in));
	rs_pair_close(&pair);
}

static void negative_descriptors(void)
{
	struct pollfd fds[3] = {
		{ .fd = -1, .events = POLLIN, .revents = 0x7f }, { .events = POLLOUT },
		{ .fd = -900, .events = POLLIN, .revents = 0x7f },
	};

	EXPECT(rs_pair(&pair, AF_INET));
	fds[1].fd = pair.client;
	EXPECT(rpoll(fds, 3, -1) == 1);
	EXPECT(fds[0].revents == 0 && fds[1].revents == POLLOUT && fds[2].revents == 0);
	fds[1].fd = -1;
	EXPECT(rpoll(fds, 3, 10) == 0);
	rs_pair_close(&pair);
}

/* Standard input closed: the next descriptor is 0, and it is as good as any. */
static void descriptor_zero(void)
{
	struct timeval none = { 0, 0 };
	struct pollfd entry = { .fd = 0, .events = POLLOUT };
	fd_set out, in;
	int fd;

	EXPECT((fd = rs_listener(AF_INET, &pair.to, NULL)) > 0);
	close(0);
	EXPECT(rsocket(AF_INET, SOCK_STREAM, 0) == 0);
	EXPECT(!rconnect(0, &pair.to.sa, addr_len(&pair.to)));
	EXPECT(rpoll(&entry, 1, -1) == 1 && entry.revents == POLLOUT);
	FD_ZERO(&out);
	FD_ZERO(&in);
	FD_SET(0, &out);
	FD_SET(0, &in);
	EXPECT(rselect(1, &in, &out, NULL, &none) == 1);
	EXPECT(FD_ISSET(0, &out) && !FD_ISSET(0, &in));
	EXPECT(rsend(0, "x", 1, 0) == 1);
	EXPECT(!rclose(0));
	EXPECT(!rclose(fd));
}

static void exceptions_only_when_asked(void)
{
	fd_set in, except;

	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(!rclose(pair.client));
	pair.client = -1;
	poll_gone(pair.server);
	FD_ZERO(&in);
	FD_ZERO(&except);
	FD_SET(pair.server, &in);
	EXPECT(rselect(pair.server + 1, &in, NULL, &except, NULL) == 1);
	EXPECT(FD_ISSET(pair.server, &in) && !FD_ISSET(pair.server, &except));
	EXPECT(rselect(pair.server + 1, &in, NULL, NULL, NULL) == 1);
	rs_pair_close(&pair);
}

static void many_descriptors(void)
{
	struct rlimit limit = { 70000, 70000 };
	int last = 0;

	EXPECT(!setrlimit(RLIMIT_NOFILE, &limit));
	while (last < 65600)
		EXPECT((last = dup(2)) >= 0);
	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(pair.client > 65536 && pair.server > 65536);
	EXPECT(rsend(pair.client, "x", 1, 0) == 1);
	EXPECT(poll_wait(pair.server, POLLIN) == POLLIN);
	rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(unconnected_transfer);
	CASE(send_after_end);
	CASE(no_sigpipe);
	CASE(no_peer_no_name);
	CASE(connect_twice);
	CASE(close_twice);
	CASE(short_addresses);
	CASE(names_are_cut);
	CASE(short_options);
	CASE(kinds);
	CASE(keepalive_options);
	CASE(info_of_listener);
	CASE(linger_value);
	CASE(type_of_service);
	CASE(descriptor_flags);
	CASE(transfer_timeouts);
	CASE(accept_timeout);
	CASE(poll_timeouts);
	CASE(negative_descriptors);
	CASE(descriptor_zero);
	CASE(exceptions_only_when_asked);
	CASE(many_descriptors);
	return finish();
}
