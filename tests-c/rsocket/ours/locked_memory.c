/*
 * Locked memory: an idle connection needs little, buffers that grow leave some for new connections, and
 * shrink where there is too little. What is counted is the memory that the process has pinned for devices.
 * Run on ours only.
 */
#include "cases.h"
#include "rscommon.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { MB = 1 << 20, PAIRS = 6, PIECE = 400000, IDLE_PAIRS = 20, IDLE_KB = 16, MANY = 400, MANY_PIECE = 40000,
       FULL_BUFFER = 131072, USES_ALL = 70000 };

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
		EXPECT(send_all(pairs[i].client, out, USES_ALL) == USES_ALL);
		EXPECT(recv_all(pairs[i].server, in, USES_ALL) == USES_ALL);
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

static void large_buffer(int fd)
{
	int size = MB;

	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)));
}

/* Connections without data, then with a small message, then with one that shows that a larger buffer is needed. */
static void idle_connections(void)
{
	static struct rspair idle[IDLE_PAIRS];
	long first = 0;

	for (int i = 0; i < IDLE_PAIRS; i++) {
		EXPECT(rs_pair_with(&idle[i], AF_INET, i % 2 ? large_buffer : NULL));
		EXPECT(i > 0 || (first = pinned()) > 0);
	}
	printf("     %ld kB pinned for an end\n", first >> 11);
	EXPECT(first <= 2 * IDLE_KB << 10);
	EXPECT(pinned() <= IDLE_PAIRS * first);
	for (int i = 0; i < IDLE_PAIRS; i++)
		EXPECT(rsend(idle[i].client, "small", 5, 0) == 5 && recv_all(idle[i].server, in, 5) == 5);
	EXPECT(pinned() <= IDLE_PAIRS * first);
	for (int i = 0; i < IDLE_PAIRS; i++)
		EXPECT(send_all(idle[i].client, out, 5000) == 5000 && recv_all(idle[i].server, in, 5000) == 5000);
	EXPECT(pinned() >= IDLE_PAIRS * (first + FULL_BUFFER));
	for (int i = 0; i < IDLE_PAIRS; i++)
		rs_pair_close(&idle[i]);
	EXPECT(pinned() == 0);
}

static void small_send_buffer(int fd)
{
	int size = 4096;

	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)));
}

/* The receiver's program makes no call: 64 kB reach it all the same, as with a buffer that has its full size at once. */
static void first_data_without_a_call(void)
{
	struct rspair pair;

	EXPECT(rs_pair_with(&pair, AF_INET, small_send_buffer));
	fill(out, 65536, 1, 0);
	EXPECT(send_all(pair.client, out, 65536) == 65536);
	EXPECT(recv_all(pair.server, in, 65536) == 65536 && filled(in, 65536, 1, 0));
	rs_pair_close(&pair);
}

/* The other end of many connections: a process with its own locked memory. Reads all data, then returns it. */
static int echo_many(int listener)
{
	static int fds[MANY];

	for (int i = 0; i < MANY; i++)
		EXPECT((fds[i] = raccept(listener, NULL, NULL)) >= 0);
	for (int i = 0; i < MANY; i++) {
		EXPECT(recv_all(fds[i], in, MANY_PIECE) == MANY_PIECE);
		EXPECT(send_all(fds[i], in, MANY_PIECE) == MANY_PIECE);
	}
	for (int i = 0; i < MANY; i++)
		EXPECT(recv_all(fds[i], in, 1) == 0 && !rclose(fds[i]));
	return 0;
}

/* As many connections as a limit of 8 MB is to allow, all of which are used: more than have space for the full buffers. */
static void hundreds_of_connections(void)
{
	static int fds[MANY];
	union address to;
	int listener, status, ready[2];
	pid_t child;
	char byte;

	without_privilege(8 * MB);
	EXPECT(!pipe(ready));
	child = fork();
	EXPECT(child >= 0);
	if (child == 0) {
		EXPECT((listener = rs_listener(AF_INET, &to, NULL)) >= 0);
		EXPECT(!rlisten(listener, MANY));
		EXPECT(write(ready[1], &to, sizeof(to)) == sizeof(to));
		_exit(echo_many(listener));
	}
	EXPECT(read(ready[0], &to, sizeof(to)) == sizeof(to));
	for (int i = 0; i < MANY; i++) {
		EXPECT((fds[i] = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
		EXPECT(!rconnect(fds[i], &to.sa, addr_len(&to)));
	}
	printf("     %ld kB pinned for %d connections\n", pinned() >> 10, MANY);
	EXPECT(pinned() <= (long)MANY * IDLE_KB << 10);
	for (int i = 0; i < MANY; i++) {
		fill(out, MANY_PIECE, (unsigned)i, 0);
		EXPECT(send_all(fds[i], out, MANY_PIECE) == MANY_PIECE);
		EXPECT(recv_all(fds[i], in, MANY_PIECE) == MANY_PIECE && filled(in, MANY_PIECE, (unsigned)i, 0));
	}
	for (int i = 0; i < MANY; i++)
		EXPECT(!rshutdown(fds[i], SHUT_RDWR) && (rrecv(fds[i], &byte, 1, 0), true) && !rclose(fds[i]));
	EXPECT(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(idle_connections);
	CASE(first_data_without_a_call);
	CASE(hundreds_of_connections);
	CASE(a_quarter_at_most);
	CASE(given_back);
	return finish();
}
