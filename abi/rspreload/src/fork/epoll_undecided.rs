//! epoll_ctl(2) on an accepted connection whose handshake is under way.

use core::ffi::c_int;
use core::ptr;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLONESHOT, epoll_event};

use super::slots;
use crate::table::Entry;
use crate::{epoll, next_symbol, transition};

/// epoll_ctl(2) on a number whose handshake is under way, as `entry` says. Returns `None` if the
/// handshake has ended.
///
/// # Safety
/// `event` is null or readable.
pub unsafe fn control(epfd: c_int, op: c_int, fd: c_int, entry: Entry, event: *mut epoll_event) -> Option<c_int> {
    let slot = slots::of(entry)?;
    let mut member = slot.member.lock();
    if slot.entry() != Some(entry) {
        return None;
    }
    let before = member.epfd();
    if op == EPOLL_CTL_ADD && before >= 0 && before != epfd {
        // A second epoll: the slot has room for the event of one.
        drop(member);
        transition::wait_for_change(fd, entry);
        return None;
    }
    let mut mark = epoll_event { events: EPOLLONESHOT as u32, u64: epoll::PARKED << 32 | u64::from(fd as u32) };
    let kernels = if op == EPOLL_CTL_DEL || event.is_null() { ptr::null_mut() } else { &raw mut mark };
    epoll::expect_marks();
    // SAFETY: `kernels` is an event of this function, or null, which EPOLL_CTL_DEL allows and for
    // which the other operations fail with EFAULT.
    let result = unsafe { next_symbol::epoll_ctl(epfd, op, fd, kernels) };
    match op {
        EPOLL_CTL_ADD | EPOLL_CTL_MOD if result == 0 => {
            // SAFETY: not null, as the kernel has accepted it, and readable: guaranteed by the
            // caller.
            member.keep(epfd, unsafe { event.read_unaligned() });
        }
        EPOLL_CTL_DEL if result == 0 && before == epfd => member.forget(),
        _ => {}
    }
    Some(result)
}
