/* Connections whose QPs the program modifies itself: CONNECT_RESPONSE, rdma_establish. */
#include "common.h"

static struct ibv_qp *make_qp(struct rdma_cm_id *id, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);

	attr.send_cq = attr.recv_cq = cq;
	return ibv_create_qp(id->pd, &attr);
}

static int modify(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr;
	int mask = 0;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = state;
	if (rdma_init_qp_attr(id, &attr, &mask))
		return errno;
	return ibv_modify_qp(qp, &attr, mask);
}

static void transfer(struct ibv_qp *from, struct ibv_qp *to, struct ibv_cq *recv_cq)
{
	static char sent[16] = "by hand", got[16];
	struct ibv_mr *send_mr = ibv_reg_mr(from->pd, sent, sizeof(sent), 0);
	struct ibv_mr *recv_mr = ibv_reg_mr(to->pd, got, sizeof(got), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge send_sge = { (uintptr_t)sent, sizeof(sent), send_mr->lkey };
	struct ibv_sge recv_sge = { (uintptr_t)got, sizeof(got), recv_mr->lkey };
	struct ibv_send_wr send_wr = { .sg_list = &send_sge, .num_sge = 1,
				       .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr recv_wr = { .sg_list = &recv_sge, .num_sge = 1 }, *bad_recv;
	struct ibv_wc wc;
	int polled;

	CALL(ibv_post_recv(to, &recv_wr, &bad_recv));
	CALL(ibv_post_send(from, &send_wr, &bad_send));
	while (!(polled = ibv_poll_cq(recv_cq, 1, &wc)))
		pause_briefly();
	show_wc("receiver", polled, &wc);
	CHECK(memcmp(sent, got, sizeof(sent)) == 0);
	ibv_dereg_mr(send_mr);
	ibv_dereg_mr(recv_mr);
}

static void whole(void)
{
	struct rdma_conn_param param = conn_param("ask", 3);
	struct ibv_qp *client_qp = NULL, *server_qp = NULL;
	struct ibv_cq *client_cq = NULL, *server_cq = NULL;
	struct pair pair;

	topic("by hand");
	if (!pair_open(&pair, RDMA_PS_TCP, AF_INET) || !pair_resolve(&pair, false))
		goto out;
	client_cq = ibv_create_cq(pair.client->verbs, 8, NULL, NULL, 0);
	client_qp = make_qp(pair.client, client_cq);
	CALL(modify(pair.client, client_qp, IBV_QPS_INIT));
	param.qp_num = client_qp->qp_num;
	if (!pair_request(&pair, &param, false))
		goto out;
	server_cq = ibv_create_cq(pair.server->verbs, 8, NULL, NULL, 0);
	server_qp = make_qp(pair.server, server_cq);
	CALL(modify(pair.server, server_qp, IBV_QPS_INIT));
	CALL(modify(pair.server, server_qp, IBV_QPS_RTR));
	CALL(modify(pair.server, server_qp, IBV_QPS_RTS));
	param = conn_param("told", 4);
	param.qp_num = server_qp->qp_num;
	CALL(rdma_accept(pair.server, &param));
	if (!take_event("client", pair.client_channel, RDMA_CM_EVENT_CONNECT_RESPONSE))
		goto out;
	CALL(modify(pair.client, client_qp, IBV_QPS_RTR));
	CALL(modify(pair.client, client_qp, IBV_QPS_RTS));
	CALL(rdma_establish(pair.client));
	take_event("server", pair.server_channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!channel_ready(pair.client_channel));
	transfer(client_qp, server_qp, server_cq);
	CALL(rdma_establish(pair.client));
	CALL(rdma_disconnect(pair.client));
	take_event("server", pair.server_channel, RDMA_CM_EVENT_DISCONNECTED);
	CALL(rdma_disconnect(pair.server));
	take_event("client", pair.client_channel, RDMA_CM_EVENT_DISCONNECTED);
out:
	if (client_qp)
		ibv_destroy_qp(client_qp);
	if (server_qp)
		ibv_destroy_qp(server_qp);
	if (client_cq)
		ibv_destroy_cq(client_cq);
	if (server_cq)
		ibv_destroy_cq(server_cq);
	pair_close(&pair);
}

static void wrong(void)
{
	struct pair pair;

	topic("wrong states");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET)) {
		CALL(rdma_establish(pair.client));
		CALL(rdma_establish(pair.listener));
		if (pair_resolve(&pair, false))
			CALL(rdma_establish(pair.client));
	}
	pair_close(&pair);
	topic("with a queue pair");
	if (pair_connect(&pair, RDMA_PS_TCP, AF_INET)) {
		CALL(rdma_establish(pair.client));
		CALL(rdma_establish(pair.server));
	}
	pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	if (!on_siw())
		whole();
	wrong();
	return finish();
}
