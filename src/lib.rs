//! The core behind `librdmacm.so.1`: the RDMA connection manager in user space.
//!
//! From top to bottom, the layers are the C entry points (`abi/rdmacm`), the calls (`cm`,
//! `rsocket`), the kernel's connection manager ([`ucm`]) and libibverbs ([`verbs`]), and operating
//! system services ([`os`]). Each layer uses only the layers below it.

/// C programs pass structures that contain times (timeval) to the library. On 32-bit machines a
/// program may be built with a 64-bit time_t while Rust's libc crate has a 32-bit one
/// (debian/README.source).
const _: () = assert!(size_of::<usize>() == 8 && size_of::<libc::time_t>() == 8, "a 64-bit machine is needed");

pub mod acm;
pub mod cm;
pub mod diag;
pub mod errno;
pub mod ffi;
pub mod os;
pub mod rsocket;
pub mod ucm;
pub mod verbs;

pub use errno::{Errno, Result};
