/* rdma_resolve_addr: results, failures, wrong order, source addresses. */
#include "common.h"

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;

static bool begin(const char *name, enum rdma_port_space ps)
{
	topic("%s", name);
	channel = rdma_create_event_channel();
	if (!SETUP(channel != NULL) || !SETUP(!rdma_create_id(channel, &id, NULL, ps)))
		return false;
	id_name(id, "id");
	return true;
}

static void end(void)
{
	id_forget(id);
	CALL(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void resolve(const char *name, enum rdma_port_space ps, union address *src,
		    union address *dst, int timeout)
{
	if (!begin(name, ps))
		return;
	if (!CALL(rdma_resolve_addr(id, src ? &src->sa : NULL, &dst->sa, timeout))) {
		struct rdma_cm_event *event = get_event("id", channel);

		if (event)
			CALL(rdma_ack_cm_event(event));
	}
	show_id(id);
	obs("src port %s", rdma_get_src_port(id) ? "given" : "0");
	obs("dst port %u", ntohs(rdma_get_dst_port(id)));
	end();
}

static void works(void)
{
	union address four = local_addr(AF_INET, 7401), six = local_addr(AF_INET6, 7402);
	union address src = local_addr(AF_INET, 0), src_port = local_addr(AF_INET, 7403);
	union address any = any_addr(AF_INET, 0), any6 = any_addr(AF_INET6, 0);

	resolve("v4", RDMA_PS_TCP, NULL, &four, 2000);
	resolve("v6", RDMA_PS_TCP, NULL, &six, 2000);
	resolve("udp v4", RDMA_PS_UDP, NULL, &four, 2000);
	resolve("ipoib v4", RDMA_PS_IPOIB, NULL, &four, 2000);
	resolve("ib v4", RDMA_PS_IB, NULL, &four, 2000);
	resolve("src", RDMA_PS_TCP, &src, &four, 2000);
	resolve("src with port", RDMA_PS_TCP, &src_port, &four, 2000);
	resolve("src any", RDMA_PS_TCP, &any, &four, 2000);
	resolve("src any v6", RDMA_PS_TCP, &any6, &six, 2000);
	resolve("timeout 0", RDMA_PS_TCP, NULL, &four, 0);
	resolve("timeout negative", RDMA_PS_TCP, NULL, &four, -1);
}

static void fails(void)
{
	union address four = local_addr(AF_INET, 7401), six = local_addr(AF_INET6, 7402);
	union address away = unrouted_addr(7404), silent = silent_addr(7405);
	union address loop = make_addr(AF_INET, "127.0.0.1", 7406);
	union address any = any_addr(AF_INET, 7406), foreign = unrouted_addr(0);
	union address bad = four, none = four;

	resolve("no route", RDMA_PS_TCP, NULL, &away, 1000);
	resolve("no neighbour", RDMA_PS_TCP, NULL, &silent, 500);
	resolve("loopback", RDMA_PS_TCP, NULL, &loop, 1000);
	resolve("any", RDMA_PS_TCP, NULL, &any, 1000);
	resolve("src family differs", RDMA_PS_TCP, &six, &four, 1000);
	resolve("src not ours", RDMA_PS_TCP, &foreign, &four, 1000);
	bad.sa.sa_family = AF_UNIX;
	none.sa.sa_family = AF_UNSPEC;
	resolve("dst family unix", RDMA_PS_TCP, NULL, &bad, 1000);
	resolve("dst family 0", RDMA_PS_TCP, NULL, &none, 1000);
	resolve("src family unix", RDMA_PS_TCP, &bad, &four, 1000);
	resolve("src family 0", RDMA_PS_TCP, &none, &four, 1000);
	none.ib.sib_family = AF_IB;
	resolve("dst af_ib nowhere", RDMA_PS_IB, NULL, &none, 1000);
}

static void order(void)
{
	union address dst = local_addr(AF_INET, 7407), src = local_addr(AF_INET, 0);

	if (!begin("twice", RDMA_PS_TCP))
		return;
	CALL(rdma_resolve_addr(id, NULL, &dst.sa, 2000));
	take_event("id", channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CALL(rdma_resolve_addr(id, NULL, &dst.sa, 2000));
	CALL(rdma_bind_addr(id, &src.sa));
	CALL(rdma_listen(id, 1));
	show_id(id);
	end();

	if (!begin("bound before", RDMA_PS_TCP))
		return;
	CALL(rdma_bind_addr(id, &src.sa));
	CALL(rdma_resolve_addr(id, NULL, &dst.sa, 2000));
	take_event("id", channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	show_id(id);
	end();

	if (!begin("bound before, src again", RDMA_PS_TCP))
		return;
	CALL(rdma_bind_addr(id, &src.sa));
	if (!CALL(rdma_resolve_addr(id, &src.sa, &dst.sa, 2000)))
		take_event("id", channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	end();

	if (!begin("listening", RDMA_PS_TCP))
		return;
	CALL(rdma_bind_addr(id, &src.sa));
	CALL(rdma_listen(id, 1));
	CALL(rdma_resolve_addr(id, NULL, &dst.sa, 2000));
	CALL(rdma_resolve_route(id, 2000));
	end();

	if (!begin("again after failure", RDMA_PS_TCP))
		return;
	union address silent = silent_addr(7407);
	CALL(rdma_resolve_addr(id, NULL, &silent.sa, 300));
	take_event("id", channel, RDMA_CM_EVENT_ADDR_ERROR);
	if (!CALL(rdma_resolve_addr(id, NULL, &dst.sa, 2000)))
		take_event("id", channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	show_id(id);
	end();
}

static void destroyed_while_pending(void)
{
	union address silent = silent_addr(7408);

	if (!begin("destroyed while pending", RDMA_PS_TCP))
		return;
	CALL(rdma_resolve_addr(id, NULL, &silent.sa, 60000));
	end();
}

int main(int argc, char **argv)
{
	start(argc, argv);
	works();
	fails();
	order();
	destroyed_while_pending();
	return finish();
}
