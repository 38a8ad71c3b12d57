/*
 * A peer that deliberately violates the protocol: a raw connection of the RDMA CM to a listening
 * rsocket. It costs only its own connection. Run on ours only: the reference reads and writes where
 * the peer tells it to.
 */
#include "cases.h"
#include "rscommon.h"

#include <arpa/inet.h>
#include <endian.h>

enum { OP_DATA = 0, OP_SGL = 4, OP_IOMAP = 6, OP_CTRL = 7, ROOM = 1 << 18, RECEIVES = 512, WORDS = 3 << 16,
       FULL_BUFFER = 131072 };

/* The private data of both sides. */
struct hello {
	uint8_t version, flags;
	uint16_t credits;
	uint8_t reserved[3], iomap_size;
	struct { uint64_t addr; uint32_t key, length; } sgl, data;
} __attribute__((packed));
_Static_assert(sizeof(struct hello) == 40, "the protocol's size");

struct entry {
	uint64_t addr;
	uint32_t key, length;
};

static int listener, victim;
static union address to;
static struct pair raw;
static struct ibv_mr *mr;
static unsigned char memory[ROOM];
/* What the victim announced. */
static struct hello theirs;

/* ---- the raw peer --------------------------------------------------------------------- */

static void begin(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);

	EXPECT((listener = rs_listener(AF_INET, &to, NULL)) >= 0);
	EXPECT(pair_open(&raw, RDMA_PS_TCP, AF_INET));
	raw.to = to;
	EXPECT(pair_resolve(&raw, false));
	attr.cap.max_send_wr = 1000;
	attr.cap.max_recv_wr = RECEIVES;
	attr.cap.max_inline_data = sizeof(uint32_t);
	attr.sq_sig_all = 0;
	EXPECT(!rdma_create_qp(raw.client, NULL, &attr));
	mr = ibv_reg_mr(raw.client->pd, memory, ROOM, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	EXPECT(mr != NULL);
	for (int i = 0; i < RECEIVES; i++) {
		/* The words that iWARP sends behind its writes. */
		struct ibv_sge sge = { (uintptr_t)memory + WORDS + 4u * (unsigned)i, 4, mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = on_siw() }, *bad;

		EXPECT(!ibv_post_recv(raw.client->qp, &wr, &bad));
	}
}

static void end(void)
{
	EXPECT(!ibv_dereg_mr(mr));
	pair_close(&raw);
}

/* What an honest peer would say. */
static struct hello honest(void)
{
	struct hello hello = { .version = 1, .credits = htobe16(RECEIVES) };

	hello.sgl.addr = htobe64((uintptr_t)memory);
	hello.sgl.key = htobe32(mr->rkey);
	hello.sgl.length = htobe32(2);
	hello.data.addr = htobe64((uintptr_t)memory + 65536);
	hello.data.key = htobe32(mr->rkey);
	hello.data.length = htobe32(65536);
	return hello;
}

static bool greet(const struct hello *hello, uint8_t len)
{
	struct rdma_conn_param param = conn_param(hello, len);
	struct rdma_cm_event *event = NULL;
	bool good;

	param.retry_count = param.rnr_retry_count = 7;
	EXPECT(!rdma_connect(raw.client, &param));
	EXPECT(!rdma_get_cm_event(raw.client_channel, &event));
	good = event->event == RDMA_CM_EVENT_ESTABLISHED;
	if (good)
		memcpy(&theirs, event->param.conn.private_data, sizeof(theirs));
	rdma_ack_cm_event(event);
	return good;
}

static void connect_honestly(void)
{
	struct hello hello;

	begin();
	hello = honest();
	EXPECT(greet(&hello, sizeof(hello)));
	EXPECT((victim = raccept(listener, NULL, NULL)) >= 0);
	EXPECT(theirs.version == 1 && be32toh(theirs.sgl.length) == 2);
}

/* `len` bytes to the victim's memory, with the message; 0 of them goes to its buffer too. False when it can't be posted. */
static bool try_message(unsigned op, uint32_t value, uint64_t addr, uint32_t key, uint32_t len)
{
	uint32_t word = op << 29 | (value & 0x1fffffff);
	struct ibv_sge sge = { (uintptr_t)memory + 131072, len, mr->lkey };
	struct ibv_sge word_sge = { (uintptr_t)&word, sizeof(word), 0 };
	struct ibv_send_wr send = {
		.opcode = IBV_WR_SEND, .sg_list = &word_sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
	};
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .sg_list = &sge, .num_sge = len ? 1 : 0,
		.imm_data = htonl(word), .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = addr, .rkey = key },
	}, *bad;

	if (on_siw()) {
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.next = &send;
	}
	return !ibv_post_send(raw.client->qp, on_siw() && !len ? &send : &wr, &bad);
}

static void message(unsigned op, uint32_t value, uint64_t addr, uint32_t key, uint32_t len)
{
	EXPECT(try_message(op, value, addr, key, len));
}

static void data(uint32_t claimed, uint32_t len)
{
	message(OP_DATA, claimed, be64toh(theirs.data.addr), be32toh(theirs.data.key), len);
}

static void bare(unsigned op, uint32_t value)
{
	message(op, value, be64toh(theirs.data.addr), be32toh(theirs.data.key), 0);
}

/* ---- what must follow --------------------------------------------------------------------- */

/* Others are served as before. */
static void others_live(void)
{
	int client = rsocket(AF_INET, SOCK_STREAM, 0), server;
	char buf[8];

	EXPECT(!rconnect(client, &to.sa, sizeof(to.in)));
	EXPECT((server = raccept(listener, NULL, NULL)) >= 0);
	EXPECT(rsend(client, "good", 4, 0) == 4);
	EXPECT(rrecv(server, buf, 4, MSG_WAITALL) == 4 && !memcmp(buf, "good", 4));
	EXPECT(!rclose(client) && !rclose(server) && !rclose(listener));
}

/* The connection fails, after no more data than really came. */
static void victim_fails_after(size_t most)
{
	static char buf[ROOM];
	size_t got = 0;
	ssize_t ret;
	int error;

	while ((ret = rrecv(victim, buf, sizeof(buf), 0)) > 0)
		got += (size_t)ret;
	error = errno;
	EXPECT(got <= most);
	EXPECT(ret == -1 && (error == ECONNABORTED || error == EIO || error == ECONNRESET || error == EPROTO));
	EXPECT(poll_gone(victim) & (POLLERR | POLLHUP));
	EXPECT(rsend(victim, "x", 1, MSG_NOSIGNAL) == -1);
	EXPECT(!rclose(victim));
	others_live();
}

static void victim_goes_on(void)
{
	char buf[16];

	memcpy(memory + 131072, "fine", 4);
	data(4, 4);
	EXPECT(rrecv(victim, buf, 4, MSG_WAITALL) == 4 && !memcmp(buf, "fine", 4));
	EXPECT(!rclose(victim));
	others_live();
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void honest_peer(void)
{
	connect_honestly();
	victim_goes_on();
}

/* Each of these is no hello: refused, whatever else the listener does. */
static void bad_hellos(void)
{
	for (int which = 0; which < 8; which++) {
		struct hello hello;
		uint8_t len = sizeof(hello);

		begin();
		hello = honest();
		switch (which) {
		case 0: hello.version = 0; break;
		case 1: hello.version = 2; break;
		case 2: len = 20; break;
		case 3: len = 0; break;
		case 4: hello.sgl.length = 0; break;
		case 5: hello.sgl.length = htobe32(3); break;
		case 6: hello.data.length = 0; break;
		case 7: hello.credits = 0; break;
		}
		if (greet(&hello, len))
			fail_case("hello %d is taken", which);
		others_live();
		end();
	}
}

static void claims_more_than_granted(void)
{
	connect_honestly();
	data(0x1fffffff, 100);
	victim_fails_after(0);
}

static void claims_a_byte_too_much(void)
{
	connect_honestly();
	data(be32toh(theirs.data.length) + 1, 100);
	victim_fails_after(0);
}

static void claims_more_in_parts(void)
{
	uint32_t first;

	connect_honestly();
	first = be32toh(theirs.data.length);
	data(first, 100);
	/* The victim may have advertised the halves of its full buffer by now. */
	for (int i = 0; i < 3; i++)
		data(FULL_BUFFER / 2, 100);
	victim_fails_after(first + FULL_BUFFER);
}

static void unknown_operations(void)
{
	static const unsigned ops[] = { 1, 2, 3, 5 };

	for (int i = 0; i < 4; i++) {
		connect_honestly();
		bare(ops[i], 77);
		victim_fails_after(0);
		end();
	}
}

static void unknown_control(void)
{
	connect_honestly();
	bare(OP_CTRL, 99);
	victim_fails_after(0);
}

/* The victim has no table for them. */
static void mapping_without_table(void)
{
	connect_honestly();
	bare(OP_IOMAP, 0);
	victim_fails_after(0);
}

static void mapping_outside_of_table(void)
{
	connect_honestly();
	bare(OP_IOMAP, 0x1ffffff0);
	victim_fails_after(0);
}

/* A grant that goes back or far ahead. */
static void absurd_grant(void)
{
	connect_honestly();
	bare(OP_SGL, 0x8000);
	for (int i = 0; i < 2000; i++)
		if (rsend(victim, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1)
			break;
	EXPECT(!rclose(victim));
	others_live();
}

/* An entry for the victim to write to that is not this peer's memory. */
static void grants_foreign_memory(void)
{
	struct entry *entry = (struct entry *)(memory + 131072);

	connect_honestly();
	*entry = (struct entry){ 0x1000, 0x1234, 0x7fffffff };
	message(OP_SGL, RECEIVES, be64toh(theirs.sgl.addr) + sizeof(*entry), be32toh(theirs.sgl.key),
		sizeof(*entry));
	while (rsend(victim, memory, 65536, MSG_NOSIGNAL) > 0)
		;
	EXPECT(!rclose(victim));
	others_live();
}

/* Twice as many messages as there are receives, without a look at the credits. */
static void ignores_credits(void)
{
	unsigned limit;

	connect_honestly();
	limit = be16toh(theirs.credits) * 2u;
	/* On iWARP the connection ends on the way: there are no more receives. */
	for (unsigned i = 0; i < limit && i < 900; i++)
		if (!try_message(OP_DATA, 1, be64toh(theirs.data.addr), be32toh(theirs.data.key), 1)) {
			EXPECT(on_siw());
			break;
		}
	for (char byte; rrecv(victim, &byte, 1, MSG_DONTWAIT) == 1;)
		;
	EXPECT(!rclose(victim));
	others_live();
}

/* Data after the peer said that there would be none: dropped or delivered, not more than it is. */
static void data_after_shutdown(void)
{
	char buf[16];

	connect_honestly();
	bare(OP_CTRL, 2);
	data(4, 4);
	EXPECT(rrecv(victim, buf, 16, 0) <= 4);
	EXPECT(!rclose(victim));
	others_live();
}

/* The peer states its byte order; the entries that the victim writes to its target SGL have it. */
static void byte_order(bool big)
{
	static char buf[ROOM];
	volatile struct entry *entries = (void *)memory;
	uint32_t first, length;
	struct hello hello;

	begin();
	memset(memory, 0, 2 * sizeof(*entries));
	hello = honest();
	hello.flags = big;
	EXPECT(greet(&hello, sizeof(hello)) && (victim = raccept(listener, NULL, NULL)) >= 0);
	first = be32toh(theirs.data.length);
	data(first, first);
	EXPECT(rrecv(victim, buf, first, MSG_WAITALL) == (ssize_t)first);
	while (!(length = entries[0].length | entries[1].length))
		pause_briefly();
	length = big ? be32toh(length) : le32toh(length);
	EXPECT(length >= first && length <= FULL_BUFFER);
	EXPECT(!rclose(victim));
	others_live();
}

static void big_endian_peer(void) { byte_order(true); }
static void little_endian_peer(void) { byte_order(false); }

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(honest_peer);
	CASE(bad_hellos);
	CASE(claims_more_than_granted);
	CASE(claims_a_byte_too_much);
	CASE(claims_more_in_parts);
	CASE(unknown_operations);
	CASE(unknown_control);
	CASE(mapping_without_table);
	CASE(mapping_outside_of_table);
	CASE(absurd_grant);
	CASE(grants_foreign_memory);
	CASE(ignores_credits);
	CASE(data_after_shutdown);
	CASE(big_endian_peer);
	CASE(little_endian_peer);
	return finish();
}
