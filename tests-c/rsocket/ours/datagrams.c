/*
 * Datagram sockets; run on ours only, for the reference's do not work over RoCE. iWARP has no
 * datagrams: there the first use fails.
 */
#include "cases.h"
#include "rscommon.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/uio.h>

/* Traffic class of the last address handle: this program's call in place of libibverbs'. */
static volatile int last_class = -1;

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *(*next)(struct ibv_pd *, struct ibv_ah_attr *) = dlsym(RTLD_NEXT, "ibv_create_ah");
	struct ibv_ah *handle = next(pd, attr);

	last_class = attr->grh.traffic_class;
	return handle;
}

static int bound(int family, union address *name)
{
	int fd = rsocket(family, SOCK_DGRAM, 0);
	socklen_t len = sizeof(*name);

	EXPECT(fd >= 0);
	*name = local_addr(family, 0);
	EXPECT(!rbind(fd, &name->sa, addr_len(name)));
	EXPECT(!rgetsockname(fd, &name->sa, &len) && len == addr_len(name));
	return fd;
}

static bool same(const union address *a, const union address *b)
{
	if (a->sa.sa_family != b->sa.sa_family)
		return false;
	if (a->sa.sa_family == AF_INET)
		return a->in.sin_port == b->in.sin_port && a->in.sin_addr.s_addr == b->in.sin_addr.s_addr;
	return a->in6.sin6_port == b->in6.sin6_port &&
	       !memcmp(&a->in6.sin6_addr, &b->in6.sin6_addr, 16);
}

static void send_to(int fd, const void *data, size_t len, const union address *to)
{
	EXPECT(rsendto(fd, data, len, 0, &to->sa, addr_len(to)) == (ssize_t)len);
}

/* One datagram: its length, content and sender. */
static void expect_from(int fd, const void *data, size_t len, const union address *from)
{
	static char buf[4096];
	union address sender;
	socklen_t sender_len = sizeof(sender);

	EXPECT(rrecvfrom(fd, buf, sizeof(buf), 0, &sender.sa, &sender_len) == (ssize_t)len);
	EXPECT(!memcmp(buf, data, len));
	EXPECT(sender_len == addr_len(from) && same(&sender, from));
}

/* ---- without a device -------------------------------------------------------------------- */

static void unused(void)
{
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0), fd6 = rsocket(AF_INET6, SOCK_DGRAM, IPPROTO_UDP);
	int value = 0;
	socklen_t len = sizeof(value);

	EXPECT(fd >= 0 && fd6 >= 0);
	EXPECT(!rgetsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len) && value == SOCK_DGRAM);
	EXPECT(!rgetsockopt(fd6, SOL_SOCKET, SO_DOMAIN, &value, &len) && value == AF_INET6);
	EXPECT(!rgetsockopt(fd6, SOL_SOCKET, SO_PROTOCOL, &value, &len) && value == IPPROTO_UDP);
	EXPECT_ERROR(rlisten(fd, 1), EOPNOTSUPP);
	EXPECT_ERROR(raccept(fd, NULL, NULL), EOPNOTSUPP);
	EXPECT_ERROR(rsend(fd, "x", 1, 0), EDESTADDRREQ);
	EXPECT(!rclose(fd) && !rclose(fd6));
	EXPECT_ERROR(rsocket(AF_INET, SOCK_DGRAM, IPPROTO_TCP), ENOTSUP);
	EXPECT_ERROR(rsocket(AF_INET6, SOCK_STREAM, IPPROTO_UDP), ENOTSUP);
	fd = rsocket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	EXPECT(rfcntl(fd, F_GETFL) & O_NONBLOCK && rfcntl(fd, F_GETFD) == FD_CLOEXEC);
	EXPECT(!rclose(fd));
}

/* Options that join or split packets are refused; others of UDP are not. */
static void udp_options(void)
{
	static const int refused[] = { UDP_CORK, UDP_SEGMENT, UDP_GRO, UDP_ENCAP };
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0), value = 1;

	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
		EXPECT_ERROR(rsetsockopt(fd, IPPROTO_UDP, refused[i], &value, sizeof(value)), ENOPROTOOPT);
	EXPECT(!rsetsockopt(fd, IPPROTO_UDP, UDP_NO_CHECK6_RX, &value, sizeof(value)));
	EXPECT(!rclose(fd));
}

/* The first call that needs the device fails. */
static void no_datagrams_on_iwarp(void)
{
	union address name = local_addr(AF_INET, 0), to = local_addr(AF_INET, 7995);
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0);
	int ret = rbind(fd, &name.sa, sizeof(name.in)), error;

	if (ret == 0)
		ret = (int)rsendto(fd, "x", 1, 0, &to.sa, sizeof(to.in));
	error = errno;
	EXPECT(ret == -1 && (error == ENOTSUP || error == EPROTONOSUPPORT));
	EXPECT(!rclose(fd));
}

/* ---- two and more sockets ------------------------------------------------------------------ */

/* The number of UDP packets over IPv6 that this host has sent. */
static long udp_packets(void)
{
	FILE *file = fopen("/proc/net/snmp6", "re");
	char name[64];
	long number, sent = -1;

	EXPECT(file);
	while (fscanf(file, "%63s %ld", name, &number) == 2)
		if (!strcmp(name, "Udp6OutDatagrams"))
			sent = number;
	EXPECT(!fclose(file) && sent >= 0);
	return sent;
}

static void there_and_back(int family)
{
	union address a_name, b_name;
	int a = bound(family, &a_name), b = bound(family, &b_name);

	for (int i = 0; i < 20; i++) {
		send_to(a, "there", 5, &b_name);
		expect_from(b, "there", 5, &a_name);
		send_to(b, "and back", 8, &a_name);
		expect_from(a, "and back", 8, &b_name);
	}
	EXPECT(!rclose(a) && !rclose(b));
}

static void ipv4(void)
{
	there_and_back(AF_INET);
}

static void ipv6(void)
{
	there_and_back(AF_INET6);
}

static void connected(int family)
{
	union address name, own, peer;
	int server = bound(family, &name), client = rsocket(family, SOCK_DGRAM, 0);
	socklen_t len = sizeof(peer);
	char buf[16] = "";

	EXPECT_ERROR(rgetpeername(client, &peer.sa, &len), ENOTCONN);
	EXPECT(!rconnect(client, &name.sa, addr_len(&name)));
	EXPECT(!rgetpeername(client, &peer.sa, &len) && same(&peer, &name));
	len = sizeof(own);
	EXPECT(!rgetsockname(client, &own.sa, &len));
	EXPECT(rsend(client, "hello", 5, 0) == 5);
	expect_from(server, "hello", 5, &own);
	EXPECT(rwrite(client, "again", 5) == 5);
	expect_from(server, "again", 5, &own);
	send_to(server, "answer", 6, &own);
	EXPECT(rrecv(client, buf, 16, 0) == 6 && !memcmp(buf, "answer", 6));
	send_to(server, "two", 3, &own);
	EXPECT(rread(client, buf, 16) == 3 && !memcmp(buf, "two", 3));
	EXPECT(!rclose(server) && !rclose(client));
}

static void connected_ipv4(void)
{
	connected(AF_INET);
}

static void connected_ipv6(void)
{
	connected(AF_INET6);
}

/* A failing rconnect changes nothing. */
static void connect_to_another_family(void)
{
	union address to = local_addr(AF_INET6, 7000);
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0), size = 100;

	EXPECT_ERROR(rconnect(fd, &to.sa, addr_len(&to)), EAFNOSUPPORT);
	EXPECT(!rsetsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &size, sizeof(size)));
	EXPECT(!rclose(fd));
}

/* AF_UNSPEC dissolves the association: there is no peer, datagrams of all are received, and the port number stays. */
static void dissolve(int client)
{
	struct sockaddr none = { .sa_family = AF_UNSPEC };
	union address name, other_name, own, peer;
	int server = bound(AF_INET, &name), other = bound(AF_INET, &other_name);
	socklen_t len = sizeof(own);

	EXPECT(!rconnect(client, &name.sa, addr_len(&name)));
	EXPECT(!rgetsockname(client, &own.sa, &len));
	EXPECT(rsend(client, "hello", 5, 0) == 5);
	expect_from(server, "hello", 5, &own);
	EXPECT(!rconnect(client, &none, sizeof(none)));
	EXPECT_ERROR((int)rsend(client, "x", 1, 0), EDESTADDRREQ);
	EXPECT_ERROR(rgetpeername(client, &peer.sa, &len), ENOTCONN);
	for (int i = 0; i < 5; i++) {
		send_to(client, "hello", 5, &other_name);
		expect_from(other, "hello", 5, &own);
		send_to(other, "hello", 5, &own);
		expect_from(client, "hello", 5, &other_name);
		send_to(server, "hello", 5, &own);
		expect_from(client, "hello", 5, &name);
	}
	EXPECT(!rclose(server) && !rclose(other) && !rclose(client));
}

static void dissolved(void)
{
	union address name;

	dissolve(rsocket(AF_INET, SOCK_DGRAM, 0));
	dissolve(bound(AF_INET, &name));
}

static void several_peers(void)
{
	enum { PEERS = 5 };
	union address name, names[PEERS];
	int server = bound(AF_INET, &name), peers[PEERS];
	char text[16];

	for (int i = 0; i < PEERS; i++)
		peers[i] = bound(AF_INET, &names[i]);
	for (int round = 0; round < 3; round++)
		for (int i = 0; i < PEERS; i++) {
			snprintf(text, sizeof(text), "%d %d", round, i);
			send_to(peers[i], text, strlen(text), &name);
			expect_from(server, text, strlen(text), &names[i]);
			send_to(server, text, strlen(text), &names[i]);
			expect_from(peers[i], text, strlen(text), &name);
		}
	for (int i = 0; i < PEERS; i++)
		EXPECT(!rclose(peers[i]));
	EXPECT(!rclose(server));
}

/* A socket bound to no address serves whichever it is reached at. */
static void any_address(void)
{
	union address any = any_addr(AF_INET, 0), name, own;
	int server = rsocket(AF_INET, SOCK_DGRAM, 0), client = bound(AF_INET, &own);
	socklen_t len = sizeof(any);

	EXPECT(!rbind(server, &any.sa, sizeof(any.in)));
	EXPECT(!rgetsockname(server, &any.sa, &len));
	name = local_addr(AF_INET, ntohs(any.in.sin_port));
	for (int i = 0; i < 3; i++) {
		send_to(client, "x", 1, &name);
		expect_from(server, "x", 1, &own);
		send_to(server, "y", 1, &own);
		expect_from(client, "y", 1, &name);
	}
	EXPECT(!rclose(server) && !rclose(client));
}

/* A scope that the program states for a global address has no meaning, and datagrams leave UDP all the same. */
static void scopes(void)
{
	union address a_name, b_name, stated;
	int a = bound(AF_INET6, &a_name), b = bound(AF_INET6, &b_name);
	long before, after;

	stated = b_name;
	stated.in6.sin6_scope_id = 1;
	for (int i = 0; i < 20; i++) {
		send_to(a, "there", 5, &stated);
		expect_from(b, "there", 5, &a_name);
		send_to(b, "and back", 8, &a_name);
		expect_from(a, "and back", 8, &b_name);
		EXPECT(usleep(10000) == 0);
	}
	before = udp_packets();
	for (int i = 0; i < 20; i++) {
		send_to(a, "there", 5, &stated);
		expect_from(b, "there", 5, &a_name);
	}
	after = udp_packets();
	EXPECT(after - before < 20);
	EXPECT(!rclose(a) && !rclose(b));
}

/* At the limit of descriptors a socket that is bound to no address sends on, also to a new peer. */
static void without_descriptors(void)
{
	union address any = any_addr(AF_INET, 0), names[2];
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0), peers[2] = { bound(AF_INET, &names[0]), bound(AF_INET, &names[1]) };
	struct rlimit few = { 64, 64 };
	char byte;

	EXPECT(!rbind(fd, &any.sa, sizeof(any.in)));
	send_to(fd, "x", 1, &names[0]);
	EXPECT(rrecv(peers[0], &byte, 1, 0) == 1);
	EXPECT(!setrlimit(RLIMIT_NOFILE, &few));
	while (dup(0) >= 0)
		;
	for (int i = 0; i < 20; i++) {
		send_to(fd, "x", 1, &names[1]);
		/* Waiting takes a descriptor. */
		while (rrecv(peers[1], &byte, 1, MSG_DONTWAIT) != 1) {
			EXPECT(errno == EAGAIN);
			pause_briefly();
		}
	}
	EXPECT(!rclose(fd) && !rclose(peers[0]) && !rclose(peers[1]));
}

static const char *interface_of(const union address *address)
{
	static char name[IFNAMSIZ];
	struct ifaddrs *list;

	EXPECT(!getifaddrs(&list));
	for (struct ifaddrs *entry = list; entry; entry = entry->ifa_next)
		if (entry->ifa_addr && entry->ifa_addr->sa_family == AF_INET &&
		    ((struct sockaddr_in *)entry->ifa_addr)->sin_addr.s_addr == address->in.sin_addr.s_addr)
			snprintf(name, sizeof(name), "%s", entry->ifa_name);
	freeifaddrs(list);
	EXPECT(*name);
	return name;
}

/* Options that concern the way of a datagram apply to a socket that is bound to no address, too. */
static void broadcast_and_multicast(void)
{
	union address own = local_addr(AF_INET, 0), to = local_addr(AF_INET, 7777);
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0), on = 1;

	((uint8_t *)&to.in.sin_addr)[3] = 255;
	EXPECT_ERROR((int)rsendto(fd, "x", 1, 0, &to.sa, sizeof(to.in)), EACCES);
	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_BROADCAST, &on, sizeof(on)));
	send_to(fd, "x", 1, &to);
	to.in.sin_addr.s_addr = inet_addr("239.1.2.3");
	EXPECT_ERROR((int)rsendto(fd, "x", 1, 0, &to.sa, sizeof(to.in)), ENETUNREACH);
	EXPECT(!rsetsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &own.in.sin_addr, sizeof(own.in.sin_addr)));
	send_to(fd, "x", 1, &to);
	EXPECT(!rclose(fd));
	fd = rsocket(AF_INET, SOCK_DGRAM, 0);
	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, interface_of(&own), IFNAMSIZ));
	for (int i = 0; i < 3; i++)
		send_to(fd, "x", 1, &to);
	EXPECT(!rclose(fd));
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Datagrams in both directions, until both sockets have found the path to the other's QP: a few may travel over UDP. */
static void acquaint(int a, const union address *a_name, int b, const union address *b_name)
{
	for (int i = 0; i < 20; i++) {
		const struct timespec pause = { .tv_nsec = 20000000 };

		send_to(a, "x", 1, b_name);
		expect_from(b, "x", 1, a_name);
		send_to(b, "y", 1, a_name);
		expect_from(a, "y", 1, b_name);
		nanosleep(&pause, NULL);
	}
}

/* 2048 bytes with the header, before and after the peers know each other's QP. */
static void sizes_of(int family, size_t largest)
{
	static char data[5000];
	union address a_name, b_name;
	int a = bound(family, &a_name), b = bound(family, &b_name);
	const size_t sizes[] = { largest, 1, 0, 100, largest - 1, largest };

	fill(data, sizeof(data), 1, 0);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		if (i == 3)
			acquaint(a, &a_name, b, &b_name);
		EXPECT_ERROR((int)rsendto(a, data, largest + 1, 0, &b_name.sa, addr_len(&b_name)), EMSGSIZE);
		EXPECT_ERROR((int)rsendto(a, data, 5000, 0, &b_name.sa, addr_len(&b_name)), EMSGSIZE);
		send_to(a, data, sizes[i], &b_name);
		expect_from(b, data, sizes[i], &a_name);
		send_to(b, data, sizes[i], &a_name);
		expect_from(a, data, sizes[i], &b_name);
	}
	EXPECT(!rclose(a) && !rclose(b));
}

static void sizes(void)
{
	sizes_of(AF_INET, 2040);
	sizes_of(AF_INET6, 2024);
}

/* Of both ends of the link, in bytes. */
static void set_mtu(int bytes)
{
	static const char *const names[] = { "v0", "v1" };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	for (int i = 0; i < 2; i++) {
		struct ifreq request = { .ifr_mtu = bytes };

		strcpy(request.ifr_name, names[i]);
		EXPECT(!ioctl(fd, SIOCSIFMTU, &request));
	}
	EXPECT(!close(fd));
}

/* A path of 1024 bytes: longer datagrams travel over UDP. */
static void sizes_beyond_the_path(void)
{
	set_mtu(1500);
	sizes_of(AF_INET, 2040);
	set_mtu(9000);
}

/* Datagrams that a connected socket rejects do not use up its receives. */
static void rejected(void)
{
	union address name, peer_name, stranger_name;
	int fd, peer = bound(AF_INET, &peer_name), stranger = bound(AF_INET, &stranger_name), entries = 16;

	EXPECT((fd = bound(AF_INET, &name)) >= 0);
	EXPECT(!rsetsockopt(fd, SOL_RDMA, RDMA_RQSIZE, &entries, sizeof(entries)));
	acquaint(fd, &name, peer, &peer_name);
	acquaint(fd, &name, stranger, &stranger_name);
	EXPECT(!rconnect(fd, &peer_name.sa, addr_len(&peer_name)));
	for (int i = 0; i < 10 * entries; i++) {
		struct pollfd entry = { .fd = fd, .events = POLLIN };

		send_to(stranger, "stranger", 8, &name);
		/* Rejects it; datagrams for which there is no receive would be lost. */
		EXPECT(rpoll(&entry, 1, 1) == 0);
	}
	send_to(peer, "peer", 4, &name);
	expect_from(fd, "peer", 4, &peer_name);
	EXPECT(!rclose(fd) && !rclose(peer) && !rclose(stranger));
}

/* Datagrams that nobody reads yet stay in order, although some travel over UDP: one every three seconds. */
static void order(void)
{
	enum { SENT = 45 };
	union address a_name, b_name;
	int a = bound(AF_INET, &a_name), b = bound(AF_INET, &b_name);
	unsigned char got;

	for (int i = 0; i < 4; i++) {
		send_to(a, "there", 5, &b_name);
		expect_from(b, "there", 5, &a_name);
		send_to(b, "and back", 8, &a_name);
		expect_from(a, "and back", 8, &b_name);
	}
	for (unsigned char i = 0; i < SENT; i++) {
		send_to(a, &i, 1, &b_name);
		EXPECT(usleep(100000) == 0);
	}
	for (unsigned char i = 0; i < SENT; i++)
		EXPECT(rrecv(b, &got, 1, 0) == 1 && got == i);
	EXPECT(!rclose(a) && !rclose(b));
}

static void cut_and_peeked(void)
{
	union address a_name, b_name;
	int a = bound(AF_INET, &a_name), b = bound(AF_INET, &b_name);
	char first[4] = "", second[4] = "", buf[16];
	struct iovec in[2] = { { first, 3 }, { second, 3 } };
	struct iovec out[2] = { { "0123", 4 }, { "4567", 4 } };
	union address sender;
	struct msghdr msg = { .msg_name = &b_name, .msg_namelen = sizeof(b_name.in), .msg_iov = out, .msg_iovlen = 2 };

	for (int i = 0; i < 3; i++) {
		EXPECT(rsendmsg(a, &msg, 0) == 8);
		EXPECT(rrecv(b, buf, 3, MSG_PEEK) == 3);
		EXPECT(rrecv(b, buf, 3, MSG_PEEK | MSG_TRUNC) == 8);
		expect_from(b, "01234567", 8, &a_name);
		send_to(a, "01234567", 8, &b_name);
		send_to(a, "next", 4, &b_name);
		EXPECT(rrecv(b, buf, 3, 0) == 3 && !memcmp(buf, "012", 3));
		EXPECT(rrecv(b, buf, 16, 0) == 4 && !memcmp(buf, "next", 4));
		send_to(a, "01234567", 8, &b_name);
		struct msghdr got = { .msg_name = &sender, .msg_namelen = sizeof(sender), .msg_iov = in, .msg_iovlen = 2 };
		EXPECT(rrecvmsg(b, &got, 0) == 6 && got.msg_flags == MSG_TRUNC);
		EXPECT(same(&sender, &a_name) && got.msg_namelen == sizeof(sender.in));
		EXPECT(!strcmp(first, "012") && !strcmp(second, "345"));
	}
	EXPECT(!rclose(a) && !rclose(b));
}

/* ---- waiting, errors, strangers ------------------------------------------------------------------ */

static void polling(void)
{
	union address a_name, b_name;
	int a = bound(AF_INET, &a_name), b = bound(AF_INET, &b_name);
	struct pollfd entry = { .fd = b, .events = POLLIN | POLLOUT };
	char byte;

	for (int i = 0; i < 5; i++) {
		EXPECT(rpoll(&entry, 1, 0) == 1 && entry.revents == POLLOUT);
		EXPECT(rrecv(b, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
		send_to(a, "x", 1, &b_name);
		EXPECT(poll_wait(b, POLLIN) == POLLIN);
		EXPECT(rpoll(&entry, 1, -1) == 1 && entry.revents == (POLLIN | POLLOUT));
		EXPECT(rrecv(b, &byte, 1, MSG_DONTWAIT) == 1);
	}
	EXPECT(!rclose(a) && !rclose(b));
}

/* What is no datagram of ours reaches nobody and does no harm. */
static void strangers(void)
{
	static const unsigned char forged[][40] = {
		{ 0 }, { 0x55, 0x55, 0x55, 0x55 }, { 0x55, 0x55, 0x55, 0x55, 4, 0, 16 },
		{ 0x55, 0x55, 0x55, 0x55, 6, 0, 28 }, { 0x55, 0x55, 0x55, 0x55, 4, 9, 16 },
		{ 0x55, 0x55, 0x55, 0x55, 4, 7, 255 },
	};
	static const size_t lengths[] = { 0, 1, 4, 7, 8, 15, 16, 28, 40 };
	union address a_name, b_name;
	int a = bound(AF_INET, &a_name), b = bound(AF_INET, &b_name);
	int stranger = socket(AF_INET, SOCK_DGRAM, 0);

	for (size_t i = 0; i < 6; i++)
		for (size_t l = 0; l < 9; l++)
			if (i != 2 || lengths[l] < 16)
				sendto(stranger, forged[i], lengths[l], 0, &b_name.sa, sizeof(b_name.in));
	send_to(a, "real", 4, &b_name);
	expect_from(b, "real", 4, &a_name);
	send_to(a, "real", 4, &b_name);
	expect_from(b, "real", 4, &a_name);
	EXPECT(!rclose(a) && !rclose(b));
}

/* The type of service is that of the path, and a change is one of the path to be. */
static void type_of_service(int family, int level, int name)
{
	static const int values[] = { 0x20, 0x48, 0 };
	union address name_a, name_b;
	int a = bound(family, &name_a), b = bound(family, &name_b);
	struct pollfd sent = { .fd = b, .events = POLLIN };

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		EXPECT(!rsetsockopt(a, level, name, &values[i], sizeof(values[i])));
		last_class = -1;
		/* Each datagram arrives; a path is found meanwhile. */
		while (last_class < 0) {
			send_to(a, "x", 1, &name_b);
			EXPECT(rpoll(&sent, 1, -1) == 1);
			expect_from(b, "x", 1, &name_a);
		}
		EXPECT(last_class == values[i]);
	}
	EXPECT(!rclose(a) && !rclose(b));
}

static void type_of_service_ipv4(void)
{
	type_of_service(AF_INET, IPPROTO_IP, IP_TOS);
}

static void type_of_service_ipv6(void)
{
	type_of_service(AF_INET6, IPPROTO_IPV6, IPV6_TCLASS);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(unused);
	CASE(udp_options);
	CASE_IF(on_siw(), no_datagrams_on_iwarp);
	CASE_IF(!on_siw(), ipv4);
	CASE_IF(!on_siw(), ipv6);
	CASE_IF(!on_siw(), connected_ipv4);
	CASE_IF(!on_siw(), connected_ipv6);
	CASE_IF(!on_siw(), connect_to_another_family);
	CASE_IF(!on_siw(), dissolved);
	CASE_IF(!on_siw(), several_peers);
	CASE_IF(!on_siw(), any_address);
	CASE_IF(!on_siw(), scopes);
	CASE_IF(!on_siw(), without_descriptors);
	CASE_IF(!on_siw(), broadcast_and_multicast);
	CASE_IF(!on_siw(), sizes);
	CASE_IF(!on_siw() && !on_ib(), sizes_beyond_the_path);
	CASE_IF(!on_siw(), rejected);
	CASE_IF(!on_siw(), order);
	CASE_IF(!on_siw(), cut_and_peeked);
	CASE_IF(!on_siw(), polling);
	/* InfiniBand paths within a subnet have no traffic class. */
	CASE_IF(!on_siw() && !on_ib(), type_of_service_ipv4);
	CASE_IF(!on_siw() && !on_ib(), type_of_service_ipv6);
	CASE_IF(!on_siw(), strangers);
	return finish();
}
