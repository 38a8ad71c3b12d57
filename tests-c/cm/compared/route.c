/* rdma_resolve_route: path records, wrong order, repeated calls. */
#include "common.h"

static void show_paths(const struct rdma_cm_id *id)
{
	obs("paths %d", id->route.num_paths);
	for (int i = 0; i < id->route.num_paths; i++) {
		const struct ibv_sa_path_rec *rec = &id->route.path_rec[i];

		/*
		 * Not shown: the LIDs, which the kernel leaves unset for RoCE, and
		 * the flow label, a hash over the ports.
		 */
		obs("sgid %s dgid %s raw %d", gid_str(&rec->sgid), gid_str(&rec->dgid),
		    rec->raw_traffic);
		obs("hops %u class %u reversible %d numb %u pkey %04x sl %u", rec->hop_limit,
		    rec->traffic_class, rec->reversible, rec->numb_path, ntohs(rec->pkey),
		    rec->sl);
		obs("mtu %u/%u rate %u/%u life %u/%u preference %u", rec->mtu_selector,
		    rec->mtu, rec->rate_selector, rec->rate, rec->packet_life_time_selector,
		    rec->packet_life_time, rec->preference);
	}
	obs("sgid %s dgid %s pkey %04x", gid_str(&id->route.addr.addr.ibaddr.sgid),
	    gid_str(&id->route.addr.addr.ibaddr.dgid),
	    ntohs(id->route.addr.addr.ibaddr.pkey));
}

static void plain(const char *name, enum rdma_port_space ps, int family)
{
	struct pair pair;

	topic("%s", name);
	memset(&pair, 0, sizeof(pair));
	if (pair_open(&pair, ps, family)) {
		CALL(rdma_resolve_addr(pair.client, NULL, &pair.to.sa, 2000));
		take_event("client", pair.client_channel, RDMA_CM_EVENT_ADDR_RESOLVED);
		obs("pkey %04x", ntohs(pair.client->route.addr.addr.ibaddr.pkey));
		CALL(rdma_resolve_route(pair.client, 2000));
		take_event("client", pair.client_channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
		show_id(pair.client);
		show_paths(pair.client);
		CALL(rdma_resolve_route(pair.client, 2000));
		CALL(rdma_listen(pair.client, 1));
	}
	pair_close(&pair);
}

static void too_early(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = NULL;
	union address src = local_addr(AF_INET, 0);

	topic("too early");
	CALL(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	id_name(id, "id");
	/* Not before the bind: the reference crashes without a device. */
	CALL(rdma_bind_addr(id, &src.sa));
	CALL(rdma_resolve_route(id, 2000));
	show_id(id);
	id_destroy(id);
	rdma_destroy_event_channel(channel);
}

static void timeouts(void)
{
	static const int list[] = { 0, -1, 1, 1 << 30 };

	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
		struct pair pair;

		topic("timeout %d", list[i]);
		if (pair_open(&pair, RDMA_PS_TCP, AF_INET)) {
			CALL(rdma_resolve_addr(pair.client, NULL, &pair.to.sa, 2000));
			take_event("client", pair.client_channel, RDMA_CM_EVENT_ADDR_RESOLVED);
			if (!CALL(rdma_resolve_route(pair.client, list[i])))
				take_event("client", pair.client_channel,
					   RDMA_CM_EVENT_ROUTE_RESOLVED);
		}
		pair_close(&pair);
	}
}

static void request_side(void)
{
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct pair pair;

	topic("path of a connect request");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true) &&
	    pair_request(&pair, &param, false)) {
		show_id(pair.server);
		show_paths(pair.server);
	}
	pair_close(&pair);
}

/* As the kernel requires with RDMA_OPTION_IB_PATH: a single path, in both directions. */
enum { GIVEN_FLAGS = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL };
struct given_path {
	uint32_t flags, reserved;
	uint8_t record[64];
};

static uint8_t next_byte(uint32_t *random)
{
	*random = *random * 1103515245u + 12345u;
	return (uint8_t)(*random >> 16);
}

/* Records of arbitrary bytes: the program reads each field as the reference does. */
static void given_records(void)
{
	uint32_t random = 20260;

	for (int round = 0; round < 24; round++) {
		struct given_path path = { .flags = GIVEN_FLAGS };
		struct pair pair;

		topic("given record %d", round);
		for (size_t i = 0; i < sizeof(path.record); i++)
			path.record[i] = round ? next_byte(&random) : 0;
		if (pair_open(&pair, RDMA_PS_TCP, AF_INET)) {
			SETUP(!rdma_resolve_addr(pair.client, NULL, &pair.to.sa, 2000));
			quiet_event(pair.client_channel, RDMA_CM_EVENT_ADDR_RESOLVED);
			if (!CALL(rdma_set_option(pair.client, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof(path)))) {
				take_event("client", pair.client_channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
				show_paths(pair.client);
				for (int i = 0; i < pair.client->route.num_paths; i++)
					obs("flow label %08x", ntohl(pair.client->route.path_rec[i].flow_label));
			}
		}
		pair_close(&pair);
	}
}

int main(int argc, char **argv)
{
	start(argc, argv);
	plain("tcp v4", RDMA_PS_TCP, AF_INET);
	plain("tcp v6", RDMA_PS_TCP, AF_INET6);
	if (!on_siw())
		plain("udp v4", RDMA_PS_UDP, AF_INET);
	too_early();
	timeouts();
	request_side();
	if (!on_siw())
		given_records();
	return finish();
}
