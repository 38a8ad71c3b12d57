/*
 * Defects of the reference's rsockets in data transfer, connecting and losing the peer; run on ours only.
 * The others are in state_errors.
 */
#include "cases.h"
#include "rscommon.h"

#include <signal.h>
#include <sys/prctl.h>

static struct rspair pair;

/* ---- vectors and messages ------------------------------------------------------------ */

static void await_bytes(int fd, ssize_t count)
{
	char scratch[4096];

	while (rrecv(fd, scratch, sizeof(scratch), MSG_PEEK) < count)
		pause_briefly();
}

static void read_vectors(void)
{
	char a[4] = "", b[4] = "", c[16] = "";
	struct iovec in[4] = { { a, 3 }, { NULL, 0 }, { b, 3 }, { c, 10 } };

	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(rsend(pair.client, "abcdefghij", 10, 0) == 10);
	await_bytes(pair.server, 10);
	EXPECT(rreadv(pair.server, in, 4) == 10);
	EXPECT(!strcmp(a, "abc") && !strcmp(b, "def") && !strcmp(c, "ghij"));
	EXPECT(rwritev(pair.client, in, 0) == 0);
	EXPECT_ERROR(rwritev(pair.client, in, -1), EINVAL);
	EXPECT_ERROR(rreadv(pair.server, in, -1), EINVAL);
	rs_pair_close(&pair);
}

/* As for writev(2): no more than IOV_MAX buffers, and no memory at NULL. */
static void invalid_vectors(void)
{
	static struct iovec many[1025];
	struct iovec null[2] = { { "a", 1 }, { NULL, 1 } };

	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(rwritev(pair.client, many, 1024) == 0);
	EXPECT_ERROR(rwritev(pair.client, many, 1025), EINVAL);
	EXPECT_ERROR(rreadv(pair.server, many, 1025), EINVAL);
	EXPECT_ERROR(rwritev(pair.client, null, 2), EFAULT);
	EXPECT_ERROR(rreadv(pair.server, null + 1, 1), EFAULT);
	rs_pair_close(&pair);
}

static void receive_message(void)
{
	char a[4] = "", b[16] = "", control[64];
	union address name;
	struct iovec in[2] = { { a, 3 }, { b, 10 } };
	struct msghdr msg = {
		.msg_name = &name, .msg_namelen = sizeof(name), .msg_iov = in, .msg_iovlen = 2,
		.msg_control = control, .msg_controllen = sizeof(control), .msg_flags = -1,
	};

	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(rsend(pair.client, "abcdefg", 7, 0) == 7);
	await_bytes(pair.server, 7);
	EXPECT(rrecvmsg(pair.server, &msg, MSG_PEEK) == 7);
	EXPECT(msg.msg_flags == 0 && msg.msg_namelen == 0 && msg.msg_controllen == 0);
	EXPECT(!strcmp(a, "abc") && !strcmp(b, "defg"));
	/* The program's value of msg_flags is ignored. */
	msg.msg_flags = MSG_PEEK;
	EXPECT(rrecvmsg(pair.server, &msg, 0) == 7);
	EXPECT(rrecvmsg(pair.server, &msg, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	rs_pair_close(&pair);
}

static void *sends_parts(void *argument)
{
	(void)argument;
	for (int i = 0; i < 10; i++) {
		rsend(pair.client, "0123456789", 10, 0);
		pause_briefly();
	}
	rshutdown(pair.client, SHUT_WR);
	return NULL;
}

static void wait_for_all_of_vectors(void)
{
	char a[33], b[40], c[100];
	struct iovec in[3] = { { a, 33 }, { b, 40 }, { c, 27 } };
	struct msghdr msg = { .msg_iov = in, .msg_iovlen = 3 };
	pthread_t thread;

	EXPECT(rs_pair(&pair, AF_INET));
	pthread_create(&thread, NULL, sends_parts, NULL);
	EXPECT(rrecvmsg(pair.server, &msg, MSG_WAITALL) == 100);
	EXPECT(a[32] == '2' && b[0] == '3' && c[26] == '9');
	pthread_join(thread, NULL);
	EXPECT(rrecvmsg(pair.server, &msg, MSG_WAITALL) == 0);
	rs_pair_close(&pair);
}

/* More at once than all buffers hold, in a thousand pieces. */
static void *sends_later(void *argument)
{
	(void)argument;
	pause_briefly();
	EXPECT(rsend(pair.client, "x", 1, 0) == 1);
	return NULL;
}

/* A call that has slept and succeeds leaves errno alone. */
static void errno_of_a_sleep(void)
{
	pthread_t sender;
	char byte;

	EXPECT(rs_pair(&pair, AF_INET));
	for (int round = 0; round < 3; round++) {
		EXPECT(!pthread_create(&sender, NULL, sends_later, NULL));
		errno = ESTALE;
		ssize_t received = rrecv(pair.server, &byte, 1, 0);
		int after = errno;
		EXPECT(received == 1 && after == ESTALE);
		EXPECT(!pthread_join(sender, NULL));
	}
	rs_pair_close(&pair);
}

static void *sends_vectors(void *argument)
{
	static char data[1000][997];
	static struct iovec out[1000];
	struct msghdr msg = { .msg_iov = out, .msg_iovlen = 1000 };

	(void)argument;
	for (size_t i = 0; i < 1000; i++) {
		fill(data[i], 997, 4, i * 997);
		out[i] = (struct iovec){ data[i], 997 };
	}
	return (void *)rsendmsg(pair.client, &msg, 0);
}

static void long_vectors(void)
{
	static char data[997000];
	pthread_t thread;
	void *sent;

	EXPECT(rs_pair(&pair, AF_INET));
	pthread_create(&thread, NULL, sends_vectors, NULL);
	EXPECT(recv_all(pair.server, data, sizeof(data)) == sizeof(data));
	EXPECT(filled(data, sizeof(data), 4, 0));
	pthread_join(thread, &sent);
	EXPECT((size_t)sent == sizeof(data));
	rs_pair_close(&pair);
}

/* ---- connecting ------------------------------------------------------------------------- */

static int nonblocking_client(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

	EXPECT(fd >= 0);
	return fd;
}

static void refused_later(void)
{
	union address to = local_addr(AF_INET, 7993);
	int fd = nonblocking_client(), ret, error;
	short bits;

	ret = rconnect(fd, &to.sa, sizeof(to.in));
	error = errno;
	EXPECT(ret == -1 && (error == EINPROGRESS || error == ECONNREFUSED));
	if (error == EINPROGRESS) {
		bits = poll_wait(fd, POLLOUT | POLLIN);
		EXPECT((bits & (POLLOUT | POLLERR)) == (POLLOUT | POLLERR));
		EXPECT(!strcmp(so_error(fd), "ECONNREFUSED"));
		EXPECT(!strcmp(so_error(fd), "0"));
	}
	EXPECT(!rclose(fd));
}

static void no_route(void)
{
	union address to = unrouted_addr(7993);
	int fd = nonblocking_client();

	EXPECT_ERROR(rconnect(fd, &to.sa, sizeof(to.in)), ENETUNREACH);
	EXPECT(!rclose(fd));
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	EXPECT_ERROR(rconnect(fd, &to.sa, sizeof(to.in)), ENETUNREACH);
	EXPECT(!rclose(fd));
}

/* While a connect is in progress, a second one fails with EALREADY, and closing ends it. */
static void connect_under_way(void)
{
	union address to = silent_addr(7993);
	int fd = nonblocking_client();

	EXPECT_ERROR(rconnect(fd, &to.sa, sizeof(to.in)), EINPROGRESS);
	EXPECT_ERROR(rconnect(fd, &to.sa, sizeof(to.in)), EALREADY);
	EXPECT(rsend(fd, "x", 1, 0) == -1 && errno == EAGAIN);
	EXPECT(rrecv(fd, to.storage.__ss_padding, 1, 0) == -1 && errno == EAGAIN);
	EXPECT(!rclose(fd));
}

/* ---- the peer goes -------------------------------------------------------------------------- */

/* A client in a process of its own, which sends a byte and waits for its end. */
static void live_and_die(int port_end)
{
	uint16_t port = 0;
	union address to;
	int fd;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (read(port_end, &port, sizeof(port)) != sizeof(port))
		_exit(1);
	to = local_addr(AF_INET, ntohs(port));
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	if (rconnect(fd, &to.sa, sizeof(to.in)) || rsend(fd, "x", 1, 0) != 1)
		_exit(1);
	for (;;)
		pause();
}

/* Killed without notifying the peer, which detects it without sending. */
static void killed_peer(void)
{
	int listener, server, status, fds, ends[2];
	union address to;
	char byte;
	pid_t child;

	EXPECT(!pipe(ends));
	child = fork();
	if (child == 0)
		live_and_die(ends[0]);
	EXPECT((listener = rs_listener(AF_INET, &to, NULL)) >= 0);
	fds = open_fds();
	EXPECT(write(ends[1], &to.in.sin_port, 2) == 2);
	EXPECT((server = raccept(listener, NULL, NULL)) >= 0);
	EXPECT(rrecv(server, &byte, 1, 0) == 1);
	EXPECT(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child);
	EXPECT(poll_wait(server, POLLIN) & (POLLHUP | POLLERR | POLLIN));
	EXPECT(poll_gone(server) & (POLLHUP | POLLERR));
	EXPECT(rrecv(server, &byte, 1, 0) <= 0);
	EXPECT(rsend(server, &byte, 1, MSG_NOSIGNAL) == -1);
	EXPECT(!rclose(server));
	/* The device stays open for the next connection. */
	EXPECT(open_fds() <= fds + 4);
	EXPECT(!rclose(listener));
}

/* Never answers a reply: the listener serves others in the meantime. RoCE's CM only. */
static void silent_client(void)
{
	/* Version 1; 384 credits, two entries at 4096, 32 KB at 4096. */
	static const unsigned char hello[40] = {
		1, 0, 1, 0x80, [14] = 0x10, [19] = 1, [23] = 2, [30] = 0x10, [35] = 1, [38] = 0x80,
	};
	struct rdma_conn_param param = conn_param(hello, sizeof(hello));
	struct pair raw;
	union address to;
	int listener = rs_listener(AF_INET, &to, NULL), fd = rsocket(AF_INET, SOCK_STREAM, 0);

	EXPECT(pair_open(&raw, RDMA_PS_TCP, AF_INET));
	raw.to = to;
	EXPECT(pair_resolve(&raw, false));
	param.qp_num = invented_qpn();
	EXPECT(!rdma_connect(raw.client, &param));
	/* Its reply arrives here and gets no answer. */
	EXPECT(quiet_event(raw.client_channel, RDMA_CM_EVENT_CONNECT_RESPONSE));
	EXPECT(!rconnect(fd, &to.sa, sizeof(to.in)));
	EXPECT(rsend(fd, "x", 1, 0) == 1);
	EXPECT(rclose(raccept(listener, NULL, NULL)) == 0);
	EXPECT(!rclose(fd));
	EXPECT(!rclose(listener));
}

static void small_buffer(int fd)
{
	int size = 2048;

	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)));
}

/* Each message fills a half of the server's buffer. The server announces the half again, and the client never waits for
 * that. The announcements must not use up the client's receives, which would end an iWARP connection. */
static void sends_without_waiting(void)
{
	static char bytes[2048], got[2048];
	int receives = 16;

	EXPECT((pair.listener = rs_listener(AF_INET, &pair.to, small_buffer)) >= 0);
	EXPECT((pair.client = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	EXPECT(!rsetsockopt(pair.client, SOL_RDMA, RDMA_RQSIZE, &receives, sizeof(receives)));
	EXPECT(!rconnect(pair.client, &pair.to.sa, addr_len(&pair.to)));
	EXPECT((pair.server = raccept(pair.listener, NULL, NULL)) >= 0);
	for (unsigned i = 0; i < 200; i++) {
		fill(bytes, sizeof(bytes), i, 0);
		EXPECT(rsend(pair.client, bytes, sizeof(bytes), 0) == sizeof(bytes));
		EXPECT(recv_all(pair.server, got, sizeof(got)) == sizeof(got) && filled(got, sizeof(got), i, 0));
	}
	rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(read_vectors);
	CASE(invalid_vectors);
	CASE(receive_message);
	CASE(wait_for_all_of_vectors);
	CASE(errno_of_a_sleep);
	CASE(long_vectors);
	CASE(refused_later);
	CASE(no_route);
	CASE(connect_under_way);
	CASE(killed_peer);
	CASE(sends_without_waiting);
	CASE_IF(!on_siw(), silent_client);
	return finish();
}
