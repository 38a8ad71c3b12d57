//! The port mapper of iWARP devices, iwpmd(8): the protocol without I/O ([`proto`]), the program
//! around it ([`daemon`]), and the system calls that only a daemon makes ([`sys`]).
//!
//! Of the core it uses the bottom alone, `errno` and `sys`: nothing of librdmacm runs here, and
//! libibverbs is not needed (`scripts/layers` and `scripts/install-test` check that).

pub mod daemon;
pub mod proto;
pub mod sys;
