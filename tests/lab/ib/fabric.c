// SPDX-License-Identifier: GPL-2.0
/* Packets in flight, and the work item that moves them. */
#include <linux/slab.h>
#include "vib.h"

/* Also called with locks of the QP held, and from timers. */
void vib_make_ready(struct rvt_qp *qp)
{
	struct vib_qp *priv = vib_qp(qp);
	unsigned long flags;

	spin_lock_irqsave(&fabric.lock, flags);
	if (list_empty(&priv->ready)) {
		rvt_get_qp(qp);
		list_add_tail(&priv->ready, &fabric.ready);
	}
	spin_unlock_irqrestore(&fabric.lock, flags);
	queue_work(fabric.queue, &fabric.work);
}

static struct rvt_qp *next_ready(void)
{
	struct vib_qp *priv;
	unsigned long flags;

	spin_lock_irqsave(&fabric.lock, flags);
	priv = list_first_entry_or_null(&fabric.ready, struct vib_qp, ready);
	if (priv)
		list_del_init(&priv->ready);
	spin_unlock_irqrestore(&fabric.lock, flags);
	return priv ? priv->qp : NULL;
}

/* A packet with room for `length` bytes of data, or NULL: then it is lost. */
struct vib_packet *vib_packet(struct vib_port *from, enum vib_kind kind, u32 length)
{
	struct vib_packet *packet = kzalloc(sizeof(*packet) + length, GFP_ATOMIC);

	if (!packet)
		return NULL;
	packet->from = from;
	packet->kind = kind;
	packet->pkey = IB_DEFAULT_PKEY_FULL;
	packet->length = length;
	return packet;
}

static void discard(struct vib_packet *packet)
{
	if (packet->kind == VIB_REQUEST) {
		if (packet->request.requester->ibqp.qp_type == IB_QPT_UC)
			vib_uc_sent(packet);
		rvt_put_qp(packet->request.requester);
	}
	kfree(packet);
}

void vib_transmit(struct vib_packet *packet)
{
	struct list_head *before;
	unsigned long flags;

	packet->due = jiffies + msecs_to_jiffies(vib_delay_ms());
	spin_lock_irqsave(&fabric.lock, flags);
	before = fabric.flying.prev;
	while (before != &fabric.flying &&
	       time_after(list_entry(before, struct vib_packet, list)->due, packet->due))
		before = before->prev;
	list_add(&packet->list, before);
	spin_unlock_irqrestore(&fabric.lock, flags);
	queue_work(fabric.queue, &fabric.work);
}

/* The next packet that is due; if it is not yet, the timer is set. */
static struct vib_packet *next_packet(void)
{
	struct vib_packet *packet;
	unsigned long flags, now = jiffies;

	spin_lock_irqsave(&fabric.lock, flags);
	packet = list_first_entry_or_null(&fabric.flying, struct vib_packet, list);
	if (packet && time_after(packet->due, now)) {
		mod_delayed_work(fabric.queue, &fabric.timer, packet->due - now);
		packet = NULL;
	}
	if (packet)
		list_del(&packet->list);
	spin_unlock_irqrestore(&fabric.lock, flags);
	return packet;
}

void vib_receive(struct vib_port *port, struct vib_packet *packet)
{
	switch (packet->kind) {
	case VIB_DATAGRAM:
		vib_ud_receive(port, packet);
		break;
	case VIB_REQUEST:
		vib_rc_request(port, packet);
		break;
	case VIB_RESPONSE:
		vib_rc_response(port, packet);
		break;
	}
}

/* An adapter's port sends to itself, too: unicast to its own LIDs, and all multicast. */
static void leave(struct vib_packet *packet)
{
	struct vib_port *from = packet->from;
	bool own = vib_has_lid(from, packet->dlid), multicast = vib_is_multicast(packet->dlid);
	u8 needed = packet->qpn ? IB_PORT_ACTIVE : IB_PORT_INIT;

	if (!from->node->hca) { /* the switch's own */
		vib_switch_route(from, packet);
		return;
	}
	if (vib_state(from) < needed || vib_lost(packet)) {
		from->xmit_discards++;
		return;
	}
	from->sent += vib_packets(packet->length);
	if (own || multicast)
		vib_receive(from, packet);
	if (!own)
		vib_switch_route(from->peer, packet);
}

/* Called with `run` held. */
static void move_all(void)
{
	struct vib_packet *packet;
	struct rvt_qp *qp;

	for (;;) {
		qp = next_ready();
		if (qp) {
			vib_send(qp);
			rvt_put_qp(qp);
		}
		packet = next_packet();
		if (packet) {
			leave(packet);
			discard(packet);
		}
		if (!qp && !packet)
			break;
		cond_resched();
	}
}

static void move(struct work_struct *work)
{
	mutex_lock(&fabric.run);
	move_all();
	mutex_unlock(&fabric.run);
}

/* A program that posted a request moves it itself, if nobody else is at it: one that polls its
 * completion queue without a pause would keep the work item from running until the next tick.
 */
void vib_move_now(void)
{
	if (mutex_trylock(&fabric.run)) {
		move_all();
		mutex_unlock(&fabric.run);
	}
}

/* Forgets everything of a QP that is about to be reset; it may not be in use afterwards. */
void vib_withdraw(struct rvt_qp *qp)
{
	struct vib_packet *packet, *next;
	struct vib_qp *priv = vib_qp(qp);
	unsigned long flags;
	LIST_HEAD(gone);

	mutex_lock(&fabric.run);
	spin_lock_irqsave(&fabric.lock, flags);
	if (!list_empty(&priv->ready)) {
		list_del_init(&priv->ready);
		rvt_put_qp(qp);
	}
	list_for_each_entry_safe(packet, next, &fabric.flying, list)
		if (packet->kind == VIB_REQUEST && packet->request.requester == qp)
			list_move(&packet->list, &gone);
	spin_unlock_irqrestore(&fabric.lock, flags);
	list_for_each_entry_safe(packet, next, &gone, list)
		discard(packet);
	mutex_unlock(&fabric.run);
}

void vib_clear(void)
{
	struct vib_packet *packet, *next;

	list_for_each_entry_safe(packet, next, &fabric.flying, list)
		discard(packet);
	INIT_LIST_HEAD(&fabric.flying);
}

/* The packets of a message. */
u32 vib_packets(u32 length)
{
	return length ? DIV_ROUND_UP(length, VIB_MTU) : 1;
}

/* Counts a message that went from one port to another. */
void vib_count(struct vib_port *from, struct vib_port *to, u32 length, bool multicast)
{
	u32 packets = vib_packets(length);
	u32 words = length / 4 + packets * 8; /* headers, about */

	from->xmit_packets += packets;
	to->rcv_packets += packets;
	from->xmit_words += words;
	to->rcv_words += words;
	*(multicast ? &from->multicast_xmit : &from->unicast_xmit) += packets;
	*(multicast ? &to->multicast_rcv : &to->unicast_rcv) += packets;
}

void vib_fabric_init(void)
{
	mutex_init(&fabric.run);
	spin_lock_init(&fabric.lock);
	INIT_LIST_HEAD(&fabric.ready);
	INIT_LIST_HEAD(&fabric.flying);
	INIT_WORK(&fabric.work, move);
	INIT_DELAYED_WORK(&fabric.timer, move);
}
