/*
 * Several threads in repoll_wait, of one set or of several with EPOLLEXCLUSIVE. Each case makes the same steps
 * with TCP sockets and the kernel's epoll first, which shows what is expected, then with rsockets. Run on ours
 * only: the reference's repoll has neither EPOLLET nor EPOLLONESHOT nor EPOLLEXCLUSIVE.
 */
#include "cases.h"
#include "rscommon.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>

enum { THREADS = 4, MEMBERS = 3, STOP = 99 };

/* The calls of one kind of sockets. */
struct world {
	bool rdma;
	int (*create)(int flags);
	int (*control)(int epfd, int op, int fd, struct epoll_event *event);
	int (*wait)(int epfd, struct epoll_event *events, int maxevents, int timeout);
	int (*close)(int fd);
};

static struct world plain = { false, epoll_create1, epoll_ctl, epoll_wait, close };
static struct world ours = { .rdma = true, .close = rclose };
static struct world *world;

/* ---- sockets of either kind ------------------------------------------------------------------------- */

static int open_listener(union address *to)
{
	socklen_t len = sizeof(*to);
	int fd;

	if (world->rdma)
		return rs_listener(AF_INET, to, NULL);
	*to = local_addr(AF_INET, 0);
	EXPECT((fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && !bind(fd, &to->sa, sizeof(to->in)) && !listen(fd, 16));
	EXPECT(!getsockname(fd, &to->sa, &len));
	return fd;
}

static int connect_to(const union address *to)
{
	int fd = world->rdma ? rsocket(AF_INET, SOCK_STREAM, 0) : socket(AF_INET, SOCK_STREAM, 0);

	EXPECT(fd >= 0);
	EXPECT(!(world->rdma ? rconnect(fd, &to->sa, addr_len(to)) : connect(fd, &to->sa, addr_len(to))));
	return fd;
}

static int accept_from(int listener)
{
	int fd = world->rdma ? raccept(listener, NULL, NULL) : accept(listener, NULL, NULL);

	EXPECT(fd >= 0);
	return fd;
}

static void send_byte(int fd)
{
	EXPECT((world->rdma ? rsend(fd, "x", 1, 0) : send(fd, "x", 1, 0)) == 1);
}

static bool take_byte(int fd)
{
	char byte;

	return (world->rdma ? rrecv(fd, &byte, 1, MSG_DONTWAIT) : recv(fd, &byte, 1, MSG_DONTWAIT)) == 1;
}

/* A member that an event can be made for: the receiving end of a connection, or a listener. */
struct member {
	bool listens;
	int fd, other;
	union address to;
};

static struct member open_member(bool listens)
{
	struct member member = { .listens = listens, .other = -1 };
	int listener = open_listener(&member.to);

	EXPECT(listener >= 0);
	member.fd = listener;
	if (!listens) {
		member.other = connect_to(&member.to);
		member.fd = accept_from(listener);
		EXPECT(!world->close(listener));
	}
	return member;
}

/* Makes one event: a byte arrives, or a connection. */
static void make_event(const struct member *member)
{
	if (member->listens)
		connect_to(&member->to);
	else
		send_byte(member->other);
}

static int add(int set, int fd, uint32_t events, uint32_t data)
{
	struct epoll_event event = { .events = events, .data.u32 = data };

	return world->control(set, EPOLL_CTL_ADD, fd, &event);
}

/* ---- threads that wait once ------------------------------------------------------------------------- */

struct waiter {
	pthread_t thread;
	int set;
	_Atomic pid_t tid;
	_Atomic int reported;
	/* The thread's /proc/self/task/TID/stat. */
	int stat;
};

static struct waiter waiters[THREADS];
static struct member stop;
static _Atomic int out;

static void *wait_once(void *argument)
{
	struct waiter *waiter = argument;
	struct epoll_event event;

	waiter->tid = gettid();
	EXPECT(world->wait(waiter->set, &event, 1, -1) == 1);
	waiter->reported = (int)event.data.u32;
	out++;
	return NULL;
}

/* In a lab with several processors, opening the file takes longer than everything else. */
static bool is_asleep(struct waiter *waiter)
{
	if (waiter->reported >= 0)
		return true;
	if (!waiter->tid)
		return false;
	if (waiter->stat < 0)
		waiter->stat = open_stat(waiter->tid);
	return stat_sleeps(waiter->stat);
}

/* Returns when so many threads have come out and the others are asleep, at many checks in a row. */
static void settle(int expected)
{
	int asleep = 0;

	while (out < expected)
		pause_briefly();
	while (asleep < 5) {
		bool all = true;

		for (int i = 0; i < THREADS; i++)
			all = all && is_asleep(&waiters[i]);
		asleep = all ? asleep + 1 : 0;
		pause_briefly();
	}
}

static void expect_out(int expected)
{
	settle(expected);
	if (out != expected)
		printf("     %s: %d threads came out, not %d\n", world->rdma ? "rsockets" : "TCP", out, expected);
	EXPECT(out == expected);
}

/* Starts the threads; thread i waits for sets[i % count]. */
static void start_waiters(const int *sets, int count)
{
	out = 0;
	stop = open_member(false);
	for (int i = 0; i < count; i++)
		EXPECT(!add(sets[i], stop.fd, EPOLLIN, STOP));
	for (int i = 0; i < THREADS; i++) {
		waiters[i].set = sets[i % count];
		waiters[i].tid = 0;
		waiters[i].reported = -1;
		waiters[i].stat = -1;
		EXPECT(!pthread_create(&waiters[i].thread, NULL, wait_once, &waiters[i]));
	}
	expect_out(0);
}

/* Number of threads that reported a member. */
static int reports(int data)
{
	int count = 0;

	for (int i = 0; i < THREADS; i++)
		count += waiters[i].reported == data;
	return count;
}

/* All threads have come out, or do now. */
static void join_waiters(void)
{
	expect_out(THREADS);
	for (int i = 0; i < THREADS; i++)
		EXPECT(!pthread_join(waiters[i].thread, NULL));
}

/* The threads that are left come out for the byte that nobody reads: level-triggered, so all of them. */
static void stop_waiters(void)
{
	send_byte(stop.other);
	join_waiters();
}

/* Runs the steps with TCP, then with rsockets. */
static void in_both(void (*steps)(void))
{
	world = &plain;
	steps();
	world = &ours;
	steps();
}

/* ---- several threads, one set ----------------------------------------------------------------------- */

static uint32_t mode;
static bool listening, mixed;

/* The members, in one set; if `mixed` with an eventfd beside them. */
static int open_set(struct member *members)
{
	int set = world->create(0);

	EXPECT(set >= 0);
	if (mixed)
		EXPECT(!add(set, eventfd(0, 0), EPOLLIN, STOP));
	for (int i = 0; i < MEMBERS; i++) {
		members[i] = open_member(listening);
		EXPECT(!add(set, members[i].fd, EPOLLIN | mode, i));
	}
	return set;
}

static void one_event_after_the_other(void)
{
	struct member members[MEMBERS];
	int set = open_set(members);

	start_waiters(&set, 1);
	for (int i = 0; i < MEMBERS; i++) {
		make_event(&members[i]);
		expect_out(i + 1);
		EXPECT(reports(i) == 1);
	}
	stop_waiters();
	EXPECT(reports(STOP) == THREADS - MEMBERS);
}

static void all_events_at_once(void)
{
	struct member members[MEMBERS];
	int set = open_set(members);

	start_waiters(&set, 1);
	for (int i = 0; i < MEMBERS; i++)
		make_event(&members[i]);
	expect_out(MEMBERS);
	for (int i = 0; i < MEMBERS; i++)
		EXPECT(reports(i) == 1);
	stop_waiters();
}

/* Nobody reads: each thread that comes out leaves the member ready for the next. */
static void left_unread(void)
{
	struct member members[MEMBERS];
	int set = open_set(members);

	start_waiters(&set, 1);
	make_event(&members[0]);
	join_waiters();
	EXPECT(reports(0) == THREADS);
}

/* In all combinations of data or connections, with and without a descriptor of the kernel's. */
static void in_all_forms(void (*steps)(void), uint32_t events)
{
	mode = events;
	for (int form = 0; form < 4; form++) {
		listening = form & 1;
		mixed = form & 2;
		in_both(steps);
	}
}

static void edges_wake_one_each(void) { in_all_forms(one_event_after_the_other, EPOLLET); }
static void one_shots_wake_one_each(void) { in_all_forms(one_event_after_the_other, EPOLLONESHOT); }
static void edges_at_once_wake_one_each(void) { in_all_forms(all_events_at_once, EPOLLET); }
static void one_shots_at_once_wake_one_each(void) { in_all_forms(all_events_at_once, EPOLLONESHOT); }
static void a_level_wakes_all_if_unread(void) { in_all_forms(left_unread, 0); }

/* ---- time-outs and signals at the moment of an event -------------------------------------------------- */

enum { EVENTS = 150 };

static _Atomic int handled;
static _Atomic bool over;
static struct member pestered[MEMBERS];
static int pestered_set;

static void do_nothing(int signal)
{
	(void)signal;
}

/* Waits in short turns, takes one event at a time, and enables the member again. */
static void *handle_events(void *argument)
{
	struct epoll_event event;

	((struct waiter *)argument)->tid = gettid();
	while (!over) {
		int count = world->wait(pestered_set, &event, 1, handled % 3), error = errno;

		EXPECT(count >= 0 || error == EINTR);
		if (count != 1)
			continue;
		EXPECT(take_byte(pestered[event.data.u32].fd));
		handled++;
		event.events = EPOLLIN | EPOLLONESHOT;
		EXPECT(!world->control(pestered_set, EPOLL_CTL_MOD, pestered[event.data.u32].fd, &event));
	}
	return NULL;
}

static void pester(void)
{
	struct sigaction action = { .sa_handler = do_nothing };

	EXPECT(!sigaction(SIGUSR1, &action, NULL));
	mode = EPOLLONESHOT;
	pestered_set = open_set(pestered);
	handled = 0;
	over = false;
	for (int i = 0; i < THREADS; i++)
		EXPECT(!pthread_create(&waiters[i].thread, NULL, handle_events, &waiters[i]));
	for (int i = 0; i < EVENTS; i++) {
		send_byte(pestered[i % MEMBERS].other);
		for (int turn = 0; handled <= i; turn++) {
			/* Each signal at another moment of the wait, which takes no longer than 2 ms. */
			usleep((i + 37 * turn) % 101);
			EXPECT(!pthread_kill(waiters[turn % THREADS].thread, SIGUSR1));
		}
	}
	over = true;
	for (int i = 0; i < THREADS; i++)
		EXPECT(!pthread_join(waiters[i].thread, NULL));
	EXPECT(handled == EVENTS);
}

static void timeouts_and_signals_lose_no_event(void)
{
	listening = false;
	for (int form = 0; form < 2; form++) {
		mixed = form;
		in_both(pester);
	}
}

/* ---- EPOLLEXCLUSIVE ----------------------------------------------------------------------------------- */

static void errors(void)
{
	int set = world->create(0), other = world->create(0), event = eventfd(0, 0);
	struct member member = open_member(false);
	struct epoll_event change = { .events = EPOLLIN };

	EXPECT_ERROR(add(set, member.fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP, 0), EINVAL);
	EXPECT_ERROR(add(set, member.fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLPRI, 0), EINVAL);
	EXPECT_ERROR(add(set, member.fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 0), EINVAL);
	EXPECT_ERROR(add(set, member.fd, EPOLLRDNORM | EPOLLEXCLUSIVE, 0), EINVAL);
	EXPECT_ERROR(add(set, other, EPOLLIN | EPOLLEXCLUSIVE, 0), EINVAL);
	EXPECT_ERROR(add(set, set, EPOLLIN | EPOLLEXCLUSIVE, 0), EINVAL);
	change.events = EPOLLIN | EPOLLEXCLUSIVE;
	EXPECT_ERROR(world->control(set, EPOLL_CTL_MOD, member.fd, &change), EINVAL);
	EXPECT(!add(set, member.fd, EPOLLIN, 0));
	EXPECT_ERROR(add(set, member.fd, EPOLLIN | EPOLLEXCLUSIVE, 0), EEXIST);
	EXPECT_ERROR(world->control(set, EPOLL_CTL_MOD, member.fd, &change), EINVAL);
	EXPECT(!world->control(set, EPOLL_CTL_DEL, member.fd, NULL));
	EXPECT(!add(set, member.fd, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLET | EPOLLWAKEUP | EPOLLEXCLUSIVE, 0));
	change.events = EPOLLIN;
	EXPECT_ERROR(world->control(set, EPOLL_CTL_MOD, member.fd, &change), EINVAL);
	EXPECT(!world->control(set, EPOLL_CTL_DEL, member.fd, NULL));
	EXPECT_ERROR(world->control(set, EPOLL_CTL_DEL, member.fd, NULL), ENOENT);
	EXPECT(!add(set, event, EPOLLIN | EPOLLEXCLUSIVE, 0));
	EXPECT_ERROR(world->control(set, EPOLL_CTL_MOD, event, &change), EINVAL);
	EXPECT(!world->close(set) && !world->close(other));
}

static void exclusive_errors(void) { in_both(errors); }

/* A set for each thread, with the member in all of them; the first `always` without EPOLLEXCLUSIVE. */
static void open_sets(int *sets, const struct member *member, int always)
{
	for (int i = 0; i < THREADS; i++) {
		EXPECT((sets[i] = world->create(0)) >= 0);
		if (mixed)
			EXPECT(!add(sets[i], eventfd(0, 0), EPOLLIN, STOP));
		EXPECT(!add(sets[i], member->fd, EPOLLIN | mode | (i < always ? 0 : EPOLLEXCLUSIVE), i));
	}
}

/* Each event wakes one set or more. */
static void exclusive_in_each_set(void)
{
	struct member member = open_member(listening);
	int sets[THREADS];

	open_sets(sets, &member, 0);
	start_waiters(sets, THREADS);
	for (int i = 1; i < THREADS; i++) {
		make_event(&member);
		settle(i);
	}
	stop_waiters();
	EXPECT(reports(STOP) <= 1);
}

static void each_set_without_the_flag(void)
{
	struct member member = open_member(listening);
	int sets[THREADS];

	open_sets(sets, &member, THREADS);
	start_waiters(sets, THREADS);
	make_event(&member);
	join_waiters();
	EXPECT(reports(STOP) == 0);
}

/* Two sets without the flag are woken, and one of the others or both. */
static void some_sets_with_the_flag(void)
{
	struct member member = open_member(listening);
	int sets[THREADS];

	open_sets(sets, &member, 2);
	start_waiters(sets, THREADS);
	make_event(&member);
	settle(3);
	EXPECT(reports(0) == 1 && reports(1) == 1);
	stop_waiters();
	EXPECT(reports(STOP) <= 1);
}

/* The peer's end wakes them all. */
static void the_end_of_a_connection(void)
{
	struct member member = open_member(false);
	int sets[THREADS];

	open_sets(sets, &member, 0);
	start_waiters(sets, THREADS);
	EXPECT(!world->close(member.other));
	join_waiters();
	EXPECT(reports(STOP) == 0);
}

/* An event for which no thread waits is there for each set. */
static void nobody_waits(void)
{
	struct member member = open_member(listening);
	struct epoll_event event;
	int sets[THREADS];

	open_sets(sets, &member, 0);
	make_event(&member);
	/* poll(2) is no wait of the set's that could take the event from the others. */
	for (int i = 0; i < THREADS; i++)
		EXPECT(poll(&(struct pollfd){ .fd = sets[i], .events = POLLIN }, 1, -1) == 1);
	for (int i = 0; i < THREADS; i++) {
		EXPECT(world->wait(sets[i], &event, 1, -1) == 1 && event.data.u32 == (uint32_t)i && event.events == EPOLLIN);
		/* A level stays, an edge does not. */
		EXPECT(world->wait(sets[i], &event, 1, 0) == !(mode & EPOLLET));
	}
}

/* A set that was left or closed takes no event from the others. */
static void sets_that_go(void)
{
	struct member member = open_member(listening);
	int sets[THREADS + 2];

	for (int i = 0; i < THREADS + 2; i++) {
		EXPECT((sets[i] = world->create(0)) >= 0);
		EXPECT(!add(sets[i], member.fd, EPOLLIN | mode | EPOLLEXCLUSIVE, i));
	}
	EXPECT(!world->control(sets[0], EPOLL_CTL_DEL, member.fd, NULL));
	EXPECT(!world->close(sets[1]));
	start_waiters(sets + 2, THREADS);
	for (int i = 1; i <= THREADS; i++) {
		make_event(&member);
		settle(i);
	}
	for (int i = 0; i < THREADS; i++)
		EXPECT(!pthread_join(waiters[i].thread, NULL) && waiters[i].reported == i + 2);
}

/* Several threads wait for one of two sets: an edge wakes one thread of one set, or of each. */
static void several_threads_of_a_set(void)
{
	struct member member = open_member(listening);
	int sets[2];

	for (int i = 0; i < 2; i++) {
		EXPECT((sets[i] = world->create(0)) >= 0);
		EXPECT(!add(sets[i], member.fd, EPOLLIN | EPOLLET | EPOLLEXCLUSIVE, i));
	}
	start_waiters(sets, 2);
	make_event(&member);
	settle(1);
	EXPECT(reports(0) <= 1 && reports(1) <= 1);
	stop_waiters();
	EXPECT(reports(STOP) >= THREADS - 2);
}

static void for_data_and_connections(void (*steps)(void), uint32_t events)
{
	mode = events;
	mixed = false;
	for (int form = 0; form < 2; form++) {
		listening = form;
		in_both(steps);
	}
}

static void exclusive_wakes_a_set(void) { for_data_and_connections(exclusive_in_each_set, 0); }
static void exclusive_edges_wake_a_set(void) { for_data_and_connections(exclusive_in_each_set, EPOLLET); }
static void without_exclusive_all_sets_wake(void) { in_all_forms(each_set_without_the_flag, 0); }
static void sets_without_exclusive_wake_always(void) { in_all_forms(some_sets_with_the_flag, 0); }
static void an_event_nobody_waits_for_stays(void) { for_data_and_connections(nobody_waits, 0); }
static void an_edge_nobody_waits_for_stays(void) { for_data_and_connections(nobody_waits, EPOLLET); }
static void removed_and_closed_sets_take_nothing(void) { for_data_and_connections(sets_that_go, 0); }
static void an_edge_wakes_one_thread_of_a_set(void) { for_data_and_connections(several_threads_of_a_set, 0); }

static void the_end_wakes_all_sets(void)
{
	mixed = false;
	in_both(the_end_of_a_connection);
}

int main(int argc, char **argv)
{
	struct repoll repoll;

	start(argc, argv);
	if (!find_repoll(&repoll))
		skip_all("this library has no repoll_*");
	ours.create = repoll.create;
	ours.control = repoll.control;
	ours.wait = repoll.wait;
	CASE(edges_wake_one_each);
	CASE(one_shots_wake_one_each);
	CASE(edges_at_once_wake_one_each);
	CASE(one_shots_at_once_wake_one_each);
	CASE(a_level_wakes_all_if_unread);
	CASE(timeouts_and_signals_lose_no_event);
	CASE(exclusive_errors);
	CASE(exclusive_wakes_a_set);
	CASE(exclusive_edges_wake_a_set);
	CASE(without_exclusive_all_sets_wake);
	CASE(sets_without_exclusive_wake_always);
	CASE(the_end_wakes_all_sets);
	CASE(an_event_nobody_waits_for_stays);
	CASE(an_edge_nobody_waits_for_stays);
	CASE(removed_and_closed_sets_take_nothing);
	CASE(an_edge_wakes_one_thread_of_a_set);
	return finish();
}
