/*
 * Connection requests and replies that no rsocket sends, and handshakes that never finish: the listener
 * keeps working, a correct client connects meanwhile, and a client of such a peer gets an error.
 */
#include "raw_peer.h"

/* ---- private data -------------------------------------------------------------------------------- */

static struct conn_data *spoilt;
static uint8_t spoilt_len;

static void nothing(void) { spoilt_len = 0; }
static void short_one(void) { spoilt_len = 20; }
static void no_version(void) { spoilt->version = 0; }
static void next_version(void) { spoilt->version = 2; }
static void no_credits(void) { spoilt->credits = 0; }
static void no_buffer(void) { spoilt->buffer.length = 0; }
static void sgl_of_none(void) { spoilt->sgl.length = 0; }
static void sgl_of_one(void) { spoilt->sgl.length = htonl(1); }
static void sgl_of_three(void) { spoilt->sgl.length = htonl(3); }
static void sgl_of_many(void) { spoilt->sgl.length = UINT32_MAX; }
static void sgl_at_the_end(void) { spoilt->sgl.addr = htobe64(UINT64_MAX - 31); }
static void buffer_at_the_end(void) { spoilt->buffer.addr = UINT64_MAX; }
static void all_ones(void) { memset(spoilt, 0xff, sizeof(*spoilt)); }
static void text(void) { memcpy(spoilt, "GET / HTTP/1.1\r\nHost: nobody\r\n\r\n1234567", sizeof(*spoilt)); }

static void (*spoil)(void);

/* A good connection to `address` that `listener` accepts, with data. */
static void a_good_one_gets_in(int listener, union address *address)
{
	char bytes[5];
	int client = rsocket(AF_INET, SOCK_STREAM, 0), server;

	EXPECT(client >= 0 && !rconnect(client, &address->sa, sizeof(address->in)));
	EXPECT((server = raccept(listener, NULL, NULL)) >= 0);
	EXPECT(rsend(client, "hello", 5, 0) == 5);
	EXPECT(rrecv(server, bytes, 5, MSG_WAITALL) == 5 && !memcmp(bytes, "hello", 5));
	EXPECT(!rclose(client) && !rclose(server));
}

/* Private data that is not an rsocket's: rejected, and not reported to the program. */
static void bad_request(void)
{
	struct peer peer = { 0 };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	union address address;
	struct rdma_conn_param param;
	struct pollfd entry = { .events = POLLIN };
	int before;

	good_start();
	before = fds_before();
	entry.fd = peer.victim_listener = listen_on(&address, 4, 0);
	peer.id = peer_resolved(&address, channel);
	peer_prepare(&peer, true);
	spoilt = &peer.mine;
	spoilt_len = sizeof(peer.mine);
	spoil();
	param = peer_param(&peer.mine, spoilt_len);
	EXPECT(!rdma_connect(peer.id, &param));
	struct rdma_cm_event *event;
	EXPECT(!rdma_get_cm_event(channel, &event));
	EXPECT(event->event == RDMA_CM_EVENT_REJECTED);
	EXPECT(!rdma_ack_cm_event(event));
	EXPECT(rpoll(&entry, 1, 0) == 0);
	a_good_one_gets_in(peer.victim_listener, &address);
	good_goes_on();
	peer_close(&peer);
	fds_come_back(before);
	rdma_destroy_event_channel(channel);
	good_stop();
}

/* The same as an answer: the connection is refused. */
static void bad_reply(void)
{
	struct peer peer = { 0 };
	struct rdma_conn_param param;
	int error = 0, before;
	socklen_t len = sizeof(error);

	good_start();
	before = fds_before();
	peer_is_asked(&peer);
	peer_prepare(&peer, true);
	spoilt = &peer.mine;
	spoilt_len = sizeof(peer.mine);
	spoil();
	param = peer_param(&peer.mine, spoilt_len);
	EXPECT(!rdma_accept(peer.id, &param));
	EXPECT(poll_one(peer.victim, POLLOUT) & POLLERR);
	EXPECT(!rgetsockopt(peer.victim, SOL_SOCKET, SO_ERROR, &error, &len));
	expect(error == ECONNREFUSED, "SO_ERROR is ECONNREFUSED", error, __LINE__);
	EXPECT(rsend(peer.victim, "x", 1, 0) == -1 && rrecv(peer.victim, (char[1]){ 0 }, 1, 0) == -1);
	good_goes_on();
	peer_close(&peer);
	fds_come_back(before);
	good_stop();
}

/* A peer that rejects. */
static void rejected(void)
{
	struct peer peer = { 0 };
	int error = 0;
	socklen_t len = sizeof(error);

	good_start();
	peer_is_asked(&peer);
	EXPECT(!rdma_reject(peer.id, "no", 2));
	EXPECT(poll_one(peer.victim, POLLOUT) & POLLERR);
	EXPECT(!rgetsockopt(peer.victim, SOL_SOCKET, SO_ERROR, &error, &len));
	expect(error == ECONNREFUSED, "SO_ERROR is ECONNREFUSED", error, __LINE__);
	EXPECT(!rclose(peer.victim) && !rdma_destroy_id(peer.id) && !rdma_destroy_id(peer.listener));
	good_stop();
}

/* ---- connections that are not established --------------------------------------------------------------- */

enum { SILENT = 8 };

/* Requests whose clients never read the answer. */
static void silent_clients(bool leave_first)
{
	struct peer peers[SILENT] = { 0 };
	struct rdma_event_channel *channels[SILENT];
	struct rdma_conn_param param;
	union address address;
	int before, listener;

	good_start();
	before = fds_before();
	listener = listen_on(&address, 2 * SILENT, 0);
	for (int i = 0; i < SILENT; i++) {
		EXPECT((channels[i] = rdma_create_event_channel()) != NULL);
		peers[i].id = peer_resolved(&address, channels[i]);
		peer_prepare(&peers[i], true);
		param = peer_param(&peers[i].mine, sizeof(peers[i].mine));
		EXPECT(!rdma_connect(peers[i].id, &param));
	}
	/* On siw a connection is established without the client: it is among the accepted ones. */
	if (!on_siw())
		a_good_one_gets_in(listener, &address);
	good_goes_on();
	if (!leave_first)
		EXPECT(!rclose(listener));
	for (int i = 0; i < SILENT; i++) {
		rdma_destroy_qp(peers[i].id);
		ibv_dereg_mr(peers[i].mr);
		EXPECT(!rdma_destroy_id(peers[i].id));
		rdma_destroy_event_channel(channels[i]);
	}
	if (leave_first) {
		if (!on_siw())
			a_good_one_gets_in(listener, &address);
		EXPECT(!rclose(listener));
	}
	fds_come_back(before);
	good_stop();
}
static void silent_clients_leave(void) { silent_clients(true); }
static void listener_leaves_silent_clients(void) { silent_clients(false); }

/* Reads events until the connection or the attempt has ended. */
static void await_the_end(struct rdma_event_channel *channel)
{
	enum rdma_cm_event_type type;

	do {
		struct rdma_cm_event *event;

		EXPECT(!rdma_get_cm_event(channel, &event));
		type = event->event;
		EXPECT(!rdma_ack_cm_event(event));
	} while (type != RDMA_CM_EVENT_REJECTED && type != RDMA_CM_EVENT_DISCONNECTED &&
		 type != RDMA_CM_EVENT_UNREACHABLE && type != RDMA_CM_EVENT_CONNECT_ERROR);
}

/* A listener that goes while requests come, one of them half taken perhaps: each client is told. */
static void listener_leaves_requests(void)
{
	enum { ROUNDS = 25, CLIENTS = 4 };
	struct rdma_conn_param param;
	union address address;
	int before, listener;

	good_start();
	before = fds_before();
	for (int round = 0; round < ROUNDS; round++) {
		struct peer peers[CLIENTS] = { 0 };
		struct rdma_event_channel *channels[CLIENTS];

		listener = listen_on(&address, 2 * CLIENTS, 0);
		for (int i = 0; i < CLIENTS; i++) {
			EXPECT((channels[i] = rdma_create_event_channel()) != NULL);
			peers[i].id = peer_resolved(&address, channels[i]);
			peer_prepare(&peers[i], true);
		}
		for (int i = 0; i < CLIENTS; i++) {
			param = peer_param(&peers[i].mine, sizeof(peers[i].mine));
			EXPECT(!rdma_connect(peers[i].id, &param));
		}
		EXPECT(!rclose(listener));
		for (int i = 0; i < CLIENTS; i++) {
			await_the_end(channels[i]);
			rdma_destroy_qp(peers[i].id);
			ibv_dereg_mr(peers[i].mr);
			EXPECT(!rdma_destroy_id(peers[i].id));
			rdma_destroy_event_channel(channels[i]);
		}
		fds_come_back(before);
	}
	good_goes_on();
	good_stop();
}

/* A client that is gone before it could be answered: what raccept() has to give ends at once. */
static void client_leaves_at_once(void)
{
	struct peer peer = { 0 };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param param;
	union address address;
	int before, fd;

	good_start();
	before = fds_before();
	peer.victim_listener = listen_on(&address, 4, 0);
	for (int i = 0; i < 5; i++) {
		peer.id = peer_resolved(&address, channel);
		peer_prepare(&peer, true);
		param = peer_param(&peer.mine, sizeof(peer.mine));
		EXPECT(!rdma_connect(peer.id, &param));
		rdma_destroy_qp(peer.id);
		ibv_dereg_mr(peer.mr);
		EXPECT(!rdma_destroy_id(peer.id));
	}
	peer.id = NULL;
	good_goes_on();
	EXPECT(!rfcntl(peer.victim_listener, F_SETFL, O_NONBLOCK));
	while ((fd = raccept(peer.victim_listener, NULL, NULL)) >= 0) {
		EXPECT(rrecv(fd, (char[1]){ 0 }, 1, 0) <= 0);
		EXPECT(!rclose(fd));
	}
	EXPECT(!rfcntl(peer.victim_listener, F_SETFL, 0));
	peer_close(&peer);
	fds_come_back(before);
	rdma_destroy_event_channel(channel);
	good_stop();
}

/* The server goes away with the request. */
static void server_leaves_at_once(void)
{
	struct peer peer = { 0 };
	int error = 0;
	socklen_t len = sizeof(error);

	good_start();
	peer_is_asked(&peer);
	EXPECT(!rdma_destroy_id(peer.id) && !rdma_destroy_id(peer.listener));
	EXPECT(poll_one(peer.victim, POLLOUT) & POLLERR);
	EXPECT(!rgetsockopt(peer.victim, SOL_SOCKET, SO_ERROR, &error, &len));
	expect(error == ECONNREFUSED, "SO_ERROR is ECONNREFUSED", error, __LINE__);
	EXPECT(!rclose(peer.victim));
	good_stop();
}

/* A peer that takes no messages: closing gives up after the time that SO_LINGER says. */
static void no_receives(void)
{
	struct peer peer = { 0 };
	struct linger linger = { .l_onoff = 1, .l_linger = 1 };

	good_start();
	peer_connects(&peer, false);
	EXPECT(!rsetsockopt(peer.victim, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	EXPECT(rsend(peer.victim, "nobody", 6, 0) == 6);
	EXPECT(!rclose(peer.victim));
	peer.victim = 0;
	good_goes_on();
	peer_close(&peer);
	good_stop();
}

static const struct bad_data {
	const char *name;
	void (*spoil)(void);
} bad_data[] = {
#define BAD(spoil) { #spoil, spoil }
	BAD(nothing), BAD(short_one), BAD(no_version), BAD(next_version), BAD(no_credits),
	BAD(no_buffer), BAD(sgl_of_none), BAD(sgl_of_one), BAD(sgl_of_three), BAD(sgl_of_many),
	BAD(sgl_at_the_end), BAD(buffer_at_the_end), BAD(all_ones), BAD(text),
};

int main(int argc, char **argv)
{
	start(argc, argv);
	for (size_t i = 0; i < sizeof(bad_data) / sizeof(bad_data[0]); i++) {
		char name[64];

		spoil = bad_data[i].spoil;
		if (argc > 2 && strcmp(argv[2], bad_data[i].name))
			continue;
		declare_cases(2);
		snprintf(name, sizeof(name), "request with %s", bad_data[i].name);
		run_case(name, bad_request);
		snprintf(name, sizeof(name), "reply with %s", bad_data[i].name);
		run_case(name, bad_reply);
	}
	CASE(rejected);
	CASE(silent_clients_leave);
	CASE(listener_leaves_silent_clients);
	CASE(listener_leaves_requests);
	CASE(client_leaves_at_once);
	CASE(server_leaves_at_once);
	CASE(no_receives);
	return finish();
}
