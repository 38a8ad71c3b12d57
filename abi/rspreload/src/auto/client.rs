//! connect(2) of a TCP socket in automatic mode.

use core::ffi::c_int;

use libc::{EINPROGRESS, sockaddr, socklen_t};

use super::log::Reason;
use super::{attempt, connections, log, numbers, route, slots};
use crate::cancel::CancelDisabled;
use crate::epoll::members;
use crate::name::Name;
use crate::sockets::kernel;
use crate::time::Deadline;
use crate::{cancel, errno, next_symbol, open_fds, tcp};

/// connect(2).
///
/// # Safety
/// As connect(2).
pub unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: as for this function.
    let next = || unsafe { next_symbol::connect(fd, addr, len) };
    // SAFETY: `addr` has `len` bytes: guaranteed by the caller.
    let Some(to) = (unsafe { Name::read(addr, len) }) else { return next() };
    let (given, to) = (to, to.of_device());
    let mut limit = None;
    match errno::keeping(|| cancel::disabled(|cancel| by_rdma(fd, &given, &to, &mut limit, cancel))) {
        Ok(None) => 0,
        Ok(Some(error)) => errno::fail(error),
        Err(None) => next(),
        Err(Some(reason)) => {
            log::connection(fd, &to, "TCP", reason);
            let result = match limit {
                None => next(),
                Some(limit) => before(fd, &limit, next),
            };
            if result == 0 {
                attempt::accepted_by_tcp(&to, reason);
            }
            result
        }
    }
}

/// The end of the time that SO_SNDTIMEO gives to a connect(2) that begins now.
fn send_limit(fd: c_int) -> Option<Deadline> {
    Some(tcp::timeout(fd, libc::SO_SNDTIMEO)).filter(|&timeout| timeout > 0).map(Deadline::after)
}

/// Makes a call with what is left of SO_SNDTIMEO.
fn before(fd: c_int, limit: &Deadline, call: impl FnOnce() -> c_int) -> c_int {
    const NAME: (c_int, c_int) = (libc::SOL_SOCKET, libc::SO_SNDTIMEO);
    let Some((programs, _)) = kernel::get::<libc::timeval>(fd, NAME) else { return call() };
    // 0 is no limit.
    let left = i64::from(limit.left().max(1));
    let rest = libc::timeval { tv_sec: left / 1000, tv_usec: left % 1000 * 1000 };
    let _ = kernel::set(fd, NAME, &rest);
    let restore = || {
        let _ = kernel::set(fd, NAME, &programs);
    };
    let result = cancel::with_cleanup(restore, call);
    restore();
    result
}

/// Connects by RDMA. Returns `Ok` with the errno of connect(2), if any; otherwise the reason for
/// TCP, which is `None` where the kernel decides alone. `given` is the destination as the program
/// has it, `to` as rsockets have it. `limit` is set if an attempt has used time of a limited
/// call. `cancel` is allowed where the attempt is waited for.
fn by_rdma(
    fd: c_int,
    given: &Name,
    to: &Name,
    limit: &mut Option<Deadline>,
    cancel: &CancelDisabled,
) -> Result<Option<c_int>, Option<Reason>> {
    let ruled_out = route::ruled_out(to);
    if ruled_out.is_err() && !crate::config::logs() {
        // What the socket is need not be asked.
        return Err(None);
    }
    if !route::is_candidate(fd, to.family()) || is_connected(fd) {
        return Err(None);
    }
    if !has_address(fd, given, to) {
        return Err(None);
    }
    log::problems();
    ruled_out?;
    route::allows_rdma(fd, to)?;
    // Before the attempt: it may have succeeded by the time that it is given up.
    if !members::are_known(fd) {
        return Err(Some(Reason::NotOwn));
    }
    if members::are_too_many(fd) {
        return Err(Some(Reason::Instances));
    }
    if !connections::has_room(false) {
        return Err(Some(Reason::Descriptors));
    }
    if open_fds::has_ring() {
        return Err(Some(Reason::Ring));
    }
    let is_blocking = tcp::is_blocking(fd);
    *limit = if is_blocking { send_limit(fd) } else { None };
    let inner = attempt::begin(fd, to)?;
    let ended = if is_blocking {
        cancel.allow(|| attempt::give_up(inner), || attempt::wait(inner, to, limit.as_ref()))
    } else {
        match slots::submit(fd, inner, to, &attempt::deadline()) {
            Ok(()) => return Ok(Some(EINPROGRESS)),
            Err(reason) => attempt::abandon(inner, reason),
        }
    };
    if let Err(reason) = ended {
        attempt::give_up(inner);
        return Err(Some(reason));
    }
    attempt::report_success(inner, to);
    // Otherwise an instance would report the kernel's socket, which is not connected.
    members::leave(fd);
    let connected = numbers::become_rsocket(fd, fd, None, inner);
    members::join(fd);
    if !connected {
        attempt::give_up(inner);
        return Err(Some(Reason::Busy));
    }
    log::connection(fd, to, "RDMA", Reason::Connected);
    Ok(None)
}

/// Whether the socket's family has the destination: otherwise connect(2) fails.
fn has_address(fd: c_int, given: &Name, to: &Name) -> bool {
    let v6only = || tcp::int(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) != Some(0);
    tcp::family(fd) == Some(given.family()) && (given.family() == to.family() || !v6only())
}

/// Whether the socket has been connected, connects, or listens: connect(2) is the kernel's then.
fn is_connected(fd: c_int) -> bool {
    tcp::state(fd).is_some_and(|state| state != tcp::CLOSED)
}
