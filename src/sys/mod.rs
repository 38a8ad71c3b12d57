//! All contact with the outside: the kernel's RDMA CM device, libibverbs, netlink, fallible allocation.

pub mod alloc;
#[cfg(feature = "library")]
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
pub mod process;
pub mod rc;
pub mod resolver;
pub mod signals;
pub mod sockaddr;
pub mod sockets;
pub mod text;
pub mod timer;
pub mod uapi;
pub mod ucma;
#[cfg(feature = "library")]
pub mod ud;
pub mod verbs;
