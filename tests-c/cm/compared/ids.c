/* rdma_create_id / rdma_destroy_id: port spaces, fields, limits. */
#include "common.h"

#include <fcntl.h>
#include <sys/resource.h>

static void port_spaces(void)
{
	static const int spaces[] = { RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IPOIB, RDMA_PS_IB,
				      0, 1, 0x107, 0x1234, 0xffff, -1 };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	static int mark;

	topic("port spaces");
	for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++) {
		enum rdma_port_space ps = (enum rdma_port_space)spaces[i];
		struct rdma_cm_id *id = NULL;

		obs("ps %x", spaces[i]);
		if (CALL(rdma_create_id(channel, &id, &mark, ps))) {
			CHECK(id == NULL);
			continue;
		}
		id_name(id, "id");
		show_id(id);
		CHECK(id->channel == channel);
		CHECK(id->context == &mark);
		CHECK((int)id->ps == spaces[i]);
		id_forget(id);
		CALL(rdma_destroy_id(id));
	}
	rdma_destroy_event_channel(channel);
}

static void sync_ids(void)
{
	struct rdma_cm_id *first = NULL, *second = NULL;
	int before, with_one;

	topic("sync ids");
	before = open_fds();
	if (CALL(rdma_create_id(NULL, &first, NULL, RDMA_PS_TCP)))
		return;
	id_name(first, "first");
	show_id(first);
	with_one = open_fds();
	obs("descriptors used %d", with_one - before);
	obs("close on exec %d", !!(fcntl(first->channel->fd, F_GETFD) & FD_CLOEXEC));
	CALL(rdma_create_id(NULL, &second, NULL, RDMA_PS_UDP));
	CHECK(first->channel != second->channel);
	CHECK(first->channel->fd != second->channel->fd);
	obs("descriptors used %d", open_fds() - before);
	id_forget(first);
	CALL(rdma_destroy_id(first));
	CALL(rdma_destroy_id(second));
	obs("descriptors used %d", open_fds() - before);
}

static void many(void)
{
	enum { COUNT = 300 };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *ids[COUNT];
	int made = 0, gone = 0, before;

	topic("many");
	before = open_fds();
	for (int i = 0; i < COUNT; i++)
		made += !rdma_create_id(channel, &ids[i], &ids[i], RDMA_PS_TCP);
	obs("created %d", made);
	obs("descriptors for them %d", open_fds() - before);
	for (int i = 0; i < COUNT; i += 2)
		gone += !rdma_destroy_id(ids[i]);
	for (int i = COUNT - 1; i > 0; i -= 2)
		gone += ids[i]->context == &ids[i] && !rdma_destroy_id(ids[i]);
	obs("destroyed %d", gone);
	rdma_destroy_event_channel(channel);
}

static void destroy_in_each_state(void)
{
	struct pair pair;

	topic("destroy bound");
	struct rdma_cm_id *id = NULL;
	union address address = local_addr(AF_INET, 0);
	CALL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	CALL(rdma_bind_addr(id, &address.sa));
	CALL(rdma_destroy_id(id));

	topic("destroy listening");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET)) {
		id_forget(pair.listener);
		CALL(rdma_destroy_id(pair.listener));
		pair.listener = NULL;
	}
	pair_close(&pair);

	topic("destroy resolved");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true)) {
		rdma_destroy_qp(pair.client);
		id_forget(pair.client);
		CALL(rdma_destroy_id(pair.client));
		pair.client = NULL;
	}
	pair_close(&pair);

	topic("destroy listener before request is answered");
	struct rdma_conn_param param = conn_param("x", 1);
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true) &&
	    pair_request(&pair, &param, false)) {
		id_forget(pair.listener);
		CALL(rdma_destroy_id(pair.listener));
		pair.listener = NULL;
		show_id(pair.server);
		id_forget(pair.server);
		CALL(rdma_destroy_id(pair.server));
		pair.server = NULL;
		take_event("client", pair.client_channel, RDMA_CM_EVENT_REJECTED);
	}
	pair_close(&pair);

	topic("destroy connected");
	if (pair_connect(&pair, RDMA_PS_TCP, AF_INET)) {
		rdma_destroy_qp(pair.client);
		id_forget(pair.client);
		CALL(rdma_destroy_id(pair.client));
		pair.client = NULL;
		take_event("server", pair.server_channel, RDMA_CM_EVENT_DISCONNECTED);
	}
	pair_close(&pair);
}

static void descriptor_limit(void)
{
	struct rlimit old, limit;
	struct rdma_cm_id *id = (void *)&limit;
	struct rdma_event_channel *channel = rdma_create_event_channel();

	topic("descriptor limit");
	getrlimit(RLIMIT_NOFILE, &old);
	limit = old;
	limit.rlim_cur = 3;
	setrlimit(RLIMIT_NOFILE, &limit);
	CALL_PTR(rdma_create_event_channel());
	CALL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	CHECK(id == (void *)&limit);
	if (!CALL(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP)))
		CALL(rdma_destroy_id(id));
	setrlimit(RLIMIT_NOFILE, &old);
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	port_spaces();
	sync_ids();
	many();
	destroy_in_each_state();
	descriptor_limit();
	return finish();
}
