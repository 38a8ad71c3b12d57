//! All contact with the outside: the kernel's RDMA CM device, libibverbs, netlink, fallible allocation.

pub mod alloc;
pub mod atfork;
pub mod cbox;
pub mod chardev;
pub mod clock;
pub mod doorbell;
pub mod event;
pub mod futex;
pub mod log;
pub mod netlink;
pub mod own;
pub mod pages;
pub mod rc;
pub mod resolver;
pub mod signals;
pub mod sockaddr;
pub mod text;
pub mod uapi;
pub mod ucma;
pub mod ud;
pub mod verbs;
