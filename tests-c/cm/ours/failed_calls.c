/*
 * The state after failed calls: attributes do not refer to destroyed objects, and memory that the kernel
 * refers to lives. Run on ours only: the reference's attributes refer to CQs that it has destroyed, and
 * it frees memory whose address the kernel reports later.
 */
#include "commands.h"

#include <arpa/inet.h>
#include <sys/syscall.h>

static bool leaving_fails;

static ssize_t command(int fd, const void *data, size_t len)
{
	struct ucma_abi_cmd_hdr header;

	if (leaving_fails && len >= sizeof(header)) {
		memcpy(&header, data, sizeof(header));
		if (header.cmd == UCMA_CMD_LEAVE_MCAST) {
			errno = EIO;
			return -1;
		}
	}
	return to_kernel(fd, data, len);
}

static struct rdma_cm_id *bound(enum rdma_port_space ps)
{
	union address address = local_addr(AF_INET, 0);
	struct rdma_cm_id *id = NULL;

	EXPECT(!rdma_create_id(NULL, &id, NULL, ps) && !rdma_bind_addr(id, &address.sa));
	return id;
}

/* The attributes are unchanged, and a second attempt with valid ones succeeds. */
static void queue_pair(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_cm_id *id = bound(RDMA_PS_TCP);

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

	EXPECT(rdma_create_srq(id, NULL, &attr) == -1);
	EXPECT(!id->srq && !id->send_cq && !id->recv_cq);
	attr.attr.max_wr = 4;
	EXPECT(!rdma_create_srq(id, NULL, &attr));
	EXPECT(!rdma_create_qp(id, NULL, &qp) && qp.srq == id->srq);
	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	EXPECT(!rdma_destroy_id(id));
}

/* The kernel may still report events of a group until it has left it: the group lives until then. */
static void group_that_can_not_be_left(void)
{
	union address address = local_addr(AF_INET, 0);
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_UDP);
	struct rdma_cm_id *id = bound(RDMA_PS_UDP);

	EXPECT(!rdma_create_qp(id, NULL, &attr));
	leaving_fails = true;
	/* The QP cannot be attached to an address that is not a multicast address. */
	EXPECT(rdma_join_multicast(id, &address.sa, NULL) == -1);
	EXPECT_ERROR(rdma_leave_multicast(id, &address.sa), EIO);
	leaving_fails = false;
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
	CASE(queue_pair);
	CASE_IF(!on_siw(), shared_receive_queue);
	CASE_IF(!on_siw(), queue_pair_in_a_group);
	/* On InfiniBand every address can be a group's. */
	CASE_IF(!on_siw() && !on_ib(), group_that_can_not_be_left);
	return finish();
}
