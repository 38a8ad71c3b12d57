/* rdma_notify: asynchronous verbs events handed to the connection manager. */
#include "common.h"

static void all_events(const char *who, struct rdma_cm_id *id)
{
	for (int type = -1; type <= 20; type++) {
		int ret;

		errno = 0;
		ret = rdma_notify(id, (enum ibv_event_type)type);
		obs("%s event %d -> %d %s", who, type, ret, errno_name(ret ? errno : 0));
	}
}

static void unconnected(void)
{
	struct pair pair;

	topic("unconnected");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET)) {
		all_events("client", pair.client);
		all_events("listener", pair.listener);
	}
	pair_close(&pair);
}

static void connected(void)
{
	struct pair pair;

	topic("connected");
	if (pair_connect(&pair, RDMA_PS_TCP, AF_INET)) {
		all_events("client", pair.client);
		all_events("server", pair.server);
		CHECK(!channel_ready(pair.client_channel));
		CHECK(!channel_ready(pair.server_channel));
	}
	pair_close(&pair);
}

/* COMM_EST before the RTU is read makes the server side ESTABLISHED. */
static void early(void)
{
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct pair pair;

	topic("communication established early");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true) &&
	    pair_request(&pair, &param, true) && !CALL(rdma_accept(pair.server, &param))) {
		CALL(rdma_notify(pair.server, IBV_EVENT_COMM_EST));
		take_event("server", pair.server_channel, RDMA_CM_EVENT_ESTABLISHED);
		take_event("client", pair.client_channel, RDMA_CM_EVENT_ESTABLISHED);
		CALL(rdma_notify(pair.server, IBV_EVENT_COMM_EST));
	}
	pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	unconnected();
	connected();
	if (!on_siw())
		early();
	return finish();
}
