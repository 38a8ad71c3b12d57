/* rdma_getaddrinfo with a correct address and path service: requests and results. */
#include "acm.h"

static void show_list(const struct rdma_addrinfo *info)
{
	for (; info; info = info->ai_next) {
		obs("flags %x family %d type %s ps %04x", info->ai_flags, info->ai_family,
		    qp_type_str(info->ai_qp_type), info->ai_port_space);
		obs("src %u %s", info->ai_src_len, addr_str(info->ai_src_addr));
		obs("dst %u %s", info->ai_dst_len, addr_str(info->ai_dst_addr));
		obs("route %zu [%s]", info->ai_route_len,
		    info->ai_route ? bytes_str(info->ai_route, info->ai_route_len) : "NULL");
		obs("connect %zu [%s]", info->ai_connect_len,
		    info->ai_connect ? bytes_str(info->ai_connect, info->ai_connect_len)
				     : "NULL");
	}
}

/* The service returns the source of the path, unless the request has one. */
static long with_source(const struct acm_message *request, struct acm_message *answer, int paths)
{
	bool six = request->records[0].type == ACM_TYPE_IP6;
	union address source = local_addr(six ? AF_INET6 : AF_INET, 0);
	struct acm_record *record = &answer->records[paths];

	acm_paths(answer, paths);
	if (request->records[0].flags & ACM_FLAG_SOURCE)
		return answer->header.length;
	record->type = six ? ACM_TYPE_IP6 : ACM_TYPE_IP4;
	record->flags = ACM_FLAG_SOURCE;
	memcpy(record->info, six ? (void *)&source.in6.sin6_addr : (void *)&source.in.sin_addr,
	       six ? 16 : 4);
	answer->header.length = (uint16_t)(answer->header.length + sizeof(*record));
	return answer->header.length;
}

static long one_path(const struct acm_message *request, struct acm_message *answer)
{
	return with_source(request, answer, 1);
}

static long two_paths(const struct acm_message *request, struct acm_message *answer)
{
	return with_source(request, answer, 2);
}

static long source_only(const struct acm_message *request, struct acm_message *answer)
{
	return with_source(request, answer, 0);
}

struct question {
	const char *name;
	acm_answer answer;
	int flags, family, ps, type;
	int node_family;
	bool with_source, with_route;
};

static void ask(void *argument)
{
	const struct question *question = argument;
	union address source = local_addr(AF_INET, 7475);
	struct rdma_addrinfo hints, *res = NULL;
	struct acm_server server;
	struct ibv_path_data route;
	int ret;

	topic("%s", question->name);
	if (!SETUP(acm_start(&server, question->answer, true)))
		return;
	memset(&hints, 0, sizeof(hints));
	memset(&route, 0, sizeof(route));
	hints.ai_flags = question->flags;
	hints.ai_family = question->family;
	hints.ai_port_space = question->ps;
	hints.ai_qp_type = question->type;
	if (question->with_source) {
		hints.ai_src_addr = &source.sa;
		hints.ai_src_len = sizeof(source.in);
	}
	if (question->with_route) {
		memset(&route.path.dgid, 0x33, 16);
		hints.ai_route = &route;
		hints.ai_route_len = sizeof(route);
	}
	for (int turn = 0; turn < 2; turn++) {
		errno = 0;
		ret = rdma_getaddrinfo(local_node(question->node_family), "7471", &hints, &res);
		obs("-> %s", eai_name(ret));
		if (!ret)
			show_list(res);
		if (!ret)
			rdma_freeaddrinfo(res);
	}
	obs("served %d on %d connections", server.served, server.connections);
	acm_stop(&server);
}

static const struct question questions[] = {
	{ "one path", one_path, 0, 0, RDMA_PS_TCP, 0, AF_INET, false, false },
	{ "one path v6", one_path, 0, 0, RDMA_PS_TCP, 0, AF_INET6, false, false },
	{ "one path udp", one_path, 0, 0, RDMA_PS_UDP, IBV_QPT_UD, AF_INET, false, false },
	{ "one path ib", one_path, 0, 0, RDMA_PS_IB, IBV_QPT_RC, AF_INET, false, false },
	{ "one path, af_inet wanted", one_path, RAI_FAMILY, AF_INET, RDMA_PS_TCP, 0, AF_INET,
	  false, false },
	{ "one path, af_ib wanted", one_path, RAI_FAMILY, AF_IB, RDMA_PS_TCP, 0, AF_INET, false,
	  false },
	{ "one path, numeric", one_path, RAI_NUMERICHOST, 0, RDMA_PS_TCP, 0, AF_INET, false,
	  false },
	{ "one path, no route", one_path, RAI_NOROUTE, 0, RDMA_PS_TCP, 0, AF_INET, false, false },
	{ "passive", one_path, RAI_PASSIVE, 0, RDMA_PS_TCP, 0, AF_INET, false, false },
	{ "source in hints", one_path, 0, 0, RDMA_PS_TCP, 0, AF_INET, true, false },
	{ "route in hints", one_path, 0, 0, RDMA_PS_TCP, 0, AF_INET, false, true },
	{ "two paths", two_paths, 0, 0, RDMA_PS_TCP, 0, AF_INET, false, false },
	{ "refused", acm_refuses, 0, 0, RDMA_PS_TCP, 0, AF_INET, false, false },
	{ "source only", source_only, 0, 0, RDMA_PS_TCP, 0, AF_INET, false, false },
	{ "no records", acm_knows_no_path, 0, 0, RDMA_PS_TCP, 0, AF_INET, false, false },
};

int main(int argc, char **argv)
{
	start(argc, argv);
	acm_require_lab();
	for (size_t i = 0; i < sizeof(questions) / sizeof(questions[0]); i++) {
		topic("%s", questions[i].name);
		in_child("child", ask, (void *)&questions[i]);
	}
	return finish();
}
