//! epoll over rsockets and kernel descriptors.
//!
//! An epoll instance of the program remains a kernel instance. Its members are all added
//! descriptors except those of rsockets. The first rsocket creates a *side*: an epoll instance of
//! librdmacm that has the rsockets as members and is itself a member of the program's instance,
//! with a mark as its event data. A wait that gets the mark removes it from the events and polls
//! the side.
//!
//! The mark contains the side's descriptor, so a wait needs no look-up, and finds the rsockets
//! through every copy of the instance's descriptor.
//!
//! An rsocket can be a member of a side only once, but a kernel socket can be a member of an
//! instance once for each of its descriptors. So further descriptors of an rsocket (dup) are in
//! further sides: all descriptors with the same [index](table::index_of) are in the same side.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use libc::{EBADF, EFAULT, EINVAL, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, epoll_event};

use crate::process::Deadline;
use crate::table::{self, Entry, Growing, Kind};
use crate::thread::Lock;
use crate::{errno, rsocket, rsocket_abi, sockets};

pub mod members;

/// Upper half of a side's event data. Programs use small numbers or addresses as event data, which
/// have another upper half.
const MARK: u64 = 0xA5C3_52D4;

/// Maximum number of sides that one wait polls. An instance has several sides only for copies of an
/// rsocket's descriptor, or if it was copied before its first rsocket. The next wait polls the
/// other sides.
const SIDES: usize = 4;

/// Whether there has ever been a side.
static USED: AtomicBool = AtomicBool::new(false);

fn mark(side: c_int) -> epoll_event {
    epoll_event { events: EPOLLIN as u32, u64: MARK << 32 | u64::from(side as u32) }
}

/// epoll_ctl(2) on a descriptor of an rsocket.
pub fn control_rsocket(epfd: c_int, op: c_int, fd: c_int, entry: Entry, event: Option<epoll_event>) -> c_int {
    if op != EPOLL_CTL_DEL && event.is_none() {
        return errno::fail(EFAULT);
    }
    let side = match side_of(epfd, op, entry) {
        Ok(side) => side,
        Err(why) => return errno::fail(why),
    };
    if op == EPOLL_CTL_ADD || op == EPOLL_CTL_MOD {
        rsocket::sync_nonblock(fd, entry.handle);
    }
    let event = event.as_ref().map_or(core::ptr::null(), core::ptr::from_ref).cast_mut();
    // SAFETY: `event` is NULL, or points to an event that is only read.
    unsafe { rsocket_abi::repoll_ctl(side, op, entry.handle, event) }
}

/// Returns the side for the descriptor's index, which EPOLL_CTL_ADD creates if needed. Fails with
/// the errno of epoll_ctl(2).
fn side_of(epfd: c_int, op: c_int, entry: Entry) -> Result<c_int, c_int> {
    if let Some(side) = first_side(epfd)?.and_then(|first| find_side(first, entry.index())) {
        return Ok(side);
    }
    match op {
        EPOLL_CTL_ADD => make_side(epfd, entry.index()),
        EPOLL_CTL_MOD | EPOLL_CTL_DEL => Err(not_a_member(epfd, entry.handle)),
        _ => Err(EINVAL),
    }
}

/// Returns the kernel's error for a descriptor that is no member of `epfd`, or for a bad `epfd`.
fn not_a_member(epfd: c_int, rsocket: c_int) -> c_int {
    // This call fails, because librdmacm's descriptor is in no instance of the program.
    sockets::epoll_ctl(epfd, EPOLL_CTL_DEL, rsocket, None);
    errno::get()
}

/// epoll_ctl(2) with EPOLL_CTL_ADD, for the rsocket or the kernel descriptor that `fd` is now.
pub fn add(epfd: c_int, fd: c_int, event: epoll_event) -> c_int {
    match table::get(fd) {
        Some(entry) if entry.kind == Kind::Socket => control_rsocket(epfd, EPOLL_CTL_ADD, fd, entry, Some(event)),
        _ => sockets::epoll_ctl(epfd, EPOLL_CTL_ADD, fd, Some(event)),
    }
}

/// Makes `fd` a member in place of its rsocket, with the same event, of each instance that has the
/// rsocket. The entry of `fd` was `entry`; `fd` is a kernel socket now.
pub fn hand_over_to_kernel(fd: c_int, entry: Entry) {
    table::each(|epfd, instance| {
        if instance.kind == Kind::Epoll
            && let Some(side) = find_side(instance.handle, entry.index())
        {
            rsocket::hand_over(side, entry.handle, fd, epfd);
        }
    });
}

/// Creates the side for an index, unless another thread has created it meanwhile. Returns the side
/// or an errno.
fn make_side(epfd: c_int, index: u32) -> Result<c_int, c_int> {
    let _held = CHANGING.hold();
    let first = first_side(epfd)?;
    if let Some(side) = first.and_then(|first| find_side(first, index)) {
        return Ok(side);
    }
    table::prepare(epfd)?;
    let side = rsocket_abi::repoll_create(EPOLL_CLOEXEC);
    if side < 0 {
        return Err(errno::get());
    }
    add_side(epfd, first, side, index).map(|()| side).inspect_err(|_| rsocket::close(side))
}

/// Adds a side to an instance whose first side is `first`. Fails with an errno.
fn add_side(epfd: c_int, first: Option<c_int>, side: c_int, index: u32) -> Result<(), c_int> {
    let words = SIDES_OF.get_or_grow(first.unwrap_or(side))?;
    table::first(side, 0)?;
    // Set `USED` before a wait can get the mark.
    USED.store(true, Ordering::SeqCst);
    if sockets::epoll_ctl(epfd, EPOLL_CTL_ADD, side, Some(mark(side))) != 0 {
        return Err(errno::get());
    }
    for (at, word) in (0..).zip(words) {
        if at == index {
            word.store(side + 1, Ordering::Release);
        } else if first.is_none() {
            word.store(0, Ordering::Release);
        }
    }
    let entry = Entry { kind: Kind::Epoll, flags: 0, handle: side };
    if first.is_none() && !table::replace(epfd, None, Some(entry)) {
        // `epfd` was closed meanwhile, and may be in use again.
        sockets::epoll_ctl(epfd, EPOLL_CTL_DEL, side, None);
        return Err(EBADF);
    }
    Ok(())
}

/// Closes the sides of an instance whose last reference is gone.
pub fn close_sides(first: c_int) {
    let _held = CHANGING.hold();
    for word in SIDES_OF.get(first).into_iter().flatten() {
        rsocket::close(word.swap(0, Ordering::AcqRel) - 1);
    }
}

/// Called in a child of fork(2): frees the lock, which another thread of the parent may have held.
pub fn in_child() {
    CHANGING.reset();
}

/// epoll_wait(2), also for rsockets. `next` waits on the program's instance, for at most the
/// milliseconds in its argument. All waits come here, because another thread may add the first
/// rsocket while a thread waits.
///
/// # Safety
/// `events` is writable for `maxevents` events, and contains as many as `next` returns.
pub unsafe fn wait_by(
    next: impl Fn(c_int) -> c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout: c_int,
) -> c_int {
    let deadline = if USED.load(Ordering::Relaxed) { Some(Deadline::after(timeout)) } else { None };
    let mut left = timeout;
    loop {
        let count = next(left);
        if count <= 0 || !USED.load(Ordering::Relaxed) {
            return count;
        }
        // SAFETY: `next` has written `count` of at most `maxevents` events.
        let Some(result) = (unsafe { ask_sides(events, count as usize, maxevents as usize) }) else { return count };
        match result {
            Ok(0) if left != 0 => {}
            // The side belongs to the parent process and stays ready: pause instead of spinning.
            Err(()) if left != 0 => sockets::sleep_ms(1),
            result => return result.unwrap_or(0) as c_int,
        }
        // Another thread has taken the side's events, or the events were spurious.
        left = deadline.as_ref().map_or(timeout, Deadline::left);
    }
}

/// Replaces marks by the events of their sides. Returns the number of events, `Err` if there are no
/// events and a side fails, or `None` if there was no mark.
///
/// # Safety
/// `events` contains `count` events, and is writable for `max`.
unsafe fn ask_sides(events: *mut epoll_event, count: usize, max: usize) -> Option<Result<usize, ()>> {
    let (mut sides, mut failed) = ([-1; SIDES], false);
    // SAFETY: `events` contains `count` events: guaranteed by the caller.
    let (mut total, found) = take_marks(unsafe { core::slice::from_raw_parts_mut(events, count) }, &mut sides)?;
    for &side in &sides[..found] {
        if total < max {
            // SAFETY: `total` of the `max` events are in use, so `max - total` more are writable.
            let more = unsafe { rsocket_abi::repoll_wait(side, events.add(total), (max - total) as c_int, 0) };
            // A side fails if it belongs to the parent process or is being closed. The program's
            // wait does not fail in this case, as a wait of the kernel would not.
            failed |= more < 0;
            total += usize::try_from(more).unwrap_or(0);
        }
    }
    Some(if failed && total == 0 { Err(()) } else { Ok(total) })
}

/// Removes the marks from the events, and stores up to [`SIDES`] of their sides in `sides`. A side
/// is a member of the instance once, so it has at most one mark. Returns the number of remaining
/// events and the number of stored sides, or `None` if there was no mark.
fn take_marks(events: &mut [epoll_event], sides: &mut [c_int; SIDES]) -> Option<(usize, usize)> {
    let (mut kept, mut found) = (0, 0);
    for index in 0..events.len() {
        let event = events[index];
        if event.u64 >> 32 != MARK {
            events[kept] = event;
            kept += 1;
            continue;
        }
        if let Some(next) = sides.get_mut(found) {
            *next = event.u64 as u32 as c_int;
            found += 1;
        }
    }
    (kept < events.len()).then_some((kept, found))
}

// The sides of an instance: one for each index of its rsockets' descriptors, so nearly always only
// the side for index 0. The sides are recorded in words that are never freed, as in the table, so a
// look-up takes no lock.

/// For the descriptor of an instance's first side, and for each index: the side's descriptor plus
/// one; 0 if the index has no side.
static SIDES_OF: Growing<[AtomicI32; table::INDICES]> = Growing::new();

/// Held while a side is created, and while the sides of an instance are closed.
static CHANGING: Lock = Lock::new();

/// Returns the first side of an instance, or `None` if it has no side. Fails with `EINVAL` for a
/// socket.
fn first_side(epfd: c_int) -> Result<Option<c_int>, c_int> {
    match table::get(epfd) {
        None => Ok(None),
        Some(Entry { kind: Kind::Epoll, handle: first, .. }) => Ok(Some(first)),
        Some(_) => Err(EINVAL),
    }
}

/// Returns the side for an index, or `None` if the index has no side.
fn find_side(first: c_int, index: u32) -> Option<c_int> {
    let side = SIDES_OF.get(first)?.get(index as usize)?.load(Ordering::Acquire);
    (side > 0).then(|| side - 1)
}

#[cfg(test)]
mod tests;
