/*
 * Executes the steps given as arguments on RDMA CM ids, one after the other, and prints the results
 * of calls and the events in a form that does not differ between runs:
 *
 *     steps NAME STEP...
 *
 * Output lines begin with NAME. After a failed call the next step follows. No step waits longer than
 * $STEPS_LIMIT seconds. FIFO steps allow a script to order the steps of two processes.
 *
 *   id            new id on the channel (made with the first id); it becomes the current one
 *   sync          new synchronous id: its calls wait for their events
 *   use:N         the N-th id (from 0, including accepted ones) becomes the current one
 *   bind:A:P, listen:N, addr:A:P, route, connect, accept, reject, disconnect, destroy
 *                 the call of that name on the current id
 *   ack-timeout:N the option of that name
 *   qp            creates a QP with the library's CQs, and registers a buffer
 *   destroy-qp
 *   cut           closes all verbs devices without the libraries' knowledge
 *   event         one event, printed and acked; a connection request's id becomes the current one
 *   answer        the event that results from the previous call, unless that failed
 *   arrived       waits for an event, and leaves it unread
 *   pending       whether there is an unread event
 *   recv:N        posts N receives
 *   got:N         waits for N received messages and checks their contents
 *   send:N        sends N messages one by one and waits for each
 *   flood         sends until a completion fails or an event comes
 *   drain         waits for the completions of a flood's outstanding messages
 *   post, reap    posts one message; waits for the completion of one
 *   tell:F hear:F writes to, reads from a FIFO (waits for the other end)
 *   files:N       RLIMIT_NOFILE: allows N more descriptors
 *   memlock:N     RLIMIT_MEMLOCK in bytes, as user nobody
 *   strict        from here on the first failure ends the process, with status 1
 *   stop          waits to be killed
 *
 * A is an IPv4 address, P a port.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "steps.h"

static const char *name;
static int limit = 200; /* seconds, or $STEPS_LIMIT */
static struct rdma_event_channel *channel;
static struct slot slots[MAX_IDS];
static int used, current = -1;
static bool strict, last_failed;

void print(const char *what, const char *result)
{
	printf("%s: %s: %s\n", name, what, result);
}

bool result(const char *what, int ret)
{
	print(what, ret ? strerrorname_np(errno) ? strerrorname_np(errno) : "errno unknown" : "0");
	last_failed = ret != 0;
	if (ret && strict)
		exit(1);
	return ret == 0;
}

static struct slot *slot(void)
{
	if (current < 0 || !slots[current].id) {
		print("no id", "step left out");
		return NULL;
	}
	return &slots[current];
}

static struct slot *slot_with_qp(void)
{
	struct slot *s = slot();
	if (s && (!s->id->qp || !s->mr)) {
		print("no qp", "step left out");
		return NULL;
	}
	return s;
}

static void add_id(struct rdma_cm_id *id)
{
	if (used == MAX_IDS) {
		print("too many ids", "end");
		exit(2);
	}
	current = used++;
	slots[current].id = id;
}

/* "address:port" */
static struct sockaddr_in address(char *text)
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	char *colon = strrchr(text, ':');
	*colon = '\0';
	in.sin_port = htons((uint16_t)atoi(colon + 1));
	inet_pton(AF_INET, text, &in.sin_addr);
	return in;
}

bool readable(const char *what, int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int n = poll(&p, 1, limit * 1000);
	if (n != 1)
		print(what, "nothing came");
	return n == 1;
}

bool readable_before(const char *what, int fd, int other)
{
	struct pollfd p[2] = { { .fd = fd, .events = POLLIN }, { .fd = other, .events = POLLIN } };
	int n = poll(p, 2, limit * 1000);
	if (n < 1)
		print(what, "nothing came");
	return n > 0 && !p[1].revents;
}

static void step_id(void)
{
	struct rdma_cm_id *id;
	if (!channel) {
		channel = rdma_create_event_channel();
		if (!result("create_event_channel", channel ? 0 : -1))
			return;
	}
	if (result("create_id", rdma_create_id(channel, &id, NULL, RDMA_PS_TCP)))
		add_id(id);
}

static void step_sync(void)
{
	struct rdma_cm_id *id;
	if (result("create_id", rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP)))
		add_id(id);
}

static int slot_of(const struct rdma_cm_id *id)
{
	for (int i = 0; i < used; i++)
		if (slots[i].id == id)
			return i;
	return -1;
}

static bool arrived(void)
{
	if (!channel)
		print("no channel", "step left out");
	return channel && readable("event", channel->fd);
}

static void step_event(void)
{
	struct rdma_cm_event *event;
	char text[120];
	int who;
	if (!arrived())
		return;
	if (rdma_get_cm_event(channel, &event)) {
		result("get_cm_event", -1);
		return;
	}
	who = slot_of(event->event == RDMA_CM_EVENT_CONNECT_REQUEST ? event->listen_id : event->id);
	snprintf(text, sizeof(text), "id %d %s status %d", who, rdma_event_str(event->event), event->status);
	print("event", text);
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		add_id(event->id);
	if (strict && event->status)
		exit(1);
	result("ack_cm_event", rdma_ack_cm_event(event));
}

static void step_pending(void)
{
	struct pollfd p = { .fd = channel ? channel->fd : -1, .events = POLLIN };
	print("pending", poll(&p, 1, 0) == 1 ? "yes" : "no");
}

static void step_qp(struct slot *s)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	if (!result("create_qp", rdma_create_qp(s->id, NULL, &attr)))
		return;
	s->buffer = calloc(DEPTH + 1, SIZE);
	if (!s->buffer)
		exit(2);
	s->mr = ibv_reg_mr(s->id->pd, s->buffer, (DEPTH + 1) * SIZE, IBV_ACCESS_LOCAL_WRITE);
	result("reg_mr", s->mr ? 0 : -1);
}

static void step_destroy_qp(struct slot *s)
{
	if (s->mr)
		result("dereg_mr", ibv_dereg_mr(s->mr));
	free(s->buffer);
	rdma_destroy_qp(s->id);
	s->mr = NULL;
	s->buffer = NULL;
}

static void step_destroy(struct slot *s)
{
	struct rdma_cm_id *id = s->id;
	if (id->qp)
		step_destroy_qp(s);
	s->id = NULL;
	result("destroy_id", rdma_destroy_id(id));
}

static void step_connect(struct slot *s, bool accept)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1,
					 .retry_count = 7, .rnr_retry_count = 7 };
	if (!s->id->qp) { /* without a QP any number will do */
		param.qp_num = 0x5000u + (unsigned)(getpid() * 64 + current) % 0x100000u;
	}
	if (accept)
		result("accept", rdma_accept(s->id, &param));
	else
		result("connect", rdma_connect(s->id, &param));
}

static void step_fifo(const char *path, int flags)
{
	char byte = 'x';
	int fd = open(path, flags | O_CLOEXEC);
	ssize_t n = flags == O_RDONLY ? read(fd, &byte, 1) : write(fd, &byte, 1);
	if (fd < 0 || n < 0) {
		result("fifo", -1);
		exit(2);
	}
	close(fd);
}

static void step_addr(struct slot *s, char *where)
{
	struct sockaddr_in in = address(where);
	result("resolve_addr", rdma_resolve_addr(s->id, NULL, (struct sockaddr *)&in, RESOLVE_MS));
}

static void step_bind(struct slot *s, char *where)
{
	struct sockaddr_in in = address(where);
	result("bind_addr", rdma_bind_addr(s->id, (struct sockaddr *)&in));
}

static void step_ack_timeout(struct slot *s, int n)
{
	uint8_t value = (uint8_t)n;
	result("set_option", rdma_set_option(s->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &value, 1));
}

/* Steps that need no id. Returns false for other steps. */
static bool plain_step(const char *step, char *value)
{
	if (!strcmp(step, "id"))
		step_id();
	else if (!strcmp(step, "sync"))
		step_sync();
	else if (!strcmp(step, "use"))
		current = atoi(value);
	else if (!strcmp(step, "event"))
		step_event();
	else if (!strcmp(step, "answer")) {
		if (!last_failed)
			step_event();
	} else if (!strcmp(step, "cut"))
		step_cut();
	else if (!strcmp(step, "arrived"))
		arrived();
	else if (!strcmp(step, "pending"))
		step_pending();
	else if (!strcmp(step, "tell"))
		step_fifo(value, O_WRONLY);
	else if (!strcmp(step, "hear"))
		step_fifo(value, O_RDONLY);
	else if (!strcmp(step, "files"))
		step_files(atoi(value));
	else if (!strcmp(step, "memlock"))
		step_memlock(atoi(value));
	else if (!strcmp(step, "strict"))
		strict = true;
	else if (!strcmp(step, "stop"))
		for (;;)
			pause();
	else
		return false;
	return true;
}

/* Steps on the current id. */
static bool id_step(const char *step, char *value, struct slot *s)
{
	if (!strcmp(step, "bind"))
		step_bind(s, value);
	else if (!strcmp(step, "listen"))
		result("listen", rdma_listen(s->id, atoi(value)));
	else if (!strcmp(step, "addr"))
		step_addr(s, value);
	else if (!strcmp(step, "route"))
		result("resolve_route", rdma_resolve_route(s->id, RESOLVE_MS));
	else if (!strcmp(step, "connect") || !strcmp(step, "accept"))
		step_connect(s, *step == 'a');
	else if (!strcmp(step, "reject"))
		result("reject", rdma_reject(s->id, NULL, 0));
	else if (!strcmp(step, "disconnect"))
		result("disconnect", rdma_disconnect(s->id));
	else if (!strcmp(step, "ack-timeout"))
		step_ack_timeout(s, atoi(value));
	else if (!strcmp(step, "qp"))
		step_qp(s);
	else if (!strcmp(step, "destroy-qp"))
		step_destroy_qp(s);
	else if (!strcmp(step, "destroy"))
		step_destroy(s);
	else
		return false;
	return true;
}

/* Steps on the current id's QP. */
static bool qp_step(const char *step, const char *value)
{
	static const char *const steps[] = { "recv", "got", "send", "flood", "drain", "post", "reap" };
	const unsigned count = sizeof(steps) / sizeof(*steps);
	unsigned which = 0;
	struct slot *s;
	while (which < count && strcmp(step, steps[which]))
		which++;
	if (which == count)
		return false;
	s = slot_with_qp();
	if (!s)
		return true;
	switch (which) {
	case 0: step_recv(s, (unsigned)atoi(value)); break;
	case 1: step_got(s, (unsigned)atoi(value)); break;
	case 2: step_send(s, (unsigned)atoi(value)); break;
	case 3: step_flood(s); break;
	case 4: step_drain(s); break;
	case 5: step_post(s); break;
	default: step_reap(s);
	}
	return true;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	name = argv[1];
	if (getenv("STEPS_LIMIT"))
		limit = atoi(getenv("STEPS_LIMIT"));
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 2; i < argc; i++) {
		char *value = argv[i], *step = strsep(&value, ":");
		struct slot *s;
		if (plain_step(step, value) || qp_step(step, value))
			continue;
		s = slot();
		if (s && !id_step(step, value, s)) {
			fprintf(stderr, "steps: no step %s\n", step);
			return 2;
		}
	}
	print("end", "0");
	return 0;
}
