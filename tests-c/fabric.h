/*
 * The lab's InfiniBand fabric as a test changes it: cables, lost management packets, the subnet
 * manager, partitions, the second host. Everything waits for its effect. A program leaves the
 * fabric as it found it, for the one that runs next.
 */
#ifndef TESTS_C_FABRIC_H
#define TESTS_C_FABRIC_H

#include "common.h"

#include <infiniband/sa.h>

/* The module's parameters (tests/lab/ib/main.c). */
bool fabric_set(const char *parameter, long value);

/* Management classes whose packets can be lost. */
enum { CLASS_SM = 0x81, CLASS_SA = 3, CLASS_CM = 7 };
/* Loses the next `count` packets of a class, -1: all. fabric_keep() ends that. */
bool fabric_lose(int class, int count);
bool fabric_keep(void);

enum host { NEAR, FAR };
const char *host_device(enum host host);
/* Address of a host's IPoIB interface, or of its child interface in partition `pkey` (0: none). */
union address host_addr(enum host host, int family, uint16_t pkey, uint16_t port);
union address host_gid(enum host host, uint16_t pkey, uint64_t sid, uint64_t mask);
unsigned int host_lid(enum host host);
/* Flags of the records for RDMA_OPTION_IB_PATH, and the record of a path from the near host to a GID. */
enum { PRIMARY = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL,
       ALTERNATE = IBV_PATH_FLAG_ALTERNATE | IBV_PATH_FLAG_BIDIRECTIONAL };
struct ibv_path_data path_record(unsigned int flags, const void *dgid, unsigned int slid, unsigned int dlid);
/* What this thread creates from now on belongs to that host: its network namespace. */
bool enter_host(enum host host);

/* Pulls or plugs a host's cable; does not wait for the subnet manager. */
bool cable(enum host host, bool plugged);
/* Waits until the port is in a state, such as "ACTIVE". */
bool await_port(enum host host, const char *state);
/* The hosts ask for each other's hardware addresses again. */
bool forget_neighbours(void);
/* Both ports are active, and IPoIB works again. */
bool fabric_works(void);

/* Stops the subnet manager; starts one with these further options ("" for the lab's own). */
bool sm_stop(void);
bool sm_start(const char *options);
/* Restarts it so that it gives the ports other LIDs, or the first ones again. */
bool sm_renumber(bool other);
/* Starts a second one, with a higher priority, on the far host, and waits until it is the master; stops it, and waits until
 * the first one is the master again. */
bool second_sm_start(void);
bool second_sm_stop(void);

/* IPoIB interfaces of a partition, one on each host. */
bool partition_link(enum host host, uint16_t pkey);
/* Waits until the interface works. */
bool partition_runs(enum host host, uint16_t pkey);
bool partition_unlink(enum host host, uint16_t pkey);

/* As pair_open() (common.h), with the listener on `listener` and the client on the near host. */
bool pair_open_at(struct pair *pair, enum rdma_port_space ps, enum host host, const union address *listener);
/* Prints the client's paths: number, P_Key, LIDs as offsets from the hosts' own. */
void show_route(const char *who, const struct rdma_cm_id *id);

#endif
