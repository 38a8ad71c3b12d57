/*
 * States and errors of stream rsockets where they are those of TCP's sockets: each case makes the same calls on kernel
 * sockets and on rsockets and compares what it observed. The reference differs in most of them.
 */
#include "both_sides.h"

#include <limits.h>
#include <signal.h>

/* An address at which nobody listens. */
static union address nobody(void)
{
	union address to;

	EXPECT(!now->close(listener_at(&to)));
	return to;
}

static void see_poll(const char *who, int fd)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP };

	EXPECT(now->poll(&entry, 1, 0) >= 0);
	note("%s: %s", who, poll_str(entry.revents));
}

static struct { int listener, client, server; union address to; } pair;

static void open_pair(void)
{
	pair.listener = listener_at(&pair.to);
	pair.client = client();
	EXPECT(!connect_to(pair.client, pair.to));
	EXPECT((pair.server = now->accept(pair.listener, NULL, NULL)) >= 0);
}

static void close_pair(void)
{
	EXPECT(!now->close(pair.client));
	EXPECT(pair.server < 0 || !now->close(pair.server));
	EXPECT(!now->close(pair.listener));
}

/* ---- sending before the connection is there ---------------------------------------------- */

static void send_while_connecting(void)
{
	union address to;
	int listener = listener_at(&to), fd = client(), server;
	char byte = 0;

	blocking(fd, false);
	SEE(connect_to(fd, to));
	blocking(fd, true);
	SEE(now->send(fd, "x", 1, 0));
	EXPECT((server = now->accept(listener, NULL, NULL)) >= 0);
	SEE(now->recv(server, &byte, 1, 0));
	EXPECT(byte == 'x');
	EXPECT(!now->close(fd) && !now->close(server) && !now->close(listener));
}

static void send_while_connecting_to_nobody(void)
{
	int fd = client();

	blocking(fd, false);
	SEE(connect_to(fd, nobody()));
	blocking(fd, true);
	SEE(now->send(fd, "x", 1, MSG_NOSIGNAL));
	EXPECT(!now->close(fd));
}

/* ---- connecting again --------------------------------------------------------------------- */

static void connect_after_refusal(void)
{
	union address to;
	int listener = listener_at(&to), fd = client();

	SEE(connect_to(fd, nobody()));
	note("SO_ERROR %s", errno_name(pending_error(fd)));
	see_poll("refused", fd);
	SEE(now->recv(fd, &(char){ 0 }, 1, 0));
	SEE(connect_to(fd, nobody()));
	SEE(connect_to(fd, to));
	see_poll("connected", fd);
	see_use(fd, listener);
	EXPECT(!now->close(fd) && !now->close(listener));
}

static void connect_later_after_refusal(bool error_is_read)
{
	union address to;
	int listener = listener_at(&to), fd = client();

	blocking(fd, false);
	SEE(connect_to(fd, nobody()));
	await(fd, POLLOUT);
	see_poll("refused", fd);
	if (error_is_read) {
		note("SO_ERROR %s", errno_name(pending_error(fd)));
		see_poll("asked", fd);
	}
	SEE(connect_to(fd, to));
	see_poll("told", fd);
	SEE(connect_to(fd, to));
	await(fd, POLLOUT);
	note("SO_ERROR %s", errno_name(pending_error(fd)));
	see_use(fd, listener);
	EXPECT(!now->close(fd) && !now->close(listener));
}
static void connect_again_after_so_error(void) { connect_later_after_refusal(true); }
static void connect_again_without_so_error(void) { connect_later_after_refusal(false); }

/* The address that was bound stays. */
static void refused_stays_bound(void)
{
	union address to, from, name;
	socklen_t len = sizeof(name);
	int listener = listener_at(&to), fd = bound(), server;

	from = name_of(fd);
	SEE(connect_to(fd, nobody()));
	EXPECT(name_of(fd).in.sin_port == from.in.sin_port);
	SEE(connect_to(fd, to));
	EXPECT((server = now->accept(listener, &name.sa, &len)) >= 0);
	note("from the port that was bound: %d", name.in.sin_port == from.in.sin_port);
	EXPECT(!now->close(fd) && !now->close(server) && !now->close(listener));
}

static void listen_after_refusal(void)
{
	union address to;
	int fd = bound(), other = client();

	to = name_of(fd);
	SEE(connect_to(fd, nobody()));
	SEE(now->listen(fd, 4));
	SEE(connect_to(other, to));
	see_use(other, fd);
	EXPECT(!now->close(fd) && !now->close(other));
}

static void connect_when_connected(void)
{
	open_pair();
	SEE(connect_to(pair.client, pair.to));
	EXPECT(!now->close(pair.server));
	pair.server = -1;
	await(pair.client, POLLIN);
	SEE(connect_to(pair.client, pair.to));
	SEE(now->shutdown(pair.client, SHUT_WR));
	await(pair.client, 0);
	SEE(connect_to(pair.client, pair.to));
	close_pair();
}

/* ---- listeners ---------------------------------------------------------------------------------- */

static void listener_is_shut_down(int how)
{
	union address to;
	int listener = listener_at(&to), waiting = client(), late = client();

	EXPECT(!connect_to(waiting, to));
	await(listener, POLLIN);
	see_poll("listener", listener);
	SEE(now->shutdown(listener, how));
	see_poll("listener", listener);
	SEE(now->accept(listener, NULL, NULL));
	SEE(connect_to(late, to));
	/* The one that was not accepted is dropped. */
	await(waiting, POLLIN);
	EXPECT(now->recv(waiting, &(char){ 0 }, 1, 0) <= 0);
	SEE(now->listen(listener, 4));
	SEE(connect_to(late, to));
	see_use(late, listener);
	/* Twice; without use after that, for TCP's connections would inherit it. */
	SEE(now->shutdown(listener, how));
	SEE(now->shutdown(listener, how));
	EXPECT(!now->close(listener) && !now->close(waiting) && !now->close(late));
}
static void listener_shut_rd(void) { listener_is_shut_down(SHUT_RD); }
static void listener_shut_rdwr(void) { listener_is_shut_down(SHUT_RDWR); }

static void listener_shut_wr(void)
{
	union address to;
	int listener = listener_at(&to), fd = client();

	SEE(now->shutdown(listener, SHUT_WR));
	see_poll("listener", listener);
	SEE(connect_to(fd, to));
	see_use(fd, listener);
	EXPECT(!now->close(listener) && !now->close(fd));
}

static const struct side *accepting_side;
static void *accept_in_thread(void *argument)
{
	int ret = accepting_side->accept(*(int *)argument, NULL, NULL);

	return (void *)(long)(ret < 0 ? errno : 0);
}

static void shutdown_ends_accept(void)
{
	union address to;
	int listener = listener_at(&to);
	pthread_t thread;
	void *error;

	accepting_side = now;
	EXPECT(!pthread_create(&thread, NULL, accept_in_thread, &listener));
	/* Whether it waits already or comes too late: the result is the same. */
	sched_yield();
	SEE(now->shutdown(listener, SHUT_RDWR));
	EXPECT(!pthread_join(thread, &error));
	note("accept: %s", errno_name((int)(long)error));
	EXPECT(!now->close(listener));
}

/* ---- sending and receiving after the end ----------------------------------------------------------- */

static void send_after_shut_wr(void)
{
	open_pair();
	SEE(now->shutdown(pair.client, SHUT_WR));
	SEE(now->send(pair.client, "x", 1, MSG_NOSIGNAL));
	SEE(now->send(pair.client, "x", 1, MSG_NOSIGNAL));
	SEE(now->shutdown(pair.client, SHUT_RDWR));
	SEE(now->send(pair.client, "x", 1, MSG_NOSIGNAL));
	see_poll("client", pair.client);
	close_pair();
}

/* The first one may succeed: not noted. */
static void send_after_the_peers_close(void)
{
	open_pair();
	EXPECT(!now->close(pair.server));
	pair.server = -1;
	await(pair.client, POLLIN);
	SEE(now->recv(pair.client, &(char){ 0 }, 1, 0));
	EXPECT(now->send(pair.client, "x", 1, MSG_NOSIGNAL) == 1 || errno == EPIPE);
	/* TCP's peer must answer with a reset. */
	await(pair.client, 0);
	SEE(now->send(pair.client, "x", 1, MSG_NOSIGNAL));
	SEE(now->send(pair.client, "x", 1, MSG_NOSIGNAL));
	close_pair();
}

static void data_stays_after_shut_rd(void)
{
	char buf[8] = "";

	open_pair();
	EXPECT(now->send(pair.server, "queued", 6, 0) == 6);
	await(pair.client, POLLIN);
	SEE(now->shutdown(pair.client, SHUT_RD));
	see_poll("client", pair.client);
	SEE(now->recv(pair.client, buf, 2, 0));
	SEE(now->recv(pair.client, buf, 8, MSG_PEEK));
	SEE(now->recv(pair.client, buf, 8, MSG_WAITALL));
	SEE(now->recv(pair.client, buf, 8, 0));
	SEE(now->send(pair.client, "x", 1, 0));
	SEE(now->recv(pair.server, buf, 1, 0));
	close_pair();
}

/* The data was sent before, but may arrive after the call. */
static void data_stays_after_shut_rdwr(void)
{
	char buf[8] = "";

	open_pair();
	EXPECT(now->send(pair.server, "queued", 6, 0) == 6);
	await(pair.client, POLLIN);
	SEE(now->shutdown(pair.client, SHUT_RDWR));
	see_poll("client", pair.client);
	SEE(now->recv(pair.client, buf, 8, 0));
	SEE(now->recv(pair.client, buf, 8, 0));
	close_pair();
}

/* recv() of no bytes waits for data, read() does not. */
static void nothing_is_received(void)
{
	struct iovec empty[2] = { 0 };
	char byte = 0;

	open_pair();
	SEE(now->recv(pair.server, &byte, 0, MSG_DONTWAIT));
	SEE(now->read(pair.server, &byte, 0));
	SEE(now->readv(pair.server, empty, 2));
	EXPECT(now->send(pair.client, "x", 1, 0) == 1);
	await(pair.server, POLLIN);
	SEE(now->recv(pair.server, &byte, 0, 0));
	SEE(now->recv(pair.server, &byte, 0, MSG_PEEK));
	SEE(now->read(pair.server, &byte, 0));
	SEE(now->recv(pair.server, &byte, 1, 0));
	EXPECT(byte == 'x');
	EXPECT(!now->shutdown(pair.client, SHUT_WR));
	await(pair.server, POLLIN);
	SEE(now->recv(pair.server, &byte, 0, 0));
	SEE(now->read(pair.server, &byte, 0));
	close_pair();
}

/* ---- poll ------------------------------------------------------------------------------------------------ */

static void poll_after_a_failed_connect(void)
{
	int fd = client();

	see_poll("new", fd);
	SEE(connect_to(fd, nobody()));
	see_poll("refused", fd);
	SEE(now->shutdown(fd, SHUT_RDWR));
	EXPECT(!now->close(fd));
}

/* ---- shutdown of a socket that connects ------------------------------------------------------------------- */

static void shut_down_while_connecting(int how, bool receives)
{
	union address to;
	int fd = client(), error = 0, listener;
	socklen_t len = sizeof(error);

	blocking(fd, false);
	SEE(connect_to(fd, silent_addr(7)));
	SEE(now->shutdown(fd, how));
	see_poll("shut down", fd);
	if (receives)
		SEE(now->recv(fd, &error, sizeof(error), 0));
	SEE(now->getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
	note("error %s", errno_name(error));
	see_poll("told", fd);
	SEE(now->recv(fd, &error, sizeof(error), 0));
	/* It connects normally. */
	listener = listener_at(&to);
	blocking(fd, true);
	SEE(connect_to(fd, to));
	see_poll("connected", fd);
	EXPECT(!now->close(fd) && !now->close(listener));
}

static void connecting_shut_rd(void) { shut_down_while_connecting(SHUT_RD, false); }
static void connecting_shut_wr(void) { shut_down_while_connecting(SHUT_WR, true); }
static void connecting_shut_rdwr(void) { shut_down_while_connecting(SHUT_RDWR, false); }

/* Shut down by the main thread as soon as it is asleep. */
static int connecting;

static void *connect_silent(void *unused)
{
	(void)unused;
	SEE(connect_to(connecting, silent_addr(7)));
	return NULL;
}

static void blocking_connect_shut_down(void)
{
	pthread_t thread;
	int ret;

	connecting = client();
	EXPECT(!pthread_create(&thread, NULL, connect_silent, NULL));
	/* ENOTCONN before it connects. */
	while ((ret = now->shutdown(connecting, SHUT_RDWR)) && errno == ENOTCONN)
		pause_briefly();
	EXPECT(!ret && !pthread_join(thread, NULL));
	see_poll("shut down", connecting);
	EXPECT(!now->close(connecting));
}

/* ---- connecting again while it is in progress ---------------------------------------------------------- */

static _Atomic pid_t connector;
static _Atomic int attempts;
static union address goal;

static void do_nothing(int signal) { (void)signal; }

/* Makes so many calls. */
static void *connect_again(void *calls)
{
	connector = gettid();
	for (int i = 1; i <= *(int *)calls; i++) {
		attempts = i;
		SEE(connect_to(connecting, goal));
	}
	attempts = INT_MAX;
	return NULL;
}

/* Returns when the thread sleeps in this call, or has returned from it. */
static void sleeps_in(int attempt)
{
	for (int asleep = 0; asleep < 5 && attempts <= attempt; pause_briefly())
		asleep = attempts == attempt && sleeps(connector) ? asleep + 1 : 0;
}

/* A full backlog keeps the client waiting until the connection before is accepted: during its second call, or before that. */
static void connect_again_after_a_signal(int calls)
{
	struct sigaction action = { .sa_handler = do_nothing };
	int listener = listener_at(&goal), first = client(), server;
	pthread_t thread;

	EXPECT(!sigaction(SIGUSR1, &action, NULL));
	EXPECT(!now->listen(listener, 0) && !connect_to(first, goal));
	await(listener, POLLIN);
	connecting = client();
	attempts = 0;
	EXPECT(!pthread_create(&thread, NULL, connect_again, &calls));
	sleeps_in(1);
	EXPECT(!pthread_kill(thread, SIGUSR1));
	sleeps_in(2);
	EXPECT((server = now->accept(listener, NULL, NULL)) >= 0);
	EXPECT(!pthread_join(thread, NULL));
	await(connecting, POLLOUT);
	for (int i = 0; i < 2; i++)
		SEE(connect_to(connecting, goal));
	see_use(connecting, listener);
	EXPECT(!now->close(server) && !now->close(listener) && !now->close(first) && !now->close(connecting));
}
static void connect_waits_after_a_signal(void) { connect_again_after_a_signal(2); }
static void connect_succeeds_after_a_signal(void) { connect_again_after_a_signal(1); }

/* The attempt of a call that does not block succeeds: the next call returns that, unless the socket was shut down. */
static void connect_again_after_success(int how)
{
	union address to;
	int listener = listener_at(&to), fd = client();

	blocking(fd, false);
	SEE(connect_to(fd, to));
	await(fd, POLLOUT);
	if (how >= 0)
		SEE(now->shutdown(fd, how));
	for (int i = 0; i < 2; i++)
		SEE(connect_to(fd, to));
	EXPECT(!now->close(fd) && !now->close(listener));
}
static void success_is_returned_once(void) { connect_again_after_success(-1); }
static void no_success_after_shutdown(void) { connect_again_after_success(SHUT_WR); }

/* The attempt succeeds, and the peer resets the connection before the next call. */
static void connect_again_after_reset(bool error_is_read)
{
	struct linger at_once = { .l_onoff = 1 };
	union address to;
	int listener = listener_at(&to), fd = client(), server;

	blocking(fd, false);
	SEE(connect_to(fd, to));
	await(fd, POLLOUT);
	EXPECT((server = now->accept(listener, NULL, NULL)) >= 0);
	EXPECT(!now->setsockopt(server, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) && !now->close(server));
	await(fd, POLLRDHUP);
	if (error_is_read)
		note("SO_ERROR %s", errno_name(pending_error(fd)));
	SEE(connect_to(fd, to));
	note("SO_ERROR %s", errno_name(pending_error(fd)));
	EXPECT(!now->close(fd) && !now->close(listener));
}
static void reset_before_the_next_connect(void) { connect_again_after_reset(false); }
static void reset_that_so_error_reported(void) { connect_again_after_reset(true); }

/* The peer closes the connection in order: the next call returns the success. */
static void close_before_the_next_connect(void)
{
	union address to;
	int listener = listener_at(&to), fd = client(), server;

	blocking(fd, false);
	SEE(connect_to(fd, to));
	await(fd, POLLOUT);
	EXPECT((server = now->accept(listener, NULL, NULL)) >= 0 && !now->close(server));
	await(fd, POLLRDHUP);
	for (int i = 0; i < 2; i++)
		SEE(connect_to(fd, to));
	EXPECT(!now->close(fd) && !now->close(listener));
}

/* The time-out for sending ends a call, but not the attempt. */
static void connect_again_times_out(void)
{
	struct timeval time = { .tv_usec = 50000 };
	int fd = client();

	goal = silent_addr(7);
	EXPECT(!now->setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)));
	for (int i = 0; i < 2; i++)
		SEE(connect_to(fd, goal));
	blocking(fd, false);
	SEE(connect_to(fd, goal));
	EXPECT(!now->close(fd));
}

int main(int argc, char **argv)
{
	start(argc, argv);
	BOTH(send_while_connecting);
	BOTH(send_while_connecting_to_nobody);
	BOTH(connect_after_refusal);
	BOTH(connect_again_after_so_error);
	BOTH(connect_again_without_so_error);
	BOTH(refused_stays_bound);
	BOTH(listen_after_refusal);
	BOTH(connect_when_connected);
	BOTH(listener_shut_rd);
	BOTH(listener_shut_rdwr);
	BOTH(listener_shut_wr);
	BOTH(shutdown_ends_accept);
	BOTH(send_after_shut_wr);
	BOTH(send_after_the_peers_close);
	BOTH(data_stays_after_shut_rd);
	BOTH(data_stays_after_shut_rdwr);
	BOTH(nothing_is_received);
	BOTH(poll_after_a_failed_connect);
	BOTH(connecting_shut_rd);
	BOTH(connecting_shut_wr);
	BOTH(connecting_shut_rdwr);
	BOTH(blocking_connect_shut_down);
	BOTH(connect_waits_after_a_signal);
	BOTH(connect_succeeds_after_a_signal);
	BOTH(success_is_returned_once);
	BOTH(no_success_after_shutdown);
	BOTH(reset_before_the_next_connect);
	BOTH(reset_that_so_error_reported);
	BOTH(close_before_the_next_connect);
	BOTH(connect_again_times_out);
	return finish();
}
