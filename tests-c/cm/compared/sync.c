/* Ids without a channel of the program: calls wait, id->event, errno. */
#include "common.h"

#include <fcntl.h>
#include <poll.h>

static void show_kept(const char *who, const struct rdma_cm_id *id)
{
	if (id->event)
		show_event(who, id->event);
	else
		obs("%s: no event kept", who);
}

static struct rdma_cm_id *sync_id(const char *name, enum rdma_port_space ps)
{
	struct rdma_cm_id *id = NULL;

	if (SETUP(!rdma_create_id(NULL, &id, NULL, ps)))
		id_name(id, name);
	return id;
}

static struct rdma_cm_id *sync_listener(enum rdma_port_space ps)
{
	struct rdma_cm_id *id = sync_id("listener", ps);
	union address address = local_addr(AF_INET, 0);

	CALL(rdma_bind_addr(id, &address.sa));
	show_kept("listener", id);
	CALL(rdma_listen(id, 4));
	show_kept("listener", id);
	return id;
}

enum answer { ACCEPT, REJECT, DROP };
struct server {
	struct rdma_cm_id *listener;
	enum answer answer;
};

static void *serve(void *argument)
{
	struct server *server = argument;
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_conn_param param = conn_param("welcome", 7);
	struct rdma_cm_id *id = NULL;

	if (CALL(rdma_get_request(server->listener, &id)))
		return NULL;
	id_name(id, "server");
	show_id(id);
	show_kept("server", id);
	show_kept("listener", server->listener);
	CHECK(id->channel != server->listener->channel);
	if (server->answer == REJECT)
		CALL(rdma_reject(id, "no", 2));
	if (server->answer == ACCEPT) {
		CALL(rdma_create_qp(id, NULL, &attr));
		CALL(rdma_accept(id, &param));
		show_kept("server", id);
		show_qp("server", id);
		CALL(rdma_disconnect(id));
		show_kept("server", id);
		/* The second one waits for TIMEWAIT_EXIT, which siw does not have. */
		if (!on_siw()) {
			CALL(rdma_disconnect(id));
			show_kept("server", id);
		}
		rdma_destroy_qp(id);
	}
	id_forget(id);
	CALL(rdma_destroy_id(id));
	return NULL;
}

static void conversation(enum answer answer)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_conn_param param = conn_param("hello", 5);
	struct server server = { sync_listener(RDMA_PS_TCP), answer };
	union address to = local_addr(AF_INET, ntohs(rdma_get_src_port(server.listener)));
	struct worker *worker = worker_start(serve, &server);
	struct rdma_cm_id *id = sync_id("client", RDMA_PS_TCP);

	CALL(rdma_resolve_addr(id, NULL, &to.sa, 2000));
	show_kept("client", id);
	CALL(rdma_resolve_route(id, 2000));
	show_kept("client", id);
	CALL(rdma_create_qp(id, NULL, &attr));
	CALL(rdma_connect(id, &param));
	show_kept("client", id);
	show_qp("client", id);
	if (answer == ACCEPT) {
		CALL(rdma_disconnect(id));
		show_kept("client", id);
	}
	worker_join(worker);
	id_destroy(id);
	show_kept("listener", server.listener);
	id_destroy(server.listener);
}

static void failures(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_conn_param param = conn_param(NULL, 0);
	union address silent = silent_addr(7701), away = unrouted_addr(7701);
	union address nobody = local_addr(AF_INET, 7702);
	struct rdma_cm_id *id = sync_id("id", RDMA_PS_TCP);

	topic("failures");
	CALL(rdma_resolve_addr(id, NULL, &silent.sa, 300));
	show_kept("id", id);
	CALL(rdma_resolve_addr(id, NULL, &away.sa, 300));
	show_kept("id", id);
	CALL(rdma_resolve_addr(id, NULL, &nobody.sa, 2000));
	show_kept("id", id);
	CALL(rdma_resolve_addr(id, NULL, &nobody.sa, 2000));
	show_kept("id", id);
	CALL(rdma_resolve_route(id, 2000));
	CALL(rdma_create_qp(id, NULL, &attr));
	CALL(rdma_connect(id, &param));
	show_kept("id", id);
	show_qp("id", id);
	CALL(rdma_connect(id, &param));
	show_kept("id", id);
	id_destroy(id);
}

/* The program can read the event of a call that would have waited. */
static void nonblocking(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_conn_param param = conn_param("later", 5);
	union address silent = silent_addr(7703);
	struct rdma_cm_id *id = sync_id("id", RDMA_PS_TCP), *server = NULL;
	struct pollfd entry = { .fd = id->channel->fd, .events = POLLIN };
	struct pair pair;

	topic("non-blocking");
	fcntl(id->channel->fd, F_SETFL, O_NONBLOCK);
	CALL(rdma_resolve_addr(id, NULL, &silent.sa, 300));
	show_kept("id", id);
	poll(&entry, 1, -1);
	take_event("id", id->channel, RDMA_CM_EVENT_ADDR_ERROR);
	fcntl(id->channel->fd, F_SETFL, 0);
	if (!pair_open(&pair, RDMA_PS_TCP, AF_INET))
		return;
	CALL(rdma_resolve_addr(id, NULL, &pair.to.sa, 2000));
	CALL(rdma_resolve_route(id, 2000));
	CALL(rdma_create_qp(id, NULL, &attr));
	fcntl(id->channel->fd, F_SETFL, O_NONBLOCK);
	CALL(rdma_connect(id, &param));
	show_kept("id", id);
	server = take_event("server", pair.server_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	if (server) {
		id_name(server, "server");
		attr = qp_attr(RDMA_PS_TCP);
		CALL(rdma_create_qp(server, NULL, &attr));
		CALL(rdma_accept(server, NULL));
		poll(&entry, 1, -1);
		take_event("id", id->channel, RDMA_CM_EVENT_ESTABLISHED);
		show_qp("id", id);
		take_event("server", pair.server_channel, RDMA_CM_EVENT_ESTABLISHED);
	}
	/* siw may have disconnected before the call returns, or not. */
	if (server && !on_siw()) {
		CALL(rdma_disconnect(id));
		take_event("server", pair.server_channel, RDMA_CM_EVENT_DISCONNECTED);
		CALL(rdma_disconnect(server));
		poll(&entry, 1, -1);
		take_event("id", id->channel, RDMA_CM_EVENT_DISCONNECTED);
	}
	id_destroy(server);
	id_destroy(id);
	pair_close(&pair);
}

static void requests(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	union address address = local_addr(AF_INET, 0);
	struct rdma_cm_id *listener, *id = (void *)&address;

	topic("get_request refused");
	rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP);
	rdma_bind_addr(listener, &address.sa);
	rdma_listen(listener, 1);
	CALL(rdma_get_request(listener, &id));
	CHECK(id == (void *)&address);
	rdma_destroy_id(listener);
	rdma_destroy_event_channel(channel);

	topic("get_request non-blocking");
	listener = sync_listener(RDMA_PS_TCP);
	fcntl(listener->channel->fd, F_SETFL, O_NONBLOCK);
	CALL(rdma_get_request(listener, &id));
	CHECK(id == (void *)&address);
	show_kept("listener", listener);
	id_destroy(listener);
}

/* Events other than requests: an unread one that moved with the id, and a failure. */
static void wrong_event(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	union address to = local_addr(AF_INET, 7704), silent = silent_addr(7704);
	struct rdma_cm_id *id = NULL, *got = NULL;

	topic("get_request sees another event");
	rdma_create_id(channel, &id, NULL, RDMA_PS_TCP);
	id_name(id, "id");
	CALL(rdma_resolve_addr(id, NULL, &to.sa, 2000));
	while (!channel_ready(channel))
		pause_briefly();
	CALL(rdma_migrate_id(id, NULL));
	CALL(rdma_get_request(id, &got));
	CHECK(got == NULL);
	show_kept("id", id);
	id_destroy(id);
	rdma_destroy_event_channel(channel);

	topic("get_request sees a failure");
	id = sync_id("id", RDMA_PS_TCP);
	fcntl(id->channel->fd, F_SETFL, O_NONBLOCK);
	CALL(rdma_resolve_addr(id, NULL, &silent.sa, 300));
	fcntl(id->channel->fd, F_SETFL, 0);
	CALL(rdma_get_request(id, &got));
	CHECK(got == NULL);
	show_kept("id", id);
	id_destroy(id);
}

static void destroy_keeps_nothing(void)
{
	struct rdma_cm_id *id = sync_id("id", RDMA_PS_TCP);
	union address to = local_addr(AF_INET, 7705);
	int before = open_fds();

	topic("destroy with a kept event");
	CALL(rdma_resolve_addr(id, NULL, &to.sa, 2000));
	show_kept("id", id);
	id_forget(id);
	CALL(rdma_destroy_id(id));
	obs("descriptors less %d", before - open_fds());
}

int main(int argc, char **argv)
{
	start(argc, argv);
	topic("accept");
	conversation(ACCEPT);
	topic("reject");
	conversation(REJECT);
	topic("drop");
	conversation(DROP);
	failures();
	nonblocking();
	requests();
	wrong_event();
	destroy_keeps_nothing();
	return finish();
}
