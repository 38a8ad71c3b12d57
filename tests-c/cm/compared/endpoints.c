/* rdma_create_ep, rdma_get_request on endpoints, rdma_destroy_ep. */
#include "common.h"

static struct rdma_addrinfo *info(int flags, enum rdma_port_space ps, int port)
{
	struct rdma_addrinfo hints, *res = NULL;
	char service[16];
	int ret;

	memset(&hints, 0, sizeof(hints));
	hints.ai_flags = flags;
	hints.ai_port_space = ps;
	snprintf(service, sizeof(service), "%d", port);
	ret = rdma_getaddrinfo(local_node(AF_INET), service, &hints, &res);
	if (ret)
		obs("setup failed: rdma_getaddrinfo %d", ret);
	return res;
}

static void forms(const char *name, enum rdma_port_space ps, int flags, bool with_attr)
{
	struct ibv_qp_init_attr attr = qp_attr(ps);
	struct rdma_addrinfo *res = info(flags, ps, 7801);
	struct rdma_cm_id *id = NULL;

	topic("%s", name);
	if (!CALL(rdma_create_ep(&id, res, NULL, with_attr ? &attr : NULL))) {
		id_name(id, "ep");
		show_id(id);
		obs("kept event %s", id->event ? rdma_event_str(id->event->event) : "none");
		show_qp("ep", id);
		obs("caps %u %u %u %u %u", attr.cap.max_send_wr, attr.cap.max_recv_wr,
		    attr.cap.max_send_sge, attr.cap.max_recv_sge, attr.cap.max_inline_data);
		id_forget(id);
		rdma_destroy_ep(id);
	}
	rdma_freeaddrinfo(res);
}

struct server {
	struct rdma_cm_id *listener;
	bool with_attr;
};

static void *serve(void *argument)
{
	struct server *server = argument;
	struct rdma_cm_id *id = NULL;

	if (CALL(rdma_get_request(server->listener, &id)))
		return NULL;
	id_name(id, "server");
	show_id(id);
	show_qp("server", id);
	CHECK(id->pd == server->listener->pd);
	if (!id->qp) {
		struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
		CALL(rdma_create_qp(id, NULL, &attr));
	}
	CALL(rdma_accept(id, NULL));
	CALL(rdma_disconnect(id));
	id_forget(id);
	rdma_destroy_ep(id);
	return NULL;
}

static void connected(const char *name, bool with_attr)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_addrinfo *passive = info(RAI_PASSIVE, RDMA_PS_TCP, 7802);
	struct rdma_addrinfo *active = info(0, RDMA_PS_TCP, 7802);
	struct server server = { NULL, with_attr };
	struct rdma_cm_id *id = NULL;
	struct worker *worker;

	topic("%s", name);
	CALL(rdma_create_ep(&server.listener, passive, NULL, with_attr ? &attr : NULL));
	id_name(server.listener, "listener");
	show_id(server.listener);
	CALL(rdma_listen(server.listener, 2));
	worker = worker_start(serve, &server);
	attr = qp_attr(RDMA_PS_TCP);
	CALL(rdma_create_ep(&id, active, NULL, &attr));
	id_name(id, "client");
	show_id(id);
	CALL(rdma_connect(id, NULL));
	CALL(rdma_disconnect(id));
	worker_join(worker);
	id_forget(id);
	rdma_destroy_ep(id);
	id_forget(server.listener);
	rdma_destroy_ep(server.listener);
	rdma_freeaddrinfo(passive);
	rdma_freeaddrinfo(active);
}

/* The data of the address comes before that of the call. */
static void *shows_data(void *argument)
{
	struct server *server = argument;
	struct rdma_cm_id *id = NULL;
	const char *data;

	if (CALL(rdma_get_request(server->listener, &id)))
		return NULL;
	data = id->event ? id->event->param.conn.private_data : NULL;
	obs("private data %.8s", data ? data : "none");
	CALL(rdma_reject(id, NULL, 0));
	rdma_destroy_ep(id);
	return NULL;
}

static void connect_data(void)
{
	struct rdma_addrinfo *passive = info(RAI_PASSIVE, RDMA_PS_TCP, 7808);
	struct rdma_addrinfo *active = info(0, RDMA_PS_TCP, 7808);
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_conn_param param = conn_param("tail", 4);
	struct server server = { NULL, false };
	struct rdma_cm_id *id = NULL;
	struct worker *worker;

	topic("data of the address");
	CALL(rdma_create_ep(&server.listener, passive, NULL, NULL));
	CALL(rdma_listen(server.listener, 2));
	worker = worker_start(shows_data, &server);
	active->ai_connect = strdup("head");
	active->ai_connect_len = 4;
	CALL(rdma_create_ep(&id, active, NULL, &attr));
	CALL(rdma_connect(id, &param));
	worker_join(worker);
	rdma_destroy_ep(id);
	rdma_destroy_ep(server.listener);
	rdma_freeaddrinfo(passive);
	rdma_freeaddrinfo(active);
}

static void bad_attributes(void)
{
	struct ibv_qp_init_attr bad = qp_attr(RDMA_PS_TCP);
	struct rdma_addrinfo *passive = info(RAI_PASSIVE, RDMA_PS_TCP, 7803);
	struct rdma_addrinfo *active = info(0, RDMA_PS_TCP, 7803);
	struct rdma_cm_id *listener = NULL, *id = NULL;

	topic("active with impossible attributes");
	bad.cap.max_send_wr = 1u << 30;
	CALL(rdma_create_ep(&id, active, NULL, &bad));
	CHECK(id == NULL);

	/* First used at the first request, which the reference then does not answer. */
	topic("passive with impossible attributes");
	if (!CALL(rdma_create_ep(&listener, passive, NULL, &bad)))
		rdma_destroy_ep(listener);
	rdma_freeaddrinfo(passive);
	rdma_freeaddrinfo(active);
}

static void constant_attributes(void)
{
	static const struct ibv_qp_init_attr constant = { .cap = { .max_send_wr = 1, .max_recv_wr = 1 } };
	struct ibv_qp_init_attr attr = constant;
	struct rdma_addrinfo *passive = info(RAI_PASSIVE, RDMA_PS_TCP, 7806);
	struct rdma_cm_id *listener = NULL;

	topic("passive leaves the attributes as they are");
	attr.qp_type = IBV_QPT_UC;
	if (!CALL(rdma_create_ep(&listener, passive, NULL, &attr)))
		rdma_destroy_ep(listener);
	obs("type %s", qp_type_str((int)attr.qp_type));
	listener = NULL;
	if (!CALL(rdma_create_ep(&listener, passive, NULL, (struct ibv_qp_init_attr *)&constant)))
		rdma_destroy_ep(listener);
	rdma_freeaddrinfo(passive);
}

static void failures(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_addrinfo *res = info(RAI_PASSIVE, RDMA_PS_TCP, 7804), *active;
	struct rdma_cm_id *first = NULL, *second = NULL;
	union address away = unrouted_addr(7804), silent = silent_addr(7804);

	topic("address in use");
	CALL(rdma_create_ep(&first, res, NULL, NULL));
	CALL(rdma_create_ep(&second, res, NULL, NULL));
	CHECK(second == NULL);
	rdma_destroy_ep(first);
	rdma_freeaddrinfo(res);

	topic("no route");
	active = info(0, RDMA_PS_TCP, 7804);
	memcpy(active->ai_dst_addr, &away.in, sizeof(away.in));
	CALL(rdma_create_ep(&second, active, NULL, &attr));
	CHECK(second == NULL);

	topic("no neighbour");
	memcpy(active->ai_dst_addr, &silent.in, sizeof(silent.in));
	CALL(rdma_create_ep(&second, active, NULL, &attr));
	CHECK(second == NULL);
	rdma_freeaddrinfo(active);
}

static void given_pd(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_addrinfo *active = info(0, RDMA_PS_TCP, 7805);
	struct rdma_addrinfo *passive = info(RAI_PASSIVE, RDMA_PS_TCP, 7805);
	struct rdma_cm_id *first = NULL, *second = NULL, *listener = NULL;
	struct ibv_pd *pd;

	topic("given pd");
	CALL(rdma_create_ep(&first, active, NULL, &attr));
	pd = ibv_alloc_pd(first->verbs);
	CALL(rdma_create_ep(&second, active, pd, &attr));
	CHECK(second->pd == pd);
	CHECK(second->qp->pd == pd);
	CALL(rdma_create_ep(&listener, passive, pd, &attr));
	CHECK(listener->pd == pd);
	rdma_destroy_ep(listener);
	rdma_destroy_ep(second);
	ibv_dealloc_pd(pd);
	rdma_destroy_ep(first);
	rdma_freeaddrinfo(active);
	rdma_freeaddrinfo(passive);
}

/* The route of the caller is used; the kernel is not queried. */
static void given_route(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_addrinfo *active = info(0, RDMA_PS_TCP, 7806);
	struct rdma_cm_id *id = NULL;
	struct ibv_path_data *path = calloc(1, sizeof(*path));

	topic("given route");
	path->flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
	active->ai_route = path;
	active->ai_route_len = sizeof(*path);
	if (!CALL(rdma_create_ep(&id, active, NULL, &attr)))
		rdma_destroy_ep(id);
	active->ai_route_len = sizeof(*path) - 1;
	if (!CALL(rdma_create_ep(&id, active, NULL, &attr)))
		rdma_destroy_ep(id);
	rdma_freeaddrinfo(active);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	forms("active tcp with qp", RDMA_PS_TCP, 0, true);
	forms("active tcp without qp", RDMA_PS_TCP, 0, false);
	forms("passive tcp with qp", RDMA_PS_TCP, RAI_PASSIVE, true);
	forms("passive tcp without qp", RDMA_PS_TCP, RAI_PASSIVE, false);
	forms("active udp", RDMA_PS_UDP, 0, true);
	forms("passive udp", RDMA_PS_UDP, RAI_PASSIVE, true);
	forms("active noroute", RDMA_PS_TCP, RAI_NOROUTE, true);
	connected("connected, listener with attributes", true);
	connected("connected, listener without attributes", false);
	connect_data();
	bad_attributes();
	constant_attributes();
	failures();
	given_pd();
	given_route();
	return finish();
}
