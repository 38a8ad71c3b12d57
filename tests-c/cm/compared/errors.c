/* Every call in every state in which it must fail: the errno, and that nothing changed. */
#include "common.h"

static struct rdma_conn_param param;
static struct ibv_qp_init_attr attr;

/* Each row: one call that is tried on an id; the state of the id is the column. */
static int c_bind(struct rdma_cm_id *id)
{
	union address address = local_addr(AF_INET, 0);
	return rdma_bind_addr(id, &address.sa);
}
static int c_resolve(struct rdma_cm_id *id)
{
	union address address = local_addr(AF_INET, 7999);
	return rdma_resolve_addr(id, NULL, &address.sa, 1000);
}
static int c_route(struct rdma_cm_id *id) { return rdma_resolve_route(id, 1000); }
static int c_listen(struct rdma_cm_id *id) { return rdma_listen(id, 1); }
static int c_connect(struct rdma_cm_id *id) { return rdma_connect(id, &param); }
static int c_connect_null(struct rdma_cm_id *id) { return rdma_connect(id, NULL); }
static int c_accept(struct rdma_cm_id *id) { return rdma_accept(id, &param); }
static int c_reject(struct rdma_cm_id *id) { return rdma_reject(id, "x", 1); }
static int c_reject_ece(struct rdma_cm_id *id) { return rdma_reject_ece(id, "x", 1); }
static int c_disconnect(struct rdma_cm_id *id) { return rdma_disconnect(id); }
static int c_establish(struct rdma_cm_id *id) { return rdma_establish(id); }
static int c_notify(struct rdma_cm_id *id) { return rdma_notify(id, IBV_EVENT_COMM_EST); }
static int c_get_request(struct rdma_cm_id *id)
{
	struct rdma_cm_id *got;
	return rdma_get_request(id, &got);
}
static int c_create_qp(struct rdma_cm_id *id)
{
	attr = qp_attr(id->ps);
	return rdma_create_qp(id, NULL, &attr);
}
static int c_create_srq(struct rdma_cm_id *id)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 1, .max_sge = 1 } };
	return rdma_create_srq(id, NULL, &srq);
}
static int c_join(struct rdma_cm_id *id)
{
	union address address = make_addr(AF_INET, "239.9.9.9", 0);
	return rdma_join_multicast(id, &address.sa, NULL);
}
static int c_leave(struct rdma_cm_id *id)
{
	union address address = make_addr(AF_INET, "239.9.9.9", 0);
	return rdma_leave_multicast(id, &address.sa);
}
static int c_init_attr(struct rdma_cm_id *id)
{
	struct ibv_qp_attr qp = { .qp_state = IBV_QPS_RTR };
	int mask = 0;
	return rdma_init_qp_attr(id, &qp, &mask);
}
static int c_migrate_same(struct rdma_cm_id *id) { return rdma_migrate_id(id, id->channel); }
static int c_get_ece(struct rdma_cm_id *id)
{
	struct ibv_ece ece;
	return rdma_get_remote_ece(id, &ece);
}

struct row {
	const char *name;
	int (*call)(struct rdma_cm_id *);
	/* The reference crashes when the id has no device yet. */
	bool needs_device;
};
static const struct row rows[] = {
	{ "connect NULL", c_connect_null, true }, { "accept", c_accept, true },
	{ "reject", c_reject, false }, { "reject_ece", c_reject_ece, false },
	{ "establish", c_establish, false }, { "notify", c_notify, false },
	{ "get_request", c_get_request, false }, { "init_qp_attr", c_init_attr, false },
	{ "get_remote_ece", c_get_ece, false }, { "leave", c_leave, false },
	{ "migrate same", c_migrate_same, false }, { "disconnect", c_disconnect, true },
	{ "connect", c_connect, true }, { "join", c_join, false },
	{ "route", c_route, true }, { "create_srq", c_create_srq, true },
	{ "create_qp", c_create_qp, true }, { "listen", c_listen, false },
	{ "bind", c_bind, false }, { "resolve", c_resolve, false },
};

enum state { FRESH, BOUND, LISTENING, RESOLVED, ROUTED, REQUESTED, INCOMING, CONNECTED, STATES };
static const char *const state_names[] = { "fresh", "bound", "listening", "resolved", "routed",
					   "requested", "incoming", "connected" };

/* Moves a pair to the state. Returns the id that is in it. */
static struct rdma_cm_id *reach(struct pair *pair, enum rdma_port_space ps, enum state state)
{
	param = conn_param(NULL, 0);
	param.qp_num = invented_qpn();
	if (state == CONNECTED)
		return pair_connect(pair, ps, AF_INET) ? pair->client : NULL;
	if (!pair_open(pair, ps, AF_INET))
		return NULL;
	if (state == FRESH)
		return pair->client;
	if (state == BOUND)
		return SETUP(!c_bind(pair->client)) ? pair->client : NULL;
	if (state == LISTENING)
		return pair->listener;
	if (state == RESOLVED)
		return SETUP(!c_resolve(pair->client)) &&
		       quiet_event(pair->client_channel, RDMA_CM_EVENT_ADDR_RESOLVED) ?
		       pair->client : NULL;
	if (!pair_resolve(pair, state != ROUTED))
		return NULL;
	if (state == ROUTED)
		return pair->client;
	if (!pair_request(pair, &param, false))
		return NULL;
	return state == REQUESTED ? pair->client : pair->server;
}

static void try_row(enum rdma_port_space ps, enum state state, const struct row *row)
{
	struct rdma_cm_id *id;
	struct pair pair;
	int ret;

	/* The kernel lets a client reject its own pending request; destroying the id then never returns. */
	if (state == REQUESTED && (row->call == c_reject || row->call == c_reject_ece))
		return;
	memset(&pair, 0, sizeof(pair));
	id = reach(&pair, ps, state);
	if (id && !(row->needs_device && !id->verbs)) {
		errno = 0;
		ret = row->call(id);
		obs("%s: %d %s", row->name, ret, errno_name(ret ? errno : 0));
	}
	if (id && id->srq)
		rdma_destroy_srq(id);
	pair_close(&pair);
}

static void table(enum rdma_port_space ps, const char *name)
{
	for (int state = 0; state < STATES; state++) {
		/* With a pending siw request destroying an id takes seconds. */
		if (on_siw() && (state == REQUESTED || state == INCOMING))
			continue;
		topic("%s %s", name, state_names[state]);
		for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
			try_row(ps, (enum state)state, &rows[i]);
	}
}

int main(int argc, char **argv)
{
	start(argc, argv);
	table(RDMA_PS_TCP, "tcp");
	if (!on_siw())
		table(RDMA_PS_UDP, "udp");
	return finish();
}
