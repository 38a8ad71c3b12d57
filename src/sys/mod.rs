//! All contact with the outside: the kernel's RDMA CM device, libibverbs, netlink, fallible
//! allocation.

pub mod alloc;
pub mod atfork;
pub mod c_alloc;
pub mod cancel;
pub mod chardev;
pub mod clock;
pub mod doorbell;
pub mod event;
pub mod fixed_string;
pub mod futex;
pub mod gid;
pub mod library_fds;
pub mod lock;
pub mod log;
pub mod mark;
pub mod memlock;
pub mod netlink;
pub mod nlmsg;
pub mod numbered;
pub mod owner;
pub mod pages;
mod race_detector;
pub mod rc;
pub mod resolver;
pub mod signals;
pub mod sockaddr;
pub mod sync;
pub(crate) mod thread_word;
pub mod uapi;
pub mod ucma;
pub mod ud;
pub mod verbs;
