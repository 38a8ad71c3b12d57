/*
 * A peer that has receives for the credits that it gave and no more, as the reference does: messages
 * without credit must find one, too. iWARP ends a connection whose message finds no receive. Run on
 * ours only, because the reference has no credits left for them.
 */
#include "raw_peer.h"
#include "rsblocked.h"

static struct peer peer;

static void post_receives(unsigned count)
{
	static unsigned next;

	while (count--)
		EXPECT(!rdma_post_recv(peer.id, NULL, peer_memory + 2048 + 8 * (next++ % PEER_RECEIVES), 8, peer.mr));
}

/* Between two messages it looks for data, so each is sent at once. */
static unsigned send_without_waiting(void)
{
	unsigned sent = 0;
	char byte;

	while (rsend(peer.victim, "d", 1, MSG_DONTWAIT) == 1) {
		EXPECT_ERROR(rrecv(peer.victim, &byte, 1, MSG_DONTWAIT), EAGAIN);
		sent++;
	}
	EXPECT_ERROR(rsend(peer.victim, "d", 1, MSG_DONTWAIT), EAGAIN);
	return sent;
}

/* Waits for this many messages. RoCE's message without a receive is sent again later. */
static void receive(unsigned count)
{
	struct ibv_wc wc;

	while (count--) {
		EXPECT(rdma_get_recv_comp(peer.id, &wc) == 1 && !wc.status);
		if (!on_siw())
			post_receives(1);
	}
}

static void every_message_finds_a_receive(void)
{
	char byte;
	unsigned sent;

	peer_connects(&peer, false);
	post_receives(PEER_CREDITS);
	/* The victim announces the other half of its buffer: a message without credit. */
	EXPECT(peer_data(&peer, 0, "x") && rrecv(peer.victim, &byte, 1, 0) == 1);
	sent = send_without_waiting();
	EXPECT(sent >= PEER_CREDITS / 2);
	receive(sent + 1);
	if (on_siw())
		post_receives(sent + 1);
	/* As many credits as receives. */
	EXPECT(peer_word(&peer, WORD(GRANT, PEER_CREDITS + sent)));
	EXPECT(rsend(peer.victim, "d", 1, 0) == 1);
	receive(1);
	EXPECT(peer_data(&peer, 1, "y") && rrecv(peer.victim, &byte, 1, 0) == 1 && byte == 'y');
	peer_close(&peer);
}

static ssize_t call_shutdown(int fd) { return rshutdown(fd, SHUT_WR); }
static ssize_t call_close(int fd) { return rclose(fd); }

/* The next word but credit updates. */
static void is_received(uint32_t word)
{
	struct ibv_wc wc;

	do
		EXPECT(rdma_get_recv_comp(peer.id, &wc) == 1 && !wc.status);
	while (ntohl(wc.imm_data) >> 29 == GRANT);
	EXPECT(ntohl(wc.imm_data) == word);
}

/* One thread waits in rshutdown(3) until its data has arrived; the peer has nothing more to say, and another thread closes. */
static void close_beside_shutdown(void)
{
	struct blocked shutting, closing;
	char byte;

	peer_connects(&peer, false);
	EXPECT(rsend(peer.victim, "d", 1, 0) == 1);
	start_blocked(&shutting, call_shutdown, peer.victim);
	EXPECT(peer_word(&peer, WORD(CONTROL, SHUTDOWN)) && rrecv(peer.victim, &byte, 1, 0) == 0);
	start_blocked(&closing, call_close, peer.victim);
	post_receives(8);
	is_received(WORD(DATA, 1));
	is_received(WORD(CONTROL, SHUTDOWN));
	is_received(WORD(CONTROL, DISCONNECT));
	join(&shutting);
	join(&closing);
	EXPECT(shutting.ret == 0 && closing.ret == 0);
	peer.victim = 0;
	peer_close(&peer);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(every_message_finds_a_receive);
	/* On iWARP a message without a receive ends the connection. */
	CASE_IF(!on_siw(), close_beside_shutdown);
	return finish();
}
