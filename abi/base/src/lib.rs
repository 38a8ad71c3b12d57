//! Code that librdmacm, librspreload and the programs share: the private interface between the two
//! libraries, and formats that several of them read or write. Without std, because librspreload is
//! built without it.
#![no_std]

pub mod auto_config;
pub mod bytes;
pub mod clock;
pub mod errno;
pub mod ibacm;
pub mod netlink;
pub mod preload_rules;
pub mod private;
pub mod raised_limit;
pub mod sleep;
pub mod sock_diag;
pub mod sockaddr;
pub mod socket_table;
