//! `rdma/rsocket.h`.

use std::ffi::c_int;

/// Option level of the options that only rsockets have.
pub const SOL_RDMA: u32 = 0x10000;

/// Entries of the send queue, int.
pub const RDMA_SQSIZE: c_int = 0;
/// Entries of the receive queue, int.
pub const RDMA_RQSIZE: c_int = 1;
/// Bytes that are sent inline, int.
pub const RDMA_INLINE: c_int = 2;
/// Regions that the peer may map with riomap(), int.
pub const RDMA_IOMAPSIZE: c_int = 3;
/// Path records, an array of struct ibv_path_data.
pub const RDMA_ROUTE: c_int = 4;

/// The variable argument of rfcntl(): an int or nothing, read by the commands that have one. On the machines of Linux a
/// variable argument of a call with three arguments travels where a third named one would.
pub type rfcntl_argument = usize;
