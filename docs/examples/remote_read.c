/*
 * RDMA read: the client fetches a text from the memory of the server, whose processor takes no part.
 *
 * remote_read -l TEXT PORT lets one client after another read TEXT, at most 4096 bytes.
 * remote_read ADDRESS PORT prints it.
 */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 4096 };

/* Where the text is: private data of the server's answer, in network byte order. */
struct place {
	uint64_t address;
	uint32_t key, length;
};

static char memory[LENGTH];

static void check(int failed, const char *what)
{
	if (failed) {
		perror(what);
		exit(1);
	}
}

/* Creates an id with its QP, for a peer or for requests. */
static struct rdma_cm_id *create_ep(const char *address, const char *port)
{
	struct rdma_addrinfo hints = { .ai_flags = address ? 0 : RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *id;

	check(rdma_getaddrinfo(address, port, &hints, &found), "rdma_getaddrinfo");
	check(rdma_create_ep(&id, found, NULL, &attr), "rdma_create_ep");
	rdma_freeaddrinfo(found);
	return id;
}

/* What fails here may be the client's fault, and does not end the server. */
static void serve_client(struct rdma_cm_id *id, size_t length)
{
	struct ibv_mr *registered = rdma_reg_read(id, memory, length);
	struct place place = { htobe64((uintptr_t)memory), 0, htonl((uint32_t)length) };
	struct rdma_conn_param param = { .private_data = &place, .private_data_len = sizeof(place),
					 .responder_resources = 1 };
	struct rdma_cm_event *event;

	if (!registered) {
		perror("rdma_reg_read");
		return;
	}
	place.key = htonl(registered->rkey);
	if (rdma_accept(id, &param)) {
		perror("rdma_accept");
	} else if (rdma_get_cm_event(id->channel, &event)) {
		perror("rdma_get_cm_event");
	} else {
		/* A connection has no other event than its end, except where adapters are removed. */
		printf("client: %s\n", rdma_event_str(event->event));
		rdma_ack_cm_event(event);
		/* No rdma_disconnect(): it would wait for an event that has been read. */
	}
	/* From now on the peer cannot read there. */
	rdma_dereg_mr(registered);
}

static void serve(const char *text, const char *port)
{
	struct rdma_cm_id *listener = create_ep(NULL, port), *client;
	size_t length = strlen(text);

	memcpy(memory, text, length);
	check(rdma_listen(listener, 8), "rdma_listen");
	printf("listening\n");
	for (;;) {
		check(rdma_get_request(listener, &client), "rdma_get_request");
		serve_client(client, length);
		rdma_destroy_ep(client);
	}
}

static void print_text(const char *address, const char *port)
{
	struct rdma_cm_id *id = create_ep(address, port);
	/* On iWARP the peer writes what a read fetches, and its key has to allow that. */
	int iwarp = id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
	struct ibv_mr *registered = iwarp ? rdma_reg_write(id, memory, LENGTH) : rdma_reg_msgs(id, memory, LENGTH);
	struct rdma_conn_param param = { .initiator_depth = 1, .retry_count = 7 };
	struct ibv_wc completion;
	struct place place;

	check(!registered, "cannot register the memory");
	check(rdma_connect(id, &param), "rdma_connect");
	/* The call has waited for this event, since the id has no channel. It stays until the next one. */
	errno = EPROTO;
	check(id->event->param.conn.private_data_len < sizeof(place), "the server's answer");
	memcpy(&place, id->event->param.conn.private_data, sizeof(place));
	place.length = ntohl(place.length);
	/* InfiniBand fills an answer up with zeros. */
	check(!place.length || place.length > LENGTH, "the server's answer");
	check(rdma_post_read(id, NULL, memory, place.length, registered, 0, be64toh(place.address), ntohl(place.key)),
	      "rdma_post_read");
	check(rdma_get_send_comp(id, &completion) < 1, "rdma_get_send_comp");
	errno = EIO;
	check(completion.status != IBV_WC_SUCCESS, ibv_wc_status_str(completion.status));
	printf("read: %.*s\n", (int)place.length, memory);
	rdma_disconnect(id);
	rdma_dereg_mr(registered);
	rdma_destroy_ep(id);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 4 && !strcmp(argv[1], "-l") && argv[2][0] && strlen(argv[2]) <= LENGTH) {
		serve(argv[2], argv[3]);
	} else if (argc == 3) {
		print_text(argv[1], argv[2]);
	} else {
		fprintf(stderr, "usage: %s ADDRESS PORT | -l TEXT PORT\n", argv[0]);
		return 2;
	}
	return 0;
}
