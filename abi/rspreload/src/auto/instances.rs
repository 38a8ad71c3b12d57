//! The program's epoll instances: a member that becomes an rsocket changes its place in them.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use libc::{EPOLL_CTL_DEL, epoll_event};

use crate::next_symbol;
use crate::table::Growing;

/// By number: whether it is or was an instance. In automatic mode only.
static INSTANCES: Growing<AtomicU64> = Growing::new();
/// One more than the highest of them.
static INSTANCES_END: AtomicI32 = AtomicI32::new(0);

/// The program has got a new instance (or -1). Returns its number.
pub fn created(epfd: c_int) -> c_int {
    if epfd >= 0
        && super::entry::is_on()
        && let Ok(word) = INSTANCES.get_or_grow(epfd)
    {
        word.store(1, Ordering::Relaxed);
        INSTANCES_END.fetch_max(epfd + 1, Ordering::Relaxed);
    }
    epfd
}

/// Removes a socket of the kernel's that becomes an rsocket from the instance of which it is a
/// member. Returns that, and the program's event.
pub fn leave(fd: c_int) -> Option<(c_int, epoll_event)> {
    let instances = (0..INSTANCES_END.load(Ordering::Relaxed))
        .filter(|&epfd| INSTANCES.get(epfd).is_some_and(|word| word.load(Ordering::Relaxed) != 0));
    let mut members = instances.filter_map(|epfd| Some((epfd, crate::fork::epoll_handover::find(epfd, fd)?)));
    let (epfd, event) = members.next()?;
    // SAFETY: needs no event.
    let left = unsafe { next_symbol::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, core::ptr::null_mut()) } == 0;
    left.then_some((epfd, event))
}
