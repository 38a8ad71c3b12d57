// SPDX-License-Identifier: GPL-2.0
/* What a request does at the responder: data goes straight from one QP's memory to the other's. */
#include "vib.h"

/* Ends the responder; a receive request that it took completes with `status`. */
static u8 refuse(struct rvt_qp *qp, enum ib_wc_status status, u8 syndrome)
{
	if (qp->ibqp.qp_type == IB_QPT_UC) {
		rvt_put_ss(&qp->r_sge);
		clear_bit(RVT_R_WRID_VALID, &qp->r_aflags);
		return VIB_ACK;
	}
	rvt_rc_error(qp, status);
	if (syndrome == IB_NAK_REMOTE_ACCESS_ERROR)
		vib_qp_event(qp, IB_EVENT_QP_ACCESS_ERR);
	else
		vib_qp_event(qp, IB_EVENT_QP_REQ_ERR);
	return syndrome;
}

static void list_of(struct rvt_swqe *wqe, struct rvt_sge_state *ss)
{
	ss->sge = wqe->sg_list[0];
	ss->sg_list = wqe->sg_list + 1;
	ss->num_sge = wqe->wr.num_sge;
	ss->total_len = wqe->length;
}

/* The request's data to where the responder's r_sge points. */
static void scatter(struct rvt_qp *responder, struct rvt_swqe *wqe)
{
	struct rvt_sge_state from;
	u32 left = wqe->length, length;

	if (wqe->wr.send_flags & IB_SEND_INLINE) {
		rvt_copy_sge(responder, &responder->r_sge, wqe->priv, left, true, false);
	} else {
		list_of(wqe, &from);
		for (; left; left -= length) {
			length = rvt_get_sge_length(&from.sge, left);
			rvt_copy_sge(responder, &responder->r_sge, from.sge.vaddr, length, true, true);
			rvt_update_sge(&from, length, false);
		}
	}
	rvt_put_ss(&responder->r_sge);
}

static void complete_receive(struct vib_port *port, struct rvt_qp *qp, const struct rvt_swqe *wqe)
{
	struct ib_wc wc = {
		.wr_id = qp->r_wr_id,
		.status = IB_WC_SUCCESS,
		.opcode = wqe->wr.opcode == IB_WR_RDMA_WRITE_WITH_IMM ? IB_WC_RECV_RDMA_WITH_IMM : IB_WC_RECV,
		.qp = &qp->ibqp,
		.byte_len = wqe->length,
		.src_qp = qp->remote_qpn,
		.slid = rdma_ah_get_dlid(&qp->remote_ah_attr),
		.sl = rdma_ah_get_sl(&qp->remote_ah_attr),
		.port_num = port->num,
	};

	if (wqe->wr.opcode == IB_WR_SEND_WITH_IMM || wqe->wr.opcode == IB_WR_RDMA_WRITE_WITH_IMM) {
		wc.wc_flags = IB_WC_WITH_IMM;
		wc.ex.imm_data = wqe->wr.ex.imm_data;
	} else if (wqe->wr.opcode == IB_WR_SEND_WITH_INV && !rvt_invalidate_rkey(qp, wqe->wr.ex.invalidate_rkey)) {
		wc.wc_flags = IB_WC_WITH_INVALIDATE;
		wc.ex.invalidate_rkey = wqe->wr.ex.invalidate_rkey;
	}
	if (test_and_clear_bit(RVT_R_WRID_VALID, &qp->r_aflags))
		rvt_recv_cq(qp, &wc, wqe->wr.send_flags & IB_SEND_SOLICITED);
}

/* Takes a receive request; VIB_ACK if there was one. */
static u8 take(struct rvt_qp *qp, bool without_buffer)
{
	int got = rvt_get_rwqe(qp, without_buffer);

	if (got < 0)
		return refuse(qp, IB_WC_LOC_QP_OP_ERR, IB_NAK_REMOTE_OPERATIONAL_ERROR);
	if (!got)
		return IB_RNR_NAK | qp->r_min_rnr_timer;
	return VIB_ACK;
}

static u8 send(struct vib_port *port, struct rvt_qp *qp, struct rvt_swqe *wqe)
{
	u8 syndrome = take(qp, false);

	if (syndrome != VIB_ACK || !test_bit(RVT_R_WRID_VALID, &qp->r_aflags))
		return syndrome;
	if (wqe->length > qp->r_len)
		return refuse(qp, IB_WC_LOC_LEN_ERR, IB_NAK_INVALID_REQUEST);
	scatter(qp, wqe);
	complete_receive(port, qp, wqe);
	return VIB_ACK;
}

static u8 write(struct vib_port *port, struct rvt_qp *qp, struct rvt_swqe *wqe)
{
	bool imm = wqe->wr.opcode == IB_WR_RDMA_WRITE_WITH_IMM;
	u8 syndrome;

	if (!(qp->qp_access_flags & IB_ACCESS_REMOTE_WRITE))
		return refuse(qp, IB_WC_LOC_QP_OP_ERR, IB_NAK_INVALID_REQUEST);
	if (imm) {
		syndrome = take(qp, true);
		if (syndrome != VIB_ACK)
			return syndrome;
	}
	if (wqe->length) {
		if (!rvt_rkey_ok(qp, &qp->r_sge.sge, wqe->length, wqe->rdma_wr.remote_addr, wqe->rdma_wr.rkey,
				 IB_ACCESS_REMOTE_WRITE))
			return refuse(qp, IB_WC_LOC_PROT_ERR, IB_NAK_REMOTE_ACCESS_ERROR);
		qp->r_sge.sg_list = NULL;
		qp->r_sge.num_sge = 1;
		qp->r_sge.total_len = wqe->length;
		scatter(qp, wqe);
	}
	if (imm)
		complete_receive(port, qp, wqe);
	return VIB_ACK;
}

static u8 read(struct rvt_qp *qp, struct rvt_qp *requester, struct rvt_swqe *wqe)
{
	struct rvt_sge_state from = { .num_sge = 1 }, to;
	u32 left = wqe->length, length;

	if (!(qp->qp_access_flags & IB_ACCESS_REMOTE_READ))
		return refuse(qp, IB_WC_LOC_QP_OP_ERR, IB_NAK_INVALID_REQUEST);
	if (!left)
		return VIB_ACK;
	if (!rvt_rkey_ok(qp, &from.sge, left, wqe->rdma_wr.remote_addr, wqe->rdma_wr.rkey, IB_ACCESS_REMOTE_READ))
		return refuse(qp, IB_WC_LOC_PROT_ERR, IB_NAK_REMOTE_ACCESS_ERROR);
	list_of(wqe, &to);
	for (; left; left -= length) {
		length = rvt_get_sge_length(&from.sge, left);
		rvt_copy_sge(requester, &to, from.sge.vaddr, length, false, true);
		rvt_update_sge(&from, length, true);
	}
	return VIB_ACK;
}

static u8 atomic(struct rvt_qp *qp, struct rvt_swqe *wqe)
{
	u64 operand = wqe->atomic_wr.compare_add;
	struct vib_qp *priv = vib_qp(qp);
	struct rvt_sge target;
	u64 value;

	if (!(qp->qp_access_flags & IB_ACCESS_REMOTE_ATOMIC) || wqe->atomic_wr.remote_addr & 7)
		return refuse(qp, IB_WC_LOC_QP_OP_ERR, IB_NAK_INVALID_REQUEST);
	if (!rvt_rkey_ok(qp, &target, sizeof(u64), wqe->atomic_wr.remote_addr, wqe->atomic_wr.rkey,
			 IB_ACCESS_REMOTE_ATOMIC))
		return refuse(qp, IB_WC_LOC_PROT_ERR, IB_NAK_REMOTE_ACCESS_ERROR);
	if (wqe->wr.opcode == IB_WR_ATOMIC_FETCH_AND_ADD)
		value = atomic64_fetch_add(operand, (atomic64_t *)target.vaddr);
	else
		value = cmpxchg((u64 *)target.vaddr, operand, wqe->atomic_wr.swap);
	rvt_put_mr(target.mr);
	*(u64 *)wqe->sg_list[0].vaddr = value;
	priv->atomics[priv->next_atomic++ % VIB_ATOMICS] =
		(struct vib_atomic){ .psn = wqe->psn & VIB_PSN_MASK, .value = value };
	return VIB_ACK;
}

/* Called with the responder's r_lock held. Returns the syndrome of the response. */
u8 vib_execute(struct vib_port *port, struct rvt_qp *responder, struct rvt_qp *requester, struct rvt_swqe *wqe)
{
	switch (wqe->wr.opcode) {
	case IB_WR_SEND:
	case IB_WR_SEND_WITH_IMM:
	case IB_WR_SEND_WITH_INV:
		return send(port, responder, wqe);
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		return write(port, responder, wqe);
	case IB_WR_RDMA_READ:
		return read(responder, requester, wqe);
	case IB_WR_ATOMIC_CMP_AND_SWP:
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		return atomic(responder, wqe);
	default:
		return IB_NAK_INVALID_REQUEST;
	}
}
