/*
 * Threads that are cancelled, interrupted by signals and forked at random instants of all calls: nothing else may hang. Each
 * round has a victim, which makes calls of one kind until it is interrupted in one of these ways:
 * - pthread_cancel(3);
 * - signals, with and without SA_RESTART, whose handler calls r* on the same rsockets; the victim continues;
 * - a signal whose handler jumps out of a sleeping rdma_get_cm_event(3);
 * - fork(2) by another thread; the child makes an rsocket and an id.
 * After each round a watchdog with its own time-out checks the process: a new rconnect and raccept (the reactor), an id (the
 * registry), fork().
 *
 * chaos DEVICE [ROUNDS [SEED]]: the default seed is taken from the clock. The seed is printed.
 */
#include "rsblocked.h"

#include <setjmp.h>
#include <signal.h>
#include <time.h>

/* Connections take longer with soft-iWARP. */
enum { USUAL_ROUNDS = 200, SIW_ROUNDS = 120 };

static unsigned int dice;

static unsigned int roll(unsigned int sides)
{
	return (unsigned int)rand_r(&dice) % sides;
}

/* What a victim uses; created again if a round may have left it unusable. */
static struct work {
	int stream, peer, dgram, ep;
	union address own_name;
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
} work;

static struct repoll repoll;

static void open_work(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	union address address = local_addr(AF_INET, 0);
	socklen_t len = sizeof(work.own_name);

	EXPECT(rs_pair(&pair, AF_INET));
	work.stream = pair.client;
	work.peer = pair.server;
	EXPECT((work.dgram = rsocket(AF_INET, SOCK_DGRAM, 0)) >= 0);
	EXPECT(!rbind(work.dgram, &address.sa, addr_len(&address)));
	EXPECT(!rgetsockname(work.dgram, &work.own_name.sa, &len));
	EXPECT((work.ep = repoll.create(0)) >= 0 && !repoll.control(work.ep, EPOLL_CTL_ADD, work.peer, &event));
	EXPECT((work.channel = rdma_create_event_channel()) && !rdma_create_id(work.channel, &work.id, NULL, RDMA_PS_TCP));
}

/* Destroys what a cancelled thread may have left in any state; the result is ignored. */
static void close_work(void)
{
	rclose(work.ep);
	rclose(work.dgram);
	rs_pair_close(&pair);
	rdma_destroy_id(work.id);
	rdma_destroy_event_channel(work.channel);
}

/* ---- what victims do: one call or a few, which may wait a little ------------------------------------------ */

static void set_timeouts(int fd)
{
	struct timeval soon = { .tv_usec = 2000 };

	rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon));
	rsetsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof(soon));
}

static void do_stream(void)
{
	char buffer[5000];
	struct iovec parts[2] = { { buffer, 100 }, { buffer + 100, 900 } };

	rsend(work.stream, data, 1 + (size_t)getpid() % 64, MSG_DONTWAIT);
	rsend(work.stream, data, sizeof(buffer), MSG_DONTWAIT);
	rrecv(work.peer, buffer, sizeof(buffer), MSG_DONTWAIT);
	rreadv(work.peer, parts, 2);
	rwritev(work.peer, parts, 2);
	rrecv(work.stream, buffer, sizeof(buffer), 0);
}

static void do_dgram(void)
{
	char byte;

	rsendto(work.dgram, "x", 1, 0, &work.own_name.sa, addr_len(&work.own_name));
	rrecv(work.dgram, &byte, 1, 0);
}

static void do_poll(void)
{
	struct pollfd all[] = { { work.stream, POLLIN, 0 }, { work.peer, POLLIN, 0 }, { work.dgram, POLLIN, 0 } };
	struct epoll_event events[4];
	struct timeval soon = { .tv_usec = 1000 };
	char buffer[300];
	fd_set set;

	rsend(work.stream, data, 10, MSG_DONTWAIT);
	rpoll(all, 1, 1);
	rpoll(all, 3, 1);
	FD_ZERO(&set);
	FD_SET(work.peer, &set);
	rselect(work.peer + 1, &set, NULL, NULL, &soon);
	repoll.wait(work.ep, events, 4, 1);
	rrecv(work.peer, buffer, sizeof(buffer), MSG_DONTWAIT);
	repoll.wait(work.ep, events, 4, 1);
}

static void do_members(void)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT };

	repoll.control(work.ep, EPOLL_CTL_ADD, work.stream, &event);
	repoll.control(work.ep, EPOLL_CTL_DEL, work.stream, &event);
}

static void do_connections(void)
{
	struct pollfd listener = { .fd = pair.listener, .events = POLLIN };
	int fd = rsocket(AF_INET, SOCK_STREAM, 0), other;

	if (fd < 0)
		return;
	rs_nonblock(pair.listener, true);
	/* The listener has this connection a little later. Turns that do not wait for it fill the backlog. */
	if (!rconnect(fd, &pair.to.sa, addr_len(&pair.to)))
		rpoll(&listener, 1, 1000);
	while ((other = raccept(pair.listener, NULL, NULL)) >= 0)
		rclose(other);
	rshutdown(fd, SHUT_RDWR);
	rclose(fd);
}

static void do_options(void)
{
	int value = 0;
	socklen_t len = sizeof(value);
	union address name;
	socklen_t name_len = sizeof(name);

	rgetsockopt(work.stream, SOL_SOCKET, SO_ERROR, &value, &len);
	rgetpeername(work.stream, &name.sa, &name_len);
	rfcntl(work.peer, F_GETFL);
	set_timeouts(work.stream);
}

static void do_devices(void)
{
	struct ibv_context **list = rdma_get_devices(NULL);

	if (list)
		rdma_free_devices(list);
}

static void do_ids(void)
{
	union address address = local_addr(AF_INET, 0);
	struct rdma_cm_id *id;

	if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP))
		return;
	if (!rdma_resolve_addr(id, NULL, &address.sa, 100))
		rdma_resolve_route(id, 100);
	rdma_destroy_id(id);
}

static void do_events(void)
{
	union address address = local_addr(AF_INET, 0);
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	if (rdma_create_id(work.channel, &id, NULL, RDMA_PS_TCP))
		return;
	/* Maybe that of an id whose thread was cancelled before it had it. */
	if (!rdma_resolve_addr(id, NULL, &address.sa, 100) && !rdma_get_cm_event(work.channel, &event))
		rdma_ack_cm_event(event);
	rdma_destroy_id(id);
}

/* ThreadSanitizer's runtime, if the library has it: it ends the process if a thread is cancelled in getaddrinfo(3). */
extern void __tsan_init(void) __attribute__((weak));

static void do_names(void)
{
	struct rdma_addrinfo *info;

	if (!__tsan_init && !rdma_getaddrinfo(local_node(AF_INET), "7471", NULL, &info))
		rdma_freeaddrinfo(info);
}

static void (*const kinds[])(void) = { do_stream, do_dgram, do_poll, do_members, do_connections, do_options,
				       do_devices, do_ids, do_events, do_names };
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static void (*volatile chosen)(void);
static volatile bool begun, stop;

static void *be_victim(void *argument)
{
	while (!stop) {
		chosen();
		begun = true;
		pthread_testcancel();
	}
	return argument;
}

/* ---- how they are interrupted --------------------------------------------------------------------------------- */

static void nap(unsigned int at_most_us)
{
	struct timespec time = { .tv_nsec = 1000L * roll(at_most_us) };

	nanosleep(&time, NULL);
}

/* What POSIX lets a handler do with sockets, on those that the victim uses. */
static void handler(int signal)
{
	int error = errno;
	struct pollfd entry = { .fd = work.stream, .events = POLLIN | POLLOUT };
	char byte;

	(void)signal;
	rsend(work.stream, "h", 1, MSG_DONTWAIT);
	rrecv(work.peer, &byte, 1, MSG_DONTWAIT);
	rpoll(&entry, 1, 1);
	errno = error;
}

static pthread_t start_victim(void)
{
	pthread_t victim;

	begun = stop = false;
	EXPECT(!pthread_create(&victim, NULL, be_victim, NULL));
	return victim;
}

static void end_victim(pthread_t victim)
{
	stop = true;
	EXPECT(!pthread_join(victim, NULL));
}

static void cancel_it(void)
{
	pthread_t victim = start_victim();
	void *result;

	nap(4000);
	EXPECT(!pthread_cancel(victim) && !pthread_join(victim, &result) && result == PTHREAD_CANCELED);
}

static void signal_it(void)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = roll(2) ? SA_RESTART : 0 };
	pthread_t victim = start_victim();

	EXPECT(!sigaction(SIGUSR1, &action, NULL));
	for (unsigned int count = 1 + roll(5); count > 0; count--) {
		nap(1000);
		EXPECT(!pthread_kill(victim, SIGUSR1));
	}
	end_victim(victim);
}

static _Thread_local sigjmp_buf back;
static volatile pid_t sleeper;
/* Has no events. */
static struct rdma_event_channel *quiet;

static void jump(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

static void *wait_for_event(void *argument)
{
	struct rdma_cm_event *event;

	if (!sigsetjmp(back, 1)) {
		sleeper = gettid();
		rdma_get_cm_event(quiet, &event);
	}
	return argument;
}

static void jump_out_of_it(void)
{
	struct sigaction action = { .sa_handler = jump };
	pthread_t victim;

	EXPECT(!sigaction(SIGUSR1, &action, NULL));
	sleeper = 0;
	EXPECT((quiet = rdma_create_event_channel()));
	EXPECT(!pthread_create(&victim, NULL, wait_for_event, NULL));
	EXPECT(await_sleep(&sleeper));
	EXPECT(!pthread_kill(victim, SIGUSR1) && !pthread_join(victim, NULL));
	rdma_destroy_event_channel(quiet);
}

/* The child has one thread: none of the victim's locks may be in its way. */
static void fork_beside_it(void)
{
	pthread_t victim = start_victim();
	pid_t child;

	nap(2000);
	child = fork();
	if (child == 0) {
		struct rdma_cm_id *id;
		int fd = rsocket(AF_INET, SOCK_DGRAM, 0);

		alarm(hang_seconds());
		EXPECT(fd >= 0 && !rclose(fd) && !rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) && !rdma_destroy_id(id));
		_exit(CHILD_DONE);
	}
	EXPECT(child_done(child));
	end_victim(victim);
}

static void (*const ways[])(void) = { cancel_it, signal_it, jump_out_of_it, fork_beside_it };
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

/* ---- the watchdog ------------------------------------------------------------------------------------------- */

static void look_after(void)
{
	struct rspair fresh;
	struct rdma_cm_id *id;
	pid_t child;

	EXPECT(rs_pair(&fresh, AF_INET));
	rs_pair_close(&fresh);
	EXPECT(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) && !rdma_destroy_id(id));
	child = fork();
	if (child == 0)
		_exit(CHILD_DONE);
	EXPECT(child_done(child));
}

static int rounds;
static unsigned int seed;

static void chaos(void)
{
	/* Fresh rsockets take longer than rounds do. */
	const int lasting = 10;

	EXPECT(find_repoll(&repoll));
	dice = seed;
	for (int round = 0; round < rounds; round++) {
		alarm(hang_seconds());
		if (round % lasting == 0)
			open_work();
		set_timeouts(work.stream);
		set_timeouts(work.peer);
		set_timeouts(work.dgram);
		chosen = kinds[roll(KINDS)];
		ways[roll(WAYS)]();
		if (round % lasting == lasting - 1) {
			look_after();
			close_work();
		}
	}
}

int main(int argc, char **argv)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	seed = argc > 3 ? (unsigned int)strtoul(argv[3], NULL, 0) : (unsigned int)(now.tv_nsec ^ now.tv_sec);
	start(argc, argv);
	rounds = argc > 2 ? atoi(argv[2]) : on_siw() ? SIW_ROUNDS : USUAL_ROUNDS;
	fprintf(stderr, "chaos: %d rounds, seed %u\n", rounds, seed);
	CASE(chaos);
	return finish();
}
