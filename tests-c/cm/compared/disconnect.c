/* rdma_disconnect: events on both sides, repeated and misplaced calls. */
#include "common.h"

/* rxe ids leave TIMEWAIT with an event of their own, siw ids do not. */
static void after(struct pair *pair)
{
	if (on_siw())
		return;
	take_event("client", pair->client_channel, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	take_event("server", pair->server_channel, RDMA_CM_EVENT_TIMEWAIT_EXIT);
}

static void by_client(void)
{
	struct pair pair;

	topic("client first");
	if (pair_connect(&pair, RDMA_PS_TCP, AF_INET)) {
		CALL(rdma_disconnect(pair.client));
		show_qp("client", pair.client);
		take_event("server", pair.server_channel, RDMA_CM_EVENT_DISCONNECTED);
		show_qp("server", pair.server);
		CALL(rdma_disconnect(pair.server));
		show_qp("server", pair.server);
		take_event("client", pair.client_channel, RDMA_CM_EVENT_DISCONNECTED);
		CALL(rdma_disconnect(pair.client));
		CALL(rdma_disconnect(pair.server));
		after(&pair);
		CALL(rdma_disconnect(pair.client));
		CHECK(!channel_ready(pair.client_channel));
		CHECK(!channel_ready(pair.server_channel));
	}
	pair_close(&pair);
}

static void by_server(void)
{
	struct pair pair;

	topic("server first");
	if (pair_connect(&pair, RDMA_PS_TCP, AF_INET)) {
		CALL(rdma_disconnect(pair.server));
		take_event("client", pair.client_channel, RDMA_CM_EVENT_DISCONNECTED);
		CALL(rdma_disconnect(pair.client));
		take_event("server", pair.server_channel, RDMA_CM_EVENT_DISCONNECTED);
		after(&pair);
	}
	pair_close(&pair);
}

static void without_connection(void)
{
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct rdma_cm_id *id = NULL;
	struct pair pair;

	topic("never bound");
	CALL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	CALL(rdma_disconnect(id));
	rdma_destroy_id(id);

	topic("listening and resolved");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET)) {
		CALL(rdma_disconnect(pair.listener));
		CALL(rdma_disconnect(pair.client));
		if (pair_resolve(&pair, true)) {
			CALL(rdma_disconnect(pair.client));
			show_qp("client", pair.client);
		}
	}
	pair_close(&pair);

	topic("request not answered");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true) &&
	    pair_request(&pair, &param, true)) {
		CALL(rdma_disconnect(pair.server));
		show_qp("server", pair.server);
	}
	pair_close(&pair);

	topic("client waiting for an answer");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true) &&
	    pair_request(&pair, &param, true)) {
		CALL(rdma_disconnect(pair.client));
		show_qp("client", pair.client);
	}
	pair_close(&pair);
}

static void by_destroy(void)
{
	struct pair pair;

	topic("client destroyed");
	if (pair_connect(&pair, RDMA_PS_TCP, AF_INET)) {
		id_destroy(pair.client);
		pair.client = NULL;
		take_event("server", pair.server_channel, RDMA_CM_EVENT_DISCONNECTED);
		show_qp("server", pair.server);
		CALL(rdma_disconnect(pair.server));
	}
	pair_close(&pair);

	topic("qp destroyed before disconnect");
	if (pair_connect(&pair, RDMA_PS_TCP, AF_INET)) {
		rdma_destroy_qp(pair.client);
		CALL(rdma_disconnect(pair.client));
		take_event("server", pair.server_channel, RDMA_CM_EVENT_DISCONNECTED);
	}
	pair_close(&pair);
}

static void receives_flushed(void)
{
	struct ibv_mr *mr;
	struct ibv_wc wc;
	struct pair pair;
	char buffer[64];

	topic("receives are flushed");
	if (pair_connect(&pair, RDMA_PS_TCP, AF_INET)) {
		mr = rdma_reg_msgs(pair.client, buffer, sizeof(buffer));
		CALL(rdma_post_recv(pair.client, NULL, buffer, sizeof(buffer), mr));
		CALL(rdma_disconnect(pair.client));
		take_event("server", pair.server_channel, RDMA_CM_EVENT_DISCONNECTED);
		CALL(rdma_disconnect(pair.server));
		take_event("client", pair.client_channel, RDMA_CM_EVENT_DISCONNECTED);
		memset(&wc, 0, sizeof(wc));
		int got = rdma_get_recv_comp(pair.client, &wc);
		show_wc("client", got, &wc);
		rdma_dereg_mr(mr);
	}
	pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	by_client();
	by_server();
	without_connection();
	by_destroy();
	receives_flushed();
	return finish();
}
