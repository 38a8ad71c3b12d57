//! The structures and constants of the public C headers, in the C spelling.
//!
//! cbindgen generates `include/rdma/rdma_cma.h` and `include/rdma/rsocket.h` from these
//! definitions: C programmers read the comments there. `make abi-check` compares layout and values
//! with `abi/reference/`.
//!
//! An enumeration is a plain integer wherever a program passes it: a C program may pass any value,
//! but a Rust `enum` may hold only its own values.

#![allow(non_camel_case_types)] // the names are those of the C headers

pub mod cma;
pub mod rsocket;

pub use cma::*;
pub use rsocket::*;

// The types of libibverbs that appear in the signatures of the public functions.
pub use ibverbs_sys::{
    ibv_context, ibv_ece, ibv_pd, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr,
    ibv_srq_init_attr_ex,
};
