/*
 * Calls that signal handlers interrupt, which call the library on the objects of the interrupted call, fork or jump out.
 * Locks are free afterwards: other calls and fork() work. Run on ours only; the reference hangs in most of these. chaos.c
 * does the same at random, in all calls.
 */
#include "rsinterrupted.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>

static struct rdma_event_channel *channel;

static ssize_t call_get_event(int fd)
{
	struct rdma_cm_event *event;

	(void)fd;
	return rdma_get_cm_event(channel, &event);
}

static sigjmp_buf back;
static pthread_t jumper;
static pid_t jumper_tid;

static void *wake_jumper(void *argument)
{
	await_sleep(&jumper_tid);
	pthread_kill(jumper, SIGUSR1);
	return argument;
}

static void jump(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

/* As the program had set it, in either case. */
static void jump_out_of_get_cm_event(void)
{
	struct sigaction action = { .sa_handler = jump };
	pthread_t waker;
	int state = -1;

	jumper = pthread_self();
	jumper_tid = gettid();
	channel = rdma_create_event_channel();
	EXPECT(channel && !sigaction(SIGUSR1, &action, NULL));
	for (int round = 0; round < 2; round++) {
		EXPECT(!pthread_setcancelstate(round ? PTHREAD_CANCEL_DISABLE : PTHREAD_CANCEL_ENABLE, NULL));
		if (!sigsetjmp(back, 1)) {
			EXPECT(!pthread_create(&waker, NULL, wake_jumper, NULL));
			call_get_event(-1);
			EXPECT(!"it returned");
		}
		EXPECT(!pthread_join(waker, NULL));
		EXPECT(!pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state));
		EXPECT(state == (round ? PTHREAD_CANCEL_DISABLE : PTHREAD_CANCEL_ENABLE));
	}
	rdma_destroy_event_channel(channel);
}

/* ---- signal handlers ------------------------------------------------------------------------------------ */

static volatile sig_atomic_t handled, refused, unexpected;

/* Signals at short and irregular intervals, until `calls` of the handler, with or without SA_RESTART. */
static void with_signals(void (*handler)(int), int flags, int calls, void (*work)(void))
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2 };
	timer_t timer;

	EXPECT(!sigaction(SIGUSR2, &action, NULL) && !timer_create(CLOCK_MONOTONIC, &event, &timer));
	handled = refused = unexpected = 0;
	while (handled < calls) {
		struct itimerspec once = { .it_value.tv_nsec = 50000 + rand_r(&seed) % 500000 };
		int before = handled;

		EXPECT(!timer_settime(timer, 0, &once, NULL));
		while (handled == before)
			work();
	}
	EXPECT(!timer_delete(timer));
}

/* Not the errno of a non-blocking call. */
static void judge(ssize_t result)
{
	if (result >= 0)
		return;
	if (errno == EAGAIN)
		refused++;
	else
		unexpected++;
}

static void talk(int signal)
{
	int error = errno;
	struct pollfd entry = { .fd = pair.client, .events = POLLIN | POLLOUT };
	char byte;

	(void)signal;
	judge(rsend(pair.client, "h", 1, MSG_DONTWAIT));
	judge(rrecv(pair.client, &byte, 1, MSG_DONTWAIT));
	judge(rsend(pair.client, data, 3000, MSG_DONTWAIT));
	judge(rpoll(&entry, 1, 0));
	judge(rpoll(&entry, 1, 20));
	errno = error;
	handled++;
}

static void converse(void)
{
	rsend(pair.client, "x", 1, MSG_DONTWAIT);
	rsend(pair.client, data, 3000, MSG_DONTWAIT);
	rrecv(pair.server, data, sizeof(data), MSG_DONTWAIT);
	rsend(pair.server, "y", 1, MSG_DONTWAIT);
	rrecv(pair.client, data, sizeof(data), MSG_DONTWAIT);
}

static void handlers_use_the_same_stream(void)
{
	EXPECT(rs_pair(&pair, AF_INET));
	with_signals(talk, SA_RESTART, 300, converse);
	EXPECT(refused > 0 && unexpected == 0);
	with_signals(talk, 0, 300, converse);
	EXPECT(refused > 0 && unexpected == 0);
	EXPECT(pair_works());
	rs_pair_close(&pair);
	all_is_well();
}

static int datagrams;

static void talk_by_datagrams(int signal)
{
	int error = errno;
	struct pollfd entry = { .fd = datagrams, .events = POLLIN | POLLOUT };
	char byte;

	(void)signal;
	judge(rsendto(datagrams, "h", 1, MSG_DONTWAIT, &own_name.sa, addr_len(&own_name)));
	judge(rrecv(datagrams, &byte, 1, MSG_DONTWAIT));
	judge(rpoll(&entry, 1, 20));
	errno = error;
	handled++;
}

static void converse_by_datagrams(void)
{
	send_datagram(&datagrams);
}

static void handlers_use_the_same_datagram_socket(void)
{
	datagrams = datagram_socket();
	with_signals(talk_by_datagrams, SA_RESTART, 200, converse_by_datagrams);
	EXPECT(unexpected == 0 && !rclose(datagrams));
	all_is_well();
}

/* What the handlers interrupt: the library's changes to lists that other threads, and the reactor, use under a stream's lock. */
static struct repoll repoll;
static int ep;
static volatile bool stop_polling;

static void change_lists(void)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT }, found[4];
	struct pollfd all[] = { { pair.client, POLLIN, 0 }, { pair.server, POLLIN, 0 } };
	union address nobody = local_addr(AF_INET, 1);
	char byte;
	int fd;

	repoll.control(ep, EPOLL_CTL_ADD, pair.client, &event);
	repoll.control(ep, EPOLL_CTL_ADD, pair.server, &event);
	rsend(pair.client, "x", 1, MSG_DONTWAIT);
	repoll.wait(ep, found, 4, 0);
	rpoll(all, 2, 1);
	rrecv(pair.server, &byte, 1, MSG_DONTWAIT);
	repoll.control(ep, EPOLL_CTL_DEL, pair.client, NULL);
	repoll.control(ep, EPOLL_CTL_DEL, pair.server, NULL);
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	if (fd >= 0) {
		rs_nonblock(fd, true);
		rconnect(fd, &nobody.sa, addr_len(&nobody));
		rclose(fd);
	}
}

/* Calls on the same streams in another thread. */
static void *poll_beside(void *argument)
{
	struct pollfd all[] = { { pair.client, POLLIN, 0 }, { pair.server, POLLIN, 0 } };
	sigset_t signals;

	sigfillset(&signals);
	pthread_sigmask(SIG_SETMASK, &signals, NULL);
	while (!stop_polling) {
		char bytes[100];

		rpoll(all, 2, 1);
		rrecv(pair.client, bytes, sizeof(bytes), MSG_DONTWAIT);
		rrecv(pair.server, bytes, sizeof(bytes), MSG_DONTWAIT);
		rsend(pair.server, "z", 1, MSG_DONTWAIT);
	}
	return argument;
}

static void talk_and_wait(int signal)
{
	int error = errno;
	struct epoll_event found[4];
	struct pollfd all[] = { { pair.client, POLLIN, 0 }, { pair.server, POLLIN, 0 } };

	talk(signal);
	judge(rpoll(all, 2, 1));
	judge(repoll.wait(ep, found, 4, 1));
	errno = error;
}

static void handlers_interrupt_changes_of_lists(void)
{
	pthread_t thread;

	EXPECT(find_repoll(&repoll) && rs_pair(&pair, AF_INET));
	EXPECT((ep = repoll.create(0)) >= 0 && !pthread_create(&thread, NULL, poll_beside, NULL));
	with_signals(talk_and_wait, SA_RESTART, 600, change_lists);
	EXPECT(refused > 0 && unexpected == 0);
	stop_polling = true;
	EXPECT(!pthread_join(thread, NULL) && !rclose(ep));
	EXPECT(pair_works());
	rs_pair_close(&pair);
	all_is_well();
}

static void fork_here(int signal)
{
	int error = errno;
	pid_t child = fork();

	(void)signal;
	if (child == 0)
		_exit(CHILD_DONE);
	if (child < 0 || waitpid(child, NULL, 0) != child)
		unexpected++;
	errno = error;
	handled++;
}

static void devices(void)
{
	list_devices(NULL);
}

/* In a process with one thread: elsewhere the C library's fork(2) is not async-signal-safe. */
static void handlers_fork(void)
{
	with_signals(fork_here, SA_RESTART, 100, devices);
	EXPECT(unexpected == 0);
	all_is_well();
}

/* ---- fork() while another thread makes the process's first rsocket ----------------------------------------- */

static const char setting[] = "/etc/rdma/rsocket/polling_time";

static void *first_rsocket(void *argument)
{
	*(pid_t *)argument = gettid();
	rsocket(AF_INET, SOCK_STREAM, 0);
	return argument;
}

/* It reads its settings from files, one of which keeps it waiting: a pipe that nobody writes to. The child's own reading ends. */
static void fork_while_settings_are_read(void)
{
	static char numbers[4096];
	volatile pid_t reader = 0;
	pthread_t thread;
	pid_t child;

	mkdir("/etc/rdma", 0755);
	mkdir("/etc/rdma/rsocket", 0755);
	EXPECT(!mkfifo(setting, 0600));
	EXPECT(!pthread_create(&thread, NULL, first_rsocket, (void *)&reader));
	EXPECT(await_sleep(&reader));
	child = fork();
	if (child == 0) {
		int pipe = open(setting, O_RDWR);

		alarm(hang_seconds() / 2);
		memset(numbers, '1', sizeof(numbers));
		EXPECT(write(pipe, numbers, sizeof(numbers)) >= 0 && rsocket(AF_INET, SOCK_STREAM, 0) >= 0);
		_exit(CHILD_DONE);
	}
	EXPECT(child_done(child) && !unlink(setting));
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(jump_out_of_get_cm_event);
	CASE(handlers_use_the_same_stream);
	/* Soft-iWARP has no datagrams. */
	CASE_IF(!on_siw(), handlers_use_the_same_datagram_socket);
	CASE(handlers_interrupt_changes_of_lists);
	CASE(handlers_fork);
	CASE(fork_while_settings_are_read);
	return finish();
}
