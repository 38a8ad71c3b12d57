//! The structures and constants of the public C headers, in the C spelling.
//!
//! `include/rdma/rdma_cma.h` and `include/rdma/rsocket.h` are generated from these definitions by cbindgen, so the
//! comments here are what C programmers read. Layout and values are those of `abi/reference/`, compared by
//! `make abi-check`.
//!
//! Enumerations are plain integers wherever a program hands them in: a C program may pass any value, a Rust `enum`
//! may hold none but its own.

#![allow(non_camel_case_types)] // the names are those of the C headers

pub mod cma;
pub mod rsocket;
pub mod verbs;

pub use cma::*;
pub use rsocket::*;
