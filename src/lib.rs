//! The core behind `librdmacm.so.1`: the RDMA connection manager in user space.
//!
//! Layers, each using only those below it: the C entry points (`abi/rdmacm`), the calls (`cm`, `rsocket`), the outside ([`sys`]).
//! Beside them, the port mapper of iWARP devices ([`iwpm`], [`iwpmd`]), which is a program of its own.

/// C programs share structures with times in them (timeval) with the library. On 32-bit machines
/// they may have a 64-bit time_t while Rust's libc has not (debian/README.source).
const _: () = assert!(size_of::<usize>() == 8 && size_of::<libc::time_t>() == 8, "a 64-bit machine is needed");

#[cfg(feature = "library")]
pub mod acm;
#[cfg(feature = "library")]
pub mod cm;
#[cfg(feature = "library")]
pub mod diag;
pub mod errno;
#[cfg(feature = "library")]
pub mod ffi;
pub mod iwpm;
pub mod iwpmd;
#[cfg(feature = "library")]
pub mod rsocket;
pub mod sys;

pub use errno::{Errno, Result};
