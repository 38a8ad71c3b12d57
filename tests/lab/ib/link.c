// SPDX-License-Identifier: GPL-2.0
/* Ports and the cables between them. */
#include "vib.h"

#define LINK_UP 5 /* physical port states */
#define POLLING 2
#define DISABLED 3

void vib_port_init(struct vib_port *port, struct vib_node *node, u8 num)
{
	struct ib_port_info *info = &port->info;
	int i;

	port->node = node;
	port->num = num;
	port->pkeys[0] = IB_DEFAULT_PKEY_FULL;
	info->gid_prefix = VIB_GID_PREFIX;
	info->link_width_enabled = 3; /* 1x and 4x */
	info->link_width_supported = 3;
	info->link_width_active = 2;			  /* 4x */
	info->linkspeed_portstate = 7 << 4 | IB_PORT_DOWN; /* SDR, DDR, QDR */
	info->linkspeedactive_enabled = 4 << 4 | 7;
	info->portphysstate_linkdown = POLLING << 4 | POLLING;
	info->neighbormtu_mastersmsl = IB_MTU_4096 << 4;
	info->inittypereply_mtucap = IB_MTU_4096;
	info->vlcap_inittype = 3 << 4; /* VL0 to VL3 */
	info->operationalvl_pei_peo_fpi_fpo = 3 << 4;
	info->vl_arb_high_cap = 8;
	info->vl_arb_low_cap = 8;
	info->guid_cap = VIB_GUIDS;
	info->clientrereg_resv_subnetto = 18;
	info->resv_resptimevalue = 16;
	for (i = 0; i < 8; i++)
		port->sl_to_vl[i] = (2 * i % 4) << 4 | (2 * i + 1) % 4;
	for (i = 0; i < 4; i++) {
		port->vl_arbitration[0][2 * i] = i;
		port->vl_arbitration[0][2 * i + 1] = 4;
	}
}

void vib_connect(struct vib_port *a, struct vib_port *b)
{
	a->peer = b;
	b->peer = a;
}

static bool is_up(const struct vib_port *port)
{
	return port->peer && !port->disabled && !port->peer->disabled && !port->unplugged && !port->peer->unplugged &&
	       !port->removed && !port->peer->removed;
}

void vib_set_state(struct vib_port *port, u8 state)
{
	u8 old = vib_state(port);

	port->info.linkspeed_portstate = (port->info.linkspeed_portstate & 0xf0) | state;
	if (old == state)
		return;
	if (state == IB_PORT_ACTIVE)
		vib_event(port, IB_EVENT_PORT_ACTIVE);
	else if (old == IB_PORT_ACTIVE && state != IB_PORT_ARMED)
		vib_event(port, IB_EVENT_PORT_ERR);
}

static void train(struct vib_port *port, bool up, bool retrain)
{
	u8 physical = up ? LINK_UP : port->disabled ? DISABLED : POLLING;

	port->info.portphysstate_linkdown = (port->info.portphysstate_linkdown & 0xf) | physical << 4;
	if (!up && vib_state(port) != IB_PORT_DOWN) {
		port->link_downed++;
		vib_set_state(port, IB_PORT_DOWN);
	} else if (up && (retrain || vib_state(port) == IB_PORT_DOWN)) {
		vib_set_state(port, IB_PORT_INIT);
	}
}

/* Brings both ends to the state that the cable allows; the switch tells the subnet manager. */
void vib_link_changed(struct vib_port *port, bool retrain)
{
	struct vib_port *side = port->node->hca ? port->peer : port;
	u8 before;

	if (!port->peer)
		return;
	before = vib_state(side);
	train(port, is_up(port), retrain);
	train(port->peer, is_up(port), retrain);
	if (vib_state(side) != before) {
		fabric.sw.port_changed = true;
		vib_trap_link();
	}
}

/* Bit n of the mask: the cable at the switch's port n is pulled. */
void vib_set_cables(unsigned long unplugged)
{
	int p;

	for (p = 1; p <= fabric.sw.node.ports; p++) {
		fabric.sw.node.port[p]->unplugged = unplugged >> p & 1;
		vib_link_changed(fabric.sw.node.port[p], false);
	}
}
