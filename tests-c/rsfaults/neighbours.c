/*
 * The kernel reports RDMA_CM_EVENT_UNREACHABLE for established connections over RoCE when the peer's hardware address
 * changes or is not found: a bond or a router fails over, a switch restarts. The QP goes on, and so do rsockets.
 */
#include "ends.h"

#include <rdma/rdma_cma.h>

static struct rdma_event_channel *channel;
static struct rdma_cm_id *witness;

static enum rdma_cm_event_type next_event(void)
{
	enum rdma_cm_event_type type;
	struct rdma_cm_event *event;

	EXPECT(!rdma_get_cm_event(channel, &event));
	type = event->event;
	EXPECT(!rdma_ack_cm_event(event));
	return type;
}

/* An id with the same neighbour gets its event after the client's. */
static void connected_with_witness(void)
{
	union address address = far_addr();

	connected();
	EXPECT((channel = rdma_create_event_channel()) && !rdma_create_id(channel, &witness, NULL, RDMA_PS_TCP));
	EXPECT(!rdma_resolve_addr(witness, NULL, &address.sa, 2000) && next_event() == RDMA_CM_EVENT_ADDR_RESOLVED);
	EXPECT(!rdma_resolve_route(witness, 2000) && next_event() == RDMA_CM_EVENT_ROUTE_RESOLVED);
}

static bool reports_neighbours(void) { return !on_siw() && !on_ib(); }

static void await_event(void)
{
	if (reports_neighbours())
		EXPECT(next_event() == RDMA_CM_EVENT_UNREACHABLE);
}

static void closed_with_witness(void)
{
	EXPECT(!rdma_destroy_id(witness));
	rdma_destroy_event_channel(channel);
	all_closed();
}

static void goes_on(const char *neighbour, bool answers)
{
	char byte = 0;

	connected_with_witness();
	link_is(neighbour);
	/* Asks for the neighbour. */
	EXPECT(rsend(client, "x", 1, 0) == 1);
	await_event();
	/* An rsocket's descriptor is that of its event channel: the library's thread has read the event. */
	while (poll(&(struct pollfd){ .fd = client, .events = POLLIN }, 1, 0) == 1)
		pause_briefly();
	link_is("good");
	EXPECT(rrecv(server, &byte, 1, 0) == 1 && byte == 'x');
	if (answers)
		EXPECT(rsend(server, "y", 1, 0) == 1 && rrecv(client, &byte, 1, 0) == 1 && byte == 'y');
	closed_with_witness();
}
static void neighbour_is_silent(void) { goes_on("silent", true); }
static void neighbour_is_astray(void) { goes_on("astray", true); }
/* The server's own soft-RoCE sends nothing from an address that has left its table of GIDs for a moment. */
static void neighbour_is_renumbered(void) { goes_on("renumbered", !reports_neighbours()); }
static void neighbour_has_moved(void) { goes_on("moved", !reports_neighbours()); }

/* What was sent before rclose(3) arrives. */
static void neighbour_is_astray_while_closing(void)
{
	static uint8_t bytes[4000];

	connected_with_witness();
	EXPECT(!rfcntl(client, F_SETFL, O_NONBLOCK));
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = byte_at(i);
	link_is("loss 100");
	EXPECT(rsend(client, bytes, sizeof(bytes), 0) == sizeof(bytes) && !rclose(client));
	link_is("astray");
	await_event();
	link_is("good");
	EXPECT(receive_to(0, SIZE_MAX) == sizeof(bytes));
	client = rsocket(AF_INET, SOCK_STREAM, 0);
	closed_with_witness();
}

static void there_and_back(const union address *to)
{
	union address from;
	socklen_t len = sizeof(from);
	char byte = 0;

	EXPECT(rsendto(client, "x", 1, 0, &to->sa, sizeof(to->in)) == 1);
	EXPECT(rrecvfrom(server, &byte, 1, 0, &from.sa, &len) == 1 && byte == 'x');
	EXPECT(rsendto(server, "y", 1, 0, &from.sa, len) == 1 && rrecv(client, &byte, 1, 0) == 1 && byte == 'y');
}

/* The first datagrams have the paths looked for, and the last ones take them. */
static void neighbour_of_datagrams_is_astray(void)
{
	union address to = far_addr();
	socklen_t len = sizeof(to);

	link_is("good");
	enter_far_host(true);
	EXPECT((server = rsocket(AF_INET, SOCK_DGRAM, 0)) >= 0 && !rbind(server, &to.sa, sizeof(to.in)));
	enter_far_host(false);
	EXPECT(!rgetsockname(server, &to.sa, &len) && (client = rsocket(AF_INET, SOCK_DGRAM, 0)) >= 0);
	there_and_back(&to);
	link_is("astray");
	link_is("good");
	for (int i = 0; i < 4; i++)
		there_and_back(&to);
	EXPECT(!rclose(client) && !rclose(server));
}

void neighbour_cases(void)
{
	FAULT(neighbour_is_silent);
	FAULT(neighbour_is_astray);
	/* The hardware address of IPoIB is the port's GID. */
	FAULT_IF(!on_ib(), neighbour_is_renumbered);
	FAULT(neighbour_has_moved);
	FAULT(neighbour_is_astray_while_closing);
	FAULT_IF(reports_neighbours(), neighbour_of_datagrams_is_astray);
}
