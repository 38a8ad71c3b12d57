/*
 * An idle rsocket asks its peer to continue in the first buffer, RECALL in docs/protocol.md. Peers that follow,
 * that do not, and that violate the protocol, and peers that ask an rsocket of ours.
 */
#include "raw_peer.h"
#include "rscommon.h"

enum { RECALL = 3, RECALLED = 4, KEPT = 5, UNKNOWN = 6, FIRST = 8192, PIECE = 2000, PIECES = 3 };

static struct peer peer;

/* The victim has buffers of the usual sizes. */
static void connects_alone(void)
{
	union address address;
	struct rdma_conn_param param;

	rs_configure("idle_time", 1);
	peer.victim_listener = listen_on(&address, 4, 0);
	rs_configure("idle_time", -1);
	peer.id = peer_resolved(&address, NULL);
	peer_prepare(&peer, true);
	peer.mine.buffer.length = htonl(FIRST);
	param = peer_param(&peer.mine, sizeof(peer.mine));
	EXPECT(!rdma_connect(peer.id, &param));
	memcpy(&peer.theirs, peer.id->event->param.conn.private_data, sizeof(peer.theirs));
	EXPECT(ntohl(peer.theirs.buffer.length) == FIRST);
	EXPECT((peer.victim = raccept(peer.victim_listener, NULL, NULL)) >= 0);
}

static void connects(void)
{
	connects_alone();
	good_start();
}

static void ends(void)
{
	good_goes_on();
	peer_close(&peer);
	good_stop();
}

static void aborts(void)
{
	EXPECT_ERROR(rrecv(peer.victim, (char[1]){ 0 }, 1, 0), ECONNABORTED);
	ends();
}

/* Sends so much that the victim gets a larger buffer, and waits until it asks for the first one to be used again. */
static void is_asked(void)
{
	/* In memory that is registered, and that the victim does not write to yet. */
	char *text = (char *)peer_memory + sizeof(peer_memory) - PIECE - 1, bytes[PIECE];
	uint32_t word;

	memset(text, 'x', PIECE);
	text[PIECE] = 0;
	for (int i = 0; i < PIECES; i++)
		EXPECT(peer_data(&peer, (uint32_t)(i * PIECE), text));
	for (int i = 0; i < PIECES; i++)
		EXPECT(recv_all(peer.victim, bytes, PIECE) == PIECE);
	do {
		word = peer_next_word(&peer);
		EXPECT(word >> 29 == GRANT || word == WORD(CONTROL, RECALL | PIECES << 8));
	} while (word >> 29 != CONTROL);
}

static void says(uint32_t place)
{
	char bytes[5];

	EXPECT(peer_data(&peer, place, "hello"));
	EXPECT(recv_all(peer.victim, bytes, 5) == 5 && !memcmp(bytes, "hello", 5));
}

static void follows(void)
{
	connects();
	is_asked();
	EXPECT(peer_word(&peer, WORD(CONTROL, RECALLED)));
	says(0);
	ends();
}

static void stays(void)
{
	connects();
	is_asked();
	EXPECT(peer_word(&peer, WORD(CONTROL, KEPT)));
	says(PIECES * PIECE);
	ends();
}

/* A message crosses the RECALL, so the peer refuses: it is asked again, whichever thread has read its answer. */
static void is_asked_again(void)
{
	connects();
	is_asked();
	EXPECT(peer_data(&peer, PIECES * PIECE, "hello") && peer_word(&peer, WORD(CONTROL, KEPT)));
	EXPECT(recv_all(peer.victim, (char[5]){ 0 }, 5) == 5);
	EXPECT(peer_next_word(&peer) == WORD(CONTROL, RECALL | (PIECES + 1) << 8));
	EXPECT(peer_word(&peer, WORD(CONTROL, RECALLED)));
	says(0);
	ends();
}

static void does_not_answer(void)
{
	connects();
	is_asked();
	says(PIECES * PIECE);
	ends();
}

/* The memory that it was told of before is not the victim's any more. */
static void writes_where_it_wrote(void)
{
	struct region left;
	long before;

	connects_alone();
	before = pinned_kb();
	is_asked();
	memcpy(&left, peer_memory + 16, sizeof(left));
	EXPECT(left.length > 0 && peer_word(&peer, WORD(CONTROL, RECALLED)));
	while (pinned_kb() > before)
		pause_briefly();
	EXPECT(peer_say(&peer, WORD(DATA, 5), "hello", 5, left.addr, left.key));
	EXPECT_ERROR(rrecv(peer.victim, (char[5]){ 0 }, 5, 0), ECONNRESET);
	peer_close(&peer);
}

static void sends_first(void)
{
	connects();
	is_asked();
	EXPECT(peer_data(&peer, PIECES * PIECE, "hello") && peer_word(&peer, WORD(CONTROL, RECALLED)));
	EXPECT(recv_all(peer.victim, (char[5]){ 0 }, 5) == 5);
	aborts();
}

static void answers_twice(void)
{
	connects();
	is_asked();
	EXPECT(peer_word(&peer, WORD(CONTROL, RECALLED)) && peer_word(&peer, WORD(CONTROL, RECALLED)));
	aborts();
}

static void gives_both_answers(void)
{
	connects();
	is_asked();
	EXPECT(peer_word(&peer, WORD(CONTROL, KEPT)) && peer_word(&peer, WORD(CONTROL, RECALLED)));
	aborts();
}

static void sends_control(uint32_t value)
{
	connects();
	EXPECT(peer_word(&peer, WORD(CONTROL, value)));
	aborts();
}

static void follows_unasked(void) { sends_control(RECALLED); }
static void stays_unasked(void) { sends_control(KEPT); }
static void asks_for_too_many(void) { sends_control(RECALL | 0x10000 << 8); }
static void says_too_much(void) { sends_control(RECALLED | 1 << 8); }
static void says_what_nobody_knows(void) { sends_control(UNKNOWN); }

static void asks_for(uint16_t messages, uint32_t answer)
{
	EXPECT(peer_word(&peer, WORD(CONTROL, RECALL | messages << 8)));
	EXPECT(peer_next_word(&peer) == WORD(CONTROL, answer));
}

/* The victim moves if it is elsewhere, has sent nothing more, and knows another buffer, which is forgotten. */
static void asks(void)
{
	struct region mine;

	connects();
	asks_for(0, KEPT);
	asks_for(0xffff, KEPT);
	EXPECT(rsend(peer.victim, "first", 5, 0) == 5);
	EXPECT(peer_next_word(&peer) == WORD(DATA, 5));
	asks_for(1, KEPT);
	memcpy(&mine, &peer.mine.sgl, sizeof(mine));
	EXPECT(peer_announce(&peer, PEER_CREDITS + 1, 1, be64toh(mine.addr) + 1024, ntohl(mine.key), 512));
	asks_for(0, KEPT);
	asks_for(1, RECALLED);
	asks_for(1, KEPT);
	EXPECT(rsend(peer.victim, "again", 5, 0) == 5);
	EXPECT(peer_next_word(&peer) == WORD(DATA, 5));
	peer_has(4096, "again", 5);
	asks_for(2, KEPT);
	EXPECT(peer_announce(&peer, PEER_CREDITS + 2, 0, be64toh(mine.addr) + 1024, ntohl(mine.key), 512));
	asks_for(2, RECALLED);
	says(0);
	ends();
}

/* Without waiting for answers: it gets one for each that the victim finds alone. */
static void asks_all_the_time(void)
{
	connects();
	for (int i = 0; i < 20; i++)
		EXPECT(peer_word(&peer, WORD(CONTROL, RECALL | i << 8)) && peer_wait(&peer, 0));
	says(0);
	ends();
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(follows);
	CASE(stays);
	CASE(is_asked_again);
	CASE(does_not_answer);
	CASE(writes_where_it_wrote);
	CASE(sends_first);
	CASE(answers_twice);
	CASE(gives_both_answers);
	CASE(follows_unasked);
	CASE(stays_unasked);
	CASE(asks_for_too_many);
	CASE(says_too_much);
	CASE(says_what_nobody_knows);
	CASE(asks);
	CASE(asks_all_the_time);
	return finish();
}
