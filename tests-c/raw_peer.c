/* See raw_peer.h. */
#include "raw_peer.h"

_Alignas(4096) uint8_t peer_memory[PEER_MEMORY];

static struct ibv_qp_init_attr peer_attr(void)
{
	return (struct ibv_qp_init_attr){
		.cap = { .max_send_wr = PEER_SENDS, .max_recv_wr = PEER_RECEIVES, .max_send_sge = 1,
			 .max_recv_sge = 1, .max_inline_data = 32 },
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
	};
}

/* siw's provider takes a queue that begins at page 144 for invalid (docs/compatibility.md): here this CQ has that page. */
static void cover_page(struct ibv_context *context)
{
	enum { ENTRIES = 32768 };
	static struct ibv_cq *cover;

	if (on_siw() && !cover)
		EXPECT((cover = ibv_create_cq(context, ENTRIES, NULL, NULL, 0)) != NULL);
}

void peer_prepare(struct peer *peer, bool receives)
{
	struct ibv_qp_init_attr attr = peer_attr();
	uint64_t start = (uint64_t)(uintptr_t)peer_memory;

	cover_page(peer->id->verbs);
	EXPECT(!rdma_create_qp(peer->id, NULL, &attr));
	memset(peer_memory, 0, sizeof(peer_memory));
	peer->mr = ibv_reg_mr(peer->id->pd, peer_memory, sizeof(peer_memory),
			      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	EXPECT(peer->mr != NULL);
	for (unsigned i = 0; receives && i < PEER_RECEIVES; i++)
		EXPECT(!rdma_post_recv(peer->id, NULL, peer_memory + 2048 + 8 * i, 8, peer->mr));
	peer->mine = (struct conn_data){
		.version = 1, .flags = 2 | (htonl(1) == 1), .credits = htons(PEER_CREDITS),
		.iomap_size = 4,
		.sgl = { htobe64(start), htonl(peer->mr->rkey), htonl(2) },
		.buffer = { htobe64(start + 4096), htonl(peer->mr->rkey), htonl(PEER_BUFFER) },
	};
}

struct rdma_conn_param peer_param(const void *data, uint8_t len)
{
	struct rdma_conn_param param = { .private_data = data, .private_data_len = len,
					 .retry_count = 7, .rnr_retry_count = 7 };

	param.initiator_depth = param.responder_resources = on_siw();
	return param;
}

void set_sizes(int fd, int receives, int iomap)
{
	/* With a receive buffer this small, no data makes the victim advertise another one before its program reads. */
	int buffer = 4096;

	if (receives) {
		EXPECT(!rsetsockopt(fd, SOL_RDMA, RDMA_RQSIZE, &receives, sizeof(receives)));
		EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer)));
	}
	if (iomap)
		EXPECT(!rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &iomap, sizeof(iomap)));
}

int listen_on(union address *address, int backlog, int receives)
{
	socklen_t len = sizeof(*address);
	int fd;

	*address = local_addr(AF_INET, 0);
	EXPECT((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	set_sizes(fd, receives, 8);
	EXPECT(!rbind(fd, &address->sa, sizeof(address->in)) && !rlisten(fd, backlog));
	EXPECT(!rgetsockname(fd, &address->sa, &len));
	return fd;
}

struct rdma_cm_id *peer_resolved(union address *to, struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = NULL;

	EXPECT(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	EXPECT(!rdma_resolve_addr(id, NULL, &to->sa, 2000));
	EXPECT(!channel || quiet_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	EXPECT(!rdma_resolve_route(id, 2000));
	EXPECT(!channel || quiet_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
	return id;
}

void peer_connects(struct peer *peer, bool receives)
{
	union address address;
	struct rdma_conn_param param;

	peer->victim_listener = listen_on(&address, 4, 16);
	peer->id = peer_resolved(&address, NULL);
	peer_prepare(peer, receives);
	param = peer_param(&peer->mine, sizeof(peer->mine));
	EXPECT(!rdma_connect(peer->id, &param));
	memcpy(&peer->theirs, peer->id->event->param.conn.private_data, sizeof(peer->theirs));
	EXPECT((peer->victim = raccept(peer->victim_listener, NULL, NULL)) >= 0);
}

void peer_is_asked(struct peer *peer)
{
	union address address = local_addr(AF_INET, 0);

	EXPECT(!rdma_create_id(NULL, &peer->listener, NULL, RDMA_PS_TCP));
	EXPECT(!rdma_bind_addr(peer->listener, &address.sa) && !rdma_listen(peer->listener, 4));
	address.in.sin_port = rdma_get_src_port(peer->listener);
	EXPECT((peer->victim = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	set_sizes(peer->victim, 16, 8);
	EXPECT(!rfcntl(peer->victim, F_SETFL, O_NONBLOCK));
	EXPECT_ERROR(rconnect(peer->victim, &address.sa, sizeof(address.in)), EINPROGRESS);
	EXPECT(!rdma_get_request(peer->listener, &peer->id));
	memcpy(&peer->theirs, peer->id->event->param.conn.private_data, sizeof(peer->theirs));
}

int poll_one(int fd, short events)
{
	struct pollfd entry = { .fd = fd, .events = events };

	EXPECT(rpoll(&entry, 1, -1) == 1);
	return entry.revents;
}

void peer_accepts(struct peer *peer, bool receives)
{
	struct rdma_conn_param param;

	peer_is_asked(peer);
	peer_prepare(peer, receives);
	param = peer_param(&peer->mine, sizeof(peer->mine));
	EXPECT(!rdma_accept(peer->id, &param));
	EXPECT(poll_one(peer->victim, POLLOUT) == POLLOUT);
	EXPECT(!rfcntl(peer->victim, F_SETFL, 0));
}

void peer_has(size_t place, const char *bytes, size_t len)
{
	/* Prevents the compiler from caching the value. */
	while (memcmp(peer_memory + place, bytes, len))
		pause_briefly();
}

int fds_before(void)
{
	union address address;
	/* The library's threads have two descriptors each: a datagram socket starts one, a listener the other. */
	int datagrams = rsocket(AF_INET, SOCK_DGRAM, 0), fd = listen_on(&address, 1, 16);
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	int before;

	EXPECT(datagrams >= 0 && !rclose(datagrams));
	before = open_fds();
	/* A thread keeps the descriptor that its first poll sleeps on. A short time may be over before it sleeps. */
	for (int time = 1; open_fds() == before && time < 1000; time *= 2)
		EXPECT(rpoll(&entry, 1, time) == 0);
	EXPECT(!rclose(fd));
	return open_fds();
}

void fds_come_back(int before)
{
	await_fds(before);
}

void peer_close(struct peer *peer)
{
	if (peer->victim)
		EXPECT(!rclose(peer->victim));
	if (peer->victim_listener)
		EXPECT(!rclose(peer->victim_listener));
	/* Without rdma_disconnect(), which waits for an event that siw does not always have. */
	if (peer->id) {
		rdma_destroy_qp(peer->id);
		if (peer->mr)
			ibv_dereg_mr(peer->mr);
		rdma_destroy_id(peer->id);
	}
	if (peer->listener)
		rdma_destroy_id(peer->listener);
	memset(peer, 0, sizeof(*peer));
}

/* ---- messages ------------------------------------------------------------------------------ */

bool peer_wait(struct peer *peer, unsigned left)
{
	struct ibv_wc wc;

	while (peer->posted - peer->completed > left) {
		if (rdma_get_send_comp(peer->id, &wc) != 1 || wc.status)
			return false;
		peer->completed++;
	}
	return true;
}

bool peer_is_done(struct peer *peer)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(peer->id->send_cq, 1, &wc) == 1) {
		EXPECT(!wc.status);
		peer->completed++;
	}
	return peer->posted == peer->completed;
}

bool peer_post(struct peer *peer, enum ibv_wr_opcode opcode, uint32_t word,
			     const void *bytes, uint32_t len, uint64_t addr, uint32_t key)
{
	struct ibv_sge sge = { (uint64_t)(uintptr_t)bytes, len, peer->mr->lkey };
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &sge, .num_sge = len > 0,
				  .imm_data = htonl(word),
				  .send_flags = len && len <= 32 ? IBV_SEND_INLINE : 0 }, *bad;

	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = key;
	if (!peer_wait(peer, PEER_SENDS / 2) || ibv_post_send(peer->id->qp, &wr, &bad))
		return false;
	peer->posted++;
	return true;
}

bool peer_say(struct peer *peer, uint32_t word, const void *bytes, uint32_t len,
			    uint64_t addr, uint32_t key)
{
	if (!on_siw())
		return peer_post(peer, IBV_WR_RDMA_WRITE_WITH_IMM, word, bytes, len, addr, key);
	return (!len || peer_post(peer, IBV_WR_RDMA_WRITE, 0, bytes, len, addr, key)) &&
	       peer_post(peer, IBV_WR_SEND, 0, &word, sizeof(word), 0, 0);
}

bool peer_word(struct peer *peer, uint32_t word)
{
	return peer_say(peer, word, NULL, 0, 0, 0);
}

uint32_t peer_next_word(struct peer *peer)
{
	unsigned slot = peer->received++;
	struct ibv_wc wc;
	uint32_t word;

	EXPECT(rdma_get_recv_comp(peer->id, &wc) == 1 && !wc.status && slot < PEER_RECEIVES);
	memcpy(&word, peer_memory + 2048 + 8 * slot, sizeof(word));
	return on_siw() ? word : ntohl(wc.imm_data);
}

bool peer_data(struct peer *peer, uint32_t place, const char *text)
{
	uint32_t len = (uint32_t)strlen(text);

	return peer_say(peer, WORD(DATA, len), text, len, be64toh(peer->theirs.buffer.addr) + place,
			ntohl(peer->theirs.buffer.key));
}

bool peer_announce(struct peer *peer, uint16_t number, unsigned slot, uint64_t addr,
				 uint32_t key, uint32_t length)
{
	struct region entry = { addr, key, length };

	return peer_say(peer, WORD(GRANT, number), &entry, sizeof(entry),
			be64toh(peer->theirs.sgl.addr) + 16 * slot, ntohl(peer->theirs.sgl.key));
}

bool peer_map(struct peer *peer, uint32_t index, uint64_t offset, uint64_t addr,
			    uint32_t key, uint32_t length)
{
	struct { uint64_t offset; struct region region; } entry = { offset, { addr, key, length } };

	return peer_say(peer, WORD(IOMAP, index), &entry, sizeof(entry),
			be64toh(peer->theirs.sgl.addr) + 32 + 24 * index, ntohl(peer->theirs.sgl.key));
}

/* ---- the connection that must not be affected ---------------------------------------------------- */

static struct {
	int listener, client, server;
	pthread_t threads[2];
	unsigned long rounds;
	bool stop;
} good;

static bool good_whole(int fd, uint8_t *bytes, size_t len)
{
	return rrecv(fd, bytes, len, MSG_WAITALL) == (ssize_t)len;
}

static void *good_serve(void *unused)
{
	uint8_t bytes[3000];

	while (good_whole(good.server, bytes, sizeof(bytes)))
		EXPECT(rsend(good.server, bytes, sizeof(bytes), 0) == sizeof(bytes));
	return unused;
}

static void *good_ask(void *unused)
{
	uint8_t bytes[3000], back[3000];

	for (unsigned long round = 0; !__atomic_load_n(&good.stop, __ATOMIC_SEQ_CST); round++) {
		for (size_t i = 0; i < sizeof(bytes); i++)
			bytes[i] = (uint8_t)(i * 7 + round);
		EXPECT(rsend(good.client, bytes, sizeof(bytes), 0) == sizeof(bytes));
		EXPECT(good_whole(good.client, back, sizeof(back)));
		EXPECT(!memcmp(bytes, back, sizeof(bytes)));
		__atomic_add_fetch(&good.rounds, 1, __ATOMIC_SEQ_CST);
	}
	return unused;
}

void good_start(void)
{
	union address address;

	good.listener = listen_on(&address, 4, 0);
	EXPECT((good.client = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	EXPECT(!rconnect(good.client, &address.sa, sizeof(address.in)));
	EXPECT((good.server = raccept(good.listener, NULL, NULL)) >= 0);
	EXPECT(!pthread_create(&good.threads[0], NULL, good_serve, NULL));
	EXPECT(!pthread_create(&good.threads[1], NULL, good_ask, NULL));
}

void good_goes_on(void)
{
	unsigned long now = __atomic_load_n(&good.rounds, __ATOMIC_SEQ_CST);

	while (__atomic_load_n(&good.rounds, __ATOMIC_SEQ_CST) < now + 2)
		pause_briefly();
}

void good_stop(void)
{
	good_goes_on();
	__atomic_store_n(&good.stop, true, __ATOMIC_SEQ_CST);
	EXPECT(!pthread_join(good.threads[1], NULL));
	EXPECT(!rshutdown(good.client, SHUT_RDWR));
	EXPECT(!pthread_join(good.threads[0], NULL));
	EXPECT(!rclose(good.client) && !rclose(good.server) && !rclose(good.listener));
}
