// SPDX-License-Identifier: GPL-2.0
/* Datagrams: UD, and the management QPs 0 and 1. */
#include "vib.h"

static void gather(struct rvt_swqe *wqe, u8 *to)
{
	struct rvt_sge_state ss = { .sge = wqe->sg_list[0], .sg_list = wqe->sg_list + 1, .num_sge = wqe->wr.num_sge };
	u32 left = wqe->length, length;

	if (wqe->wr.send_flags & IB_SEND_INLINE) {
		memcpy(to, wqe->priv, left);
		return;
	}
	for (; left; left -= length, to += length) {
		length = rvt_get_sge_length(&ss.sge, left);
		memcpy(to, ss.sge.vaddr, length);
		rvt_update_sge(&ss, length, false);
	}
}

static void make_grh(struct vib_port *port, const struct ib_global_route *route, u32 length, struct ib_grh *grh)
{
	grh->version_tclass_flow = cpu_to_be32(IB_GRH_VERSION << IB_GRH_VERSION_SHIFT |
					       route->traffic_class << IB_GRH_TCLASS_SHIFT |
					       (route->flow_label & IB_GRH_FLOW_MASK));
	grh->paylen = cpu_to_be16(length + 24); /* transport headers and checksum */
	grh->next_hdr = IB_GRH_NEXT_HDR;
	grh->hop_limit = route->hop_limit;
	grh->sgid.global.subnet_prefix = port->info.gid_prefix;
	grh->sgid.global.interface_id = port->guids[route->sgid_index % VIB_GUIDS];
	grh->dgid = route->dgid;
}

static u16 source_lid(const struct vib_port *port, const struct rdma_ah_attr *ah)
{
	u16 bits = rdma_ah_get_path_bits(ah) & ((1 << vib_lmc(port)) - 1);

	return vib_lid(port) ? vib_lid(port) | bits : VIB_PERMISSIVE;
}

static u16 source_pkey(struct rvt_qp *qp, struct vib_port *port, struct rvt_swqe *wqe)
{
	u16 index = qp->ibqp.qp_type == IB_QPT_GSI ? rvt_get_swqe_pkey_index(wqe) : qp->s_pkey_index;

	if (qp->ibqp.qp_type == IB_QPT_SMI)
		return IB_DEFAULT_PKEY_FULL;
	return index < VIB_PKEYS ? port->pkeys[index] : 0;
}

/* Called with the QP's locks held. A datagram for which there is no memory is lost. */
void vib_ud_send(struct rvt_qp *qp, struct rvt_swqe *wqe)
{
	struct rdma_ah_attr *ah = rvt_get_swqe_ah_attr(wqe);
	struct vib_port *port = vib_qp_port(qp);
	struct vib_packet *packet = vib_packet(port, VIB_DATAGRAM, wqe->length);
	u32 qkey = rvt_get_swqe_remote_qkey(wqe);

	if (!packet)
		return;
	gather(wqe, packet->data);
	packet->dlid = rdma_ah_get_dlid(ah);
	packet->slid = packet->dlid == VIB_PERMISSIVE ? VIB_PERMISSIVE : source_lid(port, ah);
	packet->sl = rdma_ah_get_sl(ah);
	packet->pkey = source_pkey(qp, port, wqe);
	packet->qpn = rvt_get_swqe_remote_qpn(wqe);
	packet->ud.src_qpn = qp->ibqp.qp_num;
	packet->ud.qkey = (s32)qkey < 0 ? qp->qkey : qkey;
	packet->ud.solicited = wqe->wr.send_flags & IB_SEND_SOLICITED;
	packet->ud.has_imm = wqe->wr.opcode == IB_WR_SEND_WITH_IMM;
	packet->ud.imm = wqe->wr.ex.imm_data;
	packet->ud.has_grh = rdma_ah_get_ah_flags(ah) & IB_AH_GRH;
	if (packet->ud.has_grh)
		make_grh(port, rdma_ah_read_grh(ah), wqe->length, &packet->ud.grh);
	vib_transmit(packet);
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* The index of the P_Key in the port's table that the packet's matches, or -1. */
static int pkey_index(const struct vib_port *port, u16 pkey)
{
	int i;

	for (i = 0; i < VIB_PKEYS; i++)
		if (vib_pkeys_match(port->pkeys[i], pkey))
			return i;
	return -1;
}

static bool keys_match(struct vib_port *port, struct rvt_qp *qp, const struct vib_packet *packet)
{
	bool match = qp->ibqp.qp_type == IB_QPT_GSI ? pkey_index(port, packet->pkey) >= 0 :
						      vib_pkeys_match(port->pkeys[qp->s_pkey_index], packet->pkey);

	if (qp->ibqp.qp_type == IB_QPT_SMI)
		return true;
	if (!match) {
		port->ibp.pkey_violations++;
		vib_trap_bad_key(port, packet, IB_NOTICE_TRAP_BAD_PKEY, packet->pkey);
		return false;
	}
	if (packet->ud.qkey != qp->qkey) {
		port->ibp.qkey_violations++;
		vib_trap_bad_key(port, packet, IB_NOTICE_TRAP_BAD_QKEY, packet->ud.qkey);
		return false;
	}
	return true;
}

static void complete_receive(struct vib_port *port, struct rvt_qp *qp, const struct vib_packet *packet)
{
	struct ib_wc wc = {
		.wr_id = qp->r_wr_id,
		.status = IB_WC_SUCCESS,
		.opcode = IB_WC_RECV,
		.qp = &qp->ibqp,
		.byte_len = packet->length + sizeof(struct ib_grh),
		.src_qp = packet->ud.src_qpn,
		.slid = packet->slid,
		.sl = packet->sl,
		.port_num = port->num,
		.wc_flags = packet->ud.has_grh ? IB_WC_GRH : 0,
	};

	if (packet->ud.has_imm) {
		wc.wc_flags |= IB_WC_WITH_IMM;
		wc.ex.imm_data = packet->ud.imm;
	}
	if (qp->ibqp.qp_type == IB_QPT_GSI)
		wc.pkey_index = pkey_index(port, packet->pkey);
	else if (qp->ibqp.qp_type == IB_QPT_UD)
		wc.pkey_index = qp->s_pkey_index;
	if (packet->dlid < VIB_MCAST_BASE)
		wc.dlid_path_bits = packet->dlid & ((1 << vib_lmc(port)) - 1);
	rvt_recv_cq(qp, &wc, packet->ud.solicited);
}

/* Takes a receive request that has room; one that is too small stays for the next datagram. */
static bool take_buffer(struct vib_port *port, struct rvt_qp *qp, const struct vib_packet *packet)
{
	int got;

	if (qp->r_flags & RVT_R_REUSE_SGE) {
		qp->r_flags &= ~RVT_R_REUSE_SGE;
	} else {
		got = rvt_get_rwqe(qp, false);
		if (got < 0)
			rvt_rc_error(qp, IB_WC_LOC_QP_OP_ERR);
		if (got <= 0) {
			port->vl15_dropped += !packet->qpn;
			return false;
		}
	}
	if (packet->length + sizeof(struct ib_grh) <= qp->r_len)
		return true;
	qp->r_flags |= RVT_R_REUSE_SGE;
	return false;
}

static void receive(struct vib_port *port, struct rvt_qp *qp, struct vib_packet *packet)
{
	spin_lock_irq(&qp->r_lock);
	if (ib_rvt_state_ops[qp->state] & RVT_PROCESS_RECV_OK && qp->allowed_ops == IB_OPCODE_UD &&
	    keys_match(port, qp, packet) && take_buffer(port, qp, packet)) {
		if (packet->ud.has_grh)
			rvt_copy_sge(qp, &qp->r_sge, &packet->ud.grh, sizeof(packet->ud.grh), true, false);
		else
			rvt_skip_sge(&qp->r_sge, sizeof(struct ib_grh), true);
		rvt_copy_sge(qp, &qp->r_sge, packet->data, packet->length, true, false);
		rvt_put_ss(&qp->r_sge);
		if (test_and_clear_bit(RVT_R_WRID_VALID, &qp->r_aflags))
			complete_receive(port, qp, packet);
	}
	spin_unlock_irq(&qp->r_lock);
}

static void receive_multicast(struct vib_port *port, struct vib_packet *packet)
{
	struct rvt_mcast_qp *member;
	struct rvt_mcast *group;

	if (!packet->ud.has_grh)
		return;
	group = rvt_mcast_find(&port->ibp, &packet->ud.grh.dgid, packet->dlid);
	if (!group)
		return;
	rcu_read_lock();
	list_for_each_entry_rcu(member, &group->qp_list, list)
		receive(port, member->qp, packet);
	rcu_read_unlock();
	if (atomic_dec_return(&group->refcount) <= 1)
		wake_up(&group->wait);
}

void vib_ud_receive(struct vib_port *port, struct vib_packet *packet)
{
	struct rvt_qp *qp;

	if (vib_is_multicast(packet->dlid)) {
		receive_multicast(port, packet);
		return;
	}
	if (packet->dlid != VIB_PERMISSIVE && !vib_has_lid(port, packet->dlid))
		return;
	qp = vib_find_qp(port, packet->qpn);
	if (!qp)
		return;
	receive(port, qp, packet);
	rvt_put_qp(qp);
}
