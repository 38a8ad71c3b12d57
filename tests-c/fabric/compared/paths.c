/*
 * Path queries that fail, and paths that the program gives: one, several, with an alternate path
 * to which the QPs then migrate. Each port has two LIDs.
 */
#include "fabric.h"


static bool open_far(struct pair *pair)
{
	union address listener = host_addr(FAR, AF_INET, 0, 0);

	return pair_open_at(pair, RDMA_PS_TCP, FAR, &listener) &&
	       SETUP(!rdma_resolve_addr(pair->client, NULL, &pair->to.sa, 2000)) &&
	       quiet_event(pair->client_channel, RDMA_CM_EVENT_ADDR_RESOLVED);
}

static bool route(struct pair *pair, int timeout)
{
	struct rdma_cm_event *event;
	bool good;

	if (CALL(rdma_resolve_route(pair->client, timeout)) || !(event = get_event("client", pair->client_channel)))
		return false;
	good = event->event == RDMA_CM_EVENT_ROUTE_RESOLVED;
	CHECK(event->id == pair->client);
	rdma_ack_cm_event(event);
	show_route("client", pair->client);
	return good;
}

/* The subnet administrator does not answer; after that the same id can be resolved. */
static void silent(const char *name, int lost, int timeout)
{
	struct pair pair;

	topic("%s", name);
	if (open_far(&pair)) {
		SETUP(fabric_lose(CLASS_SA, lost));
		route(&pair, timeout);
		SETUP(fabric_keep());
		route(&pair, 4000);
	}
	pair_close(&pair);
}

static void silent_synchronously(void)
{
	union address to = host_addr(FAR, AF_INET, 0, 7471);
	struct rdma_cm_id *id;

	topic("lost, synchronous");
	SETUP(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	id_name(id, "id");
	CALL(rdma_resolve_addr(id, NULL, &to.sa, 2000));
	SETUP(fabric_lose(CLASS_SA, -1));
	CALL(rdma_resolve_route(id, 100));
	SETUP(fabric_keep());
	CALL(rdma_resolve_route(id, 4000));
	show_route("id", id);
	id_destroy(id);
}

/* The destination has left: the subnet administrator answers that there is no path. */
static void unplugged(void)
{
	struct pair pair;

	topic("far host unplugged");
	if (open_far(&pair)) {
		SETUP(cable(FAR, false) && await_port(FAR, "DOWN"));
		/* What the subnet manager has noticed by then is the first answer that differs. */
		for (int i = 0; i < 100; i++) {
			struct rdma_cm_event *event;
			bool gone;

			SETUP(!rdma_resolve_route(pair.client, 500));
			if (rdma_get_cm_event(pair.client_channel, &event))
				break;
			gone = event->event != RDMA_CM_EVENT_ROUTE_RESOLVED && event->status != -ETIMEDOUT;
			if (gone)
				show_event("client", event);
			rdma_ack_cm_event(event);
			if (gone)
				break;
			/* A route that is resolved can't be resolved again. */
			id_destroy(pair.client);
			pair.client = NULL;
			SETUP(!rdma_create_id(pair.client_channel, &pair.client, NULL, RDMA_PS_TCP));
			id_name(pair.client, "client");
			SETUP(!rdma_resolve_addr(pair.client, NULL, &pair.to.sa, 2000));
			quiet_event(pair.client_channel, RDMA_CM_EVENT_ADDR_RESOLVED);
		}
		SETUP(cable(FAR, true));
	}
	pair_close(&pair);
	SETUP(fabric_works());
}

/* ---- given paths ------------------------------------------------------------------------------------- */

/* The record of the path between the hosts' LIDs with this number. */
static struct ibv_path_data given(unsigned int flags, unsigned int number)
{
	union address to = host_gid(FAR, 0, 0, 0);

	return path_record(flags, &to.ib.sib_addr, host_lid(NEAR) + number, host_lid(FAR) + number);
}

static void show_qp_paths(const char *who, const struct rdma_cm_id *id)
{
	unsigned int near = host_lid(NEAR), far = host_lid(FAR);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	if (!SETUP(!ibv_query_qp(id->qp, &attr, IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE, &init)))
		return;
	obs("%s: dlid near+%d far+%d bits %u, alternate dlid near+%d far+%d bits %u port %u, migration %d", who,
	    (int)(attr.ah_attr.dlid - near), (int)(attr.ah_attr.dlid - far), attr.ah_attr.src_path_bits,
	    attr.alt_ah_attr.dlid ? (int)(attr.alt_ah_attr.dlid - near) : -99,
	    attr.alt_ah_attr.dlid ? (int)(attr.alt_ah_attr.dlid - far) : -99, attr.alt_ah_attr.src_path_bits,
	    attr.alt_port_num, attr.path_mig_state);
}

static void exchange(struct pair *pair)
{
	char buffer[64] = "over the given path";
	struct ibv_mr *to = rdma_reg_msgs(pair->server, buffer, sizeof(buffer));
	struct ibv_mr *from = rdma_reg_msgs(pair->client, buffer, sizeof(buffer));
	struct ibv_wc wc;

	if (SETUP(to && from) && SETUP(!rdma_post_recv(pair->server, NULL, buffer, sizeof(buffer), to)) &&
	    SETUP(!rdma_post_send(pair->client, NULL, buffer, sizeof(buffer), from, 0))) {
		while (!ibv_poll_cq(pair->client->send_cq, 1, &wc))
			pause_briefly();
		show_wc("client", 1, &wc);
	}
	rdma_dereg_mr(to);
	rdma_dereg_mr(from);
}

static void migrate(struct pair *pair)
{
	struct ibv_qp_attr attr = { .path_mig_state = IBV_MIG_MIGRATED };

	CALL(ibv_modify_qp(pair->client->qp, &attr, IBV_QP_PATH_MIG_STATE));
	show_qp_paths("client, migrated", pair->client);
	exchange(pair);
}

/* Connects over the given paths, `size` bytes of them. */
static void with_paths(const char *name, struct ibv_path_data *paths, size_t size, bool with_alternate)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct pair pair;

	topic("%s", name);
	if (open_far(&pair) && !CALL(rdma_set_option(pair.client, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, paths, size)) &&
	    take_event("client", pair.client_channel, RDMA_CM_EVENT_ROUTE_RESOLVED)) {
		show_route("client", pair.client);
		if (SETUP(!rdma_create_qp(pair.client, NULL, &attr)) && pair_request(&pair, &param, true)) {
			show_route("server", pair.server);
			if (!CALL(rdma_accept(pair.server, &param)) &&
			    take_event("client", pair.client_channel, RDMA_CM_EVENT_ESTABLISHED) &&
			    take_event("server", pair.server_channel, RDMA_CM_EVENT_ESTABLISHED)) {
				show_qp_paths("client", pair.client);
				show_qp_paths("server", pair.server);
				exchange(&pair);
				if (with_alternate)
					migrate(&pair);
			}
		}
	}
	pair_close(&pair);
}

/* Sets each of these on an id that is bound to the far address; shows what becomes of it. */
static void only_set(const char *name, struct ibv_path_data *paths, size_t size)
{
	struct rdma_cm_event *event;
	struct pair pair;

	topic("%s", name);
	if (open_far(&pair) && !CALL(rdma_set_option(pair.client, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, paths, size)) &&
	    (event = get_event("client", pair.client_channel))) {
		rdma_ack_cm_event(event);
		show_route("client", pair.client);
		CALL(rdma_resolve_route(pair.client, 1000));
		CALL(rdma_set_option(pair.client, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, paths, size));
	}
	pair_close(&pair);
}

static void given_paths(void)
{
	struct ibv_path_data one = given(PRIMARY, 0), other = given(PRIMARY, 1), many[8];
	struct ibv_path_data both[2] = { given(PRIMARY, 0), given(ALTERNATE, 1) };
	struct ibv_path_data one_way[4] = {
		given(IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_OUTBOUND, 0),
		given(IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_INBOUND, 0),
	};

	with_paths("first LIDs", &one, sizeof(one), false);
	with_paths("second LIDs", &other, sizeof(other), false);
	with_paths("with an alternate", both, sizeof(both), true);
	only_set("no flags", &(struct ibv_path_data){ .path = one.path }, sizeof(one));
	only_set("not for GMPs", &(struct ibv_path_data){ .flags = IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL,
							   .path = one.path }, sizeof(one));
	only_set("one way each", one_way, 2 * sizeof(one));
	only_set("outbound only", one_way, sizeof(one));
	only_set("alternate first", (struct ibv_path_data[]){ both[1], both[0] }, sizeof(both));
	for (int i = 0; i < 8; i++)
		many[i] = given(PRIMARY, (unsigned int)i % 2);
	only_set("six", many, 6 * sizeof(one));
	only_set("eight", many, 8 * sizeof(one));
	only_set("a part of one", &one, sizeof(one) - 1);
	one.path.pkey = htons(0x8055);
	only_set("foreign P_Key", &one, sizeof(one));
	one = given(PRIMARY, 0);
	one.path.sgid.raw[15] ^= 0x55;
	only_set("foreign GID", &one, sizeof(one));
}

int main(int argc, char **argv)
{
	start(argc, argv);
	silent("lost", -1, 100);
	silent("lost, no time", -1, 1);
	silent_synchronously();
	given_paths();
	unplugged();
	return finish();
}
