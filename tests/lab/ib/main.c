// SPDX-License-Identifier: GPL-2.0
/*
 * The module: its parameters, and the making of the fabric.
 *
 *	insmod vib.ko ports=1,1        two adapters with one port each
 *	echo 2 >unplugged              pulls the cable at port 1 of the switch (bit n: port n)
 *	echo 100 >drop                 loses 100 of 1,000 packets (never those of subnet management)
 *	echo 5 >delay                  each packet takes 5 ms more; with reorder=n, n of 1,000 do
 *	echo 3 >drop_class             loses all MADs of that class (3: SA, 7: CM, 1 and 129: SM)
 *	echo 1 >remove                 removes the second adapter, whatever uses it; `adapters` has a bit
 *	                               for each that is there
 *	echo 1 >add                    adds it again
 */
#include <linux/module.h>
#include "vib.h"

struct vib_fabric fabric;

static int ports[VIB_MAX_HCAS] = { 1, 1 };
static int hcas = 2;
module_param_array(ports, int, &hcas, 0444);
MODULE_PARM_DESC(ports, "number of ports (1 or 2) of each adapter");

static unsigned int drop;
module_param(drop, uint, 0644);
MODULE_PARM_DESC(drop, "packets lost, of 1,000");

static unsigned int delay;
module_param(delay, uint, 0644);
MODULE_PARM_DESC(delay, "milliseconds that a packet is delayed");

static unsigned int reorder;
module_param(reorder, uint, 0644);
MODULE_PARM_DESC(reorder, "packets delayed, of 1,000 (0: all)");

static unsigned int seed = 1;
module_param(seed, uint, 0644);
MODULE_PARM_DESC(seed, "chooses which packets are lost or delayed");

static int drop_class = -1;
module_param(drop_class, int, 0644);
MODULE_PARM_DESC(drop_class, "management class whose MADs are lost");

static int drop_left = -1;
module_param(drop_left, int, 0644);
MODULE_PARM_DESC(drop_left, "how many MADs of drop_class are still to be lost (-1: all)");

static unsigned long unplugged;

static int set_unplugged(const char *value, const struct kernel_param *param)
{
	int status = param_set_ulong(value, param);

	if (!status && fabric.hcas)
		vib_set_cables(unplugged);
	return status;
}

static const struct kernel_param_ops unplugged_ops = {
	.set = set_unplugged,
	.get = param_get_ulong,
};
module_param_cb(unplugged, &unplugged_ops, &unplugged, 0644);
MODULE_PARM_DESC(unplugged, "mask of the switch's ports whose cables are pulled");

static unsigned long adapters;
module_param(adapters, ulong, 0444);
MODULE_PARM_DESC(adapters, "mask of the adapters that are there (to be read)");

static int removed = -1, added = -1;

static void remove_work(struct work_struct *work)
{
	vib_hca_remove(fabric.hca[removed]);
	clear_bit(removed, &adapters);
}

static void add_work(struct work_struct *work)
{
	if (!vib_hca_add_again(fabric.hca[added]))
		set_bit(added, &adapters);
}

static DECLARE_WORK(removal, remove_work);
static DECLARE_WORK(addition, add_work);

/* The parameters' lock is held here, and others want to read them meanwhile. */
static int set_adapter(const char *value, int *number, bool present, struct work_struct *work)
{
	int wanted, status = kstrtoint(value, 0, &wanted);

	if (status)
		return status;
	if (wanted < 0 || wanted >= fabric.hcas || work_busy(&removal) || work_busy(&addition) ||
	    test_bit(wanted, &adapters) != present)
		return -EINVAL;
	*number = wanted;
	schedule_work(work);
	return 0;
}

static int set_removed(const char *value, const struct kernel_param *param)
{
	return set_adapter(value, &removed, true, &removal);
}

static int set_added(const char *value, const struct kernel_param *param)
{
	return set_adapter(value, &added, false, &addition);
}

static const struct kernel_param_ops removed_ops = {
	.set = set_removed,
	.get = param_get_int,
};
module_param_cb(remove, &removed_ops, &removed, 0644);
MODULE_PARM_DESC(remove, "adapter to be removed");

static const struct kernel_param_ops added_ops = {
	.set = set_added,
	.get = param_get_int,
};
module_param_cb(add, &added_ops, &added, 0644);
MODULE_PARM_DESC(add, "removed adapter to be added again");

/* True for about `part` of 1,000 calls. */
static bool chance(unsigned int part)
{
	seed = seed * 1664525 + 1013904223;
	return (seed >> 16) % 1000 < part;
}

static bool is_class_to_drop(const struct vib_packet *packet)
{
	const struct ib_mad_hdr *mad = (const void *)packet->data;

	if (drop_class < 0 || packet->kind != VIB_DATAGRAM || packet->qpn > 1 || mad->mgmt_class != drop_class ||
	    !drop_left)
		return false;
	if (drop_left > 0)
		drop_left--;
	return true;
}

/* Only called with the fabric's `run` held. */
bool vib_lost(const struct vib_packet *packet)
{
	if (is_class_to_drop(packet))
		return true;
	return drop && packet->qpn && chance(drop);
}

unsigned int vib_delay_ms(void)
{
	return !reorder || chance(reorder) ? delay : 0;
}

static void destroy_all(void)
{
	struct vib_hca *hca, *before;
	int i;

	cancel_work_sync(&removal);
	cancel_work_sync(&addition);
	for (i = 0; i < fabric.hcas; i++)
		vib_hca_remove(fabric.hca[i]);
	if (fabric.queue) {
		cancel_delayed_work_sync(&fabric.timer);
		destroy_workqueue(fabric.queue);
	}
	vib_clear();
	for (i = 0; i < fabric.hcas; i++)
		for (hca = fabric.hca[i]; hca; hca = before) {
			before = hca->before;
			vib_hca_destroy(hca);
		}
	vib_switch_exit();
}

/* Makes the adapters and plugs them in; the switch's ports are numbered in that order. */
static int create_all(void)
{
	int i, p, link = 0;

	for (i = 0; i < hcas; i++) {
		if (ports[i] < 1 || ports[i] > 2 || link + ports[i] > VIB_MAX_LINKS)
			return -EINVAL;
		fabric.hca[i] = vib_hca_create(i, ports[i], 0);
		if (!fabric.hca[i])
			return -ENOMEM;
		fabric.hcas++;
		for (p = 1; p <= ports[i]; p++)
			vib_connect(fabric.hca[i]->node.port[p], fabric.sw.node.port[++link]);
	}
	fabric.sw.node.ports = link;
	vib_set_cables(unplugged);
	return 0;
}

static int __init vib_init(void)
{
	int i, status;

	vib_fabric_init();
	fabric.queue = alloc_ordered_workqueue("vib", WQ_HIGHPRI);
	if (!fabric.queue)
		return -ENOMEM;
	vib_switch_init();
	status = fabric.sw.node.port[VIB_MAX_LINKS] ? create_all() : -ENOMEM;
	for (i = 0; !status && i < fabric.hcas; i++) {
		status = vib_hca_register(fabric.hca[i]);
		adapters |= BIT(i);
	}
	if (status)
		destroy_all();
	return status;
}

static void __exit vib_exit(void)
{
	destroy_all();
}

module_init(vib_init);
module_exit(vib_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Virtual InfiniBand adapters and a switch, for tests");
