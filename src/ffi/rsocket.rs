//! `rdma/rsocket.h`.

use std::ffi::c_int;

/// Level of the options that are specific to rsockets.
pub const SOL_RDMA: u32 = 0x10000;

/// Number of send queue entries, int.
pub const RDMA_SQSIZE: c_int = 0;
/// Number of receive queue entries, int.
pub const RDMA_RQSIZE: c_int = 1;
/// Number of bytes that are sent inline, int.
pub const RDMA_INLINE: c_int = 2;
/// Number of regions that the peer may map with riomap(), int.
pub const RDMA_IOMAPSIZE: c_int = 3;
/// Path records, an array of struct ibv_path_data.
pub const RDMA_ROUTE: c_int = 4;

/// The optional argument of rfcntl(): an int or absent, depending on the command. The supported
/// Linux ABIs pass this argument like a third named argument.
pub type rfcntl_argument = usize;
