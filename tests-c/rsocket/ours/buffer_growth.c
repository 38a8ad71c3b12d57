/*
 * Buffers of a busy stream grow, those of a slow one shrink again, and neither happens where the program or the
 * administrator chose the size. What is counted is the memory that the process has pinned for devices.
 */
#include "cases.h"
#include "rscommon.h"

#include <grp.h>
#include <signal.h>
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
	/* More than both buffers have when they have grown once. */
	stream_until(before, 2048);
	printf("     %ld kB pinned before, %ld after %zu kB\n", before, pinned_kb(), received >> 10);
	rs_pair_close(&pair);
	EXPECT(pinned_kb() == nothing);
}

static void handle(int signal)
{
	(void)signal;
}

/* In threads that may be running signal handlers, which must not allocate. */
static void grows_where_signals_are_blocked(void)
{
	struct sigaction action = { .sa_handler = handle };
	sigset_t signals;

	EXPECT(!sigaction(SIGUSR2, &action, NULL));
	EXPECT(!sigemptyset(&signals) && !sigaddset(&signals, SIGUSR2));
	EXPECT(!pthread_sigmask(SIG_BLOCK, &signals, NULL));
	grows_and_goes();
}

static void *send_at_once(void *fd)
{
	EXPECT(send_all(*(int *)fd, out, PIECE / 2) == PIECE / 2);
	return NULL;
}

/* Both ends send more than new buffers hold before they receive. */
static void both_send_first_where_signals_are_blocked(void)
{
	struct sigaction action = { .sa_handler = handle };
	sigset_t signals;
	pthread_t other;

	EXPECT(!sigaction(SIGUSR2, &action, NULL));
	EXPECT(!sigemptyset(&signals) && !sigaddset(&signals, SIGUSR2));
	EXPECT(!pthread_sigmask(SIG_BLOCK, &signals, NULL));
	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(!pthread_create(&other, NULL, send_at_once, &pair.server));
	send_at_once(&pair.client);
	EXPECT(!pthread_join(other, NULL));
	EXPECT(rrecv(pair.client, in, PIECE / 2, MSG_WAITALL) == PIECE / 2);
	EXPECT(rrecv(pair.server, in, PIECE / 2, MSG_WAITALL) == PIECE / 2);
	rs_pair_close(&pair);
}

static void shrinks_when_slow(void)
{
	long before, least, most, grown;

	EXPECT(rs_pair(&pair, AF_INET));
	before = pinned_kb();
	/* Until the receive buffer has its full size; it and the send buffer grow by turns. */
	do
		stream_megabytes(4, &least, &most);
	while (most < before + 512);
	grown = pinned_kb();
	/* Longer than a stream of that size may take for half of its buffer. */
	EXPECT(!nanosleep(&(struct timespec){ .tv_sec = 1, .tv_nsec = 300000000 }, NULL));
	do
		stream_megabytes(1, &least, &most);
	while (least > grown - 384);
	printf("     %ld kB pinned at first, %ld grown, %ld after a pause\n", before, grown, least);
	rs_pair_close(&pair);
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

/* A sixteenth of it is too little for the largest buffers. */
static void limit_of_once(void)
{
	long before, least, most;

	pair_with_limit(8 * MB);
	before = pinned_kb();
	do
		stream_megabytes(4, &least, &most);
	while (most < before + 512);
	stream_megabytes(64, &least, &most);
	/* The send buffer before may still be there. */
	EXPECT(most <= before + 512 + 256 + 128);
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

/* A send that needs the buffer fails; one that does not succeeds. */
static void no_memory_to_send(void)
{
	EXPECT(rs_pair(&pair, AF_INET));
	pin_no_more();
	EXPECT_ERROR(rsend(pair.client, out, sizeof(out), 0), ENOMEM);
	EXPECT(rsend(pair.client, "inline", 6, 0) == 6);
	EXPECT(rrecv(pair.server, in, 6, MSG_WAITALL) == 6 && !memcmp(in, "inline", 6));
	rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	/* What the cases count must not depend on how long they take. */
	rs_configure("idle_time", 0);
	CASE(grows_and_goes);
	CASE(grows_where_signals_are_blocked);
	CASE(both_send_first_where_signals_are_blocked);
	CASE(shrinks_when_slow);
	CASE(chosen_sizes_stay);
	CASE(limit_of_none);
	CASE(limit_of_once);
	CASE(no_memory_to_grow);
	CASE(no_memory_to_send);
	rs_configure("idle_time", -1);
	return finish();
}
