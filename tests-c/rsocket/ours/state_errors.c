/*
 * What the reference's rsockets get wrong and ours do not about states, addresses and polling: a
 * case each. Options are in options, data in data, what threads and signals do in wake_ups,
 * epoll in epoll, datagrams in datagrams.
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

/* ---- numbers ------------------------------------------------------------------------ */

/* The rsocket, which is new, connects and sends. */
static void is_usable(int fd)
{
	char byte = 0;
	int server;

	EXPECT(!rconnect(fd, &pair.to.sa, addr_len(&pair.to)));
	EXPECT((server = raccept(pair.listener, NULL, NULL)) >= 0);
	EXPECT(rsend(fd, "x", 1, 0) == 1 && rrecv(server, &byte, 1, 0) == 1 && byte == 'x');
	EXPECT(rsend(server, "y", 1, 0) == 1 && rrecv(fd, &byte, 1, 0) == 1 && byte == 'y');
	EXPECT(!rclose(fd) && !rclose(server));
}

/* By close(2), as some programs do: the next rsocket may get that number. */
static void number_closed_behind_our_back(void)
{
	int old, new;

	EXPECT((pair.listener = rs_listener(AF_INET, &pair.to, NULL)) >= 0);
	EXPECT((old = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0 && !close(old));
	EXPECT((new = rsocket(AF_INET, SOCK_STREAM, 0)) == old);
	is_usable(new);
	EXPECT(!rclose(pair.listener));
}

/* The number of a repoll becomes an rsocket's. */
static void repoll_closed_behind_our_back(void)
{
	struct repoll repoll;
	int old, new;

	EXPECT(find_repoll(&repoll));
	EXPECT((pair.listener = rs_listener(AF_INET, &pair.to, NULL)) >= 0);
	EXPECT((old = repoll.create(0)) >= 0 && !close(old));
	EXPECT((new = rsocket(AF_INET, SOCK_STREAM, 0)) == old);
	is_usable(new);
	EXPECT(!rclose(pair.listener));
}

/* And another repoll's. */
static void repoll_after_a_closed_one(void)
{
	struct repoll repoll;
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 7 };
	struct pollfd entry = { .events = POLLIN };
	int old, new;

	EXPECT(find_repoll(&repoll));
	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT((old = repoll.create(0)) >= 0 && !close(old));
	EXPECT((new = repoll.create(0)) == old);
	EXPECT(!repoll.control(new, EPOLL_CTL_ADD, pair.server, &event));
	EXPECT(repoll.wait(new, &event, 1, 0) == 0);
	EXPECT(rsend(pair.client, "x", 1, 0) == 1);
	EXPECT(repoll.wait(new, &event, 1, -1) == 1 && event.events == EPOLLIN && event.data.u32 == 7);
	/* The descriptor is open, and refers to the same rsocket. */
	entry.fd = new;
	EXPECT(poll(&entry, 1, -1) == 1 && entry.revents == POLLIN);
	EXPECT(!rclose(new));
	rs_pair_close(&pair);
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
	struct sockaddr_in name;
	socklen_t len = sizeof(name);

	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(!rgetsockname(pair.client, (struct sockaddr *)&name, &len));
	memset(room, 0xee, sizeof(room));
	len = 4;
	EXPECT(!rgetsockname(pair.client, (struct sockaddr *)room, &len));
	EXPECT(len == sizeof(name) && !memcmp(room, &name, 4) && room[4] == 0xee);
	len = 0;
	EXPECT(!rgetpeername(pair.client, (struct sockaddr *)(room + 8), &len));
	EXPECT(len == sizeof(struct sockaddr_in) && room[8] == 0xee);
	rs_pair_close(&pair);
}

/* The connection ends, because the program does not learn its number. */
static void accept_without_length(void)
{
	union address name;
	char byte;
	int listener = rs_listener(AF_INET, &pair.to, NULL), fd = rsocket(AF_INET, SOCK_STREAM, 0);

	EXPECT(!rconnect(fd, &pair.to.sa, addr_len(&pair.to)));
	EXPECT_ERROR(raccept(listener, &name.sa, NULL), EFAULT);
	EXPECT(rrecv(fd, &byte, 1, 0) <= 0);
	EXPECT(!rclose(fd) && !rclose(listener));
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

/* Standard input is closed: the next descriptor is 0, which works like any other. */
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

/* 0 is a descriptor of the kernel, which is polled beside a connection. */
static void kernels_descriptor_zero(void)
{
	struct pollfd entries[2] = { { .events = POLLIN }, { .fd = 0, .events = POLLIN } };
	int pipes[2];

	EXPECT(rs_pair(&pair, AF_INET) && !pipe(pipes) && dup2(pipes[0], 0) == 0);
	entries[0].fd = pair.client;
	EXPECT(write(pipes[1], "x", 1) == 1);
	EXPECT(rpoll(entries, 2, 0) == 1 && !entries[0].revents && entries[1].revents == POLLIN);
	EXPECT(rpoll(entries, 2, -1) == 1 && !entries[0].revents && entries[1].revents == POLLIN);
	EXPECT(!close(pipes[0]) && !close(pipes[1]));
	rs_pair_close(&pair);
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

enum { MANY = 70000 };

/* Only root may raise the hard limit. */
static bool may_have_many(void)
{
	struct rlimit limit;

	return geteuid() == 0 || (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_max >= MANY);
}

static void many_descriptors(void)
{
	struct rlimit limit = { MANY, MANY };
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

static const char port_range[] = "/proc/sys/net/ipv4/ip_local_port_range";

static bool set_port_range(int first, int last)
{
	FILE *file = fopen(port_range, "we");

	return file && fprintf(file, "%d %d", first, last) > 0 && !fclose(file);
}

/* siw's connections take ports of the kernel's TCP, of which the connection manager knows nothing: half of
   them are in use here. The range is one that no client's port was taken from before. */
static void ports_that_tcp_uses(void)
{
	enum { FIRST = 22000, COUNT = 64, CONNECTIONS = 8 };
	union address to, taken;
	int listener, client, server;

	EXPECT((listener = rs_listener(AF_INET, &to, NULL)) >= 0);
	for (int i = 0; i < COUNT / 2; i++) {
		taken = local_addr(AF_INET, FIRST + 2 * i);
		EXPECT((client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
		EXPECT(!bind(client, &taken.sa, sizeof(taken.in)) && !listen(client, 1));
	}
	EXPECT(set_port_range(FIRST, FIRST + COUNT - 1));
	for (int i = 0; i < CONNECTIONS; i++) {
		EXPECT((client = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
		EXPECT(!rconnect(client, &to.sa, sizeof(to.in)));
		EXPECT((server = raccept(listener, NULL, NULL)) >= 0);
		EXPECT(!rclose(client) && !rclose(server));
	}
	EXPECT(!rclose(listener));
}

/* The range is the machine's: only the lab's is changed, as root. */
static bool may_set_port_range(void)
{
	return getenv("LAB_OUT") && !access(port_range, W_OK);
}

/* It is restored even if the case fails. */
static void with_few_ports(void)
{
	int first, last;
	FILE *file = fopen(port_range, "re");
	bool known = file && fscanf(file, "%d %d", &first, &last) == 2;

	if (file)
		fclose(file);
	run_case("ports_that_tcp_uses", ports_that_tcp_uses);
	if (!known || !set_port_range(first, last))
		printf("FAIL ports_that_tcp_uses: the range of ports cannot be restored\n");
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
	CASE(number_closed_behind_our_back);
	CASE(repoll_closed_behind_our_back);
	CASE(repoll_after_a_closed_one);
	CASE(short_addresses);
	CASE(names_are_cut);
	CASE(accept_without_length);
	CASE(poll_timeouts);
	CASE(negative_descriptors);
	CASE(descriptor_zero);
	CASE(kernels_descriptor_zero);
	CASE(exceptions_only_when_asked);
	declare_cases(2);
	if (may_have_many())
		run_case("many_descriptors", many_descriptors);
	else
		skip_case("many_descriptors", "the limit of descriptors cannot be raised");
	if (!on_siw())
		leave_case("ports_that_tcp_uses", "on_siw()");
	else if (may_set_port_range())
		with_few_ports();
	else
		skip_case("ports_that_tcp_uses", "changes the machine's range of ports");
	return finish();
}
