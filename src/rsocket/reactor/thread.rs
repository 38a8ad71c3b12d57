//! The thread for events, and the worker.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::registrations::{Call, Due, Reactor, SECOND};
use super::{Key, REACTOR, Role};
use crate::errno::{Errno, Result};
use crate::os::event;
use crate::os::sync::Changes;

/// Counts changes of the worker's queue. The worker sleeps until the count changes.
pub(super) static JOBS: Changes = Changes::new();

/// Duration of the longest iteration of either thread since the last query, in microseconds.
static LONGEST_ITERATION: AtomicU64 = AtomicU64::new(0);

/// Returns the duration of the longest iteration since the last call, in microseconds.
pub fn longest_iteration() -> c_int {
    c_int::try_from(LONGEST_ITERATION.swap(0, Ordering::Relaxed)).unwrap_or(c_int::MAX)
}

/// Starts the thread of `role` for the reactor with this number. All signals are blocked, so that
/// the thread receives none of the program's. The standard library's spawn would abort without
/// memory. The stack has the default size: a smaller one might not hold the program's thread-local
/// variables, which are stored on it.
pub(super) fn spawn(role: Role, number: usize) -> Result<()> {
    let main = match role {
        Role::Events => handle_events,
        Role::Setup => work,
    };
    // SAFETY: signal sets and attributes are local variables, and the thread's argument is a
    // number.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let mut thread: libc::pthread_t = std::mem::zeroed();
        let argument = number as *mut c_void;
        let result = libc::pthread_create(&raw mut thread, &raw const attributes, main, argument);
        libc::pthread_attr_destroy(&raw mut attributes);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        if result == 0 { Ok(()) } else { Err(Errno::new(result)) }
    }
}

/// Notes how long an iteration took that began at `start`.
fn note_iteration(start: Instant) {
    let iteration = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    LONGEST_ITERATION.fetch_max(iteration, Ordering::Relaxed);
}

/// Calls `with` with the reactor of this number. Returns `None` if it no longer exists: the program
/// has closed the descriptors, and other threads were started.
fn with<T>(number: usize, with: impl FnOnce(&mut Reactor) -> Option<T>) -> Option<T> {
    REACTOR.lock().as_mut().filter(|reactor| reactor.number == number).and_then(with)
}

/// The worker. Runs until the process ends, or another reactor has replaced this one, whose
/// descriptors the program has closed.
extern "C" fn work(number: *mut c_void) -> *mut c_void {
    let number = number as usize;
    loop {
        let count = JOBS.count();
        let Some(job) = with(number, |reactor| Some(reactor.next_job())) else { return ptr::null_mut() };
        let Some(job) = job else {
            let _ = JOBS.wait(count, None);
            continue;
        };
        let start = Instant::now();
        call(job);
        note_iteration(start);
    }
}

/// The thread for events. Runs until the process ends or the program closes the descriptors.
extern "C" fn handle_events(number: *mut c_void) -> *mut c_void {
    const BATCH: usize = 64;
    /// Maximum number of timers per iteration: new events must not wait for thousands of
    /// connections that were closed at once.
    const EXPIRED: usize = 16;
    let number = number as usize;
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
    while let Some((epoll, timeout)) = with(number, next_wait) {
        // SAFETY: the buffer has room for BATCH events; if `epoll` is no longer an epoll, the call
        // fails.
        let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), BATCH as c_int, timeout) };
        if count < 0 && Errno::last() != Errno::EINTR {
            break;
        }
        let start = Instant::now();
        for event in events.iter().take(usize::try_from(count).unwrap_or(0)) {
            serve(number, event);
        }
        // Only timers that are due now: one that a service sets again waits for the next iteration,
        // after other events.
        let due = Instant::now();
        for _ in 0..EXPIRED {
            let Some(expired) = with(number, |reactor| reactor.next_expired(due)) else { break };
            expired.into_iter().for_each(call);
        }
        note_iteration(start);
    }
    ptr::null_mut()
}

/// Handles an event that the epoll has reported.
fn serve(number: usize, event: &libc::epoll_event) {
    let key = Key(event.u64 & !SECOND);
    let due = with(number, |reactor| {
        reactor.is_waiting = false;
        reactor.due(key, if event.u64 & SECOND == 0 { Call::Service } else { Call::Channel })
    });
    due.into_iter().for_each(call);
}

/// Makes a call to a service, and passes on the result. If another reactor has replaced this one,
/// it ignores the result, because a key is never used twice.
fn call(due: Due) {
    let Due { key, call, service, is_noted } = due;
    let done = match call {
        Call::Service => service.service(key),
        Call::Expired => service.expired(key),
        Call::Channel => service.on_channel_readable(),
    };
    if (is_noted || !done)
        && let Some(reactor) = REACTOR.lock().as_mut().filter(|reactor| reactor.is_usable())
    {
        reactor.finished(key, call, done);
    }
}

/// Returns the epoll to wait for and the milliseconds until the first timer, -1 without timers.
/// Clears the wake-up for a new timer. Returns `None` if the program has closed the descriptors.
fn next_wait(reactor: &mut Reactor) -> Option<(RawFd, c_int)> {
    if !reactor.wake.is_unchanged() {
        return None;
    }
    reactor.report_wake(false);
    reactor.is_waiting = true;
    Some((reactor.epoll.as_raw_fd(), event::poll_time(reactor.first_timer())))
}
