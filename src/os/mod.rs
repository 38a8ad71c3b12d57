//! What every process has: memory, locks, descriptors, time, signals, cancellation, fork, netlink
//! and addresses.

pub mod alloc;
pub mod cancel;
pub mod event;
pub mod fork;
pub mod library_fds;
pub mod mark;
pub mod netlink;
pub mod numbered;
pub mod pages;
pub mod sockaddr;
pub mod sync;
pub mod text;
pub mod uapi;
