//! Probes for tracers (bpftrace, SystemTap, perf, gdb). Each is a nop instruction, and a note in
//! the library's file with the locations of the instruction and of its arguments
//! (docs/troubleshooting.md).

use std::ffi::c_int;

use probe::probe;

use crate::ffi::rdma_cm_id;

/// Defines a function for each probe, with the probe's arguments.
macro_rules! probes {
    ($(#[doc = $doc:literal] $name:ident($($argument:ident: $type:ty),+);)+) => {
        $(#[doc = $doc] #[inline] pub fn $name($($argument: $type),+) { probe!(librdmacm, $name, $($argument),+); })+
    };
}

probes! {
    /// rdma_connect() begins, for programs and for rsockets.
    cm_connect(id: *const rdma_cm_id);
    /// rdma_accept() begins.
    cm_accept(id: *const rdma_cm_id);
    /// An event was read.
    cm_event(id: *const rdma_cm_id, event: u32, status: c_int);
    /// rdma_destroy_id() begins.
    cm_close(id: *const rdma_cm_id);
    /// rconnect() begins.
    rs_connect(fd: c_int);
    /// raccept() returns `fd`.
    rs_accept(listener: c_int, fd: c_int);
    /// Bytes were sent.
    rs_send(fd: c_int, length: usize);
    /// Bytes were received; `length` is 0 at the end of the stream.
    rs_recv(fd: c_int, length: usize);
    /// rclose() begins.
    rs_close(fd: c_int);
}
