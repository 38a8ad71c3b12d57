/* rsocket(), binding, listening, accepting, connecting, addresses, descriptor flags, closing. */
#define _GNU_SOURCE
#include "rscommon.h"

#include <sys/uio.h>

static const char *domain_name(int domain)
{
	switch (domain) {
	case AF_INET: return "INET";
	case AF_INET6: return "INET6";
	case AF_IB: return "IB";
	case AF_UNIX: return "UNIX";
	default: return "other";
	}
}

static void create_one(int domain, int type, const char *type_name, int protocol)
{
	int fd;

	errno = 0;
	fd = rsocket(domain, type, protocol);
	if (fd < 0) {
		obs("%s %s %d -> %d %s", domain_name(domain), type_name, protocol, fd, errno_name(errno));
		return;
	}
	obs("%s %s %d -> fd%s", domain_name(domain), type_name, protocol,
	    rfcntl(fd, F_GETFL) & O_NONBLOCK ? " nonblock" : "");
	CALL(rclose(fd));
}

/* Datagram sockets are in ours/datagrams and ours/state_errors: closing an unused one hangs the reference. */
static void creation(void)
{
	static const int domains[] = { AF_INET, AF_INET6, AF_IB, AF_UNIX, AF_UNSPEC, -1 };
	static const struct { int type; const char *name; } types[] = {
		{ SOCK_STREAM, "STREAM" }, { SOCK_RAW, "RAW" }, { SOCK_SEQPACKET, "SEQPACKET" },
		{ 0, "0" }, { -1, "-1" }, { SOCK_STREAM | SOCK_NONBLOCK, "STREAM|NONBLOCK" },
		{ SOCK_STREAM | SOCK_CLOEXEC, "STREAM|CLOEXEC" },
		{ SOCK_STREAM | 0x100, "STREAM|0x100" },
	};
	static const int protocols[] = { IPPROTO_TCP, IPPROTO_UDP, 1, -1 };

	topic("creation");
	for (size_t d = 0; d < sizeof(domains) / sizeof(domains[0]); d++)
		for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
			create_one(domains[d], types[t].type, types[t].name, 0);
	for (size_t p = 0; p < sizeof(protocols) / sizeof(protocols[0]); p++)
		create_one(AF_INET, SOCK_STREAM, "STREAM", protocols[p]);
}

static void unknown_fd(int fd, const char *what)
{
	union address to = local_addr(AF_INET, 7990), name;
	socklen_t len = sizeof(name);
	char byte = 0;
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	int value = 0;

	topic("not an rsocket: %s", what);
	CALL(rbind(fd, &to.sa, sizeof(to.in)));
	CALL(rlisten(fd, 1));
	CALL(raccept(fd, NULL, NULL));
	CALL(rconnect(fd, &to.sa, sizeof(to.in)));
	CALL(rshutdown(fd, SHUT_RDWR));
	CALL(rrecv(fd, &byte, 1, 0));
	CALL(rrecvfrom(fd, &byte, 1, 0, NULL, NULL));
	CALL(rrecvmsg(fd, &msg, 0));
	CALL(rsend(fd, &byte, 1, 0));
	CALL(rsendto(fd, &byte, 1, 0, &to.sa, sizeof(to.in)));
	CALL(rsendmsg(fd, &msg, 0));
	CALL(rread(fd, &byte, 1));
	CALL(rreadv(fd, &iov, 1));
	CALL(rwrite(fd, &byte, 1));
	CALL(rwritev(fd, &iov, 1));
	CALL(rgetpeername(fd, &name.sa, &len));
	CALL(rgetsockname(fd, &name.sa, &len));
	CALL(rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, sizeof(value)));
	len = sizeof(value);
	CALL(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len));
	CALL(rfcntl(fd, F_GETFL));
	CALL((int)riomap(fd, &byte, 1, PROT_WRITE, 0, 0));
	CALL(riounmap(fd, &byte, 1));
	CALL((int)riowrite(fd, &byte, 1, 0, 0));
}

static void unknown(void)
{
	int file = open("/dev/null", O_RDWR);

	unknown_fd(900, "closed");
	unknown_fd(file, "a file");
	close(file);
}

static void binding(int family)
{
	union address address = local_addr(family, 0), fixed = local_addr(family, 7990);
	union address foreign = make_addr(family, family == AF_INET ? "198.51.100.7" : "2001:db8::7", 0);
	socklen_t len = addr_len(&address);
	int fd = rsocket(family, SOCK_STREAM, 0), other = rsocket(family, SOCK_STREAM, 0);

	topic("bind %s", domain_name(family));
	CALL(rbind(fd, &foreign.sa, len));
	CALL(rbind(fd, &fixed.sa, len));
	CALL(rbind(fd, &fixed.sa, len));
	CALL(rbind(other, &fixed.sa, len));
	CALL(rlisten(fd, 4));
	CALL(rbind(other, &fixed.sa, len));
	CALL(rclose(fd));
	CALL(rbind(other, &fixed.sa, len));
	CALL(rlisten(other, 0));
	CALL(rclose(other));
	other = rsocket(family, SOCK_STREAM, 0);
	CALL(rbind(other, &address.sa, len));
	CALL(rlisten(other, -1));
	CALL(rlisten(other, 5));
	CALL(rclose(other));
}

/* rgetpeername of an unconnected socket is in ours/state_errors. */
static void show_name(const char *who, int fd, bool connected)
{
	union address name;
	socklen_t len = sizeof(name);

	memset(&name, 0, sizeof(name));
	errno = 0;
	if (rgetsockname(fd, &name.sa, &len))
		obs("%s: own name -1 %s", who, errno_name(errno));
	else
		obs("%s: own name %s, length %u", who, addr_str(&name.sa), len);
	if (!connected)
		return;
	len = sizeof(name);
	memset(&name, 0, sizeof(name));
	errno = 0;
	if (rgetpeername(fd, &name.sa, &len))
		obs("%s: peer's name -1 %s", who, errno_name(errno));
	else
		obs("%s: peer's name %s, length %u", who, addr_str(&name.sa), len);
}

static void names(int family)
{
	union address from;
	socklen_t len = sizeof(from);
	struct rspair pair;
	int fd;

	topic("names %s", domain_name(family));
	if (!rs_pair(&pair, family))
		return;
	show_name("listener", pair.listener, false);
	show_name("client", pair.client, true);
	show_name("server", pair.server, true);
	rclose(pair.client);
	pair.client = rsocket(family, SOCK_STREAM, 0);
	show_name("new", pair.client, false);
	CALL(rconnect(pair.client, &pair.to.sa, addr_len(&pair.to)));
	errno = 0;
	fd = raccept(pair.listener, &from.sa, &len);
	obs("accepted %s from %s, length %u", fd < 0 ? errno_name(errno) : "yes", addr_str(&from.sa), len);
	rclose(fd);
	rs_pair_close(&pair);
}

/* Sending on an unconnected socket crashes the reference: see ours/state_errors. */
static void wrong_state(void)
{
	union address to = local_addr(AF_INET, 7991);
	struct rspair pair;
	char byte = 'x';
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	topic("unconnected");
	CALL(raccept(fd, NULL, NULL));
	CALL(rclose(fd));
	topic("refused");
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CALL(rconnect(fd, &to.sa, sizeof(to.in)));
	CALL(rclose(fd));
	topic("connected");
	if (!rs_pair(&pair, AF_INET))
		return;
	CALL(raccept(pair.client, NULL, NULL));
	CALL(raccept(pair.server, NULL, NULL));
	CALL(rbind(pair.client, &pair.to.sa, sizeof(to.in)));
	CALL(rlisten(pair.client, 1));
	CALL(rsend(pair.client, &byte, 1, 0));
	CALL(rrecv(pair.server, &byte, 1, 0));
	rs_pair_close(&pair);
}

/* Only the flag O_NONBLOCK: all descriptors of the reference are close-on-exec, see ours/options. */
static void show_flags(const char *who, int fd)
{
	obs("%s:%s", who, rfcntl(fd, F_GETFL) & O_NONBLOCK ? " nonblock" : "");
}

static void flags(void)
{
	union address to;
	int fd = rs_listener(AF_INET, &to, NULL), client, server;

	topic("flags");
	show_flags("listener", fd);
	CALL(rfcntl(fd, F_SETFL, O_NONBLOCK));
	show_flags("listener", fd);
	CALL(raccept(fd, NULL, NULL));
	client = rsocket(AF_INET, SOCK_STREAM, 0);
	CALL(rconnect(client, &to.sa, sizeof(to.in)));
	show_flags("client", client);
	poll_wait(fd, POLLIN);
	server = raccept(fd, NULL, NULL);
	show_flags("of a non-blocking listener", server);
	CALL(rfcntl(server, F_SETFL, O_NONBLOCK));
	show_flags("server", server);
	CALL(rfcntl(server, F_SETFL, 0));
	show_flags("server", server);
	CALL(rclose(server));
	CALL(rclose(client));
	CALL(rclose(fd));
}

static void closing(void)
{
	int fds[8], before = open_fds();
	struct rspair pair;

	topic("closing");
	for (int i = 0; i < 8; i++)
		fds[i] = rsocket(AF_INET, SOCK_STREAM, 0);
	for (int i = 0; i < 8; i++)
		SETUP(!rclose(fds[i]));
	CHECK(open_fds() == before);
	for (int round = 0; round < 3; round++) {
		if (!rs_pair(&pair, AF_INET))
			return;
		rs_pair_close(&pair);
		if (round == 0)
			before = open_fds();
	}
	CHECK(open_fds() == before);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	creation();
	unknown();
	binding(AF_INET);
	binding(AF_INET6);
	names(AF_INET);
	names(AF_INET6);
	wrong_state();
	flags();
	closing();
	return finish();
}
