/*
 * States and errors of stream rsockets where they are those of TCP's sockets: each case makes the same calls on kernel sockets
 * and on rsockets and compares what it observed. The reference differs in most of them.
 */
#include "cases.h"
#include "rscommon.h"

#include <limits.h>
#include <signal.h>
#include <stdarg.h>

/* The C library declares these with unions of pointers. */
static int tcp_bind(int fd, const struct sockaddr *addr, socklen_t len) { return bind(fd, addr, len); }
static int tcp_accept(int fd, struct sockaddr *addr, socklen_t *len) { return accept(fd, addr, len); }
static int tcp_connect(int fd, const struct sockaddr *addr, socklen_t len) { return connect(fd, addr, len); }
static int tcp_getsockname(int fd, struct sockaddr *addr, socklen_t *len) { return getsockname(fd, addr, len); }

static const struct side {
	const char *name;
	int (*socket)(int domain, int type, int protocol);
	int (*bind)(int fd, const struct sockaddr *addr, socklen_t len);
	int (*listen)(int fd, int backlog);
	int (*accept)(int fd, struct sockaddr *addr, socklen_t *len);
	int (*connect)(int fd, const struct sockaddr *addr, socklen_t len);
	int (*shutdown)(int fd, int how);
	int (*close)(int fd);
	int (*poll)(struct pollfd *fds, nfds_t count, int timeout);
	int (*fcntl)(int fd, int command, ...);
	ssize_t (*send)(int fd, const void *buf, size_t len, int flags);
	ssize_t (*recv)(int fd, void *buf, size_t len, int flags);
	int (*setsockopt)(int fd, int level, int name, const void *value, socklen_t len);
	int (*getsockopt)(int fd, int level, int name, void *value, socklen_t *len);
	int (*getsockname)(int fd, struct sockaddr *addr, socklen_t *len);
} sides[] = {
	{ "TCP", socket, tcp_bind, listen, tcp_accept, tcp_connect, shutdown, close, poll, fcntl, send, recv, setsockopt, getsockopt,
	  tcp_getsockname },
	{ "rsockets", rsocket, rbind, rlisten, raccept, rconnect, rshutdown, rclose, rpoll, rfcntl, rsend, rrecv, rsetsockopt, rgetsockopt,
	  rgetsockname },
};

/* The side that the case runs on, and what it has observed there. */
static const struct side *now;
static char seen[2][4096];

static __attribute__((format(printf, 1, 2))) void note(const char *format, ...)
{
	char *text = seen[now - sides];
	size_t len = strlen(text);
	va_list list;

	va_start(list, format);
	vsnprintf(text + len, sizeof(seen[0]) - len, format, list);
	va_end(list);
	strncat(text, "\n", sizeof(seen[0]) - strlen(text) - 1);
}

/* A call: its result, and errno if it failed. */
#define SEE(expression)                                                                     \
	__extension__({                                                                     \
		errno = 0;                                                                  \
		long see_ret_ = (long)(expression);                                         \
		note("%s -> %ld%s%s", #expression, see_ret_, see_ret_ < 0 ? " " : "",       \
		     see_ret_ < 0 ? errno_name(errno) : "");                                \
		see_ret_;                                                                   \
	})

static union address address_of(uint16_t port)
{
	return now == sides ? make_addr(AF_INET, "127.0.0.1", port) : local_addr(AF_INET, port);
}

static union address name_of(int fd)
{
	union address name;
	socklen_t len = sizeof(name);

	EXPECT(!now->getsockname(fd, &name.sa, &len));
	return name;
}

static int bound_to(union address at)
{
	int fd = now->socket(AF_INET, SOCK_STREAM, 0);

	EXPECT(fd >= 0 && !now->bind(fd, &at.sa, sizeof(at.in)));
	return fd;
}

/* To a port by number: one that the kernel chose would not stay with a TCP socket that is disconnected. */
static int bound(void)
{
	int fd = bound_to(address_of(0));
	union address at = name_of(fd);

	EXPECT(!now->close(fd));
	return bound_to(at);
}

static int listener_at(union address *to)
{
	int fd = bound();

	EXPECT(!now->listen(fd, 4));
	*to = name_of(fd);
	return fd;
}

/* An address at which nobody listens. */
static union address nobody(void)
{
	union address to;

	EXPECT(!now->close(listener_at(&to)));
	return to;
}

static int client(void)
{
	int fd = now->socket(AF_INET, SOCK_STREAM, 0);

	EXPECT(fd >= 0);
	return fd;
}

static int connect_to(int fd, union address to)
{
	return now->connect(fd, &to.sa, sizeof(to.in));
}

static void blocking(int fd, bool on)
{
	EXPECT(!now->fcntl(fd, F_SETFL, on ? 0 : O_NONBLOCK));
}

static void see_poll(const char *who, int fd)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP };

	EXPECT(now->poll(&entry, 1, 0) >= 0);
	note("%s: %s", who, poll_str(entry.revents));
}

static short await(int fd, short events)
{
	struct pollfd entry = { .fd = fd, .events = events };

	EXPECT(now->poll(&entry, 1, -1) == 1);
	return entry.revents;
}

static int pending_error(int fd)
{
	int error = -1;
	socklen_t len = sizeof(error);

	EXPECT(!now->getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
	return error;
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

/* Returns whether data reaches a socket that `listener` accepts. */
static void see_use(int fd, int listener)
{
	char byte = 0;
	int server = now->accept(listener, NULL, NULL);

	EXPECT(server >= 0);
	SEE(now->send(fd, "u", 1, 0));
	SEE(now->recv(server, &byte, 1, MSG_WAITALL));
	EXPECT(byte == 'u' && !now->close(server));
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

/* A backlog of one connection: the next client waits until this one is accepted. */
static void full_backlog(void)
{
	union address to;
	struct pollfd waiting = { .events = POLLOUT };
	int listener = listener_at(&to), first = client(), server;

	SEE(now->listen(listener, 0));
	SEE(connect_to(first, to));
	await(listener, POLLIN);
	waiting.fd = client();
	blocking(waiting.fd, false);
	SEE(connect_to(waiting.fd, to));
	SEE(now->poll(&waiting, 1, 300));
	SEE((server = now->accept(listener, NULL, NULL)) >= 0);
	note("%s, error %d", poll_str(await(waiting.fd, POLLOUT)), pending_error(waiting.fd));
	see_use(waiting.fd, listener);
	EXPECT(!now->close(server) && !now->close(listener) && !now->close(first) && !now->close(waiting.fd));
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
		sched_yield();
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
static void await_sleep(int attempt)
{
	for (int asleep = 0; asleep < 20 && attempts <= attempt; sched_yield())
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
	await_sleep(1);
	EXPECT(!pthread_kill(thread, SIGUSR1));
	await_sleep(2);
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

/* ---- frame ------------------------------------------------------------------------------------------------- */

static void (*body)(void);

static void on_both_sides(void)
{
	for (now = sides; now < sides + 2; now++)
		body();
	if (!strcmp(seen[0], seen[1]))
		return;
	printf("FAIL %s\n---- TCP\n%s---- rsockets\n%s", case_name, seen[0], seen[1]);
	fflush(stdout);
	_exit(1);
}

#define BOTH(name) (body = name, run_case(#name, on_both_sides))

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
	BOTH(full_backlog);
	BOTH(shutdown_ends_accept);
	BOTH(send_after_shut_wr);
	BOTH(send_after_the_peers_close);
	BOTH(data_stays_after_shut_rd);
	BOTH(data_stays_after_shut_rdwr);
	BOTH(poll_after_a_failed_connect);
	BOTH(connecting_shut_rd);
	BOTH(connecting_shut_wr);
	BOTH(connecting_shut_rdwr);
	BOTH(blocking_connect_shut_down);
	BOTH(connect_waits_after_a_signal);
	BOTH(connect_succeeds_after_a_signal);
	BOTH(success_is_returned_once);
	BOTH(no_success_after_shutdown);
	BOTH(connect_again_times_out);
	return finish();
}
