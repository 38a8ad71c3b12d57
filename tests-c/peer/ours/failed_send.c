/*
 * A send fails because the peer's memory is gone: what has arrived before is read first, also if the call that sends is
 * the one that finds the failure. Run on ours only; the error of the reference's call differs.
 */
#include "raw_peer.h"

static struct peer peer;

static ssize_t send_until_it_fails(void)
{
	ssize_t ret;

	while ((ret = rsend(peer.victim, "x", 1, MSG_DONTWAIT)) == 1 || (ret < 0 && errno == EAGAIN))
		if (ret < 0)
			pause_briefly();
	return ret;
}

static void data_that_arrived_before_is_read(void)
{
	char bytes[8];

	for (int round = 0; round < 8; round++) {
		memset(&peer, 0, sizeof(peer));
		peer_connects(&peer, true);
		EXPECT(peer_data(&peer, 0, "hello") && peer_wait(&peer, 0));
		/* The words of iWARP are sent from this memory, so it goes when they have arrived. */
		EXPECT(!ibv_dereg_mr(peer.mr));
		peer.mr = NULL;
		EXPECT(send_until_it_fails() == -1);
		EXPECT(rrecv(peer.victim, bytes, 8, 0) == 5 && !memcmp(bytes, "hello", 5));
		EXPECT(rrecv(peer.victim, bytes, 8, 0) <= 0);
		peer_close(&peer);
	}
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(data_that_arrived_before_is_read);
	return finish();
}
