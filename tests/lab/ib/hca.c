// SPDX-License-Identifier: GPL-2.0
/* The adapters, as rdmavt and the RDMA core see them. */
#include <linux/slab.h>
#include "vib.h"

#define GUID(hca, port) cpu_to_be64(0x02ab770000000000ULL | (u64)((hca) + 1) << 8 | (port))

void vib_event(struct vib_port *port, enum ib_event_type type)
{
	struct ib_event event = { .event = type };

	if (!port->node->hca || !port->node->hca->registered)
		return;
	event.device = &port->node->hca->rdi.ibdev;
	event.element.port_num = port->num;
	ib_dispatch_event(&event);
}

static struct pci_dev *get_pci_dev(struct rvt_dev_info *rdi)
{
	return &container_of(rdi, struct vib_hca, rdi)->pci;
}

static int query_port_state(struct rvt_dev_info *rdi, u32 num, struct ib_port_attr *attr)
{
	struct vib_port *port = container_of(rdi, struct vib_hca, rdi)->node.port[num];

	attr->state = vib_state(port);
	attr->phys_state = port->info.portphysstate_linkdown >> 4;
	attr->lid = vib_lid(port);
	attr->lmc = vib_lmc(port);
	attr->gid_tbl_len = VIB_GUIDS;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = port->info.neighbormtu_mastersmsl >> 4;
	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = IB_SPEED_QDR;
	attr->max_vl_num = 4;
	return 0;
}

static int get_guid(struct rvt_dev_info *rdi, struct rvt_ibport *ibp, int index, __be64 *guid)
{
	if (index >= VIB_GUIDS)
		return -EINVAL;
	*guid = container_of(ibp, struct vib_port, ibp)->guids[index];
	return 0;
}

static void capabilities_changed(struct rvt_dev_info *rdi, u32 num)
{
	vib_trap_local_change(container_of(rdi, struct vib_hca, rdi)->node.port[num], 0);
}

static int shut_down_port(struct rvt_dev_info *rdi, u32 num)
{
	return -EOPNOTSUPP;
}

static int modify_device(struct ib_device *device, int mask, struct ib_device_modify *modify)
{
	struct vib_hca *hca = vib_hca(device);
	int p;

	if (mask & ~IB_DEVICE_MODIFY_NODE_DESC)
		return -EOPNOTSUPP;
	if (mask & IB_DEVICE_MODIFY_NODE_DESC) {
		memcpy(device->node_desc, modify->node_desc, IB_DEVICE_NODE_DESC_MAX);
		memcpy(hca->node.description, modify->node_desc, IB_DEVICE_NODE_DESC_MAX);
		for (p = 1; p <= hca->node.ports; p++)
			vib_trap_local_change(hca->node.port[p], IB_NOTICE_TRAP_NODE_DESC_CHG);
	}
	return 0;
}

static bool is_smp(const struct ib_mad *mad)
{
	return mad->mad_hdr.mgmt_class == IB_MGMT_CLASS_SUBN_LID_ROUTED ||
	       mad->mad_hdr.mgmt_class == IB_MGMT_CLASS_SUBN_DIRECTED_ROUTE;
}

static int process_mad(struct ib_device *device, int flags, u32 num, const struct ib_wc *wc, const struct ib_grh *grh,
		       const struct ib_mad *in, struct ib_mad *out, size_t *out_size, u16 *pkey_index)
{
	struct vib_hca *hca = vib_hca(device);
	struct vib_port *port = hca->node.port[num];
	u8 method = in->mad_hdr.method;

	if (is_smp(in) && method == IB_MGMT_METHOD_TRAP_REPRESS)
		return IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_CONSUMED;
	if (method != IB_MGMT_METHOD_GET && method != IB_MGMT_METHOD_SET)
		return IB_MAD_RESULT_SUCCESS;
	/* The subnet manager on this port answers this itself. */
	if (is_smp(in) && in->mad_hdr.attr_id == IB_SMP_ATTR_SM_INFO && port->ibp.port_cap_flags & IB_PORT_SM)
		return IB_MAD_RESULT_SUCCESS;
	*out = *in;
	if (is_smp(in))
		vib_smp(&hca->node, port, (struct ib_smp *)out);
	else if (in->mad_hdr.mgmt_class == IB_MGMT_CLASS_PERF_MGMT)
		vib_pma(&hca->node, num, (struct ib_pma_mad *)out);
	else
		return IB_MAD_RESULT_SUCCESS;
	return IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_REPLY;
}

/* ---- QPs ------------------------------------------------------------------------------------- */

static void *qp_alloc(struct rvt_dev_info *rdi, struct rvt_qp *qp)
{
	struct vib_qp *priv = kzalloc(sizeof(*priv), GFP_KERNEL);

	if (!priv)
		return ERR_PTR(-ENOMEM);
	INIT_LIST_HEAD(&priv->ready);
	mutex_init(&priv->inline_lock);
	priv->qp = qp;
	return priv;
}

static void qp_free(struct rvt_dev_info *rdi, struct rvt_qp *qp)
{
	kvfree(vib_qp(qp)->inline_data);
	kfree(qp->priv);
}

static void qp_reset(struct rvt_qp *qp)
{
	struct vib_qp *priv = vib_qp(qp);

	priv->error = IB_WC_SUCCESS;
	priv->naked = false;
	memset(priv->atomics, 0xff, sizeof(priv->atomics));
}

static void no_op(struct rvt_qp *qp)
{
}

static unsigned int free_all_qps(struct rvt_dev_info *rdi)
{
	return 0;
}

static bool schedule_send(struct rvt_qp *qp)
{
	vib_make_ready(qp);
	return true;
}

static void do_send(struct rvt_qp *qp)
{
	vib_make_ready(qp);
}

static int setup_wqe(struct rvt_qp *qp, struct rvt_swqe *wqe, bool *call_send)
{
	if (wqe->wr.send_flags & IB_SEND_INLINE)
		vib_take_inline(qp, wqe);
	if (qp->allowed_ops == IB_OPCODE_UD && wqe->length > VIB_MTU)
		return -EINVAL;
	return 0;
}

/* Migration is armed at once: nobody else takes part in it here. */
static void modify_qp(struct rvt_qp *qp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	if (mask & IB_QP_PATH_MIG_STATE && attr->path_mig_state == IB_MIG_REARM)
		qp->s_mig_state = IB_MIG_ARMED;
}

static int path_mtu(struct rvt_dev_info *rdi, struct rvt_qp *qp, struct ib_qp_attr *attr)
{
	return attr->path_mtu >= IB_MTU_256 && attr->path_mtu <= IB_MTU_4096 ? attr->path_mtu : -EINVAL;
}

static u32 mtu_of_qp(struct rvt_dev_info *rdi, struct rvt_qp *qp, u32 mtu)
{
	return ib_mtu_enum_to_int(mtu);
}

static int mtu_to_path_mtu(u32 mtu)
{
	return ib_mtu_int_to_enum(mtu);
}

static void new_ah(struct ib_device *device, struct rdma_ah_attr *attr, struct rvt_ah *ah)
{
	ah->log_pmtu = ilog2(VIB_MTU);
}

static const struct rvt_driver_provided driver = {
	.get_pci_dev = get_pci_dev,
	.query_port_state = query_port_state,
	.get_guid_be = get_guid,
	.cap_mask_chg = capabilities_changed,
	.shut_down_port = shut_down_port,
	.qp_priv_alloc = qp_alloc,
	.qp_priv_free = qp_free,
	.notify_qp_reset = qp_reset,
	.notify_error_qp = no_op,
	.notify_restart_rc = vib_rc_timeout,
	.flush_qp_waiters = no_op,
	.stop_send_queue = no_op,
	.quiesce_qp = vib_withdraw,
	.free_all_qps = free_all_qps,
	.schedule_send = schedule_send,
	.schedule_send_no_lock = schedule_send,
	.do_send = do_send,
	.setup_wqe = setup_wqe,
	.modify_qp = modify_qp,
	.get_pmtu_from_attr = path_mtu,
	.mtu_from_qp = mtu_of_qp,
	.mtu_to_path_mtu = mtu_to_path_mtu,
	.notify_new_ah = new_ah,
};

/* ---- what the device can do ------------------------------------------------------------------- */

#define CONNECTED (BIT(IB_QPT_RC) | BIT(IB_QPT_UC))
#define DATAGRAM (BIT(IB_QPT_UD) | BIT(IB_QPT_SMI) | BIT(IB_QPT_GSI))

static const struct rvt_operation_params operations[RVT_OPERATION_MAX] = {
	[IB_WR_SEND] = { sizeof(struct ib_send_wr), CONNECTED | DATAGRAM, 0 },
	[IB_WR_SEND_WITH_IMM] = { sizeof(struct ib_send_wr), CONNECTED | DATAGRAM, 0 },
	[IB_WR_SEND_WITH_INV] = { sizeof(struct ib_send_wr), BIT(IB_QPT_RC), 0 },
	[IB_WR_RDMA_WRITE] = { sizeof(struct ib_rdma_wr), CONNECTED, 0 },
	[IB_WR_RDMA_WRITE_WITH_IMM] = { sizeof(struct ib_rdma_wr), CONNECTED, 0 },
	[IB_WR_RDMA_READ] = { sizeof(struct ib_rdma_wr), BIT(IB_QPT_RC), RVT_OPERATION_ATOMIC },
	[IB_WR_ATOMIC_CMP_AND_SWP] = { sizeof(struct ib_atomic_wr), BIT(IB_QPT_RC),
				       RVT_OPERATION_ATOMIC | RVT_OPERATION_ATOMIC_SGE },
	[IB_WR_ATOMIC_FETCH_AND_ADD] = { sizeof(struct ib_atomic_wr), BIT(IB_QPT_RC),
					 RVT_OPERATION_ATOMIC | RVT_OPERATION_ATOMIC_SGE },
	[IB_WR_LOCAL_INV] = { sizeof(struct ib_send_wr), BIT(IB_QPT_RC), RVT_OPERATION_LOCAL },
	[IB_WR_REG_MR] = { sizeof(struct ib_reg_wr), BIT(IB_QPT_RC), RVT_OPERATION_LOCAL | RVT_OPERATION_PRIV },
};

static const enum ib_wc_opcode completions[] = {
	[IB_WR_SEND] = IB_WC_SEND,
	[IB_WR_SEND_WITH_IMM] = IB_WC_SEND,
	[IB_WR_SEND_WITH_INV] = IB_WC_SEND,
	[IB_WR_RDMA_WRITE] = IB_WC_RDMA_WRITE,
	[IB_WR_RDMA_WRITE_WITH_IMM] = IB_WC_RDMA_WRITE,
	[IB_WR_RDMA_READ] = IB_WC_RDMA_READ,
	[IB_WR_ATOMIC_CMP_AND_SWP] = IB_WC_COMP_SWAP,
	[IB_WR_ATOMIC_FETCH_AND_ADD] = IB_WC_FETCH_ADD,
	[IB_WR_LOCAL_INV] = IB_WC_LOCAL_INV,
	[IB_WR_REG_MR] = IB_WC_REG_MR,
};

static void set_limits(struct ib_device_attr *props)
{
	props->device_cap_flags = IB_DEVICE_BAD_PKEY_CNTR | IB_DEVICE_BAD_QKEY_CNTR | IB_DEVICE_SYS_IMAGE_GUID |
				  IB_DEVICE_RC_RNR_NAK_GEN | IB_DEVICE_PORT_ACTIVE_EVENT | IB_DEVICE_AUTO_PATH_MIG |
				  IB_DEVICE_SRQ_RESIZE;
	props->page_size_cap = PAGE_SIZE;
	props->max_mr_size = ~0ULL;
	props->max_qp = 16384;
	props->max_qp_wr = 16383;
	props->max_send_sge = 32;
	props->max_recv_sge = 32;
	props->max_sge_rd = 32;
	props->max_cq = 16384;
	props->max_cqe = 65535;
	props->max_ah = 65536;
	props->max_mr = 65535;
	props->max_pd = 65536;
	props->max_srq = 1024;
	props->max_srq_wr = 16383;
	props->max_srq_sge = 32;
	props->max_qp_rd_atom = 16;
	props->max_qp_init_rd_atom = 16;
	props->max_res_rd_atom = 65536;
	props->atomic_cap = IB_ATOMIC_GLOB;
	props->max_pkeys = VIB_PKEYS;
	props->max_mcast_grp = 512;
	props->max_mcast_qp_attach = 64;
	props->max_total_mcast_qp_attach = 512 * 64;
	props->max_fast_reg_page_list_len = 512;
	props->local_ca_ack_delay = 0;
}

static void set_parameters(struct rvt_driver_params *params, int number, int ports, int generation)
{
	set_limits(&params->props);
	params->lkey_table_size = 16;
	params->qp_table_size = 256;
	/* The same QPN on both sides would hide mistakes; one that a removed adapter had might still be known. */
	params->qpn_start = 1 + number * 0x100 + generation * 0x1000;
	params->qpn_inc = 1;
	params->qos_shift = 1;
	params->nports = ports;
	params->npkeys = VIB_PKEYS;
	params->node = NUMA_NO_NODE;
	params->psn_mask = VIB_PSN_MASK;
	params->psn_modify_mask = VIB_PSN_MASK;
	params->psn_shift = 8;
	params->core_cap_flags = RDMA_CORE_PORT_IBA_IB;
	params->max_mad_size = IB_MGMT_MAD_SIZE;
	params->max_rdma_atomic = 16;
}

static const struct attribute_group *no_groups[] = { NULL };

static struct ib_device_ops device_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_QIB, /* whose user space provider does */
	.port_groups = no_groups,
	.process_mad = process_mad,
	.modify_device = modify_device,
};

static struct vib_port *create_port(struct vib_hca *hca, int number, int num)
{
	struct vib_port *port = kzalloc(sizeof(*port), GFP_KERNEL);

	if (!port)
		return NULL;
	vib_port_init(port, &hca->node, num);
	port->guids[0] = GUID(number, num);
	spin_lock_init(&port->ibp.lock);
	port->ibp.mcast_tree = RB_ROOT;
	port->ibp.gid_prefix = VIB_GID_PREFIX;
	port->ibp.port_cap_flags = IB_PORT_TRAP_SUP | IB_PORT_AUTO_MIGR_SUP | IB_PORT_SL_MAP_SUP |
				   IB_PORT_SYS_IMAGE_GUID_SUP | IB_PORT_CM_SUP | IB_PORT_CLIENT_REG_SUP |
				   IB_PORT_CAP_MASK_NOTICE_SUP;
	rvt_init_port(&hca->rdi, &port->ibp, num - 1, port->pkeys);
	return port;
}

struct vib_hca *vib_hca_create(int number, int ports, int generation)
{
	struct rvt_dev_info *rdi = rvt_alloc_device(sizeof(struct vib_hca), ports);
	struct vib_hca *hca = container_of(rdi, struct vib_hca, rdi);
	int p;

	if (!rdi)
		return NULL;
	rdi->driver_f = driver;
	rdi->post_parms = operations;
	rdi->wc_opcode = completions;
	set_parameters(&rdi->dparms, number, ports, generation);
	rdi->dparms.props.sys_image_guid = GUID(number, 0);
	rdi->ibdev.node_guid = GUID(number, 0);
	rdi->ibdev.phys_port_cnt = ports;
	dev_set_name(&rdi->ibdev.dev, "vib%d", number);
	strscpy(rdi->ibdev.name, dev_name(&rdi->ibdev.dev), IB_DEVICE_NAME_MAX);
	snprintf(hca->node.description, sizeof(hca->node.description), "vib%d", number);
	memcpy(rdi->ibdev.node_desc, hca->node.description, IB_DEVICE_NODE_DESC_MAX);
	vib_allow_removal(&device_ops);
	ib_set_device_ops(&rdi->ibdev, &device_ops);
	ib_set_device_ops(&rdi->ibdev, &vib_counter_ops);
	hca->pci.dev.init_name = "vib";
	hca->number = number;
	hca->generation = generation;
	hca->node.hca = hca;
	hca->node.guid = GUID(number, 0);
	hca->node.ports = ports;
	for (p = 1; p <= ports; p++) {
		hca->node.port[p] = create_port(hca, number, p);
		if (!hca->node.port[p]) {
			vib_hca_destroy(hca);
			return NULL;
		}
	}
	return hca;
}

int vib_hca_register(struct vib_hca *hca)
{
	int status = rvt_register_device(&hca->rdi);

	if (status)
		return status;
	vib_allow_inline(hca);
	vib_watch_mappings(hca);
	hca->registered = true;
	return 0;
}

void vib_hca_destroy(struct vib_hca *hca)
{
	int p;

	for (p = 1; p <= hca->node.ports; p++)
		kfree(hca->node.port[p]);
	rvt_dealloc_device(&hca->rdi);
}
