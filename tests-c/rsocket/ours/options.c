/* What the reference's rsockets get wrong about options and ours do not: a case each. */
#include "cases.h"
#include "rscommon.h"

#include <dlfcn.h>
#include <limits.h>

static struct rspair pair;

/* The QPs that were connected, those that accept first: this program's call in place of libibverbs'. */
static struct {
	struct ibv_qp *qps[2];
	int count;
	pthread_mutex_t lock;
} connected = { .lock = PTHREAD_MUTEX_INITIALIZER };

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int (*next)(struct ibv_qp *, struct ibv_qp_attr *, int) = dlsym(RTLD_NEXT, "ibv_modify_qp");
	int result = next(qp, attr, mask);

	pthread_mutex_lock(&connected.lock);
	if (!result && mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RTR && connected.count < 2)
		connected.qps[connected.count++] = qp;
	pthread_mutex_unlock(&connected.lock);
	return result;
}

/* A buffer of one byte: at most one byte is written. */
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

static int tcp_state(int fd)
{
	struct tcp_info info = { .tcpi_state = 99 };
	socklen_t len = sizeof(info);

	EXPECT(!rgetsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
	EXPECT(len <= sizeof(info));
	return info.tcpi_state;
}

static void tcp_states(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	EXPECT(tcp_state(fd) == TCP_CLOSE);
	EXPECT(!rclose(fd));
	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(tcp_state(pair.listener) == TCP_LISTEN);
	EXPECT(tcp_state(pair.client) == TCP_ESTABLISHED);
	EXPECT(tcp_state(pair.server) == TCP_ESTABLISHED);
	rs_pair_close(&pair);
}

/* The linger time is kept; a negative one is none. */
static void linger_value(void)
{
	struct linger value = { 1, 7 }, negative = { 1, -7 }, back = { 0, 0 };
	socklen_t len = sizeof(back);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &value, sizeof(value)));
	EXPECT(!rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &back, &len));
	EXPECT(back.l_onoff == 1 && back.l_linger == 7);
	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &negative, sizeof(negative)));
	EXPECT(!rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &back, &len));
	EXPECT(back.l_onoff == 1 && back.l_linger == 0);
	EXPECT(!rclose(fd));
}

/* Keeping alive needs positive times and counts. */
static void keepalive_limits(void)
{
	static const int names[] = { TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT };
	int fd = rsocket(AF_INET, SOCK_STREAM, 0), least = 1;

	for (size_t i = 0; i < 3; i++) {
		EXPECT(!rsetsockopt(fd, IPPROTO_TCP, names[i], &least, sizeof(least)));
		for (int value = 0; value >= -1; value--)
			EXPECT_ERROR(rsetsockopt(fd, IPPROTO_TCP, names[i], &value, sizeof(value)), EINVAL);
		EXPECT(get_int(fd, IPPROTO_TCP, names[i]) == 1);
	}
	EXPECT(!rclose(fd));
}

/* With it the port of IPv4 is free, without it is not. */
static void v6only(void)
{
	union address six = any_addr(AF_INET6, 7598), four = any_addr(AF_INET, 7598);
	int first, second;

	for (int on = 0; on < 2; on++) {
		EXPECT((first = rsocket(AF_INET6, SOCK_STREAM, 0)) >= 0 && (second = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
		EXPECT(!rsetsockopt(first, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)));
		EXPECT(!rbind(first, &six.sa, addr_len(&six)) && !rlisten(first, 1));
		if (on)
			EXPECT(!rbind(second, &four.sa, addr_len(&four)));
		else
			EXPECT_ERROR(rbind(second, &four.sa, addr_len(&four)), EADDRNOTAVAIL);
		EXPECT(!rclose(first) && !rclose(second));
	}
}

static void type_of_service(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0), value = 8;

	EXPECT(!rsetsockopt(fd, IPPROTO_IP, IP_TOS, &value, sizeof(value)));
	EXPECT(get_int(fd, IPPROTO_IP, IP_TOS) == 8);
	EXPECT(!rclose(fd));
}

static void set_service(int fd, int value)
{
	EXPECT(!rsetsockopt(fd, IPPROTO_IP, IP_TOS, &value, sizeof(value)));
}

/* The client's type of service is the traffic class of both QPs. siw does not return it. */
static void expect_class(int class)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	/* InfiniBand's path within a subnet has no GRH, and so no traffic class. */
	if (on_siw() || on_ib())
		return;
	EXPECT(connected.count == 2);
	for (int i = 0; i < 2; i++) {
		memset(&attr, 0, sizeof(attr));
		EXPECT(!ibv_query_qp(connected.qps[i], &attr, IBV_QP_AV, &init));
		EXPECT(attr.ah_attr.grh.traffic_class == class);
	}
	connected.count = 0;
}

/* It reaches the connection: set before; not afterwards. A listener's is that of its connections. */
static void type_of_service_of_connections(void)
{
	static const struct { int listener, client, later; } cases[] = {
		{ 0, 0x20, 0 }, { 0x40, 0, 0 }, { 0x40, 0x20, 0 }, { 0, 0x20, 0x60 }, { 0, 0, 0x60 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		EXPECT((pair.listener = rs_listener(AF_INET, &pair.to, NULL)) >= 0);
		EXPECT((pair.client = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
		set_service(pair.listener, cases[i].listener);
		set_service(pair.client, cases[i].client);
		EXPECT(!rconnect(pair.client, &pair.to.sa, addr_len(&pair.to)));
		EXPECT((pair.server = raccept(pair.listener, NULL, NULL)) >= 0);
		if (cases[i].later)
			set_service(pair.client, cases[i].later);
		expect_class(cases[i].client);
		EXPECT(get_int(pair.client, IPPROTO_IP, IP_TOS) == (cases[i].later ?: cases[i].client));
		EXPECT(get_int(pair.server, IPPROTO_IP, IP_TOS) == cases[i].listener);
		rs_pair_close(&pair);
	}
}

/* A second attempt is made with a new id. */
static void type_of_service_of_a_second_attempt(void)
{
	union address nobody = local_addr(AF_INET, 7599);

	EXPECT((pair.client = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	set_service(pair.client, 0x20);
	EXPECT(rconnect(pair.client, &nobody.sa, addr_len(&nobody)) == -1);
	EXPECT((pair.listener = rs_listener(AF_INET, &pair.to, NULL)) >= 0);
	connected.count = 0;
	EXPECT(!rconnect(pair.client, &pair.to.sa, addr_len(&pair.to)));
	EXPECT((pair.server = raccept(pair.listener, NULL, NULL)) >= 0);
	expect_class(0x20);
	rs_pair_close(&pair);
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
	EXPECT(rfcntl(fd, F_DUPFD, 100) == -1 && (errno == EINVAL || errno == ENOTSUP));
	EXPECT(rfcntl(fd, F_DUPFD_CLOEXEC, 100) == -1 && (errno == EINVAL || errno == ENOTSUP));
	EXPECT(!rclose(fd));
}

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
	/* The server advertises its full buffer when some data has arrived, so the buffer is not full as soon as the first
	 * space is. */
	while (rsend(pair.client, data, sizeof(data), 0) > 0)
		;
	EXPECT_LASTS(60, rsend(pair.client, data, sizeof(data), 0) == -1 && errno == EAGAIN);
	limit = (struct timeval){ .tv_sec = -1 };
	EXPECT(!rsetsockopt(pair.client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
	EXPECT_ERROR((int)rrecv(pair.client, data, 1, 0), EAGAIN);
	rs_pair_close(&pair);
}

/* Longer than the clock's range: no time-out. */
static void endless_timeouts(void)
{
	struct timeval time = { .tv_sec = LONG_MAX, .tv_usec = 999999 }, read;
	socklen_t len = sizeof(read);
	char byte = 0;
	int fd;
	pid_t child;

	EXPECT((pair.listener = rs_listener(AF_INET, &pair.to, NULL)) >= 0);
	EXPECT(!rsetsockopt(pair.listener, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
	EXPECT(!rsetsockopt(pair.listener, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)));
	child = fork();
	if (child == 0) {
		fd = rsocket(AF_INET, SOCK_STREAM, 0);
		EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)));
		EXPECT(!rconnect(fd, &pair.to.sa, addr_len(&pair.to)));
		EXPECT(rsend(fd, "x", 1, 0) == 1 && rrecv(fd, &byte, 1, 0) == 1 && byte == 'x');
		EXPECT(!rclose(fd));
		_exit(CHILD_DONE);
	}
	EXPECT((fd = raccept(pair.listener, NULL, NULL)) >= 0);
	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
	EXPECT(!rgetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &read, &len));
	EXPECT(rrecv(fd, &byte, 1, 0) == 1 && rsend(fd, &byte, 1, 0) == 1);
	EXPECT(child_done(child));
	EXPECT(!rclose(fd) && !rclose(pair.listener));
}

/* The id has SO_REUSEADDR: another rsocket may bind to the address. */
static void reused_address(void)
{
	union address name = local_addr(AF_INET, 0);
	socklen_t len = sizeof(name);
	int on = 1, fds[3];

	for (int i = 0; i < 3; i++) {
		EXPECT((fds[i] = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
		if (i < 2)
			EXPECT(!rsetsockopt(fds[i], SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
		if (i < 2)
			EXPECT(!rbind(fds[i], &name.sa, addr_len(&name)));
		else
			EXPECT_ERROR(rbind(fds[i], &name.sa, addr_len(&name)), EADDRINUSE);
		EXPECT(i || !rgetsockname(fds[i], &name.sa, &len));
	}
	for (int i = 0; i < 3; i++)
		EXPECT(!rclose(fds[i]));
}

static void accept_timeout(void)
{
	struct timeval limit = { 0, 60000 };
	int fd = rs_listener(AF_INET, &pair.to, NULL);

	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
	EXPECT_LASTS(60, raccept(fd, NULL, NULL) == -1 && errno == EAGAIN);
	EXPECT(!rclose(fd));
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(short_options);
	CASE(kinds);
	CASE(keepalive_options);
	CASE(tcp_states);
	CASE(linger_value);
	CASE(keepalive_limits);
	CASE(v6only);
	CASE(type_of_service);
	CASE(type_of_service_of_connections);
	CASE(type_of_service_of_a_second_attempt);
	CASE(reused_address);
	CASE(descriptor_flags);
	CASE(transfer_timeouts);
	CASE(accept_timeout);
	CASE(endless_timeouts);
	return finish();
}
