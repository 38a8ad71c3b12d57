/*
 * The far adapter has a second port, to which a connection's alternate path leads: QPs go over to it
 * when the cable of the first port is pulled. The program gives its QPs that path by itself: the
 * kernel's connection manager hands on one path only, and sends no LAP message.
 */
#include "fabric.h"

#include <arpa/inet.h>

enum { ACK_TIMEOUT = 12 };

static unsigned int port_lid(const struct rdma_cm_id *id, uint8_t number)
{
	struct ibv_port_attr port;

	return id && SETUP(!ibv_query_port(id->verbs, number, &port)) ? port.lid : 0;
}

/* The record of the path from the near host to a port of the far one. */
static struct ibv_path_data path_to(const struct rdma_cm_id *listener, uint8_t port, unsigned int flags)
{
	union ibv_gid gid = { .raw = "" };

	SETUP(!ibv_query_gid(listener->verbs, port, 0, &gid));
	return path_record(flags, &gid, host_lid(NEAR), port_lid(listener, port));
}

/* Which port of the far adapter a LID is. */
static const char *port_name(const struct rdma_cm_id *far, uint16_t lid)
{
	return !lid ? "none" : lid == port_lid(far, 1) ? "far port 1" : lid == port_lid(far, 2) ? "far port 2" :
	       lid == host_lid(NEAR) ? "near" : "other";
}

static void show_paths(const char *who, const struct rdma_cm_id *id, const struct rdma_cm_id *far)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	if (!SETUP(!ibv_query_qp(id->qp, &attr, IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_PORT, &init)))
		return;
	obs("%s: port %u to %s, alternate port %u to %s, migration %d", who, attr.port_num, port_name(far, attr.ah_attr.dlid),
	    attr.alt_port_num, port_name(far, attr.alt_ah_attr.dlid), attr.path_mig_state);
}

static bool exchange(struct pair *pair, const char *text)
{
	char sent[64] = "", received[64] = "";
	struct ibv_mr *to = rdma_reg_msgs(pair->server, received, sizeof(received));
	struct ibv_mr *from = rdma_reg_msgs(pair->client, sent, sizeof(sent));
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };

	strcpy(sent, text);
	if (SETUP(to && from) && SETUP(!rdma_post_recv(pair->server, NULL, received, sizeof(received), to)) &&
	    SETUP(!rdma_post_send(pair->client, NULL, sent, sizeof(sent), from, 0)))
		while (!ibv_poll_cq(pair->client->send_cq, 1, &wc))
			pause_briefly();
	obs("send: %s", ibv_wc_status_str(wc.status));
	CHECK(!strcmp(received, text));
	rdma_dereg_mr(to);
	rdma_dereg_mr(from);
	return wc.status == IBV_WC_SUCCESS;
}

/* Gives a QP an alternate path from a port of its adapter. */
static void load_alternate(const char *who, const struct rdma_cm_id *id, uint8_t port, unsigned int lid)
{
	struct ibv_qp_attr attr = { .alt_port_num = port, .alt_timeout = ACK_TIMEOUT, .path_mig_state = IBV_MIG_REARM };

	attr.alt_ah_attr.port_num = port;
	attr.alt_ah_attr.dlid = (uint16_t)lid;
	obs("%s: alternate path", who);
	CALL(ibv_modify_qp(id->qp, &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE));
}

/* The next events of a device that are about a QP. */
static void show_migration(const char *who, struct ibv_context *verbs)
{
	struct ibv_async_event event;

	do {
		if (!SETUP(!ibv_get_async_event(verbs, &event)))
			return;
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_PATH_MIG && event.event_type != IBV_EVENT_PATH_MIG_ERR);
	obs("%s: %s", who, ibv_event_type_str(event.event_type));
}

static bool connect_over(struct pair *pair, struct ibv_path_data *paths, size_t size)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_conn_param param = conn_param(NULL, 0);

	param.retry_count = 2;
	return !CALL(rdma_set_option(pair->client, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, paths, size)) &&
	       take_event("client", pair->client_channel, RDMA_CM_EVENT_ROUTE_RESOLVED) &&
	       SETUP(!rdma_create_qp(pair->client, NULL, &attr)) && pair_request(pair, &param, true) &&
	       !CALL(rdma_accept(pair->server, &param)) &&
	       take_event("client", pair->client_channel, RDMA_CM_EVENT_ESTABLISHED) &&
	       take_event("server", pair->server_channel, RDMA_CM_EVENT_ESTABLISHED);
}

static void migration(bool with_alternate)
{
	union address listener = host_addr(FAR, AF_INET, 0, 0);
	struct pair pair;

	topic(with_alternate ? "cable of the first port pulled" : "cable of the first port pulled, no alternate");
	if (pair_open_at(&pair, RDMA_PS_TCP, FAR, &listener) && SETUP(!rdma_resolve_addr(pair.client, NULL, &pair.to.sa, 2000)) &&
	    quiet_event(pair.client_channel, RDMA_CM_EVENT_ADDR_RESOLVED)) {
		struct ibv_path_data paths[2] = { path_to(pair.listener, 1, PRIMARY), path_to(pair.listener, 2, ALTERNATE) };

		if (connect_over(&pair, paths, with_alternate ? sizeof(paths) : sizeof(paths[0]))) {
			show_paths("client", pair.client, pair.listener);
			show_paths("server", pair.server, pair.listener);
			exchange(&pair, "first port");
			if (with_alternate) {
				load_alternate("client", pair.client, 1, port_lid(pair.listener, 2));
				load_alternate("server", pair.server, 2, host_lid(NEAR));
			}
			SETUP(cable(FAR, false) && await_port(FAR, "DOWN"));
			/* (The module's responder goes over when a packet comes from another LID, which here is the same.) */
			if (exchange(&pair, "second port"))
				show_migration("client", pair.client->verbs);
			show_paths("client", pair.client, pair.listener);
			show_paths("server", pair.server, pair.listener);
		}
	}
	SETUP(cable(FAR, true));
	pair_close(&pair);
	SETUP(fabric_works());
}

/* A listener and a client at the GID of the second port. */
static void second_port(void)
{
	union address listener = host_addr(FAR, AF_INET, 0, 0), to;
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct pair pair, by_gid;
	union ibv_gid gid;

	topic("at the second port's GID");
	if (pair_open_at(&pair, RDMA_PS_TCP, FAR, &listener) && SETUP(!ibv_query_gid(pair.listener->verbs, 2, 0, &gid))) {
		to = host_gid(FAR, 0xffff, RDMA_IB_IP_PS_TCP | 7492, ~0ULL);
		memcpy(&to.ib.sib_addr, &gid, 16);
		if (pair_open_at(&by_gid, RDMA_PS_TCP, NEAR, &to)) {
			CHECK(by_gid.listener->port_num == 2);
			if (pair_resolve(&by_gid, true)) {
				obs("client: port %u to %s", by_gid.client->port_num,
				    port_name(pair.listener, ntohs(by_gid.client->route.path_rec->dlid)));
				if (pair_request(&by_gid, &param, true)) {
					CHECK(by_gid.server->port_num == 2);
					CALL(rdma_accept(by_gid.server, &param));
					take_event("client", by_gid.client_channel, RDMA_CM_EVENT_ESTABLISHED);
					exchange(&by_gid, "by GID");
				}
			}
		}
		pair_close(&by_gid);
	}
	pair_close(&pair);
}

static void ports_of_devices(void)
{
	struct ibv_context **list;
	struct ibv_device_attr attr;
	int count;

	topic("devices");
	list = rdma_get_devices(&count);
	for (int i = 0; list && i < count; i++)
		if (!strncmp(ibv_get_device_name(list[i]->device), "vib", 3) && SETUP(!ibv_query_device(list[i], &attr)))
			obs("%s: %u ports", ibv_get_device_name(list[i]->device), attr.phys_port_cnt);
	rdma_free_devices(list);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	ports_of_devices();
	second_port();
	migration(true);
	migration(false);
	return finish();
}
