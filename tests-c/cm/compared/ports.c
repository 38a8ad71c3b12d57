/* rdma_get_src_port, rdma_get_dst_port and the inline address getters. */
#include "common.h"

static void show(const char *who, struct rdma_cm_id *id)
{
	obs("%s src port %u dst port %u", who, ntohs(rdma_get_src_port(id)),
	    ntohs(rdma_get_dst_port(id)));
	CHECK(rdma_get_local_addr(id) == &id->route.addr.src_addr);
	CHECK(rdma_get_peer_addr(id) == &id->route.addr.dst_addr);
}

/* The functions only read the public structure: every family can be put there. */
static void families(void)
{
	struct rdma_cm_id *id = NULL;
	union address address;

	topic("families");
	CALL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	show("fresh", id);
	address = make_addr(AF_INET, "1.2.3.4", 258);
	memcpy(&id->route.addr.src_storage, &address, sizeof(address));
	memcpy(&id->route.addr.dst_storage, &address, sizeof(address));
	show("v4", id);
	address = make_addr(AF_INET6, "2001:db8::1", 772);
	memcpy(&id->route.addr.src_storage, &address, sizeof(address));
	memcpy(&id->route.addr.dst_storage, &address, sizeof(address));
	show("v6", id);
	memset(&address, 0, sizeof(address));
	address.ib.sib_family = AF_IB;
	address.ib.sib_sid = htobe64(0x1122334455667788ull);
	memcpy(&id->route.addr.src_storage, &address, sizeof(address));
	address.ib.sib_sid = htobe64(0x99aabbccddee0102ull);
	memcpy(&id->route.addr.dst_storage, &address, sizeof(address));
	show("ib", id);
	address.sa.sa_family = AF_UNIX;
	memcpy(&id->route.addr.src_storage, &address, sizeof(address));
	memcpy(&id->route.addr.dst_storage, &address, sizeof(address));
	show("unix", id);
	memset(&id->route.addr.src_storage, 0, sizeof(address));
	memset(&id->route.addr.dst_storage, 0, sizeof(address));
	CALL(rdma_destroy_id(id));
}

static void connected(void)
{
	struct pair pair;

	topic("connected");
	if (pair_connect(&pair, RDMA_PS_TCP, AF_INET)) {
		__be16 listening = rdma_get_src_port(pair.listener);

		CHECK(rdma_get_dst_port(pair.client) == listening);
		CHECK(rdma_get_src_port(pair.server) == listening);
		CHECK(rdma_get_src_port(pair.client) == rdma_get_dst_port(pair.server));
		CHECK(rdma_get_dst_port(pair.listener) == 0);
	}
	pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	families();
	connected();
	return finish();
}
