/*
 * Signals and datagram sockets that wait: rsockets continue or fail with EINTR as UDP sockets do (signal(7)), with
 * which they are compared. Run on ours only, for the reference's do not work over RoCE.
 */
#include "cases.h"
#include "rscommon.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

/* The calls of a kind of sockets. */
struct kind {
	int (*socket)(int, int, int);
	int (*bind)(int, const struct sockaddr *, socklen_t);
	int (*getsockname)(int, struct sockaddr *, socklen_t *);
	int (*setsockopt)(int, int, int, const void *, socklen_t);
	ssize_t (*recv)(int, void *, size_t, int);
	ssize_t (*sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
	int (*poll)(struct pollfd *, nfds_t, int);
	int (*close)(int);
};

static const struct kind udp = { socket, bind, getsockname, setsockopt, recv, sendto, poll, close };
static const struct kind ours = { rsocket, rbind, rgetsockname, rsetsockopt, rrecv, rsendto, rpoll, rclose };

static int bound(const struct kind *kind, union address *name)
{
	int fd = kind->socket(AF_INET, SOCK_DGRAM, 0);
	socklen_t len = sizeof(*name);

	*name = local_addr(AF_INET, 0);
	EXPECT(fd >= 0);
	EXPECT(!kind->bind(fd, &name->sa, addr_len(name)));
	EXPECT(!kind->getsockname(fd, &name->sa, &len));
	return fd;
}

static void pass(const struct kind *kind, int from, int to, const union address *name)
{
	char byte;

	EXPECT(kind->sendto(from, "x", 1, 0, &name->sa, addr_len(name)) == 1);
	EXPECT(kind->recv(to, &byte, 1, 0) == 1);
}

/* ---- a thread that waits ------------------------------------------------------------------------ */

struct blocked {
	pthread_t thread;
	const struct kind *kind;
	bool polls;
	int fd, error;
	volatile pid_t tid;
	ssize_t ret;
};

static void *block(void *argument)
{
	struct blocked *blocked = argument;
	struct pollfd entry = { .fd = blocked->fd, .events = POLLIN };
	char byte;

	blocked->tid = gettid();
	errno = 0;
	blocked->ret = blocked->polls ? blocked->kind->poll(&entry, 1, -1)
				      : blocked->kind->recv(blocked->fd, &byte, 1, 0);
	blocked->error = errno;
	return NULL;
}

/* Returns when the thread sleeps. */
static void start_blocked(struct blocked *blocked)
{
	EXPECT(!pthread_create(&blocked->thread, NULL, block, blocked));
	EXPECT(await_sleep(&blocked->tid));
}

static volatile sig_atomic_t handled;

static void handler(int number)
{
	(void)number;
	handled++;
}

static void catch(int number, int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };

	EXPECT(!sigaction(number, &action, NULL));
}

static void interrupt(struct blocked *blocked, int number)
{
	handled = 0;
	EXPECT(!pthread_kill(blocked->thread, number));
	while (!handled)
		pause_briefly();
}

/* ---- cases ------------------------------------------------------------------------------------------ */

/* One wait, one signal: the wait goes on until a datagram comes, or has ended with EINTR. */
static void one_wait(struct blocked *blocked, int signal, bool goes_on, int other, const union address *name)
{
	start_blocked(blocked);
	interrupt(blocked, signal);
	if (goes_on)
		EXPECT(blocked->kind->sendto(other, "x", 1, 0, &name->sa, addr_len(name)) == 1);
	EXPECT(!pthread_join(blocked->thread, NULL));
	EXPECT(goes_on ? blocked->ret == 1 : blocked->ret == -1 && blocked->error == EINTR);
}

static void waits(const struct kind *kind, int flags, bool limited, int acquainted)
{
	struct timeval limit = { .tv_sec = 1000 };
	union address a_name, b_name;
	int a = bound(kind, &a_name), b = bound(kind, &b_name);
	struct blocked blocked = { .kind = kind, .fd = b };

	for (int i = 0; i < acquainted; i++) {
		pass(kind, a, b, &b_name);
		pass(kind, b, a, &a_name);
	}
	if (limited)
		EXPECT(!kind->setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
	catch(SIGUSR1, flags);
	one_wait(&blocked, SIGUSR1, (flags & SA_RESTART) && !limited, a, &b_name);
	/* Nothing was lost. */
	pass(kind, a, b, &b_name);
	EXPECT(!kind->close(a) && !kind->close(b));
}

/* Before and after both know each other's QP. */
static void both(int flags, bool limited)
{
	waits(&udp, flags, limited, 0);
	waits(&ours, flags, limited, 0);
	waits(&ours, flags, limited, 4);
}

static void ends(void)
{
	both(0, false);
}

static void goes_on(void)
{
	both(SA_RESTART, false);
}

static void ends_with_timeout(void)
{
	both(0, true);
}

static void ends_with_timeout_and_restart(void)
{
	both(SA_RESTART, true);
}

/* A handler that is removed when it runs (SA_RESETHAND). */
static void one_shot(void)
{
	both(SA_RESETHAND, false);
	both(SA_RESETHAND | SA_RESTART, false);
}

/* Polling is never restarted. */
static void poll_ends(void)
{
	const struct kind *kinds[] = { &udp, &ours };

	catch(SIGUSR1, SA_RESTART);
	for (int i = 0; i < 2; i++) {
		union address name;
		struct blocked blocked = { .kind = kinds[i], .polls = true, .fd = bound(kinds[i], &name) };

		one_wait(&blocked, SIGUSR1, false, -1, &name);
		EXPECT(!kinds[i]->close(blocked.fd));
	}
}

/* A handler without SA_RESTART ends the wait, whatever other handlers have. */
static void ends_beside_others(void)
{
	const struct kind *kinds[] = { &udp, &ours };

	catch(SIGUSR1, 0);
	catch(SIGUSR2, SA_RESTART);
	catch(SIGCHLD, SA_RESTART);
	for (int i = 0; i < 2; i++) {
		union address name;
		struct blocked blocked = { .kind = kinds[i], .fd = bound(kinds[i], &name) };

		one_wait(&blocked, SIGUSR1, false, -1, &name);
		EXPECT(!kinds[i]->close(blocked.fd));
	}
}

/* Handlers of fault signals and ignored signals make no difference. */
static void goes_on_beside_faults(void)
{
	catch(SIGSEGV, 0);
	catch(SIGBUS, 0);
	signal(SIGPIPE, SIG_IGN);
	both(SA_RESTART, false);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	if (on_siw())
		skip_all("iWARP has no datagrams");
	CASE(ends);
	CASE(goes_on);
	CASE(ends_with_timeout);
	CASE(ends_with_timeout_and_restart);
	CASE(one_shot);
	CASE(poll_ends);
	CASE(ends_beside_others);
	CASE(goes_on_beside_faults);
	return finish();
}
