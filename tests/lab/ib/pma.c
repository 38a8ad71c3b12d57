// SPDX-License-Identifier: GPL-2.0
/* Performance management: port counters, by adapters and the switch. */
#include "vib.h"

#define ALL_PORTS 255

static u32 at_most(u64 value, u32 limit)
{
	return value > limit ? limit : value;
}

static void class_port_info(struct ib_pma_mad *mad)
{
	struct ib_class_port_info *info = (struct ib_class_port_info *)mad->data;

	memset(mad->data, 0, sizeof(mad->data));
	info->base_version = VIB_VERSION;
	info->class_version = VIB_VERSION;
	info->capability_mask = IB_PMA_CLASS_CAP_ALLPORTSELECT | IB_PMA_CLASS_CAP_EXT_WIDTH;
	info->cap_mask2_resp_time = cpu_to_be32(18);
}

static void clear(struct vib_port *port, u16 select)
{
	if (select & 0x0004)
		port->link_downed = 0;
	if (select & 0x0040)
		port->xmit_discards = 0;
	if (select & 0x0800)
		port->vl15_dropped = 0;
	if (select & 0x1000)
		port->xmit_words = 0;
	if (select & 0x2000)
		port->rcv_words = 0;
	if (select & 0x4000)
		port->xmit_packets = 0;
	if (select & 0x8000)
		port->rcv_packets = 0;
}

static void clear_extended(struct vib_port *port, u16 select)
{
	u64 *counters[] = { &port->xmit_words, &port->rcv_words, &port->xmit_packets, &port->rcv_packets,
			    &port->unicast_xmit, &port->unicast_rcv, &port->multicast_xmit, &port->multicast_rcv };
	int i;

	for (i = 0; i < ARRAY_SIZE(counters); i++)
		if (select >> i & 1)
			*counters[i] = 0;
}

static void port_counters(const struct vib_port *port, u8 select, struct ib_pma_mad *mad)
{
	struct ib_pma_portcounters *out = (struct ib_pma_portcounters *)mad->data;

	memset(mad->data, 0, sizeof(mad->data));
	out->port_select = select;
	out->link_downed_counter = at_most(port->link_downed, 0xff);
	out->port_xmit_discards = cpu_to_be16(at_most(port->xmit_discards, 0xffff));
	out->vl15_dropped = cpu_to_be16(at_most(port->vl15_dropped, 0xffff));
	out->port_xmit_data = cpu_to_be32(at_most(port->xmit_words, ~0));
	out->port_rcv_data = cpu_to_be32(at_most(port->rcv_words, ~0));
	out->port_xmit_packets = cpu_to_be32(at_most(port->xmit_packets, ~0));
	out->port_rcv_packets = cpu_to_be32(at_most(port->rcv_packets, ~0));
}

static void extended_counters(const struct vib_port *port, u8 select, struct ib_pma_mad *mad)
{
	struct ib_pma_portcounters_ext *out = (struct ib_pma_portcounters_ext *)mad->data;

	memset(mad->data, 0, sizeof(mad->data));
	out->port_select = select;
	out->port_xmit_data = cpu_to_be64(port->xmit_words);
	out->port_rcv_data = cpu_to_be64(port->rcv_words);
	out->port_xmit_packets = cpu_to_be64(port->xmit_packets);
	out->port_rcv_packets = cpu_to_be64(port->rcv_packets);
	out->port_unicast_xmit_packets = cpu_to_be64(port->unicast_xmit);
	out->port_unicast_rcv_packets = cpu_to_be64(port->unicast_rcv);
	out->port_multicast_xmit_packets = cpu_to_be64(port->multicast_xmit);
	out->port_multicast_rcv_packets = cpu_to_be64(port->multicast_rcv);
}

/* Counters of one port, or (to be cleared) of all; a Set clears those that it selects. */
static void counters(struct vib_node *node, u8 in, struct ib_pma_mad *mad)
{
	const struct ib_pma_portcounters *wanted = (const void *)mad->data; /* alike in both attributes */
	u8 select = wanted->port_select, one = select == ALL_PORTS ? (in ? in : 1) : select, p;
	u16 mask = be16_to_cpu(wanted->counter_select);
	bool extended = mad->mad_hdr.attr_id == IB_PMA_PORT_COUNTERS_EXT;

	if (one > node->ports || !node->port[one]) {
		vib_mad_status(&mad->mad_hdr, IB_MGMT_MAD_STATUS_INVALID_ATTRIB_VALUE);
		return;
	}
	for (p = 1; mad->mad_hdr.method == IB_MGMT_METHOD_SET && p <= node->ports; p++)
		if (p == select || select == ALL_PORTS)
			(extended ? clear_extended : clear)(node->port[p], mask);
	(extended ? extended_counters : port_counters)(node->port[one], select, mad);
}

/* Makes a Get or Set its own response. */
void vib_pma(struct vib_node *node, u8 in, struct ib_pma_mad *mad)
{
	mad->mad_hdr.status = 0;
	switch (mad->mad_hdr.attr_id) {
	case IB_PMA_CLASS_PORT_INFO:
		class_port_info(mad);
		break;
	case IB_PMA_PORT_COUNTERS:
	case IB_PMA_PORT_COUNTERS_EXT:
		counters(node, in, mad);
		break;
	default:
		vib_mad_status(&mad->mad_hdr, IB_MGMT_MAD_STATUS_UNSUPPORTED_METHOD_ATTRIB);
	}
	mad->mad_hdr.method = IB_MGMT_METHOD_GET_RESP;
}

/* ---- the counter of the device itself -------------------------------------------------------- */

/* As soft-RoCE calls it: traffic of a port with itself is seen, too. */
static const struct rdma_stat_desc counter_names[] = { { .name = "sent_pkts" } };

static struct rdma_hw_stats *alloc_counters(struct ib_device *device, u32 port)
{
	return rdma_alloc_hw_stats_struct(counter_names, ARRAY_SIZE(counter_names), RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

static int get_counters(struct ib_device *device, struct rdma_hw_stats *stats, u32 port, int index)
{
	if (!port || !stats)
		return -EINVAL;
	stats->value[0] = vib_hca(device)->node.port[port]->sent;
	return ARRAY_SIZE(counter_names);
}

const struct ib_device_ops vib_counter_ops = {
	.alloc_hw_port_stats = alloc_counters,
	.get_hw_stats = get_counters,
};
