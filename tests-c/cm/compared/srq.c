/* rdma_create_srq, rdma_create_srq_ex, XRC. */
#include "common.h"

static struct rdma_cm_id *bound(const char *name)
{
	union address address = local_addr(AF_INET, 0);
	struct rdma_cm_id *id = NULL;

	topic("%s", name);
	if (!SETUP(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP)) ||
	    !SETUP(!rdma_bind_addr(id, &address.sa)))
		return NULL;
	id_name(id, "id");
	return id;
}

static void show_srq(const struct rdma_cm_id *id)
{
	obs("srq %s pd %s send_cq %s recv_cq %s/%s", id->srq ? "set" : "NULL",
	    id->pd ? "set" : "NULL", id->send_cq ? "set" : "NULL",
	    id->recv_cq ? "set" : "NULL", id->recv_cq_channel ? "set" : "NULL");
}

static void basic(void)
{
	struct rdma_cm_id *id = bound("basic");
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 10, .max_sge = 2 } };
	struct ibv_srq *first;
	struct ibv_pd *pd;

	if (!id)
		return;
	attr.srq_context = &attr;
	CALL(rdma_create_srq(id, NULL, &attr));
	show_srq(id);
	obs("attr %u %u", attr.attr.max_wr, attr.attr.max_sge);
	CHECK(id->srq && id->srq->srq_context == &attr);
	CHECK(id->srq && id->srq->pd == id->pd);
	/* A second one is created without an error; the program must destroy the first. */
	first = id->srq;
	if (!CALL(rdma_create_srq(id, NULL, &attr)))
		CALL(ibv_destroy_srq(first));
	rdma_destroy_srq(id);
	show_srq(id);
	pd = ibv_alloc_pd(id->verbs);
	CALL(rdma_create_srq(id, pd, &attr));
	CHECK(id->srq && id->srq->pd == pd);
	CHECK(id->pd == pd);
	rdma_destroy_srq(id);
	id_destroy(id);
	ibv_dealloc_pd(pd);
}

static void errors(void)
{
	struct rdma_cm_id *id = bound("errors");
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 1u << 30, .max_sge = 1 } };
	struct ibv_srq_init_attr_ex ex;
	struct ibv_context **list;
	int count = 0;

	if (!id)
		return;
	CALL(rdma_create_srq(id, NULL, &attr));
	attr.attr.max_wr = 4;
	attr.attr.max_sge = 1000;
	CALL(rdma_create_srq(id, NULL, &attr));
	attr.attr.max_wr = 0;
	attr.attr.max_sge = 1;
	if (!CALL(rdma_create_srq(id, NULL, &attr)))
		rdma_destroy_srq(id);
	show_srq(id);
	memset(&ex, 0, sizeof(ex));
	ex.attr.max_wr = 4;
	ex.attr.max_sge = 1;
	CALL(rdma_create_srq_ex(id, &ex));
	ex.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	ex.srq_type = (enum ibv_srq_type)99;
	if (!CALL(rdma_create_srq_ex(id, &ex)))
		rdma_destroy_srq(id);
	ex.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | 1u << 30;
	ex.srq_type = IBV_SRQT_BASIC;
	if (!CALL(rdma_create_srq_ex(id, &ex)))
		rdma_destroy_srq(id);
	show_srq(id);
	attr.attr.max_wr = 4;
	list = rdma_get_devices(&count);
	for (int i = 0; i < count; i++) {
		struct ibv_pd *pd;

		if (list[i] == id->verbs)
			continue;
		pd = ibv_alloc_pd(list[i]);
		if (!CALL(rdma_create_srq(id, pd, &attr)))
			rdma_destroy_srq(id);
		ibv_dealloc_pd(pd);
	}
	rdma_free_devices(list);
	id_destroy(id);
}

static void extended(enum ibv_srq_type type, const char *name)
{
	struct rdma_cm_id *id = bound(name);
	struct ibv_srq_init_attr_ex ex;

	if (!id)
		return;
	memset(&ex, 0, sizeof(ex));
	ex.attr.max_wr = 4;
	ex.attr.max_sge = 1;
	ex.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	ex.srq_type = type;
	CALL(rdma_create_srq_ex(id, &ex));
	show_srq(id);
	obs("mask %x pd %d cq %d xrcd %d", ex.comp_mask, ex.pd != NULL, ex.cq != NULL,
	    ex.xrcd != NULL);
	if (id->srq)
		rdma_destroy_srq(id);
	show_srq(id);
	id_destroy(id);
}

/* The QP takes the id's SRQ, receives are posted to it. */
static void used_by_qp(void)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_conn_param param = conn_param(NULL, 0);
	static char sent[32] = "through the srq", got[32];
	struct ibv_mr *send_mr, *recv_mr;
	struct ibv_wc wc;
	struct pair pair;

	topic("used by a queue pair");
	if (!pair_open(&pair, RDMA_PS_TCP, AF_INET) || !pair_resolve(&pair, true) ||
	    !pair_request(&pair, &param, false))
		goto out;
	CALL(rdma_create_srq(pair.server, NULL, &srq));
	CALL(rdma_create_qp(pair.server, NULL, &attr));
	show_id(pair.server);
	CHECK(pair.server->qp && pair.server->qp->srq == pair.server->srq);
	CHECK(attr.srq == pair.server->srq);
	CALL(rdma_accept(pair.server, &param));
	take_event("client", pair.client_channel, RDMA_CM_EVENT_ESTABLISHED);
	take_event("server", pair.server_channel, RDMA_CM_EVENT_ESTABLISHED);
	recv_mr = rdma_reg_msgs(pair.server, got, sizeof(got));
	send_mr = rdma_reg_msgs(pair.client, sent, sizeof(sent));
	CALL(rdma_post_recv(pair.server, NULL, got, sizeof(got), recv_mr));
	CALL(rdma_post_send(pair.client, NULL, sent, sizeof(sent), send_mr, 0));
	memset(&wc, 0, sizeof(wc));
	int ret = rdma_get_recv_comp(pair.server, &wc);
	show_wc("server", ret, &wc);
	CHECK(memcmp(sent, got, sizeof(sent)) == 0);
	rdma_dereg_mr(send_mr);
	rdma_dereg_mr(recv_mr);
	rdma_destroy_qp(pair.server);
	rdma_destroy_srq(pair.server);
	show_id(pair.server);
out:
	pair_close(&pair);
}

/* XRC if the device supports it, otherwise the error. */
static void xrc_qp(void)
{
	struct rdma_cm_id *id = bound("xrc queue pair");
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);

	if (!id)
		return;
	attr.qp_type = IBV_QPT_XRC_RECV;
	if (!CALL(rdma_create_qp(id, NULL, &attr))) {
		show_id(id);
		rdma_destroy_qp(id);
	}
	attr = qp_attr(RDMA_PS_TCP);
	attr.qp_type = IBV_QPT_XRC_SEND;
	if (!CALL(rdma_create_qp(id, NULL, &attr))) {
		show_id(id);
		rdma_destroy_qp(id);
	}
	show_id(id);
	id_destroy(id);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	basic();
	errors();
	extended(IBV_SRQT_BASIC, "extended basic");
	extended(IBV_SRQT_XRC, "extended xrc");
	used_by_qp();
	xrc_qp();
	return finish();
}
