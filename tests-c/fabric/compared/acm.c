/*
 * ibacm on InfiniBand: which calls ask it, how often, and what its answers do to routes: paths that
 * work, refusals, stale LIDs, a service that is slow, or ends. The service is one of the test, at
 * ibacm's socket; tests/gid has the real one, which is restarted.
 */
#include "fabric.h"
#include "acm.h"
#include "rscommon.h"

#include <signal.h>

static unsigned int near_lid, far_lid;
static union address near_gid, far_gid;

/* A record of the path between the hosts' ports, with these LIDs. */
static long answer_path(struct acm_message *answer, unsigned int slid, unsigned int dlid, bool to_far)
{
	struct ibv_path_record *path = (void *)answer->records[0].info;

	acm_paths(answer, 1);
	memcpy(path->sgid.raw, &near_gid.ib.sib_addr, 16);
	memcpy(path->dgid.raw, to_far ? &far_gid.ib.sib_addr : &near_gid.ib.sib_addr, 16);
	path->slid = htobe16(slid);
	path->dlid = htobe16(dlid);
	path->pkey = htobe16(0xffff);
	path->flowlabel_hoplimit = 0;
	path->tclass = 0;
	path->mtu = 0x80 | IBV_MTU_2048;
	path->rate = 0x80 | 3;
	path->packetlifetime = 0x80 | 11;
	return answer->header.length;
}

static long far_path(const struct acm_message *request, struct acm_message *answer)
{
	(void)request;
	return answer_path(answer, near_lid, far_lid, true);
}

static long own_path(const struct acm_message *request, struct acm_message *answer)
{
	(void)request;
	return answer_path(answer, near_lid, near_lid, false);
}

/* rdma_getaddrinfo asks without a source, and wants to be told one. */
static long far_path_and_source(const struct acm_message *request, struct acm_message *answer)
{
	union address source = host_addr(NEAR, AF_INET, 0, 0);

	far_path(request, answer);
	answer->records[1].type = ACM_TYPE_IP4;
	answer->records[1].flags = ACM_FLAG_SOURCE;
	memcpy(answer->records[1].info, &source.in.sin_addr, 4);
	answer->header.length = (uint16_t)(answer->header.length + sizeof(answer->records[1]));
	return answer->header.length;
}

/* The second LIDs, so that it is seen whose path is used. */
static long other_path(const struct acm_message *request, struct acm_message *answer)
{
	(void)request;
	return answer_path(answer, near_lid + 1, far_lid + 1, true);
}

/* LIDs that nobody has any more. */
static long stale_path(const struct acm_message *request, struct acm_message *answer)
{
	(void)request;
	return answer_path(answer, near_lid, 0x300, true);
}

static long slow_path(const struct acm_message *request, struct acm_message *answer)
{
	usleep(300000);
	return far_path(request, answer);
}

static bool begin(struct acm_server *server, const char *name, acm_answer answer)
{
	topic("%s", name);
	near_lid = host_lid(NEAR);
	far_lid = host_lid(FAR);
	near_gid = host_gid(NEAR, 0, 0, 0);
	far_gid = host_gid(FAR, 0, 0, 0);
	return SETUP(acm_start(server, answer, true));
}

static void end(struct acm_server *server, const char *name)
{
	topic("%s", name);
	acm_stop(server);
	obs("%d questions", server->served);
}

static void resolve_once(const union address *to, enum rdma_port_space ps)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;

	SETUP(!rdma_create_id(channel, &id, NULL, ps));
	id_name(id, "id");
	SETUP(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to->sa, 2000));
	quiet_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (!CALL(rdma_resolve_route(id, 4000)) && (event = get_event("id", channel))) {
		rdma_ack_cm_event(event);
		show_route("id", id);
	}
	id_destroy(id);
	rdma_destroy_event_channel(channel);
}

/* A route to the far host's address, with an answer; in a child, as the connection to the service is kept. */
struct question {
	const char *name;
	acm_answer answer;
	enum { IP, GID, GID_UDP } kind;
	int times;
};

static void ask(void *argument)
{
	const struct question *question = argument;
	union address to = question->kind == IP ? host_addr(FAR, AF_INET, 0, 7490) :
			   host_gid(FAR, 0xffff, (question->kind == GID ? RDMA_IB_IP_PS_TCP : RDMA_IB_IP_PS_UDP) | 7490, ~0ull);
	enum rdma_port_space ps = question->kind == GID_UDP ? RDMA_PS_UDP : RDMA_PS_TCP;
	struct acm_server server;

	if (!begin(&server, question->name, question->answer))
		return;
	for (int i = 0; i < question->times; i++)
		resolve_once(&to, ps);
	end(&server, question->name);
}

static const struct question questions[] = {
	{ "route to an IP address", far_path, IP, 1 },
	{ "route to a GID", far_path, GID, 1 },
	{ "route to a GID, three times", far_path, GID, 3 },
	{ "route to a GID, datagrams", far_path, GID_UDP, 1 },
	{ "other path", other_path, GID, 1 },
	{ "stale path", stale_path, GID, 1 },
	{ "refused", acm_refuses, GID, 2 },
	{ "refused for an IP address", acm_refuses, IP, 2 },
	{ "no path", acm_knows_no_path, GID, 1 },
	{ "slow", slow_path, GID, 1 },
};

/* Synchronous endpoints: rdma_getaddrinfo asks, rdma_create_ep takes the route from it. */
static void endpoint(void *argument)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *info = NULL;
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct acm_server server;
	struct rdma_cm_id *id;
	const char *name = argument;

	if (!begin(&server, name, far_path_and_source))
		return;
	if (!CALL(rdma_getaddrinfo(getenv("IB_PEER_ADDR"), "7490", &hints, &info))) {
		obs("family %d route %zu", info->ai_family, info->ai_route_len);
		if (!CALL(rdma_create_ep(&id, info, NULL, &attr))) {
			id_name(id, "id");
			show_route("id", id);
			id_forget(id);
			rdma_destroy_ep(id);
		}
		rdma_freeaddrinfo(info);
	}
	end(&server, name);
}

/* An rsocket to one's own address. */
static void stream(void *argument)
{
	struct acm_server server;
	struct rspair pair;
	const char *name = argument;

	if (!begin(&server, name, own_path))
		return;
	if (SETUP(rs_pair(&pair, AF_INET)))
		CHECK(rsend(pair.client, "hello", 5, 0) == 5);
	rs_pair_close(&pair);
	end(&server, name);
}

/* The service ends: the next route comes from the subnet manager. */
static void ended(void *argument)
{
	union address to = host_gid(FAR, 0xffff, RDMA_IB_IP_PS_TCP | 7490, ~0ull);
	struct acm_server server;
	const char *name = argument;

	if (!begin(&server, name, far_path))
		return;
	resolve_once(&to, RDMA_PS_TCP);
	end(&server, name);
	/* The reference takes a connection that has ended for a service without an answer. */
	signal(SIGPIPE, SIG_IGN);
	resolve_once(&to, RDMA_PS_TCP);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	acm_require_lab();
	for (size_t i = 0; i < sizeof(questions) / sizeof(questions[0]); i++) {
		topic("%s", questions[i].name);
		in_child("child", ask, (void *)&questions[i]);
	}
	topic("endpoint");
	in_child("child", endpoint, "endpoint");
	topic("stream");
	in_child("child", stream, "stream");
	topic("service ends");
	in_child("child", ended, "service ends");
	return finish();
}
