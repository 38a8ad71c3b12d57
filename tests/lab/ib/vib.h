/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A virtual InfiniBand fabric: adapters (HCAs) whose ports are cabled to one switch.
 *
 * Everything that is transmitted is a struct vib_packet on the fabric's list of packets in flight.
 * One work item moves them: it takes work requests from the QPs that have some ("ready"), makes
 * packets of them, and delivers the packets that are due. It holds `run`, so no two packets are
 * handled at once.
 */
#ifndef VIB_H
#define VIB_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <rdma/ib_hdrs.h>
#include <rdma/ib_pma.h>
#include <rdma/ib_smi.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_vt.h>
#include <rdma/rdmavt_qp.h>

#define VIB_MAX_HCAS 8
#define VIB_MAX_LINKS 15 /* external ports of the switch: one word of its multicast table */
#define VIB_PKEYS 16
#define VIB_GUIDS 8
#define VIB_MTU 4096
#define VIB_MAX_INLINE 64
#define VIB_LFT_SIZE 1024 /* unicast LIDs that the switch forwards */
#define VIB_MFT_SIZE 512  /* multicast LIDs that it forwards */
#define VIB_MCAST_BASE 0xC000
#define VIB_PERMISSIVE 0xFFFF
#define VIB_PSN_MASK 0xFFFFFF
#define VIB_VERSION 1 /* of the MAD classes answered here */
#define VIB_GID_PREFIX cpu_to_be64(0xfe80000000000000ULL)

struct vib_node;
struct vib_hca;

/* A port of an adapter or of the switch. Numbers in `info` are big-endian, as in a PortInfo. */
struct vib_port {
	struct rvt_ibport ibp; /* adapters only */
	struct vib_node *node;
	struct vib_port *peer; /* other end of the cable */
	struct ib_port_info info;
	u16 pkeys[VIB_PKEYS];
	__be64 guids[VIB_GUIDS];
	u8 sl_to_vl[8];
	u8 vl_arbitration[4][64];
	u8 num;
	bool disabled; /* by the subnet manager */
	bool unplugged;
	bool removed; /* its adapter was */

	/* Counters of the performance management class. */
	u64 xmit_words, rcv_words, xmit_packets, rcv_packets;
	u64 unicast_xmit, unicast_rcv, multicast_xmit, multicast_rcv;
	u32 link_downed, xmit_discards, vl15_dropped;
	u64 sent; /* packets, also those to itself, which do not count as transmitted */
};

/* What adapters and the switch have in common for subnet management. */
struct vib_node {
	struct vib_hca *hca; /* NULL: the switch */
	__be64 guid;
	u8 description[IB_DEVICE_NODE_DESC_MAX];
	u8 ports; /* external ports, numbered from 1 */
	struct vib_port *port[VIB_MAX_LINKS + 1]; /* [0]: the switch's own */
};

struct vib_hca {
	struct rvt_dev_info rdi; /* first: it begins with the ib_device */
	struct vib_node node;
	struct pci_dev pci; /* only for the names in rdmavt's messages */
	bool registered;
	int number, generation;
	struct vib_hca *before; /* the removed one whose place this took */
	struct ib_ucontext orphans;
};

struct vib_switch {
	struct vib_node node;
	u8 lft[VIB_LFT_SIZE]; /* port by LID */
	u16 mft[VIB_MFT_SIZE]; /* mask of ports by multicast LID */
	u16 top;
	u8 default_port, life_time;
	bool port_changed;
};

struct vib_atomic {
	u32 psn;
	u64 value;
};

#define VIB_ATOMICS 16

/* The driver's part of a QP. */
struct vib_qp {
	struct list_head ready; /* in vib_fabric.ready; that list holds a reference to the QP */
	struct rvt_qp *qp;
	enum ib_wc_status error; /* ends the oldest request, set by the retry timer */
	bool naked; /* responder: asked for a retransmission already */
	struct vib_atomic atomics[VIB_ATOMICS]; /* results, for repeated requests */
	u32 next_atomic;

	struct mutex inline_lock; /* protects what follows while requests are posted */
	u32 max_inline;
	const u8 *staged;
	u32 staged_length;
	u8 (*inline_data)[VIB_MAX_INLINE]; /* by index of the send queue */
};

enum vib_kind { VIB_DATAGRAM, VIB_REQUEST, VIB_RESPONSE };

struct vib_packet {
	struct list_head list;
	unsigned long due; /* jiffies */
	struct vib_port *from; /* adapter's port, or the switch's own */
	enum vib_kind kind;
	u16 slid, dlid, pkey;
	u8 sl;
	u32 qpn; /* destination */
	u32 length;
	union {
		struct {
			u32 src_qpn, qkey;
			__be32 imm;
			bool has_imm, has_grh, solicited;
			struct ib_grh grh;
		} ud;
		/* The request itself stays in the send queue until it is acknowledged. */
		struct {
			struct rvt_qp *requester; /* reference held */
			u32 index, psn;
		} request;
		struct {
			u32 psn;
			u8 syndrome;
		} response;
	};
	u8 data[];
};

struct vib_fabric {
	struct mutex run; /* held while packets are moved */
	spinlock_t lock;  /* protects the two lists */
	struct list_head ready;
	struct list_head flying; /* packets by time of delivery */
	struct workqueue_struct *queue;
	struct work_struct work;
	struct delayed_work timer;
	struct vib_hca *hca[VIB_MAX_HCAS];
	int hcas;
	struct vib_switch sw;
};

extern struct vib_fabric fabric;

static inline struct vib_qp *vib_qp(struct rvt_qp *qp)
{
	return qp->priv;
}

static inline struct vib_hca *vib_hca(struct ib_device *device)
{
	return container_of(device, struct vib_hca, rdi.ibdev);
}

static inline struct vib_port *vib_qp_port(struct rvt_qp *qp)
{
	return vib_hca(qp->ibqp.device)->node.port[qp->port_num];
}

static inline u8 vib_state(const struct vib_port *port)
{
	return port->info.linkspeed_portstate & 0xf;
}

static inline u16 vib_lid(const struct vib_port *port)
{
	return be16_to_cpu(port->info.lid);
}

static inline u8 vib_lmc(const struct vib_port *port)
{
	return port->info.mkeyprot_resv_lmc & 7;
}

static inline bool vib_is_multicast(u16 lid)
{
	return lid >= VIB_MCAST_BASE && lid != VIB_PERMISSIVE;
}

static inline bool vib_has_lid(const struct vib_port *port, u16 lid)
{
	return vib_lid(port) && vib_lid(port) == (lid & ~((1 << vib_lmc(port)) - 1));
}

/* hca.c */
struct vib_hca *vib_hca_create(int number, int ports, int generation);
int vib_hca_register(struct vib_hca *hca);
void vib_hca_destroy(struct vib_hca *hca);
void vib_event(struct vib_port *port, enum ib_event_type type);

/* hotplug.c */
void vib_allow_removal(struct ib_device_ops *ops);
void vib_watch_mappings(struct vib_hca *hca);
void vib_hca_remove(struct vib_hca *hca);
int vib_hca_add_again(struct vib_hca *old);

/* inline.c */
void vib_allow_inline(struct vib_hca *hca);
void vib_take_inline(struct rvt_qp *qp, struct rvt_swqe *wqe);

/* fabric.c */
void vib_fabric_init(void);
void vib_make_ready(struct rvt_qp *qp);
void vib_withdraw(struct rvt_qp *qp);
struct vib_packet *vib_packet(struct vib_port *from, enum vib_kind kind, u32 length);
void vib_transmit(struct vib_packet *packet);
void vib_receive(struct vib_port *port, struct vib_packet *packet);
void vib_move_now(void);
void vib_clear(void);
u32 vib_packets(u32 length);
void vib_count(struct vib_port *from, struct vib_port *to, u32 length, bool multicast);

/* link.c */
void vib_connect(struct vib_port *a, struct vib_port *b);
void vib_port_init(struct vib_port *port, struct vib_node *node, u8 num);
void vib_set_state(struct vib_port *port, u8 state);
void vib_link_changed(struct vib_port *port, bool retrain);
void vib_set_cables(unsigned long unplugged);

/* switch.c */
void vib_switch_init(void);
void vib_switch_exit(void);
void vib_switch_route(struct vib_port *in, struct vib_packet *packet);
void vib_switch_smp(struct ib_smp *smp);

/* smp.c */
void vib_smp(struct vib_node *node, struct vib_port *in, struct ib_smp *smp);
void vib_mad_status(struct ib_mad_hdr *mad, u16 status);

/* trap.c */
void vib_trap_link(void);
void vib_trap_local_change(struct vib_port *port, u8 flags);
void vib_trap_bad_key(struct vib_port *port, const struct vib_packet *packet, __be16 trap, u32 key);

/* pma.c */
void vib_pma(struct vib_node *node, u8 in, struct ib_pma_mad *mad);
extern const struct ib_device_ops vib_counter_ops;

/* send.c */
void vib_send(struct rvt_qp *qp);
bool vib_pkeys_match(u16 a, u16 b);
void vib_qp_event(struct rvt_qp *qp, enum ib_event_type type);

/* ud.c */
void vib_ud_send(struct rvt_qp *qp, struct rvt_swqe *wqe);
void vib_ud_receive(struct vib_port *port, struct vib_packet *packet);

/* rc.c */
struct rvt_qp *vib_find_qp(struct vib_port *port, u32 qpn);
struct rvt_swqe *vib_outstanding(const struct vib_packet *packet);
bool vib_rc_send(struct rvt_qp *qp);
void vib_uc_sent(struct vib_packet *packet);
void vib_rc_request(struct vib_port *port, struct vib_packet *packet);
void vib_rc_response(struct vib_port *port, struct vib_packet *packet);
void vib_rc_timeout(struct rvt_qp *qp, u32 psn, int wait);

/* execute.c */
#define VIB_ACK 0
u8 vib_execute(struct vib_port *port, struct rvt_qp *responder, struct rvt_qp *requester, struct rvt_swqe *wqe);

/* main.c: parameters */
bool vib_lost(const struct vib_packet *packet);
unsigned int vib_delay_ms(void);

#endif
