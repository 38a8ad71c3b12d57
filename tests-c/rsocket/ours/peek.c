/*
 * Data that has arrived is available to the next call, even if the previous call left some: a loop
 * that peeks until there is enough ends. Run on ours only; calls of the reference see no new data as
 * long as some is left.
 */
#include "rsblocked.h"

#include <sys/uio.h>

static char got[64];

static ssize_t peek(int fd) { return rrecv(fd, got, 8, MSG_PEEK); }
static ssize_t peek_all_now(int fd) { return rrecv(fd, got, 8, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT); }
static ssize_t peek_all(int fd) { return rrecv(fd, got, 8, MSG_PEEK | MSG_WAITALL); }

static ssize_t peek_message(int fd)
{
	struct iovec pieces[] = { { got, 3 }, { got + 3, 5 } };
	struct msghdr message = { .msg_iov = pieces, .msg_iovlen = 2 };

	return rrecvmsg(fd, &message, MSG_PEEK);
}

/* Four bytes have been seen when four more are sent: a loop that peeks for eight ends. */
static void header_in_two(ssize_t (*call)(int))
{
	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(rsend(pair.client, "head", 4, 0) == 4);
	EXPECT(rrecv(pair.server, got, 8, MSG_PEEK) == 4);
	EXPECT(rsend(pair.client, "er: and more", 12, 0) == 12);
	while (call(pair.server) < 8)
		pause_briefly();
	EXPECT(!memcmp(got, "header: ", 8));
	EXPECT(recv_all(pair.server, got, 16) == 16 && !memcmp(got, "header: and more", 16));
	rs_pair_close(&pair);
}

static void peeking(void) { header_in_two(peek); }
static void peeking_for_all(void) { header_in_two(peek_all_now); }
static void peeking_by_message(void) { header_in_two(peek_message); }

/* The same call waits for the rest. */
static void peeking_waits_for_all(void)
{
	struct blocked blocked;

	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(rsend(pair.client, "head", 4, 0) == 4);
	start_blocked(&blocked, peek_all, pair.server);
	EXPECT(rsend(pair.client, "er: and more", 12, 0) == 12);
	join(&blocked);
	EXPECT(blocked.ret == 8 && !memcmp(got, "header: ", 8));
	rs_pair_close(&pair);
}

static ssize_t receive(int fd) { return rrecv(fd, got, 16, 0); }
static ssize_t receive_now(int fd) { return rrecv(fd, got, 16, MSG_DONTWAIT); }

static ssize_t receive_pieces(int fd)
{
	struct iovec pieces[] = { { got, 3 }, { got + 3, 13 } };

	return rreadv(fd, pieces, 2);
}

/* A read returns the data that was peeked and what has arrived since. */
static void read_whole(ssize_t (*call)(int))
{
	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(rsend(pair.client, "head", 4, 0) == 4);
	EXPECT(rrecv(pair.server, got, 8, MSG_PEEK) == 4);
	EXPECT(rsend(pair.client, "er", 2, 0) == 2);
	/* Returns when the server's device has it all. */
	EXPECT(!rshutdown(pair.client, SHUT_WR));
	EXPECT(call(pair.server) == 6 && !memcmp(got, "header", 6));
	rs_pair_close(&pair);
}

static void reading(void) { read_whole(receive); }
static void reading_at_once(void) { read_whole(receive_now); }
static void reading_pieces(void) { read_whole(receive_pieces); }

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(peeking);
	CASE(peeking_for_all);
	CASE(peeking_by_message);
	CASE(peeking_waits_for_all);
	/* On siw data has arrived when TCP has it, not the device. */
	CASE_IF(!on_siw(), reading);
	CASE_IF(!on_siw(), reading_at_once);
	CASE_IF(!on_siw(), reading_pieces);
	return finish();
}
