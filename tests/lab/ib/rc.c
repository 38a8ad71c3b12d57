// SPDX-License-Identifier: GPL-2.0
/*
 * Reliable connections, by messages instead of packets: a request is one packet, which refers to
 * the entry of the send queue. An entry's PSNs are those that the packets of its message would
 * have. A response acknowledges a request and all before it; what is not acknowledged in time is
 * sent again from there. Unreliable connections send the same way and are never answered.
 */
#include "vib.h"

static bool is_local(const struct rvt_swqe *wqe)
{
	return wqe->wr.opcode == IB_WR_LOCAL_INV || wqe->wr.opcode == IB_WR_REG_MR;
}

/* Reads and atomics: a later acknowledgement is not enough, their own response has data. */
static bool has_result(const struct rvt_swqe *wqe)
{
	return wqe->wr.opcode == IB_WR_RDMA_READ || wqe->wr.opcode == IB_WR_ATOMIC_CMP_AND_SWP ||
	       wqe->wr.opcode == IB_WR_ATOMIC_FETCH_AND_ADD;
}

/* The QP with that number, with a reference, or NULL. */
struct rvt_qp *vib_find_qp(struct vib_port *port, u32 qpn)
{
	struct rvt_qp *qp;

	rcu_read_lock();
	qp = rvt_lookup_qpn(&port->node->hca->rdi, &port->ibp, qpn);
	if (qp)
		rvt_get_qp(qp);
	rcu_read_unlock();
	return qp;
}

static void address(struct rvt_qp *qp, struct vib_packet *packet)
{
	const struct rdma_ah_attr *ah = &qp->remote_ah_attr;
	struct vib_port *port = packet->from;

	packet->qpn = qp->remote_qpn;
	packet->dlid = rdma_ah_get_dlid(ah);
	packet->slid = vib_lid(port) | (rdma_ah_get_path_bits(ah) & ((1 << vib_lmc(port)) - 1));
	packet->sl = rdma_ah_get_sl(ah);
	packet->pkey = port->pkeys[qp->s_pkey_index];
}

/* ---- requester: sending ---------------------------------------------------------------------- */

/* Everything that is not acknowledged is sent again. */
static void rewind(struct rvt_qp *qp)
{
	qp->s_cur = qp->s_last;
	qp->s_num_rd_atomic = 0;
	rvt_to_iport(qp)->n_rc_resends++;
}

static void complete_local(struct rvt_qp *qp)
{
	struct rvt_swqe *wqe;

	while (qp->s_last != qp->s_cur) {
		wqe = rvt_get_swqe_ptr(qp, qp->s_last);
		if (!is_local(wqe))
			break;
		rvt_send_complete(qp, wqe, IB_WC_SUCCESS);
	}
}

/* Ends the oldest request and with it the QP. Returns true if an event has to tell that the last
 * receive request of a shared queue was taken.
 */
static bool fail(struct rvt_qp *qp, enum ib_wc_status status)
{
	vib_qp(qp)->error = IB_WC_SUCCESS;
	if (qp->s_last != READ_ONCE(qp->s_head))
		rvt_send_complete(qp, rvt_get_swqe_ptr(qp, qp->s_last), status);
	return rvt_error_qp(qp, IB_WC_WR_FLUSH_ERR);
}

static bool may_send(struct rvt_qp *qp, const struct rvt_swqe *wqe)
{
	if (wqe->wr.send_flags & IB_SEND_FENCE && qp->s_num_rd_atomic)
		return false;
	return !has_result(wqe) || qp->s_num_rd_atomic < qp->s_max_rd_atomic;
}

static void send_local(struct rvt_qp *qp, struct rvt_swqe *wqe)
{
	if (wqe->wr.send_flags & RVT_SEND_COMPLETION_ONLY)
		return;
	rvt_invalidate_rkey(qp, wqe->wr.ex.invalidate_rkey);
	atomic_dec(&qp->local_ops_pending);
}

static void send_request(struct rvt_qp *qp, struct rvt_swqe *wqe)
{
	struct vib_packet *packet = vib_packet(vib_qp_port(qp), VIB_REQUEST, 0);

	if (!packet)
		return; /* lost */
	address(qp, packet);
	packet->length = wqe->length;
	packet->request.index = qp->s_cur;
	packet->request.psn = wqe->psn;
	packet->request.requester = qp;
	rvt_get_qp(qp);
	vib_transmit(packet);
}

static void start_timer(struct rvt_qp *qp)
{
	if (qp->ibqp.qp_type == IB_QPT_RC && qp->timeout && qp->s_last != qp->s_cur &&
	    !(qp->s_flags & (RVT_S_TIMER | RVT_S_WAIT_RNR)))
		rvt_mod_retry_timer(qp);
}

/* Called with the QP's locks held; returns what fail() does. */
bool vib_rc_send(struct rvt_qp *qp)
{
	struct rvt_swqe *wqe;

	if (vib_qp(qp)->error)
		return fail(qp, vib_qp(qp)->error);
	while (qp->s_cur != READ_ONCE(qp->s_head) && !(qp->s_flags & RVT_S_WAIT_RNR)) {
		smp_rmb(); /* the entry is read after the head */
		wqe = rvt_get_swqe_ptr(qp, qp->s_cur);
		if (!may_send(qp, wqe))
			break;
		if (is_local(wqe)) {
			send_local(qp, wqe);
		} else {
			qp->s_num_rd_atomic += has_result(wqe);
			send_request(qp, wqe);
		}
		qp->s_cur = rvt_qp_swqe_incr(qp, qp->s_cur);
	}
	complete_local(qp);
	start_timer(qp);
	return false;
}

/* An unreliable connection's request is complete when its packet is gone, wherever it went. */
void vib_uc_sent(struct vib_packet *packet)
{
	struct rvt_qp *qp = packet->request.requester;

	spin_lock_irq(&qp->r_lock);
	spin_lock(&qp->s_lock);
	if (vib_outstanding(packet)) {
		u32 end = rvt_qp_swqe_incr(qp, packet->request.index);

		while (qp->s_last != end)
			rvt_send_complete(qp, rvt_get_swqe_ptr(qp, qp->s_last), IB_WC_SUCCESS);
	}
	spin_unlock(&qp->s_lock);
	spin_unlock_irq(&qp->r_lock);
}

/* ---- requester: responses and time-outs ------------------------------------------------------ */

/* The request of a packet while its entry of the send queue is still waiting for a response, else
 * NULL. Only holders of the fabric's `run` take entries from there.
 */
struct rvt_swqe *vib_outstanding(const struct vib_packet *packet)
{
	struct rvt_qp *qp = packet->request.requester;
	u32 index = packet->request.index, first = qp->s_last, end = qp->s_cur;
	struct rvt_swqe *wqe = rvt_get_swqe_ptr(qp, index);
	bool inside = first <= end ? index >= first && index < end : index >= first || index < end;

	if (!inside || wqe->psn != packet->request.psn || !(ib_rvt_state_ops[qp->state] & RVT_PROCESS_SEND_OK))
		return NULL;
	return wqe;
}

/* The other path becomes the only one. */
static void migrate(struct rvt_qp *qp)
{
	swap(qp->remote_ah_attr, qp->alt_ah_attr);
	swap(qp->s_pkey_index, qp->s_alt_pkey_index);
	qp->port_num = rdma_ah_get_port_num(&qp->remote_ah_attr);
	qp->s_mig_state = IB_MIG_MIGRATED;
	vib_qp_event(qp, IB_EVENT_PATH_MIG);
}

/* Called by rdmavt's timer with the QP's locks held; it schedules the QP afterwards. */
void vib_rc_timeout(struct rvt_qp *qp, u32 psn, int wait)
{
	if (qp->s_retry) {
		qp->s_retry--;
	} else if (qp->s_mig_state == IB_MIG_ARMED) {
		migrate(qp);
		qp->s_retry = qp->s_retry_cnt;
	} else {
		vib_qp(qp)->error = IB_WC_RETRY_EXC_ERR;
	}
	rewind(qp);
}

/* Completes the requests before `psn`, and with `itself` that one. */
static void acknowledge(struct rvt_qp *qp, u32 psn, bool itself)
{
	u32 before = qp->s_last;
	struct rvt_swqe *wqe;
	int order;

	while (qp->s_last != qp->s_cur) {
		wqe = rvt_get_swqe_ptr(qp, qp->s_last);
		order = is_local(wqe) ? -1 : rvt_cmp_msn(wqe->psn, psn);
		if (order > 0 || (!order && !itself))
			break;
		if (has_result(wqe)) {
			if (order < 0) { /* its own response was lost */
				rewind(qp);
				break;
			}
			qp->s_num_rd_atomic--;
		}
		rvt_send_complete(qp, wqe, IB_WC_SUCCESS);
	}
	if (qp->s_last == before)
		return;
	qp->s_retry = qp->s_retry_cnt;
	qp->s_rnr_retry = qp->s_rnr_retry_cnt;
}

/* The shortest pause that the requester makes, 1.28 ms: the receiver's is a minimum, and after those
 * of microseconds a machine with one CPU would do nothing but ask again.
 */
#define SHORTEST_RNR_TIMER 14

static bool receiver_not_ready(struct rvt_qp *qp, u32 psn, u8 timer)
{
	struct rvt_swqe *wqe = rvt_get_swqe_ptr(qp, qp->s_last);

	if (qp->s_last == qp->s_cur || wqe->psn != psn)
		return false;
	if (!qp->s_rnr_retry)
		return fail(qp, IB_WC_RNR_RETRY_EXC_ERR);
	if (qp->s_rnr_retry_cnt < 7)
		qp->s_rnr_retry--;
	rewind(qp);
	rvt_stop_rc_timers(qp);
	if (timer) /* 0 is the longest pause */
		timer = max_t(u8, timer, SHORTEST_RNR_TIMER);
	rvt_add_rnr_timer(qp, (u32)timer << IB_AETH_CREDIT_SHIFT);
	return false;
}

static enum ib_wc_status error_of(u8 syndrome)
{
	switch (syndrome) {
	case IB_NAK_INVALID_REQUEST:
		return IB_WC_REM_INV_REQ_ERR;
	case IB_NAK_REMOTE_ACCESS_ERROR:
		return IB_WC_REM_ACCESS_ERR;
	default:
		return IB_WC_REM_OP_ERR;
	}
}

static bool respond(struct rvt_qp *qp, u32 psn, u8 syndrome)
{
	acknowledge(qp, psn, syndrome == VIB_ACK);
	if (syndrome == VIB_ACK)
		return false;
	if ((syndrome & 0xe0) == IB_RNR_NAK)
		return receiver_not_ready(qp, psn, syndrome & 0x1f);
	if (syndrome == IB_NAK_PSN_ERROR)
		rewind(qp);
	else if (qp->s_last != qp->s_cur && rvt_get_swqe_ptr(qp, qp->s_last)->psn == psn)
		return fail(qp, error_of(syndrome));
	return false;
}

void vib_rc_response(struct vib_port *port, struct vib_packet *packet)
{
	struct rvt_qp *qp = vib_find_qp(port, packet->qpn);
	bool last_wqe = false;

	if (!qp)
		return;
	spin_lock_irq(&qp->r_lock);
	spin_lock(&qp->s_lock);
	if (ib_rvt_state_ops[qp->state] & RVT_PROCESS_SEND_OK && qp->ibqp.qp_type == IB_QPT_RC) {
		last_wqe = respond(qp, packet->response.psn, packet->response.syndrome);
		/* The timer starts anew for what is left. */
		if (!(qp->s_flags & RVT_S_WAIT_RNR)) {
			rvt_stop_rc_timers(qp);
			start_timer(qp);
		}
		vib_make_ready(qp);
	}
	spin_unlock(&qp->s_lock);
	spin_unlock_irq(&qp->r_lock);
	if (last_wqe)
		vib_qp_event(qp, IB_EVENT_QP_LAST_WQE_REACHED);
	rvt_put_qp(qp);
}

/* ---- responder ------------------------------------------------------------------------------- */

/* Whether a packet is from the QP's peer; one from the alternate path makes that the path. */
static bool is_from_peer(struct vib_port *port, struct rvt_qp *qp, const struct vib_packet *packet)
{
	if (!vib_has_lid(port, packet->dlid))
		return false;
	if (packet->slid != rdma_ah_get_dlid(&qp->remote_ah_attr)) {
		if (qp->s_mig_state != IB_MIG_ARMED || packet->slid != rdma_ah_get_dlid(&qp->alt_ah_attr))
			return false;
		migrate(qp);
	}
	if (vib_pkeys_match(port->pkeys[qp->s_pkey_index], packet->pkey))
		return true;
	port->ibp.pkey_violations++;
	vib_trap_bad_key(port, packet, IB_NOTICE_TRAP_BAD_PKEY, packet->pkey);
	return false;
}

static struct vib_atomic *result_of(struct rvt_qp *qp, u32 psn)
{
	struct vib_atomic *atomics = vib_qp(qp)->atomics;
	int i;

	for (i = 0; i < VIB_ATOMICS; i++)
		if (atomics[i].psn == psn)
			return &atomics[i];
	return NULL;
}

/* A request that was executed already: its response was lost. */
static int repeat(struct vib_port *port, struct rvt_qp *qp, struct rvt_qp *requester, struct rvt_swqe *wqe)
{
	struct vib_atomic *result;

	if (!has_result(wqe))
		return VIB_ACK;
	if (wqe->wr.opcode == IB_WR_RDMA_READ)
		return vib_execute(port, qp, requester, wqe);
	result = result_of(qp, wqe->psn & VIB_PSN_MASK);
	if (!result)
		return -1;
	*(u64 *)wqe->sg_list[0].vaddr = result->value;
	return VIB_ACK;
}

/* Returns the syndrome of the response, or -1 for none. Sets `psn` if the response is about another
 * than the request's.
 */
static int serve(struct vib_port *port, struct rvt_qp *qp, struct rvt_qp *requester, struct rvt_swqe *wqe, u32 *psn)
{
	int order = rvt_cmp_msn(wqe->psn, qp->r_psn), syndrome;
	struct vib_qp *priv = vib_qp(qp);

	if (order < 0)
		return repeat(port, qp, requester, wqe);
	if (order > 0) {
		if (priv->naked)
			return -1;
		priv->naked = true;
		*psn = qp->r_psn;
		return IB_NAK_PSN_ERROR;
	}
	priv->naked = false;
	syndrome = vib_execute(port, qp, requester, wqe);
	if (syndrome == VIB_ACK) {
		qp->r_psn = (wqe->lpsn + 1) & VIB_PSN_MASK;
		qp->r_msn++;
	}
	return syndrome;
}

static void send_response(struct vib_port *port, struct rvt_qp *qp, u32 psn, u8 syndrome)
{
	struct vib_packet *packet = vib_packet(port, VIB_RESPONSE, 0);

	if (!packet)
		return; /* lost */
	address(qp, packet);
	packet->response.psn = psn;
	packet->response.syndrome = syndrome;
	vib_transmit(packet);
}

static void receive(struct vib_port *port, struct rvt_qp *qp, struct vib_packet *packet, struct rvt_swqe *wqe)
{
	struct rvt_qp *requester = packet->request.requester;
	u32 psn = wqe->psn;
	int syndrome;

	if (!(ib_rvt_state_ops[qp->state] & RVT_PROCESS_RECV_OK) || qp->ibqp.qp_type != requester->ibqp.qp_type ||
	    !is_from_peer(port, qp, packet))
		return;
	if (qp->state == IB_QPS_RTR && !(qp->r_flags & RVT_R_COMM_EST))
		rvt_comm_est(qp);
	if (qp->ibqp.qp_type == IB_QPT_UC) {
		vib_execute(port, qp, requester, wqe);
		return;
	}
	syndrome = serve(port, qp, requester, wqe, &psn);
	if (syndrome >= 0)
		send_response(port, qp, psn, syndrome);
}

void vib_rc_request(struct vib_port *port, struct vib_packet *packet)
{
	struct rvt_swqe *wqe = vib_outstanding(packet);
	struct rvt_qp *qp = wqe ? vib_find_qp(port, packet->qpn) : NULL;

	if (!qp)
		return;
	spin_lock_irq(&qp->r_lock);
	receive(port, qp, packet, wqe);
	spin_unlock_irq(&qp->r_lock);
	rvt_put_qp(qp);
}
