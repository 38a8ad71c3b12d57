/*
 * Buffers of a busy stream grow, but not where the program or the
 * administrator chose the size. What is counted is the memory that the process has pinned for devices.
 */
#include "cases.h"
#include "rscommon.h"

#include <grp.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { MB = 1 << 20, PIECE = 100000 };

static struct rspair pair;
static char out[PIECE], in[PIECE];
static volatile bool enough;
static size_t sent, received;

static void *send_until_enough(void *unused)
{
	sent = send_until(pair.client, &enough, 3);
	EXPECT(!rshutdown(pair.client, SHUT_WR));
	return unused;
}

static void *send_megabytes(void *count)
{
	size_t end = sent + (size_t)count * MB;

	while (sent < end) {
		size_t len = end - sent < sizeof(out) ? end - sent : sizeof(out);

		fill(out, len, 3, sent);
		EXPECT(send_all(pair.client, out, len) == len);
		sent += len;
	}
	return NULL;
}

/* One call, of a size that does not divide any buffer size. */
static size_t take_some(void)
{
	ssize_t count = rrecv(pair.server, in, sizeof(in) - received % 1000, 0);

	EXPECT(count >= 0 && filled(in, count, 3, received));
	received += count;
	return count;
}

/* Streams data until the pinned memory exceeds `before` by this amount. */
static void stream_until(long before, long more)
{
	pthread_t sender;

	EXPECT(!pthread_create(&sender, NULL, send_until_enough, NULL));
	while (pinned_kb() < before + more)
		EXPECT(take_some() > 0);
	enough = true;
	while (take_some() > 0)
		;
	EXPECT(!pthread_join(sender, NULL) && received == sent);
}

/* The largest and the smallest amount pinned while so many megabytes are streamed. */
static void stream_megabytes(size_t count, long *least, long *most)
{
	pthread_t sender;
	size_t end = received + count * MB;

	EXPECT(!pthread_create(&sender, NULL, send_megabytes, (void *)count));
	*least = *most = pinned_kb();
	while (received < end) {
		long kb;

		EXPECT(take_some() > 0);
		kb = pinned_kb();
		*least = kb < *least ? kb : *least;
		*most = kb > *most ? kb : *most;
	}
	EXPECT(!pthread_join(sender, NULL));
}

static void grows_and_goes(void)
{
	long nothing = pinned_kb(), before;

	EXPECT(rs_pair(&pair, AF_INET));
	before = pinned_kb();
	/* More than both buffers have before they grow. On soft-RoCE the send buffer is always free. */
	stream_until(before, 400);
	printf("     %ld kB pinned before, %ld after %zu kB\n", before, pinned_kb(), received >> 10);
	rs_pair_close(&pair);
	EXPECT(pinned_kb() == nothing);
}

static void choose_sizes(int fd)
{
	int bytes = 65536;

	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)));
	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)));
}

/* The send buffer is made with the first data that needs it. */
static void stays(void)
{
	long before, least, most;

	stream_megabytes(1, &before, &most);
	before = pinned_kb();
	stream_megabytes(32, &least, &most);
	EXPECT(least == before && most == before);
	rs_pair_close(&pair);
}

static void chosen_sizes_stay(void)
{
	EXPECT(rs_pair_with(&pair, AF_INET, choose_sizes));
	stays();
}

static void pair_with_limit(long bytes)
{
	rs_configure("grow_limit", bytes);
	/* Files are read with the first socket. */
	EXPECT(rs_pair(&pair, AF_INET));
	rs_configure("grow_limit", -1);
}

static void limit_of_none(void)
{
	pair_with_limit(0);
	stays();
}

/* Enough for one of the two buffers. */
static void limit_of_one(void)
{
	long before, least, most;

	pair_with_limit(800 << 10);
	before = pinned_kb();
	do
		stream_megabytes(4, &least, &most);
	while (most < before + 512);
	stream_megabytes(64, &least, &most);
	/* The other one, and the ones before, may still be there. */
	EXPECT(most <= before + 512 + 3 * 128);
	rs_pair_close(&pair);
}

/* No more memory may be pinned than now; does not limit the superuser. */
static void pin_no_more(void)
{
	rlim_t bytes = (rlim_t)pinned_kb() << 10;

	EXPECT(!setgroups(0, NULL) && !setgid(65534) && !setuid(65534));
	EXPECT(!setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ bytes, bytes }));
}

static void no_memory_to_grow(void)
{
	long before, least, most;

	EXPECT(rs_pair(&pair, AF_INET));
	stream_megabytes(1, &least, &before);
	before = pinned_kb();
	pin_no_more();
	stream_megabytes(16, &least, &most);
	EXPECT(most == before);
	rs_pair_close(&pair);
}

/* A send goes on with the first buffer. */
static void no_memory_to_send(void)
{
	ssize_t sent;

	EXPECT(rs_pair(&pair, AF_INET));
	pin_no_more();
	sent = rsend(pair.client, out, sizeof(out), MSG_DONTWAIT);
	EXPECT(sent > 0);
	EXPECT(rrecv(pair.server, in, sent, MSG_WAITALL) == sent && !memcmp(in, out, sent));
	rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(grows_and_goes);
	CASE(chosen_sizes_stay);
	CASE(limit_of_none);
	CASE(limit_of_one);
	CASE(no_memory_to_grow);
	CASE(no_memory_to_send);
	return finish();
}
