//! The core behind `librdmacm.so.1`: the RDMA connection manager in user space.
//!
//! Layers, each using only those below it: the C entry points (`abi/rdmacm`), the calls ([`cm`], [`rsocket`]), the outside ([`sys`]).

pub mod acm;
pub mod cm;
pub mod errno;
pub mod ffi;
pub mod rsocket;
pub mod sys;

pub use errno::{Errno, Result};
