// SPDX-License-Identifier: GPL-2.0
/* Takes requests from send queues. */
#include "vib.h"

/* The same partition, and one of the two is a full member of it. */
bool vib_pkeys_match(u16 a, u16 b)
{
	return (a & 0x7fff) && (a & 0x7fff) == (b & 0x7fff) && (a | b) & 0x8000;
}

static void flush(struct rvt_qp *qp)
{
	while (qp->s_last != READ_ONCE(qp->s_head))
		rvt_send_complete(qp, rvt_get_swqe_ptr(qp, qp->s_last), IB_WC_WR_FLUSH_ERR);
}

static void send_datagrams(struct rvt_qp *qp)
{
	struct rvt_swqe *wqe;

	while (qp->s_last != READ_ONCE(qp->s_head)) {
		smp_rmb(); /* the entry is read after the head */
		wqe = rvt_get_swqe_ptr(qp, qp->s_last);
		vib_ud_send(qp, wqe);
		rvt_send_complete(qp, wqe, IB_WC_SUCCESS);
	}
}

/* Called with the fabric's `run` held. */
void vib_send(struct rvt_qp *qp)
{
	bool last_wqe = false;
	int allowed;

	spin_lock_irq(&qp->r_lock);
	spin_lock(&qp->s_lock);
	allowed = ib_rvt_state_ops[qp->state];
	if (allowed & RVT_FLUSH_SEND)
		flush(qp);
	else if (!(allowed & RVT_PROCESS_NEXT_SEND_OK))
		; /* not yet */
	else if (qp->allowed_ops == IB_OPCODE_UD)
		send_datagrams(qp);
	else
		last_wqe = vib_rc_send(qp);
	spin_unlock(&qp->s_lock);
	spin_unlock_irq(&qp->r_lock);
	if (last_wqe)
		vib_qp_event(qp, IB_EVENT_QP_LAST_WQE_REACHED);
}

void vib_qp_event(struct rvt_qp *qp, enum ib_event_type type)
{
	struct ib_event event = { .device = qp->ibqp.device, .element.qp = &qp->ibqp, .event = type };

	if (qp->ibqp.event_handler)
		qp->ibqp.event_handler(&event, qp->ibqp.qp_context);
}
