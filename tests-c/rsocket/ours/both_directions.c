/*
 * Large messages in both directions at once, with threads of their own: the library copies and posts them without the
 * stream's lock where there is more than one CPU. Run on ours only: with the reference two threads that receive from one
 * rsocket lose data.
 */
#define _GNU_SOURCE
#include "two_cpus.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/epoll.h>

static atomic_long epoll_waits;

/* Replaces the C library's function; the library's threads wait with it. */
int epoll_wait(int epoll, struct epoll_event *events, int count, int timeout)
{
	int (*wait)(int, struct epoll_event *, int, int) = (__typeof__(wait))dlsym(RTLD_NEXT, "epoll_wait");

	epoll_waits++;
	return wait(epoll, events, count, timeout);
}

#include "cases.h"
#include "rscommon.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>

enum { MESSAGE = 100000, MESSAGES = 60, HELD = 40000, SMALL = 40, PEEKED = 30000, CLOSES = 12 };

static struct rspair pair;
static atomic_ullong received_bytes[2], received_sum[2];
static atomic_bool is_done;

static int end_of(size_t direction, bool receives)
{
	return (direction == 1) == receives ? pair.client : pair.server;
}

static uint64_t sum_of(const uint8_t *bytes, size_t len)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < len; i++)
		sum += bytes[i];
	return sum;
}

/* Sends large messages, each followed by a small one. */
static void *send_messages(void *direction)
{
	int fd = end_of((size_t)direction, false);
	uint8_t *bytes = malloc(MESSAGE);

	for (int i = 0; i < MESSAGES; i++) {
		memset(bytes, i + 1, MESSAGE);
		EXPECT(send_all(fd, bytes, MESSAGE) == MESSAGE && rsend(fd, bytes, SMALL, 0) == SMALL);
	}
	EXPECT(!rshutdown(fd, SHUT_WR));
	free(bytes);
	return NULL;
}

/* Receives until the end, beside another thread that does. */
static void *receive_some(void *direction)
{
	int fd = end_of((size_t)direction, true);
	uint8_t *bytes = malloc(MESSAGE);
	ssize_t count;

	while ((count = rrecv(fd, bytes, MESSAGE, 0)) > 0) {
		received_bytes[(size_t)direction] += (uint64_t)count;
		received_sum[(size_t)direction] += sum_of(bytes, (size_t)count);
	}
	EXPECT(count == 0);
	free(bytes);
	return NULL;
}

/* Data that is looked at is neither taken nor torn. */
static void *peek(void *direction)
{
	int fd = end_of((size_t)direction, true);
	uint8_t *bytes = malloc(PEEKED);

	while (!is_done) {
		ssize_t count = rrecv(fd, bytes, PEEKED, MSG_PEEK | MSG_DONTWAIT);
		int error = errno;

		EXPECT(count >= 0 || error == EAGAIN);
		for (ssize_t i = 1; i < count; i++)
			EXPECT(bytes[i] == bytes[i - 1] || bytes[i] == bytes[i - 1] + 1);
		sched_yield();
	}
	free(bytes);
	return NULL;
}

static void start_thread(pthread_t *thread, void *(*run)(void *), size_t direction)
{
	EXPECT(!pthread_create(thread, NULL, run, (void *)direction));
}

/* One direction with two threads that receive, the other with one, and one that peeks. */
static void everything_arrives_once(void)
{
	uint64_t bytes = (uint64_t)MESSAGES * (MESSAGE + SMALL), sum = 0;
	pthread_t threads[6];

	for (int i = 0; i < MESSAGES; i++)
		sum += (uint64_t)(i + 1) * (MESSAGE + SMALL);
	EXPECT(rs_pair(&pair, AF_INET));
	for (size_t direction = 0; direction < 2; direction++) {
		start_thread(&threads[direction], send_messages, direction);
		start_thread(&threads[2 + direction], receive_some, direction);
	}
	start_thread(&threads[4], receive_some, 0);
	start_thread(&threads[5], peek, 1);
	for (int i = 0; i < 5; i++)
		EXPECT(!pthread_join(threads[i], NULL));
	is_done = true;
	EXPECT(!pthread_join(threads[5], NULL));
	for (int i = 0; i < 2; i++)
		EXPECT(received_bytes[i] == bytes && received_sum[i] == sum);
	rs_pair_close(&pair);
}

static atomic_uint transfers;

static void *send_until_closed(void *direction)
{
	int fd = end_of((size_t)direction, false);
	uint8_t *bytes = calloc(1, MESSAGE);

	while (rsend(fd, bytes, MESSAGE, MSG_NOSIGNAL) > 0)
		transfers++;
	free(bytes);
	return NULL;
}

static void *receive_until_closed(void *direction)
{
	int fd = end_of((size_t)direction, true);
	uint8_t *bytes = malloc(MESSAGE);

	while (rrecv(fd, bytes, MESSAGE, 0) > 0)
		transfers++;
	free(bytes);
	return NULL;
}

/* Closing ends the calls of all threads, also while they copy or post. */
static void closing_ends_all_calls(void)
{
	for (unsigned i = 0; i < CLOSES; i++) {
		pthread_t threads[4];

		EXPECT(rs_pair(&pair, AF_INET));
		transfers = 0;
		for (size_t direction = 0; direction < 2; direction++) {
			start_thread(&threads[direction], send_until_closed, direction);
			start_thread(&threads[2 + direction], receive_until_closed, direction);
		}
		while (transfers < 10 + i)
			pause_briefly();
		EXPECT(!rclose(i % 2 ? pair.client : pair.server));
		for (int j = 0; j < 4; j++)
			EXPECT(!pthread_join(threads[j], NULL));
		EXPECT(!rclose(i % 2 ? pair.server : pair.client) && !rclose(pair.listener));
	}
}

static uint8_t *unmapped;
static atomic_bool is_copying, may_copy;

/* The library copies to memory that may be written later. */
static void hold_copy(int unused)
{
	(void)unused;
	for (is_copying = true; !may_copy;)
		pause_briefly();
	EXPECT(!mprotect(unmapped, HELD, PROT_READ | PROT_WRITE));
}

static void *receive_held(void *unused)
{
	(void)unused;
	EXPECT(rrecv(pair.client, unmapped, HELD, MSG_WAITALL) > 0);
	return NULL;
}

static void close_at_once(int fd)
{
	struct linger at_once = { .l_onoff = 1 };

	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) && !rclose(fd));
}

static void *close_client(void *unused)
{
	(void)unused;
	close_at_once(pair.client);
	return NULL;
}

/* As long as rclose waits for another thread's copy, nobody reads the peer's disconnect. That keeps no thread busy. */
static void disconnect_while_closing(void)
{
	struct sigaction action = { .sa_handler = hold_copy };
	union address name;
	socklen_t len = sizeof(name);
	uint8_t *bytes = calloc(1, HELD);
	pthread_t receiver, closer;
	long before;

	unmapped = mmap(NULL, HELD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(unmapped != MAP_FAILED && !sigaction(SIGSEGV, &action, NULL) && rs_pair(&pair, AF_INET));
	/* All of the second message is in one buffer. It is copied without the lock: this thread sends. */
	EXPECT(send_all(pair.server, bytes, HELD) == HELD && recv_all(pair.client, bytes, HELD) == HELD);
	EXPECT(send_all(pair.server, bytes, HELD) == HELD && rsend(pair.client, bytes, 1, 0) == 1);
	start_thread(&receiver, receive_held, 0);
	while (!is_copying)
		pause_briefly();
	start_thread(&closer, close_client, 0);
	while (!rgetsockname(pair.client, &name.sa, &len))
		pause_briefly();
	before = epoll_waits;
	close_at_once(pair.server);
	while (epoll_waits == before)
		pause_briefly();
	poll(NULL, 0, 200);
	EXPECT(epoll_waits - before < 60);
	may_copy = true;
	EXPECT(!pthread_join(receiver, NULL) && !pthread_join(closer, NULL) && !rclose(pair.listener));
	signal(SIGSEGV, SIG_DFL);
	munmap(unmapped, HELD);
	free(bytes);
}

static struct rspair other;
static volatile unsigned handled, refused;

/* Calls fail with EAGAIN in the middle of another one; the interrupted call goes on. */
static void interrupt(int unused)
{
	struct pollfd entry = { .fd = pair.client, .events = POLLIN };
	char byte = (char)unused;
	int error = errno;

	if (rpoll(&entry, 1, 0) == -1 && errno == EAGAIN)
		refused++;
	if (rsend(other.client, &byte, 1, MSG_DONTWAIT) == 1)
		handled++;
	errno = error;
}

static void handlers_interrupt_both_directions(void)
{
	uint64_t bytes = (uint64_t)MESSAGES * (MESSAGE + SMALL);
	struct itimerval often = { { .tv_usec = 1000 }, { .tv_usec = 1000 } }, never = { 0 };
	struct sigaction action = { .sa_handler = interrupt, .sa_flags = SA_RESTART };
	pthread_t threads[3];
	sigset_t set;

	EXPECT(rs_pair(&pair, AF_INET) && rs_pair(&other, AF_INET));
	received_bytes[0] = received_bytes[1] = 0;
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	EXPECT(!sigaction(SIGALRM, &action, NULL) && !pthread_sigmask(SIG_BLOCK, &set, NULL));
	start_thread(&threads[0], receive_some, 0);
	start_thread(&threads[1], receive_some, 1);
	start_thread(&threads[2], send_messages, 1);
	EXPECT(!pthread_sigmask(SIG_UNBLOCK, &set, NULL) && !setitimer(ITIMER_REAL, &often, NULL));
	send_messages((void *)0);
	EXPECT(!setitimer(ITIMER_REAL, &never, NULL));
	for (int i = 0; i < 3; i++)
		EXPECT(!pthread_join(threads[i], NULL));
	EXPECT(received_bytes[0] == bytes && received_bytes[1] == bytes);
	printf("     %u calls of handlers, %u refused\n", handled, refused);
	EXPECT(handled + refused > 0);
	for (unsigned i = 0; i < handled; i++) {
		char byte;

		EXPECT(rrecv(other.server, &byte, 1, 0) == 1);
	}
	rs_pair_close(&pair);
	rs_pair_close(&other);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(everything_arrives_once);
	CASE(handlers_interrupt_both_directions);
	CASE(closing_ends_all_calls);
	CASE(disconnect_while_closing);
	return finish();
}
