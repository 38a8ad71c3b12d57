/*
 * A stream that has become idle needs no more memory than a new one: both ends return their buffers, whether
 * or not their programs make calls, and the next data makes them grow again. Run on ours only.
 */
#include "cases.h"
#include "rscommon.h"

#include <pthread.h>
#include <signal.h>

enum { PAIRS = 8, PIECE = 300000, END_KB = 16, IDLE_MS = 20, ROUNDS = 3 };

static struct rspair pairs[PAIRS];
static char out[PIECE], in[PIECE];

/* The program's own pause is no event, so the memory is looked at again and again. */
static void shrinks_to(long kb)
{
	while (pinned_kb() > kb)
		pause_briefly();
}

static void *sends(void *fd)
{
	return (void *)(uintptr_t)(send_all(*(int *)fd, out, PIECE) == PIECE);
}

static void transfer(int from, int to, unsigned seed)
{
	pthread_t thread;
	void *good;

	fill(out, PIECE, seed, 0);
	EXPECT(!pthread_create(&thread, NULL, sends, &from));
	EXPECT(recv_all(to, in, PIECE) == PIECE && filled(in, PIECE, seed, 0));
	EXPECT(!pthread_join(thread, &good) && good);
}

static void open_pairs(void)
{
	rs_configure("idle_time", IDLE_MS);
	for (int i = 0; i < PAIRS; i++)
		EXPECT(rs_pair(&pairs[i], AF_INET));
	rs_configure("idle_time", -1);
}

static void close_pairs(void)
{
	for (int i = 0; i < PAIRS; i++)
		rs_pair_close(&pairs[i]);
}

/* In one direction, in the other one, and in both. */
static void used_and_idle(void)
{
	open_pairs();
	for (unsigned round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < PAIRS; i++) {
			if (round != 1)
				transfer(pairs[i].client, pairs[i].server, round);
			if (round != 0)
				transfer(pairs[i].server, pairs[i].client, round + 100);
		}
		shrinks_to(2 * PAIRS * END_KB);
	}
	close_pairs();
	EXPECT(pinned_kb() == 0);
}

/* Data that does not fill the first buffer, and data that ends at its end. */
static void little_data(void)
{
	static const size_t lengths[] = { 5000, 8192, 8193, 16384, 65536, 73728, 131072 };

	open_pairs();
	for (unsigned round = 0; round < sizeof(lengths) / sizeof(lengths[0]); round++) {
		for (int i = 0; i < PAIRS; i++) {
			int from = i % 2 ? pairs[i].client : pairs[i].server;
			int to = i % 2 ? pairs[i].server : pairs[i].client;

			fill(out, lengths[round], round, 0);
			for (size_t sent = 0; sent < lengths[round]; sent += 4096) {
				size_t len = lengths[round] - sent < 4096 ? lengths[round] - sent : 4096;

				EXPECT(send_all(from, out + sent, len) == len);
				EXPECT(recv_all(to, in + sent, len) == len);
			}
			EXPECT(filled(in, lengths[round], round, 0));
		}
		shrinks_to(2 * PAIRS * END_KB);
	}
	close_pairs();
}

static void *waits(void *fd)
{
	char bytes[1000];

	return (void *)(uintptr_t)(recv_all(*(int *)fd, bytes, 1000) == 1000 && filled(bytes, 1000, 7, 0));
}

/* Threads wait for data all the time, at one end or in rpoll() for all. */
static void threads_wait(void)
{
	pthread_t threads[PAIRS];
	struct pollfd all[PAIRS];
	void *good;

	open_pairs();
	for (int i = 0; i < PAIRS; i++) {
		transfer(pairs[i].client, pairs[i].server, 1);
		transfer(pairs[i].server, pairs[i].client, 2);
		EXPECT(!pthread_create(&threads[i], NULL, waits, &pairs[i].server));
		all[i] = (struct pollfd){ .fd = pairs[i].client, .events = POLLIN };
	}
	while (pinned_kb() > 2 * PAIRS * END_KB)
		EXPECT(rpoll(all, PAIRS, 10) == 0);
	fill(out, 1000, 7, 0);
	for (int i = 0; i < PAIRS; i++) {
		EXPECT(send_all(pairs[i].client, out, 1000) == 1000);
		EXPECT(!pthread_join(threads[i], &good) && good);
	}
	close_pairs();
}

/* Unread data stays, and the buffer with it. */
static void unread_data_stays(void)
{
	struct rspair *pair = pairs;
	long before;

	open_pairs();
	transfer(pair->client, pair->server, 1);
	fill(out, 60000, 2, 0);
	EXPECT(send_all(pair->client, out, 60000) == 60000);
	EXPECT(recv_all(pair->server, in, 10000) == 10000);
	/* The send buffer is returned. */
	before = pinned_kb();
	shrinks_to(before - 64);
	EXPECT(recv_all(pair->server, in + 10000, 50000) == 50000 && filled(in, 60000, 2, 0));
	shrinks_to(2 * PAIRS * END_KB);
	transfer(pair->client, pair->server, 3);
	close_pairs();
}

/* Mapped memory is no buffer. */
static void mappings_stay(void)
{
	static char mapped[4096];
	int entries = 4, fd;
	union address to;
	struct rspair pair = { .listener = rs_listener(AF_INET, &to, NULL) };
	off_t offset;

	rs_configure("idle_time", IDLE_MS);
	EXPECT((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	EXPECT(!rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &entries, sizeof(entries)));
	EXPECT(!rsetsockopt(pair.listener, SOL_RDMA, RDMA_IOMAPSIZE, &entries, sizeof(entries)));
	EXPECT(!rlisten(pair.listener, 1) && !rconnect(fd, &to.sa, addr_len(&to)));
	pair.client = fd;
	EXPECT((pair.server = raccept(pair.listener, NULL, NULL)) >= 0);
	EXPECT((offset = riomap(pair.server, mapped, sizeof(mapped), PROT_WRITE, 0, -1)) >= 0);
	transfer(pair.server, pair.client, 1);
	transfer(pair.client, pair.server, 2);
	shrinks_to(2 * END_KB + 8);
	fill(out, sizeof(mapped), 3, 0);
	EXPECT(riowrite(pair.client, out, sizeof(mapped), offset, 0) == sizeof(mapped));
	transfer(pair.client, pair.server, 4);
	fill(out, sizeof(mapped), 3, 0);
	EXPECT(!memcmp(mapped, out, sizeof(mapped)));
	rs_configure("idle_time", -1);
	rs_pair_close(&pair);
}

/* Either end sends at about the time when it is asked, or asks. Each turn may find any state. */
static void data_crosses(void)
{
	struct rspair *pair = pairs;

	rs_configure("idle_time", 1);
	EXPECT(rs_pair(pair, AF_INET));
	rs_configure("idle_time", -1);
	for (unsigned round = 0; round < 400; round++) {
		size_t len = (round * 7919) % 20000 + 1;

		fill(out, len, round, 0);
		EXPECT(send_all(pair->client, out, len) == len);
		EXPECT(recv_all(pair->server, in, len) == len && filled(in, len, round, 0));
		usleep(round * 37 % 5000);
		if (round % 3 == 0) {
			EXPECT(send_all(pair->server, out, len) == len);
			EXPECT(recv_all(pair->client, in, len) == len && filled(in, len, round, 0));
		}
	}
	shrinks_to(2 * END_KB);
	rs_pair_close(pair);
}

/* One direction has ended: the other one is idle like that of any stream. */
static void half_closed(void)
{
	struct rspair *pair = pairs;

	open_pairs();
	for (int i = 0; i < PAIRS; i++) {
		EXPECT(!rshutdown(pairs[i].client, SHUT_WR));
		transfer(pairs[i].server, pairs[i].client, 1);
	}
	shrinks_to(2 * PAIRS * END_KB);
	EXPECT(recv_all(pair->server, in, 1) == 0);
	transfer(pair->server, pair->client, 2);
	close_pairs();
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(used_and_idle);
	CASE(little_data);
	CASE(threads_wait);
	CASE(unread_data_stays);
	CASE(mappings_stay);
	CASE(data_crosses);
	CASE(half_closed);
	return finish();
}
