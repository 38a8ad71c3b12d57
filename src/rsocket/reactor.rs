//! The work for rsockets that must happen while the program makes no call.
//!
//! One thread waits for connection manager events, packets on UDP sockets, and timers. It never
//! blocks. Making and freeing a connection takes commands that may block in the firmware of an
//! adapter, so services with [`Role::Setup`] are called by another thread, the worker, from a queue
//! of jobs. The threads start with the first registration. On the data path, only small messages
//! that are held, and the first messages of a connection, may need the threads.

mod registrations;
#[cfg(test)]
mod tests;

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{mem, ptr};

use self::registrations::{Call, Due, Reactor, SECOND};
use crate::cm::GlobalLock;
use crate::errno::{Errno, Result};
use crate::os::event;
use crate::os::sync::Changes;

/// An object with a descriptor or a timer. Both threads may call it at the same time when its role
/// has just changed.
pub trait Service: Send + Sync {
    /// Called when the descriptor registered as `key` is readable, or writable if
    /// [`set_writable_wanted`] requested this. Waits for no lock that may be held during a command,
    /// with the exceptions in docs/concurrency.md. Returns false if the service is busy: it is
    /// called again after a pause.
    fn service(self: Arc<Self>, key: Key) -> bool;
    /// Called when the timer of `key` has expired. Waits and returns like
    /// [`service`](Self::service).
    fn expired(self: Arc<Self>, _key: Key) -> bool {
        true
    }
    /// Called when the descriptor of [`watch_channel`] or [`watch_channel_later`] is readable.
    /// Never blocks. Returns false if the service is busy: it is called again after a pause.
    fn on_channel_readable(self: Arc<Self>) -> bool {
        true
    }
}

/// Which thread calls a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The thread for events, for established connections and datagram sockets: their calls must
    /// not be delayed by commands.
    Events,
    /// The worker, for connections that are made or freed and paths that are resolved: their calls
    /// make commands that may block.
    Setup,
}

/// Identifies a registration. Never used twice. The default identifies no registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

/// `None` until the first registration. The lock may be taken with a socket's lock held, and is
/// released before any socket's lock is taken (docs/concurrency.md).
static REACTOR: GlobalLock<Option<Reactor>> = GlobalLock::new(None);

/// Registers `fd`, which stays open until [`unregister`]. The descriptor is disabled until
/// [`enable`] unless `is_enabled` is set.
pub fn register(role: Role, fd: c_int, is_enabled: bool, service: Arc<dyn Service>) -> Result<Key> {
    let mut guard = REACTOR.lock();
    let reactor = match &mut *guard {
        Some(reactor) => reactor,
        none => none.insert(Reactor::start()?),
    };
    reactor.add(role, fd, is_enabled, service)
}

/// Calls `call` with the reactor locked. Returns `None` if there is no reactor.
fn with_reactor<T>(call: impl FnOnce(&mut Reactor) -> T) -> Option<T> {
    REACTOR.lock().as_mut().map(call)
}

/// Changes the thread that calls the service. Returns false if the service has this role already,
/// or is not registered. A call by the former thread may still be in progress.
pub fn set_role(key: Key, role: Role) -> bool {
    with_reactor(|reactor| reactor.set_role(key, role)).unwrap_or(false)
}

/// Removes a registration. A call of the service may still be in progress.
pub fn unregister(key: Key) {
    // Dropped without the lock: this may be the last reference to the service.
    drop(with_reactor(|reactor| reactor.remove(key)));
}

/// Calls `replace`, which replaces the file of a descriptor, and keeps a registration of the
/// descriptor for the new file.
pub fn replace_file(fd: RawFd, replace: impl FnOnce() -> Result<()>) -> Result<()> {
    let guard = REACTOR.lock();
    let found = guard.as_ref().and_then(|reactor| Some((reactor.find_fd(fd)?, &reactor.epoll)));
    let Some((event, epoll)) = found else { return replace() };
    // The old file may be open in a child as well, so it would stay in the epoll.
    let _ = epoll.control(libc::EPOLL_CTL_DEL, fd, None);
    let result = replace();
    epoll.control(libc::EPOLL_CTL_ADD, fd, event).and(result)
}

/// Changes the descriptor of a registration to `fd`, which is open. The old descriptor may be
/// closed afterwards.
pub fn set_fd(key: Key, fd: c_int) -> Result<()> {
    with_reactor(|reactor| reactor.set_fd(key, fd)).unwrap_or(Err(Errno::EBADF))
}

/// Watches a second descriptor, `fd`, until it is readable the next time: then
/// [`Service::on_channel_readable`] is called. A registration has one such descriptor, which stays
/// open until [`unregister`]. Fails with `EBADF` if the thread or the registration does not exist.
pub fn watch_channel(key: Key, fd: c_int) -> Result<()> {
    with_reactor(|reactor| reactor.watch_second(key, fd)).unwrap_or(Err(Errno::EBADF))
}

/// Like [`watch_channel`], but begins to watch after `delay`.
pub fn watch_channel_later(key: Key, fd: c_int, delay: Duration) -> Result<()> {
    with_reactor(|reactor| reactor.watch_second_later(key, fd, delay)).unwrap_or(Err(Errno::EBADF))
}

/// Disables a descriptor for `time`: its events cannot be handled now, and other services must not
/// wait.
pub fn pause(key: Key, time: Duration) {
    with_reactor(|reactor| reactor.pause(key, time));
}

/// Enables the descriptor, and sets the timer of `key` to `time`.
pub fn enable(key: Key, time: Instant) {
    with_reactor(|reactor| {
        reactor.change(key, |registration| registration.is_enabled = true);
        reactor.set_timer(key, Call::Expired, Some(time));
    });
}

/// Sets whether the service is also called while the descriptor of `key` is writable.
pub fn set_writable_wanted(key: Key, wanted: bool) {
    let events = libc::EPOLLIN | if wanted { libc::EPOLLOUT } else { 0 };
    with_reactor(|reactor| reactor.change(key, |registration| registration.events = events as u32));
}

/// Sets the timer of `key` to `time`, unless this is `None`. Cancels the previous timer.
pub fn set_timer(key: Key, time: Option<Instant>) {
    with_reactor(|reactor| reactor.set_timer(key, Call::Expired, time));
}

/// Sets the timer of `key` to `time`, unless it is set to an earlier time.
pub fn set_timer_by(key: Key, time: Instant) {
    with_reactor(|reactor| reactor.set_timer_by(key, time));
}

/// Takes the lock before a fork() and keeps it.
pub(super) fn before_fork() {
    REACTOR.before_fork();
}

/// Releases the lock taken by [`before_fork`].
pub(super) fn after_fork_in_parent() {
    REACTOR.after_fork_in_parent();
}

/// Frees the lock in the child, and drops the reactor: the child has no reactor thread, and the
/// registrations are its parent's.
///
/// # Safety
/// The process has no other thread.
pub(super) unsafe fn after_fork_in_child() {
    // SAFETY: the process has no other thread: guaranteed by the caller.
    unsafe { REACTOR.after_fork_in_child(|| None) };
    if let Some(left) = REACTOR.try_lock().and_then(|mut reactor| reactor.take()) {
        // The descriptors are copies, which the child closes. The services are leaked: threads that
        // do not exist here may have locked them.
        mem::forget((left.registrations, left.timers));
    }
}

/// Counts changes of the worker's queue. The worker sleeps until the count changes.
static JOBS: Changes = Changes::new();

/// Starts a thread of the reactor. All signals are blocked, so that
/// the thread receives none of the program's. The standard library's spawn would abort without
/// memory. The stack has the default size: a smaller one might not hold the program's thread-local
/// variables, which are stored on it.
fn spawn(main: extern "C" fn(*mut c_void) -> *mut c_void) -> Result<()> {
    // SAFETY: signal sets and the thread's handle are local variables, of which zeros are values,
    // and the thread ignores its argument. A thread that was created is detached once.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (mem::zeroed(), mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let mut thread: libc::pthread_t = mem::zeroed();
        let result = libc::pthread_create(&raw mut thread, ptr::null(), main, ptr::null_mut());
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        if result != 0 {
            return Err(Errno::new(result));
        }
        libc::pthread_detach(thread);
    }
    Ok(())
}

/// The worker. Runs until the process ends.
extern "C" fn work(_: *mut c_void) -> *mut c_void {
    loop {
        let count = JOBS.count();
        match with_reactor(Reactor::next_job).flatten() {
            Some(job) => call(job),
            None => _ = JOBS.wait(count, None),
        }
    }
}

/// The thread for events. Runs until the process ends.
extern "C" fn handle_events(_: *mut c_void) -> *mut c_void {
    const BATCH: usize = 64;
    /// Maximum number of timers per iteration: new events must not wait for thousands of
    /// connections that were closed at once.
    const EXPIRED: usize = 16;
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
    while let Some((epoll, timeout)) = with_reactor(next_wait) {
        // SAFETY: the buffer has room for BATCH events.
        let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), BATCH as c_int, timeout) };
        if count < 0 && Errno::last() != Errno::EINTR {
            // The program has closed the descriptor.
            break;
        }
        for event in events.iter().take(usize::try_from(count).unwrap_or(0)) {
            serve(event);
        }
        // Handle only timers that are due now: a timer that a service sets again waits for the next
        // iteration, after other events.
        let due = Instant::now();
        for _ in 0..EXPIRED {
            let Some(expired) = with_reactor(|reactor| reactor.next_expired(due)).flatten() else { break };
            expired.into_iter().for_each(call);
        }
    }
    ptr::null_mut()
}

/// Handles an event that the epoll has reported.
fn serve(event: &libc::epoll_event) {
    let key = Key(event.u64 & !SECOND);
    let due = with_reactor(|reactor| {
        reactor.is_waiting = false;
        reactor.due(key, if event.u64 & SECOND == 0 { Call::Service } else { Call::Channel })
    });
    due.flatten().into_iter().for_each(call);
}

/// Makes a call to a service, and passes the result to the reactor.
fn call(due: Due) {
    let Due { key, call, service } = due;
    let done = match call {
        Call::Service => service.service(key),
        Call::Expired => service.expired(key),
        Call::Channel => service.on_channel_readable(),
    };
    with_reactor(|reactor| reactor.finished(key, call, done));
}

/// Returns the epoll to wait for and the milliseconds until the first timer, -1 without timers.
/// Clears the wake-up for a new timer.
fn next_wait(reactor: &mut Reactor) -> (RawFd, c_int) {
    reactor.report_wake(false);
    reactor.is_waiting = true;
    (reactor.epoll.as_raw_fd(), event::poll_time(reactor.first_timer()))
}
