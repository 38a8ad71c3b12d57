// SPDX-License-Identifier: GPL-2.0
/*
 * Soft-iWARP tells the kernel's connection manager that its ports need no mapping. This module
 * clears that flag on the siw devices of the given links:
 *
 *	insmod siw_mapped.ko links=w0,w1
 *
 * From then on listening and connecting request mapped ports from the port mapper daemon, as on
 * adapters that share the host's addresses. Those adapters have separate TCP ports; siw uses the
 * host's, where the daemon has bound the mapped ports. So siw continues to use the unmapped ports, and
 * the connection manager gets the events that an adapter would send. The module cannot be removed.
 */
#include <linux/module.h>
#include <linux/netdevice.h>
#include <net/net_namespace.h>
#include <rdma/ib_verbs.h>
#include <rdma/iw_cm.h>

static char *links[8];
static int link_count;
module_param_array(links, charp, &link_count, 0444);
MODULE_PARM_DESC(links, "network devices that carry the siw devices");

static int (*siw_connect)(struct iw_cm_id *id, struct iw_cm_conn_param *param);

static iw_event_handler to_cm;

/* The connection manager finds a mapping again by the local address of the connection. */
static int mapped_event(struct iw_cm_id *id, struct iw_cm_event *event)
{
	if (event->event == IW_CM_EVENT_CONNECT_REPLY)
		event->local_addr = id->m_local_addr;
	return to_cm(id, event);
}

/* siw listens on the unmapped port but connects to the mapped one, where nothing listens. */
static int connect_unmapped(struct iw_cm_id *id, struct iw_cm_conn_param *param)
{
	id->m_remote_addr = id->remote_addr;
	if (id->event_handler != mapped_event) {
		to_cm = id->event_handler; /* the same for all */
		id->event_handler = mapped_event;
	}
	return siw_connect(id, param);
}

/* The device on a link, held until ib_device_put(). */
static struct ib_device *siw_on(const char *link)
{
	struct net_device *netdev = dev_get_by_name(&init_net, link);
	struct ib_device *device;

	if (!netdev)
		return NULL;
	device = ib_device_get_by_netdev(netdev, RDMA_DRIVER_SIW);
	dev_put(netdev);
	return device;
}

static void map_ports(const char *link)
{
	struct ib_device *device = siw_on(link);

	if (!device) {
		pr_err("siw_mapped: no siw device on %s\n", link);
		return;
	}
	siw_connect = device->ops.iw_connect; /* the same for all */
	device->ops.iw_connect = connect_unmapped;
	device->iw_driver_flags &= ~IW_F_NO_PORT_MAP;
	ib_device_put(device);
}

static int __init siw_mapped_init(void)
{
	int i;

	for (i = 0; i < link_count; i++)
		map_ports(links[i]);
	return 0;
}

module_init(siw_mapped_init);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Soft-iWARP with port mapping, for tests of the port mapper daemon");
