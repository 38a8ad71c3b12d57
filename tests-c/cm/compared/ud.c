/* PS_UDP: connect (service id resolution), ud parameters, data, reject. */
#include "common.h"

static char sent[64] = "a datagram of the conformance programs", got[256];

static struct ibv_ah *handle_of(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct ibv_ah_attr attr = event->param.ud.ah_attr;

	attr.port_num = id->port_num;
	return ibv_create_ah(id->pd, &attr);
}

/* One datagram from `from` to `to`; the receiver sees it behind 40 bytes of GRH. */
static void datagram(struct rdma_cm_id *from, struct rdma_cm_id *to, struct ibv_ah *ah,
		     uint32_t qpn)
{
	struct ibv_mr *send_mr = rdma_reg_msgs(from, sent, sizeof(sent));
	struct ibv_mr *recv_mr = rdma_reg_msgs(to, got, sizeof(got));
	struct ibv_wc wc;
	int ret;

	memset(got, 0, sizeof(got));
	CALL(rdma_post_recv(to, NULL, got, sizeof(got), recv_mr));
	CALL(rdma_post_ud_send(from, NULL, sent, sizeof(sent), send_mr, IBV_SEND_SIGNALED, ah,
			       qpn));
	memset(&wc, 0, sizeof(wc));
	ret = rdma_get_send_comp(from, &wc);
	show_wc("sender", ret, &wc);
	memset(&wc, 0, sizeof(wc));
	ret = rdma_get_recv_comp(to, &wc);
	show_wc("receiver", ret, &wc);
	CHECK(memcmp(got + 40, sent, sizeof(sent)) == 0);
	CHECK(wc.src_qp == from->qp->qp_num);
	rdma_dereg_mr(send_mr);
	rdma_dereg_mr(recv_mr);
}

static void connection(const char *name, int family)
{
	struct rdma_conn_param param = conn_param("ask", 3);
	struct rdma_cm_event *event;
	struct ibv_ah *ah;
	struct pair pair;

	topic("%s", name);
	if (!pair_open(&pair, RDMA_PS_UDP, family) || !pair_resolve(&pair, true))
		goto out;
	show_id(pair.client);
	show_qp("client", pair.client);
	param.qp_num = pair.client->qp->qp_num;
	CALL(rdma_connect(pair.client, &param));
	pair.server = take_event("server", pair.server_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	if (!pair.server)
		goto out;
	id_name(pair.server, "server");
	show_id(pair.server);
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_UDP);
	CALL(rdma_create_qp(pair.server, NULL, &attr));
	show_qp("server", pair.server);
	param = conn_param("told", 4);
	param.qp_num = pair.server->qp->qp_num;
	CALL(rdma_accept(pair.server, &param));
	event = get_event("client", pair.client_channel);
	if (event && event->event == RDMA_CM_EVENT_ESTABLISHED) {
		ah = handle_of(pair.client, event);
		if (CHECK(ah != NULL)) {
			datagram(pair.client, pair.server, ah, event->param.ud.qp_num);
			ibv_destroy_ah(ah);
		}
	}
	if (event)
		rdma_ack_cm_event(event);
	CHECK(!channel_ready(pair.server_channel));
	CALL(rdma_disconnect(pair.client));
	CALL(rdma_disconnect(pair.server));
	CHECK(!channel_ready(pair.client_channel));
out:
	pair_close(&pair);
}

static void refused(void)
{
	struct rdma_conn_param param = conn_param("ask", 3);
	struct pair pair;

	topic("reject");
	if (pair_open(&pair, RDMA_PS_UDP, AF_INET) && pair_resolve(&pair, true) &&
	    pair_request(&pair, &param, false)) {
		CALL(rdma_reject(pair.server, "no", 2));
		take_event("client", pair.client_channel, RDMA_CM_EVENT_UNREACHABLE);
		show_qp("client", pair.client);
	}
	pair_close(&pair);

	topic("drop");
	if (pair_open(&pair, RDMA_PS_UDP, AF_INET) && pair_resolve(&pair, true) &&
	    pair_request(&pair, &param, false)) {
		id_forget(pair.server);
		CALL(rdma_destroy_id(pair.server));
		pair.server = NULL;
		take_event("client", pair.client_channel, RDMA_CM_EVENT_UNREACHABLE);
	}
	pair_close(&pair);

	topic("nobody");
	if (pair_open(&pair, RDMA_PS_UDP, AF_INET)) {
		pair.to.in.sin_port = htons(7899);
		if (pair_resolve(&pair, true)) {
			CALL(rdma_connect(pair.client, &param));
			take_event("client", pair.client_channel, RDMA_CM_EVENT_UNREACHABLE);
		}
	}
	pair_close(&pair);
}

static void parameters(void)
{
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct pair pair;

	topic("null parameters");
	if (pair_open(&pair, RDMA_PS_UDP, AF_INET) && pair_resolve(&pair, true)) {
		CALL(rdma_connect(pair.client, NULL));
		/* Responder resources are ignored for datagrams. */
		param.responder_resources = 250;
		param.initiator_depth = 250;
		if (!CALL(rdma_connect(pair.client, &param)))
			pair.server = take_event("server", pair.server_channel,
						 RDMA_CM_EVENT_CONNECT_REQUEST);
	}
	pair_close(&pair);

	topic("accept without queue pair");
	if (pair_open(&pair, RDMA_PS_UDP, AF_INET) && pair_resolve(&pair, true) &&
	    pair_request(&pair, &param, false)) {
		param.qp_num = 4711;
		param.private_data = "by hand";
		param.private_data_len = 7;
		if (!CALL(rdma_accept(pair.server, &param)))
			take_event("client", pair.client_channel, RDMA_CM_EVENT_ESTABLISHED);
	}
	pair_close(&pair);
}

static void *serve(void *argument)
{
	struct rdma_cm_id *listener = argument, *id = NULL;
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_UDP);
	struct rdma_conn_param param = conn_param("reply", 5);

	if (CALL(rdma_get_request(listener, &id)))
		return NULL;
	id_name(id, "server");
	CALL(rdma_create_qp(id, NULL, &attr));
	param.qp_num = id->qp->qp_num;
	CALL(rdma_accept(id, &param));
	obs("kept event %s", id->event ? rdma_event_str(id->event->event) : "none");
	return id;
}

static void synchronous(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_UDP);
	struct rdma_conn_param param = conn_param("ask", 3);
	struct rdma_cm_id *listener = NULL, *client = NULL, *server;
	union address to = local_addr(AF_INET, 0);
	struct worker *worker;

	topic("sync");
	rdma_create_id(NULL, &listener, NULL, RDMA_PS_UDP);
	rdma_create_id(NULL, &client, NULL, RDMA_PS_UDP);
	id_name(listener, "listener");
	id_name(client, "client");
	CALL(rdma_bind_addr(listener, &to.sa));
	CALL(rdma_listen(listener, 1));
	to.in.sin_port = rdma_get_src_port(listener);
	worker = worker_start(serve, listener);
	CALL(rdma_resolve_addr(client, NULL, &to.sa, 2000));
	CALL(rdma_resolve_route(client, 2000));
	CALL(rdma_create_qp(client, NULL, &attr));
	CALL(rdma_connect(client, &param));
	server = worker_join(worker);
	if (client->event)
		show_event("client", client->event);
	id_destroy(client);
	id_destroy(server);
	id_destroy(listener);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	if (on_siw()) {
		struct pair pair;

		topic("no datagrams on siw");
		if (pair_open(&pair, RDMA_PS_UDP, AF_INET) && pair_resolve(&pair, false)) {
			struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_UDP);

			CALL(rdma_create_qp(pair.client, NULL, &attr));
		}
		pair_close(&pair);
		return finish();
	}
	connection("v4", AF_INET);
	connection("v6", AF_INET6);
	refused();
	parameters();
	synchronous();
	return finish();
}
