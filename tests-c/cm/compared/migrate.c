/* rdma_migrate_id: between channels, to sync and back, with events pending. */
#include "common.h"

#include <fcntl.h>

static struct rdma_cm_id *new_id(struct rdma_event_channel *channel, const char *name)
{
	struct rdma_cm_id *id = NULL;

	if (SETUP(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP)))
		id_name(id, name);
	return id;
}

static void between_channels(void)
{
	struct rdma_event_channel *one = rdma_create_event_channel();
	struct rdma_event_channel *two = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(one, "id");
	union address to = local_addr(AF_INET, 7901);
	int before = open_fds();

	topic("between channels");
	CALL(rdma_migrate_id(id, two));
	CHECK(id->channel == two);
	CALL(rdma_resolve_addr(id, NULL, &to.sa, 2000));
	take_event("two", two, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!channel_ready(one));
	CALL(rdma_migrate_id(id, two));
	CALL(rdma_migrate_id(id, one));
	CHECK(id->channel == one);
	CALL(rdma_resolve_route(id, 2000));
	take_event("one", one, RDMA_CM_EVENT_ROUTE_RESOLVED);
	obs("descriptors more %d", open_fds() - before);
	id_destroy(id);
	rdma_destroy_event_channel(one);
	rdma_destroy_event_channel(two);
}

/* Unread events move with the id, in their order. */
static void pending(void)
{
	struct rdma_event_channel *one = rdma_create_event_channel();
	struct rdma_event_channel *two = rdma_create_event_channel();
	struct rdma_cm_id *moves = new_id(one, "moves"), *stays = new_id(one, "stays");
	union address to = local_addr(AF_INET, 7902);

	topic("pending events");
	CALL(rdma_resolve_addr(stays, NULL, &to.sa, 2000));
	while (!channel_ready(one))
		pause_briefly();
	take_event("one", one, RDMA_CM_EVENT_ADDR_RESOLVED);
	CALL(rdma_resolve_addr(moves, NULL, &to.sa, 2000));
	while (!channel_ready(one))
		pause_briefly();
	CALL(rdma_migrate_id(moves, two));
	CHECK(!channel_ready(one));
	CHECK(channel_ready(two));
	take_event("two", two, RDMA_CM_EVENT_ADDR_RESOLVED);
	CALL(rdma_resolve_route(stays, 2000));
	take_event("one", one, RDMA_CM_EVENT_ROUTE_RESOLVED);
	id_destroy(moves);
	id_destroy(stays);
	rdma_destroy_event_channel(one);
	rdma_destroy_event_channel(two);
}

static volatile int acked;

static void *migrate_body(void *argument)
{
	struct rdma_cm_id *id = argument;

	CALL(rdma_migrate_id(id, id->context));
	obs("acked before migrate returned: %d", acked);
	return NULL;
}

static void waits_for_acks(void)
{
	struct rdma_event_channel *one = rdma_create_event_channel();
	struct rdma_event_channel *two = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(one, "id");
	union address to = local_addr(AF_INET, 7903);
	struct rdma_cm_event *event;
	struct worker *worker;

	topic("migrate waits for acks");
	id->context = two;
	CALL(rdma_resolve_addr(id, NULL, &to.sa, 2000));
	event = get_event("id", one);
	worker = worker_start(migrate_body, id);
	worker_await_sleep(worker);
	acked = 1;
	rdma_ack_cm_event(event);
	worker_join(worker);
	CHECK(id->channel == two);
	id_destroy(id);
	rdma_destroy_event_channel(one);
	rdma_destroy_event_channel(two);
}

static void to_sync_and_back(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(channel, "id");
	union address to = local_addr(AF_INET, 7904);
	int before = open_fds();

	topic("to sync and back");
	CALL(rdma_migrate_id(id, NULL));
	CHECK(id->channel != channel && id->channel != NULL);
	obs("descriptors more %d", open_fds() - before);
	CALL(rdma_resolve_addr(id, NULL, &to.sa, 2000));
	obs("kept %s", id->event ? rdma_event_str(id->event->event) : "none");
	CALL(rdma_migrate_id(id, NULL));
	CALL(rdma_migrate_id(id, channel));
	CHECK(id->channel == channel);
	obs("kept %s", id->event ? rdma_event_str(id->event->event) : "none");
	obs("descriptors more %d", open_fds() - before);
	CALL(rdma_resolve_route(id, 2000));
	take_event("id", channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	id_destroy(id);
	rdma_destroy_event_channel(channel);
}

static void connected(void)
{
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct pair pair;

	topic("connected");
	if (pair_connect(&pair, RDMA_PS_TCP, AF_INET)) {
		CALL(rdma_migrate_id(pair.server, other));
		CALL(rdma_disconnect(pair.client));
		take_event("server", other, RDMA_CM_EVENT_DISCONNECTED);
		CALL(rdma_disconnect(pair.server));
		take_event("client", pair.client_channel, RDMA_CM_EVENT_DISCONNECTED);
	}
	pair_close(&pair);
	rdma_destroy_event_channel(other);
}

static void listener(void)
{
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct rdma_conn_param param = conn_param("x", 1);
	struct pair pair;

	topic("listener");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true)) {
		CALL(rdma_migrate_id(pair.listener, other));
		CALL(rdma_connect(pair.client, &param));
		pair.server = take_event("other", other, RDMA_CM_EVENT_CONNECT_REQUEST);
		CHECK(pair.server && pair.server->channel == other);
	}
	pair_close(&pair);
	rdma_destroy_event_channel(other);

	/* siw: destroying the client would take many seconds. */
	if (on_siw())
		return;
	/* The kernel leaves the new id with the old channel: the request is lost. */
	topic("listener with a pending request");
	struct rdma_cm_event *event = NULL;
	other = rdma_create_event_channel();
	fcntl(other->fd, F_SETFL, O_NONBLOCK);
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true)) {
		CALL(rdma_connect(pair.client, &param));
		while (!channel_ready(pair.server_channel))
			pause_briefly();
		CALL(rdma_migrate_id(pair.listener, other));
		CHECK(!channel_ready(pair.server_channel));
		CHECK(channel_ready(other));
		CALL(rdma_get_cm_event(other, &event));
		CHECK(!channel_ready(other));
	}
	pair_close(&pair);
	rdma_destroy_event_channel(other);
}

static void wrong(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_event_channel broken = { .fd = -1 }, null;
	struct rdma_cm_id *id = new_id(channel, "id");

	topic("wrong channels");
	CALL(rdma_migrate_id(id, &broken));
	CHECK(id->channel == channel);
	null.fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	CALL(rdma_migrate_id(id, &null));
	CHECK(id->channel == channel);
	close(null.fd);
	id_destroy(id);
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	between_channels();
	pending();
	waits_for_acks();
	to_sync_and_back();
	connected();
	listener();
	wrong();
	return finish();
}
