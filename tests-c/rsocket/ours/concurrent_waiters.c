/*
 * A thread that waits for several rsockets sleeps until an event concerns it, also while another thread
 * is blocked in a call on one of them and reads the events of both. Run on ours only: it
 * counts the library's own calls of ppoll and epoll_wait, which this program answers, and their causes: events of
 * completion channels and notices. However the threads are scheduled, a cause wakes it once, or twice if it looks at an
 * event on one processor while the other thread reads it on another one.
 */
#include "cases.h"
#include "rscommon.h"

#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/syscall.h>

enum { MESSAGES = 20 };

static struct rspair pair;
static _Thread_local long turns;
static long turns_of_waiter;
static volatile pid_t waiter_id, other_id;
/* Events of completion channels that were read, and notices: writes to eventfds. Without those of the client's thread. */
static long events_read, notices;

/* Replaces the C library's function. */
int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	struct timespec left;

	turns++;
	/* The kernel writes what is left of the time. */
	if (timeout)
		left = *timeout;
	return syscall(SYS_ppoll, fds, count, timeout ? &left : NULL, mask, _NSIG / 8);
}

int epoll_wait(int fd, struct epoll_event *events, int room, int timeout)
{
	turns++;
	return syscall(SYS_epoll_pwait, fd, events, room, timeout, NULL, _NSIG / 8);
}

/* ---- waits for the end of the stream, which needs no request ---------------------------------------- */

/* rpoll gets two entries here and below: a call for a single rsocket waits as that one's blocking calls do. */

/* A thread of high priority that polls in a loop would prevent the others from running. */
static void come_first(void)
{
	EXPECT(!sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){ .sched_priority = 1 }));
	waiter_id = gettid();
}

static void *poll_to_the_end(void *unused)
{
	struct pollfd entries[2] = { { .fd = pair.server }, { .fd = -1 } };

	come_first();
	EXPECT(rpoll(entries, 2, -1) == 1 && entries[0].revents & POLLHUP);
	turns_of_waiter = turns;
	return unused;
}

static void *epoll_to_the_end(void *unused)
{
	struct repoll repoll;
	struct epoll_event event = { .events = 0 };
	int set;

	EXPECT(find_repoll(&repoll) && (set = repoll.create(0)) >= 0 && !repoll.control(set, EPOLL_CTL_ADD, pair.server, &event));
	come_first();
	EXPECT(repoll.wait(set, &event, 1, -1) == 1 && event.events & EPOLLHUP);
	turns_of_waiter = turns;
	EXPECT(!rclose(set));
	return unused;
}

/* ---- answers each byte ---------------------------------------------------------------------------- */

static void *answer_blocking(void *unused)
{
	char byte;

	other_id = gettid();
	while (rrecv(pair.server, &byte, 1, 0) == 1)
		EXPECT(rsend(pair.server, &byte, 1, 0) == 1);
	return unused;
}

static void *answer_polling(void *unused)
{
	struct pollfd entries[2] = { { .fd = pair.server, .events = POLLIN }, { .fd = -1 } };
	ssize_t count;
	char byte;

	other_id = gettid();
	do {
		EXPECT(rpoll(entries, 2, -1) == 1);
		count = rrecv(pair.server, &byte, 1, MSG_DONTWAIT);
		EXPECT(count != 1 || rsend(pair.server, &byte, 1, MSG_DONTWAIT) == 1);
	} while (count == 1 || (count == -1 && errno == EAGAIN));
	return unused;
}

/* ---- what wakes a waiter ---------------------------------------------------------------------------- */

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
	int (*get)(struct ibv_comp_channel *, struct ibv_cq **, void **) = (__typeof__(get))dlsym(RTLD_NEXT, "ibv_get_cq_event");
	int ret = get(channel, cq, context);

	if (!ret && gettid() != getpid())
		__atomic_fetch_add(&events_read, 1, __ATOMIC_SEQ_CST);
	return ret;
}

long syscall(long number, ...)
{
	long (*call)(long, ...) = (__typeof__(call))dlsym(RTLD_NEXT, "syscall");
	long arguments[6];
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		arguments[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_write && arguments[2] == sizeof(uint64_t) && gettid() != getpid())
		__atomic_fetch_add(&notices, 1, __ATOMIC_SEQ_CST);
	return call(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

/* Returns the number of wake-ups of the waiter while the other thread answered. Each has a cause. */
static long turns_beside(const char *whom, void *(*wait)(void *), void *(*answer)(void *))
{
	pthread_t waiter, other;
	char byte = 'x';
	long causes;

	EXPECT(rs_pair(&pair, AF_INET));
	waiter_id = other_id = 0;
	events_read = notices = 0;
	EXPECT(!pthread_create(&waiter, NULL, wait, NULL));
	await_sleep(&waiter_id);
	EXPECT(!pthread_create(&other, NULL, answer, NULL));
	for (int i = 0; i < MESSAGES; i++) {
		await_sleep(&other_id);
		EXPECT(rsend(pair.client, &byte, 1, 0) == 1);
		EXPECT(rrecv(pair.client, &byte, 1, 0) == 1);
	}
	EXPECT(!rclose(pair.client));
	EXPECT(!pthread_join(waiter, NULL) && !pthread_join(other, NULL));
	EXPECT(!rclose(pair.server) && !rclose(pair.listener));
	causes = events_read + notices;
	printf("     %d messages: %ld turns beside %s, for %ld events and %ld notices\n", MESSAGES, turns_of_waiter, whom,
	       events_read, notices);
	/* The first one finds nothing. */
	EXPECT(turns_of_waiter > 0 && turns_of_waiter <= 1 + 2 * causes);
	return turns_of_waiter;
}

/*
 * A blocked call reads one event for each message, and another one for its answer at most, and gives notice when it
 * begins to read, after the event, and when it ends.
 */
static void is_told(void *(*wait)(void *))
{
	turns_beside("a poller", wait, answer_polling);
	EXPECT(turns_beside("a blocked call", wait, answer_blocking) <= 4 * (MESSAGES + 1));
}

static void rpoll_beside_a_blocked_call(void) { is_told(poll_to_the_end); }
static void repoll_wait_beside_a_blocked_call(void) { is_told(epoll_to_the_end); }

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(rpoll_beside_a_blocked_call);
	CASE(repoll_wait_beside_a_blocked_call);
	return finish();
}
