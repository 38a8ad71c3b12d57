//! What librdmacm, librspreload and the programs share: what the two libraries agree on beside the
//! public interface, and formats that several of them read or write. Without std, because
//! librspreload is.
#![no_std]

pub mod auto_config;
pub mod errno;
pub mod ibacm;
pub mod netlink;
pub mod preload_rules;
pub mod private;
pub mod raised_limit;
pub mod sleep;
pub mod socket_table;
