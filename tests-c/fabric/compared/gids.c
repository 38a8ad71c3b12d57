/*
 * AF_IB addresses in all forms: listeners on a GID and on any, with service ids, masks and scopes,
 * of each port space; clients bound, unbound and bound to any; rdma_getaddrinfo with hints for
 * routes and with RAI flags.
 */
#include "fabric.h"

#include <infiniband/sa.h>
#include <poll.h>

enum { PORT = 7480 };
#define IP_SID(ps) ((uint64_t)(ps) << 16)
#define TCP_SID (IP_SID(RDMA_PS_TCP) | PORT)
#define ANY_MASK (~0ull)
#define SPACE_MASK RDMA_IB_IP_PS_MASK

struct form {
	const char *name;
	enum rdma_port_space ps;
	uint64_t sid, mask;
	bool any;
};

static const struct form forms[] = {
	{ "gid, tcp", RDMA_PS_IB, TCP_SID, ANY_MASK, false },
	{ "any, tcp", RDMA_PS_IB, TCP_SID, ANY_MASK, true },
	{ "gid, udp", RDMA_PS_IB, IP_SID(RDMA_PS_UDP) | PORT, ANY_MASK, false },
	{ "gid, ib", RDMA_PS_IB, IP_SID(RDMA_PS_IB) | PORT, ANY_MASK, false },
	{ "gid, own service id", RDMA_PS_IB, 0x1000000012345678ull, ANY_MASK, false },
	{ "gid, service id 0", RDMA_PS_IB, 0, ANY_MASK, false },
	{ "gid, mask 0", RDMA_PS_IB, 0, 0, false },
	{ "gid, mask of the port space", RDMA_PS_IB, IP_SID(RDMA_PS_TCP), SPACE_MASK, false },
	{ "gid, part of the port in the mask", RDMA_PS_IB, TCP_SID, SPACE_MASK | 0xff00, false },
	{ "any, mask 0", RDMA_PS_IB, 0, 0, true },
	{ "tcp id", RDMA_PS_TCP, TCP_SID, ANY_MASK, false },
	{ "tcp id, any", RDMA_PS_TCP, TCP_SID, ANY_MASK, true },
	{ "tcp id, udp service", RDMA_PS_TCP, IP_SID(RDMA_PS_UDP) | PORT, ANY_MASK, false },
	{ "udp id", RDMA_PS_UDP, IP_SID(RDMA_PS_UDP) | PORT, ANY_MASK, false },
	{ "udp id, tcp service", RDMA_PS_UDP, TCP_SID, ANY_MASK, false },
	{ "ipoib id", RDMA_PS_IPOIB, IP_SID(RDMA_PS_IPOIB) | PORT, ANY_MASK, false },
};

static union address form_address(const struct form *form)
{
	union address address = host_gid(NEAR, 0xffff, form->sid, form->mask);

	if (form->any)
		memset(&address.ib.sib_addr, 0, sizeof(address.ib.sib_addr));
	return address;
}

static void listener_form(const struct form *form)
{
	union address address = form_address(form);
	struct rdma_cm_id *id, *second;

	topic("listen: %s", form->name);
	SETUP(!rdma_create_id(NULL, &id, NULL, form->ps));
	id_name(id, "id");
	if (!CALL(rdma_bind_addr(id, &address.sa))) {
		show_id(id);
		obs("port %u", ntohs(rdma_get_src_port(id)) < 32768 ? ntohs(rdma_get_src_port(id)) : 65535);
		if (!CALL(rdma_listen(id, 2))) {
			SETUP(!rdma_create_id(NULL, &second, NULL, form->ps));
			id_name(second, "second");
			if (!CALL(rdma_bind_addr(second, &address.sa)))
				CALL(rdma_listen(second, 2));
			id_destroy(second);
		}
	}
	id_destroy(id);
}

/* The channel that has an event first: the server's if the request arrives, else the client's. */
static struct rdma_event_channel *first_channel(const struct pair *pair)
{
	struct pollfd entries[2] = { { .fd = pair->server_channel->fd, .events = POLLIN },
				     { .fd = pair->client_channel->fd, .events = POLLIN } };

	SETUP(poll(entries, 2, -1) > 0);
	return entries[0].revents ? pair->server_channel : pair->client_channel;
}

/* The request arrives and is rejected, or is rejected by the kernel, as nobody listens. */
static void request(struct pair *pair, const char *data)
{
	struct rdma_conn_param param = conn_param(data, data ? (uint8_t)strlen(data) : 0);
	struct rdma_cm_event *event;

	if (CALL(rdma_connect(pair->client, &param)) || !(event = get_event("first", first_channel(pair))))
		return;
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		pair->server = event->id;
		id_name(pair->server, "server");
		show_id(pair->server);
		CALL(rdma_reject(pair->server, "no", 3));
		rdma_ack_cm_event(event);
		event = get_event("client", pair->client_channel);
	}
	if (event)
		rdma_ack_cm_event(event);
}

/* Resolves and asks for a connection, as far as it goes; with a source or without. */
static void client_form(const char *name, const struct form *form, const union address *source, uint64_t sid, uint64_t scope,
			const char *data)
{
	struct ibv_qp_init_attr attr = qp_attr(form->ps);
	union address listener = form_address(form);
	struct pair pair;

	topic("connect: %s, %s", form->name, name);
	if (pair_open_at(&pair, form->ps, NEAR, &listener)) {
		pair.to = host_gid(NEAR, 0xffff, sid, ANY_MASK);
		pair.to.ib.sib_scope_id = scope;
		if (!CALL(rdma_resolve_addr(pair.client, source ? (struct sockaddr *)&source->sa : NULL, &pair.to.sa, 2000)) &&
		    take_event("client", pair.client_channel, RDMA_CM_EVENT_ADDR_RESOLVED) &&
		    !CALL(rdma_resolve_route(pair.client, 4000)) &&
		    take_event("client", pair.client_channel, RDMA_CM_EVENT_ROUTE_RESOLVED)) {
			show_id(pair.client);
			show_route("client", pair.client);
			if (SETUP(!rdma_create_qp(pair.client, NULL, &attr)))
				request(&pair, data);
		}
	}
	pair_close(&pair);
}

static void clients(void)
{
	union address any = host_gid(NEAR, 0xffff, 0, 0), gid = host_gid(NEAR, 0xffff, 0, 0);
	union address port = host_gid(NEAR, 0xffff, IP_SID(RDMA_PS_TCP) | 7481, ANY_MASK), ip = host_addr(NEAR, AF_INET, 0, 0);
	union address foreign = host_gid(FAR, 0xffff, 0, 0);

	memset(&any.ib.sib_addr, 0, sizeof(any.ib.sib_addr));
	client_form("unbound", &forms[0], NULL, TCP_SID, 0, NULL);
	client_form("from any", &forms[0], &any, TCP_SID, 0, NULL);
	client_form("from the GID", &forms[0], &gid, TCP_SID, 0, NULL);
	client_form("from a port", &forms[0], &port, TCP_SID, 0, NULL);
	client_form("from IPv4", &forms[0], &ip, TCP_SID, 0, NULL);
	client_form("from another host's GID", &forms[0], &foreign, TCP_SID, 0, NULL);
	client_form("with data", &forms[0], NULL, TCP_SID, 0, "hello");
	client_form("scope", &forms[0], NULL, TCP_SID, 77, NULL);
	client_form("nobody's port", &forms[0], NULL, TCP_SID + 1, 0, NULL);
	client_form("unbound", &forms[1], NULL, TCP_SID, 0, NULL);
	client_form("in the masked range", &forms[8], NULL, TCP_SID ^ 1, 0, NULL);
	client_form("outside the masked range", &forms[8], NULL, TCP_SID ^ 0x100, 0, NULL);
	client_form("unbound", &forms[10], NULL, TCP_SID, 0, NULL);
	client_form("unbound", &forms[13], NULL, forms[13].sid, 0, NULL);
}

/* ---- rdma_getaddrinfo ------------------------------------------------------------------------------- */

static void show_list(const struct rdma_addrinfo *info)
{
	for (; info; info = info->ai_next) {
		obs("flags %x family %d type %s ps %04x", info->ai_flags, info->ai_family, qp_type_str(info->ai_qp_type),
		    info->ai_port_space);
		obs("src %u %s", info->ai_src_len, addr_str(info->ai_src_addr));
		obs("dst %u %s", info->ai_dst_len, addr_str(info->ai_dst_addr));
		obs("route %zu connect %zu", info->ai_route_len, info->ai_connect_len);
	}
}

static void look_up(const char *name, const char *node, const char *service, struct rdma_addrinfo hints, bool with_route)
{
	struct rdma_addrinfo *found = NULL;
	struct ibv_path_data route;
	int status;

	topic("look up: %s", name);
	memset(&route, 0, sizeof(route));
	route.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
	route.path.pkey = htons(0xffff);
	if (with_route) {
		hints.ai_route = &route;
		hints.ai_route_len = sizeof(route);
	}
	errno = 0;
	status = rdma_getaddrinfo(node, service, &hints, &found);
	obs("-> %s", eai_name(status));
	if (status)
		return;
	show_list(found);
	rdma_freeaddrinfo(found);
}

static void look_ups(void)
{
	enum { IB = RAI_NUMERICHOST | RAI_FAMILY };
	const char *gid = getenv("IB_GID"), *peer = getenv("IB_PEER_GID");
	struct rdma_addrinfo ib = { .ai_flags = IB, .ai_family = AF_IB, .ai_port_space = RDMA_PS_IB };
	struct rdma_addrinfo tcp = { .ai_flags = IB, .ai_family = AF_IB, .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo udp = { .ai_flags = IB, .ai_family = AF_IB, .ai_port_space = RDMA_PS_UDP };
	struct rdma_addrinfo passive = tcp, no_route = tcp, inet6 = tcp, none = tcp;

	passive.ai_flags |= RAI_PASSIVE;
	no_route.ai_flags |= RAI_NOROUTE;
	inet6.ai_family = AF_INET6;
	none.ai_flags = RAI_NUMERICHOST;
	look_up("tcp", gid, "7471", tcp, false);
	look_up("peer", peer, "7471", tcp, false);
	look_up("udp", gid, "7471", udp, false);
	look_up("ib", gid, "7471", ib, false);
	look_up("no service", gid, NULL, tcp, false);
	look_up("long service", gid, "70000", tcp, false);
	look_up("passive", gid, "7471", passive, false);
	/* Not passive without a node: the reference reads beyond an IPv4 address (docs/compatibility.md). */
	look_up("no route", gid, "7471", no_route, false);
	look_up("with a route", gid, "7471", tcp, true);
	look_up("no route, with a route", gid, "7471", no_route, true);
	look_up("as IPv6", gid, "7471", inet6, false);
	look_up("any family", gid, "7471", none, false);
	look_up("a multicast GID", "ff1e:1234::1", "7471", tcp, false);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
		listener_form(&forms[i]);
	clients();
	look_ups();
	return finish();
}
