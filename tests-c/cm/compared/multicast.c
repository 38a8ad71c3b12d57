/* Joining and leaving multicast groups, full and send-only. */
#include "common.h"

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;
static int mark;

static bool begin(const char *name, enum rdma_port_space ps, bool with_qp)
{
	struct ibv_qp_init_attr attr = qp_attr(ps);
	union address address = local_addr(AF_INET, 0);

	topic("%s", name);
	channel = rdma_create_event_channel();
	if (!SETUP(!rdma_create_id(channel, &id, NULL, ps)))
		return false;
	id_name(id, "id");
	if (!SETUP(!rdma_bind_addr(id, &address.sa)))
		return false;
	/* iWARP has no datagrams: the error is what the program observes there. */
	if (with_qp && on_siw())
		return !CALL(rdma_create_qp(id, NULL, &attr));
	return !with_qp || SETUP(!rdma_create_qp(id, NULL, &attr));
}

static void end(void)
{
	if (id)
		id_destroy(id);
	id = NULL;
	rdma_destroy_event_channel(channel);
}

static union address group(const char *text)
{
	return make_addr(strchr(text, ':') ? AF_INET6 : AF_INET, text, 0);
}

static bool joined(void)
{
	struct rdma_cm_event *event = get_event("id", channel);
	bool good = event && event->event == RDMA_CM_EVENT_MULTICAST_JOIN;

	if (!event)
		return false;
	CHECK(event->param.ud.private_data == &mark);
	CHECK(event->id == id);
	rdma_ack_cm_event(event);
	return good;
}

static void plain(const char *name, const char *text, bool with_qp)
{
	union address address = group(text);

	if (begin(name, RDMA_PS_UDP, with_qp)) {
		if (!CALL(rdma_join_multicast(id, &address.sa, &mark)))
			joined();
		CALL(rdma_leave_multicast(id, &address.sa));
		CALL(rdma_leave_multicast(id, &address.sa));
		CHECK(!channel_ready(channel));
	}
	end();
}

static int join_ex(const char *text, uint32_t mask, uint32_t flags)
{
	union address address = group(text);
	struct rdma_cm_join_mc_attr_ex attr = { mask, flags, &address.sa };

	return rdma_join_multicast_ex(id, &attr, &mark);
}

static void extended(void)
{
	enum { BOTH = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS };
	union address one = group("239.1.1.2"), two = group("239.1.1.3");

	if (begin("extended", RDMA_PS_UDP, true)) {
		if (!CALL(join_ex("239.1.1.2", BOTH, RDMA_MC_JOIN_FLAG_FULLMEMBER)))
			joined();
		if (!CALL(join_ex("239.1.1.3", BOTH, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER)))
			joined();
		CALL(rdma_leave_multicast(id, &two.sa));
		CALL(rdma_leave_multicast(id, &one.sa));
	}
	end();
	if (begin("extended, wrong", RDMA_PS_UDP, true)) {
		struct rdma_cm_join_mc_attr_ex attr = { BOTH, 0, NULL };

		CALL(join_ex("239.1.1.2", 0, 0));
		CALL(join_ex("239.1.1.2", RDMA_CM_JOIN_MC_ATTR_ADDRESS, 0));
		CALL(join_ex("239.1.1.2", RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, 0));
		CALL(join_ex("239.1.1.2", BOTH | RDMA_CM_JOIN_MC_ATTR_RESERVED, 0));
		CALL(join_ex("239.1.1.2", RDMA_CM_JOIN_MC_ATTR_RESERVED, 0));
		CALL(join_ex("239.1.1.2", 1u << 31, 0));
		CALL(join_ex("239.1.1.2", BOTH, RDMA_MC_JOIN_FLAG_RESERVED));
		CALL(join_ex("239.1.1.2", BOTH, 77));
		obs("address NULL");
		attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
		CALL(rdma_join_multicast_ex(id, &attr, &mark));
	}
	end();
}

static void wrong(void)
{
	union address bad = group("239.1.1.4"), unicast = local_addr(AF_INET, 0);
	struct rdma_cm_id *unbound = NULL;

	if (begin("wrong", RDMA_PS_UDP, true)) {
		CALL(rdma_leave_multicast(id, &bad.sa));
		bad.sa.sa_family = AF_UNIX;
		CALL(rdma_join_multicast(id, &bad.sa, &mark));
		CALL(rdma_leave_multicast(id, &bad.sa));
		bad.sa.sa_family = AF_UNSPEC;
		CALL(rdma_join_multicast(id, &bad.sa, &mark));
		bad = group("239.1.1.4");
		if (!CALL(rdma_join_multicast(id, &unicast.sa, &mark)))
			joined();
		CALL(rdma_leave_multicast(id, &unicast.sa));
	}
	end();

	topic("unbound");
	rdma_create_id(NULL, &unbound, NULL, RDMA_PS_UDP);
	CALL(rdma_join_multicast(unbound, &bad.sa, &mark));
	CALL(rdma_leave_multicast(unbound, &bad.sa));
	rdma_destroy_id(unbound);

	if (begin("on a connected service", RDMA_PS_TCP, false)) {
		if (!CALL(rdma_join_multicast(id, &bad.sa, &mark)))
			joined();
		CALL(rdma_leave_multicast(id, &bad.sa));
	}
	end();
}

static void several(void)
{
	static const char *const names[] = { "239.1.2.1", "239.1.2.2", "239.1.2.3" };

	if (begin("several", RDMA_PS_UDP, true)) {
		for (int i = 0; i < 3; i++) {
			union address address = group(names[i]);
			CALL(rdma_join_multicast(id, &address.sa, &mark));
			joined();
		}
		union address same = group(names[1]);
		if (!CALL(rdma_join_multicast(id, &same.sa, &mark)))
			joined();
		for (int i = 1; i < 4; i++) {
			union address address = group(names[i % 3]);
			CALL(rdma_leave_multicast(id, &address.sa));
		}
		CALL(rdma_leave_multicast(id, &same.sa));
		CALL(rdma_leave_multicast(id, &same.sa));
	}
	end();
	if (begin("destroyed while joined", RDMA_PS_UDP, false)) {
		union address address = group(names[0]);
		CALL(rdma_join_multicast(id, &address.sa, &mark));
		joined();
		id_forget(id);
		CALL(rdma_destroy_id(id));
		id = NULL;
	}
	end();
	if (begin("left before the event is read", RDMA_PS_UDP, true)) {
		union address address = group(names[0]);
		CALL(rdma_join_multicast(id, &address.sa, &mark));
		while (!channel_ready(channel))
			pause_briefly();
		CALL(rdma_leave_multicast(id, &address.sa));
		CHECK(!channel_ready(channel));
	}
	end();
}

static void synchronous(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_UDP);
	union address address = local_addr(AF_INET, 0), to = group("239.1.1.9");

	topic("sync");
	rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP);
	id_name(id, "id");
	CALL(rdma_bind_addr(id, &address.sa));
	CALL(rdma_create_qp(id, NULL, &attr));
	CALL(rdma_join_multicast(id, &to.sa, &mark));
	if (id->event) {
		show_event("id", id->event);
		CHECK(id->event->param.ud.private_data == &mark);
		/* Leaving waits until the join event is acknowledged, which the id holds. */
		CALL(rdma_ack_cm_event(id->event));
		id->event = NULL;
	}
	CALL(rdma_leave_multicast(id, &to.sa));
	id_destroy(id);
	id = NULL;
}

static void data(void)
{
	union address to = group("239.1.3.1");
	struct ibv_ah *ah = NULL;
	struct rdma_cm_event *event;
	static char sent[32] = "to the group", got[96];
	struct ibv_mr *send_mr, *recv_mr;
	struct ibv_wc wc;
	uint32_t qpn = 0;

	if (!begin("data", RDMA_PS_UDP, true) || CALL(rdma_join_multicast(id, &to.sa, &mark)))
		return;
	event = get_event("id", channel);
	if (event && event->event == RDMA_CM_EVENT_MULTICAST_JOIN) {
		event->param.ud.ah_attr.port_num = id->port_num;
		ah = ibv_create_ah(id->pd, &event->param.ud.ah_attr);
		qpn = event->param.ud.qp_num;
	}
	if (event)
		rdma_ack_cm_event(event);
	if (CHECK(ah != NULL)) {
		send_mr = rdma_reg_msgs(id, sent, sizeof(sent));
		recv_mr = rdma_reg_msgs(id, got, sizeof(got));
		CALL(rdma_post_recv(id, NULL, got, sizeof(got), recv_mr));
		CALL(rdma_post_ud_send(id, NULL, sent, sizeof(sent), send_mr, IBV_SEND_SIGNALED,
				       ah, qpn));
		memset(&wc, 0, sizeof(wc));
		int ret = rdma_get_send_comp(id, &wc);
		show_wc("id", ret, &wc);
		rdma_dereg_mr(send_mr);
		rdma_dereg_mr(recv_mr);
		ibv_destroy_ah(ah);
	}
	CALL(rdma_leave_multicast(id, &to.sa));
	end();
}

int main(int argc, char **argv)
{
	start(argc, argv);
	plain("v4", "239.1.1.1", true);
	plain("v4 without queue pair", "239.1.1.1", false);
	plain("v6", "ff0e::1:1", true);
	plain("v6 without queue pair", "ff0e::1:1", false);
	extended();
	wrong();
	if (!on_siw()) {
		several();
		synchronous();
		data();
	}
	return finish();
}
