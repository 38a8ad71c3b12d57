//! The core behind `librdmacm.so.1`: the RDMA connection manager in user space.
//!
//! Each layer uses only those below it: the C entry points (`abi/rdmacm`), the calls (`cm`,
//! `rsocket`), system calls and libibverbs ([`sys`]). The port mapper for iWARP devices is a crate
//! of its own (`iwpmd`), which uses [`mod@errno`] and [`sys`] alone.

/// C programs pass structures that contain times (timeval) to the library. On 32-bit machines the
/// programs may have a 64-bit time_t and Rust's libc a 32-bit one (debian/README.source).
const _: () = assert!(size_of::<usize>() == 8 && size_of::<libc::time_t>() == 8, "a 64-bit machine is needed");

pub mod acm;
pub mod cm;
pub mod diag;
pub mod errno;
pub mod ffi;
pub mod rsocket;
pub mod startup;
pub mod sys;

pub use errno::{Errno, Result};
