/*
 * A server for many clients in one thread: connections by an event channel, messages by one completion channel.
 *
 * event_server PORT answers the clients of message.c, as many at a time as come.
 */
#include <rdma/rdma_cma.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>

enum { LENGTH = 256, ENTRIES = 64 };

/* A connection: its context is in its id and in the numbers of its work requests. */
struct client {
	struct rdma_cm_id *id;
	struct ibv_mr *memory;
	char bytes[LENGTH];
};

/* Those of the first device. All connections share the CQ. */
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_pd *pd;

static void fatal(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static bool open_device(struct ibv_context *device)
{
	if (pd)
		return pd->context == device;
	pd = ibv_alloc_pd(device);
	channel = ibv_create_comp_channel(device);
	cq = channel ? ibv_create_cq(device, 2 * ENTRIES, NULL, channel, 0) : NULL;
	if (!pd || !cq || ibv_req_notify_cq(cq, 0))
		fatal("cannot use the device");
	return true;
}

static bool post_recv(struct client *client)
{
	struct ibv_sge piece = { (uintptr_t)client->bytes, LENGTH, client->memory->lkey };
	struct ibv_recv_wr request = { .wr_id = (uintptr_t)client, .sg_list = &piece, .num_sge = 1 }, *bad;

	return !ibv_post_recv(client->id->qp, &request, &bad);
}

static void close_client(struct client *client)
{
	if (client->id->qp)
		rdma_destroy_qp(client->id);
	if (client->memory)
		ibv_dereg_mr(client->memory);
	rdma_destroy_id(client->id);
	free(client);
}

static void accept_client(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct client *client = calloc(1, sizeof(*client));

	if (!client || !open_device(id->verbs)) {
		rdma_reject(id, NULL, 0);
		rdma_destroy_id(id);
		free(client);
		return;
	}
	client->id = id;
	id->context = client;
	attr.send_cq = attr.recv_cq = cq;
	client->memory = ibv_reg_mr(pd, client->bytes, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	if (!client->memory || rdma_create_qp(id, pd, &attr) || !post_recv(client) || rdma_accept(id, NULL)) {
		fprintf(stderr, "a client is rejected: %s\n", strerror(errno));
		rdma_reject(id, NULL, 0);
		close_client(client);
	}
}

static void handle_event(struct rdma_cm_event *event)
{
	struct rdma_cm_id *id = event->id;
	enum rdma_cm_event_type kind = event->event;

	/*
	 * The private data of a request is in the event: who needs it acknowledges the event after rdma_accept().
	 * rdma_destroy_id() waits until all events of the id are acknowledged.
	 */
	rdma_ack_cm_event(event);
	if (kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
		accept_client(id);
	} else if (kind == RDMA_CM_EVENT_DISCONNECTED) {
		rdma_disconnect(id);
		close_client(id->context);
	} else if (kind == RDMA_CM_EVENT_CONNECT_ERROR || kind == RDMA_CM_EVENT_UNREACHABLE ||
		   kind == RDMA_CM_EVENT_REJECTED) {
		close_client(id->context);
	} else if (kind == RDMA_CM_EVENT_DEVICE_REMOVAL) {
		fatal("the device was removed");
	}
}

/* Sends a received message back. The client sends no other before it has the answer. */
static void handle_message(const struct ibv_wc *completion)
{
	struct client *client = (struct client *)(uintptr_t)completion->wr_id;
	struct ibv_sge piece = { (uintptr_t)client->bytes, completion->byte_len, client->memory->lkey };
	struct ibv_send_wr request = { .opcode = IBV_WR_SEND, .sg_list = &piece, .num_sge = 1 }, *bad;

	printf("received: %.*s\n", (int)completion->byte_len, client->bytes);
	if (ibv_post_send(client->id->qp, &request, &bad))
		rdma_disconnect(client->id);
}

static void handle_completions(void)
{
	struct ibv_wc completions[16];
	struct ibv_cq *ready;
	void *context;
	int count;

	if (ibv_get_cq_event(channel, &ready, &context))
		fatal("ibv_get_cq_event");
	ibv_ack_cq_events(ready, 1);
	/* Armed before the last look: a completion in between raises another event. */
	if (ibv_req_notify_cq(ready, 0))
		fatal("ibv_req_notify_cq");
	while ((count = ibv_poll_cq(ready, 16, completions)) > 0)
		for (int i = 0; i < count; i++)
			/* Flushed receives belong to connections that end; their event comes by the other channel. */
			if (completions[i].status == IBV_WC_SUCCESS && completions[i].opcode == IBV_WC_RECV)
				handle_message(&completions[i]);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	/* IPv4: over iWARP a listener at the IPv6 wildcard takes no IPv4 clients. */
	struct sockaddr_in any = { .sin_family = AF_INET };
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *listener;

	if (argc != 2) {
		fprintf(stderr, "usage: %s PORT\n", argv[0]);
		return 2;
	}
	any.sin_port = htons((in_port_t)atoi(argv[1]));
	if (!events || rdma_create_id(events, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, (struct sockaddr *)&any) || rdma_listen(listener, ENTRIES))
		fatal("cannot listen");
	printf("listening\n");
	fflush(stdout);
	for (;;) {
		struct pollfd ready[2] = { { .fd = events->fd, .events = POLLIN },
					   { .fd = channel ? channel->fd : -1, .events = POLLIN } };

		if (poll(ready, 2, -1) < 0)
			fatal("poll");
		/* Messages first: a client's may come just before its end. */
		if (ready[1].revents)
			handle_completions();
		if (ready[0].revents && !rdma_get_cm_event(events, &event))
			handle_event(event);
	}
}
