/* rdma_connect and rdma_accept: parameters, limits, wrong order. */
#include "common.h"

static void finish_pair(struct pair *pair, struct rdma_conn_param *param)
{
	if (CALL(rdma_accept(pair->server, param)))
		return;
	if (take_event("client", pair->client_channel, RDMA_CM_EVENT_ESTABLISHED))
		take_event("server", pair->server_channel, RDMA_CM_EVENT_ESTABLISHED);
	show_qp("client", pair->client);
	show_qp("server", pair->server);
}

/* One connection with given parameters of either side; NULL is allowed. */
static void connection(const char *name, int family, struct rdma_conn_param *request,
		       struct rdma_conn_param *reply)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct pair pair;

	topic("%s", name);
	if (!pair_open(&pair, RDMA_PS_TCP, family) || !pair_resolve(&pair, true))
		goto out;
	show_qp("client", pair.client);
	if (CALL(rdma_connect(pair.client, request)))
		goto out;
	pair.server = take_event("server", pair.server_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	if (!pair.server)
		goto out;
	id_name(pair.server, "server");
	show_id(pair.server);
	CALL(rdma_create_qp(pair.server, NULL, &attr));
	show_qp("server", pair.server);
	finish_pair(&pair, reply);
	show_id(pair.client);
	show_id(pair.server);
out:
	pair_close(&pair);
}

static void parameters(void)
{
	struct rdma_conn_param one = conn_param("hello", 5), two = conn_param("answer", 6);
	struct rdma_conn_param full = conn_param(NULL, 0), zero = conn_param(NULL, 0);

	connection("plain", AF_INET, &one, &two);
	connection("plain v6", AF_INET6, &one, &two);
	connection("no parameters", AF_INET, NULL, NULL);
	connection("accept without parameters", AF_INET, &one, NULL);
	full.responder_resources = RDMA_MAX_RESP_RES;
	full.initiator_depth = RDMA_MAX_INIT_DEPTH;
	connection("all of the device", AF_INET, &full, &full);
	connection("small request, accept max", AF_INET, &one, &full);
	two.responder_resources = 2;
	two.initiator_depth = 5;
	connection("two resources, depth of five", AF_INET, &two, NULL);
	connection("two resources, depth of five in the reply", AF_INET, &full, &two);
	two = conn_param("answer", 6);
	zero.responder_resources = 0;
	zero.initiator_depth = 0;
	connection("no resources", AF_INET, &zero, &zero);
	connection("request max, accept none", AF_INET, &full, &zero);
	one.flow_control = 1;
	one.srq = 1;
	one.qp_num = 77;
	one.retry_count = 7;
	one.rnr_retry_count = 7;
	two = one;
	connection("flow control, srq, qp_num", AF_INET, &one, &two);
	one.retry_count = 9;
	one.rnr_retry_count = 9;
	connection("retry counts above 7", AF_INET, &one, &two);
}

static void too_much(uint8_t resources, uint8_t depth)
{
	struct rdma_conn_param param = conn_param(NULL, 0), good = param;
	struct ibv_device_attr attr;
	struct pair pair;

	topic("resources %u depth %u", resources, depth);
	param.responder_resources = resources;
	param.initiator_depth = depth;
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true)) {
		ibv_query_device(pair.client->verbs, &attr);
		obs("device max_qp_rd_atom %d init %d", attr.max_qp_rd_atom,
		    attr.max_qp_init_rd_atom);
		CALL(rdma_connect(pair.client, &param));
	}
	pair_close(&pair);
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true) &&
	    pair_request(&pair, &good, true)) {
		CALL(rdma_accept(pair.server, &param));
		show_qp("server", pair.server);
	}
	pair_close(&pair);
}

/* As much as the device can, and one more. */
static void at_the_limits(void)
{
	struct ibv_device_attr attr = { .max_qp_rd_atom = 0 };
	struct pair pair;
	int most, most_init;

	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, false))
		SETUP(!ibv_query_device(pair.client->verbs, &attr));
	pair_close(&pair);
	most = attr.max_qp_rd_atom;
	most_init = attr.max_qp_init_rd_atom;
	/* 255 stands for the device's maximum. */
	for (int more = 0; more < 2; more++) {
		if (most + more < RDMA_MAX_RESP_RES)
			too_much((uint8_t)(most + more), 1);
		if (most_init + more < RDMA_MAX_INIT_DEPTH)
			too_much(1, (uint8_t)(most_init + more));
	}
}

static void wrong_order(void)
{
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct pair pair;

	topic("connect in wrong states");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET)) {
		CALL(rdma_connect(pair.client, NULL));
		/*
		 * The reference crashes for rdma_accept without a device, and
		 * without both parameters and QP.
		 */
		CALL(rdma_accept(pair.listener, &param));
		CALL(rdma_connect(pair.listener, NULL));
		if (pair_resolve(&pair, false)) {
			CALL(rdma_connect(pair.client, NULL));
			CALL(rdma_accept(pair.client, &param));
		}
	}
	pair_close(&pair);

	topic("connect and accept twice");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true) &&
	    pair_request(&pair, &param, true)) {
		CALL(rdma_connect(pair.client, &param));
		CALL(rdma_connect(pair.server, &param));
		finish_pair(&pair, &param);
		CALL(rdma_establish(pair.client));
		CALL(rdma_establish(pair.server));
		CALL(rdma_accept(pair.server, &param));
		CALL(rdma_connect(pair.client, &param));
		show_qp("client", pair.client);
		show_qp("server", pair.server);
	}
	pair_close(&pair);
}

static void nobody(void)
{
	struct rdma_conn_param param = conn_param("x", 1);
	struct pair pair;

	topic("nobody listens");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET)) {
		pair.to.in.sin_port = htons(7599);
		if (pair_resolve(&pair, true)) {
			/* On siw the call fails, on rxe an event reports it. */
			if (!CALL(rdma_connect(pair.client, &param)))
				take_event("client", pair.client_channel,
					   RDMA_CM_EVENT_REJECTED);
			show_qp("client", pair.client);
			CALL(rdma_connect(pair.client, &param));
			CALL(rdma_disconnect(pair.client));
		}
	}
	pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	parameters();
	too_much(254, 1);
	too_much(1, 254);
	at_the_limits();
	wrong_order();
	nobody();
	return finish();
}
