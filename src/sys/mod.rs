//! All contact with the outside: the kernel's RDMA CM device, libibverbs, netlink, fallible allocation.

pub mod alloc;
pub mod cbox;
pub mod chardev;
pub mod log;
pub mod netlink;
pub mod resolver;
pub mod sockaddr;
pub mod text;
pub mod uapi;
pub mod ucma;
pub mod verbs;
