/*
 * Options of stream sockets: every one of rsocket(7) and a few that are not, in each state.
 * SO_BROADCAST, IP_TOS, TCP_INFO, TCP_KEEPINTVL, TCP_KEEPCNT, time-outs and lengths other than that
 * of an int are in ours/options.
 */
#define _GNU_SOURCE
#include "rscommon.h"

static const struct option {
	int level, name;
	const char *text;
	int values[4];
} options[] = {
#define OPTION(level, name, ...) { level, name, #name, { __VA_ARGS__ } }
	OPTION(SOL_SOCKET, SO_REUSEADDR, 1, 0, 1, 5),
	OPTION(SOL_SOCKET, SO_KEEPALIVE, 1, 0, 1, 0),
	OPTION(SOL_SOCKET, SO_OOBINLINE, 1, 0, 1, 0),
	OPTION(SOL_SOCKET, SO_RCVBUF, 100000, 1 << 20, 4096, 200000),
	OPTION(SOL_SOCKET, SO_SNDBUF, 100000, 1 << 20, 8192, 200000),
	OPTION(IPPROTO_TCP, TCP_NODELAY, 1, 0, 1, 0),
	OPTION(IPPROTO_TCP, TCP_MAXSEG, 1000, 2000, 1000, 500),
	OPTION(IPPROTO_TCP, TCP_KEEPIDLE, 10, 1, 3600, 100),
	OPTION(IPPROTO_TCP, TCP_KEEPIDLE, 100, 0, -1, 7200),
	OPTION(IPPROTO_TCP, TCP_CORK, 1, 0, 1, 0),
	OPTION(IPPROTO_IP, IP_TTL, 8, 64, 16, 64),
	OPTION(IPPROTO_IPV6, IPV6_V6ONLY, 1, 0, 1, 0),
	OPTION(IPPROTO_IPV6, IPV6_UNICAST_HOPS, 1, 64, 1, 64),
	OPTION(SOL_RDMA, RDMA_SQSIZE, 100, 16, 1, 1000),
	OPTION(SOL_RDMA, RDMA_RQSIZE, 100, 16, 1, 1000),
	OPTION(SOL_RDMA, RDMA_INLINE, 0, 100, 64, 200),
	OPTION(SOL_RDMA, RDMA_IOMAPSIZE, 1, 128, 129, 1000),
	{ SOL_RDMA, 99, "RDMA 99", { 1, 2, 3, 4 } },
	{ 12345, 1, "level 12345", { 1, 2, 3, 4 } },
};

static void get(int fd, const struct option *option, const char *when)
{
	int value = -77;
	socklen_t len = sizeof(value);

	/* Unless set, the reference returns 0. */
	if (option->name == TCP_KEEPIDLE && option->level == IPPROTO_TCP && strcmp(when, "then"))
		return;
	errno = 0;
	if (rgetsockopt(fd, option->level, option->name, &value, &len))
		obs("%s %s: get -1 %s", option->text, when, errno_name(errno));
	else
		obs("%s %s: get %d, length %u", option->text, when, value, len);
}

static void set(int fd, const struct option *option, int value)
{
	errno = 0;
	if (rsetsockopt(fd, option->level, option->name, &value, sizeof(value)))
		obs("%s: set %d -1 %s", option->text, value, errno_name(errno));
	else
		obs("%s: set %d", option->text, value);
}

static bool wanted(const struct option *option, int family)
{
	return family == AF_INET6 ? option->level == IPPROTO_IPV6 || option->level == IPPROTO_IP
				  : option->level != IPPROTO_IPV6;
}

static void unconnected(int family)
{
	topic("new %s", family == AF_INET ? "INET" : "INET6");
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		int fd = rsocket(family, SOCK_STREAM, 0);

		if (wanted(&options[i], family)) {
			get(fd, &options[i], "default");
			for (int v = 0; v < 4; v++) {
				set(fd, &options[i], options[i].values[v]);
				get(fd, &options[i], "then");
			}
		}
		rclose(fd);
	}
}

static void connected(void)
{
	struct rspair pair;

	topic("connected");
	if (!rs_pair(&pair, AF_INET))
		return;
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		/* The segment size of siw is the interface's. */
		if (wanted(&options[i], AF_INET)) {
			get(pair.client, &options[i], "client");
			get(pair.server, &options[i], "server");
			if (options[i].name != SO_RCVBUF && options[i].name != SO_SNDBUF)
				set(pair.client, &options[i], options[i].values[0]);
			get(pair.client, &options[i], "then");
		}
	rs_pair_close(&pair);
}

/*
 * After rlisten, for the connections to come; riostream's server sets the table's size there. Not
 * SO_REUSEADDR, which is too late, and not what the QP has inline in the end.
 */
static void listening(void)
{
	union address to;
	int listener = rs_listener(AF_INET, &to, NULL), client = rsocket(AF_INET, SOCK_STREAM, 0), server;

	topic("listening");
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (wanted(&options[i], AF_INET) && options[i].name != SO_REUSEADDR) {
			set(listener, &options[i], options[i].values[0]);
			get(listener, &options[i], "then");
		}
	CALL(rconnect(client, &to.sa, addr_len(&to)));
	server = raccept(listener, NULL, NULL);
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (options[i].level == SOL_RDMA && options[i].name != RDMA_INLINE)
			get(server, &options[i], "server");
	rclose(server);
	rclose(client);
	rclose(listener);
}

static void prepare(int fd)
{
	static const struct { int level, name, value; } chosen[] = {
		{ SOL_SOCKET, SO_RCVBUF, 50000 }, { SOL_SOCKET, SO_SNDBUF, 60000 },
		{ SOL_SOCKET, SO_KEEPALIVE, 1 }, { IPPROTO_TCP, TCP_NODELAY, 1 },
		{ SOL_RDMA, RDMA_SQSIZE, 64 }, { SOL_RDMA, RDMA_RQSIZE, 80 },
		{ SOL_RDMA, RDMA_INLINE, 32 }, { SOL_RDMA, RDMA_IOMAPSIZE, 4 },
	};

	for (size_t i = 0; i < sizeof(chosen) / sizeof(chosen[0]); i++)
		SETUP(!rsetsockopt(fd, chosen[i].level, chosen[i].name, &chosen[i].value, sizeof(int)));
}

/* Connections inherit the listener's options; with the reference not SO_KEEPALIVE and TCP_NODELAY. */
static void inherited(void)
{
	struct rspair pair;
	char buf[8];

	topic("inherited");
	if (!rs_pair_with(&pair, AF_INET, prepare))
		return;
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (wanted(&options[i], AF_INET)) {
			get(pair.listener, &options[i], "listener");
			get(pair.client, &options[i], "client");
			if (options[i].name != SO_KEEPALIVE && options[i].name != TCP_NODELAY)
				get(pair.server, &options[i], "server");
		}
	CALL((int)rsend(pair.client, "data", 4, 0));
	CALL((int)rrecv(pair.server, buf, 4, MSG_WAITALL));
	rs_pair_close(&pair);
}

/* A buffer larger than an int: the first four bytes are used. */
static void long_values(void)
{
	int value[4] = { 1, -1, -1, -1 };
	socklen_t len = sizeof(value);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	topic("long values");
	CALL(rsetsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, value, sizeof(value)));
	CALL(rsetsockopt(fd, IPPROTO_TCP, TCP_NODELAY, value, sizeof(value)));
	value[0] = 77;
	CALL(rgetsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, value, &len));
	obs("%d %d, length %u", value[0], value[1], len);
	len = sizeof(value);
	CALL(rgetsockopt(fd, IPPROTO_TCP, TCP_NODELAY, value, &len));
	obs("%d %d, length %u", value[0], value[1], len);
	CALL(rclose(fd));
}

static void linger(void)
{
	static const struct linger values[] = { { 0, 0 }, { 1, 0 }, { 0, 0 } };
	struct linger value = { -1, -1 };
	socklen_t len = sizeof(value);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	topic("SO_LINGER");
	CALL(rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &value, &len));
	obs("default %d %d, length %u", value.l_onoff, value.l_linger, len);
	for (size_t i = 0; i < 3; i++) {
		CALL(rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &values[i], sizeof(value)));
		CALL(rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &value, &len));
		obs("now %d %d, length %u", value.l_onoff, value.l_linger, len);
	}
	CALL(rclose(fd));
}

static void errors(void)
{
	struct rspair pair;
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	topic("SO_ERROR");
	obs("new %s", so_error(fd));
	CALL(rclose(fd));
	if (rs_pair(&pair, AF_INET))
		obs("connected %s", so_error(pair.client));
	rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	unconnected(AF_INET);
	unconnected(AF_INET6);
	connected();
	listening();
	inherited();
	linger();
	long_values();
	errors();
	return finish();
}
