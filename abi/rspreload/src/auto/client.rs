//! connect(2) of a TCP socket in automatic mode.

use core::ffi::c_int;

use libc::{EINPROGRESS, sockaddr, socklen_t};

use super::log::Reason;
use super::{attempt, instances, log, outcome, route, slots};
use crate::fork::name::Name;
use crate::fork::tcp;
use crate::{errno, next_symbol};

/// connect(2).
///
/// # Safety
/// As connect(2).
pub unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: as for this function.
    let next = || unsafe { next_symbol::connect(fd, addr, len) };
    // SAFETY: `addr` has `len` bytes: guaranteed by the caller.
    let Some(to) = (unsafe { Name::read(addr, len) }) else { return next() };
    let to = to.of_device();
    match errno::keeping(|| by_rdma(fd, &to)) {
        Ok(None) => 0,
        Ok(Some(error)) => errno::fail(error),
        Err(None) => next(),
        Err(Some(reason)) => {
            log::connection(fd, &to, "TCP", reason);
            let result = next();
            if result == 0 {
                attempt::accepted_by_tcp(&to, reason);
            }
            result
        }
    }
}

/// Connects by RDMA. Returns `Ok` with the errno of connect(2), if any; otherwise the reason for
/// TCP, which is `None` for other sockets.
fn by_rdma(fd: c_int, to: &Name) -> Result<Option<c_int>, Option<Reason>> {
    let ruled_out = route::ruled_out(to);
    if ruled_out.is_err() && !crate::config::logs() {
        // What the socket is need not be asked.
        return Err(None);
    }
    if !route::is_candidate(fd, to.family()) || is_connected(fd) {
        return Err(None);
    }
    log::problems();
    ruled_out?;
    route::allows_rdma(fd, to)?;
    // Before the attempt: it may have succeeded by the time that it is given up.
    if instances::are_too_many(fd) {
        return Err(Some(Reason::Instances));
    }
    let inner = attempt::begin(fd, to)?;
    let end = attempt::deadline();
    let ended = if tcp::is_blocking(fd) {
        attempt::wait(inner, to, &end)
    } else {
        match slots::submit(fd, inner, to, &end) {
            Ok(()) => return Ok(Some(EINPROGRESS)),
            Err(reason) => attempt::abandon(inner, reason),
        }
    };
    if let Err(reason) = ended {
        attempt::give_up(inner);
        return Err(Some(reason));
    }
    let left = instances::leave(fd);
    let connected = outcome::become_rsocket(fd, fd, None, inner);
    left.join_again(fd);
    if !connected {
        attempt::give_up(inner);
        return Err(Some(Reason::Busy));
    }
    log::connection(fd, to, "RDMA", Reason::Connected);
    Ok(None)
}

/// Whether the socket has been connected, connects, or listens: connect(2) is the kernel's then.
fn is_connected(fd: c_int) -> bool {
    tcp::state(fd).is_some_and(|state| state != tcp::CLOSED)
}
