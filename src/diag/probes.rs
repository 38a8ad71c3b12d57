//! Probes for tracers (bpftrace, SystemTap, perf, gdb): an instruction that does nothing each, and a note in the library's file
//! that tells where it is and where its arguments are (docs/diagnosis.md).

use std::ffi::c_int;

use probe::probe;

use crate::cm::Id;

/// rdma_connect() begins, for programs and for rsockets.
#[inline]
pub fn cm_connect(id: &Id) {
    probe!(librdmacm, cm_connect, id.as_c());
}

/// rdma_accept() begins.
#[inline]
pub fn cm_accept(id: &Id) {
    probe!(librdmacm, cm_accept, id.as_c());
}

/// An event was taken.
#[inline]
pub fn cm_event(id: &Id, event: u32, status: c_int) {
    probe!(librdmacm, cm_event, id.as_c(), event, status);
}

/// rdma_destroy_id() begins.
#[inline]
pub fn cm_close(id: &Id) {
    probe!(librdmacm, cm_close, id.as_c());
}

/// rconnect() begins.
#[inline]
pub fn rs_connect(fd: c_int) {
    probe!(librdmacm, rs_connect, fd);
}

/// raccept() has made `fd`.
#[inline]
pub fn rs_accept(listener: c_int, fd: c_int) {
    probe!(librdmacm, rs_accept, listener, fd);
}

/// Bytes were sent.
#[inline]
pub fn rs_send(fd: c_int, length: usize) {
    probe!(librdmacm, rs_send, fd, length);
}

/// Bytes were received; 0 at the end.
#[inline]
pub fn rs_recv(fd: c_int, length: usize) {
    probe!(librdmacm, rs_recv, fd, length);
}

/// rclose() begins.
#[inline]
pub fn rs_close(fd: c_int) {
    probe!(librdmacm, rs_close, fd);
}
