// SPDX-License-Identifier: GPL-2.0
/* Subnet management attributes of adapters and the switch. */
#include "vib.h"

void vib_mad_status(struct ib_mad_hdr *mad, u16 status)
{
	mad->status |= cpu_to_be16(status);
}

static void node_info(struct vib_node *node, struct vib_port *in, struct ib_smp *smp)
{
	struct ib_node_info *info = (struct ib_node_info *)smp->data;

	memset(smp->data, 0, sizeof(smp->data));
	info->base_version = VIB_VERSION;
	info->class_version = VIB_VERSION;
	info->node_type = node->hca ? 1 : 2;
	info->num_ports = node->ports;
	info->sys_guid = node->guid;
	info->node_guid = node->guid;
	info->port_guid = node->hca ? in->guids[0] : node->guid;
	info->partition_cap = cpu_to_be16(VIB_PKEYS);
	info->device_id = cpu_to_be16(1);
	info->local_port_num = in->num;
}

/* The port that an attribute's modifier names, or NULL after an error status. 0 is the port where
 * an adapter got the request, and the switch's own.
 */
static struct vib_port *port_of(struct vib_node *node, struct vib_port *in, struct ib_smp *smp, u32 num)
{
	if (!num && node->hca)
		return in;
	if (num <= node->ports)
		return node->port[num];
	vib_mad_status((struct ib_mad_hdr *)smp, IB_MGMT_MAD_STATUS_INVALID_ATTRIB_VALUE);
	return NULL;
}

/* ---- PortInfo -------------------------------------------------------------------------------- */

static void get_port_info(struct vib_port *in, struct vib_port *port, struct ib_smp *smp)
{
	struct ib_port_info *info = (struct ib_port_info *)smp->data;

	memset(smp->data, 0, sizeof(smp->data));
	*info = port->info;
	info->local_port_num = in->num;
	if (!port->node->hca)
		return;
	info->cap_mask = cpu_to_be32(port->ibp.port_cap_flags);
	info->pkey_violations = cpu_to_be16(port->ibp.pkey_violations);
	info->qkey_violations = cpu_to_be16(port->ibp.qkey_violations);
}

/* Addresses and the subnet manager: of adapters' ports and of the switch's own. */
static void set_addresses(struct vib_port *port, const struct ib_port_info *new)
{
	struct ib_port_info *info = &port->info;
	u8 sl = new->neighbormtu_mastersmsl & 0xf;
	bool lid = info->lid != new->lid || vib_lmc(port) != (new->mkeyprot_resv_lmc & 7);
	bool sm = info->sm_lid != new->sm_lid || (info->neighbormtu_mastersmsl & 0xf) != sl;
	bool gid = info->gid_prefix != new->gid_prefix;

	info->mkey = new->mkey;
	info->mkey_lease_period = new->mkey_lease_period;
	info->mkeyprot_resv_lmc = new->mkeyprot_resv_lmc & 0xc7;
	info->lid = new->lid;
	info->sm_lid = new->sm_lid;
	info->gid_prefix = new->gid_prefix;
	info->neighbormtu_mastersmsl = (info->neighbormtu_mastersmsl & 0xf0) | sl;
	info->clientrereg_resv_subnetto = new->clientrereg_resv_subnetto & 0x1f;
	port->ibp.sm_lid = be16_to_cpu(info->sm_lid);
	port->ibp.sm_sl = sl;
	port->ibp.gid_prefix = info->gid_prefix;
	port->ibp.subnet_timeout = info->clientrereg_resv_subnetto;
	if (gid)
		vib_event(port, IB_EVENT_GID_CHANGE);
	if (lid)
		vib_event(port, IB_EVENT_LID_CHANGE);
	if (sm)
		vib_event(port, IB_EVENT_SM_CHANGE);
}

/* The link's parameters. Returns false if the new state cannot follow the present one. */
static bool set_link(struct vib_port *port, const struct ib_port_info *new)
{
	u8 state = new->linkspeed_portstate & 0xf, physical = new->portphysstate_linkdown >> 4;
	u8 mtu = new->neighbormtu_mastersmsl >> 4;

	if (mtu >= IB_MTU_256 && mtu <= IB_MTU_4096)
		port->info.neighbormtu_mastersmsl = (port->info.neighbormtu_mastersmsl & 0xf) | mtu << 4;
	if (new->operationalvl_pei_peo_fpi_fpo >> 4)
		port->info.operationalvl_pei_peo_fpi_fpo = new->operationalvl_pei_peo_fpi_fpo;
	port->info.vl_high_limit = new->vl_high_limit;
	port->info.vlstallcnt_hoqlife = new->vlstallcnt_hoqlife;
	switch (state) {
	case IB_PORT_NOP:
		return true;
	case IB_PORT_DOWN:
		port->disabled = physical == 3 || (!physical && port->disabled);
		vib_link_changed(port, true);
		return true;
	case IB_PORT_ARMED:
		if (vib_state(port) == IB_PORT_INIT)
			vib_set_state(port, state);
		return vib_state(port) == IB_PORT_ARMED;
	case IB_PORT_ACTIVE:
		if (vib_state(port) == IB_PORT_ARMED)
			vib_set_state(port, state);
		return vib_state(port) == IB_PORT_ACTIVE;
	default:
		return state == vib_state(port);
	}
}

static void port_info(struct vib_node *node, struct vib_port *in, struct ib_smp *smp)
{
	struct vib_port *port = port_of(node, in, smp, be32_to_cpu(smp->attr_mod) & 0xff);
	struct ib_port_info new;
	bool has_address;

	if (!port)
		return;
	memcpy(&new, smp->data, sizeof(new));
	has_address = node->hca || !port->num;
	if (smp->method == IB_MGMT_METHOD_SET) {
		if (has_address)
			set_addresses(port, &new);
		if ((node->hca || port->num) && !set_link(port, &new))
			vib_mad_status((struct ib_mad_hdr *)smp, IB_MGMT_MAD_STATUS_INVALID_ATTRIB_VALUE);
		if (has_address && new.clientrereg_resv_subnetto & 0x80)
			vib_event(port, IB_EVENT_CLIENT_REREGISTER);
	}
	get_port_info(in, port, smp);
	if (has_address)
		((struct ib_port_info *)smp->data)->clientrereg_resv_subnetto |= new.clientrereg_resv_subnetto & 0x80;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void pkey_table(struct vib_node *node, struct vib_port *in, struct ib_smp *smp)
{
	u32 mod = be32_to_cpu(smp->attr_mod);
	struct vib_port *port = node->hca ? in : port_of(node, in, smp, mod >> 16);
	__be16 *key = (__be16 *)smp->data;
	bool changed = false;
	int i;

	if (!port)
		return;
	if (mod & 0xffff) {
		vib_mad_status((struct ib_mad_hdr *)smp, IB_MGMT_MAD_STATUS_INVALID_ATTRIB_VALUE);
		return;
	}
	for (i = 0; i < VIB_PKEYS; i++) {
		if (smp->method == IB_MGMT_METHOD_SET && port->pkeys[i] != be16_to_cpu(key[i])) {
			port->pkeys[i] = be16_to_cpu(key[i]);
			changed = true;
		}
		key[i] = cpu_to_be16(port->pkeys[i]);
	}
	memset(key + VIB_PKEYS, 0, sizeof(smp->data) - VIB_PKEYS * sizeof(*key));
	if (changed)
		vib_event(port, IB_EVENT_PKEY_CHANGE);
}

/* The first GUID is the port's own and stays. */
static void guid_info(struct vib_port *in, struct ib_smp *smp)
{
	size_t rest = sizeof(in->guids) - sizeof(in->guids[0]);

	if (smp->attr_mod) {
		vib_mad_status((struct ib_mad_hdr *)smp, IB_MGMT_MAD_STATUS_INVALID_ATTRIB_VALUE);
		return;
	}
	if (smp->method == IB_MGMT_METHOD_SET && memcmp(in->guids + 1, smp->data + sizeof(in->guids[0]), rest)) {
		memcpy(in->guids + 1, smp->data + sizeof(in->guids[0]), rest);
		vib_event(in, IB_EVENT_GID_CHANGE);
	}
	memcpy(smp->data, in->guids, sizeof(in->guids));
}

/* One table a port; a switch has one for each pair of ports, ours keeps that of the outgoing one. */
static void sl_to_vl(struct vib_node *node, struct vib_port *in, struct ib_smp *smp)
{
	struct vib_port *port = node->hca ? in : port_of(node, in, smp, be32_to_cpu(smp->attr_mod) & 0xff);

	if (!port)
		return;
	if (smp->method == IB_MGMT_METHOD_SET)
		memcpy(port->sl_to_vl, smp->data, sizeof(port->sl_to_vl));
	memset(smp->data, 0, sizeof(smp->data));
	memcpy(smp->data, port->sl_to_vl, sizeof(port->sl_to_vl));
}

static void vl_arbitration(struct vib_node *node, struct vib_port *in, struct ib_smp *smp)
{
	u32 mod = be32_to_cpu(smp->attr_mod), block = mod >> 16;
	struct vib_port *port = node->hca ? in : port_of(node, in, smp, mod & 0xff);

	if (!port)
		return;
	if (block < 1 || block > 4) {
		vib_mad_status((struct ib_mad_hdr *)smp, IB_MGMT_MAD_STATUS_INVALID_ATTRIB_VALUE);
		return;
	}
	if (smp->method == IB_MGMT_METHOD_SET)
		memcpy(port->vl_arbitration[block - 1], smp->data, sizeof(smp->data));
	memcpy(smp->data, port->vl_arbitration[block - 1], sizeof(smp->data));
}

static void attribute(struct vib_node *node, struct vib_port *in, struct ib_smp *smp)
{
	switch (smp->attr_id) {
	case IB_SMP_ATTR_NODE_DESC:
		memcpy(smp->data, node->description, sizeof(smp->data));
		break;
	case IB_SMP_ATTR_NODE_INFO:
		node_info(node, in, smp);
		break;
	case IB_SMP_ATTR_PORT_INFO:
		port_info(node, in, smp);
		break;
	case IB_SMP_ATTR_PKEY_TABLE:
		pkey_table(node, in, smp);
		break;
	case IB_SMP_ATTR_GUID_INFO:
		guid_info(node->hca ? in : node->port[0], smp);
		break;
	case IB_SMP_ATTR_SL_TO_VL_TABLE:
		sl_to_vl(node, in, smp);
		break;
	case IB_SMP_ATTR_VL_ARB_TABLE:
		vl_arbitration(node, in, smp);
		break;
	default:
		if (node->hca)
			vib_mad_status((struct ib_mad_hdr *)smp, IB_MGMT_MAD_STATUS_UNSUPPORTED_METHOD_ATTRIB);
		else
			vib_switch_smp(smp);
	}
}

/* Makes a Get or Set its own response. */
void vib_smp(struct vib_node *node, struct vib_port *in, struct ib_smp *smp)
{
	smp->status = 0;
	if (smp->class_version != VIB_VERSION)
		vib_mad_status((struct ib_mad_hdr *)smp, IB_MGMT_MAD_STATUS_BAD_VERSION);
	else
		attribute(node, in, smp);
	smp->method = IB_MGMT_METHOD_GET_RESP;
	if (smp->mgmt_class == IB_MGMT_CLASS_SUBN_DIRECTED_ROUTE)
		smp->status |= IB_SMP_DIRECTION;
}
