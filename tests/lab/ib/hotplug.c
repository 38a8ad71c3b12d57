// SPDX-License-Identifier: GPL-2.0
/*
 * Adapters that go while they are in use, and come back.
 *
 * The RDMA core takes a removed adapter away from the programs that have it open: their objects
 * are destroyed, and they see IBV_EVENT_DEVICE_FATAL. Their mappings of queues stay, and with them
 * rdmavt's memory, which then must not refer to the program's context any more: it is given one of
 * the adapter's own. So an adapter's memory is kept until the module is removed.
 */
#include <linux/slab.h>
#include <rdma/ib_mad.h>
#include "vib.h"

static const struct vm_operations_struct *rvt_vm_ops;
static int (*rvt_mmap_queue)(struct ib_ucontext *context, struct vm_area_struct *vma);

/* A queue that a program has mapped, once or (after fork) several times. */
struct mapping {
	struct list_head list;
	struct rvt_mmap_info *info;
	int count;
};

static DEFINE_MUTEX(mappings_lock); /* protects what follows */
static LIST_HEAD(mappings);

static struct mapping *mapping_of(const struct vm_area_struct *vma)
{
	struct mapping *mapping;

	list_for_each_entry(mapping, &mappings, list)
		if (mapping->info == vma->vm_private_data)
			return mapping;
	return NULL;
}

static void vma_open(struct vm_area_struct *vma)
{
	struct mapping *mapping;

	mutex_lock(&mappings_lock);
	mapping = mapping_of(vma);
	if (mapping)
		mapping->count++;
	rvt_vm_ops->open(vma);
	mutex_unlock(&mappings_lock);
}

static void vma_close(struct vm_area_struct *vma)
{
	struct mapping *mapping;

	mutex_lock(&mappings_lock);
	mapping = mapping_of(vma);
	rvt_vm_ops->close(vma);
	if (mapping && !--mapping->count) {
		list_del(&mapping->list);
		kfree(mapping);
		module_put(THIS_MODULE);
	}
	mutex_unlock(&mappings_lock);
}

static const struct vm_operations_struct vm_ops = {
	.open = vma_open,
	.close = vma_close,
};

static int mmap_queue(struct ib_ucontext *context, struct vm_area_struct *vma)
{
	struct mapping *mapping = kzalloc(sizeof(*mapping), GFP_KERNEL);
	int status;

	if (!mapping)
		return -ENOMEM;
	mutex_lock(&mappings_lock);
	status = rvt_mmap_queue(context, vma);
	if (status) {
		kfree(mapping);
	} else {
		__module_get(THIS_MODULE);
		mapping->info = vma->vm_private_data;
		mapping->count = 1;
		list_add(&mapping->list, &mappings);
		rvt_vm_ops = vma->vm_ops;
		vma->vm_ops = &vm_ops;
	}
	mutex_unlock(&mappings_lock);
	return status;
}

/* A program loses the adapter: all its objects are destroyed already. */
static void disassociate(struct ib_ucontext *context)
{
	struct vib_hca *hca = vib_hca(context->device);
	struct mapping *mapping;

	mutex_lock(&mappings_lock);
	list_for_each_entry(mapping, &mappings, list)
		if (mapping->info->context == context)
			mapping->info->context = &hca->orphans;
	mutex_unlock(&mappings_lock);
}

/* Before the adapter is registered; `ops` are those that rdmavt does not set. */
void vib_allow_removal(struct ib_device_ops *ops)
{
	ops->disassociate_ucontext = disassociate;
}

/* After it was registered, which sets rdmavt's functions. */
void vib_watch_mappings(struct vib_hca *hca)
{
	hca->orphans.device = &hca->rdi.ibdev;
	rvt_mmap_queue = hca->rdi.ibdev.ops.mmap;
	hca->rdi.ibdev.ops.mmap = mmap_queue;
}

/* ---- going and coming ------------------------------------------------------------------------ */

/* Everybody who uses the adapter has been told, and still has had a working link, when this pulls its cables. */
static void take_off(struct vib_hca *hca)
{
	int p;

	mutex_lock(&fabric.run);
	for (p = 1; p <= hca->node.ports; p++) {
		hca->node.port[p]->removed = true;
		vib_link_changed(hca->node.port[p], false);
	}
	mutex_unlock(&fabric.run);
}

/* rdmavt has one for each port. It unregisters those that are left before the device itself. */
static void unregister_agents(struct vib_hca *hca)
{
	struct ib_mad_agent *agent;
	int p;

	for (p = 1; p <= hca->node.ports; p++) {
		agent = hca->node.port[p]->ibp.send_agent;
		hca->node.port[p]->ibp.send_agent = NULL;
		if (agent)
			ib_unregister_mad_agent(agent);
	}
}

/* rdmavt frees its tables right after the device was unregistered; no packet may look into them then. */
void vib_hca_remove(struct vib_hca *hca)
{
	if (!hca->registered)
		return;
	hca->registered = false;
	unregister_agents(hca);
	ib_unregister_device(&hca->rdi.ibdev);
	take_off(hca);
	rvt_unregister_device(&hca->rdi);
	/* The RDMA core keeps the name of a device until its memory is freed. */
	dev_set_name(&hca->rdi.ibdev.dev, "vib%d-%d", hca->number, hca->generation);
}

/* The new adapter's ports at the cables of the old one's. */
static void exchange(struct vib_hca *old, struct vib_hca *new)
{
	int p;

	mutex_lock(&fabric.run);
	for (p = 1; p <= new->node.ports; p++) {
		vib_connect(new->node.port[p], old->node.port[p]->peer);
		old->node.port[p]->peer = NULL;
	}
	new->before = old;
	fabric.hca[new->number] = new;
	mutex_unlock(&fabric.run);
}

/* Another adapter of the same number, GUIDs and cables. */
int vib_hca_add_again(struct vib_hca *old)
{
	struct vib_hca *new = vib_hca_create(old->number, old->node.ports, old->generation + 1);
	int status, p;

	if (!new)
		return -ENOMEM;
	status = vib_hca_register(new);
	if (status) {
		vib_hca_destroy(new);
		return status;
	}
	exchange(old, new);
	for (p = 1; p <= new->node.ports; p++)
		vib_link_changed(new->node.port[p], false);
	return 0;
}
