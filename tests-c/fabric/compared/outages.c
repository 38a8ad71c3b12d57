/*
 * What programs see when the fabric fails: the subnet manager is away, the port is not ACTIVE, a
 * cable is pulled in each phase of a connection, LIDs change, another subnet manager takes over.
 */
#include "fabric.h"

static const char *const phases[] = { "before the address", "before the route", "before the QP", "before connecting",
				      "before accepting", "while connected", "before disconnecting" };
enum phase { ADDRESS, ROUTE, QP, CONNECTING, ACCEPTING, CONNECTED, DISCONNECTING };

static bool next(struct rdma_event_channel *channel, const char *who, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event = get_event(who, channel);
	bool good = event && event->event == wanted;

	if (event)
		rdma_ack_cm_event(event);
	return good;
}

/* A send that nobody can receive: the QP gives up after its own time-out. */
static void send_into_nothing(struct pair *pair)
{
	char buffer[32] = "lost";
	struct ibv_mr *mr = rdma_reg_msgs(pair->client, buffer, sizeof(buffer));
	struct ibv_wc wc;

	if (SETUP(mr) && !CALL(rdma_post_send(pair->client, NULL, buffer, sizeof(buffer), mr, 0))) {
		while (!ibv_poll_cq(pair->client->send_cq, 1, &wc))
			pause_briefly();
		obs("send: %s", ibv_wc_status_str(wc.status));
	}
	rdma_dereg_mr(mr);
}

/* The phases of a connection; the cable is pulled before one of them. Ends where the result is known. */
static void phases_until(struct pair *pair, enum phase pulled, enum host host)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP), own = attr;
	struct rdma_conn_param param = conn_param(NULL, 0);

#define PULL(phase)                                                        \
	do {                                                               \
		if (pulled == (phase))                                     \
			SETUP(cable(host, false) && await_port(host, "DOWN") && forget_neighbours()); \
	} while (0)
	PULL(ADDRESS);
	if (CALL(rdma_resolve_addr(pair->client, NULL, &pair->to.sa, 500)) ||
	    !next(pair->client_channel, "client", RDMA_CM_EVENT_ADDR_RESOLVED))
		return;
	PULL(ROUTE);
	if (CALL(rdma_resolve_route(pair->client, 300)) ||
	    !next(pair->client_channel, "client", RDMA_CM_EVENT_ROUTE_RESOLVED))
		return;
	PULL(QP);
	if (CALL(rdma_create_qp(pair->client, NULL, &attr)))
		return;
	if (pulled == QP)
		return;
	/* The kernel's CM asks again for a minute: what it gives up is not waited for here (tests/faults), but the cable is put
	 * in again. */
	PULL(CONNECTING);
	if (CALL(rdma_connect(pair->client, &param)))
		return;
	if (pulled == CONNECTING)
		SETUP(cable(host, true));
	pair->server = quiet_event(pair->server_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	if (!pair->server)
		return;
	id_name(pair->server, "server");
	SETUP(!rdma_create_qp(pair->server, NULL, &own));
	PULL(ACCEPTING);
	if (CALL(rdma_accept(pair->server, &param)))
		return;
	if (pulled == ACCEPTING)
		SETUP(cable(host, true));
	if (!next(pair->client_channel, "client", RDMA_CM_EVENT_ESTABLISHED) ||
	    !next(pair->server_channel, "server", RDMA_CM_EVENT_ESTABLISHED))
		return;
	if (pulled < CONNECTED)
		return;
	PULL(CONNECTED);
	if (pulled == CONNECTED) {
		CHECK(!channel_ready(pair->client_channel));
		send_into_nothing(pair);
		CHECK(!channel_ready(pair->client_channel));
		return;
	}
	PULL(DISCONNECTING);
	CALL(rdma_disconnect(pair->client));
#undef PULL
}

static void pulled_cable(enum phase phase, enum host host)
{
	union address listener = host_addr(FAR, AF_INET, 0, 0);
	struct pair pair;

	topic("%s cable pulled %s", host == FAR ? "far" : "near", phases[phase]);
	if (pair_open_at(&pair, RDMA_PS_TCP, FAR, &listener))
		phases_until(&pair, phase, host);
	SETUP(cable(host, true));
	pair_close(&pair);
	SETUP(fabric_works());
}

/* A connection to the far host works. */
static void works(const char *name)
{
	union address listener = host_addr(FAR, AF_INET, 0, 0);
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct pair pair;

	obs("%s", name);
	if (pair_open_at(&pair, RDMA_PS_TCP, FAR, &listener) && pair_resolve(&pair, true) && pair_request(&pair, &param, true) &&
	    SETUP(!rdma_accept(pair.server, &param)))
		CHECK(quiet_event(pair.client_channel, RDMA_CM_EVENT_ESTABLISHED) != NULL);
	pair_close(&pair);
}

/* Without a subnet manager the port stays as it is, and paths are not found. */
static void no_subnet_manager(void)
{
	union address listener = host_addr(FAR, AF_INET, 0, 0);
	struct pair pair;

	topic("no subnet manager");
	SETUP(sm_stop());
	if (pair_open_at(&pair, RDMA_PS_TCP, FAR, &listener))
		phases_until(&pair, CONNECTED, FAR);
	pair_close(&pair);

	topic("port in INIT");
	SETUP(cable(NEAR, false) && await_port(NEAR, "DOWN") && cable(NEAR, true) && await_port(NEAR, "INIT") &&
	      forget_neighbours());
	if (pair_open_at(&pair, RDMA_PS_TCP, FAR, &listener)) {
		union address own = host_addr(NEAR, AF_INET, 0, 0);
		struct ibv_port_attr port;
		struct rdma_cm_id *id;

		phases_until(&pair, CONNECTED, FAR);
		SETUP(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
		id_name(id, "id");
		if (!CALL(rdma_bind_addr(id, &own.sa))) {
			CALL(rdma_listen(id, 1));
			if (id->verbs && SETUP(!ibv_query_port(id->verbs, 1, &port)))
				obs("state %s", ibv_port_state_str(port.state));
		}
		id_destroy(id);
	}
	pair_close(&pair);
	SETUP(sm_start("") && fabric_works());
	works("subnet manager again");
}

/* A new subnet manager gives the ports other LIDs: connections over the old ones end at the next message. */
static void changed_lids(void)
{
	union address listener = host_addr(FAR, AF_INET, 0, 0);
	struct rdma_conn_param param = conn_param(NULL, 0);
	unsigned int before = host_lid(FAR);
	struct pair pair;

	topic("LIDs change");
	if (pair_open_at(&pair, RDMA_PS_TCP, FAR, &listener) && pair_resolve(&pair, true) && pair_request(&pair, &param, true) &&
	    SETUP(!rdma_accept(pair.server, &param)) && next(pair.client_channel, "client", RDMA_CM_EVENT_ESTABLISHED) &&
	    next(pair.server_channel, "server", RDMA_CM_EVENT_ESTABLISHED)) {
		SETUP(sm_renumber(true));
		SETUP(fabric_works());
		CHECK(host_lid(FAR) != before);
		CHECK(!channel_ready(pair.client_channel));
		send_into_nothing(&pair);
		CHECK(!channel_ready(pair.client_channel));
	}
	pair_close(&pair);
	works("with the new LIDs");
	SETUP(sm_renumber(false) && fabric_works());
	CHECK(host_lid(FAR) == before);
}

/* A second subnet manager takes over, and gives back when it ends. */
static void hand_over(void)
{
	topic("hand-over");
	SETUP(second_sm_start() && fabric_works());
	works("the second one");
	SETUP(second_sm_stop() && fabric_works());
	works("the first one");
}

int main(int argc, char **argv)
{
	start(argc, argv);
	/* Before the route: what is answered depends on what the subnet manager has noticed; see paths.c. */
	for (int phase = ADDRESS; phase <= DISCONNECTING; phase++)
		if (phase != ROUTE)
			pulled_cable(phase, FAR);
	pulled_cable(ADDRESS, NEAR);
	pulled_cable(ROUTE, NEAR);
	pulled_cable(CONNECTING, NEAR);
	no_subnet_manager();
	changed_lids();
	hand_over();
	return finish();
}
