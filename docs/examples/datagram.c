/*
 * Datagrams to one receiver or to a multicast group, over UD. iWARP has none.
 *
 * datagram -l OWN GROUP PORT prints what comes to the address OWN and to the group, for example 239.1.2.3.
 * datagram OWN TO PORT TEXT sends TEXT, at most 256 bytes, from OWN to such an address or group.
 * Datagrams may be lost, and the sender does not learn of it.
 */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The smallest MTU holds LENGTH. A datagram arrives behind room for a GRH. */
enum { LENGTH = 256, GRH = 40, RECEIVES = 16, TIMEOUT = 2000 };

static struct rdma_cm_id *id;

static void check(int failed, const char *what)
{
	if (failed) {
		perror(what);
		exit(1);
	}
}

static struct sockaddr_in parse(const char *address, const char *port)
{
	struct sockaddr_in parsed = { .sin_family = AF_INET, .sin_port = htons((in_port_t)atoi(port)) };

	errno = EINVAL;
	check(inet_pton(AF_INET, address, &parsed.sin_addr) != 1, address);
	return parsed;
}

/* Creates the id with its QP and registers the memory. */
static struct ibv_mr *open_id(struct sockaddr_in own, struct sockaddr_in *to, void *bytes, size_t length)
{
	struct sockaddr *from = (struct sockaddr *)&own;
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 1, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_mr *memory;

	/* Without a channel: its calls wait for their event, which it keeps until the next one. */
	check(rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP), "rdma_create_id");
	check(to ? rdma_resolve_addr(id, from, (struct sockaddr *)to, TIMEOUT) : rdma_bind_addr(id, from), "address");
	check(rdma_create_qp(id, NULL, &attr), "rdma_create_qp");
	memory = rdma_reg_msgs(id, bytes, length);
	check(!memory, "rdma_reg_msgs");
	return memory;
}

static void send_text(struct sockaddr_in own, struct sockaddr_in to, char *text)
{
	struct rdma_conn_param param = { 0 };
	struct rdma_ud_param *ud;
	struct ibv_wc completion;
	struct ibv_mr *memory = open_id(own, &to, text, strlen(text) + 1);
	struct ibv_ah *ah;

	if (IN_MULTICAST(ntohl(to.sin_addr.s_addr))) {
		check(rdma_join_multicast(id, (struct sockaddr *)&to, NULL), "rdma_join_multicast");
	} else {
		check(rdma_resolve_route(id, TIMEOUT), "rdma_resolve_route");
		/* There is no connection: it asks the receiver for its QP. */
		param.qp_num = id->qp->qp_num;
		check(rdma_connect(id, &param), "rdma_connect");
	}
	ud = &id->event->param.ud;
	ah = ibv_create_ah(id->pd, &ud->ah_attr);
	check(!ah, "ibv_create_ah");
	check(rdma_post_ud_send(id, NULL, text, strlen(text), memory, IBV_SEND_SIGNALED, ah, ud->qp_num),
	      "rdma_post_ud_send");
	check(rdma_get_send_comp(id, &completion) < 1, "rdma_get_send_comp");
	errno = EIO;
	check(completion.status != IBV_WC_SUCCESS, ibv_wc_status_str(completion.status));
	ibv_destroy_ah(ah);
	rdma_dereg_mr(memory);
	rdma_destroy_ep(id);
}

static void print_received(struct ibv_mr *memory)
{
	struct ibv_wc completion;
	struct ibv_cq *cq;
	void *context;

	check(ibv_get_cq_event(id->recv_cq_channel, &cq, &context), "ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
	/* Armed before the last look: a completion in between raises another event. */
	check((errno = ibv_req_notify_cq(cq, 0)), "ibv_req_notify_cq");
	while (ibv_poll_cq(cq, 1, &completion) > 0) {
		char *place = (char *)(uintptr_t)completion.wr_id;

		errno = EIO;
		check(completion.status != IBV_WC_SUCCESS, ibv_wc_status_str(completion.status));
		printf("received: %.*s\n", (int)completion.byte_len - GRH, place + GRH);
		check(rdma_post_recv(id, place, place, GRH + LENGTH, memory), "rdma_post_recv");
	}
}

static void receive(struct sockaddr_in own, struct sockaddr_in group)
{
	static char places[RECEIVES][GRH + LENGTH];
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_id *asking;
	struct ibv_mr *memory = open_id(own, NULL, places, sizeof(places));

	for (int i = 0; i < RECEIVES; i++)
		check(rdma_post_recv(id, places[i], places[i], sizeof(places[i]), memory), "rdma_post_recv");
	check((errno = ibv_req_notify_cq(id->recv_cq, 0)), "ibv_req_notify_cq");
	check(rdma_join_multicast(id, (struct sockaddr *)&group, NULL), "rdma_join_multicast");
	check(rdma_listen(id, 8), "rdma_listen");
	printf("listening\n");
	param.qp_num = id->qp->qp_num;
	for (;;) {
		struct pollfd ready[2] = { { id->channel->fd, POLLIN, 0 }, { id->recv_cq_channel->fd, POLLIN, 0 } };

		check(poll(ready, 2, -1) < 0, "poll");
		if (ready[0].revents) {
			check(rdma_get_request(id, &asking), "rdma_get_request");
			/* All senders are told the one QP. A sender may have gone already. */
			if (rdma_accept(asking, &param))
				perror("rdma_accept");
			rdma_destroy_id(asking);
		}
		if (ready[1].revents)
			print_received(memory);
	}
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 5 && !strcmp(argv[1], "-l")) {
		receive(parse(argv[2], argv[4]), parse(argv[3], argv[4]));
	} else if (argc == 5 && strlen(argv[4]) <= LENGTH) {
		send_text(parse(argv[1], "0"), parse(argv[2], argv[3]), argv[4]);
	} else {
		fprintf(stderr, "usage: %s OWN TO PORT TEXT | -l OWN GROUP PORT\n", argv[0]);
		return 2;
	}
	return 0;
}
