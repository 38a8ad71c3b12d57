/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Verbs on ids: buffers, work requests and completions of an id that has a QP of its own, and shared receive queues.
 *
 * Unless said otherwise a function returns 0, or -1 and errno. context comes back as wr_id of the work completion.
 */
#if !defined(RDMA_VERBS_H)
#define RDMA_VERBS_H

#include <assert.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <errno.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The result of a function of libibverbs as these functions report theirs: 0 stays 0; an errno value becomes -1 and
 * errno; -1 stays -1, with errno as that function left it.
 */
static inline int rdma_seterrno(int ret)
{
    if (ret > 0)
        errno = ret;
    return ret ? -1 : 0;
}

/**
 * Creates the shared receive queue of an id that is bound to a device.
 *
 * pd: NULL for the library's own, shared by the ids of the device. attr receives what the SRQ really can.
 */
int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr);

/**
 * Like rdma_create_srq(), with the extended attributes of ibv_create_srq_ex(), such as those for XRC. An XRC SRQ
 * without a CQ gets one, left with its completion channel in the id.
 */
int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr);

/** Destroys the SRQ of an id, and the CQs and completion channels that the library created for it. */
void rdma_destroy_srq(struct rdma_cm_id *id);

/** Registers memory for messages, results of RDMA reads, sources of RDMA writes; NULL and errno on failure. */
static inline struct ibv_mr *rdma_reg_msgs(struct rdma_cm_id *id, void *addr, size_t length)
{
    return ibv_reg_mr(id->pd, addr, length, (int)IBV_ACCESS_LOCAL_WRITE);
}

/** Registers memory that the peer may read by RDMA; NULL and errno on failure. */
static inline struct ibv_mr *rdma_reg_read(struct rdma_cm_id *id, void *addr, size_t length)
{
    return ibv_reg_mr(id->pd, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
}

/** Registers memory that the peer may write by RDMA; NULL and errno on failure. */
static inline struct ibv_mr *rdma_reg_write(struct rdma_cm_id *id, void *addr, size_t length)
{
    return ibv_reg_mr(id->pd, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

/** Ends a registration. */
static inline int rdma_dereg_mr(struct ibv_mr *mr)
{
    return rdma_seterrno(ibv_dereg_mr(mr));
}

/** Posts a receive into nsge buffers, to the SRQ of the id if it has one, otherwise to its QP. */
static inline int rdma_post_recvv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge)
{
    struct ibv_recv_wr wr, *bad;

    wr.wr_id = (uintptr_t)context;
    wr.next = NULL;
    wr.sg_list = sgl;
    wr.num_sge = nsge;
    return rdma_seterrno(id->srq ? ibv_post_srq_recv(id->srq, &wr, &bad) : ibv_post_recv(id->qp, &wr, &bad));
}

/** Posts a send of nsge buffers as one message. flags: IBV_SEND_*. */
static inline int rdma_post_sendv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags)
{
    struct ibv_send_wr wr, *bad;

    memset(&wr, 0, sizeof wr);
    wr.wr_id = (uintptr_t)context;
    wr.sg_list = sgl;
    wr.num_sge = nsge;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = (unsigned int)flags;
    return rdma_seterrno(ibv_post_send(id->qp, &wr, &bad));
}

/** Posts an RDMA read into nsge buffers from the peer's memory at remote_addr. flags: IBV_SEND_*. */
static inline int rdma_post_readv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags,
                                  uint64_t remote_addr, uint32_t rkey)
{
    struct ibv_send_wr wr, *bad;

    memset(&wr, 0, sizeof wr);
    wr.wr_id = (uintptr_t)context;
    wr.sg_list = sgl;
    wr.num_sge = nsge;
    wr.opcode = IBV_WR_RDMA_READ;
    wr.send_flags = (unsigned int)flags;
    wr.wr.rdma.remote_addr = remote_addr;
    wr.wr.rdma.rkey = rkey;
    return rdma_seterrno(ibv_post_send(id->qp, &wr, &bad));
}

/** Posts an RDMA write of nsge buffers to the peer's memory at remote_addr. flags: IBV_SEND_*. */
static inline int rdma_post_writev(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags,
                                   uint64_t remote_addr, uint32_t rkey)
{
    struct ibv_send_wr wr, *bad;

    memset(&wr, 0, sizeof wr);
    wr.wr_id = (uintptr_t)context;
    wr.sg_list = sgl;
    wr.num_sge = nsge;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = (unsigned int)flags;
    wr.wr.rdma.remote_addr = remote_addr;
    wr.wr.rdma.rkey = rkey;
    return rdma_seterrno(ibv_post_send(id->qp, &wr, &bad));
}

/** Posts a receive of up to length bytes at addr, inside the registration mr. */
static inline int rdma_post_recv(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr)
{
    struct ibv_sge sge;

    if (!mr)
        return rdma_seterrno(EINVAL);
    sge.addr = (uintptr_t)addr;
    sge.length = (uint32_t)length;
    sge.lkey = mr->lkey;
    return rdma_post_recvv(id, context, &sge, 1);
}

/** Posts a send of length bytes at addr. mr: their registration, or NULL with IBV_SEND_INLINE in flags. */
static inline int rdma_post_send(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr,
                                 int flags)
{
    struct ibv_sge sge;

    sge.addr = (uintptr_t)addr;
    sge.length = (uint32_t)length;
    sge.lkey = mr ? mr->lkey : 0;
    return rdma_post_sendv(id, context, &sge, 1, flags);
}

/** Posts an RDMA read of length bytes at the peer's remote_addr into addr, inside the registration mr. */
static inline int rdma_post_read(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr,
                                 int flags, uint64_t remote_addr, uint32_t rkey)
{
    struct ibv_sge sge;

    if (!mr)
        return rdma_seterrno(EINVAL);
    sge.addr = (uintptr_t)addr;
    sge.length = (uint32_t)length;
    sge.lkey = mr->lkey;
    return rdma_post_readv(id, context, &sge, 1, flags, remote_addr, rkey);
}

/**
 * Posts an RDMA write of length bytes at addr to the peer's remote_addr. mr: their registration, or NULL with
 * IBV_SEND_INLINE in flags.
 */
static inline int rdma_post_write(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr,
                                  int flags, uint64_t remote_addr, uint32_t rkey)
{
    struct ibv_sge sge;

    sge.addr = (uintptr_t)addr;
    sge.length = (uint32_t)length;
    sge.lkey = mr ? mr->lkey : 0;
    return rdma_post_writev(id, context, &sge, 1, flags, remote_addr, rkey);
}

/**
 * Posts a datagram of length bytes at addr, to the QP remote_qpn behind ah, with the Q_Key RDMA_UDP_QKEY. mr: their
 * registration, or NULL with IBV_SEND_INLINE in flags.
 */
static inline int rdma_post_ud_send(struct rdma_cm_id *id, void *context, void *addr, size_t length,
                                    struct ibv_mr *mr, int flags, struct ibv_ah *ah, uint32_t remote_qpn)
{
    struct ibv_send_wr wr, *bad;
    struct ibv_sge sge;

    sge.addr = (uintptr_t)addr;
    sge.length = (uint32_t)length;
    sge.lkey = mr ? mr->lkey : 0;
    memset(&wr, 0, sizeof wr);
    wr.wr_id = (uintptr_t)context;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = (unsigned int)flags;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = remote_qpn;
    wr.wr.ud.remote_qkey = RDMA_UDP_QKEY;
    return rdma_seterrno(ibv_post_send(id->qp, &wr, &bad));
}

/**
 * Takes one completion from cq, sleeping on channel while there is none: poll, arm, poll again so that nothing is
 * missed in between, then wait. What rdma_get_send_comp() and rdma_get_recv_comp() have in common.
 */
static inline int rdma_wait_comp_(struct ibv_comp_channel *channel, struct ibv_cq *cq, struct ibv_wc *wc)
{
    struct ibv_cq *of;
    void *context;
    int ret;

    for (;;) {
        ret = ibv_poll_cq(cq, 1, wc);
        if (ret)
            break;
        ret = ibv_req_notify_cq(cq, 0);
        if (ret)
            return rdma_seterrno(ret);
        ret = ibv_poll_cq(cq, 1, wc);
        if (ret)
            break;
        if (ibv_get_cq_event(channel, &of, &context))
            return -1;
        ibv_ack_cq_events(of, 1);
    }
    return ret < 0 ? rdma_seterrno(ret) : ret;
}

/**
 * Waits for the completion of a send, RDMA read or RDMA write. For ids whose send CQ the library created.
 *
 * Returns 1 with the completion in wc, which may be that of a failed work request; or -1 and errno.
 */
static inline int rdma_get_send_comp(struct rdma_cm_id *id, struct ibv_wc *wc)
{
    return rdma_wait_comp_(id->send_cq_channel, id->send_cq, wc);
}

/**
 * Waits for the completion of a receive. For ids whose receive CQ the library created.
 *
 * Returns 1 with the completion in wc, which may be that of a failed work request; or -1 and errno.
 */
static inline int rdma_get_recv_comp(struct rdma_cm_id *id, struct ibv_wc *wc)
{
    return rdma_wait_comp_(id->recv_cq_channel, id->recv_cq, wc);
}

#ifdef __cplusplus
}
#endif

#endif
