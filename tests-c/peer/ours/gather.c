/*
 * What is sent from several buffers takes as few messages as from one: a peer made by hand counts
 * them. Run on ours only; the reference divides what it sends in another way.
 */
#include "raw_peer.h"
#include "rscommon.h"

#include <sys/uio.h>

enum { MOST_MESSAGES = 16, MOST_PIECES = 64 };

struct messages {
	size_t count;
	uint32_t lengths[MOST_MESSAGES];
};

static char data[2 * PEER_BUFFER];

/* Messages of data until `total` bytes have come. */
static void receive(struct peer *peer, size_t total, struct messages *messages)
{
	struct ibv_wc wc;
	uint32_t word;

	for (unsigned next = 0; total; next++) {
		EXPECT(rdma_get_recv_comp(peer->id, &wc) == 1 && !wc.status);
		memcpy(&word, peer_memory + 2048 + 8 * next, sizeof(word));
		if (!on_siw())
			word = ntohl(wc.imm_data);
		/* The other half of the victim's buffer. */
		if (word >> 29 == GRANT)
			continue;
		EXPECT(word >> 29 == DATA && word <= total && messages->count < MOST_MESSAGES);
		messages->lengths[messages->count++] = word;
		total -= word;
	}
}

/* Sends the first bytes of `data` in `count` pieces, with empty ones between them; over a connection of its own. */
static struct messages send_pieces(size_t total, size_t count)
{
	struct peer peer = { 0 };
	struct messages messages = { 0 };
	struct iovec pieces[2 * MOST_PIECES];
	struct msghdr message = { .msg_iov = pieces, .msg_iovlen = 2 * count };
	size_t start = 0;

	for (size_t i = 0; i < count; i++) {
		size_t end = total * (i + 1) / count;

		pieces[2 * i] = (struct iovec){ data + start, end - start };
		pieces[2 * i + 1] = (struct iovec){ NULL, 0 };
		start = end;
	}
	peer_connects(&peer, true);
	/* The second half of the buffer. Both halves of the stream's are in the peer's memory in order. */
	EXPECT(peer_announce(&peer, PEER_CREDITS, 1, (uint64_t)(uintptr_t)peer_memory + 4096 + PEER_BUFFER,
			     peer.mr->rkey, PEER_BUFFER));
	if (count == 1)
		EXPECT(rsend(peer.victim, data, total, 0) == (ssize_t)total);
	else if (count % 2)
		EXPECT(rwritev(peer.victim, pieces, 2 * (int)count) == (ssize_t)total);
	else
		EXPECT(rsendmsg(peer.victim, &message, 0) == (ssize_t)total);
	receive(&peer, total, &messages);
	peer_has(4096, data, total);
	peer_close(&peer);
	return messages;
}

static void as_few_messages(void)
{
	/* Inline; no longer inline; a message's worth; all of one half; into the second one; all of both. */
	static const size_t totals[] = { 8, 64, 65, 3000, PEER_BUFFER, PEER_BUFFER + 20, 2 * PEER_BUFFER };
	static const size_t counts[] = { 2, 3, 8, 64 };

	fill(data, sizeof(data), 1, 0);
	for (size_t i = 0; i < sizeof(totals) / sizeof(totals[0]); i++) {
		struct messages whole = send_pieces(totals[i], 1);

		EXPECT(whole.count == 1 + (totals[i] > PEER_BUFFER));
		for (size_t j = 0; j < sizeof(counts) / sizeof(counts[0]); j++) {
			struct messages gathered = send_pieces(totals[i], counts[j]);

			EXPECT(!memcmp(&gathered, &whole, sizeof(whole)));
		}
	}
}

/* Inline data of up to 300 bytes, which is more than is gathered on the stack. */
static void more_inline(void)
{
	struct rspair pair;
	struct iovec pieces[] = { { data, 100 }, { data + 100, 190 } };
	char got[290];

	fill(data, sizeof(data), 2, 0);
	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(rwritev(pair.client, pieces, 2) == 290);
	EXPECT(recv_all(pair.server, got, 290) == 290 && !memcmp(got, data, 290));
	rs_pair_close(&pair);
}

/* More pieces than the buffers on either side take at once, read by as many. */
static void large(void)
{
	enum { SIZE = 1 << 20, PIECES = 100 };
	static char bytes[SIZE], got[SIZE];
	struct iovec pieces[PIECES];
	struct rspair pair;
	size_t sent = 0, received = 0;

	fill(bytes, SIZE, 3, 0);
	EXPECT(rs_pair(&pair, AF_INET));
	rs_nonblock(pair.client, true);
	while (received < SIZE) {
		size_t count = 0;
		ssize_t done;

		/* What is left, in pieces of 10,007 bytes. */
		for (size_t start = sent; start < SIZE && count < PIECES; start += 10007)
			pieces[count++] = (struct iovec){ bytes + start, SIZE - start < 10007 ? SIZE - start : 10007 };
		done = rwritev(pair.client, pieces, (int)count);
		expect(done >= 0 || errno == EAGAIN, "rwritev", errno, __LINE__);
		sent += done > 0 ? (size_t)done : 0;
		done = rrecv(pair.server, got + received, SIZE - received, MSG_DONTWAIT);
		expect(done >= 0 || errno == EAGAIN, "rrecv", errno, __LINE__);
		received += done > 0 ? (size_t)done : 0;
	}
	EXPECT(!memcmp(bytes, got, SIZE));
	rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(as_few_messages);
	CASE(more_inline);
	CASE(large);
	return finish();
}
