/*
 * Partitions other than the default one: IPoIB interfaces and GIDs of partitions of which both
 * hosts are full members, one is a limited member, both are limited members, one is none.
 */
#include "fabric.h"

enum { BOTH = 0x8001, FAR_OWNS = 0x0002, LIMITED = 0x0003, FAR_ONLY = 0x8004, NOBODYS = 0x8055 };

/* A message from the client to the server. */
static void send_one(struct pair *pair)
{
	char buffer[64] = "through the partition";
	struct ibv_mr *to, *from;
	struct ibv_wc wc;

	to = rdma_reg_msgs(pair->server, buffer, sizeof(buffer));
	from = rdma_reg_msgs(pair->client, buffer, sizeof(buffer));
	if (SETUP(to && from) && SETUP(!rdma_post_recv(pair->server, NULL, buffer, sizeof(buffer), to)) &&
	    SETUP(!rdma_post_send(pair->client, NULL, buffer, sizeof(buffer), from, 0))) {
		while (!ibv_poll_cq(pair->server->recv_cq, 1, &wc))
			pause_briefly();
		show_wc("server", 1, &wc);
	}
	rdma_dereg_mr(to);
	rdma_dereg_mr(from);
}

static void connect_both(struct pair *pair)
{
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	if (!pair_request(pair, &param, true))
		return;
	show_route("server", pair->server);
	if (CALL(rdma_accept(pair->server, &param)) ||
	    !take_event("client", pair->client_channel, RDMA_CM_EVENT_ESTABLISHED) ||
	    !take_event("server", pair->server_channel, RDMA_CM_EVENT_ESTABLISHED))
		return;
	if (SETUP(!ibv_query_qp(pair->client->qp, &attr, IBV_QP_PKEY_INDEX, &init)))
		obs("pkey index %u", attr.pkey_index);
	send_one(pair);
	CALL(rdma_disconnect(pair->client));
	take_event("server", pair->server_channel, RDMA_CM_EVENT_DISCONNECTED);
	CALL(rdma_disconnect(pair->server));
	take_event("client", pair->client_channel, RDMA_CM_EVENT_DISCONNECTED);
}

/* Resolves from `source` (NULL: the kernel's choice), and connects if that succeeds. */
static void attempt(const char *name, const union address *listener, const union address *source)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_cm_event *event;
	struct pair pair;
	bool good;

	topic("%s", name);
	if (pair_open_at(&pair, listener->sa.sa_family == AF_IB ? RDMA_PS_IB : RDMA_PS_TCP,
			 listener->sa.sa_family == AF_IB ? NEAR : FAR, listener) &&
	    !CALL(rdma_resolve_addr(pair.client, source ? (struct sockaddr *)&source->sa : NULL, &pair.to.sa, 2000)) &&
	    take_event("client", pair.client_channel, RDMA_CM_EVENT_ADDR_RESOLVED)) {
		obs("pkey %04x", ntohs(pair.client->route.addr.addr.ibaddr.pkey));
		if (!CALL(rdma_resolve_route(pair.client, 2000)) && (event = get_event("client", pair.client_channel))) {
			good = event->event == RDMA_CM_EVENT_ROUTE_RESOLVED;
			rdma_ack_cm_event(event);
			if (good) {
				show_route("client", pair.client);
				if (!CALL(rdma_create_qp(pair.client, NULL, &attr)))
					connect_both(&pair);
			}
		}
	}
	pair_close(&pair);
}

/* Between the interfaces of a partition. */
static void between_links(const char *name, uint16_t pkey, int family)
{
	union address listener = host_addr(FAR, family, pkey, 0);

	attempt(name, &listener, NULL);
}

/* A link that cannot join the partition's group has no carrier, hence nobody answers. */
static void without_carrier(const char *name, uint16_t pkey)
{
	union address source = host_addr(NEAR, AF_INET, pkey, 0), to = host_addr(FAR, AF_INET, pkey, 7471);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	topic("%s", name);
	SETUP(partition_link(NEAR, pkey));
	SETUP(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	id_name(id, "id");
	CALL(rdma_resolve_addr(id, NULL, &to.sa, 300));
	event = get_event("id", channel);
	if (event)
		rdma_ack_cm_event(event);
	id_destroy(id);
	SETUP(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	id_name(id, "id");
	if (!CALL(rdma_bind_addr(id, &source.sa))) {
		show_id(id);
		obs("pkey %04x", ntohs(id->route.addr.addr.ibaddr.pkey));
		CALL(rdma_listen(id, 1));
	}
	id_destroy(id);
	rdma_destroy_event_channel(channel);
	SETUP(partition_unlink(NEAR, pkey));
}

/* AF_IB: the P_Key is a part of the address. */
static void between_gids(const char *name, uint16_t pkey, uint16_t source_pkey)
{
	union address listener = host_gid(NEAR, pkey, RDMA_IB_IP_PS_TCP | 7475, RDMA_IB_IP_PS_MASK | 0xffff);
	union address source = host_gid(NEAR, source_pkey, 0, 0);

	attempt(name, &listener, source_pkey ? &source : NULL);
}

static void bind_gid(const char *name, uint16_t pkey)
{
	union address address = host_gid(NEAR, pkey, RDMA_IB_IP_PS_TCP | 7476, RDMA_IB_IP_PS_MASK | 0xffff);
	struct rdma_cm_id *id;

	topic("%s", name);
	SETUP(!rdma_create_id(NULL, &id, NULL, RDMA_PS_IB));
	id_name(id, "id");
	if (!CALL(rdma_bind_addr(id, &address.sa)))
		show_id(id);
	id_destroy(id);
}

int main(int argc, char **argv)
{
	union address far = host_addr(FAR, AF_INET, BOTH, 0), near = host_addr(NEAR, AF_INET, 0, 0);

	start(argc, argv);
	SETUP(partition_link(NEAR, BOTH) && partition_link(FAR, BOTH));
	SETUP(partition_link(NEAR, FAR_OWNS | 0x8000) && partition_link(FAR, FAR_OWNS | 0x8000));
	SETUP(partition_runs(NEAR, BOTH) && partition_runs(FAR, BOTH));
	between_links("both full", BOTH, AF_INET);
	between_links("both full, v6", BOTH, AF_INET6);
	between_links("default partition", 0, AF_INET);
	attempt("bound to another partition", &far, &near);
	between_links("limited and full", FAR_OWNS | 0x8000, AF_INET);
	SETUP(partition_unlink(NEAR, BOTH) && partition_unlink(FAR, BOTH));
	SETUP(partition_unlink(NEAR, FAR_OWNS | 0x8000) && partition_unlink(FAR, FAR_OWNS | 0x8000));
	without_carrier("both limited", LIMITED | 0x8000);
	without_carrier("only the far host", FAR_ONLY);
	without_carrier("nobody's", NOBODYS);
	between_gids("gid, both full", BOTH, 0);
	between_gids("gid, both full, bound", BOTH, BOTH);
	between_gids("gid, bound to another partition", BOTH, 0xffff);
	between_gids("gid, limited", LIMITED, 0);
	bind_gid("bind gid, far only", FAR_ONLY);
	bind_gid("bind gid, nobody's", NOBODYS);
	bind_gid("bind gid, limited as full", LIMITED | 0x8000);
	bind_gid("bind gid, zero", 0);
	return finish();
}
