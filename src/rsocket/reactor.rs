//! The work for rsockets that must happen while the program makes no call.
//!
//! One thread waits for connection manager events, packets on UDP sockets, and timers. It never
//! blocks. Making and freeing a connection takes commands that may block in the firmware of an
//! adapter, so services with [`Role::Setup`] are called by another thread, the worker, from a queue
//! of jobs. The threads start with the first registrations that need them. On the data path, only
//! small messages that are held, and the first messages of a connection, may need the threads.

mod registrations;
#[cfg(test)]
mod tests;
mod thread;

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::registrations::{Call, Reactor, Registration};
pub use self::thread::longest_iteration;
use crate::cm::GlobalLock;
use crate::errno::{Errno, Result};

/// An object with a descriptor or a timer. Both threads may call it at the same time when its role
/// has just changed.
pub trait Service: Send + Sync {
    /// Called when the descriptor registered as `key` is readable, or writable if
    /// [`set_writable_wanted`] requested this. Waits at most [`LOCK_TIMEOUT`] for a lock that may
    /// be held during a command, with the exceptions in docs/concurrency.md. Returns false if the
    /// service is busy: it is called again after a pause.
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

/// How long a service waits for a lock that another thread holds, which may be in a command.
pub const LOCK_TIMEOUT: Duration = Duration::from_millis(1);

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

/// Identifies a registration. Never used twice. The default is no registration's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

/// `None` until the first registration. The lock may be taken with a socket's lock held, and is
/// released before any socket's lock is taken (docs/concurrency.md).
static REACTOR: GlobalLock<Option<Reactor>> = GlobalLock::new(None);

/// Registers `fd`, which stays open until [`unregister`].
pub fn register(role: Role, fd: c_int, service: Arc<dyn Service>) -> Result<Key> {
    add(Registration::new(role, fd, true, service))
}

/// Like [`register`], but the descriptor is disabled until [`enable`].
pub fn register_disabled(role: Role, fd: c_int, service: Arc<dyn Service>) -> Result<Key> {
    add(Registration::new(role, fd, false, service))
}

fn add(registration: Registration) -> Result<Key> {
    let mut guard = REACTOR.lock();
    if let Some(lost) = guard.take_if(|reactor| !reactor.is_usable()) {
        lost.abandon();
    }
    let reactor = match &mut *guard {
        Some(reactor) => reactor,
        none => none.insert(Reactor::start()?),
    };
    reactor.add(registration)
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
    let reactor = guard.as_ref().filter(|reactor| reactor.is_usable());
    let found = reactor.and_then(|reactor| Some((reactor.find_fd(fd)?, &reactor.epoll)));
    let Some((event, epoll)) = found else { return replace() };
    // The old file may be open in a child as well, so it would stay in the epoll.
    let _ = epoll.control(libc::EPOLL_CTL_DEL, fd, None);
    let result = replace();
    epoll.control(libc::EPOLL_CTL_ADD, fd, event).and(result)
}

/// Changes the descriptor of a registration to `fd`, which is open. The old descriptor may be
/// closed afterwards.
pub fn set_fd(key: Key, fd: c_int) -> Result<()> {
    let mut guard = REACTOR.lock();
    guard.as_mut().filter(|reactor| reactor.is_usable()).ok_or(Errno::EBADF)?.set_fd(key, fd)
}

/// Watches a second descriptor, `fd`, until it is readable the next time: then
/// [`Service::on_channel_readable`] is called. A registration has one such descriptor, which stays
/// open until [`unregister`]. Fails with `EBADF` if the thread or the registration does not exist.
pub fn watch_channel(key: Key, fd: c_int) -> Result<()> {
    with_reactor(|reactor| reactor.watch_second(key, fd)).unwrap_or(Err(Errno::EBADF))
}

/// Like [`watch_channel`], but begins to watch after `delay`.
pub fn watch_channel_later(key: Key, fd: c_int, delay: Duration) -> Result<()> {
    let mut guard = REACTOR.lock();
    let reactor = guard.as_mut().filter(|reactor| reactor.is_usable()).ok_or(Errno::EBADF)?;
    let registration = reactor.registrations.get_mut(&key).ok_or(Errno::EBADF)?;
    if registration.second != Some((fd, true)) {
        registration.second = Some((fd, false));
    }
    reactor.set_after(key, Call::Channel, delay);
    Ok(())
}

/// Disables a descriptor for `time`: its events cannot be handled now, and other services must not
/// wait.
pub fn pause(key: Key, time: Duration) {
    with_reactor(|reactor| reactor.pause(key, time));
}

/// Enables the descriptor of [`register_disabled`], and sets the timer of `key` to `time`.
pub fn enable(key: Key, time: Instant) {
    with_reactor(|reactor| {
        reactor.resume(key);
        reactor.set_timer(key, Call::Expired, Some(time));
    });
}

/// Also calls the service while the descriptor of `key` is writable, or stops doing so.
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
    let left = REACTOR.try_lock().and_then(|mut reactor| reactor.take());
    match left {
        // The descriptors are copies, which the child closes. The services are leaked: threads that
        // do not exist here may have locked them.
        Some(left) if left.wake.is_unchanged() => std::mem::forget((left.registrations, left.timers)),
        Some(left) => left.abandon(),
        None => {}
    }
}
