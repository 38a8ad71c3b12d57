//! A reactor's thread.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::registrations::{SECOND, Timer};
use super::{Key, Role, Service, lock};
use crate::errno::{Errno, Result};
use crate::sys::clock;

/// Duration of the longest iteration of either thread since the last query, in microseconds.
static LONGEST_ITERATION: AtomicU64 = AtomicU64::new(0);

/// Returns the duration of the longest iteration since the last call, in microseconds.
pub fn longest_iteration() -> c_int {
    c_int::try_from(LONGEST_ITERATION.swap(0, Ordering::Relaxed)).unwrap_or(c_int::MAX)
}

/// Starts the thread with all signals blocked, so that it receives none of the program's. The
/// standard library's spawn would abort without memory. The stack has the default size: a smaller
/// one might not hold the program's thread-local variables, which are stored on it.
pub(super) fn spawn(role: Role, number: usize) -> Result<()> {
    let main = match role {
        Role::Events => events_main,
        Role::Setup => setup_main,
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
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        if result == 0 { Ok(()) } else { Err(Errno::new(result)) }
    }
}

extern "C" fn events_main(number: *mut c_void) -> *mut c_void {
    run(Role::Events, number as usize);
    std::ptr::null_mut()
}

extern "C" fn setup_main(number: *mut c_void) -> *mut c_void {
    run(Role::Setup, number as usize);
    std::ptr::null_mut()
}

/// The thread's main function. Runs until the process ends or the program closes the descriptors.
fn run(role: Role, number: usize) {
    const BATCH: usize = 64;
    /// Timers of a turn: releasing a connection takes a while, and new events must not wait for
    /// thousands that were closed at once.
    const EXPIRED: usize = 16;
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
    while let Some((epoll, timeout)) = next_wait(role, number) {
        // SAFETY: the buffer has room for BATCH events; a number that is no longer an epoll is an
        // error.
        let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), BATCH as c_int, timeout) };
        if count < 0 && Errno::last() != Errno::EINTR {
            return;
        }
        let start = Instant::now();
        for event in events.iter().take(usize::try_from(count).unwrap_or(0)) {
            serve(role, number, event);
        }
        // A service may set its timer again: that one is for the next turn, after other events.
        let due = Instant::now();
        for _ in 0..EXPIRED {
            let Some(expired) = next_expired(role, number, due) else { break };
            let Expired::Calls(key, service, was_busy) = expired else { continue };
            if !service.expired(key) {
                retry(key, Timer::Expires);
            } else if was_busy {
                clear_busy(key);
            }
        }
        let iteration = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        LONGEST_ITERATION.fetch_max(iteration, Ordering::Relaxed);
    }
}

/// Handles an event that the epoll has reported.
fn serve(role: Role, number: usize, event: &libc::epoll_event) {
    let key = Key(event.u64 & !SECOND);
    let Some((service, was_busy)) = find(role, number, key) else { return };
    if event.u64 & SECOND != 0 {
        if !service.second_is_readable() {
            retry(key, Timer::Watches);
        }
    } else if !service.service(key) {
        // The descriptor stays readable, and others must not wait.
        retry(key, Timer::Resumes);
    } else if was_busy {
        clear_busy(key);
    }
}

/// Returns the epoll to wait for and the milliseconds until the first timer, -1 without timers.
/// Clears the wake-up for a new timer. Returns `None` if the reactor of this number no longer
/// exists.
fn next_wait(role: Role, number: usize) -> Option<(RawFd, c_int)> {
    let mut guard = lock(role);
    let reactor = guard.as_mut().filter(|reactor| reactor.number == number && reactor.wake.is_unchanged())?;
    reactor.report_wake(false);
    reactor.is_waiting = true;
    Some((reactor.epoll.as_raw_fd(), clock::poll_time(reactor.first_timer())))
}

/// Returns the service of `key`, and whether it was busy last. Also notes that the thread does not
/// wait. Returns `None` if the registration no longer exists, or the thread's reactor: a service may
/// have blocked while the program closed the descriptors and another thread was started.
fn find(role: Role, number: usize, key: Key) -> Option<(Arc<dyn Service>, bool)> {
    let mut guard = lock(role);
    let reactor = guard.as_mut().filter(|reactor| reactor.number == number)?;
    reactor.is_waiting = false;
    let registration = reactor.registrations.get(&key)?;
    Some((Arc::clone(&registration.service), registration.busy != 0))
}

/// The service of `key` is busy. It is called again after a pause. A key is never used twice, so a
/// later reactor does not know it.
fn retry(key: Key, kind: Timer) {
    if let Some(reactor) = lock(key.role()).as_mut().filter(|reactor| reactor.is_usable()) {
        let pause = reactor.busy_pause(key);
        match kind {
            Timer::Resumes => reactor.pause(key, pause),
            Timer::Expires | Timer::Watches => reactor.set_after(key, kind, pause),
        }
    }
}

fn clear_busy(key: Key) {
    if let Some(reactor) = lock(key.role()).as_mut()
        && let Some(registration) = reactor.registrations.get_mut(&key)
    {
        registration.busy = 0;
    }
}

/// What is to be done for a timer that has expired.
enum Expired {
    /// Nothing: the reactor has done it.
    Done,
    /// The service is called. It was busy last if the third one is set.
    Calls(Key, Arc<dyn Service>, bool),
}

/// Takes a timer that had expired at `due`. Returns `None` if there is none, or the thread's
/// reactor no longer exists.
fn next_expired(role: Role, number: usize, due: Instant) -> Option<Expired> {
    let mut guard = lock(role);
    let reactor = guard.as_mut().filter(|reactor| reactor.number == number)?;
    let (key, kind) = reactor.take_expired(due)?;
    match kind {
        Timer::Resumes => reactor.resume(key),
        Timer::Watches => reactor.watch_now(key),
        Timer::Expires => {
            let registration = reactor.registrations.get(&key)?;
            let was_busy = registration.busy != 0;
            return Some(Expired::Calls(key, Arc::clone(&registration.service), was_busy));
        }
    }
    Some(Expired::Done)
}
