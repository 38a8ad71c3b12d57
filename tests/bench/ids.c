/*
 * Many ids of rdma_cm(7): the time of each call of a connection's life, for one of them.
 *
 * ids server ADDRESS PORT prints "ready" and accepts connections until a client quits.
 * ids client ADDRESS PORT COUNT:CHANNELS:THREADS... quit: each thread has its part of the ids and
 * of the event channels.
 *
 * There are no QPs, whose time is the device's: both ends give numbers of their own choice.
 */
#define _GNU_SOURCE
#include "need.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

/* What a client's request has instead of a QP number when the server is to end. */
#define QUIT 1
/* The server's number for a connection: the client's with this bit. The kernel takes a number that
 * both ends have, or that a connection had a second ago, for one of a stale connection. */
#define SERVER 0x800000
#define NOTHING -1
#define TIMEOUT_MS 5000

struct one {
	struct rdma_cm_id *id;
	struct rdma_event_channel *channel;
	uint32_t qp_num;
	/* The event that ends the step, NOTHING from then on. */
	int awaited;
};

static struct sockaddr_in server_address;

static struct rdma_conn_param parameters(uint32_t qp_num)
{
	return (struct rdma_conn_param){ .qp_num = qp_num, .retry_count = 7, .rnr_retry_count = 7 };
}

static void create(struct one *one)
{
	NEED(!rdma_create_id(one->channel, &one->id, one, RDMA_PS_TCP));
}

static void resolve_addr(struct one *one)
{
	NEED(!rdma_resolve_addr(one->id, NULL, (struct sockaddr *)&server_address, TIMEOUT_MS));
}

static void resolve_route(struct one *one)
{
	NEED(!rdma_resolve_route(one->id, TIMEOUT_MS));
}

static void connect_one(struct one *one)
{
	struct rdma_conn_param param = parameters(one->qp_num);

	NEED(!rdma_connect(one->id, &param));
}

static void disconnect(struct one *one)
{
	NEED(!rdma_disconnect(one->id));
}

static void destroy(struct one *one)
{
	NEED(!rdma_destroy_id(one->id));
}

/* The window is how many ids may be waiting for their events at a time. */
static const struct step {
	const char *name;
	void (*begin)(struct one *);
	int event;
	uint32_t window;
} steps[] = {
	{ "create", create, NOTHING, 1 },
	{ "resolve-addr", resolve_addr, RDMA_CM_EVENT_ADDR_RESOLVED, 1 },
	{ "resolve-route", resolve_route, RDMA_CM_EVENT_ROUTE_RESOLVED, 1 },
	{ "connect", connect_one, RDMA_CM_EVENT_CONNECT_RESPONSE, 64 },
	{ "disconnect", disconnect, RDMA_CM_EVENT_DISCONNECTED, 64 },
	{ "destroy", destroy, NOTHING, 1 },
};
#define STEPS (sizeof(steps) / sizeof(*steps))

/* Reads an event and acknowledges it. */
static void take_event(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;
	struct one *one;
	int kind;

	NEED(!rdma_get_cm_event(channel, &event));
	one = event->id->context;
	kind = event->event;
	/* The kernel has forgotten a disconnected id's number. */
	if (kind != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
		if (kind != one->awaited) {
			fprintf(stderr, "%s (%d)\n", rdma_event_str(event->event), event->status);
			exit(1);
		}
		one->awaited = NOTHING;
	}
	NEED(!rdma_ack_cm_event(event));
	if (kind == RDMA_CM_EVENT_CONNECT_RESPONSE)
		NEED(!rdma_establish(one->id));
}

static void await(const struct one *one)
{
	while (one->awaited != NOTHING)
		take_event(one->channel);
}

struct worker {
	pthread_t thread;
	pthread_barrier_t *together;
	struct one *ones;
	uint32_t count;
	/* When each step began, was over for nine tenths of the ids, and ended. */
	double started[STEPS], nine_tenths[STEPS], ended[STEPS];
};

static void run_step(struct worker *w, size_t number)
{
	const struct step *step = &steps[number];
	uint32_t i;

	pthread_barrier_wait(w->together);
	w->started[number] = now();
	for (i = 0; i < w->count + step->window; i++) {
		if (i >= step->window)
			await(&w->ones[i - step->window]);
		if (i == w->count - w->count / 10 + step->window - 1)
			w->nine_tenths[number] = now();
		if (i < w->count) {
			w->ones[i].awaited = step->event;
			step->begin(&w->ones[i]);
		}
	}
	w->ended[number] = now();
}

static void *work(void *argument)
{
	size_t i;

	for (i = 0; i < STEPS; i++)
		run_step(argument, i);
	return NULL;
}

struct task {
	uint32_t count, channels, threads;
};

/* The last tenth only if there is one thread: of several, each reaches it at another time. */
static void print_times(const struct task *t, const struct worker *workers)
{
	uint32_t i;
	size_t step;

	for (step = 0; step < STEPS; step++) {
		double start = workers[0].started[step], end = workers[0].ended[step];

		for (i = 1; i < t->threads; i++) {
			start = workers[i].started[step] < start ? workers[i].started[step] : start;
			end = workers[i].ended[step] > end ? workers[i].ended[step] : end;
		}
		printf("ids-%s:%u:%u:%u %.2f\n", steps[step].name, t->count, t->channels, t->threads,
		       (end - start) / t->count);
		if (t->threads == 1)
			printf("ids-%s-last:%u:%u:1 %.2f\n", steps[step].name, t->count, t->channels,
			       (end - workers[0].nine_tenths[step]) / (t->count / 10));
	}
	fflush(stdout);
}

static void run_task(const struct task *t)
{
	/* Numbers that no other client has. */
	static uint32_t numbers;
	struct rdma_event_channel **channels = calloc(t->channels, sizeof(*channels));
	struct one *ones = calloc(t->count, sizeof(*ones));
	struct worker *workers = calloc(t->threads, sizeof(*workers));
	uint32_t i, part = t->count / t->threads;
	pthread_barrier_t together;

	NEED(channels && ones && workers);
	if (!numbers)
		numbers = (uint32_t)getpid() * 100003;
	for (i = 0; i < t->channels; i++)
		NEED((channels[i] = rdma_create_event_channel()));
	for (i = 0; i < t->count; i++) {
		ones[i].channel = channels[(uint64_t)i * t->channels / t->count];
		ones[i].qp_num = ++numbers % (SERVER - QUIT - 1) + QUIT + 1;
	}
	NEED(!pthread_barrier_init(&together, NULL, t->threads));
	for (i = 0; i < t->threads; i++) {
		workers[i] = (struct worker){ .together = &together, .ones = ones + i * part, .count = part };
		NEED(!pthread_create(&workers[i].thread, NULL, work, &workers[i]));
	}
	for (i = 0; i < t->threads; i++)
		NEED(!pthread_join(workers[i].thread, NULL));
	print_times(t, workers);
	pthread_barrier_destroy(&together);
	for (i = 0; i < t->channels; i++)
		rdma_destroy_event_channel(channels[i]);
	free(workers);
	free(ones);
	free(channels);
}

static void quit(void)
{
	struct one one = { .channel = rdma_create_event_channel(), .qp_num = QUIT };
	size_t i;

	NEED(one.channel);
	for (i = 0; i < STEPS; i++) {
		one.awaited = steps[i].begin == connect_one ? RDMA_CM_EVENT_REJECTED : steps[i].event;
		if (steps[i].begin == disconnect)
			continue;
		steps[i].begin(&one);
		await(&one);
	}
	rdma_destroy_event_channel(one.channel);
}

static void client(char **words)
{
	struct task t;

	for (; *words; words++) {
		if (!strcmp(*words, "quit")) {
			quit();
			return;
		}
		NEED(sscanf(*words, "%u:%u:%u", &t.count, &t.channels, &t.threads) == 3);
		/* A thread with fewer ids than a window, or a channel of several threads, would be
		 * another program. */
		NEED(t.threads && t.count / t.threads >= 64 && t.channels && t.channels % t.threads == 0);
		NEED(t.count % t.threads == 0 && t.count % t.channels == 0);
		run_task(&t);
	}
}

/* Returns false when the client quits. */
static bool serve_event(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;
	struct rdma_conn_param param;
	struct rdma_cm_id *id;
	uint32_t qp_num;
	int kind;

	NEED(!rdma_get_cm_event(channel, &event));
	id = event->id;
	kind = event->event;
	qp_num = event->param.conn.qp_num;
	NEED(!rdma_ack_cm_event(event));
	if (kind == RDMA_CM_EVENT_CONNECT_REQUEST && qp_num == QUIT) {
		NEED(!rdma_reject(id, NULL, 0));
		NEED(!rdma_destroy_id(id));
		return false;
	}
	if (kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
		param = parameters(qp_num | SERVER);
		NEED(!rdma_accept(id, &param));
	} else if (kind == RDMA_CM_EVENT_DISCONNECTED) {
		NEED(!rdma_disconnect(id));
		NEED(!rdma_destroy_id(id));
	} else {
		NEED(kind == RDMA_CM_EVENT_ESTABLISHED);
	}
	return true;
}

static void server(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener;

	NEED(channel);
	NEED(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(listener, (struct sockaddr *)&server_address));
	NEED(!rdma_listen(listener, 1024));
	puts("ready");
	fflush(stdout);
	while (serve_event(channel))
		;
	NEED(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	NEED(argc >= 4);
	server_address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(atoi(argv[3])) };
	NEED(inet_pton(AF_INET, argv[2], &server_address.sin_addr) == 1);
	if (!strcmp(argv[1], "server"))
		server();
	else
		client(argv + 4);
	return 0;
}
