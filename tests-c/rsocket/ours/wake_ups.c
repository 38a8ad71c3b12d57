/*
 * A thread is blocked, and another one ends what it waits for, or a signal comes: the blocked call
 * returns as a socket's does. Run on ours only; the reference hangs or aborts.
 */
#include "cases.h"
#include "rsblocked.h"

#include <signal.h>

/* ---- closing and shutting down ------------------------------------------------------------- */

static void close_under_recv(void)
{
	struct blocked blocked;

	EXPECT(rs_pair(&pair, AF_INET));
	start_blocked(&blocked, call_recv, pair.server);
	EXPECT(!rclose(pair.server));
	pair.server = -1;
	join(&blocked);
	EXPECT(blocked.ret == 0 || failed_with(&blocked, EBADF, ECONNRESET));
	rs_pair_close(&pair);
}

static volatile sig_atomic_t close_failed;

static void close_the_server(int signal)
{
	(void)signal;
	close_failed = rclose(pair.server);
}

/* A signal handler closes the rsocket of the call that it interrupts: closing must not wait for that call. */
static void closed_by_handler(ssize_t (*call)(int), int flags)
{
	struct sigaction action = { .sa_handler = close_the_server, .sa_flags = flags };
	struct blocked blocked;
	int before;
	char byte;

	EXPECT(rs_pair(&pair, AF_INET));
	rs_pair_close(&pair);
	before = open_fds();
	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(!sigaction(SIGUSR1, &action, NULL));
	close_failed = 1;
	start_blocked(&blocked, call, pair.server);
	EXPECT(!pthread_kill(blocked.thread, SIGUSR1));
	join(&blocked);
	EXPECT(!close_failed);
	EXPECT(blocked.ret == 0 || blocked.ret == 1 || failed_with(&blocked, EBADF, EINTR));
	EXPECT_ERROR(rrecv(pair.server, &byte, 1, 0), EBADF);
	EXPECT(rrecv(pair.client, &byte, 1, 0) == 0);
	EXPECT(!rclose(pair.client) && !rclose(pair.listener));
	await_fds(before);
}

static void close_recv_by_handler(void) { closed_by_handler(call_recv, 0); }
static void close_recv_by_restarting_handler(void) { closed_by_handler(call_recv, SA_RESTART); }
static void close_poll_by_handler(void) { closed_by_handler(call_poll, 0); }

static volatile sig_atomic_t is_closed;

/* It fails in the middle of a call: the next handler tries again. */
static void close_the_server_once(int signal)
{
	(void)signal;
	is_closed = is_closed || !rclose(pair.server);
}

static void *signal_until_closed(void *thread)
{
	static unsigned int seed = 1;

	usleep((useconds_t)rand_r(&seed) % 500);
	while (!is_closed) {
		EXPECT(!pthread_kill(*(pthread_t *)thread, SIGUSR1));
		sched_yield();
	}
	return NULL;
}

static void *receive_until_closed(void *unused)
{
	char byte;

	while (rrecv(pair.server, &byte, 1, 0) == 1)
		;
	return unused;
}

/* Calls that do not block, and wait for a lock at most, are interrupted at any instruction. */
static void close_busy_calls_by_handler(void)
{
	struct sigaction action = { .sa_handler = close_the_server_once };
	pthread_t self = pthread_self(), other, receiver;
	char byte;

	EXPECT(!sigaction(SIGUSR1, &action, NULL));
	for (int round = 0; round < 20; round++) {
		EXPECT(rs_pair(&pair, AF_INET));
		is_closed = 0;
		EXPECT(!pthread_create(&receiver, NULL, receive_until_closed, NULL));
		EXPECT(!pthread_create(&other, NULL, signal_until_closed, &self));
		while (!is_closed) {
			struct pollfd entry = { .fd = pair.server, .events = POLLIN };

			rpoll(&entry, 1, 0);
			rsend(pair.client, "x", 1, MSG_DONTWAIT);
			rrecv(pair.server, &byte, 1, MSG_DONTWAIT);
			/* A handler can close it between two calls only. */
			sched_yield();
		}
		EXPECT(!pthread_join(other, NULL) && !pthread_join(receiver, NULL));
		pair.server = -1;
		rs_pair_close(&pair);
	}
}

static void close_under_send(void)
{
	struct blocked blocked;

	EXPECT(rs_pair(&pair, AF_INET));
	fill_up(pair.client);
	start_blocked(&blocked, call_send, pair.client);
	EXPECT(!rclose(pair.client));
	pair.client = -1;
	join(&blocked);
	EXPECT(blocked.ret >= 0 || failed_with(&blocked, EBADF, ECONNRESET));
	rs_pair_close(&pair);
}

static void close_under_accept(void)
{
	union address to;
	struct blocked blocked;
	int fd = rs_listener(AF_INET, &to, NULL);

	start_blocked(&blocked, call_accept, fd);
	EXPECT(!rclose(fd));
	join(&blocked);
	EXPECT(failed_with(&blocked, EBADF, EINVAL));
}

static void close_under_connect(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	struct blocked blocked;

	start_blocked(&blocked, call_connect, fd);
	EXPECT(!rclose(fd));
	join(&blocked);
	EXPECT(failed_with(&blocked, EBADF, ECONNABORTED));
}

static void close_under_poll(void)
{
	struct blocked blocked;

	EXPECT(rs_pair(&pair, AF_INET));
	start_blocked(&blocked, call_poll, pair.server);
	EXPECT(!rclose(pair.server));
	pair.server = -1;
	join(&blocked);
	EXPECT(blocked.ret == 1 || failed_with(&blocked, EBADF, EBADF));
	rs_pair_close(&pair);
}

static void shutdown_under_recv(void)
{
	struct blocked blocked;

	EXPECT(rs_pair(&pair, AF_INET));
	start_blocked(&blocked, call_recv, pair.server);
	EXPECT(!rshutdown(pair.server, SHUT_RD));
	join(&blocked);
	EXPECT(blocked.ret == 0);
	rs_pair_close(&pair);
	EXPECT(rs_pair(&pair, AF_INET));
	start_blocked(&blocked, call_recv, pair.server);
	EXPECT(!rshutdown(pair.server, SHUT_RDWR));
	join(&blocked);
	EXPECT(blocked.ret == 0);
	rs_pair_close(&pair);
}

static void shutdown_under_poll(void)
{
	struct blocked blocked;

	EXPECT(rs_pair(&pair, AF_INET));
	start_blocked(&blocked, call_poll, pair.server);
	EXPECT(!rshutdown(pair.server, SHUT_RD));
	join(&blocked);
	EXPECT(blocked.ret == 1);
	rs_pair_close(&pair);
}

static void peer_shutdown_wakes(void)
{
	struct blocked blocked, other;

	EXPECT(rs_pair(&pair, AF_INET));
	start_blocked(&blocked, call_recv, pair.server);
	start_blocked(&other, call_poll, pair.server);
	EXPECT(!rshutdown(pair.client, SHUT_WR));
	join(&blocked);
	join(&other);
	EXPECT(blocked.ret == 0 && other.ret == 1);
	rs_pair_close(&pair);
}

/* One of two pollers of the same socket must not consume the other's wake-up. */
static void all_pollers_wake(void)
{
	struct blocked blocked[4];

	EXPECT(rs_pair(&pair, AF_INET));
	for (int i = 0; i < 4; i++)
		start_blocked(&blocked[i], call_poll, pair.server);
	EXPECT(rsend(pair.client, "x", 1, 0) == 1);
	for (int i = 0; i < 4; i++) {
		join(&blocked[i]);
		EXPECT(blocked[i].ret == 1);
	}
	rs_pair_close(&pair);
}

/* ---- signals ---------------------------------------------------------------------------------- */

static volatile sig_atomic_t handled;

static void handler(int number)
{
	(void)number;
	handled++;
}

static void catch(int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };

	handled = 0;
	sigaction(SIGUSR1, &action, NULL);
}

static void interrupt(struct blocked *blocked)
{
	pthread_kill(blocked->thread, SIGUSR1);
	while (!handled)
		pause_briefly();
}

/* Returns EINTR for each of the calls; the connection is as it was. */
static void interrupted(void)
{
	ssize_t (*calls[])(int) = { call_recv, call_poll };
	struct blocked blocked;

	EXPECT(rs_pair(&pair, AF_INET));
	for (int i = 0; i < 2; i++) {
		catch(0);
		start_blocked(&blocked, calls[i], pair.server);
		interrupt(&blocked);
		join(&blocked);
		EXPECT(failed_with(&blocked, EINTR, EINTR));
	}
	EXPECT(rsend(pair.client, "x", 1, 0) == 1);
	EXPECT(call_recv(pair.server) == 1);
	catch(0);
	start_blocked(&blocked, call_accept, pair.listener);
	interrupt(&blocked);
	join(&blocked);
	EXPECT(failed_with(&blocked, EINTR, EINTR));
	rs_pair_close(&pair);
}

/* Nothing was sent: EINTR. The next call continues. */
static void interrupted_send(void)
{
	struct blocked blocked;

	EXPECT(rs_pair(&pair, AF_INET));
	fill_up(pair.client);
	catch(0);
	start_blocked(&blocked, call_send, pair.client);
	interrupt(&blocked);
	join(&blocked);
	EXPECT(blocked.ret > 0 || failed_with(&blocked, EINTR, EINTR));
	rs_pair_close(&pair);
}

/* With SA_RESTART the calls continue, except poll, as with sockets. */
static void restarted(void)
{
	struct blocked blocked;

	EXPECT(rs_pair(&pair, AF_INET));
	catch(SA_RESTART);
	start_blocked(&blocked, call_recv, pair.server);
	interrupt(&blocked);
	EXPECT(rsend(pair.client, "x", 1, 0) == 1);
	join(&blocked);
	EXPECT(blocked.ret == 1);
	catch(SA_RESTART);
	start_blocked(&blocked, call_poll, pair.server);
	interrupt(&blocked);
	join(&blocked);
	EXPECT(failed_with(&blocked, EINTR, EINTR));
	rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(close_under_recv);
	CASE(close_recv_by_handler);
	CASE(close_recv_by_restarting_handler);
	CASE(close_poll_by_handler);
	CASE(close_busy_calls_by_handler);
	CASE(close_under_send);
	CASE(close_under_accept);
	CASE(close_under_connect);
	CASE(close_under_poll);
	CASE(shutdown_under_recv);
	CASE(shutdown_under_poll);
	CASE(peer_shutdown_wakes);
	CASE(all_pollers_wake);
	CASE(interrupted);
	CASE(interrupted_send);
	CASE(restarted);
	return finish();
}
