/* rdma_set_option: every level, name and length, right and wrong, in each state. */
#include "common.h"

static union {
	uint8_t byte;
	int number;
	unsigned char bytes[4096];
	struct ibv_path_data paths[8];
} value;

static int set(struct rdma_cm_id *id, int level, int name, size_t len)
{
	return rdma_set_option(id, level, name, &value, len);
}

static struct rdma_cm_id *new_id(enum rdma_port_space ps, bool bound)
{
	union address address = local_addr(AF_INET, 0);
	struct rdma_cm_id *id = NULL;

	if (!SETUP(!rdma_create_id(NULL, &id, NULL, ps)))
		return NULL;
	id_name(id, "id");
	if (bound)
		SETUP(!rdma_bind_addr(id, &address.sa));
	return id;
}

static void lengths(int level, int name)
{
	static const size_t list[] = { 0, 1, 2, 3, 4, 5, 7, 8, 16, 64, 71, 72, 73, 144, 145, 576,
				       4096 };
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP, false);

	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
		int ret;

		errno = 0;
		ret = set(id, level, name, list[i]);
		obs("length %zu -> %d %s", list[i], ret, errno_name(ret ? errno : 0));
	}
	id_destroy(id);
}

static void all_lengths(void)
{
	for (int level = -1; level <= 2; level++)
		for (int name = -1; name <= 5; name++) {
			topic("level %d name %d", level, name);
			lengths(level, name);
		}
}

static void values(void)
{
	static const int bytes[] = { 0, 1, 31, 32, 128, 255 };
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP, false);

	topic("values");
	for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
		obs("value %d", bytes[i]);
		value.byte = (uint8_t)bytes[i];
		CALL(set(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, 1));
		CALL(set(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, 1));
		value.number = bytes[i] - 1;
		CALL(set(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, sizeof(int)));
		CALL(set(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, sizeof(int)));
	}
	memset(&value, 0, sizeof(value));
	CALL(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1));
	CALL(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 0));
	id_destroy(id);
}

static void states(void)
{
	static const struct { int name; size_t len; const char *text; } options[] = {
		{ RDMA_OPTION_ID_TOS, 1, "tos" }, { RDMA_OPTION_ID_REUSEADDR, 4, "reuseaddr" },
		{ RDMA_OPTION_ID_AFONLY, 4, "afonly" },
		{ RDMA_OPTION_ID_ACK_TIMEOUT, 1, "ack timeout" },
	};

	for (int i = 0; i < 4; i++) {
		struct rdma_cm_id *bound = new_id(RDMA_PS_TCP, true);
		struct rdma_cm_id *udp = new_id(RDMA_PS_UDP, false);
		struct pair pair;

		topic("states %s", options[i].text);
		CALL(set(bound, RDMA_OPTION_ID, options[i].name, options[i].len));
		CALL(rdma_listen(bound, 1));
		CALL(set(bound, RDMA_OPTION_ID, options[i].name, options[i].len));
		CALL(set(udp, RDMA_OPTION_ID, options[i].name, options[i].len));
		id_destroy(bound);
		id_destroy(udp);
		if (pair_connect(&pair, RDMA_PS_TCP, AF_INET)) {
			CALL(set(pair.client, RDMA_OPTION_ID, options[i].name, options[i].len));
			CALL(set(pair.server, RDMA_OPTION_ID, options[i].name, options[i].len));
		}
		pair_close(&pair);
	}
}

/* The options change what the connection looks like. */
static void effects(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct pair pair;

	topic("effects");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET)) {
		value.byte = 0x20;
		CALL(set(pair.client, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, 1));
		value.byte = 10;
		CALL(set(pair.client, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, 1));
		if (pair_resolve(&pair, true) && pair_request(&pair, &param, true) &&
		    SETUP(!rdma_accept(pair.server, &param)) &&
		    quiet_event(pair.client_channel, RDMA_CM_EVENT_ESTABLISHED)) {
			show_qp("client", pair.client);
			memset(&attr, 0, sizeof(attr));
			if (!on_siw() && !ibv_query_qp(pair.client->qp, &attr,
						       IBV_QP_TIMEOUT | IBV_QP_AV, &init))
				obs("timeout %u class %u", attr.timeout,
				    attr.ah_attr.grh.traffic_class);
			quiet_event(pair.server_channel, RDMA_CM_EVENT_ESTABLISHED);
		}
	}
	pair_close(&pair);
	memset(&value, 0, sizeof(value));
}

static void paths_of(struct rdma_cm_id *id, uint32_t flags, int count, size_t len)
{
	for (int i = 0; i < count; i++) {
		value.paths[i].flags = flags;
		value.paths[i].path.reversible_numpath = IBV_PATH_RECORD_REVERSIBLE | 1;
	}
	obs("flags %x count %d length %zu", flags, count, len);
	CALL(set(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, len));
}

static void path_option(void)
{
	struct pair pair;
	const uint32_t good = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY |
			      IBV_PATH_FLAG_BIDIRECTIONAL;

	topic("path option");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET)) {
		SETUP(!rdma_resolve_addr(pair.client, NULL, &pair.to.sa, 2000));
		quiet_event(pair.client_channel, RDMA_CM_EVENT_ADDR_RESOLVED);
		paths_of(pair.client, 0, 1, sizeof(value.paths[0]));
		paths_of(pair.client, good, 1, sizeof(value.paths[0]) - 1);
		paths_of(pair.client, good, 7, 7 * sizeof(value.paths[0]));
		paths_of(pair.client, good, 1, sizeof(value.paths[0]));
		CHECK(!channel_ready(pair.client_channel));
		show_id(pair.client);
	}
	pair_close(&pair);
	memset(&value, 0, sizeof(value));
}

int main(int argc, char **argv)
{
	start(argc, argv);
	all_lengths();
	values();
	states();
	effects();
	path_option();
	return finish();
}
