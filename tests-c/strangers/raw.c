/* See strangers.h. Every call may fail, because the server may reject an attacker. */
#include "strangers.h"
#include "conn_data.h"

#include <endian.h>
#include <poll.h>

enum { MEMORY = 16384, WORDS = 2048, BUFFER = 4096, STAGE = 12288 };

static struct ibv_qp_init_attr attributes(void)
{
	return (struct ibv_qp_init_attr){
		.cap = { .max_send_wr = RAW_SENDS, .max_recv_wr = RAW_RECEIVES, .max_send_sge = 1,
			 .max_recv_sge = 1, .max_inline_data = 32 },
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
	};
}

static struct rdma_conn_param parameters(const struct conn_data *data)
{
	struct rdma_conn_param param = { .private_data = data, .private_data_len = sizeof(*data),
					 .retry_count = 7, .rnr_retry_count = 7 };

	param.initiator_depth = param.responder_resources = on_siw();
	return param;
}

static bool prepare(struct raw *raw, bool receives, struct conn_data *mine)
{
	struct ibv_qp_init_attr attr = attributes();
	uint64_t start;

	if (!(raw->memory = calloc(1, MEMORY)) || rdma_create_qp(raw->id, NULL, &attr))
		return false;
	raw->mr = ibv_reg_mr(raw->id->pd, raw->memory, MEMORY, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!raw->mr)
		return false;
	for (unsigned i = 0; receives && i < RAW_RECEIVES; i++)
		rdma_post_recv(raw->id, NULL, raw->memory + WORDS + 8 * i, 8, raw->mr);
	start = (uint64_t)(uintptr_t)raw->memory;
	*mine = (struct conn_data){
		.version = 1, .flags = 2 | (htonl(1) == 1), .credits = htons(RAW_RECEIVES / 2), .iomap_size = 4,
		.sgl = { htobe64(start), htonl(raw->mr->rkey), htonl(2) },
		.buffer = { htobe64(start + BUFFER), htonl(raw->mr->rkey), htonl(BUFFER) },
	};
	return true;
}

static bool resolve(struct raw *raw, uint16_t port)
{
	union address to = server_addr(port);

	memset(raw, 0, sizeof(*raw));
	figures->attempts++;
	return !rdma_create_id(NULL, &raw->id, NULL, RDMA_PS_TCP) && !rdma_resolve_addr(raw->id, NULL, &to.sa, 2000) &&
	       !rdma_resolve_route(raw->id, 2000);
}

bool raw_connect(struct raw *raw, uint16_t port, bool receives)
{
	struct conn_data mine, theirs;
	struct rdma_conn_param param;

	if (!resolve(raw, port) || !prepare(raw, receives, &mine))
		return false;
	param = parameters(&mine);
	if (rdma_connect(raw->id, &param) || raw->id->event->param.conn.private_data_len < sizeof(theirs))
		return false;
	memcpy(&theirs, raw->id->event->param.conn.private_data, sizeof(theirs));
	raw->sgl = be64toh(theirs.sgl.addr);
	raw->key = ntohl(theirs.sgl.key);
	raw->ring = be64toh(theirs.buffer.addr);
	raw->ring_length = ntohl(theirs.buffer.length);
	return true;
}

void raw_close(struct raw *raw)
{
	if (!raw->id)
		return;
	/* No rdma_disconnect(): it waits for an event. */
	if (raw->id->qp)
		rdma_destroy_qp(raw->id);
	if (raw->mr)
		ibv_dereg_mr(raw->mr);
	rdma_destroy_id(raw->id);
	free(raw->memory);
	memset(raw, 0, sizeof(*raw));
}

bool raw_request(struct raw *raw, struct rdma_event_channel *channel, uint16_t port)
{
	struct conn_data mine;
	struct rdma_conn_param param;

	/* Resolved as a synchronous id, and then moved to the channel, whose events are never read. */
	if (!resolve(raw, port) || !prepare(raw, true, &mine) || rdma_migrate_id(raw->id, channel))
		return false;
	param = parameters(&mine);
	return !rdma_connect(raw->id, &param);
}

bool raw_reap(struct raw *raw, unsigned left)
{
	struct ibv_wc wc;

	while (raw->posted - raw->completed > left) {
		if (rdma_get_send_comp(raw->id, &wc) != 1 || wc.status)
			return false;
		raw->completed++;
	}
	/* The server's messages are received as well, and their receives posted again. */
	while (ibv_poll_cq(raw->id->recv_cq, 1, &wc) == 1) {
		if (wc.status)
			return false;
		rdma_post_recv(raw->id, NULL, raw->memory + WORDS, 8, raw->mr);
	}
	return true;
}

bool raw_ends(struct raw *raw, int timeout_ms)
{
	struct pollfd ready = { .fd = raw->id->recv_cq_channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *context;

	for (;;) {
		if (ibv_req_notify_cq(raw->id->recv_cq, 0))
			return true;
		while (ibv_poll_cq(raw->id->recv_cq, 1, &wc) == 1)
			if (wc.status)
				return true;
		if (poll(&ready, 1, timeout_ms) != 1 || ibv_get_cq_event(raw->id->recv_cq_channel, &cq, &context))
			return false;
		ibv_ack_cq_events(cq, 1);
	}
}

static bool post(struct raw *raw, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags |= IBV_SEND_SIGNALED;
	if (!raw_reap(raw, RAW_SENDS / 2) || ibv_post_send(raw->id->qp, wr, &bad))
		return false;
	raw->posted++;
	return true;
}

bool raw_write(struct raw *raw, uint64_t addr, uint32_t key, uint32_t len)
{
	struct ibv_sge sge = { (uint64_t)(uintptr_t)raw->memory + STAGE, len, raw->mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = len > 0 };

	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = key;
	return post(raw, &wr);
}

bool raw_message(struct raw *raw, uint32_t op, uint32_t value, uint32_t len)
{
	uint32_t word = op << 29 | (value & 0x1fffffff);
	struct ibv_sge sge = { (uint64_t)(uintptr_t)raw->memory + STAGE, len, raw->mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .sg_list = &sge, .num_sge = len > 0,
				  .imm_data = htonl(word) };

	wr.wr.rdma.remote_addr = raw->ring;
	wr.wr.rdma.rkey = raw->key;
	if (!on_siw())
		return post(raw, &wr);
	if (len && !raw_write(raw, raw->ring, raw->key, len))
		return false;
	sge = (struct ibv_sge){ (uint64_t)(uintptr_t)&word, sizeof(word), 0 };
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1,
				   .send_flags = IBV_SEND_INLINE };
	return post(raw, &wr);
}
