//! The core behind `librdmacm.so.1`: the RDMA connection manager in user space.
//!
//! Layers, each using only those below it: the C entry points (`abi/rdmacm`), the calls (`cm`, `rsocket`), the outside ([`sys`]).
//! Beside them, the port mapper of iWARP devices ([`iwpm`], [`iwpmd`]), which is a program of its own.

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
