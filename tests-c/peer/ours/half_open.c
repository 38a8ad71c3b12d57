/*
 * Clients that request connections and never finish the handshake: what they cost a server and its other clients.
 */
#include "raw_peer.h"
#include "rscommon.h"

#include <glob.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* A client with a QP that asks and never looks at the answer. Its channel stays, so the kernel goes on waiting. */
static struct rdma_cm_id *ask(union address *to)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct peer peer = { 0 };
	struct rdma_conn_param param;

	EXPECT(channel);
	peer.id = peer_resolved(to, channel);
	peer_prepare(&peer, false);
	param = peer_param(&peer.mine, sizeof(peer.mine));
	EXPECT(!rdma_connect(peer.id, &param));
	return peer.id;
}

static void give_up(struct rdma_cm_id *id)
{
	struct rdma_event_channel *channel = id->channel;

	rdma_destroy_qp(id);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(channel);
}

static void expect_good(union address *to, int listener)
{
	char byte = 0;
	int client = rsocket(AF_INET, SOCK_STREAM, 0), server;

	EXPECT(client >= 0 && !rconnect(client, &to->sa, sizeof(to->in)));
	EXPECT((server = raccept(listener, NULL, NULL)) >= 0);
	EXPECT(rsend(client, "g", 1, 0) == 1 && rrecv(server, &byte, 1, 0) == 1);
	EXPECT(!rclose(client) && !rclose(server));
}

/* In a process of its own: `count` clients that never finish, or without end, until it is killed. */
static pid_t strangers(union address *to, int count, int *ready)
{
	pid_t child = fork();

	EXPECT(child >= 0);
	if (child)
		return child;
	alarm(hang_seconds());
	for (int i = 0; i < count; i++) {
		ask(to);
		*ready = i + 1;
	}
	for (;;)
		pause();
}

static int *shared_number(void)
{
	int *number = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	EXPECT(number != MAP_FAILED);
	return number;
}

static void end_of(pid_t child)
{
	EXPECT(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
}

/* A backlog full of clients that never finish: the next one gets in, at the cost of the oldest of them. */
static void backlog_full_of_half_open(void)
{
	enum { BACKLOG = 4 };
	union address to;
	int listener, *asked = shared_number();
	pid_t child;

	listener = listen_on(&to, BACKLOG, 0);
	child = strangers(&to, 3 * BACKLOG, asked);
	while (*(volatile int *)asked < 3 * BACKLOG)
		pause_briefly();
	expect_good(&to, listener);
	end_of(child);
	EXPECT(!rclose(listener));
}

/* How many of the process's channels of the connection manager have an event that was not read. */
static int unread_channels(pid_t process)
{
	char link[64], target[64];
	int count = 0, pidfd = (int)syscall(SYS_pidfd_open, process, 0);

	EXPECT(pidfd >= 0);
	for (int fd = 0; fd < 64; fd++) {
		struct pollfd entry = { .fd = (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0), .events = POLLIN };
		ssize_t len;

		if (entry.fd < 0)
			continue;
		snprintf(link, sizeof(link), "/proc/self/fd/%d", entry.fd);
		EXPECT((len = readlink(link, target, sizeof(target) - 1)) > 0);
		target[len] = 0;
		count += strstr(target, "rdma_cm") && poll(&entry, 1, 0) == 1;
		EXPECT(!close(entry.fd));
	}
	EXPECT(!close(pidfd));
	return count;
}

/* A backlog full of clients, of which the oldest has just finished when the next one asks: it is not half-open. */
static void finished_one_is_kept(void)
{
	enum { BACKLOG = 4 };
	union address to;
	struct rdma_cm_id *clients[BACKLOG];
	struct pollfd ready[2] = { { .events = POLLIN }, { .events = POLLIN } };
	int pipes[2], ports[2], status;
	pid_t server;

	EXPECT(!pipe(pipes) && !pipe(ports));
	server = fork();
	EXPECT(server >= 0);
	if (!server) {
		int listener;

		alarm(hang_seconds());
		listener = listen_on(&to, BACKLOG - 1, 16);
		EXPECT(write(ports[1], &to, sizeof(to)) == sizeof(to));
		EXPECT(raccept(listener, NULL, NULL) >= 0);
		EXPECT(write(pipes[1], "a", 1) == 1);
		for (;;)
			pause();
	}
	EXPECT(read(ports[0], &to, sizeof(to)) == sizeof(to));
	for (int i = 0; i < BACKLOG; i++) {
		clients[i] = ask(&to);
		ready[0].fd = clients[i]->channel->fd;
		/* The server's answer is there; what reads it also says that this end is ready. */
		EXPECT(poll(ready, 1, -1) == 1);
	}
	EXPECT(!kill(server, SIGSTOP) && waitpid(server, &status, WUNTRACED) == server && WIFSTOPPED(status));
	ask(&to);
	while (unread_channels(server) < 1)
		pause_briefly();
	EXPECT(quiet_event(clients[0]->channel, RDMA_CM_EVENT_ESTABLISHED));
	while (unread_channels(server) < 2)
		pause_briefly();
	EXPECT(!kill(server, SIGCONT));
	ready[0].fd = clients[0]->channel->fd;
	ready[1].fd = pipes[0];
	EXPECT(poll(ready, 2, -1) == 1 && !ready[0].revents);
	end_of(server);
}

/* The sum of a counter of the connection manager for all devices. */
static unsigned long counter(const char *name)
{
	char pattern[128];
	unsigned long sum = 0;
	glob_t files;

	snprintf(pattern, sizeof(pattern), "/sys/class/infiniband/*/ports/1/%s", name);
	EXPECT(!glob(pattern, 0, NULL, &files) && files.gl_pathc > 0);
	for (size_t i = 0; i < files.gl_pathc; i++) {
		FILE *file = fopen(files.gl_pathv[i], "r");
		unsigned long number;

		EXPECT(file && fscanf(file, "%lu", &number) == 1 && !fclose(file));
		sum += number;
	}
	globfree(&files);
	return sum;
}

/* Requests that were received, without repetitions of one that was not dropped. */
static unsigned long requests_received(void)
{
	return counter("cm_rx_msgs/req") - counter("cm_rx_duplicates/req");
}

/*
 * So many requests while the server does not run, more than the backlog: the kernel drops none of them, for a peer asks
 * again only after seconds. The last one is that of a client that finishes.
 */
static void burst(unsigned int requests)
{
	enum { BACKLOG = 4 };
	union address to;
	struct pollfd client = { .events = POLLOUT };
	unsigned long before = requests_received();
	int ports[2], status, error = -1;
	socklen_t len = sizeof(error);
	pid_t server;

	EXPECT(!pipe(ports));
	server = fork();
	EXPECT(server >= 0);
	if (!server) {
		alarm(hang_seconds());
		listen_on(&to, BACKLOG, 16);
		EXPECT(write(ports[1], &to, sizeof(to)) == sizeof(to));
		for (;;)
			pause();
	}
	EXPECT(read(ports[0], &to, sizeof(to)) == sizeof(to));
	EXPECT(!kill(server, SIGSTOP) && waitpid(server, &status, WUNTRACED) == server && WIFSTOPPED(status));
	for (unsigned int i = 1; i < requests; i++)
		ask(&to);
	EXPECT((client.fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) >= 0);
	EXPECT(rconnect(client.fd, &to.sa, sizeof(to.in)) && errno == EINPROGRESS);
	while (requests_received() < before + requests)
		pause_briefly();
	EXPECT(!kill(server, SIGCONT));
	EXPECT(rpoll(&client, 1, -1) == 1 && client.revents == POLLOUT);
	EXPECT(!rgetsockopt(client.fd, SOL_SOCKET, SO_ERROR, &error, &len) && !error);
	EXPECT(requests_received() == before + requests);
	EXPECT(!rclose(client.fd));
	end_of(server);
}

static void no_request_is_dropped(void) { burst(65); }
/* The server reads 32 requests at a time: none is left to tell it that there were any. */
static void one_full_turn_is_answered(void) { burst(32); }
static void two_full_turns_are_answered(void) { burst(64); }

/* The server's own deadline, though the client's request says minutes: what is not finished is given back. */
static void half_open_ends(void)
{
	enum { COUNT = 3, LIMIT_MS = 20000 };
	union address to;
	int before = fds_before(), listener, *asked = shared_number();
	struct timespec since;
	pid_t child;

	clock_gettime(CLOCK_MONOTONIC, &since);

	listener = listen_on(&to, 8, 0);
	child = strangers(&to, COUNT, asked);
	while (*(volatile int *)asked < COUNT || open_fds() < before + 1 + 2 * COUNT)
		pause_briefly();
	/* After ten seconds. The kernel gives up later. */
	while (open_fds() > before + 1) {
		pause_briefly();
		EXPECT(elapsed_ms(&since) < LIMIT_MS);
	}
	end_of(child);
	EXPECT(!rclose(listener));
}

/* Connections that the program does not accept leave it most of its descriptors. */
static void unaccepted_leave_descriptors(void)
{
	enum { LIMIT = 256, COUNT = 140 };
	struct rlimit limit;
	union address to;
	int before = fds_before(), listener, others[LIMIT / 2], *asked = shared_number();
	pid_t child;

	EXPECT(!getrlimit(RLIMIT_NOFILE, &limit));
	listener = listen_on(&to, 1000, 16);
	child = fork();
	EXPECT(child >= 0);
	if (!child) {
		alarm(hang_seconds());
		for (int i = 0; i < COUNT; i++) {
			int fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
			int mem = 8192;

			EXPECT(fd >= 0);
			EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &mem, sizeof(mem)));
			set_sizes(fd, 16, 0);
			/* What is too much waits. */
			EXPECT_ERROR(rconnect(fd, &to.sa, sizeof(to.in)), EINPROGRESS);
			*asked = i + 1;
		}
		for (;;)
			pause();
	}
	limit.rlim_cur = LIMIT;
	EXPECT(!setrlimit(RLIMIT_NOFILE, &limit));
	/* Each connection has two, and a listener's take a quarter of the limit. */
	while (*(volatile int *)asked < COUNT || open_fds() < before + 1 + LIMIT / 4)
		pause_briefly();
	for (int i = 0; i < LIMIT / 2; i++)
		EXPECT((others[i] = open("/dev/null", O_RDONLY)) >= 0);
	for (int i = 0; i < LIMIT / 2; i++)
		EXPECT(!close(others[i]));
	EXPECT(!rclose(raccept(listener, NULL, NULL)));
	end_of(child);
	EXPECT(!rclose(listener));
}

/* A listener that is flooded with requests delays those of another one by little. */
static void flooded_listener(void)
{
	enum { FLOODERS = 3, ROUNDS = 15, LONGEST_MS = 20000 };
	union address flooded, good;
	int listener = listen_on(&flooded, 16, 16), other = listen_on(&good, 16, 16), *asked = shared_number();
	pid_t children[FLOODERS];
	long longest = 0;

	/* Before the flood, and in this process: keeps soft-iWARP's page 144 from the rsockets' queues, too (raw_peer.c). */
	give_up(ask(&flooded));
	for (int i = 0; i < FLOODERS; i++) {
		children[i] = fork();
		EXPECT(children[i] >= 0);
		if (children[i])
			continue;
		alarm(2 * hang_seconds());
		for (;;) {
			struct rdma_cm_id *id = ask(&flooded);

			__atomic_add_fetch(asked, 1, __ATOMIC_RELAXED);
			give_up(id);
		}
	}
	while (__atomic_load_n(asked, __ATOMIC_RELAXED) < 2 * FLOODERS)
		pause_briefly();
	for (int i = 0; i < ROUNDS; i++) {
		struct timespec since;

		clock_gettime(CLOCK_MONOTONIC, &since);
		expect_good(&good, other);
		if (elapsed_ms(&since) > longest)
			longest = elapsed_ms(&since);
	}
	fprintf(stderr, "# %d requests of the flood; the longest connection took %ld ms\n",
		__atomic_load_n(asked, __ATOMIC_RELAXED), longest);
	EXPECT(longest < LONGEST_MS);
	for (int i = 0; i < FLOODERS; i++)
		end_of(children[i]);
	EXPECT(!rclose(listener) && !rclose(other));
}

int main(int argc, char **argv)
{
	start(argc, argv);
	/* On siw a connection is made without the client's doing. */
	CASE_IF(!on_siw(), backlog_full_of_half_open);
	CASE_IF(!on_siw(), finished_one_is_kept);
	CASE_IF(!on_siw(), no_request_is_dropped);
	CASE_IF(!on_siw(), one_full_turn_is_answered);
	CASE_IF(!on_siw(), two_full_turns_are_answered);
	CASE_IF(!on_siw(), half_open_ends);
	CASE(unaccepted_leave_descriptors);
	CASE(flooded_listener);
	return finish();
}
