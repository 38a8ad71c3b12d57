/* fork before the first use of the library, and after it. */
#include "common.h"

static void whole_connection(void *argument)
{
	struct pair pair;

	(void)argument;
	topic("child");
	CHECK(pair_connect(&pair, RDMA_PS_TCP, AF_INET));
	pair_close(&pair);
}

static void list_devices(void *argument)
{
	int count = 0;
	struct ibv_context **list = rdma_get_devices(&count);

	(void)argument;
	topic("child");
	obs("devices %d", count);
	if (list)
		rdma_free_devices(list);
}

static void child_exits(void *argument)
{
	(void)argument;
}

int main(int argc, char **argv)
{
	struct pair pair;

	start(argc, argv);
	topic("fork before first use");
	in_child("connection", whole_connection, NULL);
	topic("fork before first use");
	in_child("devices", list_devices, NULL);

	topic("fork after use, child begins anew");
	whole_connection(NULL);
	topic("fork after use, child begins anew");
	in_child("connection", whole_connection, NULL);
	topic("fork after use, child begins anew");
	in_child("devices", list_devices, NULL);

	topic("child exits while the parent is connected");
	if (pair_connect(&pair, RDMA_PS_TCP, AF_INET)) {
		in_child("nothing", child_exits, NULL);
		CHECK(!channel_ready(pair.client_channel));
		CHECK(!channel_ready(pair.server_channel));
		CALL(rdma_disconnect(pair.client));
		take_event("server", pair.server_channel, RDMA_CM_EVENT_DISCONNECTED);
		CALL(rdma_disconnect(pair.server));
		take_event("client", pair.client_channel, RDMA_CM_EVENT_DISCONNECTED);
		topic("child connects while the parent is connected");
		in_child("connection", whole_connection, NULL);
	}
	pair_close(&pair);
	return finish();
}
