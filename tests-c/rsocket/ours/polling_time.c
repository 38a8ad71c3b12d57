/*
 * Calls that look for polling_time before they sleep, which they do where there is more than one
 * CPU: other threads use the rsocket meanwhile, and a time limit ends it. The lab has one CPU; the
 * library is told of two. Run on ours only; the reference has no SO_RCVTIMEO, and crashes when the
 * rsocket is closed meanwhile.
 */
#define _GNU_SOURCE
#include "two_cpus.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "rsblocked.h"

#include <infiniband/verbs.h>

static int (*poll_device)(struct ibv_cq *cq, int count, struct ibv_wc *wc);

/*
 * The library makes a CQ for receives, then one for sends. As long as these are withheld, nothing
 * completes there.
 */
static struct ibv_cq *send_cqs[100];
static atomic_int send_cq_count, withholds;

static bool is_send_cq(const struct ibv_cq *cq)
{
	for (int i = 0; i < send_cq_count; i++)
		if (send_cqs[i] == cq)
			return true;
	return false;
}

static int poll_or_withhold(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
	return withholds && is_send_cq(cq) ? 0 : poll_device(cq, count, wc);
}

/* Replaces libibverbs' function for the library, too, and the device's function in the context. */
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			     struct ibv_comp_channel *channel, int comp_vector)
{
	struct ibv_cq *(*create)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int) =
		(__typeof__(create))dlsym(RTLD_NEXT, "ibv_create_cq");
	static __thread bool for_sends;
	struct ibv_cq *cq;

	if (context->ops.poll_cq != poll_or_withhold) {
		poll_device = context->ops.poll_cq;
		context->ops.poll_cq = poll_or_withhold;
	}
	cq = create(context, cqe, cq_context, channel, comp_vector);
	if (for_sends)
		send_cqs[send_cq_count++ % 100] = cq;
	for_sends = !for_sends;
	return cq;
}

/* Less space for sends than the peer of a new stream has. */
static void set_small_send_buffer(int fd)
{
	int size = 1024;

	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)));
}

/* A pair whose server has sent until there was no space: nothing completes until make_space_for(). */
static void fill_up_and_withhold(void)
{
	EXPECT(rs_pair_with(&pair, AF_INET, set_small_send_buffer));
	withholds = 1;
	fill_up(pair.server);
}

/* The CPU time of a thread. */
static long used_ms(pthread_t thread)
{
	struct timespec used = { 0 };
	clockid_t clock;

	EXPECT(!pthread_getcpuclockid(thread, &clock) && !clock_gettime(clock, &used));
	return (long)used.tv_sec * 1000 + used.tv_nsec / 1000000;
}

/* Starts the call and returns when it has been looking for a while: a call that sleeps would need no CPU time. */
static void start_looking(struct blocked *blocked, ssize_t (*call)(int), int fd)
{
	*blocked = (struct blocked){ .call = call, .fd = fd };
	EXPECT(!pthread_create(&blocked->thread, NULL, block, blocked));
	while (used_ms(blocked->thread) < 50)
		pause_briefly();
}

static ssize_t call_poll_two(int fd)
{
	struct pollfd entries[] = { { .fd = fd, .events = POLLIN }, { .fd = pair.listener, .events = POLLIN } };

	return rpoll(entries, 2, -1);
}

/* ---- other threads meanwhile ------------------------------------------------------------------ */

/* A thread polls for data while another one sends, and both finish. */
static void sends_beside(ssize_t (*call)(int))
{
	struct blocked blocked;
	char byte;

	EXPECT(rs_pair(&pair, AF_INET));
	start_looking(&blocked, call, pair.server);
	for (int i = 0; i < 20; i++)
		EXPECT(rsend(pair.server, "x", 1, 0) == 1);
	EXPECT(rsend(pair.server, data, 2000, 0) == 2000);
	EXPECT(recv_all(pair.client, data, 2020) == 2020);
	EXPECT(rsend(pair.client, "y", 1, 0) == 1);
	join(&blocked);
	EXPECT(blocked.ret == 1);
	EXPECT(call == call_recv || rrecv(pair.server, &byte, 1, 0) == 1);
	rs_pair_close(&pair);
}

static void send_beside_receive(void) { sends_beside(call_recv); }
static void send_beside_poll(void) { sends_beside(call_poll); }
static void send_beside_poll_of_two(void) { sends_beside(call_poll_two); }

/* Receives until the other side has shut down. */
static ssize_t call_recv_rest(int fd)
{
	static char rest[4096];
	ssize_t len, sum = 0;

	while ((len = rrecv(fd, rest, sizeof(rest), 0)) > 0)
		sum += len;
	return len < 0 ? len : sum;
}

/* The peer makes space, and the call that waits for it ends. */
static void make_space_for(struct blocked *sends)
{
	struct blocked receives = { .call = call_recv_rest, .fd = pair.client };

	withholds = 0;
	/* The call may sleep by now, and what was withheld raises no event. */
	EXPECT(rsend(pair.client, "w", 1, 0) == 1);
	EXPECT(!pthread_create(&receives.thread, NULL, block, &receives));
	join(sends);
	EXPECT(sends->ret == sizeof(data));
	EXPECT(!rshutdown(pair.server, SHUT_WR));
	join(&receives);
	EXPECT(receives.ret > (ssize_t)sizeof(data));
}

/* A thread polls until there is space, and another one receives and sends meanwhile. */
static void calls_beside_send(void)
{
	struct blocked blocked;
	char byte, some[10];

	fill_up_and_withhold();
	EXPECT(rsend(pair.client, data, 60, 0) == 60);
	EXPECT(recv_all(pair.server, some, sizeof(some)) == sizeof(some));
	start_looking(&blocked, call_send, pair.server);
	for (int i = 1; i <= 50; i++)
		EXPECT(rrecv(pair.server, &byte, 1, 0) == 1);
	for (int i = 0; i < 50; i++) {
		EXPECT(rsend(pair.server, "x", 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
		EXPECT(rrecv(pair.server, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	}
	EXPECT(rsend(pair.client, "y", 1, 0) == 1);
	EXPECT(recv_all(pair.server, &byte, 1) == 1 && byte == 'y');
	make_space_for(&blocked);
	rs_pair_close(&pair);
}


/* ---- several threads receive ------------------------------------------------------------------ */

#define MESSAGES 200

struct taker {
	pthread_t thread;
	bool waits;
	int count;
	unsigned char taken[MESSAGES + 1];
};

/* Messages that no thread has taken. */
static atomic_int left;

static void *take(void *argument)
{
	struct taker *taker = argument;
	struct pollfd entry = { .fd = pair.server, .events = POLLIN };

	while (left > 0 && taker->count < MESSAGES) {
		if (!taker->waits)
			rpoll(&entry, 1, 0);
		if (rrecv(pair.server, taker->taken + taker->count, 1, taker->waits ? 0 : MSG_DONTWAIT) == 1) {
			taker->count++;
			left--;
		}
	}
	return NULL;
}

/* Two threads poll, and a third one receives without waiting: each message is taken once. */
static void receive_beside_receive(void)
{
	struct taker takers[] = { { .waits = true }, { .waits = true }, { .waits = false } };
	int next[3] = { 0 }, found;

	EXPECT(rs_pair(&pair, AF_INET));
	left = MESSAGES;
	for (int i = 0; i < 3; i++)
		EXPECT(!pthread_create(&takers[i].thread, NULL, take, &takers[i]));
	for (int i = 0; i < MESSAGES; i++) {
		unsigned char byte = (unsigned char)i;

		EXPECT(rsend(pair.client, &byte, 1, 0) == 1);
		/* Every other message arrives while the threads poll. */
		while (i % 2 && left >= MESSAGES - i)
			pause_briefly();
	}
	while (left > 0)
		pause_briefly();
	EXPECT(!pthread_join(takers[2].thread, NULL));
	/* These may still wait. */
	EXPECT(rsend(pair.client, "\377\377", 2, 0) == 2);
	EXPECT(!pthread_join(takers[0].thread, NULL) && !pthread_join(takers[1].thread, NULL));
	for (int i = 0; i < MESSAGES; i++) {
		found = 0;
		for (int j = 0; j < 3; j++) {
			if (next[j] < takers[j].count && takers[j].taken[next[j]] == i) {
				next[j]++;
				found++;
			}
		}
		EXPECT(found == 1);
	}
	rs_pair_close(&pair);
}

/* ---- signal handlers -------------------------------------------------------------------------- */

static atomic_int sent, refused, broken, done;

static void call_in_handler(int number)
{
	struct pollfd entry = { .fd = pair.server, .events = POLLIN };
	int error = errno;
	char byte;

	(void)number;
	/* The other thread needs the CQ meanwhile. */
	for (int i = 0; i < 3; i++)
		sched_yield();
	if (rrecv(pair.server, &byte, 1, MSG_DONTWAIT) != -1 || errno != EAGAIN)
		broken++;
	if (rpoll(&entry, 1, 0) && errno != EAGAIN)
		broken++;
	if (rsend(pair.server, "x", 1, MSG_DONTWAIT) == 1)
		sent++;
	else if (errno == EAGAIN)
		refused++;
	else
		broken++;
	errno = error;
}

static void *asks_for_data(void *unused)
{
	struct pollfd entry = { .fd = pair.server, .events = POLLIN };
	char byte;

	while (!done)
		if (rpoll(&entry, 1, 0) || rrecv(pair.server, &byte, 1, MSG_DONTWAIT) != -1)
			broken++;
	return unused;
}

/*
 * A handler interrupts the polling while another thread needs the CQ: its calls succeed or fail at once,
 * and the polling goes on.
 */
static void calls_of_a_handler(void)
{
	struct sigaction action = { .sa_handler = call_in_handler, .sa_flags = SA_RESTART };
	struct blocked blocked;
	pthread_t other;
	int calls = 0;

	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(!sigaction(SIGUSR1, &action, NULL));
	start_looking(&blocked, call_recv, pair.server);
	EXPECT(!pthread_create(&other, NULL, asks_for_data, NULL));
	while (calls < 200 && !broken) {
		EXPECT(!pthread_kill(blocked.thread, SIGUSR1));
		for (calls++; sent + refused + broken < calls;)
			pause_briefly();
	}
	done = 1;
	EXPECT(!pthread_join(other, NULL));
	EXPECT(!broken);
	EXPECT(recv_all(pair.client, data, (size_t)sent) == (size_t)sent);
	EXPECT(rsend(pair.client, "y", 1, 0) == 1);
	join(&blocked);
	EXPECT(blocked.ret == 1);
	rs_pair_close(&pair);
}

static atomic_int handled;

static void call_beside_send(int number)
{
	int error = errno;
	char byte;

	(void)number;
	if (rsend(pair.server, "x", 1, MSG_DONTWAIT) != -1 || errno != EAGAIN)
		broken++;
	if (rrecv(pair.server, &byte, 1, MSG_DONTWAIT) != -1 || errno != EAGAIN)
		broken++;
	errno = error;
	handled++;
}

/* A handler interrupts the polling for space: its calls fail at once, and the interrupted call goes on. */
static void handler_beside_send(void)
{
	struct sigaction action = { .sa_handler = call_beside_send, .sa_flags = SA_RESTART };
	struct blocked blocked;

	EXPECT(!sigaction(SIGUSR1, &action, NULL));
	fill_up_and_withhold();
	start_looking(&blocked, call_send, pair.server);
	for (int calls = 1; calls <= 200; calls++) {
		EXPECT(!pthread_kill(blocked.thread, SIGUSR1));
		while (handled < calls)
			pause_briefly();
	}
	EXPECT(!broken);
	make_space_for(&blocked);
	rs_pair_close(&pair);
}

static atomic_int outcome;

static void receive_in_handler(int number)
{
	int error = errno;
	char byte;

	(void)number;
	outcome = rrecv(pair.server, &byte, 1, 0) == 1 ? 1 : errno == EAGAIN ? 2 : 3;
	errno = error;
}

/* The handler itself waits for data, and so does the interrupted call after it. */
static void receive_of_a_handler(void)
{
	struct sigaction action = { .sa_handler = receive_in_handler, .sa_flags = SA_RESTART };
	struct blocked blocked;
	long used;

	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(!sigaction(SIGUSR1, &action, NULL));
	start_looking(&blocked, call_recv, pair.server);
	do {
		outcome = 0;
		used = used_ms(blocked.thread);
		EXPECT(!pthread_kill(blocked.thread, SIGUSR1));
		/* The handler's call polls if it was not refused. */
		while (!outcome && used_ms(blocked.thread) < used + 50)
			pause_briefly();
	} while (outcome == 2);
	EXPECT(rsend(pair.client, "y", 1, 0) == 1);
	while (!outcome)
		pause_briefly();
	EXPECT(outcome == 1);
	EXPECT(rsend(pair.client, "z", 1, 0) == 1);
	join(&blocked);
	EXPECT(blocked.ret == 1);
	rs_pair_close(&pair);
}

/* ---- end of the connection -------------------------------------------------------------------- */

static void close_beside_receive(void)
{
	struct blocked blocked;

	EXPECT(rs_pair(&pair, AF_INET));
	start_looking(&blocked, call_recv, pair.server);
	EXPECT(!rclose(pair.server));
	pair.server = -1;
	join(&blocked);
	EXPECT(blocked.ret == 0 || failed_with(&blocked, EBADF, ECONNRESET));
	rs_pair_close(&pair);
}

static void close_beside_send(void)
{
	struct blocked blocked;

	EXPECT(rs_pair(&pair, AF_INET));
	fill_up(pair.server);
	start_looking(&blocked, call_send, pair.server);
	EXPECT(!rclose(pair.client));
	pair.client = -1;
	join(&blocked);
	EXPECT(failed_with(&blocked, EPIPE, ECONNRESET) || (blocked.ret > 0 && blocked.ret < (ssize_t)sizeof(data)));
	rs_pair_close(&pair);
}

static void shutdown_beside_receive(void)
{
	struct blocked blocked;

	EXPECT(rs_pair(&pair, AF_INET));
	start_looking(&blocked, call_recv, pair.server);
	EXPECT(!rshutdown(pair.server, SHUT_RD));
	join(&blocked);
	EXPECT(blocked.ret == 0);
	rs_pair_close(&pair);
}

/* ---- time limits ------------------------------------------------------------------------------- */

static void limits(void)
{
	struct timeval time = { .tv_usec = 200000 };
	char byte;

	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(!rsetsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
	EXPECT(!rsetsockopt(pair.server, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)));
	EXPECT_LASTS(200, rrecv(pair.server, &byte, 1, 0) == -1 && errno == EAGAIN);
	fill_up(pair.server);
	EXPECT_LASTS(200, rsend(pair.server, data, sizeof(data), 0) == -1 && errno == EAGAIN);
	rs_pair_close(&pair);
}

static void limits_of_poll(void)
{
	struct pollfd entries[2];

	EXPECT(rs_pair(&pair, AF_INET));
	for (int i = 0; i < 2; i++)
		entries[i] = (struct pollfd){ .fd = i ? pair.client : pair.server, .events = POLLIN };
	EXPECT_LASTS(200, rpoll(entries, 1, 200) == 0);
	EXPECT_LASTS(200, rpoll(entries, 2, 200) == 0);
	rs_pair_close(&pair);
}

/* Calls that polled in vain several times sleep instead, until polling pays again. */
static void ends_when_in_vain(void)
{
	enum { CALLS = 16 };
	struct timeval brief = { .tv_usec = 1000 }, longer = { .tv_usec = 200000 };
	int polled = 0;
	char byte;

	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(!rsetsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof(brief)));
	for (int i = 0; i < 8; i++)
		EXPECT(rrecv(pair.server, &byte, 1, 0) == -1 && errno == EAGAIN);
	EXPECT(!rsetsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &longer, sizeof(longer)));
	/* Of so many calls in a row exactly one still polls, the others sleep all the time. */
	for (int i = 0; i < CALLS; i++) {
		long before = used_ms(pthread_self());

		EXPECT(rrecv(pair.server, &byte, 1, 0) == -1 && errno == EAGAIN);
		polled += used_ms(pthread_self()) - before > 20;
	}
	printf("     %d of %d calls polled\n", polled, CALLS);
	EXPECT(polled == 1);
	rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	/* In microseconds: longer than any case may take. A call that waits for its end hangs. */
	rs_configure("polling_time", 600000000);
	CASE(send_beside_receive);
	CASE(send_beside_poll);
	CASE(send_beside_poll_of_two);
	CASE(calls_beside_send);
	CASE(receive_beside_receive);
	/*
	 * With soft-iWARP in virtual time the handler interrupts system calls only, always at the same point of the
	 * polling: its calls would never meet the other half of the outcomes.
	 */
	CASE_IF(!on_siw(), calls_of_a_handler);
	CASE(handler_beside_send);
	CASE(receive_of_a_handler);
	CASE(close_beside_receive);
	CASE(close_beside_send);
	CASE(shutdown_beside_receive);
	CASE(limits);
	CASE(limits_of_poll);
	CASE(ends_when_in_vain);
	/* What follows in this lab has the usual time. */
	rs_configure("polling_time", -1);
	return finish();
}
