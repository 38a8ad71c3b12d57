/*
 * Multicast groups of the subnet administrator: full and send-only-full members, by
 * MGID, by any MGID, by IPv4 and IPv6 addresses; data; what a restart of the subnet manager and a
 * pulled cable do to the members.
 */
#include "fabric.h"

#include <arpa/inet.h>

enum { BOTH = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS };

struct member {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct rdma_ud_param ud; /* of the join */
};

static union address mgid(const char *text, uint16_t pkey)
{
	union address address;

	memset(&address, 0, sizeof(address));
	address.ib.sib_family = AF_IB;
	address.ib.sib_pkey = htons(pkey);
	inet_pton(AF_INET6, text, &address.ib.sib_addr);
	return address;
}

static union address group(const char *text)
{
	return make_addr(strchr(text, ':') ? AF_INET6 : AF_INET, text, 0);
}

static bool open_member(struct member *member, const char *name, enum rdma_port_space ps, const union address *source)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_UDP);

	memset(member, 0, sizeof(*member));
	member->channel = rdma_create_event_channel();
	if (!SETUP(!rdma_create_id(member->channel, &member->id, NULL, ps)))
		return false;
	id_name(member->id, name);
	return SETUP(!rdma_bind_addr(member->id, (struct sockaddr *)&source->sa)) &&
	       SETUP(!rdma_create_qp(member->id, NULL, &attr));
}

static void close_member(struct member *member)
{
	id_destroy(member->id);
	rdma_destroy_event_channel(member->channel);
}

/* The next event, with what a join tells: the MLID differs from run to run. */
static bool join_event(struct member *member)
{
	struct rdma_cm_event *event = NULL;
	bool joined;

	if (!SETUP(!rdma_get_cm_event(member->channel, &event)))
		return false;
	joined = event->event == RDMA_CM_EVENT_MULTICAST_JOIN;
	if (!joined) {
		show_event("member", event);
	} else {
		obs("joined, status %d", event->status);
		member->ud = event->param.ud;
		obs("mgid %s", gid_str(&member->ud.ah_attr.grh.dgid));
		obs("mlid %s sl %u qpn %x qkey %x port %u", member->ud.ah_attr.dlid >= 0xc000 ? "multicast" : "wrong",
		    member->ud.ah_attr.sl, member->ud.qp_num, member->ud.qkey, member->ud.ah_attr.port_num);
	}
	rdma_ack_cm_event(event);
	return joined;
}

static bool join(struct member *member, union address address, uint32_t flags)
{
	struct rdma_cm_join_mc_attr_ex attr = { BOTH, flags, &address.sa };

	return !CALL(rdma_join_multicast_ex(member->id, &attr, NULL)) && join_event(member);
}

static void one(const char *name, enum rdma_port_space ps, union address source, union address address, uint32_t flags)
{
	struct member member;

	topic("%s", name);
	if (open_member(&member, "member", ps, &source)) {
		if (join(&member, address, flags))
			CALL(rdma_leave_multicast(member.id, &address.sa));
	}
	close_member(&member);
}

/* Any MGID: the subnet administrator chooses one. */
static void any_mgid(const char *name, union address source)
{
	union address any = mgid("::", 0xffff);
	struct member member;
	struct rdma_cm_event *event;

	topic("%s", name);
	if (open_member(&member, "member", RDMA_PS_UDP, &source) &&
	    !CALL(rdma_join_multicast(member.id, &any.sa, NULL)) && SETUP(!rdma_get_cm_event(member.channel, &event))) {
		obs("%s status %d", rdma_event_str(event->event), event->status);
		if (event->event == RDMA_CM_EVENT_MULTICAST_JOIN)
			CHECK(event->param.ud.ah_attr.grh.dgid.raw[0] == 0xff);
		rdma_ack_cm_event(event);
		CALL(rdma_leave_multicast(member.id, &any.sa));
	}
	close_member(&member);
}

/* Datagrams from one member to another, until one arrives: the subnet manager answers a join before the switches forward
 * to the new member. */
static void transfer(struct member *from, struct member *to)
{
	char sent[40] = "to the group", received[80] = "";
	struct ibv_mr *source = rdma_reg_msgs(from->id, sent, sizeof(sent));
	struct ibv_mr *target = rdma_reg_msgs(to->id, received, sizeof(received));
	struct ibv_ah *ah = ibv_create_ah(from->id->pd, &from->ud.ah_attr);
	struct ibv_wc wc;

	if (SETUP(source && target && ah) && SETUP(!rdma_post_recv(to->id, NULL, received, sizeof(received), target))) {
		do {
			SETUP(!rdma_post_ud_send(from->id, NULL, sent, sizeof(sent), source, 0, ah, from->ud.qp_num));
			while (!ibv_poll_cq(from->id->send_cq, 1, &wc))
				pause_briefly();
			usleep(10000);
		} while (!ibv_poll_cq(to->id->recv_cq, 1, &wc));
		show_wc("receiver", 1, &wc);
		obs("received '%s'", received + 40);
	}
	ibv_destroy_ah(ah);
	rdma_dereg_mr(source);
	rdma_dereg_mr(target);
}

static void between_hosts(const char *name, union address address, uint32_t flags)
{
	union address near = host_addr(NEAR, AF_INET, 0, 0), far = host_addr(FAR, AF_INET, 0, 0);
	struct member sender, receiver;

	topic("%s", name);
	SETUP(enter_host(FAR));
	SETUP(open_member(&receiver, "receiver", RDMA_PS_UDP, &far));
	SETUP(enter_host(NEAR));
	SETUP(open_member(&sender, "sender", RDMA_PS_UDP, &near));
	if (join(&receiver, address, RDMA_MC_JOIN_FLAG_FULLMEMBER) && join(&sender, address, flags))
		transfer(&sender, &receiver);
	close_member(&sender);
	close_member(&receiver);
}

/* What the members are told when the subnet manager has restarted and asks for new registrations. */
static void restart(void)
{
	union address near = host_addr(NEAR, AF_INET, 0, 0), address = group("239.7.1.1");
	struct member member;

	topic("subnet manager restarts");
	if (open_member(&member, "member", RDMA_PS_UDP, &near) && join(&member, address, RDMA_MC_JOIN_FLAG_FULLMEMBER)) {
		SETUP(sm_stop() && sm_start(""));
		if (!join_event(&member)) {
			CALL(rdma_leave_multicast(member.id, &address.sa));
			join(&member, address, RDMA_MC_JOIN_FLAG_FULLMEMBER);
		}
	}
	close_member(&member);
	SETUP(fabric_works());
}

static void cable_pulled(void)
{
	union address near = host_addr(NEAR, AF_INET, 0, 0), address = group("239.7.1.2");
	struct member member;

	topic("cable pulled");
	if (open_member(&member, "member", RDMA_PS_UDP, &near) && join(&member, address, RDMA_MC_JOIN_FLAG_FULLMEMBER)) {
		SETUP(cable(NEAR, false));
		join_event(&member);
		SETUP(cable(NEAR, true) && fabric_works());
		CALL(rdma_leave_multicast(member.id, &address.sa));
		join(&member, address, RDMA_MC_JOIN_FLAG_FULLMEMBER);
	}
	close_member(&member);
}

int main(int argc, char **argv)
{
	union address v4, v6, gid;

	start(argc, argv);
	v4 = host_addr(NEAR, AF_INET, 0, 0);
	v6 = host_addr(NEAR, AF_INET6, 0, 0);
	gid = host_gid(NEAR, 0xffff, 0, 0);
	one("v4", RDMA_PS_UDP, v4, group("239.7.0.1"), RDMA_MC_JOIN_FLAG_FULLMEMBER);
	one("v4, ipoib", RDMA_PS_IPOIB, v4, group("239.7.0.1"), RDMA_MC_JOIN_FLAG_FULLMEMBER);
	one("v6", RDMA_PS_UDP, v6, group("ff0e::7:1"), RDMA_MC_JOIN_FLAG_FULLMEMBER);
	one("v6, ipoib", RDMA_PS_IPOIB, v6, group("ff0e::7:1"), RDMA_MC_JOIN_FLAG_FULLMEMBER);
	one("v6 that is a MGID", RDMA_PS_UDP, v6, group("ff1e:a01b:fe80::7:2"), RDMA_MC_JOIN_FLAG_FULLMEMBER);
	one("MGID", RDMA_PS_UDP, gid, mgid("ff1e:1234::7:3", 0xffff), RDMA_MC_JOIN_FLAG_FULLMEMBER);
	one("MGID, from v4", RDMA_PS_UDP, v4, mgid("ff1e:1234::7:3", 0xffff), RDMA_MC_JOIN_FLAG_FULLMEMBER);
	one("MGID, other partition", RDMA_PS_UDP, gid, mgid("ff1e:1234::7:4", 0x8001), RDMA_MC_JOIN_FLAG_FULLMEMBER);
	one("send-only, nobody there", RDMA_PS_UDP, v4, group("239.7.0.9"), RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER);
	one("send-only, MGID", RDMA_PS_UDP, gid, mgid("ff1e:1234::7:5", 0xffff), RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER);
	any_mgid("any MGID, from v4", v4);
	any_mgid("any MGID, from a GID", gid);
	between_hosts("full to full", group("239.7.0.5"), RDMA_MC_JOIN_FLAG_FULLMEMBER);
	between_hosts("send-only to full", group("239.7.0.6"), RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER);
	between_hosts("MGID to MGID", mgid("ff1e:1234::7:6", 0xffff), RDMA_MC_JOIN_FLAG_FULLMEMBER);
	restart();
	cable_pulled();
	return finish();
}
