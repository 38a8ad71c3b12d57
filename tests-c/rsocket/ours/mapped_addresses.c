/*
 * IPv6 sockets and the addresses of IPv4 that are mapped into IPv6 (::ffff:a.b.c.d), with IPV6_V6ONLY on and off, as with
 * the kernel's sockets. The reference fails with ENETUNREACH, and shows addresses of IPv4 on IPv6 sockets.
 */
#include "both_sides.h"

#include <arpa/inet.h>

enum { ANY, OWN, FOREIGN };

/* An address of IPv4 in the form of IPv6. */
static union address mapped(int which, uint16_t port)
{
	static const char *const foreign = "::ffff:192.0.2.1", *const any = "::ffff:0.0.0.0";
	char text[INET6_ADDRSTRLEN];

	snprintf(text, sizeof(text), "::ffff:%s", local_node(AF_INET));
	return make_addr(AF_INET6, which == ANY ? any : which == OWN ? text : foreign, port);
}

static uint16_t port_of(const union address *address)
{
	return ntohs(address->sa.sa_family == AF_INET6 ? address->in6.sin6_port : address->in.sin_port);
}

static void note_address(const char *what, const union address *address, socklen_t len)
{
	char text[INET6_ADDRSTRLEN] = "?";

	inet_ntop(address->sa.sa_family, address->sa.sa_family == AF_INET6 ? (const void *)&address->in6.sin6_addr
									   : (const void *)&address->in.sin_addr, text, sizeof(text));
	note("%s: family %d, %u bytes, %s, %s", what, address->sa.sa_family, len, text, port_of(address) ? "a port" : "no port");
}

static void see_names(const char *who, int fd)
{
	union address name;
	socklen_t len = sizeof(name);

	EXPECT(!now->getsockname(fd, &name.sa, &len));
	note_address(who, &name, len);
	len = sizeof(name);
	if (now->getpeername(fd, &name.sa, &len))
		note("%s: no peer, %s", who, errno_name(errno));
	else
		note_address(who, &name, len);
}

static int open_socket(int family, int type)
{
	int fd = now->socket(family, type, 0);

	EXPECT(fd >= 0);
	return fd;
}

static int six_only(int fd, int on)
{
	return now->setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
}

static int bind_to(int fd, union address at) { return now->bind(fd, &at.sa, addr_len(&at)); }
static int reach(int fd, union address to) { return now->connect(fd, &to.sa, addr_len(&to)); }

/* A listener, and its port. */
static int listen_at(union address at, uint16_t *port)
{
	int fd = open_socket(at.sa.sa_family, SOCK_STREAM);
	union address name;

	EXPECT(at.sa.sa_family == AF_INET || !six_only(fd, 0));
	EXPECT(!bind_to(fd, at) && !now->listen(fd, 4));
	name = name_of(fd);
	*port = port_of(&name);
	return fd;
}

static void see_accepted(int listener, int client)
{
	union address peer, name;
	socklen_t len = sizeof(peer);
	int server = now->accept(listener, &peer.sa, &len);
	char byte = 0;

	EXPECT(server >= 0);
	note_address("accepted", &peer, len);
	see_names("client", client);
	see_names("server", server);
	name = name_of(client);
	EXPECT(port_of(&peer) == port_of(&name));
	SEE(now->send(client, "u", 1, 0));
	SEE(now->recv(server, &byte, 1, MSG_WAITALL));
	EXPECT(!now->close(server));
}

static void connect_and_see(int listener, union address to)
{
	int fd = open_socket(to.sa.sa_family, SOCK_STREAM);

	if (!SEE(reach(fd, to)))
		see_accepted(listener, fd);
	EXPECT(!now->close(fd));
}

static void connect_to_mapped(void)
{
	uint16_t port;
	int listener = listen_at(local_addr(AF_INET, 0), &port);

	connect_and_see(listener, mapped(OWN, port));
	EXPECT(!now->close(listener));
}

static void refused_then_connected(void)
{
	uint16_t port;
	int listener = listen_at(local_addr(AF_INET, 0), &port), other = listen_at(local_addr(AF_INET, 0), &(uint16_t){ 0 });
	union address nobody = name_of(other);
	int fd = open_socket(AF_INET6, SOCK_STREAM);

	EXPECT(!now->close(other));
	SEE(reach(fd, mapped(OWN, port_of(&nobody))));
	SEE(reach(fd, mapped(OWN, port)));
	see_accepted(listener, fd);
	EXPECT(!now->close(fd) && !now->close(listener));
}

static void listen_and_see(union address address)
{
	uint16_t port;
	int listener = listen_at(address, &port);

	see_names("listener", listener);
	connect_and_see(listener, local_addr(AF_INET, port));
	connect_and_see(listener, mapped(OWN, port));
	connect_and_see(listener, local_addr(AF_INET6, port));
	EXPECT(!now->close(listener));
}
static void listen_at_own_mapped(void) { listen_and_see(mapped(OWN, 0)); }
static void listen_at_any_mapped(void) { listen_and_see(mapped(ANY, 0)); }
static void listen_at_any(void) { listen_and_see(any_addr(AF_INET6, 0)); }

static void listen_unbound(void)
{
	int fd = open_socket(AF_INET6, SOCK_STREAM);
	union address at;

	EXPECT(!now->listen(fd, 4));
	see_names("listener", fd);
	at = name_of(fd);
	connect_and_see(fd, local_addr(AF_INET6, port_of(&at)));
	EXPECT(!now->close(fd));
}

static void bind_to_foreign(void)
{
	int fd = open_socket(AF_INET6, SOCK_STREAM);

	SEE(bind_to(fd, mapped(FOREIGN, 0)));
	see_names("unbound", fd);
	EXPECT(!now->close(fd));
}

/* An attempt that fails at once leaves the socket unbound. */
static void unreachable_then_bound(void)
{
	int fd = open_socket(AF_INET6, SOCK_STREAM);

	SEE(reach(fd, make_addr(AF_INET6, "2001:db8::1", 9)));
	SEE(bind_to(fd, local_addr(AF_INET6, 0)));
	see_names("bound", fd);
	EXPECT(!now->close(fd));
}

/* From each kind of local address to each kind of peer. */
static void bound_then_connect(int type)
{
	const union address from[] = { any_addr(AF_INET6, 0), local_addr(AF_INET6, 0), mapped(ANY, 0), mapped(OWN, 0) };

	for (size_t i = 0; i < sizeof(from) / sizeof(*from); i++)
		for (int six = 0; six < 2; six++) {
			uint16_t port = 9;
			int listener = type == SOCK_STREAM ? listen_at(local_addr(six ? AF_INET6 : AF_INET, 0), &port) : -1;
			int fd = open_socket(AF_INET6, type);

			note("from %zu to %s", i, six ? "IPv6" : "mapped");
			EXPECT(!six_only(fd, 0));
			SEE(bind_to(fd, from[i]));
			if (SEE(reach(fd, six ? local_addr(AF_INET6, port) : mapped(OWN, port))) < 0)
				see_names("unconnected", fd);
			else if (type == SOCK_STREAM)
				see_accepted(listener, fd);
			else
				see_names("client", fd);
			EXPECT(!now->close(fd) && (listener < 0 || !now->close(listener)));
		}
}
static void bound_then_connect_stream(void) { bound_then_connect(SOCK_STREAM); }
static void bound_then_connect_datagrams(void) { bound_then_connect(SOCK_DGRAM); }

static void only_six(void)
{
	int fd, client, value = -1;
	union address at;
	socklen_t len = sizeof(value);

	fd = open_socket(AF_INET6, SOCK_STREAM);
	EXPECT(!now->getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &value, &len));
	note("at first %d", value);
	SEE(six_only(fd, 1));
	SEE(bind_to(fd, mapped(OWN, 0)));
	SEE(bind_to(fd, mapped(ANY, 0)));
	SEE(reach(fd, mapped(OWN, 9)));
	SEE(bind_to(fd, any_addr(AF_INET6, 0)));
	SEE(reach(fd, mapped(OWN, 9)));
	SEE(six_only(fd, 0));
	EXPECT(!now->getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &value, &len));
	note("bound %d", value);
	EXPECT(!now->listen(fd, 4));
	at = name_of(fd);
	connect_and_see(fd, local_addr(AF_INET, port_of(&at)));
	connect_and_see(fd, mapped(OWN, port_of(&at)));
	connect_and_see(fd, local_addr(AF_INET6, port_of(&at)));
	EXPECT((client = open_socket(AF_INET6, SOCK_STREAM)) >= 0 && !six_only(client, 1));
	if (!SEE(reach(client, local_addr(AF_INET6, port_of(&at)))))
		see_accepted(fd, client);
	SEE(six_only(client, 0));
	EXPECT(!now->close(fd) && !now->close(client));
}

/* The value that a socket has at first is the system's. */
static void bind_v6only(const char *value)
{
	FILE *file = fopen("/proc/sys/net/ipv6/bindv6only", "we");

	EXPECT(file && fputs(value, file) >= 0 && !fclose(file));
}

static void only_six_by_default(void)
{
	int fd, value = -1;
	uint16_t port;
	socklen_t len = sizeof(value);
	int listener = listen_at(local_addr(AF_INET, 0), &port);

	bind_v6only("1");
	fd = open_socket(AF_INET6, SOCK_STREAM);
	EXPECT(!now->getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &value, &len));
	note("at first %d", value);
	SEE(bind_to(fd, mapped(OWN, 0)));
	SEE(reach(fd, mapped(OWN, port)));
	SEE(six_only(fd, 0));
	SEE(bind_to(fd, mapped(OWN, 0)));
	EXPECT(!now->close(fd));
	bind_v6only("0");
	connect_and_see(listener, mapped(OWN, port));
	EXPECT(!now->close(listener));
}

/* ---- datagrams -------------------------------------------------------------------------- */

/* A datagram to a bound socket, and one back to the address that it shows. */
static void there_and_back(int from, union address to, int at)
{
	union address name;
	socklen_t len = sizeof(name);
	char buf[8];

	/* The first ones find each other's QPs. */
	for (int i = 0; i < 4; i++) {
		if (SEE(now->sendto(from, "there", 5, 0, &to.sa, addr_len(&to))) < 0)
			return;
		len = sizeof(name);
		SEE(now->recvfrom(at, buf, sizeof(buf), 0, &name.sa, &len));
		note_address("from", &name, len);
		SEE(now->sendto(at, "back", 4, 0, &name.sa, len));
		len = sizeof(name);
		SEE(now->recvfrom(from, buf, sizeof(buf), 0, &name.sa, &len));
		note_address("back from", &name, len);
	}
}

static int datagrams_at(union address at, uint16_t *port)
{
	int fd = open_socket(at.sa.sa_family, SOCK_DGRAM);
	union address name;

	EXPECT((at.sa.sa_family == AF_INET || !six_only(fd, 0)) && !bind_to(fd, at));
	name = name_of(fd);
	*port = port_of(&name);
	return fd;
}

static void datagrams(void)
{
	const union address at[] = { any_addr(AF_INET6, 0), local_addr(AF_INET, 0), mapped(ANY, 0), mapped(OWN, 0) };

	for (size_t i = 0; i < sizeof(at) / sizeof(*at); i++) {
		uint16_t port;
		int to = datagrams_at(at[i], &port), four = open_socket(AF_INET, SOCK_DGRAM), six = open_socket(AF_INET6, SOCK_DGRAM);

		note("at %zu", i);
		EXPECT(!six_only(six, 0));
		see_names("bound", to);
		there_and_back(four, local_addr(AF_INET, port), to);
		there_and_back(six, mapped(OWN, port), to);
		SEE(reach(six, mapped(OWN, port)));
		see_names("connected", six);
		EXPECT(!now->close(to) && !now->close(four) && !now->close(six));
	}
}

static void datagrams_only_six(void)
{
	union address to = mapped(OWN, 9);
	int fd = open_socket(AF_INET6, SOCK_DGRAM);

	SEE(six_only(fd, 1));
	SEE(bind_to(fd, mapped(OWN, 0)));
	SEE(reach(fd, to));
	SEE(now->sendto(fd, "x", 1, 0, &to.sa, addr_len(&to)));
	SEE(bind_to(fd, any_addr(AF_INET6, 0)));
	SEE(now->sendto(fd, "x", 1, 0, &to.sa, addr_len(&to)));
	SEE(six_only(fd, 0));
	EXPECT(!now->close(fd));
}

int main(int argc, char **argv)
{
	bool is_iwarp;

	start(argc, argv);
	is_iwarp = !strcmp(device, "siw");
	BOTH(connect_to_mapped);
	BOTH(refused_then_connected);
	BOTH(listen_at_own_mapped);
	BOTH(listen_at_any_mapped);
	/* The kernel's iWARP listens for one version of IP. */
	BOTH_IF(!is_iwarp, listen_at_any);
	BOTH(listen_unbound);
	BOTH(bind_to_foreign);
	BOTH(unreachable_then_bound);
	BOTH(bound_then_connect_stream);
	BOTH(only_six);
	BOTH(only_six_by_default);
	BOTH_IF(!is_iwarp, bound_then_connect_datagrams);
	BOTH_IF(!is_iwarp, datagrams);
	BOTH_IF(!is_iwarp, datagrams_only_six);
	return finish();
}
