/* The inline helpers of rdma_verbs.h: memory, send, receive, read, write, completions. */
#include "common.h"

#include <sched.h>

enum { SIZE = 9000 };
static unsigned char client_buffer[SIZE], server_buffer[SIZE];
static struct ibv_mr *client_mr, *server_mr;
static struct pair pair;

static void fill(unsigned char *buffer, unsigned seed)
{
	for (unsigned i = 0; i < SIZE; i++)
		buffer[i] = (unsigned char)(i * 7 + seed + i / 251);
}

static void completion(const char *who, bool send, struct rdma_cm_id *id)
{
	struct ibv_wc wc;
	int ret;

	memset(&wc, 0, sizeof(wc));
	errno = 0;
	ret = send ? rdma_get_send_comp(id, &wc) : rdma_get_recv_comp(id, &wc);
	show_wc(who, ret, &wc);
	obs("%s: wr_id %llx", who, (unsigned long long)wc.wr_id);
}

static bool connect_all(const char *name)
{
	topic("%s", name);
	if (!pair_connect(&pair, RDMA_PS_TCP, AF_INET))
		return false;
	client_mr = ibv_reg_mr(pair.client->pd, client_buffer, SIZE,
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
			       IBV_ACCESS_REMOTE_WRITE);
	server_mr = ibv_reg_mr(pair.server->pd, server_buffer, SIZE,
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
			       IBV_ACCESS_REMOTE_WRITE);
	fill(client_buffer, 1);
	memset(server_buffer, 0, SIZE);
	return client_mr && server_mr;
}

static void close_all(void)
{
	CALL(rdma_dereg_mr(client_mr));
	CALL(rdma_dereg_mr(server_mr));
	pair_close(&pair);
}

static void registration(void)
{
	struct ibv_mr *mr;

	topic("registration");
	if (!pair_connect(&pair, RDMA_PS_TCP, AF_INET))
		return;
	mr = CALL_PTR(rdma_reg_msgs(pair.client, client_buffer, SIZE));
	CHECK(mr && mr->pd == pair.client->pd && mr->length == SIZE);
	CALL(rdma_dereg_mr(mr));
	mr = CALL_PTR(rdma_reg_read(pair.client, client_buffer, SIZE));
	CALL(rdma_dereg_mr(mr));
	mr = CALL_PTR(rdma_reg_write(pair.client, client_buffer, SIZE));
	CALL(rdma_dereg_mr(mr));
	CALL_PTR(rdma_reg_msgs(pair.client, NULL, (size_t)1 << 40));
	pair_close(&pair);
}

static void send_receive(size_t length)
{
	if (!connect_all("send"))
		return;
	topic("send %zu", length);
	CALL(rdma_post_recv(pair.server, (void *)0x11, server_buffer, SIZE, server_mr));
	CALL(rdma_post_send(pair.client, (void *)0x22, client_buffer, length, client_mr,
			    IBV_SEND_SIGNALED));
	completion("client", true, pair.client);
	completion("server", false, pair.server);
	CHECK(memcmp(client_buffer, server_buffer, length) == 0);
	CHECK(server_buffer[SIZE - 1] == 0 || length == SIZE);
	close_all();
}

/* On iWARP a write completes when TCP has the data, which may be before it is in the peer's memory. */
static void await_arrival(const void *place, size_t length)
{
	while (on_siw() && memcmp(client_buffer, place, length))
		pause_briefly();
}

static void read_and_write(void)
{
	if (!connect_all("read and write"))
		return;
	CALL(rdma_post_write(pair.client, (void *)0x33, client_buffer, SIZE, client_mr,
			     IBV_SEND_SIGNALED, (uintptr_t)server_buffer, server_mr->rkey));
	completion("client", true, pair.client);
	await_arrival(server_buffer, SIZE);
	CHECK(memcmp(client_buffer, server_buffer, SIZE) == 0);
	fill(server_buffer, 99);
	CALL(rdma_post_read(pair.client, (void *)0x44, client_buffer, SIZE, client_mr,
			    IBV_SEND_SIGNALED, (uintptr_t)server_buffer, server_mr->rkey));
	completion("client", true, pair.client);
	CHECK(memcmp(client_buffer, server_buffer, SIZE) == 0);
	close_all();
}

static void vectors(void)
{
	struct ibv_sge sge;

	if (!connect_all("vectors"))
		return;
	sge = (struct ibv_sge){ (uintptr_t)server_buffer, 500, server_mr->lkey };
	CALL(rdma_post_recvv(pair.server, NULL, &sge, 1));
	sge = (struct ibv_sge){ (uintptr_t)client_buffer, 500, client_mr->lkey };
	CALL(rdma_post_sendv(pair.client, NULL, &sge, 1, IBV_SEND_SIGNALED));
	completion("client", true, pair.client);
	completion("server", false, pair.server);
	CALL(rdma_post_writev(pair.client, NULL, &sge, 1, IBV_SEND_SIGNALED,
			      (uintptr_t)server_buffer + 1000, server_mr->rkey));
	completion("client", true, pair.client);
	await_arrival(server_buffer + 1000, 500);
	CHECK(memcmp(client_buffer, server_buffer + 1000, 500) == 0);
	CALL(rdma_post_readv(pair.client, NULL, &sge, 1, IBV_SEND_SIGNALED,
			     (uintptr_t)server_buffer + 2000, server_mr->rkey));
	completion("client", true, pair.client);
	CHECK(client_buffer[0] == 0 && client_buffer[499] == 0);
	close_all();
}

/* More receives than the queue holds are refused. */
static void overflow(void)
{
	int posted = 0;

	if (!connect_all("overflow"))
		return;
	while (posted < 100 && !rdma_post_recv(pair.server, NULL, server_buffer, 8, server_mr))
		posted++;
	obs("posted %s", posted >= 4 && posted < 100 ? "some" : "wrong");
	CALL(rdma_post_recv(pair.server, NULL, server_buffer, 8, server_mr));
	close_all();
}

/* A wrong key ends the connection with an error completion. */
static void wrong_key(void)
{
	if (!connect_all("wrong remote key"))
		return;
	CALL(rdma_post_write(pair.client, (void *)0x55, client_buffer, 8, client_mr,
			     IBV_SEND_SIGNALED, (uintptr_t)server_buffer, 0xdeadbe));
	if (!on_siw())
		completion("client", true, pair.client);
	CHECK(server_buffer[0] == 0);
	close_all();
}

static void inline_data(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_conn_param param = conn_param(NULL, 0);
	char text[16] = "inline";

	topic("inline");
	attr.cap.max_inline_data = sizeof(text);
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, false) &&
	    !CALL(rdma_create_qp(pair.client, NULL, &attr)) &&
	    pair_request(&pair, &param, true) && !CALL(rdma_accept(pair.server, &param)) &&
	    quiet_event(pair.client_channel, RDMA_CM_EVENT_ESTABLISHED) &&
	    quiet_event(pair.server_channel, RDMA_CM_EVENT_ESTABLISHED)) {
		server_mr = rdma_reg_msgs(pair.server, server_buffer, SIZE);
		memset(server_buffer, 0, SIZE);
		CALL(rdma_post_recv(pair.server, NULL, server_buffer, SIZE, server_mr));
		CALL(rdma_post_send(pair.client, NULL, text, sizeof(text), NULL,
				    IBV_SEND_SIGNALED | IBV_SEND_INLINE));
		completion("server", false, pair.server);
		CHECK(memcmp(text, server_buffer, sizeof(text)) == 0);
		CALL(rdma_dereg_mr(server_mr));
	}
	pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	registration();
	send_receive(1);
	send_receive(1024);
	send_receive(SIZE);
	read_and_write();
	vectors();
	overflow();
	wrong_key();
	inline_data();
	topic("rdma_seterrno");
	CALL(rdma_seterrno(0));
	CALL(rdma_seterrno(ENOMEM));
	return finish();
}
