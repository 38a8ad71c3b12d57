/*
 * The C types from which build.rs generates Rust types: the kernel's user interface, and the two
 * libibverbs structures that ibverbs-sys lacks.
 */
#include <sys/socket.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_netlink.h>
#include <rdma/rdma_user_cm.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <infiniband/verbs.h>
#include <infiniband/sa.h>
