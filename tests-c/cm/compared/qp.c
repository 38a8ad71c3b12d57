/* rdma_create_qp, rdma_create_qp_ex, rdma_destroy_qp: fields, queues, errors. */
#include "common.h"

static struct pair pair;

static bool resolved(const char *name, enum rdma_port_space ps)
{
	topic("%s", name);
	return pair_open(&pair, ps, AF_INET) && pair_resolve(&pair, false);
}

static void caps(const struct ibv_qp_init_attr *attr)
{
	obs("caps send %u recv %u sge %u %u inline %u", attr->cap.max_send_wr,
	    attr->cap.max_recv_wr, attr->cap.max_send_sge, attr->cap.max_recv_sge,
	    attr->cap.max_inline_data);
	obs("attr send_cq %s recv_cq %s srq %s", attr->send_cq ? "set" : "NULL",
	    attr->recv_cq ? "set" : "NULL", attr->srq ? "set" : "NULL");
}

static void automatic(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_cm_id *id;

	if (resolved("automatic queues", RDMA_PS_TCP)) {
		id = pair.client;
		attr.cap.max_send_wr = 5;
		attr.cap.max_recv_wr = 9;
		attr.cap.max_inline_data = 20;
		attr.qp_context = &pair;
		CALL(rdma_create_qp(id, NULL, &attr));
		show_id(id);
		show_qp("client", id);
		caps(&attr);
		CHECK(id->qp->qp_context == &pair);
		CHECK(id->qp->send_cq == id->send_cq && id->qp->recv_cq == id->recv_cq);
		CHECK(id->send_cq != id->recv_cq);
		CHECK(id->send_cq->cq_context == id && id->recv_cq->cq_context == id);
		CHECK(id->send_cq->channel == id->send_cq_channel);
		CHECK(id->recv_cq->channel == id->recv_cq_channel);
		obs("cqe %d %d", id->send_cq->cqe, id->recv_cq->cqe);
		CHECK(id->qp->pd == id->pd);
		CALL(rdma_create_qp(id, NULL, &attr));
		rdma_destroy_qp(id);
		show_id(id);
		attr = qp_attr(RDMA_PS_TCP);
		CALL(rdma_create_qp(id, NULL, &attr));
		rdma_destroy_qp(id);
	}
	pair_close(&pair);
}

static void external(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct ibv_cq *cq, *other;
	struct ibv_pd *pd;

	if (resolved("external queues", RDMA_PS_TCP)) {
		struct rdma_cm_id *id = pair.client;

		cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
		other = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
		pd = ibv_alloc_pd(id->verbs);
		attr.send_cq = attr.recv_cq = cq;
		CALL(rdma_create_qp(id, pd, &attr));
		show_id(id);
		CHECK(id->qp->pd == pd);
		CHECK(id->pd == pd);
		rdma_destroy_qp(id);
		attr.recv_cq = NULL;
		CALL(rdma_create_qp(id, pd, &attr));
		show_id(id);
		rdma_destroy_qp(id);
		show_id(id);
		id->send_cq = cq;
		attr.send_cq = other;
		CALL(rdma_create_qp(id, pd, &attr));
		attr.send_cq = cq;
		attr.recv_cq = NULL;
		if (!CALL(rdma_create_qp(id, pd, &attr))) {
			show_id(id);
			rdma_destroy_qp(id);
			show_id(id);
		}
		/* rdma_destroy_qp has destroyed `cq`, because it was stored in the id. */
		CHECK(id->send_cq == NULL);
		ibv_dealloc_pd(pd);
		ibv_destroy_cq(other);
	}
	pair_close(&pair);
}

static void refused(const char *what, struct ibv_qp_init_attr attr)
{
	struct rdma_cm_id *id = pair.client;

	obs("%s", what);
	if (!CALL(rdma_create_qp(id, NULL, &attr))) {
		caps(&attr);
		rdma_destroy_qp(id);
	}
	CHECK(!id->qp && !id->send_cq && !id->recv_cq && !id->send_cq_channel);
}

static void errors(void)
{
	struct ibv_qp_init_attr attr;

	if (resolved("errors", RDMA_PS_TCP)) {
		attr = qp_attr(RDMA_PS_TCP);
		attr.cap.max_send_wr = 1u << 30;
		refused("send_wr", attr);
		attr = qp_attr(RDMA_PS_TCP);
		attr.cap.max_recv_wr = 1u << 30;
		refused("recv_wr", attr);
		attr = qp_attr(RDMA_PS_TCP);
		attr.cap.max_send_sge = 1000;
		refused("send_sge", attr);
		attr = qp_attr(RDMA_PS_TCP);
		attr.cap.max_recv_sge = 1000;
		refused("recv_sge", attr);
		attr = qp_attr(RDMA_PS_TCP);
		attr.cap.max_inline_data = 1u << 20;
		refused("inline", attr);
		attr = qp_attr(RDMA_PS_TCP);
		attr.qp_type = (enum ibv_qp_type)77;
		refused("type 77", attr);
		attr.qp_type = (enum ibv_qp_type)0;
		refused("type 0", attr);
		/* Without work requests the reference crashes: see ours/bad_arguments. */
		attr = qp_attr(RDMA_PS_TCP);
		attr.qp_type = IBV_QPT_UD;
		refused("UD on PS_TCP", attr);
		attr.qp_type = IBV_QPT_UC;
		refused("UC on PS_TCP", attr);
	}
	pair_close(&pair);
}

static void extended(void)
{
	struct ibv_qp_init_attr_ex attr;

	if (resolved("extended", RDMA_PS_TCP)) {
		struct rdma_cm_id *id = pair.client;

		memset(&attr, 0, sizeof(attr));
		attr.cap = qp_attr(RDMA_PS_TCP).cap;
		attr.qp_type = IBV_QPT_RC;
		CALL(rdma_create_qp_ex(id, &attr));
		show_id(id);
		rdma_destroy_qp(id);
		attr.send_cq = attr.recv_cq = NULL;
		attr.comp_mask = IBV_QP_INIT_ATTR_PD;
		attr.pd = id->pd;
		CALL(rdma_create_qp_ex(id, &attr));
		CHECK(id->qp && id->qp->pd == id->pd);
		rdma_destroy_qp(id);
		obs("comp_mask %x pd kept %d", attr.comp_mask, attr.pd == id->pd);
		attr.send_cq = attr.recv_cq = NULL;
		attr.comp_mask = 1u << 30;
		CALL(rdma_create_qp_ex(id, &attr));
		if (id->qp)
			rdma_destroy_qp(id);
	}
	pair_close(&pair);
}

static void ud(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_UDP);

	if (resolved("ud", RDMA_PS_UDP)) {
		CALL(rdma_create_qp(pair.client, NULL, &attr));
		show_id(pair.client);
		show_qp("client", pair.client);
		caps(&attr);
	}
	pair_close(&pair);
}

/* On a bound id, without resolving: allowed. */
static void bound_only(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	union address address = local_addr(AF_INET, 0);
	struct rdma_cm_id *id = NULL;

	topic("bound only");
	rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP);
	id_name(id, "id");
	CALL(rdma_bind_addr(id, &address.sa));
	CALL(rdma_create_qp(id, NULL, &attr));
	show_id(id);
	show_qp("id", id);
	id_destroy(id);

	topic("bound only ud");
	attr = qp_attr(RDMA_PS_UDP);
	rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP);
	id_name(id, "id");
	CALL(rdma_bind_addr(id, &address.sa));
	CALL(rdma_create_qp(id, NULL, &attr));
	show_qp("id", id);
	if (id->qp)
		rdma_destroy_qp(id);
	id_destroy(id);
}

static void other_device_pd(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct ibv_context **list;
	int count = 0;

	if (resolved("protection domain of another device", RDMA_PS_TCP)) {
		list = rdma_get_devices(&count);
		for (int i = 0; i < count; i++) {
			struct ibv_pd *pd;

			if (list[i] == pair.client->verbs)
				continue;
			pd = ibv_alloc_pd(list[i]);
			CALL(rdma_create_qp(pair.client, pd, &attr));
			ibv_dealloc_pd(pd);
		}
		rdma_free_devices(list);
	}
	pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	automatic();
	external();
	errors();
	extended();
	if (!on_siw())
		ud();
	bound_only();
	other_device_pd();
	return finish();
}
