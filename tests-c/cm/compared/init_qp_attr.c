/* rdma_init_qp_attr: attributes and masks for each state, on each side. */
#include "common.h"

static void ask(const char *who, struct rdma_cm_id *id, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr;
	int mask = 0, ret;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = state;
	errno = 0;
	ret = rdma_init_qp_attr(id, &attr, &mask);
	if (ret) {
		obs("%s state %d -> %d %s mask %x", who, state, ret, errno_name(errno), mask);
		return;
	}
	obs("%s state %d -> mask %x access %x pkey_index %u port %u", who, state, mask,
	    attr.qp_access_flags, attr.pkey_index, attr.port_num);
	if (state == IBV_QPS_INIT || on_siw())
		return;
	obs("%s state %d: mtu %d dest %s rd_atomic %u %u timeout %u retry %u rnr %u min_rnr %u "
	    "qkey %x", who, state, attr.path_mtu, attr.dest_qp_num ? "set" : "0",
	    attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.timeout, attr.retry_cnt,
	    attr.rnr_retry, attr.min_rnr_timer, attr.qkey);
	if (mask & IBV_QP_AV)
		obs("%s state %d: global %u dgid %s sgid_index %u hops %u class %u sl %u port %u",
		    who, state, attr.ah_attr.is_global, gid_str(&attr.ah_attr.grh.dgid),
		    attr.ah_attr.grh.sgid_index, attr.ah_attr.grh.hop_limit,
		    attr.ah_attr.grh.traffic_class, attr.ah_attr.sl, attr.ah_attr.port_num);
}

static void all_states(const char *who, struct rdma_cm_id *id)
{
	for (int state = IBV_QPS_RESET; state <= IBV_QPS_ERR + 1; state++)
		ask(who, id, (enum ibv_qp_state)state);
}

static void connected_service(enum rdma_port_space ps, const char *name)
{
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct pair pair;

	topic("%s", name);
	param.qp_num = invented_qpn();
	if (!pair_open(&pair, ps, AF_INET))
		goto out;
	topic("%s unbound", name);
	all_states("client", pair.client);
	topic("%s bound", name);
	all_states("listener", pair.listener);
	topic("%s resolved", name);
	if (!pair_resolve(&pair, false))
		goto out;
	all_states("client", pair.client);
	topic("%s request", name);
	/* iWARP connects QPs of its own only. */
	if (on_siw()) {
		CALL(rdma_connect(pair.client, &param));
		goto out;
	}
	if (!pair_request(&pair, &param, false))
		goto out;
	all_states("client", pair.client);
	all_states("server", pair.server);
	param.qp_num = invented_qpn();
	if (ps == RDMA_PS_TCP && !CALL(rdma_accept(pair.server, &param))) {
		topic("%s response", name);
		take_event("client", pair.client_channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
		all_states("client", pair.client);
		all_states("server", pair.server);
	}
out:
	pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	connected_service(RDMA_PS_TCP, "tcp");
	if (!on_siw())
		connected_service(RDMA_PS_UDP, "udp");
	return finish();
}
