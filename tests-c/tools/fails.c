/* Calls that fail, for tests/run diag: fails CASE [ADDRESS PORT]. Prints what the calls returned; the library logs why. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

static struct sockaddr_in address;

static void show(const char *what, long result)
{
	int error = errno;

	if (result < 0)
		printf("%s: %ld %s\n", what, result, strerrorname_np(error));
	else
		printf("%s: ok\n", what);
	fflush(stdout);
	errno = 0;
}

#define CALL(call) ({ long result_ = (call); show(#call, result_); result_; })

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;

/* Reads an event, prints it, and returns its type. The id of a connection request is stored in `id`. */
static int event(void)
{
	struct rdma_cm_event *event;
	int kind;

	if (rdma_get_cm_event(channel, &event)) {
		show("rdma_get_cm_event", -1);
		exit(1);
	}
	kind = event->event;
	printf("event: %s %d\n", rdma_event_str(kind), event->status);
	fflush(stdout);
	if (kind == RDMA_CM_EVENT_CONNECT_REQUEST)
		id = event->id;
	rdma_ack_cm_event(event);
	return kind;
}

static void open_id(void)
{
	channel = rdma_create_event_channel();
	show("rdma_create_event_channel", channel ? 0 : -1);
	if (!channel)
		exit(0);
	if (CALL(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP)))
		exit(0);
}

static struct sockaddr *to(void)
{
	return (struct sockaddr *)&address;
}

static int make_qp(void)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	return CALL(rdma_create_qp(id, NULL, &attr));
}

static void resolve(void)
{
	open_id();
	if (CALL(rdma_resolve_addr(id, NULL, to(), 2000)) || event() != RDMA_CM_EVENT_ADDR_RESOLVED)
		exit(0);
	if (CALL(rdma_resolve_route(id, 2000)) || event() != RDMA_CM_EVENT_ROUTE_RESOLVED)
		exit(0);
}

/* Connects with private data that is not an rsocket's. */
static void connect_with(const char *data)
{
	struct rdma_conn_param param = { .private_data = data, .private_data_len = strlen(data) + 1,
					 .responder_resources = 1, .initiator_depth = 1, .retry_count = 3 };

	resolve();
	if (make_qp() || CALL(rdma_connect(id, &param)))
		return;
	event();
}

/* Listens with the connection manager, and answers the first request. */
static void serve(int accept)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };

	open_id();
	if (CALL(rdma_bind_addr(id, to())) || CALL(rdma_listen(id, 1)))
		return;
	if (event() != RDMA_CM_EVENT_CONNECT_REQUEST)
		return;
	if (!accept) {
		CALL(rdma_reject(id, "go away", 8));
		return;
	}
	if (make_qp() || CALL(rdma_accept(id, &param)))
		return;
	event();
	event();
}

static void serve_rsockets(void)
{
	int listener = CALL(rsocket(AF_INET, SOCK_STREAM, 0)), peer;

	CALL(rbind(listener, to(), sizeof(address)));
	CALL(rlisten(listener, 4));
	peer = CALL(raccept(listener, NULL, NULL));
	if (peer >= 0) {
		char bytes[5];

		CALL(rrecv(peer, bytes, sizeof(bytes), MSG_WAITALL));
		rclose(peer);
	}
}

static int connect_rsocket(void)
{
	int fd = CALL(rsocket(AF_INET, SOCK_STREAM, 0));

	if (fd >= 0)
		CALL(rconnect(fd, to(), sizeof(address)));
	return fd;
}

static void send_rsocket(void)
{
	int fd = connect_rsocket();

	CALL(rsend(fd, "hello", 5, 0));
	rclose(fd);
}

/* Calls on descriptors that are no rsockets, and one that would have to wait. */
static void plain(void)
{
	char byte;
	int fd;

	CALL(rsend(77, "x", 1, 0));
	CALL(rread(77, &byte, 1));
	CALL(rdma_listen(NULL, 1));
	fd = CALL(rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
	CALL(rbind(fd, to(), sizeof(address)));
	CALL(rlisten(fd, 1));
	CALL(raccept(fd, NULL, NULL));
	rclose(fd);
}

/* Datagrams that cannot be sent, for different reasons, and one to an unused port. */
static void datagrams(void)
{
	struct sockaddr_in other = address, away = { .sin_family = AF_INET, .sin_port = htons(7106) };
	struct iovec piece = { .iov_base = "x", .iov_len = 1 };
	struct msghdr message = { .msg_name = &away, .msg_namelen = sizeof(away), .msg_iov = &piece, .msg_iovlen = 1 };
	static char much[4096];
	int fd = CALL(rsocket(AF_INET, SOCK_DGRAM, 0)), stream;

	inet_pton(AF_INET, "203.0.113.1", &away.sin_addr);
	other.sin_port = htons(ntohs(address.sin_port) + 1);
	CALL(rsend(fd, "x", 1, 0));
	CALL(rsendmsg(fd, &message, 0));
	/* That has bound it to a port. */
	rclose(fd);
	fd = CALL(rsocket(AF_INET, SOCK_DGRAM, 0));
	CALL(rbind(fd, to(), sizeof(address)));
	CALL(rsendto(fd, much, sizeof(much), 0, (struct sockaddr *)&other, sizeof(other)));
	CALL(rconnect(fd, (struct sockaddr *)&other, sizeof(other)));
	CALL(rsend(fd, much, sizeof(much), 0));
	CALL(rsendto(fd, much, sizeof(much), 0, (struct sockaddr *)&away, sizeof(away)));
	if (CALL(rsend(fd, "x", 1, 0)) == 1)
		CALL(rrecv(fd, much, sizeof(much), 0));
	rclose(fd);
	/* An invalid address, which TCP ignores. */
	stream = CALL(rsocket(AF_INET, SOCK_STREAM, 0));
	CALL(rsendto(stream, "x", 1, 0, (void *)16, sizeof(away)));
	rclose(stream);
}

/* A name that no host has, and a service that does not exist. */
static void look_up(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;

	CALL(rdma_getaddrinfo("no-such-name.invalid", "7100", &hints, &found));
	hints.ai_flags = RAI_NUMERICHOST;
	CALL(rdma_getaddrinfo("192.0.2.1", "no-such-service", &hints, &found));
}

/* A limit that is too low for an idle rsocket. */
static void limit_memory(void)
{
	struct rlimit limit = { 8192, 8192 };

	if (setrlimit(RLIMIT_MEMLOCK, &limit) || setgid(65534) || setuid(65534)) {
		perror("limits");
		exit(1);
	}
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	address.sin_family = AF_INET;
	if (argc > 3) {
		inet_pton(AF_INET, argv[2], &address.sin_addr);
		address.sin_port = htons(atoi(argv[3]));
	}
	if (!strcmp(name, "channel"))
		open_id();
	else if (!strcmp(name, "bind"))
		(void)(open_id(), CALL(rdma_bind_addr(id, to())));
	else if (!strcmp(name, "resolve"))
		resolve();
	else if (!strcmp(name, "connect"))
		connect_with("not of rsockets");
	else if (!strcmp(name, "reject"))
		serve(0);
	else if (!strcmp(name, "accept"))
		serve(1);
	else if (!strcmp(name, "rserve"))
		serve_rsockets();
	else if (!strcmp(name, "rconnect"))
		connect_rsocket();
	else if (!strcmp(name, "rsend"))
		send_rsocket();
	else if (!strcmp(name, "plain"))
		plain();
	else if (!strcmp(name, "datagrams"))
		datagrams();
	else if (!strcmp(name, "lookup"))
		look_up();
	else if (!strcmp(name, "memlock"))
		(void)(limit_memory(), connect_rsocket());
	else
		return 2;
	return 0;
}
