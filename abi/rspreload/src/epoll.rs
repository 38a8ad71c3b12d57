//! epoll over both kinds of descriptors, with the program's epolls left to the kernel.
//!
//! An epoll of the program is the kernel's, and stays it for every descriptor that is no rsocket. With the first
//! rsocket comes a side: an epoll of librdmacm that holds the rsockets, itself a member of the program's epoll under a
//! mark as its data. A wait that meets the mark takes it out and asks the side what it has.
//!
//! The mark names the side. So a wait needs no look-up, and finds its rsockets through every copy of the number.
//!
//! A side has an rsocket only once, where the kernel's epolls have a socket once by each number it has. So further
//! numbers of one rsocket (dup) go into further sides: those that have the same [index](table::index_of) into the same.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use libc::{EBADF, EFAULT, EINVAL, ENOENT, EPERM, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN};
use libc::{c_short, epoll_event};

use crate::table::{self, Entry, Kind};
use crate::{errno, fds, fork, r, real};

mod sides;

// For fork mode, too.
pub use crate::time::Deadline;

/// Upper half of the data under which sides are in the program's epolls: no small number, no address.
const MARK: u64 = 0xA5C3_52D4;

/// Upper half of the data of members whose handshake is under way in fork mode. Their events are
/// dropped.
pub const PARKED: u64 = 0xA5C3_52D5;

/// Sides of one epoll that a wait asks. There are several only for copies of an rsocket's number, or when copies of the
/// epoll's were made before the first rsocket; what does not fit is still there at the next wait.
const SIDES: usize = 4;

/// Whether there has ever been a side.
static USED: AtomicBool = AtomicBool::new(false);

fn mark(side: c_int) -> epoll_event {
    epoll_event { events: EPOLLIN as u32, u64: MARK << 32 | u64::from(side as u32) }
}

/// epoll_ctl(2), once there is anything in the table.
///
/// # Safety
/// `event` is the program's: null, or good to read.
pub unsafe fn control(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let mut entry = table::get(fd);
    // In this order: a move that has not begun by now can't have changed the entry.
    if fork::wait_for_move(fd) {
        entry = table::get(fd);
    }
    // SAFETY: as for this function.
    unsafe { control_as(epfd, op, fd, entry, event) }
}

/// # Safety
/// As for [`control`].
unsafe fn control_as(epfd: c_int, op: c_int, fd: c_int, entry: Option<Entry>, event: *mut epoll_event) -> c_int {
    match entry {
        // SAFETY: as for this function.
        Some(entry @ Entry { kind: Kind::Pending, .. }) => unsafe { control_pending(epfd, op, fd, entry, event) },
        // SAFETY: as for this function.
        Some(entry @ Entry { kind: Kind::Socket, .. }) => unsafe { control_rsocket(epfd, op, fd, entry, event) },
        // Its placeholder is a TCP socket that has ended, and would always be ready.
        Some(Entry { kind: Kind::Relayed, .. }) => errno::fail(EPERM),
        // SAFETY: handed on as it came.
        _ => unsafe { real::epoll_ctl(epfd, op, fd, event) },
    }
}

/// One that may become an rsocket. While it is none, it is the kernel's member, and fork mode knows of it.
///
/// # Safety
/// As for [`control`].
unsafe fn control_pending(epfd: c_int, op: c_int, fd: c_int, entry: Entry, event: *mut epoll_event) -> c_int {
    if op != EPOLL_CTL_DEL && !event.is_null() {
        // SAFETY: not null, and the program's word that it can be read.
        let events = unsafe { event.read_unaligned() }.events as c_short;
        // SAFETY: a descriptor of the program and its entry.
        if unsafe { fork::settle_for_poll(fd, entry, events) }.is_some() {
            // SAFETY: as for this function.
            return unsafe { control(epfd, op, fd, event) };
        }
    }
    match table::get(fd) {
        Some(entry) if fork::is_undecided(fd) => {
            // SAFETY: as for this function.
            let result = unsafe { fork::control_undecided(epfd, op, fd, entry, event) };
            // SAFETY: as for this function.
            return result.unwrap_or_else(|| unsafe { control(epfd, op, fd, event) });
        }
        _ => {}
    }
    // SAFETY: handed on as it came.
    let result = unsafe { real::epoll_ctl(epfd, op, fd, event) };
    if result == 0 && op == EPOLL_CTL_ADD {
        fork::joined(fd, epfd);
    }
    result
}

/// # Safety
/// As for [`control`].
unsafe fn control_rsocket(epfd: c_int, op: c_int, fd: c_int, entry: Entry, event: *mut epoll_event) -> c_int {
    if op != EPOLL_CTL_DEL && event.is_null() {
        return errno::fail(EFAULT);
    }
    let side = match side_of(epfd, op, entry) {
        Ok(side) => side,
        Err(why) => return errno::fail(why),
    };
    if op == EPOLL_CTL_ADD || op == EPOLL_CTL_MOD {
        fds::sync_nonblock(fd, entry.inner);
    }
    // SAFETY: as for this function.
    unsafe { r::repoll_ctl(side, op, entry.inner, event) }
}

/// The side that has rsockets under the number's index: only what adds makes one.
fn side_of(epfd: c_int, op: c_int, entry: Entry) -> Result<c_int, c_int> {
    let first = match table::get(epfd) {
        Some(Entry { kind: Kind::Epoll, inner, .. }) => Some(inner),
        Some(_) => return Err(EINVAL),
        None => None,
    };
    if let Some(side) = first.and_then(|first| sides::find(first, entry.index())) {
        return Ok(side);
    }
    match op {
        EPOLL_CTL_ADD => make_side(epfd, entry.index()),
        EPOLL_CTL_MOD | EPOLL_CTL_DEL => Err(not_a_member(epfd, entry.inner)),
        _ => Err(EINVAL),
    }
}

/// What the kernel says of a descriptor that is not in the epoll, if it is one.
fn not_a_member(epfd: c_int, inner: c_int) -> c_int {
    // SAFETY: needs no event. The library puts its own descriptors into no epoll of the program's.
    let result = unsafe { real::epoll_ctl(epfd, EPOLL_CTL_DEL, inner, core::ptr::null_mut()) };
    match errno::get() {
        EPERM => ENOENT,
        _ if result == 0 => ENOENT,
        error => error,
    }
}

/// Adds an rsocket on the program's behalf, as fork mode does with those that are in an epoll already.
pub fn add(epfd: c_int, fd: c_int, mut event: epoll_event) -> c_int {
    // SAFETY: the event is this function's own.
    unsafe { control_as(epfd, EPOLL_CTL_ADD, fd, table::get(fd), &raw mut event) }
}

/// Waits have to look for marks from now on.
pub fn expect_marks() {
    USED.store(true, Ordering::SeqCst);
}

/// Gives an epoll a side. Of two threads that do it at a time one wins, and both use the winner's.
fn make_side(epfd: c_int, index: u32) -> Result<c_int, c_int> {
    table::prepare(epfd)?;
    // SAFETY: no pointers.
    let side = unsafe { r::repoll_create(EPOLL_CLOEXEC) };
    if side < 0 {
        return Err(errno::get());
    }
    let result = sides::prepare(side, index).and_then(|()| table::first(side)).and_then(|()| enter(epfd, side));
    if result != Ok(side) {
        close_side(side);
    }
    result
}

/// Puts a side into an epoll; another one's side if that was there before.
fn enter(epfd: c_int, side: c_int) -> Result<c_int, c_int> {
    // Whoever finds the mark must know it for one.
    expect_marks();
    let mut event = mark(side);
    // SAFETY: the event is ours.
    if unsafe { real::epoll_ctl(epfd, EPOLL_CTL_ADD, side, &raw mut event) } != 0 {
        return Err(errno::get());
    }
    let result = record(epfd, side);
    if result != Ok(side) {
        // SAFETY: needs no event.
        unsafe { real::epoll_ctl(epfd, EPOLL_CTL_DEL, side, core::ptr::null_mut()) };
    }
    result
}

/// Puts a side into the epoll's table entry, or into the list that begins there.
fn record(epfd: c_int, side: c_int) -> Result<c_int, c_int> {
    if table::replace(epfd, None, Some(Entry { kind: Kind::Epoll, flags: 0, inner: side })) {
        return Ok(side);
    }
    match table::get(epfd) {
        Some(Entry { kind: Kind::Epoll, inner, .. }) => sides::append(inner, side),
        // Closed meanwhile, and perhaps another descriptor by now.
        _ => Err(EBADF),
    }
}

/// Ends an epoll's sides: its last reference is gone. They leave the program's epoll by themselves.
pub fn close_sides(first: c_int) -> c_int {
    errno::keeping(|| {
        sides::take(first, |side| {
            close_side(side);
        })
    });
    0
}

fn close_side(side: c_int) -> c_int {
    // SAFETY: no pointers.
    errno::keeping(|| unsafe { r::rclose(side) })
}

/// epoll_wait(2). For every wait: a thread may be in it when another adds the epoll's first rsocket.
///
/// # Safety
/// `events` has room for `maxevents`.
pub unsafe fn wait(epfd: c_int, events: *mut epoll_event, maxevents: c_int, timeout: c_int) -> c_int {
    let deadline = if USED.load(Ordering::Relaxed) { Some(Deadline::after(timeout)) } else { None };
    let mut left = timeout;
    loop {
        // SAFETY: as for this function.
        let count = unsafe { real::epoll_wait(epfd, events, maxevents, left) };
        if count <= 0 || !USED.load(Ordering::Relaxed) {
            return count;
        }
        // SAFETY: the kernel has written so many, and there is room for maxevents.
        let Some(told) = (unsafe { ask_sides(events, count as usize, maxevents as usize) }) else { return count };
        match told {
            Ok(0) if left != 0 => {}
            // The parent's side, which nothing here makes quiet: not without a pause.
            Err(()) if left != 0 => nap(),
            told => return told.unwrap_or(0) as c_int,
        }
        // What the side had was taken by another thread, or was no event after all.
        left = deadline.as_ref().map_or(timeout, Deadline::left);
    }
}

fn nap() {
    // SAFETY: a number only.
    errno::keeping(|| unsafe { libc::usleep(1000) });
}

/// Puts what the sides have in the place of their marks, and says how many events there are then, or that there are none and a
/// side fails; `None` without marks.
///
/// # Safety
/// `events` has `count` events and room for `max`.
unsafe fn ask_sides(events: *mut epoll_event, count: usize, max: usize) -> Option<Result<usize, ()>> {
    let (mut sides, mut failed) = ([-1; SIDES], false);
    // SAFETY: as for this function.
    let (mut total, found) = take_marks(unsafe { core::slice::from_raw_parts_mut(events, count) }, &mut sides)?;
    for &side in &sides[..found] {
        if total < max {
            // SAFETY: so much room is left.
            let more = unsafe { r::repoll_wait(side, events.add(total), (max - total) as c_int, 0) };
            // An error is the side's, which is the parent's or being closed: the program's epoll has none.
            failed |= more < 0;
            total += usize::try_from(more).unwrap_or(0);
        }
    }
    Some(if failed && total == 0 { Err(()) } else { Ok(total) })
}

/// Takes the marks out and moves the program's events together: how many those are, and how many sides there are.
fn take_marks(events: &mut [epoll_event], sides: &mut [c_int; SIDES]) -> Option<(usize, usize)> {
    let (mut kept, mut found) = (0, 0);
    for place in 0..events.len() {
        let event = events[place];
        match event.u64 >> 32 {
            MARK => {
                if let Some(side) = sides.get_mut(found) {
                    *side = event.u64 as u32 as c_int;
                    found += 1;
                }
            }
            PARKED => {}
            _ => {
                events[kept] = event;
                kept += 1;
            }
        }
    }
    (kept < events.len()).then_some((kept, found))
}

#[cfg(test)]
mod tests;
