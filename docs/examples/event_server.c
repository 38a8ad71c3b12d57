/*
 * A server for many clients in one thread, with an event channel and one completion channel.
 *
 * event_server PORT answers one message of each client (message.c), at most 64 clients at a time.
 */
#include <rdma/rdma_cma.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>

enum { LENGTH = 256, CLIENTS = 64 };

/* A connection: its context is in its id and in the numbers of its work requests. */
struct client {
	struct rdma_cm_id *id;
	struct ibv_mr *memory;
	/* A work request is posted. Its completion names the client, which is freed after it. */
	bool posted;
	bool connected, ended;
	char bytes[LENGTH];
};

static int clients;

/* Those of the first device. All connections share the CQ, which has an entry for each. */
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
	cq = channel ? ibv_create_cq(device, CLIENTS, NULL, channel, 0) : NULL;
	if (!pd || !cq || (errno = ibv_req_notify_cq(cq, 0)))
		fatal("cannot use the device");
	return true;
}

static bool post_recv(struct client *client)
{
	struct ibv_sge piece = { (uintptr_t)client->bytes, LENGTH, client->memory->lkey };
	struct ibv_recv_wr request = { .wr_id = (uintptr_t)client, .sg_list = &piece, .num_sge = 1 }, *bad;

	/* The functions of libibverbs whose result is an int return the error. */
	errno = ibv_post_recv(client->id->qp, &request, &bad);
	client->posted = errno == 0;
	return client->posted;
}

static bool post_send(struct client *client, uint32_t length)
{
	struct ibv_sge piece = { (uintptr_t)client->bytes, length, client->memory->lkey };
	struct ibv_send_wr request = { .wr_id = (uintptr_t)client, .sg_list = &piece, .num_sge = 1,
				       .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;

	client->posted = !ibv_post_send(client->id->qp, &request, &bad);
	return client->posted;
}

static void close_client(struct client *client)
{
	clients--;
	if (client->id->qp)
		rdma_destroy_qp(client->id);
	if (client->memory)
		ibv_dereg_mr(client->memory);
	rdma_destroy_id(client->id);
	free(client);
}

/* Closes the client, after the work request that is posted has been flushed. */
static void end_client(struct client *client)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };

	client->ended = true;
	if (!client->posted)
		close_client(client);
	else if ((errno = ibv_modify_qp(client->id->qp, &error, IBV_QP_STATE)))
		fatal("ibv_modify_qp");
}

static void accept_client(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct client *client = clients < CLIENTS ? calloc(1, sizeof(*client)) : NULL;

	if (!client || !open_device(id->verbs)) {
		rdma_reject(id, NULL, 0);
		rdma_destroy_id(id);
		free(client);
		return;
	}
	clients++;
	client->id = id;
	id->context = client;
	attr.send_cq = attr.recv_cq = cq;
	client->memory = ibv_reg_mr(pd, client->bytes, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	if (!client->memory || rdma_create_qp(id, pd, &attr) || !post_recv(client) || rdma_accept(id, NULL)) {
		fprintf(stderr, "a client is rejected: %s\n", strerror(errno));
		rdma_reject(id, NULL, 0);
		end_client(client);
	}
}

static void handle_event(struct rdma_cm_event *event)
{
	struct rdma_cm_id *id = event->id;
	struct client *client = id->context;
	enum rdma_cm_event_type kind = event->event;

	/*
	 * The private data of a request is in the event: who needs it acknowledges the event after rdma_accept().
	 * rdma_destroy_id() waits until all events of the id are acknowledged.
	 */
	rdma_ack_cm_event(event);
	if (kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
		accept_client(id);
	} else if (kind == RDMA_CM_EVENT_ESTABLISHED) {
		client->connected = true;
	} else if (kind == RDMA_CM_EVENT_DISCONNECTED) {
		rdma_disconnect(id);
		end_client(client);
	} else if (kind == RDMA_CM_EVENT_CONNECT_ERROR || kind == RDMA_CM_EVENT_REJECTED ||
		   /* Of a connection, only that the peer's neighbour entry has changed. */
		   (kind == RDMA_CM_EVENT_UNREACHABLE && !client->connected)) {
		end_client(client);
	} else if (kind == RDMA_CM_EVENT_DEVICE_REMOVAL) {
		fatal("the device was removed");
	}
}

/* Sends a received message back. */
static void handle_completion(const struct ibv_wc *completion)
{
	struct client *client = (struct client *)(uintptr_t)completion->wr_id;

	client->posted = false;
	if (client->ended) {
		close_client(client);
	} else if (completion->status != IBV_WC_SUCCESS) {
		rdma_disconnect(client->id);
	} else if (completion->opcode == IBV_WC_RECV) {
		printf("received: %.*s\n", (int)completion->byte_len, client->bytes);
		if (!post_send(client, completion->byte_len))
			rdma_disconnect(client->id);
	}
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
	if ((errno = ibv_req_notify_cq(ready, 0)))
		fatal("ibv_req_notify_cq");
	while ((count = ibv_poll_cq(ready, 16, completions)) > 0)
		for (int i = 0; i < count; i++)
			handle_completion(&completions[i]);
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
	    rdma_bind_addr(listener, (struct sockaddr *)&any) || rdma_listen(listener, CLIENTS))
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
