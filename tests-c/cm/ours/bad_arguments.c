/*
 * Arguments on which the reference crashes: NULL where the manual requires something, calls
 * that need a device before there is one, invalid lengths. Ours fails with EINVAL.
 */
#include "cases.h"

#include <signal.h>

static struct rdma_cm_id *fresh(enum rdma_port_space ps)
{
	struct rdma_cm_id *id = NULL;

	EXPECT(!rdma_create_id(NULL, &id, NULL, ps));
	return id;
}

static struct rdma_cm_id *bound(enum rdma_port_space ps)
{
	struct rdma_cm_id *id = fresh(ps);
	union address address = local_addr(AF_INET, 0);

	EXPECT(!rdma_bind_addr(id, &address.sa));
	return id;
}

static void null_id(void)
{
	union address address = local_addr(AF_INET, 0);
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct ibv_qp_init_attr_ex attr_ex = { .qp_type = IBV_QPT_RC };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_srq_init_attr_ex srq_ex = { .comp_mask = IBV_SRQ_INIT_ATTR_TYPE };
	struct rdma_cm_join_mc_attr_ex join = { 3, 0, &address.sa };
	struct ibv_qp_attr qp = { .qp_state = IBV_QPS_INIT };
	struct rdma_cm_id *got;
	int value = 0;

	EXPECT_ERROR(rdma_destroy_id(NULL), EINVAL);
	EXPECT_ERROR(rdma_bind_addr(NULL, &address.sa), EINVAL);
	EXPECT_ERROR(rdma_resolve_addr(NULL, NULL, &address.sa, 1), EINVAL);
	EXPECT_ERROR(rdma_resolve_route(NULL, 1), EINVAL);
	EXPECT_ERROR(rdma_create_qp(NULL, NULL, &attr), EINVAL);
	EXPECT_ERROR(rdma_create_qp_ex(NULL, &attr_ex), EINVAL);
	EXPECT_ERROR(rdma_create_srq(NULL, NULL, &srq), EINVAL);
	EXPECT_ERROR(rdma_create_srq_ex(NULL, &srq_ex), EINVAL);
	EXPECT_ERROR(rdma_connect(NULL, &param), EINVAL);
	EXPECT_ERROR(rdma_accept(NULL, &param), EINVAL);
	EXPECT_ERROR(rdma_establish(NULL), EINVAL);
	EXPECT_ERROR(rdma_listen(NULL, 1), EINVAL);
	EXPECT_ERROR(rdma_get_request(NULL, &got), EINVAL);
	EXPECT_ERROR(rdma_reject(NULL, NULL, 0), EINVAL);
	EXPECT_ERROR(rdma_reject_ece(NULL, NULL, 0), EINVAL);
	EXPECT_ERROR(rdma_notify(NULL, IBV_EVENT_COMM_EST), EINVAL);
	EXPECT_ERROR(rdma_disconnect(NULL), EINVAL);
	EXPECT_ERROR(rdma_join_multicast(NULL, &address.sa, NULL), EINVAL);
	EXPECT_ERROR(rdma_join_multicast_ex(NULL, &join, NULL), EINVAL);
	EXPECT_ERROR(rdma_leave_multicast(NULL, &address.sa), EINVAL);
	EXPECT_ERROR(rdma_set_option(NULL, 0, 0, &value, 1), EINVAL);
	EXPECT_ERROR(rdma_migrate_id(NULL, NULL), EINVAL);
	EXPECT_ERROR(rdma_init_qp_attr(NULL, &qp, &value), EINVAL);
}

static void null_id_without_result(void)
{
	rdma_destroy_qp(NULL);
	rdma_destroy_srq(NULL);
	rdma_destroy_ep(NULL);
	rdma_destroy_event_channel(NULL);
	rdma_freeaddrinfo(NULL);
	EXPECT(rdma_get_src_port(NULL) == 0);
	EXPECT(rdma_get_dst_port(NULL) == 0);
}

static void nothing_to_destroy(void)
{
	struct rdma_cm_id *id = fresh(RDMA_PS_TCP);

	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	EXPECT(!rdma_destroy_id(id));
	id = bound(RDMA_PS_TCP);
	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	rdma_destroy_ep(id);
}

static void null_pointers(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id = bound(RDMA_PS_UDP), *got;
	struct ibv_qp_attr qp = { .qp_state = IBV_QPS_INIT };
	int mask;

	EXPECT_ERROR(rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP), EINVAL);
	EXPECT_ERROR(rdma_create_id(NULL, NULL, NULL, RDMA_PS_TCP), EINVAL);
	EXPECT_ERROR(rdma_get_cm_event(NULL, &event), EINVAL);
	EXPECT_ERROR(rdma_get_cm_event(channel, NULL), EINVAL);
	EXPECT_ERROR(rdma_ack_cm_event(NULL), EINVAL);
	EXPECT_ERROR(rdma_bind_addr(id, NULL), EINVAL);
	EXPECT_ERROR(rdma_resolve_addr(id, NULL, NULL, 1), EINVAL);
	EXPECT_ERROR(rdma_create_qp(id, NULL, NULL), EINVAL);
	EXPECT_ERROR(rdma_create_qp_ex(id, NULL), EINVAL);
	EXPECT_ERROR(rdma_create_srq(id, NULL, NULL), EINVAL);
	EXPECT_ERROR(rdma_create_srq_ex(id, NULL), EINVAL);
	EXPECT_ERROR(rdma_get_request(id, NULL), EINVAL);
	EXPECT_ERROR(rdma_join_multicast(id, NULL, NULL), EINVAL);
	EXPECT_ERROR(rdma_join_multicast_ex(id, NULL, NULL), EINVAL);
	EXPECT_ERROR(rdma_leave_multicast(id, NULL), EINVAL);
	EXPECT_ERROR(rdma_init_qp_attr(id, NULL, &mask), EINVAL);
	EXPECT_ERROR(rdma_init_qp_attr(id, &qp, NULL), EINVAL);
	EXPECT_ERROR(rdma_create_ep(NULL, NULL, NULL, NULL), EINVAL);
	EXPECT_ERROR(rdma_create_ep(&got, NULL, NULL, NULL), EINVAL);
	EXPECT_ERROR(rdma_getaddrinfo("localhost", NULL, NULL, NULL), EINVAL);
	EXPECT(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void no_device_yet(void)
{
	struct rdma_cm_id *id = fresh(RDMA_PS_TCP);
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct ibv_qp_init_attr_ex attr_ex = { .qp_type = IBV_QPT_RC };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 1, .max_sge = 1 } };

	EXPECT_ERROR(rdma_resolve_route(id, 1), EINVAL);
	EXPECT_ERROR(rdma_create_qp(id, NULL, &attr), EINVAL);
	EXPECT_ERROR(rdma_create_qp_ex(id, &attr_ex), EINVAL);
	EXPECT_ERROR(rdma_create_srq(id, NULL, &srq), EINVAL);
	EXPECT_ERROR(rdma_connect(id, &param), EINVAL);
	EXPECT_ERROR(rdma_connect(id, NULL), EINVAL);
	EXPECT_ERROR(rdma_accept(id, &param), EINVAL);
	EXPECT_ERROR(rdma_accept(id, NULL), EINVAL);
	EXPECT_ERROR(rdma_disconnect(id), EINVAL);
	EXPECT(!rdma_destroy_id(id));
}

static void accept_without_parameters_and_qp(void)
{
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct pair pair;

	EXPECT(pair_open(&pair, RDMA_PS_TCP, AF_INET));
	EXPECT_ERROR(rdma_accept(pair.listener, NULL), EINVAL);
	EXPECT(pair_resolve(&pair, true));
	EXPECT(pair_request(&pair, &param, false));
	EXPECT_ERROR(rdma_accept(pair.server, NULL), EINVAL);
	pair_close(&pair);
}

static void wild_option_length(void)
{
	struct rdma_cm_id *id = bound(RDMA_PS_TCP);
	char byte = 0;

	EXPECT_ERROR(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte,
				     (size_t)1 << 40), EINVAL);
	EXPECT_ERROR(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &byte,
				     ((size_t)1 << 32) + sizeof(struct ibv_path_data)), EINVAL);
	EXPECT(!rdma_destroy_id(id));
}

/* No CQ is created for a queue of size 0; the reference passes NULL to verbs. */
static void queue_pair_without_requests(void)
{
	struct rdma_cm_id *id = bound(RDMA_PS_TCP);
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);

	attr.cap.max_send_wr = attr.cap.max_recv_wr = 0;
	if (rdma_create_qp(id, NULL, &attr))
		EXPECT(!id->qp && !id->send_cq && !id->recv_cq);
	else
		rdma_destroy_qp(id);
	EXPECT(!rdma_destroy_id(id));
}

static void null_arguments_14(void)
{
	int (*resolve)(struct rdma_cm_id *, const char *, const char *,
		       const struct rdma_addrinfo *) = optional_symbol("rdma_resolve_addrinfo");
	int (*query)(struct rdma_cm_id *, struct rdma_addrinfo **) =
		optional_symbol("rdma_query_addrinfo");
	int (*write_event)(struct rdma_cm_id *, int, int, uint64_t) =
		optional_symbol("rdma_write_cm_event");
	struct rdma_addrinfo *res;

	EXPECT(resolve && query && write_event);
	EXPECT_ERROR(resolve(NULL, "localhost", NULL, NULL), EINVAL);
	EXPECT_ERROR(query(NULL, &res), EINVAL);
	EXPECT_ERROR(query(bound(RDMA_PS_TCP), NULL), EINVAL);
	EXPECT_ERROR(write_event(NULL, 18, 0, 0), EINVAL);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(null_id);
	CASE(null_id_without_result);
	CASE(nothing_to_destroy);
	CASE(null_pointers);
	CASE(no_device_yet);
	CASE(accept_without_parameters_and_qp);
	CASE(wild_option_length);
	CASE(queue_pair_without_requests);
	CASE(null_arguments_14);
	return finish();
}
