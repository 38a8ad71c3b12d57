/*
 * Forged UDP packets at datagram sockets; run on ours only, for the reference's do not work over RoCE.
 * A plain UDP socket plays the peer, and claims QPs that are other rsockets'.
 */
#include "cases.h"
#include "rscommon.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

enum { DATA = 0, ANSWER = 7, HEADER = 16 };

static int bound(union address *name)
{
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0);
	socklen_t len = sizeof(*name);

	EXPECT(fd >= 0);
	*name = local_addr(AF_INET, 0);
	EXPECT(!rbind(fd, &name->sa, addr_len(name)));
	EXPECT(!rgetsockname(fd, &name->sa, &len));
	return fd;
}

static int plain(union address *name)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	socklen_t len = sizeof(*name);

	EXPECT(fd >= 0);
	*name = local_addr(AF_INET, 0);
	EXPECT(!bind(fd, &name->sa, addr_len(name)));
	EXPECT(!getsockname(fd, &name->sa, &len));
	return fd;
}

/* Says by UDP that the sender's QP is number `qpn` at `address`. */
static void claim(int fd, int op, uint32_t qpn, struct in_addr address, const union address *to)
{
	uint8_t packet[HEADER] = { 0x55, 0x55, 0x55, 0x55, 4, (uint8_t)op, HEADER };

	qpn = htonl(qpn);
	memcpy(packet + 8, &qpn, 4);
	memcpy(packet + 12, &address, 4);
	EXPECT(sendto(fd, packet, HEADER, 0, &to->sa, addr_len(to)) == HEADER);
}

/* The QP that the next UDP packet names. */
static uint32_t named(int fd)
{
	uint8_t packet[64];
	uint32_t qpn;

	EXPECT(recv(fd, packet, sizeof(packet), 0) >= HEADER);
	memcpy(&qpn, packet + 8, 4);
	return ntohl(qpn);
}

/* The rsocket's QP: it answers a packet that asks. */
static uint32_t ask(int fd, const union address *own, const union address *rsocket)
{
	claim(fd, DATA, 2, own->in.sin_addr, rsocket);
	return named(fd);
}

/* Sends until a datagram arrives at the QP of `other`; answers those that ask the plain socket with `qpn`. */
static void reaches(int from, int peer, const union address *peer_name, int other, uint32_t qpn,
		    const union address *from_name)
{
	struct pollfd at_peer = { .fd = peer, .events = POLLIN }, at_other = { .fd = other, .events = POLLIN };
	char byte;

	for (;;) {
		EXPECT(rsendto(from, "x", 1, 0, &peer_name->sa, addr_len(peer_name)) == 1);
		for (int j = 0; j < 100; j++) {
			if (rpoll(&at_other, 1, 0) > 0) {
				EXPECT(rrecv(other, &byte, 1, 0) == 1);
				return;
			}
			if (poll(&at_peer, 1, 1) > 0) {
				named(peer);
				if (qpn)
					claim(peer, ANSWER, qpn, peer_name->in.sin_addr, from_name);
				break;
			}
		}
	}
}

static int readable(int fd)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN };

	return rpoll(&entry, 1, 0);
}

/* Claims alone never redirect datagrams; an answer does. */
static void a_claim_redirects_nothing(void)
{
	union address victim_name, name[2], peer_name;
	int victim = bound(&victim_name), honest = bound(&name[0]), thief = bound(&name[1]);
	int peer = plain(&peer_name);
	uint32_t honest_qp = ask(peer, &peer_name, &name[0]), thief_qp = ask(peer, &peer_name, &name[1]);
	char drain[16];

	EXPECT(honest_qp != thief_qp);
	while (readable(honest))
		rrecv(honest, drain, sizeof(drain), 0);
	while (readable(thief))
		rrecv(thief, drain, sizeof(drain), 0);
	reaches(victim, peer, &peer_name, honest, honest_qp, &victim_name);
	for (int i = 0; i < 20; i++) {
		claim(peer, DATA, thief_qp, peer_name.in.sin_addr, &victim_name);
		/* The victim's answer: it has taken note. */
		named(peer);
		reaches(victim, peer, &peer_name, honest, honest_qp, &victim_name);
		EXPECT(!readable(thief));
	}
	/* Now the peer has moved: it says so itself. */
	claim(peer, DATA, thief_qp, peer_name.in.sin_addr, &victim_name);
	reaches(victim, peer, &peer_name, thief, thief_qp, &victim_name);
	EXPECT(!rclose(victim) && !rclose(honest) && !rclose(thief) && !close(peer));
}

/* A header that names somebody else's address: its payload arrives, but its QP is not used. */
static void another_address_is_not_believed(void)
{
	union address victim_name, other_name, own = { 0 };
	int victim = bound(&victim_name), other = bound(&other_name);
	int peer = socket(AF_INET, SOCK_DGRAM, 0);
	socklen_t len = sizeof(own);
	struct in_addr there = other_name.in.sin_addr;
	uint32_t qpn;
	char byte;

	own.in.sin_family = AF_INET;
	own.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	EXPECT(!bind(peer, &own.sa, sizeof(own.in)) && !getsockname(peer, &own.sa, &len));
	claim(peer, DATA, 2, there, &other_name);
	qpn = named(peer);
	EXPECT(rrecv(other, &byte, 1, 0) == 0);
	for (int i = 0; i < 100; i++) {
		EXPECT(rsendto(victim, "x", 1, 0, &own.sa, sizeof(own.in)) == 1);
		named(peer);
		claim(peer, ANSWER, qpn, there, &victim_name);
		claim(peer, DATA, qpn, there, &victim_name);
		named(peer);
		EXPECT(!readable(other));
	}
	EXPECT(!rclose(victim) && !rclose(other) && !close(peer));
}

/* ---- UD messages ----------------------------------------------------------------------------- */

enum { LONGEST = 4096 };

/* A UD QP with an address handle for its own port. */
struct raw {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
};
static uint8_t message[LONGEST];

static void await_event(struct raw *raw, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	EXPECT(!rdma_get_cm_event(raw->channel, &event) && event->event == type);
	EXPECT(!rdma_ack_cm_event(event));
}

static void raw_open(struct raw *raw)
{
	union address own = local_addr(AF_INET, 0);
	struct ibv_ah_attr ah = { .is_global = 1, .grh.hop_limit = 64 };
	union ibv_gid gid;

	EXPECT((raw->channel = rdma_create_event_channel()) && !rdma_create_id(raw->channel, &raw->id, NULL, RDMA_PS_UDP));
	EXPECT(!rdma_resolve_addr(raw->id, &own.sa, &own.sa, 2000));
	await_event(raw, RDMA_CM_EVENT_ADDR_RESOLVED);
	EXPECT(!rdma_resolve_route(raw->id, 2000));
	await_event(raw, RDMA_CM_EVENT_ROUTE_RESOLVED);
	EXPECT((raw->cq = ibv_create_cq(raw->id->verbs, 4, NULL, NULL, 0)));
	struct ibv_qp_init_attr attr = {
		.send_cq = raw->cq, .recv_cq = raw->cq, .qp_type = IBV_QPT_UD, .cap = { 4, 4, 1, 1, 0 },
	};
	EXPECT(!rdma_create_qp(raw->id, NULL, &attr));
	EXPECT((raw->mr = ibv_reg_mr(raw->id->pd, message, LONGEST, 0)));
	ah.port_num = raw->id->port_num;
	ah.dlid = ntohs(raw->id->route.path_rec->dlid);
	ah.sl = raw->id->route.path_rec->sl;
	ah.grh.dgid = raw->id->route.path_rec->dgid;
	for (;; ah.grh.sgid_index++) {
		EXPECT(!ibv_query_gid(raw->id->verbs, ah.port_num, ah.grh.sgid_index, &gid));
		if (!memcmp(&gid, &raw->id->route.path_rec->sgid, sizeof(gid)))
			break;
	}
	EXPECT((raw->ah = ibv_create_ah(raw->id->pd, &ah)));
}

static void raw_send(struct raw *raw, uint32_t qpn, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)message, length, raw->mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { .ah = raw->ah, .remote_qpn = qpn, .remote_qkey = RDMA_UDP_QKEY },
	}, *bad;
	struct ibv_wc wc;
	int polled;

	EXPECT(!ibv_post_send(raw->id->qp, &wr, &bad));
	while (!(polled = ibv_poll_cq(raw->cq, 1, &wc)))
		pause_briefly();
	EXPECT(polled == 1 && wc.status == IBV_WC_SUCCESS);
}

static void raw_close(struct raw *raw)
{
	EXPECT(!ibv_destroy_ah(raw->ah) && !ibv_dereg_mr(raw->mr));
	rdma_destroy_qp(raw->id);
	EXPECT(!ibv_destroy_cq(raw->cq) && !rdma_destroy_id(raw->id));
	rdma_destroy_event_channel(raw->channel);
}

/* Messages longer than any datagram are dropped, and the rsocket keeps its QP. */
static void long_messages_are_dropped(void)
{
	static const uint32_t lengths[] = { 2049, 3000, LONGEST };
	uint8_t header[8] = { 4, 8, 0x30, 0x39 };
	union address name, peer_name;
	int fd = bound(&name), peer = plain(&peer_name);
	uint32_t qpn = ask(peer, &peer_name, &name);
	struct ibv_port_attr port;
	struct raw raw;
	char byte;

	EXPECT(rrecv(fd, &byte, 1, 0) == 0);
	raw_open(&raw);
	EXPECT(!ibv_query_port(raw.id->verbs, raw.id->port_num, &port));
	memcpy(header + 4, &peer_name.in.sin_addr, 4);
	memcpy(message, header, sizeof(header));
	for (int i = 0; i < 3; i++) {
		if (lengths[i] <= 128U << port.active_mtu)
			raw_send(&raw, qpn, lengths[i]);
		raw_send(&raw, qpn, sizeof(header) + 1);
		EXPECT(rrecv(fd, &byte, 1, MSG_TRUNC) == 1);
		EXPECT(ask(peer, &peer_name, &name) == qpn);
		EXPECT(rrecv(fd, &byte, 1, 0) == 0);
	}
	raw_close(&raw);
	EXPECT(!rclose(fd) && !close(peer));
}

/* What anyone sends over UDP and the program does not read is kept up to the size of the receive buffer. */
static void unread_copies_are_limited(void)
{
	enum { SIZE = 8192, PAYLOAD = 1000 };
	uint8_t packet[HEADER + PAYLOAD] = { 0x55, 0x55, 0x55, 0x55, 4, DATA, HEADER, 0, 0, 0, 0, 2 };
	union address name, peer_name;
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0), peer = plain(&peer_name), size = SIZE, count = 0;
	socklen_t len = sizeof(name);

	name = local_addr(AF_INET, 0);
	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)));
	EXPECT(!rbind(fd, &name.sa, addr_len(&name)) && !rgetsockname(fd, &name.sa, &len));
	memcpy(packet + 12, &peer_name.in.sin_addr, 4);
	for (int i = 0; i < 4 * SIZE / PAYLOAD; i++) {
		EXPECT(sendto(peer, packet, sizeof(packet), 0, &name.sa, addr_len(&name)) == (ssize_t)sizeof(packet));
		/* The answer comes when the packet was handled. */
		named(peer);
	}
	while (rrecv(fd, packet, sizeof(packet), MSG_DONTWAIT) == PAYLOAD)
		count++;
	/* Twice the size that was set, as with sockets, and the last one exceeds it. */
	EXPECT(count > SIZE / PAYLOAD && count <= 2 * SIZE / PAYLOAD + 1);
	EXPECT(!rclose(fd) && !close(peer));
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(a_claim_redirects_nothing);
	CASE(another_address_is_not_believed);
	CASE(long_messages_are_dropped);
	CASE(unread_copies_are_limited);
	return finish();
}
