//! All contact with the outside: the kernel's RDMA CM device, libibverbs, netlink, fallible allocation.

pub mod uapi;
