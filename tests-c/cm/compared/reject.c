/* rdma_reject and rdma_reject_ece: data, reasons, wrong states. */
#include "common.h"

typedef int (*reject_call)(struct rdma_cm_id *, const void *, uint8_t);

static void reject_with(const char *name, reject_call call, const void *data, uint8_t len)
{
	struct rdma_conn_param param = conn_param("ask", 3);
	struct pair pair;

	topic("%s %u bytes", name, len);
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true) &&
	    pair_request(&pair, &param, false)) {
		if (!CALL(call(pair.server, data, len)))
			take_event("client", pair.client_channel, RDMA_CM_EVENT_REJECTED);
		show_qp("client", pair.client);
		CALL(call(pair.server, data, len));
		show_id(pair.server);
		CALL(rdma_accept(pair.server, &param));
		CHECK(!channel_ready(pair.server_channel));
	}
	pair_close(&pair);
}

static void with_qp(void)
{
	struct rdma_conn_param param = conn_param("ask", 3);
	struct pair pair;

	topic("reject with a queue pair");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true) &&
	    pair_request(&pair, &param, true)) {
		CALL(rdma_reject(pair.server, "no", 2));
		take_event("client", pair.client_channel, RDMA_CM_EVENT_REJECTED);
		show_qp("server", pair.server);
	}
	pair_close(&pair);
}

static void by_destroy(void)
{
	struct rdma_conn_param param = conn_param("ask", 3);
	struct pair pair;

	topic("destroying the new id rejects");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true) &&
	    pair_request(&pair, &param, false)) {
		id_forget(pair.server);
		CALL(rdma_destroy_id(pair.server));
		pair.server = NULL;
		take_event("client", pair.client_channel, RDMA_CM_EVENT_REJECTED);
	}
	pair_close(&pair);
}

static void wrong_states(void)
{
	struct pair pair;

	topic("wrong states");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET)) {
		CALL(rdma_reject(pair.client, NULL, 0));
		CALL(rdma_reject_ece(pair.client, NULL, 0));
		CALL(rdma_reject(pair.listener, NULL, 0));
		if (pair_resolve(&pair, true))
			CALL(rdma_reject(pair.client, "x", 1));
	}
	pair_close(&pair);

	topic("connected");
	if (pair_connect(&pair, RDMA_PS_TCP, AF_INET)) {
		CALL(rdma_reject(pair.server, "x", 1));
		CALL(rdma_reject(pair.client, "x", 1));
	}
	pair_close(&pair);
}

/* A client without a QP may reject the reply. */
static void reject_reply(void)
{
	struct rdma_conn_param param = conn_param("ask", 3);
	struct pair pair;

	topic("reject the reply");
	param.qp_num = invented_qpn();
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, false) &&
	    pair_request(&pair, &param, true)) {
		CALL(rdma_accept(pair.server, &param));
		if (take_event("client", pair.client_channel, RDMA_CM_EVENT_CONNECT_RESPONSE)) {
			CALL(rdma_reject(pair.client, "changed my mind", 15));
			take_event("server", pair.server_channel, RDMA_CM_EVENT_REJECTED);
		}
	}
	pair_close(&pair);
}

int main(int argc, char **argv)
{
	char data[255];

	start(argc, argv);
	memset(data, 0x5a, sizeof(data));
	reject_with("none", rdma_reject, NULL, 0);
	reject_with("reject", rdma_reject, data, 1);
	reject_with("reject", rdma_reject, data, 148);
	/* siw accepts this length and then delivers uninitialized kernel memory. */
	if (!on_siw())
		reject_with("reject", rdma_reject, data, 255);
	reject_with("ece", rdma_reject_ece, NULL, 0);
	reject_with("ece", rdma_reject_ece, data, 100);
	with_qp();
	by_destroy();
	wrong_states();
	if (!on_siw())
		reject_reply();
	return finish();
}
