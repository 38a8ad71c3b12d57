//! What every process has: memory, locks, descriptors, time, signals, cancellation, fork, netlink
//! and addresses.

pub mod alloc;
pub mod atfork;
pub mod c_alloc;
pub mod cancel;
pub mod clock;
pub mod event;
pub mod fixed_string;
pub mod futex;
pub mod library_fds;
pub mod lock;
pub mod log;
pub mod mark;
pub mod memlock;
pub mod netlink;
pub mod numbered;
pub mod owner;
pub mod pages;
pub(crate) mod race_detector;
pub mod resolver;
pub mod signals;
pub mod sockaddr;
pub mod sync;
pub(crate) mod thread_word;
pub mod uapi;
