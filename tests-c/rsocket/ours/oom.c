/*
 * Every allocation that the library makes for a stream rsocket's life fails once: socket, bind,
 * listen, connect, accept, transfer, polling, closing. No crash, no hang, calls fail with
 * ENOMEM (with ECONNREFUSED or ECONNRESET for a client whose server had no memory), and nothing leaks.
 * Executes itself with LD_PRELOAD=failmalloc.so, as cm/ours/oom.c does.
 */
#include "oom.h"
#include "rscommon.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>

/* Not in the header and library of older references. */
static struct repoll repoll;

static int listener, client, server, set;

static bool listens(union address *address)
{
	socklen_t len = sizeof(*address);

	*address = local_addr(AF_INET, 0);
	return STEP((listener = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0) &&
	       STEP(!rbind(listener, &address->sa, sizeof(address->in))) &&
	       STEP(!rlisten(listener, 4)) && STEP(!rgetsockname(listener, &address->sa, &len));
}

/* A connection that cannot be made fails on the client's side at least: both are waited for. */
static bool connects(union address *address)
{
	int error = 0;
	socklen_t len = sizeof(error);

	if (!STEP((client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) >= 0) ||
	    !STEP(rconnect(client, &address->sa, sizeof(address->in)) == -1 && errno == EINPROGRESS))
		return false;
	while (true) {
		struct pollfd entry = { .fd = client, .events = POLLOUT };

		if (STEP(rpoll(&entry, 1, -1) == 1))
			break;
		if (failed_errno != ENOMEM)
			return false;
	}
	if (!STEP(!rgetsockopt(client, SOL_SOCKET, SO_ERROR, &error, &len)))
		return false;
	return step(error == 0, "connecting", error);
}

/* A server without memory ends the connection, which the client detects. */
static bool accepts(void)
{
	struct pollfd entries[2] = { { .fd = listener, .events = POLLIN }, { .fd = client } };

	while (!STEP(rpoll(entries, 2, -1) >= 1))
		if (failed_errno != ENOMEM)
			return false;
	if (!entries[0].revents)
		return step(false, "the connection", ECONNRESET);
	return STEP((server = raccept(listener, NULL, NULL)) >= 0);
}

static bool transfers(void)
{
	static char bytes[3000];
	struct epoll_event event = { .events = EPOLLIN };

	return STEP(!rfcntl(client, F_SETFL, 0)) && STEP((set = repoll.create(0)) >= 0) &&
	       STEP(!repoll.control(set, EPOLL_CTL_ADD, server, &event)) &&
	       STEP(rsend(client, bytes, sizeof(bytes), 0) == sizeof(bytes)) &&
	       STEP(repoll.wait(set, &event, 1, -1) == 1) &&
	       STEP(rrecv(server, bytes, sizeof(bytes), MSG_WAITALL) == sizeof(bytes)) &&
	       STEP(riomap(client, bytes, sizeof(bytes), PROT_NONE, 0, -1) != -1) &&
	       STEP(!riounmap(client, bytes, sizeof(bytes))) && STEP(!rshutdown(client, SHUT_WR)) &&
	       STEP(rrecv(server, bytes, 1, 0) == 0);
}

static void whole_life(void)
{
	union address address;

	listener = client = server = set = -1;
	(void)(listens(&address) && connects(&address) && accepts() && transfers());
	if (set >= 0)
		STEP(!rclose(set));
	if (client >= 0)
		STEP(!rclose(client));
	if (server >= 0)
		STEP(!rclose(server));
	if (listener >= 0)
		STEP(!rclose(listener));
}

static bool excusable(void)
{
	return !failed_call || failed_errno == ENOMEM || failed_errno == ECONNREFUSED ||
	       failed_errno == ECONNRESET;
}

/*
 * A thread keeps the descriptor that it sleeps with for its next wait. Whether a life sleeps is
 * chance, so it does here, before anything is counted: nobody connects.
 */
static bool sleeps_once(void)
{
	union address address;
	struct pollfd entry = { .events = POLLIN };

	listener = -1;
	if (!listens(&address))
		return false;
	entry.fd = listener;
	return STEP(rpoll(&entry, 1, 1) == 0) && STEP(!rclose(listener));
}

/* What the library's own thread gives back may take a moment; the alarm ends waiting for ever. */
static void comes_back(long base, int fds)
{
	while (held() > base || open_fds() > fds)
		pause_briefly();
}

/* In a process of its own the first use is part of it. */
static int first_use(long n)
{
	bool more;
	long base;
	int fds;

	alarm(hang_seconds());
	arm(n);
	whole_life();
	more = disarm() > 0;
	if (!excusable()) {
		printf("     allocation %ld: %s gave %s\n", n, failed_call, errno_name(failed_errno));
		return 3;
	}
	failed_call = NULL;
	whole_life();
	sleeps_once();
	if (failed_call) {
		printf("     after allocation %ld: %s gave %s\n", n, failed_call, errno_name(failed_errno));
		return 4;
	}
	base = held();
	fds = open_fds();
	whole_life();
	comes_back(base, fds);
	return more ? MORE_FOLLOW : NONE_FAILED;
}

static void until_none_fails(void)
{
	int status = 0;
	long n = 0;

	declare_cases(1);
	do {
		pid_t child;

		fflush(stdout);
		child = fork();
		if (child == 0) {
			int result = first_use(n + 1);

			fflush(stdout);
			_exit(result);
		}
		if (child < 0 || waitpid(child, &status, 0) != child)
			status = 0;
		n++;
	} while (WIFEXITED(status) && WEXITSTATUS(status) == MORE_FOLLOW);
	if (WIFEXITED(status) && WEXITSTATUS(status) == NONE_FAILED)
		printf("PASS first use: %ld allocations failed in turn\n", n - 1);
	else
		printf("FAIL first use: allocation %ld: %s %d\n", n, WIFSIGNALED(status) ? "signal" : "exit",
		       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static void nothing_stays(void)
{
	bool more = true;
	long base, n = 1;
	int fds;

	whole_life();
	whole_life();
	EXPECT(sleeps_once() && !failed_call);
	base = held();
	fds = open_fds();
	for (; more; n++) {
		failed_call = NULL;
		arm(n);
		whole_life();
		more = disarm() > 0;
		alarm(hang_seconds());
		if (!excusable())
			printf("     allocation %ld: %s gave %s\n", n, failed_call, errno_name(failed_errno));
		EXPECT(excusable());
		comes_back(base, fds);
	}
	printf("     %ld allocations failed in turn\n", n - 2);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	load_failmalloc(argv);
	if (!find_repoll(&repoll))
		skip_all("a library without repoll_*");
	CASE(nothing_stays);
	until_none_fails();
	return finish();
}
