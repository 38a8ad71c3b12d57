/* Messages for which the peer has no receive: the sender's QP tries as often as rnr_retry_count says, 7 without end. */
#include "common.h"

static char text[] = "hello", buffer[16];

static bool connect_with(struct pair *pair, uint8_t retries)
{
	struct rdma_conn_param param = conn_param(NULL, 0);

	topic("rnr_retry_count %u", retries);
	param.rnr_retry_count = retries;
	return pair_open(pair, RDMA_PS_TCP, AF_INET) && pair_resolve(pair, true) && pair_request(pair, &param, true) &&
	       SETUP(!rdma_accept(pair->server, &param)) &&
	       quiet_event(pair->client_channel, RDMA_CM_EVENT_ESTABLISHED) &&
	       quiet_event(pair->server_channel, RDMA_CM_EVENT_ESTABLISHED);
}

static void send_with(uint8_t retries, bool receive_later)
{
	struct ibv_mr *own, *peers;
	struct pair pair;
	struct ibv_wc wc;
	int got;

	if (!connect_with(&pair, retries))
		return;
	own = rdma_reg_msgs(pair.client, text, sizeof(text));
	peers = rdma_reg_msgs(pair.server, buffer, sizeof(buffer));
	if (!SETUP(own && peers))
		return;
	CALL(rdma_post_send(pair.client, NULL, text, sizeof(text), own, IBV_SEND_SIGNALED));
	if (receive_later)
		CALL(rdma_post_recv(pair.server, NULL, buffer, sizeof(buffer), peers));
	memset(&wc, 0, sizeof(wc));
	errno = 0;
	got = rdma_get_send_comp(pair.client, &wc);
	show_wc("client", got, &wc);
	obs("received \"%s\"", buffer);
	CALL(rdma_dereg_mr(own));
	CALL(rdma_dereg_mr(peers));
	pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	send_with(0, false);
	send_with(1, false);
	send_with(7, true);
	return finish();
}
