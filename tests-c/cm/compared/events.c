/* Events: order, fields, acknowledgement, and calls that wait for it. */
#include "common.h"

static void fields_before_connect(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	union address to = local_addr(AF_INET, 7501);
	struct rdma_cm_event *event;
	struct rdma_cm_id *id = NULL;

	topic("fields");
	CALL(rdma_create_id(channel, &id, &to, RDMA_PS_TCP));
	id_name(id, "id");
	CALL(rdma_resolve_addr(id, NULL, &to.sa, 2000));
	event = get_event("id", channel);
	if (!event)
		return;
	CHECK(event->id == id);
	CHECK(event->id->context == &to);
	CHECK(event->listen_id == NULL);
	CHECK(id->event == NULL);
	CALL(rdma_ack_cm_event(event));
	id_destroy(id);
	rdma_destroy_event_channel(channel);
}

/* Events of a connection from beginning to end, with both ids on one channel. */
static void one_channel(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener = NULL, *client = NULL, *server;
	struct rdma_conn_param param = conn_param("request", 8);
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	union address at = local_addr(AF_INET, 0);
	static int mark;

	topic("one channel");
	CALL(rdma_create_id(channel, &listener, &mark, RDMA_PS_TCP));
	CALL(rdma_create_id(channel, &client, NULL, RDMA_PS_TCP));
	id_name(listener, "listener");
	id_name(client, "client");
	CALL(rdma_bind_addr(listener, &at.sa));
	CALL(rdma_listen(listener, 1));
	at.in.sin_port = rdma_get_src_port(listener);
	CALL(rdma_resolve_addr(client, NULL, &at.sa, 2000));
	take_event("any", channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CALL(rdma_resolve_route(client, 2000));
	take_event("any", channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CALL(rdma_create_qp(client, NULL, &attr));
	CALL(rdma_connect(client, &param));
	server = take_event("any", channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	if (server) {
		id_name(server, "server");
		CHECK(server->channel == channel);
		CHECK(server->context == &mark);
		CHECK(server != listener);
		show_id(server);
		attr = qp_attr(RDMA_PS_TCP);
		CALL(rdma_create_qp(server, NULL, &attr));
		param = conn_param("reply", 6);
		CALL(rdma_accept(server, &param));
	}
	/* The two ESTABLISHED events come in either order: read both before printing. */
	int seen = 0;
	for (int i = 0; server && i < 2; i++) {
		struct rdma_cm_id *id = quiet_event(channel, RDMA_CM_EVENT_ESTABLISHED);
		seen |= id == client ? 1 : id == server ? 2 : 4;
	}
	obs("established %d", seen);
	id_destroy(client);
	if (server)
		take_event("any", channel, RDMA_CM_EVENT_DISCONNECTED);
	id_destroy(server);
	id_destroy(listener);
	rdma_destroy_event_channel(channel);
}

static void queued_order(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	union address to = local_addr(AF_INET, 7502);
	struct rdma_cm_id *ids[4] = { 0 };
	static const char *const names[4] = { "first", "second", "third", "fourth" };

	topic("queued events come in order");
	for (int i = 0; i < 4; i++) {
		rdma_create_id(channel, &ids[i], NULL, RDMA_PS_TCP);
		id_name(ids[i], names[i]);
		CALL(rdma_resolve_addr(ids[i], NULL, &to.sa, 2000));
	}
	for (int i = 0; i < 4; i++)
		take_event("any", channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!channel_ready(channel));
	for (int i = 0; i < 4; i++)
		id_destroy(ids[i]);
	rdma_destroy_event_channel(channel);
}

/* An unread event of an id disappears with it. */
static void unread_event_of_destroyed_id(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	union address to = local_addr(AF_INET, 7503);
	struct rdma_cm_id *gone = NULL, *stays = NULL;

	topic("unread event of a destroyed id");
	rdma_create_id(channel, &gone, NULL, RDMA_PS_TCP);
	rdma_create_id(channel, &stays, NULL, RDMA_PS_TCP);
	id_name(gone, "gone");
	id_name(stays, "stays");
	CALL(rdma_resolve_addr(gone, NULL, &to.sa, 2000));
	CALL(rdma_resolve_addr(stays, NULL, &to.sa, 2000));
	id_forget(gone);
	CALL(rdma_destroy_id(gone));
	take_event("any", channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!channel_ready(channel));
	id_destroy(stays);
	rdma_destroy_event_channel(channel);
}

static void unread_request(void)
{
	struct rdma_conn_param param = conn_param("x", 1);
	struct pair pair;

	topic("unread request of a destroyed listener");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true)) {
		CALL(rdma_connect(pair.client, &param));
		while (!channel_ready(pair.server_channel))
			pause_briefly();
		id_forget(pair.listener);
		CALL(rdma_destroy_id(pair.listener));
		pair.listener = NULL;
		take_event("client", pair.client_channel, RDMA_CM_EVENT_REJECTED);
		CHECK(!channel_ready(pair.server_channel));
	}
	pair_close(&pair);
}

static volatile int acked;

static void *destroy_body(void *argument)
{
	CALL(rdma_destroy_id(argument));
	obs("acked before destroy returned: %d", acked);
	return NULL;
}

/* rdma_destroy_id waits until the last event of the id is acked. */
static void destroy_waits(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	union address to = local_addr(AF_INET, 7504);
	struct rdma_cm_event *first, *second;
	struct rdma_cm_id *id = NULL;
	struct worker *worker;

	topic("destroy waits for acks");
	rdma_create_id(channel, &id, NULL, RDMA_PS_TCP);
	id_name(id, "id");
	CALL(rdma_resolve_addr(id, NULL, &to.sa, 2000));
	first = get_event("id", channel);
	CALL(rdma_resolve_route(id, 2000));
	second = get_event("id", channel);
	if (!first || !second)
		return;
	acked = 0;
	worker = worker_start(destroy_body, id);
	worker_await_sleep(worker);
	rdma_ack_cm_event(second);
	worker_await_sleep(worker);
	acked = 1;
	rdma_ack_cm_event(first);
	worker_join(worker);
	id_forget(id);
	rdma_destroy_event_channel(channel);
}

/* A request counts for the listener and for the new id. */
static void request_ack(void)
{
	struct rdma_conn_param param = conn_param("x", 1);
	struct rdma_cm_event *event;
	struct worker *worker;
	struct pair pair;

	topic("listener waits for the ack of a request");
	if (!pair_open(&pair, RDMA_PS_TCP, AF_INET) || !pair_resolve(&pair, true))
		goto out;
	CALL(rdma_connect(pair.client, &param));
	event = get_event("server", pair.server_channel);
	if (!event || event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		goto out;
	CHECK(event->listen_id == pair.listener);
	pair.server = event->id;
	acked = 0;
	worker = worker_start(destroy_body, pair.listener);
	worker_await_sleep(worker);
	acked = 1;
	rdma_ack_cm_event(event);
	worker_join(worker);
	id_forget(pair.listener);
	pair.listener = NULL;
	id_name(pair.server, "server");
	show_id(pair.server);
out:
	pair_close(&pair);
}

/* Private data belongs to the event, not to the next call on the channel. */
static void data_lives_with_event(void)
{
	struct rdma_conn_param param = conn_param("first message", 13);
	struct rdma_cm_event *event;
	struct rdma_cm_id *extra = NULL;
	struct pair pair;

	topic("private data lives until the ack");
	if (!pair_open(&pair, RDMA_PS_TCP, AF_INET) || !pair_resolve(&pair, true))
		goto out;
	CALL(rdma_connect(pair.client, &param));
	event = get_event("server", pair.server_channel);
	if (!event)
		goto out;
	pair.server = event->id;
	rdma_create_id(pair.server_channel, &extra, NULL, RDMA_PS_TCP);
	CALL(rdma_resolve_addr(extra, NULL, &pair.to.sa, 2000));
	quiet_event(pair.server_channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	obs("still %.13s", (const char *)event->param.conn.private_data);
	CALL(rdma_ack_cm_event(event));
	id_destroy(extra);
out:
	pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	fields_before_connect();
	one_channel();
	queued_order();
	unread_event_of_destroyed_id();
	unread_request();
	destroy_waits();
	request_ack();
	data_lives_with_event();
	return finish();
}
