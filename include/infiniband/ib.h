/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * AF_IB: InfiniBand addresses in the form of socket addresses, as in the kernel's <rdma/ib.h>, for rdma_bind_addr(),
 * rdma_resolve_addr() and rdma_getaddrinfo().
 */
#if !defined(_RDMA_IB_H)
#define _RDMA_IB_H

#include <linux/types.h>
#include <endian.h>
#include <string.h>

#ifndef AF_IB
#define AF_IB 27
#endif

#ifndef PF_IB
#define PF_IB AF_IB
#endif

/** A GID: subnet prefix and interface id, network byte order. */
struct ib_addr {
    union {
        __u8 uib_addr8[16];
        __be16 uib_addr16[8];
        __be32 uib_addr32[4];
        __be64 uib_addr64[2];
    } ib_u;
#define sib_addr8 ib_u.uib_addr8
#define sib_addr16 ib_u.uib_addr16
#define sib_addr32 ib_u.uib_addr32
#define sib_addr64 ib_u.uib_addr64
#define sib_raw ib_u.uib_addr8
#define sib_subnet_prefix ib_u.uib_addr64[0]
#define sib_interface_id ib_u.uib_addr64[1]
};

/** An address of family AF_IB. */
struct sockaddr_ib {
    /** AF_IB, in host byte order like every sa_family. */
    unsigned short int sib_family;
    /** Partition key. */
    __be16 sib_pkey;
    /** Flow label and traffic class. */
    __be32 sib_flowinfo;
    /** GID of the port. */
    struct ib_addr sib_addr;
    /** Service id: port space and port number (RDMA_IB_IP_PS_*), or any for RDMA_PS_IB. */
    __be64 sib_sid;
    /** The bits of sib_sid that count. */
    __be64 sib_sid_mask;
    /** Index of the interface, for link-local GIDs. */
    __u64 sib_scope_id;
};

/** Sets a GID from four words in network byte order, the most significant first. */
static inline void ib_addr_set(struct ib_addr *addr, __be32 w1, __be32 w2, __be32 w3, __be32 w4)
{
    addr->sib_addr32[0] = w1;
    addr->sib_addr32[1] = w2;
    addr->sib_addr32[2] = w3;
    addr->sib_addr32[3] = w4;
}

/** Orders two GIDs: less than, equal to or greater than 0, like memcmp(). */
static inline int ib_addr_cmp(const struct ib_addr *a1, const struct ib_addr *a2)
{
    return memcmp(a1->sib_raw, a2->sib_raw, sizeof a1->sib_raw);
}

/** Whether a GID is the wildcard, all zeros. */
static inline int ib_addr_any(const struct ib_addr *a)
{
    return !(a->sib_addr64[0] | a->sib_addr64[1]);
}

/** Whether a GID is the loopback address, like ::1. */
static inline int ib_addr_loopback(const struct ib_addr *a)
{
    return !(a->sib_addr64[0] | a->sib_addr32[2]) && !(a->sib_addr8[12] | a->sib_addr8[13] | a->sib_addr8[14]) &&
           a->sib_addr8[15] == 1;
}

#endif
