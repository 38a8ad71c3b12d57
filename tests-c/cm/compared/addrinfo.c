/* rdma_getaddrinfo and rdma_freeaddrinfo: inputs, hints, results, errors. */
#define _GNU_SOURCE
#include "common.h"

#include <sched.h>

static void show_info(const struct rdma_addrinfo *info)
{
	for (int i = 0; info; info = info->ai_next, i++) {
		obs("result %d: flags %x family %d type %s ps %04x", i, info->ai_flags,
		    info->ai_family, qp_type_str(info->ai_qp_type), info->ai_port_space);
		obs("result %d: src %u %s name %s", i, info->ai_src_len,
		    addr_str(info->ai_src_addr),
		    info->ai_src_canonname ? info->ai_src_canonname : "NULL");
		obs("result %d: dst %u %s name %s", i, info->ai_dst_len,
		    addr_str(info->ai_dst_addr),
		    info->ai_dst_canonname ? info->ai_dst_canonname : "NULL");
		obs("result %d: route %zu %s connect %zu %s", i, info->ai_route_len,
		    info->ai_route ? "set" : "NULL", info->ai_connect_len,
		    info->ai_connect ? "set" : "NULL");
	}
}

static void ask(const char *node, const char *service, const struct rdma_addrinfo *hints)
{
	struct rdma_addrinfo *res = NULL;
	int ret;

	errno = 0;
	ret = rdma_getaddrinfo(node, service, hints, &res);
	if (ret == -1 && errno)
		obs("%s %s -> -1 %s", node ? node : "NULL", service ? service : "NULL",
		    errno_name(errno));
	else
		obs("%s %s -> %s", node ? node : "NULL", service ? service : "NULL",
		    eai_name(ret));
	if (ret)
		CHECK(res == NULL);
	show_info(res);
	if (!ret)
		rdma_freeaddrinfo(res);
}

static struct rdma_addrinfo hint(int flags, int family, int type, int ps)
{
	return (struct rdma_addrinfo){ .ai_flags = flags, .ai_family = family,
				       .ai_qp_type = type, .ai_port_space = ps };
}

static void without_hints(void)
{
	topic("no hints");
	ask(NULL, NULL, NULL);
	ask(local_node(AF_INET), NULL, NULL);
	ask(local_node(AF_INET), "7471", NULL);
	ask(local_node(AF_INET6), "7471", NULL);
	ask(NULL, "7471", NULL);
	ask("localhost", "7471", NULL);
	ask("127.0.0.1", "7471", NULL);
	ask("::1", "7471", NULL);
	ask("198.51.100.1", "1", NULL);
	ask("0.0.0.0", "0", NULL);
	ask("", "7471", NULL);
	ask(local_node(AF_INET), "", NULL);
	ask(local_node(AF_INET), "65535", NULL);
	ask(local_node(AF_INET), "65536", NULL);
	ask(local_node(AF_INET), "-1", NULL);
	ask(local_node(AF_INET), "http", NULL);
	ask(local_node(AF_INET), "no-such-service", NULL);
	ask("256.1.1.1.1", "1", NULL);
	ask("a..b", "1", NULL);
	ask("host.invalid", "1", NULL);
}

static void port_spaces_and_types(void)
{
	static const int spaces[] = { 0, RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IPOIB, RDMA_PS_IB,
				      0x1234 };
	static const int types[] = { 0, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND,
				     IBV_QPT_XRC_RECV, 77 };

	for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++)
		for (size_t j = 0; j < sizeof(types) / sizeof(types[0]); j++) {
			struct rdma_addrinfo hints = hint(0, 0, types[j], spaces[i]);

			topic("ps %04x type %d", spaces[i], types[j]);
			ask(local_node(AF_INET), "7471", &hints);
			hints.ai_flags = RAI_PASSIVE;
			ask(NULL, "7471", &hints);
			hints.ai_flags = 0;
			ask(NULL, NULL, &hints);
		}
}

static void flags(void)
{
	static const int families[] = { 0, AF_INET, AF_INET6, AF_IB, AF_UNIX };

	for (int bits = 0; bits < 16; bits++)
		for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
			struct rdma_addrinfo hints = hint(bits, families[i], 0, RDMA_PS_TCP);

			topic("flags %x family %d", bits, families[i]);
			/* AF_IB from an IPv4 text: the reference reads past the address. */
			if (!(families[i] == AF_IB && (bits & RAI_FAMILY) &&
			      (bits & RAI_NUMERICHOST)))
				ask(local_node(AF_INET), "7471", &hints);
			ask(local_node(AF_INET6), NULL, &hints);
			if (families[i] != AF_IB || !(bits & RAI_FAMILY) ||
			    !(bits & RAI_NUMERICHOST))
				ask(NULL, "7471", &hints);
			if (bits & RAI_NUMERICHOST)
				ask("localhost", "7471", &hints);
		}
	for (int bit = 0x10; bit; bit = bit > 0x40000000 / 2 ? 0 : bit * 2) {
		struct rdma_addrinfo hints = hint(bit, 0, 0, RDMA_PS_TCP);

		/* 0x10 and 0x20 mean something to newer libraries: see addrinfo14. */
		if (bit <= 0x20 || bit == 0x01000000)
			continue;
		topic("flags %x", bit);
		ask(local_node(AF_INET), "7471", &hints);
	}
}

static void source(void)
{
	union address src = local_addr(AF_INET, 7472), dst = local_addr(AF_INET, 7473);
	struct rdma_addrinfo hints = hint(0, 0, 0, RDMA_PS_TCP);

	topic("source in hints");
	hints.ai_src_addr = &src.sa;
	hints.ai_src_len = sizeof(src.in);
	ask(local_node(AF_INET), "7471", &hints);
	ask(NULL, NULL, &hints);
	hints.ai_flags = RAI_PASSIVE;
	ask(local_node(AF_INET), "7471", &hints);
	ask(NULL, NULL, &hints);
	topic("source and destination in hints");
	hints.ai_flags = 0;
	hints.ai_dst_addr = &dst.sa;
	hints.ai_dst_len = sizeof(dst.in);
	ask(NULL, NULL, &hints);
	ask(local_node(AF_INET), "7471", &hints);
	hints.ai_family = AF_INET;
	ask(NULL, NULL, &hints);
	topic("destination in hints");
	hints.ai_src_addr = NULL;
	hints.ai_src_len = 0;
	ask(NULL, NULL, &hints);
	topic("lengths of hints");
	hints.ai_dst_len = 0;
	ask(NULL, NULL, &hints);
	hints.ai_dst_len = 4;
	hints.ai_dst_addr = NULL;
	hints.ai_dst_len = 0;
	hints.ai_src_addr = &src.sa;
	hints.ai_src_len = 0;
	ask(local_node(AF_INET), "7471", &hints);
}

static void route_in_hints(void)
{
	struct rdma_addrinfo hints = hint(0, 0, 0, RDMA_PS_TCP);
	struct ibv_path_data path;

	topic("route in hints");
	memset(&path, 0, sizeof(path));
	hints.ai_route = &path;
	hints.ai_route_len = sizeof(path);
	ask(local_node(AF_INET), "7471", &hints);
	hints.ai_route_len = sizeof(path.path);
	ask(local_node(AF_INET), "7471", &hints);
	hints.ai_route_len = 5;
	ask(local_node(AF_INET), "7471", &hints);
}

/* In a network namespace with an IPv4 but no IPv6 address: looks up names that have both. */
static void ask_with_ipv4_only(void *unused)
{
	struct rdma_addrinfo hints = hint(0, 0, 0, RDMA_PS_TCP);

	(void)unused;
	SETUP(!unshare(CLONE_NEWNET));
	SETUP(!system("ip link set lo up && ip link add a0 type veth peer name b0 && "
		      "echo 1 >/proc/sys/net/ipv6/conf/a0/disable_ipv6 && "
		      "echo 1 >/proc/sys/net/ipv6/conf/b0/disable_ipv6 && "
		      "ip addr add 192.0.2.1/24 dev a0 && ip link set a0 up && ip link set b0 up"));
	ask("localhost", "7471", NULL);
	ask("localhost", "7471", &hints);
	ask("::1", "7471", NULL);
	ask("127.0.0.1", "7471", NULL);
	ask(NULL, "7471", NULL);
}

static void without_ipv6(void)
{
	topic("no IPv6 addresses");
	in_child("child", ask_with_ipv4_only, NULL);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	without_hints();
	port_spaces_and_types();
	flags();
	source();
	route_in_hints();
	without_ipv6();
	topic("free");
	rdma_freeaddrinfo(NULL);
	return finish();
}
