/*
 * The state after failed calls: attributes do not refer to destroyed objects, and memory that the kernel
 * refers to lives. Run on ours only: the reference's attributes refer to CQs that it has destroyed, and
 * it frees memory whose address the kernel reports later.
 */
#include "commands.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>

/* The command that fails, if any: UCMA_CMD_CREATE_ID is 0. */
static uint32_t failing = UCMA_CMD_CREATE_ID;

static ssize_t command(int fd, const void *data, size_t len)
{
	struct ucma_abi_cmd_hdr header;

	if (failing && len >= sizeof(header)) {
		memcpy(&header, data, sizeof(header));
		if (header.cmd == failing) {
			errno = EIO;
			return -1;
		}
	}
	return to_kernel(fd, data, len);
}

/* The command of libibverbs that fails, counted from 1; 0: none. */
static int failing_ioctl;

int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	void *argument;

	va_start(list, request);
	argument = va_arg(list, void *);
	va_end(list);
	if (failing_ioctl && --failing_ioctl == 0) {
		errno = EIO;
		return -1;
	}
	return (int)next_syscall()(SYS_ioctl, fd, request, argument);
}

static struct rdma_cm_id *bound(enum rdma_port_space ps)
{
	union address address = local_addr(AF_INET, 0);
	struct rdma_cm_id *id = NULL;

	EXPECT(!rdma_create_id(NULL, &id, NULL, ps) && !rdma_bind_addr(id, &address.sa));
	return id;
}

/* One of the commands that open a device fails. The next attempt succeeds, and nothing is left of the first one. */
static void new_device(void)
{
	enum { COMMANDS = 6 };
	union address address = local_addr(AF_INET, 0);
	struct { int failures, fds; } *shared;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	EXPECT(shared != MAP_FAILED);
	/* A process opens a device once. Without a failure first. */
	for (int number = 0; number <= COMMANDS; number++) {
		pid_t child = fork();

		if (child == 0) {
			struct rdma_cm_id *id;

			EXPECT(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
			failing_ioctl = number;
			shared->failures += rdma_bind_addr(id, &address.sa) == -1;
			failing_ioctl = 0;
			EXPECT(!rdma_destroy_id(id) && !rdma_destroy_id(bound(RDMA_PS_TCP)));
			if (number == 0)
				shared->fds = open_fds();
			EXPECT(open_fds() == shared->fds);
			_exit(CHILD_DONE);
		}
		EXPECT(child_done(child));
	}
	EXPECT(shared->failures > 1);
}

/* All ids share a PD, which ends with the last one: its number is free again. */
static void last_id(void)
{
	union address address = local_addr(AF_INET, 7);
	struct rdma_cm_id *id = bound(RDMA_PS_TCP), *other = bound(RDMA_PS_TCP);
	struct ibv_context *context = id->verbs;
	uint32_t handle = id->pd->handle;
	struct ibv_pd *pd;

	/* The address's device is the one that the id has. */
	EXPECT(!rdma_resolve_addr(id, NULL, &address.sa, 2000) && id->pd == other->pd);
	EXPECT(!rdma_destroy_id(id));
	EXPECT((pd = ibv_alloc_pd(context)) && pd->handle != handle && !ibv_dealloc_pd(pd));
	EXPECT(!rdma_destroy_id(other));
	EXPECT((pd = ibv_alloc_pd(context)) && pd->handle == handle && !ibv_dealloc_pd(pd));
}

/* The attributes are unchanged, and a second attempt with valid ones succeeds. */
static void queue_pair(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_cm_id *id = bound(RDMA_PS_TCP);
	int before = open_fds();

	/* More than a CQ can have. */
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 1u << 30;
	EXPECT(rdma_create_qp(id, NULL, &attr) == -1);
	EXPECT(!id->send_cq && !id->recv_cq && open_fds() == before);
	attr = qp_attr(RDMA_PS_TCP);

	attr.cap.max_send_wr = 16;
	attr.cap.max_send_sge = 1u << 20;
	EXPECT(rdma_create_qp(id, NULL, &attr) == -1);
	EXPECT(!attr.send_cq && !attr.recv_cq && !attr.srq);
	EXPECT(!id->qp && !id->send_cq && !id->recv_cq && !id->send_cq_channel && !id->recv_cq_channel);
	attr.cap.max_send_sge = 1;
	EXPECT(!rdma_create_qp(id, NULL, &attr));
	EXPECT(attr.send_cq == id->send_cq && attr.recv_cq == id->recv_cq);
	rdma_destroy_qp(id);
	EXPECT(!rdma_destroy_id(id));
}

static void shared_receive_queue(void)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 1u << 30, .max_sge = 1 } };
	struct ibv_qp_init_attr qp = qp_attr(RDMA_PS_TCP);
	struct rdma_cm_id *id = bound(RDMA_PS_TCP);
	struct ibv_srq *srq;

	EXPECT(rdma_create_srq(id, NULL, &attr) == -1);
	EXPECT(!id->srq && !id->send_cq && !id->recv_cq);
	attr.attr.max_wr = 4;
	EXPECT(!rdma_create_srq(id, NULL, &attr));
	EXPECT(!rdma_create_qp(id, NULL, &qp) && qp.srq == id->srq);
	/* The QP uses the CQs, and the device keeps the SRQ. */
	srq = id->srq;
	rdma_destroy_srq(id);
	EXPECT(!id->srq && id->send_cq && id->recv_cq);
	rdma_destroy_qp(id);
	EXPECT(!ibv_destroy_srq(srq));
	EXPECT(!rdma_destroy_id(id));
}

/* The connection is over for both ends, and the program learns of it once. */
static void response(void)
{
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct pollfd entry = { .events = POLLIN };
	struct rdma_cm_event *event;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct pair pair;

	EXPECT(pair_open(&pair, RDMA_PS_TCP, AF_INET) && pair_resolve(&pair, true));
	EXPECT(pair_request(&pair, &param, true) && !rdma_accept(pair.server, &param));
	failing = UCMA_CMD_ACCEPT;
	EXPECT(!rdma_get_cm_event(pair.client_channel, &event));
	failing = 0;
	EXPECT(event->event == RDMA_CM_EVENT_CONNECT_ERROR && event->status == -EIO);
	EXPECT(!rdma_ack_cm_event(event));
	EXPECT(!ibv_query_qp(pair.client->qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR);
	/* What the server's end causes is not shown. */
	EXPECT(!fcntl(pair.client_channel->fd, F_SETFL, O_NONBLOCK));
	rdma_destroy_qp(pair.server);
	EXPECT(!rdma_destroy_id(pair.server));
	pair.server = NULL;
	entry.fd = pair.client_channel->fd;
	EXPECT(poll(&entry, 1, -1) == 1);
	EXPECT_ERROR(rdma_get_cm_event(pair.client_channel, &event), EAGAIN);
	pair_close(&pair);
}

/* The kernel may still report events of a group until it has left it: the group lives until then. */
static void group_that_can_not_be_left(void)
{
	union address address = local_addr(AF_INET, 0);
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_UDP);
	struct rdma_cm_id *id = bound(RDMA_PS_UDP);

	EXPECT(!rdma_create_qp(id, NULL, &attr));
	failing = UCMA_CMD_LEAVE_MCAST;
	/* The QP cannot be attached to an address that is not a multicast address. */
	EXPECT(rdma_join_multicast(id, &address.sa, NULL) == -1);
	EXPECT_ERROR(rdma_leave_multicast(id, &address.sa), EIO);
	failing = 0;
	EXPECT(!rdma_leave_multicast(id, &address.sa));
	EXPECT_ERROR(rdma_leave_multicast(id, &address.sa), EADDRNOTAVAIL);
	rdma_destroy_qp(id);
	EXPECT(!rdma_destroy_id(id));
}

/* The kernel does not destroy a QP that is in a group: it leaves the group first. */
static void queue_pair_in_a_group(void)
{
	union address address = local_addr(AF_INET, 0);
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_UDP);
	struct rdma_cm_id *id = bound(RDMA_PS_UDP);
	int before;

	EXPECT(inet_pton(AF_INET, "239.1.1.7", &address.in.sin_addr) == 1);
	EXPECT(!rdma_create_qp(id, NULL, &attr) && !rdma_join_multicast(id, &address.sa, NULL));
	rdma_destroy_qp(id);
	before = open_fds();
	for (int round = 0; round < 3; round++) {
		attr = qp_attr(RDMA_PS_UDP);
		EXPECT(!rdma_create_qp(id, NULL, &attr));
		EXPECT(!rdma_leave_multicast(id, &address.sa) && !rdma_join_multicast(id, &address.sa, NULL));
		rdma_destroy_qp(id);
		EXPECT(open_fds() == before);
	}
	EXPECT(!rdma_leave_multicast(id, &address.sa));
	EXPECT(!rdma_destroy_id(id));
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(new_device);
	CASE(last_id);
	CASE(queue_pair);
	/* Soft-iWARP accepts without the last message of the handshake. */
	CASE_IF(!on_siw(), response);
	CASE_IF(!on_siw(), shared_receive_queue);
	CASE_IF(!on_siw(), queue_pair_in_a_group);
	/* On InfiniBand every address can be a group's. */
	CASE_IF(!on_siw() && !on_ib(), group_that_can_not_be_left);
	return finish();
}
