/*
 * rclose() and rshutdown() of non-blocking rsockets: they return at once and free the number, and data that was sent
 * still arrives, even if the process exits right after.
 */
#include "raw_peer.h"
#include "rscommon.h"

#include <sys/mman.h>

enum { BLOCK = 100000 };
/* Far less than the 60 s that a peer without receives is waited for. */
enum { AT_ONCE_MS = 5000 };

static struct rspair pair;
static char data[BLOCK], got[BLOCK];

static void pair_nonblocking(void)
{
	EXPECT(rs_pair(&pair, AF_INET));
	rs_nonblock(pair.client, true);
}

/* Sends without waiting as much as possible. */
static size_t send_some(int fd)
{
	ssize_t sent;

	fill(data, BLOCK, 5, 0);
	sent = rsend(fd, data, BLOCK, 0);
	EXPECT(sent > 0);
	return (size_t)sent;
}

static void receive_to_the_end(int fd, size_t len)
{
	EXPECT(recv_all(fd, got, BLOCK) == len && filled(got, len, 5, 0));
	EXPECT(rrecv(fd, got, 1, 0) == 0);
}

/* ---- peers that take nothing ------------------------------------------------------------------- */

static void silent_peers(void (*end)(int fd))
{
	enum { PEERS = 6 };
	/* siw's provider takes the offset of a later QP's queue for none: EIO (docs/compatibility.md). */
	const int count = on_siw() ? 2 : PEERS;
	struct peer peers[PEERS] = { 0 };
	struct timespec since;
	int before;

	before = fds_before();
	for (int i = 0; i < count; i++) {
		peer_connects(&peers[i], false);
		EXPECT(!rclose(peers[i].victim_listener));
		peers[i].victim_listener = 0;
		EXPECT(!rfcntl(peers[i].victim, F_SETFL, O_NONBLOCK));
		EXPECT(rsend(peers[i].victim, "nobody", 6, 0) == 6);
	}
	clock_gettime(CLOCK_MONOTONIC, &since);
	for (int i = 0; i < count; i++)
		end(peers[i].victim);
	EXPECT(elapsed_ms(&since) < AT_ONCE_MS);
	/* Closing each one detects that its connection has ended, and frees everything. */
	for (int i = 0; i < count; i++) {
		peers[i].victim = 0;
		peer_close(&peers[i]);
	}
	fds_come_back(before);
}
static void close_now(int fd) { EXPECT(!rclose(fd)); }
static void shut_and_close(int fd) { EXPECT(!rshutdown(fd, SHUT_RDWR) && !rclose(fd)); }
static void silent_peers_are_not_waited_for(void) { silent_peers(close_now); }
static void silent_peers_after_shutdown(void) { silent_peers(shut_and_close); }

/* ---- data arrives --------------------------------------------------------------------------------- */

static void data_arrives_after_close(void)
{
	size_t sent;

	pair_nonblocking();
	sent = send_some(pair.client);
	EXPECT(!rclose(pair.client));
	pair.client = -1;
	receive_to_the_end(pair.server, sent);
	rs_pair_close(&pair);
}

static void data_arrives_after_shutdown(void)
{
	size_t sent;

	pair_nonblocking();
	sent = send_some(pair.client);
	EXPECT(!rshutdown(pair.client, SHUT_WR));
	EXPECT_ERROR((int)rsend(pair.client, "x", 1, 0), EPIPE);
	receive_to_the_end(pair.server, sent);
	EXPECT(rsend(pair.server, "answer", 6, 0) == 6);
	poll_wait(pair.client, POLLIN);
	EXPECT(rrecv(pair.client, got, 6, 0) == 6);
	EXPECT(!rclose(pair.client));
	pair.client = -1;
	rs_pair_close(&pair);
}

/* A blocking close after a shutdown that did not wait. */
static void blocking_close_goes_on(void)
{
	size_t sent;

	pair_nonblocking();
	sent = send_some(pair.client);
	EXPECT(!rshutdown(pair.client, SHUT_RDWR));
	rs_nonblock(pair.client, false);
	EXPECT(!rclose(pair.client));
	pair.client = -1;
	receive_to_the_end(pair.server, sent);
	rs_pair_close(&pair);
}

/* ---- the number ------------------------------------------------------------------------------------ */

static void number_is_free(void)
{
	int number, null;
	size_t sent;

	pair_nonblocking();
	sent = send_some(pair.client);
	number = pair.client;
	EXPECT(!rclose(number));
	EXPECT(fcntl(number, F_GETFD) == -1 && errno == EBADF);
	EXPECT_ERROR((int)rsend(number, "x", 1, 0), EBADF);
	EXPECT((null = open("/dev/null", O_RDWR)) >= 0 && dup2(null, number) == number);
	pair.client = -1;
	receive_to_the_end(pair.server, sent);
	EXPECT(fcntl(number, F_GETFD) == 0 && write(number, "x", 1) == 1);
	EXPECT(!close(number) && (null == number || !close(null)));
	rs_pair_close(&pair);
}

static void nothing_is_left(void)
{
	int before = fds_before();

	for (int turn = 0; turn < 20; turn++) {
		size_t sent;

		pair_nonblocking();
		rs_nonblock(pair.server, true);
		sent = send_some(pair.client);
		EXPECT(sent > 0 && !rclose(pair.client) && !rclose(pair.server));
		pair.client = pair.server = -1;
		rs_pair_close(&pair);
		fds_come_back(before);
	}
}

/* A connection that the program has not accepted ends with the listener. */
static void unaccepted_ends(void)
{
	union address to;
	char byte;
	int before = fds_before(), listener = rs_listener(AF_INET, &to, NULL), fd = rsocket(AF_INET, SOCK_STREAM, 0);

	EXPECT(!rconnect(fd, &to.sa, addr_len(&to)) && poll_wait(listener, POLLIN) == POLLIN);
	EXPECT(!rclose(listener));
	EXPECT(poll_wait(fd, POLLIN) & POLLIN);
	EXPECT(rrecv(fd, &byte, 1, 0) <= 0);
	EXPECT(!rclose(fd));
	fds_come_back(before);
}

/* Calls of other threads return. */
static volatile pid_t polling;

static void *blocked_in_poll(void *fd)
{
	struct pollfd entry = { .fd = *(int *)fd, .events = POLLIN };

	polling = gettid();
	return (void *)(long)(rpoll(&entry, 1, -1) == 1 ? entry.revents : -1);
}

static void close_under_poll(void)
{
	pthread_t thread;
	void *bits;
	int fd;

	pair_nonblocking();
	fd = pair.client;
	EXPECT(!pthread_create(&thread, NULL, blocked_in_poll, &fd));
	EXPECT(await_sleep(&polling) && !rclose(pair.client));
	EXPECT(!pthread_join(thread, &bits));
	EXPECT((long)bits == POLLNVAL);
	pair.client = -1;
	EXPECT(rrecv(pair.server, got, 1, 0) == 0);
	rs_pair_close(&pair);
}

/* While rclose() waits for the peer, the number is no rsocket any more, but it is still open in the kernel. */
static volatile pid_t closing;

static void *close_slowly(void *fd)
{
	closing = gettid();
	return (void *)(long)rclose(*(int *)fd);
}

static void polls_that_begin_during_close(void)
{
	const struct linger linger = { .l_onoff = 1, .l_linger = 2 };
	struct pollfd entries[2] = { { .events = POLLIN }, { .events = POLLIN } };
	struct peer peer = { 0 };
	struct epoll_event event = { .events = EPOLLIN };
	struct repoll repoll;
	pthread_t thread;
	void *result;
	fd_set set;
	int fd, other, epoll;

	peer_connects(&peer, false);
	EXPECT((other = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0 && find_repoll(&repoll) && (epoll = repoll.create(0)) >= 0);
	fd = peer.victim;
	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) && rsend(fd, "nobody", 6, 0) == 6);
	EXPECT(!pthread_create(&thread, NULL, close_slowly, &fd) && await_sleep(&closing));
	EXPECT_ERROR((int)rrecv(fd, got, 1, 0), EBADF);
	entries[0].fd = fd;
	entries[1].fd = other;
	EXPECT(rpoll(entries, 1, -1) == 1 && entries[0].revents == POLLNVAL);
	EXPECT(rpoll(entries, 2, -1) >= 1 && entries[0].revents == POLLNVAL);
	FD_ZERO(&set);
	FD_SET(fd, &set);
	EXPECT_ERROR(rselect(fd + 1, &set, NULL, NULL, NULL), EBADF);
	EXPECT_ERROR(repoll.control(epoll, EPOLL_CTL_ADD, fd, &event), EBADF);
	EXPECT_ERROR(rclose(fd), EBADF);
	EXPECT(!pthread_join(thread, &result) && !result);
	EXPECT(!rclose(other) && !rclose(epoll));
	peer.victim = 0;
	peer_close(&peer);
}

/* ---- the end of the process -------------------------------------------------------------------------- */

/* A process connects `count` times, sends, closes without waiting, and ends in order. */
static void process_ends(int count, bool closes)
{
	union address to;
	int listener = rs_listener(AF_INET, &to, NULL), servers[8];
	size_t *sent = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t child = fork();

	EXPECT(listener >= 0 && sent != MAP_FAILED && child >= 0);
	if (!child) {
		int fds[8];

		alarm(hang_seconds());
		for (int i = 0; i < count; i++) {
			EXPECT((fds[i] = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
			EXPECT(!rconnect(fds[i], &to.sa, addr_len(&to)));
			rs_nonblock(fds[i], true);
		}
		for (int i = 0; i < count; i++) {
			sent[i] = send_some(fds[i]);
			EXPECT(closes ? !rclose(fds[i]) : !rshutdown(fds[i], SHUT_WR));
		}
		exit(CHILD_DONE);
	}
	for (int i = 0; i < count; i++)
		EXPECT((servers[i] = raccept(listener, NULL, NULL)) >= 0);
	EXPECT(child_done(child));
	for (int i = 0; i < count; i++) {
		receive_to_the_end(servers[i], sent[i]);
		EXPECT(!rclose(servers[i]));
	}
	EXPECT(!rclose(listener));
}
static void data_arrives_after_exit(void) { process_ends(8, true); }
static void data_arrives_after_shutdown_and_exit(void) { process_ends(4, false); }

/* All peers that receive nothing together delay the exit of the process only briefly. */
static void silent_peers_at_exit(void)
{
	enum { PEERS = 4, LONGEST_MS = 20000 };
	struct timespec since;
	pid_t child;
	int status;

	clock_gettime(CLOCK_MONOTONIC, &since);
	EXPECT((child = fork()) >= 0);
	if (!child) {
		struct peer peers[PEERS] = { 0 };

		for (int i = 0; i < PEERS; i++) {
			peer_connects(&peers[i], false);
			EXPECT(!rfcntl(peers[i].victim, F_SETFL, O_NONBLOCK));
			EXPECT(rsend(peers[i].victim, "nobody", 6, 0) == 6);
			EXPECT(!rclose(peers[i].victim));
		}
		exit(7);
	}
	EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
	EXPECT(elapsed_ms(&since) < LONGEST_MS);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(silent_peers_are_not_waited_for);
	CASE(silent_peers_after_shutdown);
	CASE(data_arrives_after_close);
	CASE(data_arrives_after_shutdown);
	CASE(blocking_close_goes_on);
	CASE(number_is_free);
	CASE(nothing_is_left);
	CASE(unaccepted_ends);
	CASE(close_under_poll);
	/* On siw the kernel's TCP takes the data of a peer without receives, and rclose() returns at once. */
	CASE_IF(!on_siw(), polls_that_begin_during_close);
	CASE(data_arrives_after_exit);
	CASE(data_arrives_after_shutdown_and_exit);
	CASE(silent_peers_at_exit);
	return finish();
}
