/* Many simultaneous connections: time to connect and to close, memory, idle wake-ups, time to poll. */
#include "hold.h"
#include <dirent.h>
#include <sys/resource.h>

/* The sum of one field, in kB or a count, over the files /proc/self/PATH. */
static long field_of(const char *path, const char *name)
{
	FILE *file = fopen(path, "r");
	char line[256];
	long value = 0;

	NEED(file);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':')
			value = atol(line + strlen(name) + 1);
	fclose(file);
	return value;
}

/* In kB. Memory that is registered with a device counts as pinned. */
static long resident(void)
{
	return field_of("/proc/self/status", "VmRSS");
}

static long locked(void)
{
	return field_of("/proc/self/status", "VmLck") + field_of("/proc/self/status", "VmPin");
}

/* Returns how often threads of the process have gone to sleep. */
static long sleeps(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;
	char path[300];
	long sum = 0;

	NEED(tasks);
	while ((entry = readdir(tasks))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
		sum += field_of(path, "voluntary_ctxt_switches");
	}
	closedir(tasks);
	return sum;
}

static struct pollfd *all(const struct task *t, const int *fds)
{
	struct pollfd *polled = calloc(t->connections, sizeof(*polled));
	uint32_t i;

	NEED(polled);
	for (i = 0; i < t->connections; i++)
		polled[i] = (struct pollfd){ .fd = fds[i], .events = POLLIN };
	return polled;
}

static double cpu_time(void)
{
	struct rusage usage;

	NEED(!getrusage(RUSAGE_SELF, &usage));
	return usage.ru_utime.tv_sec * 1e6 + usage.ru_utime.tv_usec + usage.ru_stime.tv_sec * 1e6 +
	       usage.ru_stime.tv_usec;
}

/*
 * Waits SIZE seconds for data that does not arrive. Going to sleep once is no wake-up, so it is
 * subtracted. A wait before the measurement arms the CQs, during which the kernel may sleep.
 */
static void idle(const struct task *t, const int *fds)
{
	struct pollfd *polled = all(t, fds);
	double cpu;
	long before;

	NEED(net.poll(polled, t->connections, 1) == 0);
	before = sleeps();
	cpu = cpu_time();
	NEED(net.poll(polled, t->connections, t->size * 1000) == 0);
	free(polled);
	printf("idle-wakeups:%u %ld\n", t->connections, sleeps() - before - 1);
	printf("idle-cpu-us:%u %.0f\n", t->connections, cpu_time() - cpu);
}

static int epoll_of(const struct task *t, const int *fds)
{
	struct epoll_event event = { .events = EPOLLIN };
	int epfd = net.epoll_create(0);
	uint32_t i;

	NEED(epfd >= 0);
	for (i = 0; i < t->connections; i++)
		NEED(!net.epoll_ctl(epfd, EPOLL_CTL_ADD, fds[i], &event));
	return epfd;
}

/* The reference cannot close an epoll that still has members. */
static void epoll_close(const struct task *t, int epfd, const int *fds)
{
	struct epoll_event event = { 0 };
	uint32_t i;

	for (i = 0; i < t->connections; i++)
		NEED(!net.epoll_ctl(epfd, EPOLL_CTL_DEL, fds[i], &event));
	net.close(epfd);
}

/* Calls that find one of many connections readable. */
static void poll_one(const struct task *t, const int *fds)
{
	struct pollfd *polled = all(t, fds);
	struct epoll_event event = { .events = EPOLLIN };
	uint32_t i;
	double start;
	int epfd;

	NEED(net.poll(polled, t->connections, -1) == 1);
	start = now();
	for (i = 0; i < t->count; i++)
		NEED(net.poll(polled, t->connections, -1) == 1);
	printf("poll-one:%u %.3f\n", t->connections, (now() - start) / t->count);
	free(polled);
	if (!net.epoll_create || t->wait != EPOLL)
		return;
	epfd = epoll_of(t, fds);
	NEED(net.epoll_wait(epfd, &event, 1, -1) == 1);
	start = now();
	for (i = 0; i < t->count; i++)
		NEED(net.epoll_wait(epfd, &event, 1, -1) == 1);
	printf("epoll-one:%u %.3f\n", t->connections, (now() - start) / t->count);
	epoll_close(t, epfd, fds);
}

static void echo(int fd)
{
	char byte = 0;

	NEED(net.send(fd, &byte, 1, 0) == 1);
	NEED(net.recv(fd, &byte, 1, 0) == 1);
}

/* Each connection has been used, and all of them are idle for so long that rsockets return their buffers. */
enum { LONG_IDLE = 10, USED = 65536 };

static void use(const struct task *t, const int *fds, bool first)
{
	static char bytes[USED];

	for (uint32_t i = 0; i < t->connections; i++) {
		struct conn used = net_conn(fds[i], BLOCK);

		if (first)
			put(&used, bytes, USED);
		get(&used, bytes, USED);
		if (!first)
			put(&used, bytes, USED);
	}
}

/* The client's memory after that. */
static void use_and_rest(const struct task *t, const int *fds, long pinned)
{
	struct pollfd *polled = all(t, fds);

	use(t, fds, true);
	printf("locked-used-kb:%u %.1f\n", t->connections, (double)(locked() - pinned) / t->connections);
	NEED(net.poll(polled, t->connections, t->size * 1000) == 0);
	printf("locked-again-kb:%u %.1f\n", t->connections, (double)(locked() - pinned) / t->connections);
	free(polled);
}

/* The client: COUNT calls, SIZE seconds idle, CONNECTIONS. */
void hold_client(const struct task *t, const struct conn *first, const struct sockaddr_in *to)
{
	int *fds = calloc(t->connections, sizeof(*fds));
	char byte = 0;
	double start, last = 0;
	long rss, pinned;
	uint32_t i, tenth = t->connections / 10;

	NEED(fds);
	rss = resident();
	pinned = locked();
	start = now();
	for (i = 0; i < t->connections; i++) {
		if (i == t->connections - tenth)
			last = now();
		fds[i] = net_connect(to);
	}
	/* The server has accepted all connections. */
	get(first, &byte, 1);
	printf("connect-us:%u %.1f\n", t->connections, (now() - start) / t->connections);
	printf("connect-last-us:%u %.1f\n", t->connections, tenth ? (now() - last) / tenth : 0);
	printf("resident-kb:%u %.1f\n", t->connections, (double)(resident() - rss) / t->connections);
	printf("locked-kb:%u %.1f\n", t->connections, (double)(locked() - pinned) / t->connections);
	idle(t, fds);
	put(first, &byte, 1);
	poll_one(t, fds);
	NEED(net.recv(fds[t->connections / 2], &byte, 1, 0) == 1);
	put(first, &byte, 1);
	/* Once before: the server enters all connections into its epoll. */
	echo(fds[t->connections / 2]);
	start = now();
	for (i = 0; i < t->count; i++)
		echo(fds[t->connections / 2]);
	printf("echo-one:%u %.3f\n", t->connections, (now() - start) / t->count);
	fflush(stdout);
	if (t->size >= LONG_IDLE) {
		use_and_rest(t, fds, pinned);
		put(first, &byte, 1);
	}
	get(first, &byte, 1);
	start = now();
	for (i = 0; i < t->connections; i++)
		net.close(fds[i]);
	printf("close-us:%u %.1f\n", t->connections, (now() - start) / t->connections);
	fflush(stdout);
	free(fds);
}

/* Answers on the connection that has data; only one of them has any at a time. */
static void echo_one(const struct task *t, const int *fds)
{
	int active = fds[t->connections / 2], epfd = -1;
	struct pollfd *polled = all(t, fds);
	struct epoll_event event = { .events = EPOLLIN };
	uint32_t i;
	char byte;

	if (t->wait == EPOLL)
		epfd = epoll_of(t, fds);
	for (i = 0; i <= t->count; i++) {
		if (epfd >= 0)
			NEED(net.epoll_wait(epfd, &event, 1, -1) == 1);
		else
			NEED(net.poll(polled, t->connections, -1) == 1);
		NEED(net.recv(active, &byte, 1, 0) == 1);
		NEED(net.send(active, &byte, 1, 0) == 1);
	}
	if (epfd >= 0)
		epoll_close(t, epfd, fds);
	free(polled);
}

void hold_server(const struct task *t, const struct conn *first, int listener)
{
	int *fds = calloc(t->connections, sizeof(*fds));
	char byte = 0;
	uint32_t i;

	NEED(fds);
	for (i = 0; i < t->connections; i++) {
		fds[i] = net.accept(listener, NULL, NULL);
		NEED(fds[i] >= 0);
	}
	put(first, &byte, 1);
	get(first, &byte, 1);
	NEED(net.send(fds[t->connections / 2], &byte, 1, 0) == 1);
	get(first, &byte, 1);
	echo_one(t, fds);
	if (t->size >= LONG_IDLE) {
		use(t, fds, false);
		get(first, &byte, 1);
	}
	for (i = 0; i < t->connections; i++)
		net.close(fds[i]);
	put(first, &byte, 1);
	free(fds);
}
