//! epoll_create, epoll_create1, epoll_ctl, epoll_wait.

use core::ffi::c_int;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, epoll_event};

use crate::dispatch::Fd;
use crate::epoll::members;
use crate::table::{self, Entry, Kind};
use crate::{auto, epoll, fds, fork, next_symbol, transition};

/// epoll_create(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    fds::on_new_fd(next_symbol::epoll_create(size))
}

/// epoll_create1(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    fds::on_new_fd(next_symbol::epoll_create1(flags))
}

/// epoll_ctl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the C contract.
    unsafe { if table::any() { control(epfd, op, fd, event) } else { control_kernel(epfd, op, fd, event) } }
}

/// epoll_ctl(2) on a descriptor of the kernel's.
///
/// # Safety
/// `event` is null or readable.
unsafe fn control_kernel(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: as for this function.
    unsafe {
        let result = next_symbol::epoll_ctl(epfd, op, fd, event);
        if result == 0 {
            members::note(epfd, op, fd, event);
        }
        result
    }
}

/// epoll_ctl(2), once there is anything in the table.
///
/// # Safety
/// `event` is null or readable.
pub unsafe fn control(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let mut kind = Fd::of(fd);
    // In this order: a move that has not begun by now can't have changed the entry.
    if transition::wait_for_move(fd) {
        kind = Fd::of(fd);
    }
    // SAFETY: as for this function.
    unsafe {
        match kind {
            Fd::Connecting(entry) => {
                let result = auto::slots::control(epfd, op, fd, entry, event);
                result.unwrap_or_else(|| control(epfd, op, fd, event))
            }
            Fd::Known(entry) => {
                auto::before_wait(entry);
                next_symbol::epoll_ctl(epfd, op, fd, event)
            }
            Fd::Pending(entry) => control_pending(epfd, op, fd, entry, event),
            Fd::Rsocket(entry) => {
                let result = epoll::control_rsocket(epfd, op, fd, entry, event);
                if result == 0 && op == EPOLL_CTL_DEL || !is_forwarded(fd) {
                    return result;
                }
                // The library's thread has begun to forward the connection meanwhile.
                if result == 0 && op == EPOLL_CTL_ADD {
                    epoll::hand_over_to_kernel(fd, entry);
                    return result;
                }
                control(epfd, op, fd, event)
            }
            Fd::Kernel | Fd::Epoll(_) => control_kernel(epfd, op, fd, event),
        }
    }
}

fn is_forwarded(fd: c_int) -> bool {
    table::get(fd).is_some_and(|entry| entry.kind == Kind::Forwarded)
}

/// epoll_ctl(2) on a socket that may become an rsocket in fork mode. As long as it is none, it is a
/// member of the kernel's instance.
///
/// # Safety
/// As for [`control`].
unsafe fn control_pending(epfd: c_int, op: c_int, fd: c_int, entry: Entry, event: *mut epoll_event) -> c_int {
    if op != EPOLL_CTL_DEL && !event.is_null() {
        // SAFETY: a descriptor of the program and its entry.
        if unsafe { fork::resolve_for_poll(fd, entry) }.is_some() {
            // SAFETY: as for this function.
            return unsafe { control(epfd, op, fd, event) };
        }
    }
    // SAFETY: the program's arguments, unchanged.
    unsafe { control_kernel(epfd, op, fd, event) }
}

/// epoll_wait(2). The same before there are rsockets: the first may be added while this thread
/// waits.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
    // SAFETY: the C contract.
    unsafe { epoll::wait(epfd, events, max, timeout) }
}
