/*
 * The device's speed without rsockets: verbs on a connection of the RDMA CM.
 *
 *   raw server ADDRESS PORT          prints `ready`, serves until the task quit
 *   raw client ADDRESS PORT TASK...  TASK is pingpong|write|sends|chained|quit:SIZE:COUNT[:QPS]
 *
 * Ends sleep on completion events, like blocking rsockets. Pingpong is half of a round trip, with
 * sends; write keeps WINDOW requests outstanding on each QP, and a send follows the last one;
 * sends does the same with sends, for each of which the server sleeps, like the reader of a stream: a
 * message at a time, from one QP after the other. Chained posts CHAIN sends in one call, of which the last one
 * completes. Prints WHAT:SIZE[:QPS] MICROSECONDS.
 */
#define _GNU_SOURCE
#include "need.h"
#include <stdbool.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

enum { PINGPONG, WRITE, SENDS, CHAINED, QUIT, WINDOW = 4, INLINE = 64, CHAIN = 16 };
static const char *const whats[] = { "pingpong", "write", "sends", "chained", "quit" };

struct task {
	uint32_t what, size, count, qps;
};

/* The private data of each end. */
struct hello {
	struct task task;
	uint64_t address;
	uint32_t key;
};

struct end {
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	char *buffer;
	struct hello peer;
	/* Outstanding sends; received messages that receive_one() has not returned. */
	unsigned int sending, received;
};

/* Whether the server receives every message. */
static bool hears_all(const struct task *t)
{
	return t->what == SENDS || t->what == CHAINED;
}

static void make(struct end *e, struct rdma_cm_id *id, const struct task *t, int client)
{
	/* The server posts all receives in advance. */
	uint32_t i, receives = 4 + (hears_all(t) && !client ? t->count : 0);
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = WINDOW * CHAIN + 4, .max_recv_wr = receives, .max_send_sge = 1,
			 .max_recv_sge = 1, .max_inline_data = INLINE },
		.qp_type = IBV_QPT_RC, .sq_sig_all = t->what != CHAINED,
	};

	e->id = id;
	e->buffer = calloc(1, t->size);
	NEED(e->buffer && !rdma_create_qp(id, NULL, &attr));
	e->mr = ibv_reg_mr(id->pd, e->buffer, t->size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	NEED(e->mr);
	for (i = 0; i < receives; i++)
		NEED(!rdma_post_recv(id, NULL, e->buffer, t->size, e->mr));
}

static struct rdma_conn_param with(struct hello *h, const struct end *e, const struct task *t)
{
	*h = (struct hello){ .task = *t, .address = (uintptr_t)e->buffer, .key = e->mr->rkey };
	return (struct rdma_conn_param){ .private_data = h, .private_data_len = sizeof(*h),
					 .initiator_depth = 1, .responder_resources = 1,
					 .retry_count = 7, .rnr_retry_count = 7 };
}

/* Returns one completion of a CQ, sleeping until there is one. */
static struct ibv_wc completion(struct ibv_cq *cq, struct ibv_comp_channel *channel)
{
	struct ibv_wc wc;
	void *context;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, &wc))) {
		NEED(!ibv_req_notify_cq(cq, 0));
		n = ibv_poll_cq(cq, 1, &wc);
		if (n)
			break;
		NEED(!ibv_get_cq_event(channel, &cq, &context));
		ibv_ack_cq_events(cq, 1);
	}
	NEED(n == 1 && wc.status == IBV_WC_SUCCESS);
	return wc;
}

static void sent(struct end *e)
{
	completion(e->id->send_cq, e->id->send_cq_channel);
	e->sending--;
}

/* Waits until one more request may be outstanding. */
static void begin_one(struct end *e)
{
	while (e->sending >= WINDOW)
		sent(e);
	e->sending++;
}

static void send_one(struct end *e, uint32_t size)
{
	begin_one(e);
	NEED(!rdma_post_send(e->id, NULL, e->buffer, size, e->mr, IBV_SEND_SIGNALED | (size <= INLINE ? IBV_SEND_INLINE : 0)));
}

static void send_chain(struct end *e, uint32_t size, uint32_t count)
{
	struct ibv_sge sge = { .addr = (uintptr_t)e->buffer, .length = size, .lkey = e->mr->lkey };
	struct ibv_send_wr wr[CHAIN] = { 0 }, *bad;

	begin_one(e);
	for (uint32_t i = 0; i < count; i++)
		wr[i] = (struct ibv_send_wr){ .next = i + 1 < count ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1,
					      .opcode = IBV_WR_SEND,
					      .send_flags = (size <= INLINE ? IBV_SEND_INLINE : 0) |
							    (i + 1 < count ? 0 : IBV_SEND_SIGNALED) };
	NEED(!ibv_post_send(e->id->qp, wr, &bad));
}

static void receive_one(struct end *e, uint32_t size)
{
	completion(e->id->recv_cq, e->id->recv_cq_channel);
	NEED(!rdma_post_recv(e->id, NULL, e->buffer, size, e->mr));
}

static void write_one(struct end *e, uint32_t size)
{
	begin_one(e);
	NEED(!rdma_post_write(e->id, NULL, e->buffer, size, e->mr, 0, e->peer.address, e->peer.key));
}

/* One write or send on each QP in turn, or a chain. */
static void write_all(struct end *ends, const struct task *t)
{
	uint32_t i, q;

	if (t->what == CHAINED) {
		for (i = 0; i < t->count; i += CHAIN)
			for (q = 0; q < t->qps; q++)
				send_chain(&ends[q], t->size, t->count - i < CHAIN ? t->count - i : CHAIN);
		return;
	}
	for (i = 0; i < t->count; i++) {
		for (q = 0; q < t->qps; q++)
			(t->what == SENDS ? send_one : write_one)(&ends[q], t->size);
	}
}

static void hear_all(struct end *ends, const struct task *t)
{
	uint32_t i, q;

	for (i = 0; i < t->count; i++) {
		for (q = 0; q < t->qps; q++)
			completion(ends[q].id->recv_cq, ends[q].id->recv_cq_channel);
	}
}

static double run(struct end *ends, const struct task *t, int client)
{
	double start = now();
	uint32_t i, q;

	if (t->what == PINGPONG) {
		for (i = 0; i < t->count; i++) {
			if (client)
				send_one(&ends[0], t->size);
			receive_one(&ends[0], t->size);
			if (!client)
				send_one(&ends[0], t->size);
		}
		start = (now() - start) / t->count / 2;
	} else {
		if (client)
			write_all(ends, t);
		else if (hears_all(t))
			hear_all(ends, t);
		/* A send arrives after the writes before it; the answer confirms that. */
		for (q = 0; client && q < t->qps; q++)
			send_one(&ends[q], 1);
		for (q = 0; q < t->qps; q++) {
			receive_one(&ends[q], t->size);
			if (!client)
				send_one(&ends[q], 1);
		}
		start = (now() - start) / t->count / t->qps;
	}
	for (q = 0; q < t->qps; q++)
		while (ends[q].sending)
			sent(&ends[q]);
	return start;
}

static void close_end(struct end *e)
{
	rdma_disconnect(e->id);
	rdma_destroy_qp(e->id);
	ibv_dereg_mr(e->mr);
	rdma_destroy_id(e->id);
	free(e->buffer);
}

static void hear(struct end *e, const struct rdma_cm_event *event)
{
	NEED(event->param.conn.private_data_len >= sizeof(e->peer));
	memcpy(&e->peer, event->param.conn.private_data, sizeof(e->peer));
}

static void client_end(struct end *e, const char *address, const char *port, const struct task *t)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;
	struct rdma_conn_param param;
	struct rdma_cm_id *id;
	struct hello hello;

	NEED(!rdma_getaddrinfo(address, port, &hints, &found));
	NEED(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(id, NULL, found->ai_dst_addr, 2000));
	NEED(!rdma_resolve_route(id, 2000));
	make(e, id, t, 1);
	param = with(&hello, e, t);
	NEED(!rdma_connect(id, &param));
	hear(e, id->event);
	rdma_freeaddrinfo(found);
}

static void server_end(struct end *e, struct rdma_cm_id *listener, struct task *t)
{
	struct rdma_conn_param param;
	struct rdma_cm_id *id;
	struct hello hello;

	NEED(!rdma_get_request(listener, &id));
	hear(e, id->event);
	*t = e->peer.task;
	make(e, id, t, 0);
	param = with(&hello, e, t);
	NEED(!rdma_accept(id, &param));
}

enum { MOST = 64 };

static void serve(const char *address, const char *port)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = RAI_PASSIVE }, *found;
	struct end ends[MOST] = { 0 };
	struct rdma_cm_id *listener;
	struct task t;
	uint32_t q;

	NEED(!rdma_getaddrinfo(address, port, &hints, &found));
	NEED(!rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(listener, found->ai_src_addr) && !rdma_listen(listener, MOST));
	rdma_freeaddrinfo(found);
	puts("ready");
	fflush(stdout);
	do {
		memset(ends, 0, sizeof(ends));
		server_end(&ends[0], listener, &t);
		for (q = 1; q < t.qps; q++)
			server_end(&ends[q], listener, &t);
		if (t.what != QUIT)
			run(ends, &t, 0);
		for (q = 0; q < t.qps; q++)
			close_end(&ends[q]);
	} while (t.what != QUIT);
	rdma_destroy_id(listener);
}

static void request(const char *address, const char *port, const char *text)
{
	struct task t = { .size = 1, .count = 1, .qps = 1 };
	struct end ends[MOST] = { 0 };
	char what[16];
	double result;
	uint32_t q;

	NEED(sscanf(text, "%15[^:]:%u:%u:%u", what, &t.size, &t.count, &t.qps) >= 1);
	NEED(t.size && t.count && t.qps && t.qps <= MOST);
	while (t.what < QUIT && strcmp(what, whats[t.what]))
		t.what++;
	for (q = 0; q < t.qps; q++)
		client_end(&ends[q], address, port, &t);
	if (t.what != QUIT) {
		result = run(ends, &t, 1);
		printf("%s:%u", whats[t.what], t.size);
		if (t.qps > 1)
			printf(":%u", t.qps);
		printf(" %.3f\n", result);
		fflush(stdout);
	}
	for (q = 0; q < t.qps; q++)
		close_end(&ends[q]);
}

int main(int argc, char **argv)
{
	int i;

	if (argc < 4) {
		fprintf(stderr, "usage: raw server|client ADDRESS PORT [TASK...]\n");
		return 2;
	}
	if (!strcmp(argv[1], "server"))
		serve(argv[2], argv[3]);
	for (i = 4; i < argc; i++)
		request(argv[2], argv[3], argv[i]);
	return 0;
}
