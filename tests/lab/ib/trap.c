// SPDX-License-Identifier: GPL-2.0
/* Traps: notices of the ports' and the switch's own to the subnet manager. Each is sent once. */
#include "vib.h"

#define TRAP_LINK_STATE cpu_to_be16(128)

struct notice {
	u8 generic_type, reserved, producer[2];
	__be16 trap, issuer_lid, toggle_count;
	union {
		struct {
			__be16 lid;
		} link;
		struct {
			u8 reserved[2];
			__be16 lid;
			u8 reserved2, other;
			__be32 capabilities;
			__be16 change_flags;
		} __packed local;
		struct {
			u8 reserved[2];
			__be16 lid1, lid2;
			__be32 key, qp1, qp2;
			union ib_gid gid1, gid2;
		} __packed bad_key;
		u8 bytes[54];
	};
} __packed;

static __be64 next_tid;

/* Sends a notice from `port` (an adapter's, or the switch's own) to its subnet manager, if it has one. */
static void send(struct vib_port *port, u8 type, __be16 trap, struct notice *notice)
{
	struct vib_packet *packet;
	struct ib_smp *smp;

	if (!port->info.sm_lid || !port->info.lid)
		return;
	packet = vib_packet(port, VIB_DATAGRAM, sizeof(*smp));
	if (!packet)
		return;
	packet->slid = vib_lid(port);
	packet->dlid = be16_to_cpu(port->info.sm_lid);
	smp = (struct ib_smp *)packet->data;
	smp->base_version = VIB_VERSION;
	smp->mgmt_class = IB_MGMT_CLASS_SUBN_LID_ROUTED;
	smp->class_version = VIB_VERSION;
	smp->method = IB_MGMT_METHOD_TRAP;
	smp->attr_id = IB_SMP_ATTR_NOTICE;
	smp->tid = cpu_to_be64(be64_to_cpu(next_tid) + 1);
	next_tid = smp->tid;
	notice->generic_type = type;
	notice->producer[1] = port->node->hca ? 1 : 2;
	notice->trap = trap;
	notice->issuer_lid = port->info.lid;
	memcpy(smp->data, notice, sizeof(*notice));
	vib_transmit(packet);
}

/* The switch: a link of some port went up or down. */
void vib_trap_link(void)
{
	struct vib_port *port = fabric.sw.node.port[0];
	struct notice notice = { .link.lid = port->info.lid };

	send(port, IB_NOTICE_TYPE_URGENT, TRAP_LINK_STATE, &notice);
}

void vib_trap_local_change(struct vib_port *port, u8 flags)
{
	struct notice notice = {
		.local = {
			.lid = port->info.lid,
			.other = flags ? 1 : 0,
			.capabilities = cpu_to_be32(port->ibp.port_cap_flags),
			.change_flags = cpu_to_be16(flags),
		},
	};

	send(port, IB_NOTICE_TYPE_INFO, IB_NOTICE_TRAP_CAP_MASK_CHG, &notice);
}

void vib_trap_bad_key(struct vib_port *port, const struct vib_packet *packet, __be16 trap, u32 key)
{
	struct notice notice = {
		.bad_key = {
			.lid1 = cpu_to_be16(packet->slid),
			.lid2 = cpu_to_be16(packet->dlid),
			.key = cpu_to_be32(key),
			.qp2 = cpu_to_be32(packet->qpn),
		},
	};

	if (packet->kind == VIB_DATAGRAM) {
		notice.bad_key.qp1 = cpu_to_be32(packet->sl << 28 | packet->ud.src_qpn);
		if (packet->ud.has_grh) {
			notice.bad_key.gid1 = packet->ud.grh.sgid;
			notice.bad_key.gid2 = packet->ud.grh.dgid;
		}
	}
	send(port, IB_NOTICE_TYPE_SECURITY, trap, &notice);
}
