//! epoll_create, epoll_create1, epoll_ctl, epoll_wait.

use core::ffi::c_int;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, epoll_event};

use crate::dispatch::Fd;
use crate::epoll::members;
use crate::table::{self, Kind};
use crate::{auto, epoll, fds, fork, next_symbol, transition};

exports! {
    /// epoll_create(2).
    safe fn epoll_create(size: c_int) -> c_int {
        fds::on_new_fd(next_symbol::epoll_create(size))
    }

    /// epoll_create1(2).
    safe fn epoll_create1(flags: c_int) -> c_int {
        fds::on_new_fd(next_symbol::epoll_create1(flags))
    }

    /// epoll_ctl(2).
    fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let event = Event::new(event);
        if table::any() { control(epfd, op, fd, event) } else { event.control_kernel(epfd, op, fd) }
    }

    /// epoll_wait(2). As before there are rsockets: the first may be added while this thread waits.
    fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
        epoll::wait(epfd, events, max, timeout)
    }
}

/// The event that a program passes to epoll_ctl(2).
#[derive(Clone, Copy)]
pub struct Event(*mut epoll_event);

impl Event {
    /// # Safety
    /// `event` is null or readable.
    pub unsafe fn new(event: *mut epoll_event) -> Event {
        Event(event)
    }

    fn get(self) -> Option<epoll_event> {
        // SAFETY: readable: guaranteed by the caller of `new`.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// epoll_ctl(2) on a descriptor of the kernel's, which reports bad pointers.
    fn control_kernel(self, epfd: c_int, op: c_int, fd: c_int) -> c_int {
        // SAFETY: as for `new`.
        let result = unsafe { next_symbol::epoll_ctl(epfd, op, fd, self.0) };
        if result == 0 {
            members::note(epfd, op, fd, || self.get());
        }
        result
    }
}

/// epoll_ctl(2), once there is anything in the table.
pub fn control(epfd: c_int, op: c_int, fd: c_int, event: Event) -> c_int {
    let mut kind = Fd::of(fd);
    // In this order: a move that has not begun by now can't have changed the entry.
    if transition::wait_for_move(fd) {
        kind = Fd::of(fd);
    }
    match kind {
        Fd::Connecting(entry) => {
            let result = auto::slots::control(epfd, op, fd, entry, event.get());
            result.unwrap_or_else(|| control(epfd, op, fd, event))
        }
        // As long as it is no rsocket it is a member of the kernel's instance.
        Fd::Pending(entry) if op != EPOLL_CTL_DEL && fork::resolve_for_poll(fd, entry).is_some() => {
            control(epfd, op, fd, event)
        }
        Fd::Rsocket(entry) => {
            let result = epoll::control_rsocket(epfd, op, fd, entry, event.get());
            let is_forwarded = table::get(fd).is_some_and(|entry| entry.kind == Kind::Forwarded);
            if result == 0 && op == EPOLL_CTL_DEL || !is_forwarded {
                return result;
            }
            // The library's thread has begun to forward the connection meanwhile.
            if result == 0 && op == EPOLL_CTL_ADD {
                epoll::hand_over_to_kernel(fd, entry);
                return result;
            }
            control(epfd, op, fd, event)
        }
        Fd::Known(entry) => {
            auto::before_wait(entry);
            event.control_kernel(epfd, op, fd)
        }
        Fd::Kernel | Fd::Epoll(_) | Fd::Pending(_) => event.control_kernel(epfd, op, fd),
    }
}
