// SPDX-License-Identifier: GPL-2.0
/*
 * The switch: forwards by its tables, which the subnet manager fills, and answers SMPs. Port 0 is
 * its own; the others lead to adapters.
 */
#include <linux/slab.h>
#include "vib.h"

/* As a SwitchInfo attribute is on the wire. */
struct switch_info {
	__be16 linear_cap, random_cap, mcast_cap, linear_top;
	u8 default_port, default_mcast_primary, default_mcast_other, life_change;
	__be16 lids_per_port, enforce_cap;
	u8 flags, reserved;
	__be16 mcast_top;
} __packed;

#define PORT_CHANGED 4 /* in life_change */

static void to_port(struct vib_port *out, struct vib_packet *packet)
{
	u8 needed = packet->qpn ? IB_PORT_ARMED : IB_PORT_INIT;
	struct vib_port *port = out->peer;

	if (!port || vib_state(out) < needed) {
		out->xmit_discards++;
		return;
	}
	vib_count(out, port, packet->length, vib_is_multicast(packet->dlid));
	vib_receive(port, packet);
}

/* ---- SMPs ------------------------------------------------------------------------------------ */

/* Sends a packet out of the port that a directed route names. */
static void directed(u8 port, struct vib_packet *packet)
{
	if (port && port <= fabric.sw.node.ports) {
		packet->dlid = VIB_PERMISSIVE;
		packet->slid = VIB_PERMISSIVE;
		to_port(fabric.sw.node.port[port], packet);
	}
}

/* InfiniBand specification 14.2.2: an SMP that goes away from the subnet manager. */
static void directed_request(struct vib_port *in, struct vib_packet *packet, struct ib_smp *smp)
{
	if (smp->hop_cnt >= IB_SMP_MAX_PATH_HOPS || !smp->hop_ptr || smp->hop_ptr > smp->hop_cnt)
		return;
	smp->return_path[smp->hop_ptr] = in->num;
	if (smp->hop_ptr < smp->hop_cnt) {
		smp->hop_ptr++;
		directed(smp->initial_path[smp->hop_ptr], packet);
	} else if (smp->dr_dlid == IB_LID_PERMISSIVE) {
		/* The route ends here; the answer goes out of the port where the request came in. */
		vib_smp(&fabric.sw.node, in, smp);
		if (smp->method == IB_MGMT_METHOD_GET_RESP)
			directed(in->num, packet);
	}
}

static void directed_response(struct vib_packet *packet, struct ib_smp *smp)
{
	if (smp->hop_ptr < 2 || smp->hop_ptr > smp->hop_cnt)
		return;
	smp->hop_ptr--;
	directed(smp->return_path[smp->hop_ptr], packet);
}

/* A MAD for the switch itself, by its LID: answered to where it came from. */
static void own_mad(struct vib_port *in, struct vib_packet *packet)
{
	struct ib_mad_hdr *mad = (struct ib_mad_hdr *)packet->data;
	u32 qpn = packet->ud.src_qpn;

	if (packet->kind != VIB_DATAGRAM || packet->length < IB_MGMT_MAD_SIZE ||
	    (mad->method != IB_MGMT_METHOD_GET && mad->method != IB_MGMT_METHOD_SET))
		return;
	if (!packet->qpn && mad->mgmt_class == IB_MGMT_CLASS_SUBN_LID_ROUTED)
		vib_smp(&fabric.sw.node, in, (struct ib_smp *)mad);
	else if (packet->qpn == 1 && mad->mgmt_class == IB_MGMT_CLASS_PERF_MGMT)
		vib_pma(&fabric.sw.node, in->num, (struct ib_pma_mad *)mad);
	else
		return;
	swap(packet->slid, packet->dlid);
	packet->ud.src_qpn = packet->qpn;
	packet->ud.has_grh = false;
	packet->qpn = qpn;
	to_port(in, packet);
}

/* ---- forwarding ------------------------------------------------------------------------------ */

static void multicast(struct vib_port *in, struct vib_packet *packet)
{
	u16 index = packet->dlid - VIB_MCAST_BASE;
	int p;

	for (p = 1; index < VIB_MFT_SIZE && p <= fabric.sw.node.ports; p++)
		if (fabric.sw.mft[index] >> p & 1 && p != in->num)
			to_port(fabric.sw.node.port[p], packet);
}

static void unicast(struct vib_port *in, struct vib_packet *packet)
{
	u8 port = packet->dlid <= fabric.sw.top ? fabric.sw.lft[packet->dlid] : 255;

	if (!port)
		own_mad(in, packet);
	else if (port <= fabric.sw.node.ports)
		to_port(fabric.sw.node.port[port], packet);
	else
		in->xmit_discards++;
}

/* A packet that comes in at a port of the switch, or (port 0) that the switch itself sends. */
void vib_switch_route(struct vib_port *in, struct vib_packet *packet)
{
	struct ib_smp *smp = (struct ib_smp *)packet->data;
	bool is_mad = packet->kind == VIB_DATAGRAM && !packet->qpn && packet->length >= sizeof(*smp);
	u8 needed = packet->qpn ? IB_PORT_ARMED : IB_PORT_INIT;

	if (in->num) {
		if (vib_state(in) < needed)
			return;
		vib_count(in->peer, in, packet->length, vib_is_multicast(packet->dlid));
	}
	if (is_mad && smp->mgmt_class == IB_MGMT_CLASS_SUBN_DIRECTED_ROUTE && packet->dlid == VIB_PERMISSIVE) {
		if (smp->status & IB_SMP_DIRECTION)
			directed_response(packet, smp);
		else
			directed_request(in, packet, smp);
	} else if (vib_is_multicast(packet->dlid)) {
		multicast(in, packet);
	} else {
		unicast(in, packet);
	}
}

/* ---- attributes that only a switch has ------------------------------------------------------- */

static void switch_info(struct ib_smp *smp)
{
	struct switch_info *info = (struct switch_info *)smp->data;

	if (smp->method == IB_MGMT_METHOD_SET) {
		fabric.sw.top = be16_to_cpu(info->linear_top);
		fabric.sw.default_port = info->default_port;
		fabric.sw.life_time = info->life_change >> 3;
		if (info->life_change & PORT_CHANGED)
			fabric.sw.port_changed = false;
	}
	memset(smp->data, 0, sizeof(smp->data));
	info->linear_cap = cpu_to_be16(VIB_LFT_SIZE);
	info->mcast_cap = cpu_to_be16(VIB_MFT_SIZE);
	info->linear_top = cpu_to_be16(fabric.sw.top);
	info->default_port = fabric.sw.default_port;
	info->life_change = fabric.sw.life_time << 3 | (fabric.sw.port_changed ? PORT_CHANGED : 0);
	info->enforce_cap = cpu_to_be16(VIB_PKEYS);
}

static void linear_table(struct ib_smp *smp)
{
	u32 first = be32_to_cpu(smp->attr_mod) * 64;

	if (first >= VIB_LFT_SIZE) {
		vib_mad_status((struct ib_mad_hdr *)smp, IB_MGMT_MAD_STATUS_INVALID_ATTRIB_VALUE);
		return;
	}
	if (smp->method == IB_MGMT_METHOD_SET)
		memcpy(fabric.sw.lft + first, smp->data, 64);
	memcpy(smp->data, fabric.sw.lft + first, 64);
}

/* Blocks of 32 LIDs; the upper bits of the modifier choose 16 of the ports, of which we have one lot. */
static void multicast_table(struct ib_smp *smp)
{
	u32 mod = be32_to_cpu(smp->attr_mod), first = (mod & 0x1ff) * 32;
	__be16 *word = (__be16 *)smp->data;
	int i;

	if (first >= VIB_MFT_SIZE || mod >> 28) {
		vib_mad_status((struct ib_mad_hdr *)smp, IB_MGMT_MAD_STATUS_INVALID_ATTRIB_VALUE);
		return;
	}
	for (i = 0; i < 32; i++) {
		if (smp->method == IB_MGMT_METHOD_SET)
			fabric.sw.mft[first + i] = be16_to_cpu(word[i]);
		word[i] = cpu_to_be16(fabric.sw.mft[first + i]);
	}
}

void vib_switch_smp(struct ib_smp *smp)
{
	switch (smp->attr_id) {
	case IB_SMP_ATTR_SWITCH_INFO:
		switch_info(smp);
		break;
	case IB_SMP_ATTR_LINEAR_FORWARD_TABLE:
		linear_table(smp);
		break;
	case IB_SMP_ATTR_MCAST_FORWARD_TABLE:
		multicast_table(smp);
		break;
	default:
		vib_mad_status((struct ib_mad_hdr *)smp, IB_MGMT_MAD_STATUS_UNSUPPORTED_METHOD_ATTRIB);
	}
}

void vib_switch_init(void)
{
	struct vib_node *node = &fabric.sw.node;
	int p;

	node->guid = cpu_to_be64(0x02ab77000000ff00ULL);
	snprintf(node->description, sizeof(node->description), "vib switch");
	memset(fabric.sw.lft, 255, sizeof(fabric.sw.lft));
	for (p = 0; p <= VIB_MAX_LINKS; p++) {
		node->port[p] = kzalloc(sizeof(*node->port[p]), GFP_KERNEL);
		if (!node->port[p])
			return;
		vib_port_init(node->port[p], node, p);
		node->port[p]->guids[0] = node->guid;
	}
	node->port[0]->info.linkspeed_portstate = 7 << 4 | IB_PORT_ACTIVE;
	node->port[0]->info.portphysstate_linkdown = 5 << 4 | 2;
	node->port[0]->info.cap_mask = cpu_to_be32(IB_PORT_TRAP_SUP | IB_PORT_SYS_IMAGE_GUID_SUP);
}

void vib_switch_exit(void)
{
	int p;

	for (p = 0; p <= VIB_MAX_LINKS; p++)
		kfree(fabric.sw.node.port[p]);
}
