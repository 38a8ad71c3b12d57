//! Probes for tracers (bpftrace, SystemTap, perf, gdb). Each is a nop instruction, and a note in
//! the library's file with the locations of the instruction and of its arguments
//! (docs/troubleshooting.md).

use std::ffi::c_int;

use probe::probe;

use crate::ffi::rdma_cm_id;

/// rdma_connect() begins, for programs and for rsockets.
#[inline]
pub fn cm_connect(id: *const rdma_cm_id) {
    probe!(librdmacm, cm_connect, id);
}

/// rdma_accept() begins.
#[inline]
pub fn cm_accept(id: *const rdma_cm_id) {
    probe!(librdmacm, cm_accept, id);
}

/// An event was read.
#[inline]
pub fn cm_event(id: *const rdma_cm_id, event: u32, status: c_int) {
    probe!(librdmacm, cm_event, id, event, status);
}

/// rdma_destroy_id() begins.
#[inline]
pub fn cm_close(id: *const rdma_cm_id) {
    probe!(librdmacm, cm_close, id);
}

/// rconnect() begins.
#[inline]
pub fn rs_connect(fd: c_int) {
    probe!(librdmacm, rs_connect, fd);
}

/// raccept() returns `fd`.
#[inline]
pub fn rs_accept(listener: c_int, fd: c_int) {
    probe!(librdmacm, rs_accept, listener, fd);
}

/// Bytes were sent.
#[inline]
pub fn rs_send(fd: c_int, length: usize) {
    probe!(librdmacm, rs_send, fd, length);
}

/// Bytes were received; 0 at the end of the stream.
#[inline]
pub fn rs_recv(fd: c_int, length: usize) {
    probe!(librdmacm, rs_recv, fd, length);
}

/// rclose() begins.
#[inline]
pub fn rs_close(fd: c_int) {
    probe!(librdmacm, rs_close, fd);
}
