/*
 * Buffers that grow leave locked memory for new connections, and shrink where there is too
 * little. What is counted is the memory that the process has pinned for devices. Run on ours only.
 */
#include "cases.h"
#include "rscommon.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { MB = 1 << 20, PAIRS = 6, PIECE = 400000 };

static struct rspair pairs[PAIRS];
static char out[PIECE], in[PIECE];

static long pinned(void)
{
	long kb = pinned_kb();

	EXPECT(kb >= 0);
	return kb << 10;
}

/* Each thread has its own capabilities: before the library has one. */
static void without_privilege(rlim_t limit)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];

	EXPECT(!syscall(SYS_capget, &header, data));
	data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
	EXPECT(!syscall(SYS_capset, &header, data));
	EXPECT(!setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ limit, RLIM_INFINITY }));
}

static void *sends(void *pair)
{
	return (void *)(uintptr_t)(send_all(((struct rspair *)pair)->client, out, PIECE) == PIECE);
}

/* As much as both buffers hold when they have grown, by a writer that is ahead of the reader. */
static void stream_through(struct rspair *pair, unsigned rounds)
{
	for (unsigned round = 0; round < rounds; round++) {
		pthread_t thread;
		void *good;

		fill(out, PIECE, round, 0);
		EXPECT(!pthread_create(&thread, NULL, sends, pair));
		EXPECT(recv_all(pair->server, in, PIECE) == PIECE && filled(in, PIECE, round, 0));
		EXPECT(!pthread_join(thread, &good) && good);
	}
}

/* All of them with their first buffers. */
static long open_pairs(void)
{
	for (int i = 0; i < PAIRS; i++) {
		EXPECT(rs_pair(&pairs[i], AF_INET));
		EXPECT(rsend(pairs[i].client, out, 1000, 0) == 1000);
		EXPECT(recv_all(pairs[i].server, in, 1000) == 1000);
	}
	return pinned();
}

static void close_pairs(void)
{
	for (int i = 0; i < PAIRS; i++)
		rs_pair_close(&pairs[i]);
}

static void a_quarter_at_most(void)
{
	long before, most = 0;

	without_privilege(8 * MB);
	before = open_pairs();
	for (int i = 0; i < PAIRS; i++) {
		stream_through(&pairs[i], 24);
		if (pinned() > most)
			most = pinned();
	}
	printf("     %ld kB pinned at first, %ld at most\n", before >> 10, most >> 10);
	EXPECT(most > before && most - before <= 2 * MB);
	close_pairs();
}

/* Idle streams free the memory that a new connection needs. */
static void given_back(void)
{
	struct rspair next;
	long first, grown, each;

	without_privilege(8 * MB);
	first = open_pairs();
	EXPECT(rs_pair(&next, AF_INET));
	each = pinned() - first;
	rs_pair_close(&next);
	for (int i = 0; i < PAIRS; i++)
		stream_through(&pairs[i], 24);
	grown = pinned();
	EXPECT(grown > first);
	/* Less than a connection needs, by less than a send buffer has grown by. */
	grown += each - 65536;
	EXPECT(!setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ (rlim_t)grown, RLIM_INFINITY }));
	EXPECT(rs_pair(&next, AF_INET));
	fill(out, 1000, 1, 0);
	EXPECT(rsend(next.client, out, 50, 0) == 50 && recv_all(next.server, in, 50) == 50);
	EXPECT(filled(in, 50, 1, 0) && pinned() <= grown);
	for (int i = 0; i < PAIRS; i++)
		stream_through(&pairs[i], 2);
	EXPECT(pinned() <= grown);
	rs_pair_close(&next);
	close_pairs();
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(a_quarter_at_most);
	CASE(given_back);
	return finish();
}
