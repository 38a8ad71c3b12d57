/*
 * One message to a server and its answer, with the synchronous calls of rdma_cma.h.
 *
 * message ADDRESS PORT TEXT sends TEXT, at most 256 bytes.
 * message -l PORT answers one client after another.
 * The client sends first: on iWARP the side that connects has to.
 */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LENGTH = 256, TIMEOUT = 10000 };

static char received[LENGTH], sent[LENGTH];

static bool failed(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	return false;
}

/* Creates an id with its QP, for a peer or for requests. */
static struct rdma_cm_id *create_ep(const char *address, const char *port, bool passive)
{
	struct rdma_addrinfo hints = { .ai_flags = passive ? RAI_PASSIVE : 0, .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *id = NULL;

	if (rdma_getaddrinfo(address, port, &hints, &found)) {
		failed("rdma_getaddrinfo");
		return NULL;
	}
	if (rdma_create_ep(&id, found, NULL, &attr)) {
		failed("rdma_create_ep");
		id = NULL;
	}
	rdma_freeaddrinfo(found);
	return id;
}

/* A completion has an error of its own, which is not in errno. */
static bool check_completion(int count, const struct ibv_wc *completion, const char *what)
{
	if (count < 1)
		return failed(what);
	if (completion->status != IBV_WC_SUCCESS)
		fprintf(stderr, "%s: %s\n", what, ibv_wc_status_str(completion->status));
	return completion->status == IBV_WC_SUCCESS;
}

/* Waits for the message whose receive is posted. Returns its length, or -1. */
static int wait_for_message(struct rdma_cm_id *id)
{
	/* A receive does not complete when the peer goes. That is an event of the id. */
	struct pollfd ready[2] = { { id->recv_cq_channel->fd, POLLIN, 0 }, { id->channel->fd, POLLIN, 0 } };
	struct ibv_wc completion;

	errno = ETIMEDOUT;
	if (poll(ready, 2, TIMEOUT) < 1)
		return failed("receive") - 1;
	if (!ready[0].revents) {
		fprintf(stderr, "receive: the peer has ended the connection\n");
		return -1;
	}
	if (!check_completion(rdma_get_recv_comp(id, &completion), &completion, "receive"))
		return -1;
	return (int)completion.byte_len;
}

static bool send_message(struct rdma_cm_id *id, int length, struct ibv_mr *memory)
{
	struct ibv_wc completion;

	if (rdma_post_send(id, NULL, sent, (size_t)length, memory, 0))
		return failed("rdma_post_send");
	return check_completion(rdma_get_send_comp(id, &completion), &completion, "send");
}

/* One message in each direction: the client's first. */
static bool exchange(struct rdma_cm_id *id, const char *text)
{
	struct ibv_mr *from = rdma_reg_msgs(id, sent, LENGTH), *to = rdma_reg_msgs(id, received, LENGTH);
	bool active = text != NULL, done = false;
	int length = 0;

	if (active) {
		length = (int)strnlen(text, LENGTH);
		memcpy(sent, text, (size_t)length);
	}
	if (!from || !to) {
		failed("rdma_reg_msgs");
	} else if ((errno = ibv_req_notify_cq(id->recv_cq, 0))) {
		failed("ibv_req_notify_cq");
	} else if (rdma_post_recv(id, NULL, received, LENGTH, to)) {
		/* Before the connection is made: a message without a receive would be lost. */
		failed("rdma_post_recv");
	} else if (active ? rdma_connect(id, NULL) : rdma_accept(id, NULL)) {
		failed(active ? "rdma_connect" : "rdma_accept");
	} else {
		if (active) {
			done = send_message(id, length, from) && (length = wait_for_message(id)) >= 0;
			if (done)
				printf("answer: %.*s\n", length, received);
		} else if ((length = wait_for_message(id)) >= 0) {
			printf("received: %.*s\n", length, received);
			memcpy(sent, received, (size_t)length);
			done = send_message(id, length, from);
		}
		rdma_disconnect(id);
	}
	if (from)
		rdma_dereg_mr(from);
	if (to)
		rdma_dereg_mr(to);
	return done;
}

static int serve(const char *port)
{
	struct rdma_cm_id *listener = create_ep(NULL, port, true), *client;

	if (!listener)
		return 1;
	if (rdma_listen(listener, 8)) {
		failed("rdma_listen");
	} else {
		printf("listening\n");
		fflush(stdout);
		while (!rdma_get_request(listener, &client)) {
			exchange(client, NULL);
			fflush(stdout);
			rdma_destroy_ep(client);
		}
		failed("rdma_get_request");
	}
	rdma_destroy_ep(listener);
	return 1;
}

int main(int argc, char **argv)
{
	struct rdma_cm_id *id;
	bool done;

	if (argc == 3 && !strcmp(argv[1], "-l"))
		return serve(argv[2]);
	if (argc != 4) {
		fprintf(stderr, "usage: %s ADDRESS PORT TEXT | -l PORT\n", argv[0]);
		return 2;
	}
	if (strlen(argv[3]) > LENGTH) {
		fprintf(stderr, "the text is longer than %d bytes\n", LENGTH);
		return 2;
	}
	id = create_ep(argv[1], argv[2], false);
	done = id && exchange(id, argv[3]);
	if (id)
		rdma_destroy_ep(id);
	return !done;
}
