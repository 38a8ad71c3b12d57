/*
 * Random streams: clients with eight kinds of options connect to listeners with eight kinds of options, and both ends send
 * random amounts in random pieces by every call, in one thread or two, blocking or not, peek, read slowly, end their direction
 * or close. Every byte is checked. A watchdog prints the state and the stacks of a stream that does not get on.
 *
 * random_streams DEVICE [OPTIONS]: by default both ends are in this process, and each client makes some connections.
 * -s: only the listeners, until the program is killed; -a ADDRESS: only the clients, to that address;
 * -P: a peer has the reference's library: no peeks, and one buffer for each call that receives;
 * -t SECONDS instead of a number of connections; -n clients; -r seed; -c kind of the clients; -l kind of the listener;
 * with -s that kind only; -i: pauses in which buffers become idle; -k SECONDS after which a stream counts as stuck.
 */
#include "cases.h"
#include "rscommon.h"

#include <stdatomic.h>

#ifndef SOL_RDMA
enum { SOL_RDMA = 0x10000, RDMA_SQSIZE = 0, RDMA_RQSIZE, RDMA_INLINE, RDMA_IOMAPSIZE };
#endif

enum { KINDS = 8, PORT = 7500, ROOM = 600000, BUFFERS = 7, MAX_STREAMS = 512, CONNECTIONS = 12, TRIES = 20 };

/* Options of a kind of socket; negative: not set. */
static const struct kind { int sq, rq, inlined, send, receive, iomap; } kinds[KINDS] = {
	{ -1, -1, -1, -1, -1, -1 },
	{ 16, 16, 0, 4096, 4096, 0 },
	{ 64, 32, 16, -1, 16384, 4 },
	{ 384, 16, 64, 65536, -1, 1 },
	{ 16, 384, 0, 8192, 100000, 0 },
	{ 500, 600, 4, -1, 6000, 128 },
	{ 32, 24, 200, 300000, -1, -1 },
	{ 128, 17, 32, 20000, 3000, 16 },
};

/* What a client wants, which it tells the server: index 0 is the client's direction. */
enum { SMALL = 1, PAUSE = 2, SERVER_NODELAY = 4, SERVER_SLOW = 8 };
struct plan {
	uint32_t flags, id, seed[2], server_dice;
	uint32_t bytes[2], half_close[2];
};

enum style { TWO_THREADS, NONBLOCKING, POLLING, STYLES };

/* An end of a stream. */
struct end {
	int fd, me;
	struct plan plan;
	enum style style;
	bool slow;
	unsigned dice, sender_dice;
	atomic_uint sent, received;
	/* Milliseconds of `began` at which data was sent or received last. */
	atomic_long last_progress;
	/* For the watchdog: the threads, and what they do. */
	_Atomic pid_t receiver, sender;
	const char *_Atomic doing, *_Atomic sender_doing;
	atomic_bool failed, reported;
};

static struct { bool plain, pauses; long stuck_ms, seconds; int clients, kind, listener; unsigned seed; const char *to; } set = {
	.stuck_ms = 30000, .clients = 6, .kind = -1, .listener = -1, .seed = 1,
};
static struct end *ends[MAX_STREAMS];
static pthread_mutex_t ends_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_ulong connections, bytes_total, failures;
static struct timespec began;

static unsigned some(unsigned *dice, unsigned below)
{
	*dice = *dice * 1664525u + 1013904223u;
	return below ? (unsigned)(((uint64_t)(*dice >> 8) * below) >> 24) : 0;
}

static void say(const struct end *end, const char *what, int error)
{
	fprintf(stderr, "%s of stream %#x: %s%s%s; style %d, flags %x, sent %u of %u, received %u of %u, half-closes %u %u\n",
		end->me ? "server" : "client", end->plan.id, what, error ? ": " : "", error ? errno_name(error) : "", end->style,
		end->plan.flags, end->sent, end->plan.bytes[end->me], end->received, end->plan.bytes[!end->me],
		end->plan.half_close[0], end->plan.half_close[1]);
}

/* Counts a failure of a stream, and the first one only. */
static void fail(struct end *end, const char *what, int error)
{
	if (atomic_exchange(&end->failed, true))
		return;
	failures++;
	say(end, what, error);
}

/* ---- the watchdog ----------------------------------------------------------------------------- */

static void run_command(const char *command)
{
	if (system(command))
		fprintf(stderr, "%s fails\n", command);
}

static void print_stuck(struct end *end)
{
	char command[200];

	say(end, "is stuck", 0);
	fprintf(stderr, "descriptor %d, thread %d: %s; sender %d: %s\n", end->fd, end->receiver, end->doing, end->sender,
		end->sender_doing ? end->sender_doing : "none");
	run_command("grep -H . /sys/class/infiniband/*/ports/1/hw_counters/* | grep -v ':0$' >&2; if type rsstat; then rsstat; fi >&2");
	snprintf(command, sizeof(command), "for pid in $(pgrep -x -f '.*random_streams .*'); do"
		 " timeout 60 gdb -q -batch -p $pid -ex 'thread apply all bt 16' >&2 </dev/null; done");
	run_command(command);
	/* Whether polling once more finds something. */
	fprintf(stderr, "polled: %s\n", poll_str(poll_now("stuck", end->fd, POLLIN | POLLOUT)));
}

static void *watch(void *unused)
{
	long scale = (long)(hang_seconds() / HANG_SECONDS);

	for (unsigned second = 1;; second++) {
		struct end *stuck = NULL;

		sleep(1);
		pthread_mutex_lock(&ends_lock);
		for (int i = 0; i < MAX_STREAMS; i++)
			if (ends[i] && !ends[i]->reported && elapsed_ms(&began) - ends[i]->last_progress > set.stuck_ms * scale)
				stuck = ends[i];
		if (stuck) {
			stuck->reported = true;
			print_stuck(stuck);
		}
		pthread_mutex_unlock(&ends_lock);
		if (stuck)
			fail_case("a stream is stuck");
		if (second % 60 == 0)
			fprintf(stderr, "%lu connections, %lu MB, %lu failures\n", connections, bytes_total >> 20, failures);
	}
	return unused;
}

static void progress(struct end *end)
{
	end->last_progress = elapsed_ms(&began);
}

static int enter_stream(struct end *end)
{
	int slot = 0;

	progress(end);
	end->doing = "begins";
	end->receiver = (pid_t)syscall(SYS_gettid);
	pthread_mutex_lock(&ends_lock);
	while (ends[slot])
		slot++;
	ends[slot] = end;
	pthread_mutex_unlock(&ends_lock);
	return slot;
}

static void leave_stream(int slot)
{
	pthread_mutex_lock(&ends_lock);
	ends[slot] = NULL;
	pthread_mutex_unlock(&ends_lock);
	connections++;
}

/* ---- sending and receiving -------------------------------------------------------------------- */

static size_t piece(const struct end *end, unsigned *dice)
{
	if (end->plan.flags & SMALL)
		return 1 + some(dice, 64);
	switch (some(dice, 8)) {
	case 0: return 1 + some(dice, 16);
	case 1: return 1 + some(dice, 200);
	case 2: return 1 + some(dice, 3000);
	case 3: return 1 + some(dice, 20000);
	case 4: return 1 + some(dice, 20000);
	case 5: return 1 + some(dice, 150000);
	case 6: return 4096 * (1 + some(dice, 16));
	default: return 1 + some(dice, ROOM);
	}
}

static void maybe_pause(struct end *end, unsigned *dice)
{
	if ((end->plan.flags & PAUSE) && !some(dice, 60))
		usleep(2300000);
	else if (!some(dice, 200))
		usleep(some(dice, 3000));
}

/* Divides a buffer; returns the number of parts. */
static int divide(struct iovec *parts, uint8_t *buffer, size_t len, unsigned *dice)
{
	int count = 1 + (int)some(dice, BUFFERS);

	for (int i = 0; i < count; i++) {
		size_t part = i + 1 == count ? len : some(dice, (unsigned)len + 1);

		parts[i] = (struct iovec){ buffer, part };
		buffer += part;
		len -= part;
	}
	return count;
}

/* Returns 1 after progress, 0 if the call would block, and -1 after a failure. */
static int judge(struct end *end, const char *call, ssize_t result, size_t len, int error)
{
	if (result < 0 && (error == EAGAIN || error == EINTR))
		return 0;
	if (result > 0 && (size_t)result <= len) {
		progress(end);
		return 1;
	}
	fail(end, call, result < 0 ? error : 0);
	return -1;
}

static int send_some(struct end *end, uint8_t *buffer, unsigned *dice, bool waits)
{
	struct iovec parts[BUFFERS];
	struct msghdr message = { .msg_iov = parts };
	size_t left = end->plan.bytes[end->me] - end->sent, len = piece(end, dice);
	int flags = waits && some(dice, 6) ? 0 : MSG_DONTWAIT, state;
	ssize_t result;

	len = len < left ? len : left;
	fill(buffer, len, end->plan.seed[end->me], end->sent);
	switch (some(dice, 4)) {
	case 0:
		message.msg_iovlen = (size_t)divide(parts, buffer, len, dice);
		result = flags || some(dice, 2) ? rsendmsg(end->fd, &message, flags)
						: rwritev(end->fd, parts, (int)message.msg_iovlen);
		break;
	case 1:
		result = flags ? rsend(end->fd, buffer, len, flags) : rwrite(end->fd, buffer, len);
		break;
	default:
		result = rsend(end->fd, buffer, len, flags);
	}
	state = judge(end, "sends", result, len, errno);
	if (state == 1) {
		/* The caller's memory is free again. */
		memset(buffer, 0xee, len);
		end->sent += (unsigned)result;
		bytes_total += (unsigned long)result;
	}
	return state;
}

static int receive_some(struct end *end, uint8_t *buffer, bool waits)
{
	unsigned *dice = &end->dice, seed = end->plan.seed[!end->me];
	struct iovec parts[BUFFERS] = { { buffer, 0 } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 1 };
	size_t left = end->plan.bytes[!end->me] - end->received, len = piece(end, dice);
	int flags = waits && some(dice, 6) ? 0 : MSG_DONTWAIT, state;
	ssize_t result;

	len = len < left ? len : left;
	if (!set.plain && !some(dice, 8)) {
		result = rrecv(end->fd, buffer, len, MSG_PEEK | MSG_DONTWAIT);
		if (result > 0 && !filled(buffer, (size_t)result, seed, end->received))
			fail(end, "peeks at other data", 0);
	}
	memset(buffer, 0x55, len < 64 ? len : 64);
	switch (some(dice, 4)) {
	case 0:
		parts[0].iov_len = len;
		if (!set.plain)
			message.msg_iovlen = (size_t)divide(parts, buffer, len, dice);
		result = flags || some(dice, 2) ? rrecvmsg(end->fd, &message, flags)
						: rreadv(end->fd, parts, (int)message.msg_iovlen);
		break;
	case 1:
		result = rrecv(end->fd, buffer, len, flags ? flags : MSG_WAITALL);
		if (!flags && result > 0 && (size_t)result < len)
			fail(end, "gets less with MSG_WAITALL", 0);
		break;
	default:
		result = rrecv(end->fd, buffer, len, flags);
	}
	state = judge(end, result ? "receives" : "receives an early end", result, len, errno);
	if (state == 1 && !filled(buffer, (size_t)result, seed, end->received)) {
		fail(end, "receives other data", 0);
		return -1;
	}
	if (state == 1)
		end->received += (unsigned)result;
	if (end->slow && !some(dice, 20))
		usleep(2000);
	return state;
}

static void end_direction(struct end *end)
{
	if (!end->failed && end->plan.half_close[end->me] && rshutdown(end->fd, SHUT_WR))
		fail(end, "shuts down", errno);
}

static void await_events(struct end *end, short events, int timeout)
{
	struct pollfd entry = { .fd = end->fd, .events = events };

	rpoll(&entry, 1, timeout);
}

static void *send_all_of(void *argument)
{
	struct end *end = argument;
	uint8_t *buffer = malloc(ROOM);
	unsigned *dice = &end->sender_dice;

	EXPECT(buffer);
	end->sender = (pid_t)syscall(SYS_gettid);
	while (end->sent < end->plan.bytes[end->me] && !end->failed) {
		end->sender_doing = "pauses";
		maybe_pause(end, dice);
		end->sender_doing = "sends";
		if (send_some(end, buffer, dice, true) == 0) {
			end->sender_doing = "polls";
			await_events(end, POLLOUT, 1000);
		}
	}
	end_direction(end);
	end->sender_doing = "has sent";
	free(buffer);
	return NULL;
}

static void in_two_threads(struct end *end, uint8_t *buffer)
{
	pthread_t sender;

	end->sender_dice = some(&end->dice, 1 << 20);
	EXPECT(!pthread_create(&sender, NULL, send_all_of, end));
	while (end->received < end->plan.bytes[!end->me] && !end->failed) {
		end->doing = "receives";
		if (receive_some(end, buffer, true) == 0) {
			end->doing = "polls";
			await_events(end, POLLIN, 1000);
		}
	}
	end->doing = "joins the sender";
	EXPECT(!pthread_join(sender, NULL));
}

static void in_one_thread(struct end *end, uint8_t *buffer)
{
	unsigned *dice = &end->dice;
	bool ended = false;

	if (end->style == NONBLOCKING)
		rs_nonblock(end->fd, true);
	for (;;) {
		bool sends = end->sent < end->plan.bytes[end->me], receives = end->received < end->plan.bytes[!end->me];
		struct pollfd entry = { .fd = end->fd, .events = (short)((sends ? POLLOUT : 0) | (receives ? POLLIN : 0)) };

		if (!sends && !ended)
			end_direction(end);
		ended |= !sends;
		if (end->failed || (!sends && !receives))
			break;
		end->doing = "pauses";
		maybe_pause(end, dice);
		end->doing = "polls";
		if (rpoll(&entry, 1, some(dice, 3) ? 5000 : 0) < 0 || (entry.revents & POLLNVAL))
			fail(end, "polls", errno);
		end->doing = "sends or receives";
		if (sends && (entry.revents & POLLOUT))
			send_some(end, buffer, dice, false);
		if (receives && (entry.revents & (POLLIN | POLLHUP | POLLERR)))
			receive_some(end, buffer, false);
	}
	if (end->style == NONBLOCKING)
		rs_nonblock(end->fd, false);
}

/* After the data: the end of a direction that is closed, or a byte each way. */
static void finish_stream(struct end *end)
{
	char byte = 'S';

	end->doing = "finishes";
	if (end->failed)
		return;
	if (end->plan.half_close[!end->me]) {
		if (rrecv(end->fd, &byte, 1, 0))
			fail(end, "awaits the end", errno);
		return;
	}
	if (end->plan.half_close[end->me])
		return;
	if (end->me && rsend(end->fd, &byte, 1, 0) != 1)
		fail(end, "sends the last byte", errno);
	if (rrecv(end->fd, &byte, 1, 0) != 1 || byte != 'S')
		fail(end, "receives the last byte", errno);
	else if (!end->me && rsend(end->fd, &byte, 1, 0) != 1)
		fail(end, "sends the last byte", errno);
}

static void run_stream(struct end *end)
{
	uint8_t *buffer = malloc(ROOM);
	int slot = enter_stream(end);

	EXPECT(buffer);
	end->style = (enum style)some(&end->dice, STYLES);
	if (end->style == TWO_THREADS)
		in_two_threads(end, buffer);
	else
		in_one_thread(end, buffer);
	finish_stream(end);
	if (end->me || some(&end->dice, 2))
		rshutdown(end->fd, SHUT_RDWR);
	leave_stream(slot);
	rclose(end->fd);
	free(buffer);
}

/* ---- the two sides ------------------------------------------------------------------------------ */

static void set_option(int fd, int level, int name, int value)
{
	if (value >= 0)
		EXPECT(!rsetsockopt(fd, level, name, &value, sizeof(value)));
}

static int socket_of(const struct kind *kind)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	EXPECT(fd >= 0);
	set_option(fd, SOL_RDMA, RDMA_SQSIZE, kind->sq);
	set_option(fd, SOL_RDMA, RDMA_RQSIZE, kind->rq);
	set_option(fd, SOL_RDMA, RDMA_INLINE, kind->inlined);
	set_option(fd, SOL_RDMA, RDMA_IOMAPSIZE, kind->iomap);
	set_option(fd, SOL_SOCKET, SO_SNDBUF, kind->send);
	set_option(fd, SOL_SOCKET, SO_RCVBUF, kind->receive);
	return fd;
}

static void *serve(void *argument)
{
	struct end end = { .fd = (int)(intptr_t)argument, .me = 1 };

	if (recv_all(end.fd, &end.plan, sizeof(end.plan)) != sizeof(end.plan)) {
		fail(&end, "receives the plan", errno);
		rclose(end.fd);
		return NULL;
	}
	end.dice = end.plan.server_dice;
	end.slow = end.plan.flags & SERVER_SLOW;
	if (end.plan.flags & SERVER_NODELAY)
		set_option(end.fd, IPPROTO_TCP, TCP_NODELAY, 1);
	run_stream(&end);
	return NULL;
}

static void *accept_all(void *argument)
{
	int listener = (int)(intptr_t)argument, fd;
	pthread_t thread;

	while ((fd = raccept(listener, NULL, NULL)) >= 0 || errno == EINTR)
		if (fd >= 0)
			EXPECT(!pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd) && !pthread_detach(thread));
	fail_case("raccept: %s", errno_name(errno));
}

static void listen_all(void)
{
	for (int i = 0; i < KINDS; i++) {
		if (set.listener >= 0 && set.listener != i)
			continue;
		union address at = any_addr(AF_INET, (uint16_t)(PORT + i));
		int fd = socket_of(&kinds[i]);
		pthread_t thread;

		set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
		EXPECT(!rbind(fd, &at.sa, sizeof(at.in)) && !rlisten(fd, 64));
		EXPECT(!pthread_create(&thread, NULL, accept_all, (void *)(intptr_t)fd));
	}
}

static uint32_t amount(unsigned *dice)
{
	static const unsigned most[] = { 0, 100, 20000, 300000, 2000000, 3000000 };

	return some(dice, most[some(dice, sizeof(most) / sizeof(*most))] + 1);
}

static struct plan make_plan(unsigned *dice)
{
	struct plan plan = { .bytes = { amount(dice), amount(dice) }, .half_close = { some(dice, 2), some(dice, 2) } };

	plan.flags = (some(dice, 2) ? SERVER_NODELAY : 0) | (some(dice, 4) ? 0 : SERVER_SLOW);
	if (!some(dice, 3)) {
		plan.flags |= SMALL;
		plan.bytes[0] %= 40000;
		plan.bytes[1] %= 40000;
	}
	if (set.pauses && !some(dice, 8))
		plan.flags |= PAUSE;
	for (int i = 0; i < 2; i++)
		plan.seed[i] = some(dice, 1 << 20);
	plan.server_dice = some(dice, 1 << 20);
	return plan;
}

/* Faults of soft-iWARP (docs/compatibility.md): it takes a port that the kernel's TCP has, and cannot make the queues of one end or of
 * the other until another connection has ended. */
static bool is_known(int error)
{
	return error == EADDRINUSE || error == EADDRNOTAVAIL || error == EINVAL || error == ENOMEM || error == ECONNREFUSED;
}

static int connect_to(const struct kind *kind, union address to)
{
	int fd, error = 0;

	for (int i = 0; i < TRIES; i++) {
		fd = socket_of(kind);
		if (!rconnect(fd, &to.sa, sizeof(to.in)))
			return fd;
		error = errno;
		rclose(fd);
		if (!on_siw() || !is_known(error))
			break;
		usleep(50000);
	}
	failures++;
	fprintf(stderr, "a client of kind %zd cannot connect to port %d: %s\n", kind - kinds, ntohs(to.in.sin_port), errno_name(error));
	return -1;
}

static void *connect_all(void *argument)
{
	unsigned number = (unsigned)(intptr_t)argument, dice = set.seed * 2654435761u + number * 7919u;

	for (unsigned i = 0; set.seconds ? elapsed_ms(&began) < set.seconds * 1000 : i < CONNECTIONS; i++) {
		unsigned listener = some(&dice, KINDS), kind = some(&dice, KINDS);
		struct end end = { .plan = make_plan(&dice), .dice = some(&dice, 1 << 20), .slow = !some(&dice, 4) };
		bool nodelay = some(&dice, 2);

		listener = set.listener >= 0 ? (unsigned)set.listener : listener;
		kind = set.kind >= 0 ? (unsigned)set.kind : kind;
		/* The number tells the client, its connection, and the kinds of listener and client. */
		end.plan.id = number << 24 | (i & 0xffff) << 8 | listener << 4 | kind;
		end.fd = connect_to(&kinds[kind], make_addr(AF_INET, set.to ? set.to : local_node(AF_INET), (uint16_t)(PORT + listener)));
		if (end.fd < 0)
			continue;
		if (nodelay)
			set_option(end.fd, IPPROTO_TCP, TCP_NODELAY, 1);
		if (send_all(end.fd, &end.plan, sizeof(end.plan)) == sizeof(end.plan)) {
			run_stream(&end);
		} else {
			fail(&end, "sends the plan", errno);
			rclose(end.fd);
		}
	}
	return NULL;
}

static void random_streams(void)
{
	pthread_t clients[64], watchdog;

	clock_gettime(CLOCK_MONOTONIC, &began);
	EXPECT(!pthread_create(&watchdog, NULL, watch, NULL));
	if (!set.to)
		listen_all();
	for (int i = 0; i < set.clients; i++)
		EXPECT(!pthread_create(&clients[i], NULL, connect_all, (void *)(intptr_t)(i + 1)));
	for (int i = 0; i < set.clients; i++)
		EXPECT(!pthread_join(clients[i], NULL));
	printf("     %lu ends of streams, %lu bytes, %lu failures\n", connections, bytes_total, failures);
	EXPECT(connections > 0 && failures == 0);
}

int main(int argc, char **argv)
{
	bool serves = false;
	int option;

	start(argc, argv);
	/* Soft-iWARP fails to create the object whose memory is the 144th page of a process (docs/compatibility.md). */
	if (!strcmp(device, "siw"))
		set.clients = 2;
	while ((option = getopt(argc, argv, "sa:Pt:n:r:c:l:ik:")) != -1)
		switch (option) {
		case 's': serves = true; break;
		case 'a': set.to = optarg; break;
		case 'P': set.plain = true; break;
		case 't': set.seconds = atol(optarg); break;
		case 'n': set.clients = atoi(optarg) % 64; break;
		case 'r': set.seed = (unsigned)atol(optarg); break;
		case 'c': set.kind = atoi(optarg) % KINDS; break;
		case 'l': set.listener = atoi(optarg) % KINDS; break;
		case 'i': set.pauses = true; break;
		case 'k': set.stuck_ms = atol(optarg) * 1000; break;
		default: return 2;
		}
	if (serves) {
		pthread_t watchdog;

		case_name = "listeners";
		clock_gettime(CLOCK_MONOTONIC, &began);
		listen_all();
		EXPECT(!pthread_create(&watchdog, NULL, watch, NULL));
		puts("ready");
		pthread_join(watchdog, NULL);
	}
	if (!set.seconds) {
		CASE(random_streams);
		return finish();
	}
	/* Without the time limit of a case. */
	case_name = "random_streams";
	random_streams();
	puts("PASS random_streams");
	return 0;
}
