/* rdma_bind_addr, rdma_listen, ports. */
#include "common.h"

static struct rdma_cm_id *new_id(enum rdma_port_space ps)
{
	struct rdma_cm_id *id = NULL;

	if (!SETUP(!rdma_create_id(NULL, &id, NULL, ps)))
		return NULL;
	id_name(id, "id");
	return id;
}

/* The GIDs of the id: on siw they are those of the interface. */
static void show_gids(struct rdma_cm_id *id)
{
	static const union ibv_gid none;
	const struct rdma_ib_addr *gids = &id->route.addr.addr.ibaddr;
	bool zero = !memcmp(&gids->sgid, &none, sizeof(none));

	obs("sgid %s dgid %s", on_siw() && !zero ? "set" : gid_str(&gids->sgid), gid_str(&gids->dgid));
}

static void one(const char *name, enum rdma_port_space ps, union address address)
{
	struct rdma_cm_id *id = new_id(ps);

	topic("%s", name);
	if (!id)
		return;
	if (!CALL(rdma_bind_addr(id, &address.sa)))
		obs("port %s", rdma_get_src_port(id) ? "given" : "0");
	obs("dst port %u", rdma_get_dst_port(id));
	show_id(id);
	show_gids(id);
	CALL(rdma_bind_addr(id, &address.sa));
	CALL(rdma_listen(id, 4));
	show_id(id);
	show_gids(id);
	CALL(rdma_listen(id, 4));
	CALL(rdma_bind_addr(id, &address.sa));
	id_forget(id);
	CALL(rdma_destroy_id(id));
}

static void families(void)
{
	one("v4 port 0", RDMA_PS_TCP, local_addr(AF_INET, 0));
	one("v4 port", RDMA_PS_TCP, local_addr(AF_INET, 7301));
	one("v4 any", RDMA_PS_TCP, any_addr(AF_INET, 7302));
	one("v4 any port 0", RDMA_PS_TCP, any_addr(AF_INET, 0));
	one("v4 loopback", RDMA_PS_TCP, make_addr(AF_INET, "127.0.0.1", 7303));
	one("v4 foreign", RDMA_PS_TCP, unrouted_addr(7304));
	one("v4 multicast", RDMA_PS_TCP, make_addr(AF_INET, "239.1.2.3", 7304));
	one("v6 port 0", RDMA_PS_TCP, local_addr(AF_INET6, 0));
	one("v6 port", RDMA_PS_TCP, local_addr(AF_INET6, 7305));
	one("v6 any", RDMA_PS_TCP, any_addr(AF_INET6, 7306));
	one("v6 loopback", RDMA_PS_TCP, make_addr(AF_INET6, "::1", 7307));
	one("v6 foreign", RDMA_PS_TCP, make_addr(AF_INET6, "2001:db8::1", 7308));
	one("udp v4", RDMA_PS_UDP, local_addr(AF_INET, 7309));
	one("udp v6", RDMA_PS_UDP, local_addr(AF_INET6, 7310));
	one("ipoib v4", RDMA_PS_IPOIB, local_addr(AF_INET, 7311));
	one("ib v4", RDMA_PS_IB, local_addr(AF_INET, 7312));
	one("privileged port", RDMA_PS_TCP, local_addr(AF_INET, 80));
}

static void bad_family(void)
{
	static const int list[] = { AF_UNSPEC, AF_UNIX, AF_NETLINK, AF_PACKET, 255 };
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	union address address = local_addr(AF_INET, 0);

	topic("bad family");
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
		address.sa.sa_family = (sa_family_t)list[i];
		obs("family %d", list[i]);
		CALL(rdma_bind_addr(id, &address.sa));
	}
	show_id(id);
	id_destroy(id);
}

static void in_use(enum rdma_port_space first_ps, enum rdma_port_space second_ps)
{
	struct rdma_cm_id *first = new_id(first_ps), *second = new_id(second_ps);
	union address exact = local_addr(AF_INET, 7320), any = any_addr(AF_INET, 7320);

	id_name(first, "first");
	id_name(second, "second");
	CALL(rdma_bind_addr(first, &exact.sa));
	CALL(rdma_bind_addr(second, &exact.sa));
	show_id(second);
	CALL(rdma_bind_addr(second, &any.sa));
	id_destroy(first);
	CALL(rdma_bind_addr(second, &exact.sa));
	id_destroy(second);
}

static void reuse(int first_on, int second_on)
{
	struct rdma_cm_id *first = new_id(RDMA_PS_TCP), *second = new_id(RDMA_PS_TCP);
	union address exact = local_addr(AF_INET, 7321);

	topic("reuse %d %d", first_on, second_on);
	CALL(rdma_set_option(first, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &first_on,
			     sizeof(first_on)));
	CALL(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &second_on,
			     sizeof(second_on)));
	CALL(rdma_bind_addr(first, &exact.sa));
	CALL(rdma_bind_addr(second, &exact.sa));
	CALL(rdma_listen(first, 1));
	CALL(rdma_listen(second, 1));
	id_destroy(second);
	id_destroy(first);
}

static void afonly(int on)
{
	struct rdma_cm_id *six = new_id(RDMA_PS_TCP), *four = new_id(RDMA_PS_TCP);
	union address any6 = any_addr(AF_INET6, 7322), any4 = any_addr(AF_INET, 7322);

	topic("afonly %d", on);
	CALL(rdma_set_option(six, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)));
	CALL(rdma_bind_addr(six, &any6.sa));
	CALL(rdma_listen(six, 1));
	CALL(rdma_bind_addr(four, &any4.sa));
	CALL(rdma_listen(four, 1));
	id_destroy(four);
	id_destroy(six);
}

static void listen_unbound(enum rdma_port_space ps)
{
	struct rdma_cm_id *id = new_id(ps);

	topic("listen unbound %x", ps);
	CALL(rdma_listen(id, 0));
	show_id(id);
	obs("port %s", rdma_get_src_port(id) ? "given" : "0");
	id_destroy(id);
}

static void backlogs(void)
{
	static const int list[] = { 0, 1, -1, 1 << 30 };

	topic("backlog");
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
		struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
		union address address = local_addr(AF_INET, 0);

		CALL(rdma_bind_addr(id, &address.sa));
		obs("backlog %d", list[i]);
		CALL(rdma_listen(id, list[i]));
		id_destroy(id);
	}
}

static union address ib_any(uint64_t sid, uint64_t mask)
{
	union address address;

	memset(&address, 0, sizeof(address));
	address.ib.sib_family = AF_IB;
	address.ib.sib_sid = htobe64(sid);
	address.ib.sib_sid_mask = htobe64(mask);
	return address;
}

static void af_ib(void)
{
	union address full = ib_any(RDMA_IB_IP_PS_TCP + 7330, ~0ull);

	one("af_ib any tcp", RDMA_PS_IB, ib_any(RDMA_IB_IP_PS_TCP, RDMA_IB_IP_PS_MASK));
	one("af_ib any ib", RDMA_PS_IB, ib_any(RDMA_IB_PS_IB + 7331, ~0ull));
	one("af_ib any sid 0", RDMA_PS_IB, ib_any(0, 0));
	one("af_ib on ps tcp", RDMA_PS_TCP, full);
	memset(&full.ib.sib_addr, 0x11, sizeof(full.ib.sib_addr));
	one("af_ib foreign gid", RDMA_PS_IB, full);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	families();
	bad_family();
	topic("in use");
	in_use(RDMA_PS_TCP, RDMA_PS_TCP);
	topic("in use by another port space");
	in_use(RDMA_PS_TCP, RDMA_PS_UDP);
	for (int i = 0; i < 4; i++)
		reuse(i & 1, i >> 1);
	afonly(0);
	afonly(1);
	listen_unbound(RDMA_PS_TCP);
	listen_unbound(RDMA_PS_UDP);
	listen_unbound(RDMA_PS_IB);
	backlogs();
	af_ib();
	return finish();
}
