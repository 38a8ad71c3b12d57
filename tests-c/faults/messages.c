/* Steps that send and receive messages; the receiver checks the contents. */
#include <errno.h>
#include <stdint.h>
#include "steps.h"

/* Byte i of the n-th message. */
static unsigned char pattern(unsigned n, unsigned i)
{
	return (unsigned char)(n * 31 + i);
}

static bool post_recv(struct slot *s, unsigned place)
{
	struct ibv_sge sge = { (uintptr_t)(s->buffer + place * SIZE), SIZE, s->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = place, .sg_list = &sge, .num_sge = 1 }, *bad;
	int error = ibv_post_recv(s->id->qp, &wr, &bad);
	if (error) {
		errno = error;
		result("post_recv", -1);
	}
	return error == 0;
}

void step_recv(struct slot *s, unsigned n)
{
	unsigned i;
	for (i = 0; i < n && i < DEPTH && post_recv(s, i); i++)
		;
	if (i == n)
		print("recv", "posted");
}

/* Waits for the next completion. Returns false on a timeout. */
static bool completion(struct ibv_cq *cq, struct ibv_comp_channel *comp, struct ibv_wc *wc)
{
	struct ibv_cq *which;
	void *context;
	while (ibv_poll_cq(cq, 1, wc) == 0) {
		ibv_req_notify_cq(cq, 0);
		if (ibv_poll_cq(cq, 1, wc))
			return true;
		if (!readable("completion", comp->fd) || ibv_get_cq_event(comp, &which, &context))
			return false;
		ibv_ack_cq_events(which, 1);
	}
	return true;
}

static bool post_send(struct slot *s)
{
	unsigned char *buffer = s->buffer + DEPTH * SIZE;
	struct ibv_sge sge = { (uintptr_t)buffer, SIZE, s->mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1 };
	struct ibv_send_wr *bad;
	for (unsigned i = 0; i < SIZE; i++)
		buffer[i] = pattern(s->sent, i);
	s->sent++;
	return ibv_post_send(s->id->qp, &wr, &bad) == 0;
}

static bool send_one(struct slot *s, struct ibv_wc *wc)
{
	if (!post_send(s)) {
		wc->status = IBV_WC_GENERAL_ERR;
		return true;
	}
	return completion(s->id->send_cq, s->id->send_cq_channel, wc);
}

void step_post(struct slot *s)
{
	print("post", post_send(s) ? "0" : "failed");
}

void step_reap(struct slot *s)
{
	struct ibv_wc wc;
	if (completion(s->id->send_cq, s->id->send_cq_channel, &wc))
		print("reap", wc.status ? "completion with an error" : "done");
}

/* The status of a failed completion depends on which packet arrived last, so it is not printed. */
void step_send(struct slot *s, unsigned n)
{
	struct ibv_wc wc;
	for (unsigned i = 0; i < n; i++) {
		if (!send_one(s, &wc))
			return;
		if (wc.status) {
			print("send", "completion with an error");
			return;
		}
	}
	print("send", "done");
}

void step_got(struct slot *s, unsigned n)
{
	struct ibv_wc wc;
	for (unsigned i = 0; i < n; i++) {
		unsigned char *buffer;
		if (!completion(s->id->recv_cq, s->id->recv_cq_channel, &wc))
			return;
		if (wc.status) {
			print("got", "completion with an error");
			return;
		}
		buffer = s->buffer + wc.wr_id * SIZE;
		for (unsigned j = 0; j < SIZE; j++)
			if (buffer[j] != pattern(s->received, j)) {
				print("got", "wrong data");
				return;
			}
		s->received++;
		if (!post_recv(s, (unsigned)wc.wr_id))
			return;
	}
	print("got", "right data");
}

/* Waits for the next completion of a send. Returns false if an event of the connection manager comes first. */
static bool completion_before_event(struct slot *s, struct ibv_wc *wc)
{
	struct ibv_cq *which;
	void *context;
	while (ibv_poll_cq(s->id->send_cq, 1, wc) == 0) {
		ibv_req_notify_cq(s->id->send_cq, 0);
		if (ibv_poll_cq(s->id->send_cq, 1, wc))
			return true;
		if (!readable_before("completion", s->id->send_cq_channel->fd, s->id->channel->fd) ||
		    ibv_get_cq_event(s->id->send_cq_channel, &which, &context))
			return false;
		ibv_ack_cq_events(which, 1);
	}
	return true;
}

/* The first one differs between devices and runs: soft-RoCE may repeat a message to a destroyed QP until
 * the sending QP is moved to the error state. */
void step_flood(struct slot *s)
{
	struct ibv_wc wc;
	while (post_send(s)) {
		s->under_way = !completion_before_event(s, &wc);
		if (s->under_way || wc.status)
			break;
	}
	print("flood", "ended");
}

void step_drain(struct slot *s)
{
	struct ibv_wc wc;
	if (!s->under_way || completion(s->id->send_cq, s->id->send_cq_channel, &wc))
		print("drain", "done");
	s->under_way = false;
}
