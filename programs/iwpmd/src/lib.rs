//! The port mapper of iWARP devices, iwpmd(8): the protocol without I/O ([`proto`]), the program
//! around it ([`daemon`]), and the system calls that only a daemon makes ([`sys`]).

pub mod daemon;
pub mod proto;
pub mod sys;
