/* Enhanced connection establishment: rdma_set_local_ece, rdma_get_remote_ece. */
#define _GNU_SOURCE
#include "common.h"

#include <dlfcn.h>

/* A device with ECE, whose QPs have these options of its vendor until others are set: this program's calls in place of
 * libibverbs'. */
static struct {
	bool exists;
	struct { struct ibv_qp *qp; uint32_t options; } set[8];
	int count;
} fake;
enum { FAKE_VENDOR = 0x77, FAKE_OPTIONS = 0x3 };

int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	int (*next)(struct ibv_qp *, struct ibv_ece *) = dlsym(RTLD_NEXT, "ibv_query_ece");

	if (!fake.exists)
		return next(qp, ece);
	*ece = (struct ibv_ece){ .vendor_id = FAKE_VENDOR, .options = FAKE_OPTIONS };
	for (int i = 0; i < fake.count; i++)
		if (fake.set[i].qp == qp)
			ece->options = fake.set[i].options;
	return 0;
}

int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	int (*next)(struct ibv_qp *, struct ibv_ece *) = dlsym(RTLD_NEXT, "ibv_set_ece");

	if (!fake.exists)
		return next(qp, ece);
	obs("ibv_set_ece vendor %x options %x mask %x", ece->vendor_id, ece->options, ece->comp_mask);
	/* The device knows these options only. */
	if (fake.count < 8) {
		fake.set[fake.count].qp = qp;
		fake.set[fake.count++].options = ece->options & FAKE_OPTIONS;
	}
	return 0;
}

static struct ibv_ece ece(uint32_t vendor, uint32_t options, uint32_t mask)
{
	return (struct ibv_ece){ .vendor_id = vendor, .options = options, .comp_mask = mask };
}

static void show_remote(const char *who, struct rdma_cm_id *id)
{
	struct ibv_ece got = ece(0x77, 0x77, 0x77);
	int ret;

	errno = 0;
	ret = rdma_get_remote_ece(id, &got);
	obs("%s: rdma_get_remote_ece -> %d %s vendor %x options %x mask %x", who, ret,
	    errno_name(ret ? errno : 0), got.vendor_id, got.options, got.comp_mask);
}

static void arguments(void)
{
	struct ibv_ece good = ece(1, 2, 0), none = ece(0, 2, 0), masked = ece(1, 2, 1);
	struct pair pair;

	topic("arguments");
	if (pair_open(&pair, RDMA_PS_TCP, AF_INET)) {
		CALL(rdma_set_local_ece(pair.client, NULL));
		CALL(rdma_set_local_ece(NULL, &good));
		CALL(rdma_get_remote_ece(pair.client, NULL));
		CALL(rdma_get_remote_ece(NULL, &good));
		CALL(rdma_set_local_ece(pair.client, &none));
		CALL(rdma_set_local_ece(pair.client, &masked));
		CALL(rdma_set_local_ece(pair.client, &good));
		CALL(rdma_set_local_ece(pair.client, &good));
		show_remote("client", pair.client);
		if (pair_resolve(&pair, true)) {
			CALL(rdma_set_local_ece(pair.client, &good));
			show_remote("client", pair.client);
		}
	}
	pair_close(&pair);
}

/* Both sides modify their QPs themselves: ECE options are in the messages. */
static void by_hand(bool client_sets, bool server_sets)
{
	struct ibv_ece mine = ece(0x1234, 0x5678, 0), theirs = ece(0x1234, 0x9abc, 0);
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct pair pair;

	topic("by hand %d %d", client_sets, server_sets);
	param.qp_num = invented_qpn();
	if (!pair_open(&pair, RDMA_PS_TCP, AF_INET) || !pair_resolve(&pair, false))
		goto out;
	if (client_sets)
		CALL(rdma_set_local_ece(pair.client, &mine));
	if (!pair_request(&pair, &param, false))
		goto out;
	show_remote("server", pair.server);
	if (server_sets)
		CALL(rdma_set_local_ece(pair.server, &theirs));
	param.qp_num = invented_qpn();
	if (CALL(rdma_accept(pair.server, &param)))
		goto out;
	if (take_event("client", pair.client_channel, RDMA_CM_EVENT_CONNECT_RESPONSE)) {
		show_remote("client", pair.client);
		CALL(rdma_establish(pair.client));
		take_event("server", pair.server_channel, RDMA_CM_EVENT_ESTABLISHED);
	}
out:
	pair_close(&pair);
}

static void with_queue_pairs(void)
{
	struct pair pair;

	topic("with queue pairs");
	if (pair_connect(&pair, RDMA_PS_TCP, AF_INET)) {
		show_remote("client", pair.client);
		show_remote("server", pair.server);
		rdma_destroy_qp(pair.client);
		show_remote("client", pair.client);
	}
	pair_close(&pair);
}

/* Set before the QP is created, on a device without ECE. */
static void before_queue_pairs(bool client_sets, bool server_sets)
{
	struct ibv_ece mine = ece(0x1234, 0x5678, 0), theirs = ece(0x1234, 0x9abc, 0);
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct pair pair;

	topic("before queue pairs %d %d", client_sets, server_sets);
	if (!pair_open(&pair, RDMA_PS_TCP, AF_INET) || !pair_resolve(&pair, false))
		goto out;
	if (client_sets)
		CALL(rdma_set_local_ece(pair.client, &mine));
	CALL(rdma_create_qp(pair.client, NULL, &attr));
	if (!pair_request(&pair, &param, false))
		goto out;
	show_remote("server", pair.server);
	if (server_sets)
		CALL(rdma_set_local_ece(pair.server, &theirs));
	attr = qp_attr(RDMA_PS_TCP);
	CALL(rdma_create_qp(pair.server, NULL, &attr));
	if (CALL(rdma_accept(pair.server, &param)))
		goto out;
	if (take_event("client", pair.client_channel, RDMA_CM_EVENT_ESTABLISHED)) {
		take_event("server", pair.server_channel, RDMA_CM_EVENT_ESTABLISHED);
		rdma_destroy_qp(pair.client);
		show_remote("client", pair.client);
	}
out:
	pair_close(&pair);
}

/* A device with ECE on the sides that have a QP; the others set options of this vendor. */
static void device_with_ece(bool client_has, bool server_has, uint32_t vendor)
{
	struct ibv_ece others = ece(vendor, 0x6, 0);
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct pair pair;

	topic("device with ece %d %d vendor %x", client_has, server_has, vendor);
	fake.exists = true;
	fake.count = 0;
	param.qp_num = invented_qpn();
	if (!pair_open(&pair, RDMA_PS_TCP, AF_INET) || !pair_resolve(&pair, client_has))
		goto out;
	if (!client_has)
		CALL(rdma_set_local_ece(pair.client, &others));
	if (!pair_request(&pair, &param, false))
		goto out;
	show_remote("server", pair.server);
	if (server_has)
		CALL(rdma_create_qp(pair.server, NULL, &attr));
	else
		CALL(rdma_set_local_ece(pair.server, &others));
	param.qp_num = invented_qpn();
	if (CALL(rdma_accept(pair.server, &param)))
		goto out;
	if (client_has) {
		take_event("client", pair.client_channel, RDMA_CM_EVENT_ESTABLISHED);
	} else if (take_event("client", pair.client_channel, RDMA_CM_EVENT_CONNECT_RESPONSE)) {
		show_remote("client", pair.client);
		CALL(rdma_establish(pair.client));
	}
	if (take_event("server", pair.server_channel, RDMA_CM_EVENT_ESTABLISHED) && client_has) {
		rdma_destroy_qp(pair.client);
		show_remote("client", pair.client);
	}
out:
	pair_close(&pair);
	fake.exists = false;
}

int main(int argc, char **argv)
{
	start(argc, argv);
	arguments();
	if (!on_siw())
		for (int i = 0; i < 4; i++)
			by_hand(i & 1, i >> 1);
	with_queue_pairs();
	for (int i = 0; i < 4; i++)
		before_queue_pairs(i & 1, i >> 1);
	if (!on_siw()) {
		device_with_ece(true, true, 0);
		for (int i = 0; i < 2; i++) {
			device_with_ece(true, false, i ? FAKE_VENDOR : 0x1234);
			device_with_ece(false, true, i ? FAKE_VENDOR : 0x1234);
		}
	}
	return finish();
}
