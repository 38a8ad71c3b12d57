/*
 * Threads that wait in raccept, clients of a full backlog, and a process without descriptors for the connections that it
 * gets. Run on ours only.
 */
#include "both_sides.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* ---- threads in raccept ------------------------------------------------------------------------------ */

enum { THREADS = 4 };

struct acceptor {
	pthread_t thread;
	_Atomic pid_t tid;
	_Atomic int server;
};

static struct acceptor acceptors[THREADS];
static union address to;
static int listener;

static void *accept_one(void *argument)
{
	struct acceptor *acceptor = argument;

	acceptor->tid = gettid();
	acceptor->server = raccept(listener, NULL, NULL);
	return NULL;
}

/* Each of them sleeps, or has accepted. */
static void settle(int count)
{
	for (int settled = 0; settled < 5; pause_briefly()) {
		bool all = true;

		for (int i = 0; i < count; i++)
			all = all && acceptors[i].tid && (acceptors[i].server >= 0 || sleeps(acceptors[i].tid));
		settled = all ? settled + 1 : 0;
	}
}

static void start_acceptors(int count)
{
	EXPECT((listener = rs_listener(AF_INET, &to, NULL)) >= 0);
	for (int i = 0; i < count; i++) {
		acceptors[i].tid = 0;
		acceptors[i].server = -1;
		EXPECT(!pthread_create(&acceptors[i].thread, NULL, accept_one, &acceptors[i]));
	}
	settle(count);
}

static int accepted(void)
{
	int count = 0;

	for (int i = 0; i < THREADS; i++)
		count += acceptors[i].server >= 0;
	return count;
}

/* How often the thread has gone to sleep. */
static long times_asleep(pid_t tid)
{
	static const char name[] = "voluntary_ctxt_switches:";
	char path[64], line[256];
	long times = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/status", tid);
	EXPECT((file = fopen(path, "r")));
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)))
			times = strtol(line + strlen(name), NULL, 10);
	EXPECT(!fclose(file) && times >= 0);
	return times;
}

static int connect_client(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	EXPECT(fd >= 0 && !rconnect(fd, &to.sa, addr_len(&to)));
	return fd;
}

static void close_all(const int *clients, int count)
{
	for (int i = 0; i < count; i++)
		EXPECT(!rclose(clients[i]) && !rclose(acceptors[i].server));
	EXPECT(!rclose(listener));
}

/* The others sleep on. */
static void a_connection_wakes_one_thread(void)
{
	int clients[THREADS];
	long before[THREADS];

	start_acceptors(THREADS);
	for (int round = 1; round <= THREADS; round++) {
		for (int i = 0; i < THREADS; i++)
			before[i] = acceptors[i].server < 0 ? times_asleep(acceptors[i].tid) : 0;
		clients[round - 1] = connect_client();
		while (accepted() < round)
			pause_briefly();
		settle(THREADS);
		EXPECT(accepted() == round);
		for (int i = 0; i < THREADS; i++)
			EXPECT(acceptors[i].server >= 0 || times_asleep(acceptors[i].tid) == before[i]);
	}
	for (int i = 0; i < THREADS; i++)
		EXPECT(!pthread_join(acceptors[i].thread, NULL));
	close_all(clients, THREADS);
}

/* A thread is cancelled when the connection may have woken it: another one returns with it. */
static void a_cancelled_thread_leaves_the_connection(void)
{
	enum { ROUNDS = 60 };
	unsigned int seed = 1;

	for (int round = 0; round < ROUNDS; round++) {
		int clients[2];
		void *result;

		start_acceptors(2);
		EXPECT((clients[0] = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) >= 0);
		EXPECT_ERROR(rconnect(clients[0], &to.sa, addr_len(&to)), EINPROGRESS);
		usleep((useconds_t)rand_r(&seed) % 3000);
		EXPECT(!pthread_cancel(acceptors[0].thread) && !pthread_join(acceptors[0].thread, &result));
		if (result == PTHREAD_CANCELED) {
			EXPECT(!pthread_join(acceptors[1].thread, NULL) && acceptors[1].server >= 0);
			acceptors[0].server = acceptors[1].server;
			close_all(clients, 1);
			continue;
		}
		clients[1] = connect_client();
		EXPECT(!pthread_join(acceptors[1].thread, NULL));
		close_all(clients, 2);
	}
}

/* ---- a full backlog, as with TCP ------------------------------------------------------------------------ */

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

/* ---- without descriptors ------------------------------------------------------------------------------- */

/* Writes 0, or the error of connecting. */
static void connect_and_report(int address, int report)
{
	int fd, error;

	alarm(hang_seconds());
	EXPECT(read(address, &to, sizeof(to)) == sizeof(to));
	EXPECT((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	error = rconnect(fd, &to.sa, addr_len(&to)) ? errno : 0;
	EXPECT(write(report, &error, sizeof(error)) == sizeof(error));
	EXPECT(error || rsend(fd, "x", 1, 0) == 1);
	EXPECT(!rclose(fd));
	_exit(CHILD_DONE);
}

/* The process has not opened the device at which connection requests will arrive. */
static void listen_without_device(void)
{
	union address any = any_addr(AF_INET, 0);
	socklen_t len = sizeof(any);

	EXPECT((listener = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	EXPECT(!rbind(listener, &any.sa, addr_len(&any)) && !rlisten(listener, 16));
	EXPECT(!rgetsockname(listener, &any.sa, &len));
	to = local_addr(AF_INET, ntohs(any.in.sin_port));
}

static void listen_with_device(void) { EXPECT((listener = rs_listener(AF_INET, &to, NULL)) >= 0); }

/* The client waits until the process has the descriptors that a connection needs, and its device. */
static void waits_for_descriptors(void (*start_listening)(void), int left)
{
	enum { LIMIT = 128, WAIT_MS = 300 };
	int address[2], report[2], fds[LIMIT], count = 0, server, error;
	struct pollfd reported = { .events = POLLIN };
	struct rlimit limit;
	char byte;
	pid_t child;

	EXPECT(!pipe(address) && !pipe(report));
	child = fork();
	EXPECT(child >= 0);
	if (child == 0)
		connect_and_report(address[0], report[1]);
	start_listening();
	EXPECT(!getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = LIMIT;
	EXPECT(!setrlimit(RLIMIT_NOFILE, &limit));
	while (count < LIMIT && (fds[count] = dup(0)) >= 0)
		count++;
	error = errno;
	EXPECT(count > left && error == EMFILE);
	for (int i = 0; i < left; i++)
		EXPECT(!close(fds[--count]));
	EXPECT(write(address[1], &to, sizeof(to)) == sizeof(to));
	reported.fd = report[0];
	EXPECT(poll(&reported, 1, WAIT_MS) == 0);
	while (count > 0)
		EXPECT(!close(fds[--count]));
	EXPECT((server = raccept(listener, NULL, NULL)) >= 0);
	EXPECT(read(report[0], &error, sizeof(error)) == sizeof(error) && error == 0);
	EXPECT(rrecv(server, &byte, 1, 0) == 1 && byte == 'x');
	EXPECT(child_done(child));
	EXPECT(!rclose(server) && !rclose(listener));
	limit.rlim_cur = limit.rlim_max;
	EXPECT(!setrlimit(RLIMIT_NOFILE, &limit));
}

static void no_descriptors(void) { waits_for_descriptors(listen_with_device, 0); }
static void one_descriptor(void) { waits_for_descriptors(listen_with_device, 1); }
static void no_descriptors_for_the_device(void) { waits_for_descriptors(listen_without_device, 0); }
static void one_descriptor_for_the_device(void) { waits_for_descriptors(listen_without_device, 1); }
/* They suffice for the connection or for the device. */
static void two_descriptors_for_the_device(void) { waits_for_descriptors(listen_without_device, 2); }

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(a_connection_wakes_one_thread);
	CASE(a_cancelled_thread_leaves_the_connection);
	BOTH(full_backlog);
	CASE(no_descriptors);
	CASE(one_descriptor);
	CASE(no_descriptors_for_the_device);
	CASE(one_descriptor_for_the_device);
	CASE(two_descriptors_for_the_device);
	return finish();
}
