/*
 * Speed of rsockets and of TCP: one program for both ends and every library, so that any two can be
 * combined.
 *
 *   rsbench rdma|tcp server ADDRESS PORT             prints `ready`, serves until the task quit
 *   rsbench rdma|tcp client ADDRESS PORT TASK...     executes one task after the other
 *
 * TASK is WHAT:WAIT:SIZE:COUNT[:CONNECTIONS]; WAIT is block, poll or epoll (on both ends):
 *   pingpong  COUNT messages in each direction; microseconds for half of a round trip
 *   waited    the same; the server pauses before it answers, so that the client waits each time
 *   found     the same; the client receives after a notice over another connection that the answer was sent, so
 *             that it never waits
 *   queued    COUNT messages to the client, which receives several at a time after such a notice
 *   up, down  COUNT messages from (to) the client; microseconds per message
 *   duplex    COUNT messages in each direction at the same time, each end with a thread for each direction; microseconds
 *             for one message in each direction
 *   up2, up8  as up, each message sent from so many buffers
 *   iowrite   the same into mapped memory of the server, with riowrite
 *   dgram     like pingpong, with datagrams
 *   hold      many simultaneous connections, see hold.c
 * Prints a line WHAT:WAIT:SIZE[:CONNECTIONS] FIGURE for each.
 */
#include "net.h"
#include "hold.h"
#include <pthread.h>
#include <rdma/rsocket.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <unistd.h>

static const char *const whats[] = { "pingpong", "waited", "found", "queued", "up", "down", "up2", "up8", "duplex", "iowrite", "dgram", "hold", "quit" };
enum what { PINGPONG, WAITED, FOUND, QUEUED, UP, DOWN, UP2, UP8, DUPLEX, IOWRITE, DGRAM, HOLD, QUIT };
static const char *const waits[] = { "block", "poll", "epoll" };

static struct sockaddr_in address;

/* One of a task's connections, with the task. */
struct job {
	struct task task;
	struct conn conn;
	bool client;
	pthread_t thread;
	double start, end;
};

static char *buffer_of(const struct task *t)
{
	char *buffer = malloc(t->size);

	NEED(buffer);
	memset(buffer, 'x', t->size);
	return buffer;
}

/* A TCP connection over which the server notifies the client that it has sent something. */
static int side;

static void open_side(bool client)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };

	snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "rsbench-%d", ntohs(address.sin_port));
	side = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	NEED(side >= 0);
	/* The server's first notice follows the client's first message. */
	if (client)
		NEED(!bind(side, (struct sockaddr *)&name, sizeof(name)));
}

static void tell(void)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };

	snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "rsbench-%d", ntohs(address.sin_port));
	NEED(sendto(side, "", 1, 0, (struct sockaddr *)&name, sizeof(name)) == 1);
}

/* Long enough for the other end to finish its work, and to sleep if it waits. */
static void let_other_end_run(void)
{
	NEED(!nanosleep(&(struct timespec){ .tv_nsec = 3000000 }, NULL));
}

/* The data has arrived after the device's threads have run as well. */
static void hear(void)
{
	char word;

	NEED(read(side, &word, 1) == 1);
	let_other_end_run();
}

static void pingpong(const struct job *j, uint32_t count)
{
	char *buffer = buffer_of(&j->task);

	while (count--) {
		if (j->client)
			put(&j->conn, buffer, j->task.size);
		if (j->client && j->task.what == FOUND)
			hear();
		get(&j->conn, buffer, j->task.size);
		if (!j->client && j->task.what == WAITED)
			let_other_end_run();
		if (!j->client)
			put(&j->conn, buffer, j->task.size);
		if (!j->client && j->task.what == FOUND)
			tell();
	}
	free(buffer);
}

/* The client returns a byte for each batch. */
static void queued(const struct job *j, uint32_t count)
{
	enum { QUEUE = 32 };
	char *buffer = buffer_of(&j->task), done = 0;
	uint32_t i;

	for (i = 0; i < count; i++) {
		if (j->client && i % QUEUE == 0)
			hear();
		if (j->client)
			get(&j->conn, buffer, j->task.size);
		else
			put(&j->conn, buffer, j->task.size);
		if (!j->client && (i % QUEUE == QUEUE - 1 || i == count - 1))
			tell();
		if (i % QUEUE != QUEUE - 1)
			continue;
		if (j->client)
			put(&j->conn, &done, 1);
		else
			get(&j->conn, &done, 1);
	}
	free(buffer);
}

/* One direction; the receiver's byte at the end confirms that everything has arrived. */
static void stream(const struct job *j, bool sender, uint32_t count)
{
	char *buffer = buffer_of(&j->task), last = 0;

	while (count--) {
		if (sender && j->task.what == UP2)
			put_pieces(&j->conn, buffer, j->task.size, 2);
		else if (sender && j->task.what == UP8)
			put_pieces(&j->conn, buffer, j->task.size, 8);
		else if (sender)
			put(&j->conn, buffer, j->task.size);
		else
			get(&j->conn, buffer, j->task.size);
	}
	if (sender)
		get(&j->conn, &last, 1);
	else
		put(&j->conn, &last, 1);
	free(buffer);
}

/* What the second thread of an end does in duplex(). */
struct sender {
	const struct job *job;
	uint32_t count;
};

static void *send_all(void *argument)
{
	const struct sender *s = argument;
	char *buffer = buffer_of(&s->job->task);
	uint32_t i;

	for (i = 0; i < s->count; i++)
		put(&s->job->conn, buffer, s->job->task.size);
	free(buffer);
	return NULL;
}

/* Both directions at the same time. */
static void duplex(const struct job *j, uint32_t count)
{
	struct sender sender = { .job = j, .count = count };
	char *buffer = buffer_of(&j->task);
	pthread_t thread;

	NEED(!pthread_create(&thread, NULL, send_all, &sender));
	while (count--)
		get(&j->conn, buffer, j->task.size);
	NEED(!pthread_join(thread, NULL));
	free(buffer);
}

/* The server sends the offset of its mapping; a byte after the writes confirms their arrival. */
static void iowrite(const struct job *j, uint32_t count)
{
	char *buffer = buffer_of(&j->task), last = 0;
	off_t offset = 0;

	if (j->client) {
		get(&j->conn, &offset, sizeof(offset));
		while (count--)
			NEED(riowrite(j->conn.fd, buffer, j->task.size, offset, 0) == j->task.size);
		put(&j->conn, &last, 1);
		get(&j->conn, &last, 1);
	} else {
		offset = riomap(j->conn.fd, buffer, j->task.size, PROT_WRITE, 0, -1);
		NEED(offset != -1);
		put(&j->conn, &offset, sizeof(offset));
		get(&j->conn, &last, 1);
		put(&j->conn, &last, 1);
		NEED(!riounmap(j->conn.fd, buffer, j->task.size));
	}
	free(buffer);
}

/* Datagrams on a separate socket at the next port; one is outstanding at a time. */
static void dgram_server(const struct job *j)
{
	int fd = net.socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in from, here = address;
	char *buffer = buffer_of(&j->task), ready = 0;
	uint32_t count = j->task.count;
	socklen_t length;

	here.sin_port = htons(ntohs(here.sin_port) + 1);
	NEED(fd >= 0 && !net.bind(fd, (struct sockaddr *)&here, sizeof(here)));
	put(&j->conn, &ready, 1);
	while (count--) {
		length = sizeof(from);
		NEED(net.recvfrom(fd, buffer, j->task.size, 0, (void *)&from, &length) == j->task.size);
		NEED(net.sendto(fd, buffer, j->task.size, 0, (void *)&from, length) == j->task.size);
	}
	get(&j->conn, &ready, 1);
	net.close(fd);
	free(buffer);
}

static double dgram_client(const struct job *j)
{
	int fd = net.socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in to = address;
	char *buffer = buffer_of(&j->task), ready;
	uint32_t i, warm = j->task.count / 10;
	double start = 0;

	to.sin_port = htons(ntohs(to.sin_port) + 1);
	get(&j->conn, &ready, 1);
	NEED(fd >= 0 && !net.connect(fd, (struct sockaddr *)&to, sizeof(to)));
	for (i = 0; i < j->task.count; i++) {
		if (i == warm)
			start = now();
		NEED(net.send(fd, buffer, j->task.size, 0) == j->task.size);
		NEED(net.recv(fd, buffer, j->task.size, 0) == j->task.size);
	}
	start = (now() - start) / (j->task.count - warm) / 2;
	put(&j->conn, &ready, 1);
	net.close(fd);
	free(buffer);
	return start;
}

static void some(const struct job *j, uint32_t count)
{
	switch (j->task.what) {
	case PINGPONG:
	case WAITED:
	case FOUND:
		pingpong(j, count);
		break;
	case QUEUED:
		queued(j, count);
		break;
	case UP:
	case DOWN:
	case UP2:
	case UP8:
		stream(j, (j->task.what != DOWN) == j->client, count);
		break;
	case DUPLEX:
		duplex(j, count);
		break;
	case IOWRITE:
		iowrite(j, count);
		break;
	}
}

/* A tenth of the messages precedes the measurement. */
static void *work(void *argument)
{
	struct job *j = argument;
	uint32_t warm = j->task.count / 10;

	some(j, warm);
	j->start = now();
	some(j, j->task.count - warm);
	j->end = now();
	return NULL;
}

/* Executes the task on all connections in parallel; the first one needs no thread. */
static void work_all(struct job *jobs, uint32_t connections)
{
	uint32_t i;

	for (i = 1; i < connections; i++)
		NEED(!pthread_create(&jobs[i].thread, NULL, work, &jobs[i]));
	work(&jobs[0]);
	for (i = 1; i < connections; i++)
		NEED(!pthread_join(jobs[i].thread, NULL));
}

static struct job *jobs_for(const struct task *t, int first, bool client, int listener)
{
	struct job *jobs = calloc(t->connections, sizeof(*jobs));
	uint32_t i;

	NEED(jobs);
	for (i = 0; i < t->connections; i++) {
		int fd = !i ? first : client ? net_connect(&address) : net.accept(listener, NULL, NULL);

		NEED(fd >= 0);
		jobs[i].task = *t;
		jobs[i].client = client;
		jobs[i].conn = net_conn(fd, t->wait);
	}
	return jobs;
}

static void close_all(struct job *jobs, uint32_t connections)
{
	while (connections--) {
		if (jobs[connections].conn.epfd >= 0)
			net.close(jobs[connections].conn.epfd);
		net.close(jobs[connections].conn.fd);
	}
	free(jobs);
}

/* The first message of the first connection contains the task. */
static bool serve(int listener)
{
	struct conn first = { .fd = net.accept(listener, NULL, NULL), .epfd = -1, .wait = BLOCK };
	struct task t;
	struct job *jobs;

	NEED(first.fd >= 0);
	get(&first, &t, sizeof(t));
	if (t.what == QUIT || t.what == HOLD) {
		if (t.what == HOLD)
			hold_server(&t, &first, listener);
		net.close(first.fd);
		return t.what != QUIT;
	}
	jobs = jobs_for(&t, first.fd, false, listener);
	if (t.what == DGRAM)
		dgram_server(&jobs[0]);
	else
		work_all(jobs, t.connections);
	close_all(jobs, t.connections);
	return true;
}

static void run_server(void)
{
	int listener = net_stream();

	NEED(!net.bind(listener, (struct sockaddr *)&address, sizeof(address)));
	NEED(!net.listen(listener, 1024));
	puts("ready");
	fflush(stdout);
	while (serve(listener))
		;
	net.close(listener);
}

static uint32_t index_in(const char *const *names, uint32_t count, const char *name)
{
	uint32_t i;

	for (i = 0; i < count; i++)
		if (!strcmp(names[i], name))
			return i;
	fprintf(stderr, "rsbench: unknown word in a task: %s\n", name);
	exit(2);
}

static struct task parse(const char *text)
{
	struct task t = { .size = 1, .count = 1, .connections = 1 };
	char what[16], wait[16] = "block";

	NEED(sscanf(text, "%15[^:]:%15[^:]:%u:%u:%u", what, wait, &t.size, &t.count, &t.connections) >= 1);
	t.what = index_in(whats, sizeof(whats) / sizeof(*whats), what);
	t.wait = index_in(waits, sizeof(waits) / sizeof(*waits), wait);
	NEED(t.size && t.count && t.connections);
	return t;
}

/* Microseconds per message over all connections, from the first start to the last end. */
static double measure(const struct task *t, int first)
{
	struct job *jobs = jobs_for(t, first, true, -1);
	uint32_t i, timed = t->count - t->count / 10;
	double start, end, result;

	work_all(jobs, t->connections);
	start = jobs[0].start;
	end = jobs[0].end;
	for (i = 1; i < t->connections; i++) {
		start = jobs[i].start < start ? jobs[i].start : start;
		end = jobs[i].end > end ? jobs[i].end : end;
	}
	result = (end - start) / timed / t->connections;
	close_all(jobs, t->connections);
	return t->what <= FOUND ? result / 2 : result;
}

static void run_task(const char *text)
{
	struct task t = parse(text);
	struct conn first = { .fd = -1, .epfd = -1, .wait = BLOCK };
	double result;

	if (t.wait == EPOLL && !net.epoll_create) {
		fprintf(stderr, "%s: this library has no repoll_*\n", text);
		return;
	}
	first.fd = net_connect(&address);
	put(&first, &t, sizeof(t));
	if (t.what == QUIT || t.what == HOLD) {
		if (t.what == HOLD)
			hold_client(&t, &first, &address);
		net.close(first.fd);
		return;
	}
	if (t.what == DGRAM) {
		result = dgram_client(&(struct job){ .task = t, .conn = first });
		net.close(first.fd);
	} else {
		result = measure(&t, first.fd);
	}
	printf("%s:%s:%u", whats[t.what], waits[t.wait], t.size);
	if (t.connections > 1)
		printf(":%u", t.connections);
	printf(" %.3f\n", result);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	int i;

	if (argc < 5) {
		fprintf(stderr, "usage: rsbench rdma|tcp server|client ADDRESS PORT [TASK...]\n");
		return 2;
	}
	net_init(!strcmp(argv[1], "rdma"));
	address = net_address(argv[3], atoi(argv[4]));
	open_side(strcmp(argv[2], "server"));
	if (!strcmp(argv[2], "server"))
		run_server();
	for (i = 5; i < argc; i++)
		run_task(argv[i]);
	return 0;
}
