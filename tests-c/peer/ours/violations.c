/*
 * Peers that violate the stream protocol, connected to rsockets of ours: each violation costs only its
 * own connection, the calls on that connection fail, and nothing else is affected.
 */
#include "raw_peer.h"

/* ---- frame ------------------------------------------------------------------------------------ */

/* Both directions: the peer connects to the victim, and the victim to the peer. Around them another
 * connection goes on, and the number of descriptors comes back to what it was. */
static void both_ways(void (*body)(struct peer *))
{
	struct peer peer = { 0 };
	int before;

	good_start();
	before = fds_before();
	for (int way = 0; way < 2; way++) {
		(way ? peer_accepts : peer_connects)(&peer, true);
		body(&peer);
		good_goes_on();
		peer_close(&peer);
		fds_come_back(before);
	}
	good_stop();
}

/* What is left to read, and then the error; after it the connection is at its end. */
static void fails_after(struct peer *peer, size_t left, int error)
{
	char bytes[256];
	size_t got = 0;
	ssize_t count;

	errno = 0;
	while ((count = rrecv(peer->victim, bytes, sizeof(bytes), 0)) > 0)
		got += (size_t)count;
	expect(count == -1 && errno == error, "the error", errno, __LINE__);
	expect(got == left, "the data before it", 0, __LINE__);
	EXPECT((poll_one(peer->victim, POLLIN) & (POLLIN | POLLHUP)) == (POLLIN | POLLHUP));
	EXPECT(rrecv(peer->victim, bytes, sizeof(bytes), 0) == 0);
	EXPECT_ERROR(rsend(peer->victim, bytes, 1, 0), EPIPE);
}

static void aborts(struct peer *peer) { fails_after(peer, 0, ECONNABORTED); }

/* The rest of the peer's messages is as it should be, and arrives. */
static void works(struct peer *peer, uint32_t place)
{
	char bytes[8];

	EXPECT(peer_data(peer, place, "hello"));
	EXPECT(rrecv(peer->victim, bytes, 5, MSG_WAITALL) == 5 && !memcmp(bytes, "hello", 5));
}

/* ---- words ---------------------------------------------------------------------------------- */

static uint32_t half(const struct peer *peer) { return ntohl(peer->theirs.buffer.length); }

static void well(struct peer *peer)
{
	works(peer, 0);
	EXPECT(rsend(peer->victim, "answer", 6, 0) == 6);
	EXPECT(peer_word(peer, WORD(CONTROL, DISCONNECT)));
	EXPECT(rrecv(peer->victim, (char[1]){ 0 }, 1, 0) == 0);
	peer_has(4096, "answer", 6);
}

static void longer(struct peer *peer) { EXPECT(peer_word(peer, WORD(DATA, half(peer) + 1))); aborts(peer); }
static void longest(struct peer *peer) { EXPECT(peer_word(peer, WORD(DATA, -1))); aborts(peer); }

static void longer_than_the_rest(struct peer *peer)
{
	EXPECT(peer_data(peer, 0, "abc"));
	EXPECT(peer_word(peer, WORD(DATA, half(peer) - 2)));
	fails_after(peer, 3, ECONNABORTED);
}

static void without_credit(struct peer *peer)
{
	unsigned credits = ntohs(peer->theirs.credits);

	EXPECT(credits == 16);
	for (unsigned i = 0; i <= credits; i++)
		EXPECT(peer_data(peer, i, "x"));
	/* The victim looks when all of them are there, and has granted nothing in between. */
	EXPECT(peer_wait(peer, 0));
	fails_after(peer, credits, ECONNABORTED);
}

static void updates_without_credit(struct peer *peer)
{
	for (unsigned i = 0; i <= 16; i++)
		EXPECT(peer_map(peer, 0, 0, 0, 0, 0));
	EXPECT(peer_wait(peer, 0));
	aborts(peer);
}

static void grant_back(struct peer *peer) { EXPECT(peer_word(peer, WORD(GRANT, PEER_CREDITS - 1))); aborts(peer); }
static void grant_far(struct peer *peer) { EXPECT(peer_word(peer, WORD(GRANT, 2 * PEER_CREDITS + 1))); aborts(peer); }
static void grant_farther(struct peer *peer) { EXPECT(peer_word(peer, WORD(GRANT, 0xffff))); aborts(peer); }
static void reserved_1(struct peer *peer) { EXPECT(peer_word(peer, WORD(1, 0))); aborts(peer); }
static void reserved_2(struct peer *peer) { EXPECT(peer_word(peer, WORD(2, 5))); aborts(peer); }
static void reserved_3(struct peer *peer) { EXPECT(peer_word(peer, WORD(3, -1))); aborts(peer); }
static void reserved_5(struct peer *peer) { EXPECT(peer_word(peer, WORD(5, 0))); aborts(peer); }
static void control_6(struct peer *peer) { EXPECT(peer_word(peer, WORD(CONTROL, 6))); aborts(peer); }
static void control_most(struct peer *peer) { EXPECT(peer_word(peer, WORD(CONTROL, -1))); aborts(peer); }
static void map_beyond(struct peer *peer) { EXPECT(peer_word(peer, WORD(IOMAP, 8))); aborts(peer); }
static void map_far_beyond(struct peer *peer) { EXPECT(peer_word(peer, WORD(IOMAP, 0x10000))); aborts(peer); }

/* A message that is not part of the protocol: siw's are SENDs of four bytes, longer ones don't fit. */
static void send_instead(struct peer *peer)
{
	EXPECT(peer_post(peer, IBV_WR_SEND, 0, "12345678", on_siw() ? 8 : 0, 0, 0));
	fails_after(peer, 0, on_siw() ? ECONNRESET : ECONNABORTED);
}
static void send_with_bytes(struct peer *peer)
{
	EXPECT(peer_post(peer, IBV_WR_SEND, 0, peer_memory, 4000, 0, 0));
	fails_after(peer, 0, ECONNRESET);
}

static void outside(struct peer *peer, uint64_t addr, uint32_t key)
{
	EXPECT(peer_say(peer, WORD(DATA, 4), "evil", 4, addr, key));
	fails_after(peer, 0, ECONNRESET);
}
static void wrong_address(struct peer *peer)
{
	outside(peer, be64toh(peer->theirs.sgl.addr) - 8, ntohl(peer->theirs.buffer.key));
}
static void wrong_key(struct peer *peer)
{
	outside(peer, be64toh(peer->theirs.buffer.addr), ntohl(peer->theirs.buffer.key) ^ 0x5500);
}

/* More messages than the victim has room for at once; each is looked at, none does harm. */
static void flood(struct peer *peer)
{
	uint32_t place = 0;

	for (int i = 0; i < 3000; i++) {
		EXPECT(peer_word(peer, i % 3 ? WORD(CONTROL, KEEPALIVE) : WORD(GRANT, PEER_CREDITS)));
		if (i % 16 != 15)
			continue;
		if (!on_siw()) {
			/* The victim looks at messages until all have arrived: RoCE repeats those that find no receive. */
			for (;;) {
				EXPECT_ERROR(rrecv(peer->victim, (char[1]){ 0 }, 1, MSG_DONTWAIT), EAGAIN);
				if (peer_is_done(peer))
					break;
				pause_briefly();
			}
			continue;
		}
		/* iWARP does not hold back a peer: it waits until the victim has looked at all so far. That they were sent says
		 * nothing: TCP may hand over many at once, later. */
		EXPECT(peer_data(peer, place++, "x"));
		EXPECT(rrecv(peer->victim, (char[1]){ 0 }, 1, 0) == 1);
	}
	works(peer, place);
}

/* And where nobody waits: more messages than receives end an iWARP connection. siw's QP is in the error state then, and requests
 * that are posted to it never complete, so that nobody may wait for them; the victim has nothing else to tell it either. */
static void overrun(struct peer *peer)
{
	for (int i = 0; i < 60 && peer_word(peer, WORD(CONTROL, KEEPALIVE)); i++)
		;
	aborts(peer);
}

static void farewells(struct peer *peer)
{
	for (int i = 0; i < 6; i++)
		EXPECT(peer_word(peer, WORD(CONTROL, i % 2 ? DISCONNECT : SHUTDOWN)));
	EXPECT(rrecv(peer->victim, (char[1]){ 0 }, 1, 0) == 0);
	EXPECT(rrecv(peer->victim, (char[1]){ 0 }, 1, 0) == 0);
}

static void data_after_the_end(struct peer *peer)
{
	EXPECT(peer_word(peer, WORD(CONTROL, DISCONNECT)));
	EXPECT(peer_data(peer, 0, "more"));
	EXPECT(peer_word(peer, WORD(DATA, half(peer))));
	while (rrecv(peer->victim, (char[8]){ 0 }, 8, 0) > 0)
		;
	EXPECT_ERROR(rsend(peer->victim, "x", 1, 0), EPIPE);
}

/* ---- announced buffers ------------------------------------------------------------------------ */

/* The victim sends into what the peer announced, until that fails. */
static void victim_sends(struct peer *peer)
{
	static char bytes[4 * PEER_BUFFER];
	ssize_t count = 0;

	errno = 0;
	while (count >= 0)
		count = rsend(peer->victim, bytes, sizeof(bytes), 0);
	expect(count == -1 && errno == ECONNRESET, "ECONNRESET", errno, __LINE__);
	EXPECT(rrecv(peer->victim, bytes, 1, 0) == 0);
}

static void target_of_another_key(struct peer *peer)
{
	EXPECT(peer_announce(peer, PEER_CREDITS, 1, (uintptr_t)peer_memory, 0x1234500, PEER_BUFFER));
	victim_sends(peer);
}
static void target_of_all_memory(struct peer *peer)
{
	EXPECT(peer_announce(peer, PEER_CREDITS, 1, (uintptr_t)peer_memory + 4096, peer->mr->rkey, UINT32_MAX));
	victim_sends(peer);
}
static void target_at_the_end(struct peer *peer)
{
	EXPECT(peer_announce(peer, PEER_CREDITS, 1, UINT64_MAX - 10, peer->mr->rkey, UINT32_MAX));
	victim_sends(peer);
}

/* No buffer at all: nothing to send into, until there is one. */
static void target_of_no_bytes(struct peer *peer)
{
	static char bytes[PEER_BUFFER];

	EXPECT(peer_announce(peer, PEER_CREDITS, 1, (uintptr_t)peer_memory, peer->mr->rkey, 0));
	EXPECT(rsend(peer->victim, bytes, sizeof(bytes), 0) == sizeof(bytes));
	works(peer, 0);
	EXPECT_ERROR(rsend(peer->victim, "x", 1, MSG_DONTWAIT), EAGAIN);
	EXPECT(peer_announce(peer, PEER_CREDITS, 1, (uintptr_t)peer_memory + 8192, peer->mr->rkey, 100));
	EXPECT(rsend(peer->victim, "there", 5, 0) == 5);
	peer_has(8192, "there", 5);
}

/* ---- mappings --------------------------------------------------------------------------------- */

static void wild_mappings(struct peer *peer)
{
	uint64_t start = (uintptr_t)peer_memory + 4096;

	/* Longer than there is: as far as the program writes, and the peer's own memory. */
	EXPECT(peer_map(peer, 0, 1000, start, peer->mr->rkey, UINT32_MAX));
	EXPECT(peer_map(peer, 1, UINT64_MAX - 9, start + 100, peer->mr->rkey, UINT32_MAX));
	EXPECT(peer_map(peer, 7, 500, start, peer->mr->rkey, 0));
	works(peer, 0);
	EXPECT(riowrite(peer->victim, "mapped", 6, 1000, 0) == 6);
	EXPECT(riowrite(peer->victim, "high", 4, -5, 0) == 4);
	EXPECT(riowrite(peer->victim, "none", 4, 500, 0) == 0);
	EXPECT(riowrite(peer->victim, "none", 4, 999, 0) == 0);
	peer_has(4096, "mapped", 6);
	peer_has(4096 + 105, "high", 4);
}

static void mapping_of_another_key(struct peer *peer)
{
	ssize_t count = 0;

	EXPECT(peer_map(peer, 3, 0, 0x1000, 0x1234500, UINT32_MAX));
	works(peer, 0);
	errno = 0;
	while (count >= 0)
		count = (ssize_t)riowrite(peer->victim, "evil", 4, 0, 0);
	expect(count == -1 && errno == ECONNRESET, "ECONNRESET", errno, __LINE__);
}

/* ---- leaving ------------------------------------------------------------------------------------ */

static void leaves(struct peer *peer)
{
	EXPECT(!rdma_disconnect(peer->id));
	fails_after(peer, 0, ECONNRESET);
}
static void leaves_behind_data(struct peer *peer)
{
	EXPECT(peer_data(peer, 0, "bye") && peer_wait(peer, 0));
	EXPECT(poll_one(peer->victim, POLLIN) & POLLIN);
	EXPECT(!rdma_disconnect(peer->id));
	fails_after(peer, 3, ECONNRESET);
}
static void leaves_in_half_a_message(struct peer *peer)
{
	EXPECT(peer_post(peer, IBV_WR_RDMA_WRITE, 0, "data without a word", 19,
			 be64toh(peer->theirs.buffer.addr), ntohl(peer->theirs.buffer.key)));
	EXPECT(!rdma_disconnect(peer->id));
	fails_after(peer, 0, ECONNRESET);
}
static void leaves_a_sender(struct peer *peer)
{
	EXPECT(rsend(peer->victim, peer_memory, PEER_BUFFER, 0) == PEER_BUFFER);
	EXPECT_ERROR(rsend(peer->victim, "x", 1, MSG_DONTWAIT), EAGAIN);
	EXPECT(!rdma_disconnect(peer->id));
	EXPECT_ERROR(rsend(peer->victim, "x", 1, 0), ECONNRESET);
	EXPECT(rrecv(peer->victim, (char[1]){ 0 }, 1, 0) == 0);
}
static void leaves_a_half_closed_one(struct peer *peer)
{
	EXPECT(!rshutdown(peer->victim, SHUT_WR));
	EXPECT(!rdma_disconnect(peer->id));
	EXPECT_ERROR(rrecv(peer->victim, (char[1]){ 0 }, 1, 0), ECONNRESET);
}

/* ---- which -------------------------------------------------------------------------------------- */

static const struct attack {
	const char *name;
	void (*body)(struct peer *);
	/* Only where a message that is acknowledged has arrived: not on iWARP. Or only where none is repeated: there. */
	enum { EVERYWHERE, NOT_ON_SIW, ONLY_ON_SIW } where;
} attacks[] = {
#define ATTACK(body) { #body, body, EVERYWHERE }
	ATTACK(well), ATTACK(longer), ATTACK(longest), ATTACK(longer_than_the_rest),
	{ "without_credit", without_credit, NOT_ON_SIW },
	{ "updates_without_credit", updates_without_credit, NOT_ON_SIW },
	ATTACK(grant_back), ATTACK(grant_far), ATTACK(grant_farther), ATTACK(reserved_1),
	ATTACK(reserved_2), ATTACK(reserved_3), ATTACK(reserved_5), ATTACK(control_6),
	ATTACK(control_most), ATTACK(map_beyond), ATTACK(map_far_beyond), ATTACK(send_instead),
	ATTACK(send_with_bytes), ATTACK(wrong_address), ATTACK(wrong_key), ATTACK(flood),
	{ "overrun", overrun, ONLY_ON_SIW },
	ATTACK(farewells), ATTACK(data_after_the_end), ATTACK(target_of_another_key),
	ATTACK(target_of_all_memory), ATTACK(target_at_the_end), ATTACK(target_of_no_bytes),
	ATTACK(wild_mappings), ATTACK(mapping_of_another_key), ATTACK(leaves),
	ATTACK(leaves_behind_data), ATTACK(leaves_in_half_a_message), ATTACK(leaves_a_sender),
	ATTACK(leaves_a_half_closed_one),
};
static const struct attack *attack;

static void run_attack(void) { both_ways(attack->body); }

int main(int argc, char **argv)
{
	start(argc, argv);
	for (attack = attacks; attack < attacks + sizeof(attacks) / sizeof(attacks[0]); attack++) {
		if (argc > 2 && strcmp(argv[2], attack->name))
			continue;
		declare_cases(1);
		if (attack->where == (on_siw() ? NOT_ON_SIW : ONLY_ON_SIW))
			leave_case(attack->name, "not on this device");
		else
			run_case(attack->name, run_attack);
	}
	return finish();
}
