//! The library's two threads for rsockets: they do the work that must happen while the program makes
//! no call.
//!
//! They wait for connection manager events, packets on UDP sockets, and timers. Making and freeing a
//! connection takes commands that may block in the firmware of an adapter, so these have a thread of
//! their own ([`Role::Links`]), and everything else is not late because of them. Each thread starts
//! with the first registration that needs it. On the data path, only small messages that are held,
//! the first messages of a connection, and calls of signal handlers that need memory may need one.

#[cfg(test)]
mod tests;
mod thread;
mod timers;
mod wake;

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub use self::thread::longest_iteration;
use self::timers::Timers;
use self::wake::Wake;
use crate::cm::{GlobalLock, Guard};
use crate::errno::{Errno, Result};
use crate::sys::event::KernelEpoll;
use crate::sys::owner::Owner;

/// An object with a descriptor or a timer in a reactor. Both threads may call it at the same time.
pub trait Service: Send + Sync {
    /// The descriptor registered as `key` is readable, or writable if [`set_writable_wanted`]
    /// requested this. Waits for nobody longer than [`LOCK_TIMEOUT`]. Returns false if the service
    /// is busy: it is called again after a pause.
    fn service(self: Arc<Self>, key: Key) -> bool;
    /// The timer of `key` has expired. As [`service`](Self::service).
    fn expired(self: Arc<Self>, _key: Key) -> bool {
        true
    }
    /// The descriptor that [`watch_once`] or [`watch_later`] was called for is readable. Never
    /// blocks. Returns false if the service is busy: it is called again after a pause.
    fn second_is_readable(self: Arc<Self>) -> bool {
        true
    }
    /// [`call_soon`] has requested this call. Returns false if the service is busy: it is called
    /// again after a pause.
    fn called(self: Arc<Self>) -> bool {
        true
    }
}

/// How long a service waits for a lock that another thread holds, which may be in a command.
pub const LOCK_TIMEOUT: Duration = Duration::from_millis(1);

/// What a reactor's thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// What must not be late: established connections, and sockets for datagrams.
    Events,
    /// Connections that are made or freed and paths to be resolved, with commands that may block.
    Links,
}

const ROLES: [Role; 2] = [Role::Events, Role::Links];

/// Identifies a registration, and in its lowest bit the reactor. Never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

impl Key {
    fn new(role: Role) -> Key {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Key(NEXT.fetch_add(1, Ordering::Relaxed) << 1 | role as u64)
    }

    /// Returns what the thread is for that serves the registration.
    pub fn role(self) -> Role {
        if self.0 & 1 == Role::Links as u64 { Role::Links } else { Role::Events }
    }
}

/// Set in the epoll's data for the second descriptor of a registration.
const SECOND: u64 = 1 << 63;

/// In the order of [`Role`]. May be taken with a socket's lock held. Released before any socket's
/// lock is taken (docs/locking.md).
static REACTORS: [GlobalLock<Option<Reactor>>; 2] = [GlobalLock::new(None), GlobalLock::new(None)];

struct Reactor {
    /// The process that the thread belongs to.
    owner: Owner,
    epoll: KernelEpoll,
    /// The epoll reports this socket when the thread has to read the timers again.
    wake: Wake,
    /// Number of this reactor in the process. The thread of an earlier reactor ends.
    number: usize,
    registrations: HashMap<Key, Registration>,
    /// Has capacity for one timer of each kind per registration.
    timers: Timers<(Key, Timer)>,
    /// The thread waits with the timers that it has read.
    is_waiting: bool,
}

struct Registration {
    fd: c_int,
    /// The descriptor of [`watch_once`], and whether the epoll has it already.
    second: Option<(c_int, bool)>,
    service: Arc<dyn Service>,
    /// The time of each kind of timer that is set.
    times: [Option<Instant>; TIMERS],
    /// Number of times in a row that the service was busy.
    busy: u32,
}

/// The action of a timer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Timer {
    Expires,
    /// The descriptor, which is disabled, is enabled again.
    Resumes,
    /// The second descriptor is watched.
    Watches,
    /// The service is called.
    Calls,
}

/// Time until a service that was busy is called again. It doubles each time, up to 64 milliseconds.
const BUSY_PAUSE: Duration = Duration::from_millis(1);
const BUSY_DOUBLINGS: u32 = 6;

/// Number of kinds of timers.
const TIMERS: usize = KINDS.len();
const KINDS: [Timer; 4] = [Timer::Expires, Timer::Resumes, Timer::Watches, Timer::Calls];

/// Registers `fd`, which stays open until [`unregister`], with the reactor of this role.
pub fn register(role: Role, fd: c_int, service: Arc<dyn Service>) -> Result<Key> {
    register_for(role, fd, service, readable)
}

/// As [`register`], but the descriptor is disabled until [`enable`].
pub fn register_disabled(role: Role, fd: c_int, service: Arc<dyn Service>) -> Result<Key> {
    register_for(role, fd, service, disabled)
}

fn register_for(
    role: Role,
    fd: c_int,
    service: Arc<dyn Service>,
    events: fn(Key) -> Option<libc::epoll_event>,
) -> Result<Key> {
    let mut guard = lock(role);
    if let Some(lost) = guard.take_if(|reactor| !reactor.is_usable()) {
        lost.abandon();
    }
    let reactor = match &mut *guard {
        Some(reactor) => reactor,
        none => none.insert(Reactor::start(role)?),
    };
    let key = Key::new(role);
    reactor.registrations.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    reactor.timers.reserve(TIMERS * (reactor.registrations.len() + 1))?;
    reactor.epoll.control(libc::EPOLL_CTL_ADD, fd, events(key))?;
    let registration = Registration { fd, second: None, service, times: [None; TIMERS], busy: 0 };
    reactor.registrations.insert(key, registration);
    Ok(key)
}

/// Moves a registration and its timer to the reactor of this role. Returns the new key; on failure
/// the old one stays. A call of the service by the former thread may still be in progress, and both
/// threads may be called for the same event. The second descriptor is watched no more.
pub fn hand_over(key: Key, role: Role) -> Result<Key> {
    let found = |registration: &Registration| (registration.fd, Arc::clone(&registration.service));
    let found = lock(key.role()).as_ref().and_then(|reactor| reactor.registrations.get(&key).map(found));
    let (fd, service) = found.ok_or(Errno::EBADF)?;
    // Registered with both for a moment: no event is lost.
    let new = register(role, fd, service)?;
    let time = remove(key).and_then(|registration| registration.times[Timer::Expires as usize]);
    if time.is_some() {
        set_timer(new, time);
    }
    Ok(new)
}

/// Removes a registration. A call of the service may still be in progress.
pub fn unregister(key: Key) {
    // Dropped without the lock: this may be the last reference to the service.
    drop(remove(key));
}

fn remove(key: Key) -> Option<Registration> {
    let mut guard = lock(key.role());
    let reactor = guard.as_mut()?;
    let registration = reactor.registrations.remove(&key)?;
    for kind in KINDS {
        if let Some(time) = registration.times[kind as usize] {
            reactor.timers.cancel(time, &(key, kind));
        }
    }
    if reactor.is_usable() {
        for fd in registration.second.map(|(fd, _)| fd).into_iter().chain([registration.fd]) {
            // Cannot fail for a watched descriptor.
            let _ = reactor.epoll.control(libc::EPOLL_CTL_DEL, fd, None);
        }
    }
    Some(registration)
}

/// Calls `replace`, which replaces the file of a descriptor, and keeps a registration of the
/// descriptor for the new file.
pub fn replace_file(fd: RawFd, replace: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut guards = ROLES.map(lock);
    // The latest registration: an older one may be of a descriptor with this number that the
    // program has closed.
    let latest = guards.iter_mut().filter_map(|guard| {
        let reactor = guard.as_mut().filter(|reactor| reactor.is_usable())?;
        let of_fd = reactor.registrations.iter().filter(|(_, registration)| registration.fd == fd);
        let key = of_fd.map(|(&key, _)| key).max()?;
        Some((reactor, key))
    });
    let Some((reactor, key)) = latest.max_by_key(|&(_, key)| key) else { return replace() };
    // The old file may be open in a child as well, so it would stay in the epoll.
    let _ = reactor.epoll.control(libc::EPOLL_CTL_DEL, fd, None);
    let result = replace();
    reactor.epoll.control(libc::EPOLL_CTL_ADD, fd, readable(key)).and(result)
}

/// Changes the descriptor of a registration to `fd`, which is open. The old descriptor may be
/// closed afterwards.
pub fn set_fd(key: Key, fd: c_int) -> Result<()> {
    let mut guard = lock(key.role());
    let reactor = guard.as_mut().filter(|reactor| reactor.is_usable()).ok_or(Errno::EBADF)?;
    let registration = reactor.registrations.get_mut(&key).ok_or(Errno::EBADF)?;
    reactor.epoll.control(libc::EPOLL_CTL_ADD, fd, readable(key))?;
    // Cannot fail for a registered descriptor.
    let _ = reactor.epoll.control(libc::EPOLL_CTL_DEL, registration.fd, None);
    registration.fd = fd;
    Ok(())
}

/// Also watches `fd`, which stays open until [`unregister`], until it is readable the next time. A
/// registration has one such descriptor.
pub fn watch_once(key: Key, fd: c_int) -> Result<()> {
    let mut guard = lock(key.role());
    let reactor = guard.as_mut().filter(|reactor| reactor.is_usable()).ok_or(Errno::EBADF)?;
    reactor.watch_second(key, fd)?.busy = 0;
    Ok(())
}

/// As [`watch_once`], from `delay` on.
pub fn watch_later(key: Key, fd: c_int, delay: Duration) -> Result<()> {
    let mut guard = lock(key.role());
    let reactor = guard.as_mut().filter(|reactor| reactor.is_usable()).ok_or(Errno::EBADF)?;
    let registration = reactor.registrations.get_mut(&key).ok_or(Errno::EBADF)?;
    if registration.second != Some((fd, true)) {
        registration.second = Some((fd, false));
    }
    registration.busy = 0;
    reactor.set_after(key, Timer::Watches, delay);
    Ok(())
}

/// Makes the thread call [`Service::called`] as soon as it can. Returns whether it will: not if
/// another thread keeps the reactor's lock, which may wait for the one of malloc(3) that the caller's
/// thread holds. Does not allocate.
pub fn call_soon(key: Key) -> bool {
    const LOCK_TIMEOUT: Duration = Duration::from_millis(100);
    let Some(mut guard) = REACTORS[key.role() as usize].lock_within(LOCK_TIMEOUT) else { return false };
    leave_to_parent(&mut guard);
    let Some(reactor) = guard.as_mut().filter(|reactor| reactor.is_usable()) else { return false };
    if let Some(registration) = reactor.registrations.get_mut(&key) {
        registration.busy = 0;
    }
    reactor.set_after(key, Timer::Calls, Duration::ZERO)
}

/// Disables a descriptor for `time`: its events cannot be handled now, and other services must not
/// wait.
pub fn pause(key: Key, time: Duration) {
    let mut guard = lock(key.role());
    if let Some(reactor) = guard.as_mut().filter(|reactor| reactor.is_usable()) {
        reactor.pause(key, time);
    }
}

/// Enables the descriptor of [`register_disabled`] and sets its timer.
pub fn enable(key: Key, time: Instant) {
    let mut guard = lock(key.role());
    if let Some(reactor) = guard.as_mut() {
        reactor.resume(key);
        reactor.set_timer(key, Some(time));
    }
}

/// Also calls the service while the descriptor of `key` is writable, or stops doing so.
pub fn set_writable_wanted(key: Key, wanted: bool) {
    let guard = lock(key.role());
    let Some(reactor) = guard.as_ref().filter(|reactor| reactor.is_usable()) else { return };
    let Some(registration) = reactor.registrations.get(&key) else { return };
    let events = libc::EPOLLIN | if wanted { libc::EPOLLOUT } else { 0 };
    let event = Some(libc::epoll_event { events: events as u32, u64: key.0 });
    // Cannot fail for a registered descriptor.
    let _ = reactor.epoll.control(libc::EPOLL_CTL_MOD, registration.fd, event);
}

/// Sets the timer of `key`, and cancels its previous timer.
pub fn set_timer(key: Key, time: Option<Instant>) {
    let mut guard = lock(key.role());
    if let Some(reactor) = guard.as_mut() {
        reactor.set_timer(key, time);
    }
}

/// Returns the epoll event for a disabled descriptor of a registration.
fn disabled(key: Key) -> Option<libc::epoll_event> {
    Some(libc::epoll_event { events: 0, u64: key.0 })
}

/// Returns the epoll event for a readable descriptor of a registration.
fn readable(key: Key) -> Option<libc::epoll_event> {
    Some(libc::epoll_event { events: libc::EPOLLIN as u32, u64: key.0 })
}

impl Reactor {
    fn start(role: Role) -> Result<Reactor> {
        /// Number of registrations that need no more memory.
        const FEW: usize = 7;
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let (mut registrations, mut timers) = (HashMap::new(), Timers::new());
        registrations.try_reserve(FEW).map_err(|_| Errno::ENOMEM)?;
        timers.reserve(TIMERS * FEW)?;
        let (epoll, wake) = (KernelEpoll::new(libc::EPOLL_CLOEXEC)?, Wake::new()?);
        epoll.control(libc::EPOLL_CTL_ADD, wake.fd.as_raw_fd(), wake.event())?;
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        thread::spawn(role, number)?;
        Ok(Reactor { owner: Owner::this_process(), epoll, wake, number, registrations, timers, is_waiting: false })
    }

    /// Makes the epoll report `wake`, or stops it.
    fn report_wake(&mut self, on: bool) {
        if self.wake.raised != on {
            self.wake.raised = on;
            self.is_usable();
        }
    }

    /// Returns whether the program has left the descriptors alone. If it has closed them, the
    /// numbers may belong to its own files, even to an epoll with members of the same numbers. So
    /// epoll_ctl(2) is called only if the socket is the reactor's; its result shows whether the
    /// epoll is the reactor's, too.
    fn is_usable(&self) -> bool {
        self.wake.is_unchanged()
            && self.epoll.control(libc::EPOLL_CTL_MOD, self.wake.fd.as_raw_fd(), self.wake.event()).is_ok()
    }

    /// Leaks a reactor whose descriptors the program has closed, and its registrations.
    fn abandon(self) {
        self.epoll.forget();
        self.wake.fd.forget();
        // Dropping a service might take locks that the caller holds, and close descriptors of the
        // program.
        std::mem::forget((self.registrations, self.timers));
    }

    fn insert(&mut self, time: Instant, key: Key, kind: Timer) {
        if self.timers.insert(time, (key, kind)) && self.is_waiting {
            self.report_wake(true);
        }
    }

    fn watch_second(&mut self, key: Key, fd: c_int) -> Result<&mut Registration> {
        let registration = self.registrations.get_mut(&key).ok_or(Errno::EBADF)?;
        let is_known = registration.second == Some((fd, true));
        let command = if is_known { libc::EPOLL_CTL_MOD } else { libc::EPOLL_CTL_ADD };
        let events = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;
        self.epoll.control(command, fd, Some(libc::epoll_event { events, u64: key.0 | SECOND }))?;
        registration.second = Some((fd, true));
        Ok(registration)
    }

    /// Sets a timer for the time after `delay`, unless it is set. Returns false for an unknown key.
    fn set_after(&mut self, key: Key, kind: Timer, delay: Duration) -> bool {
        let Some(registration) = self.registrations.get_mut(&key) else { return false };
        let slot = &mut registration.times[kind as usize];
        if slot.is_none() {
            let time = Instant::now() + delay;
            *slot = Some(time);
            self.insert(time, key, kind);
        }
        true
    }

    /// The service of `key` is busy. Returns the time until it is called again.
    fn busy_pause(&mut self, key: Key) -> Duration {
        let Some(registration) = self.registrations.get_mut(&key) else { return BUSY_PAUSE };
        let pause = BUSY_PAUSE * (1 << registration.busy.min(BUSY_DOUBLINGS));
        registration.busy += 1;
        pause
    }

    /// See [`set_timer`].
    fn set_timer(&mut self, key: Key, time: Option<Instant>) {
        let Some(registration) = self.registrations.get_mut(&key) else { return };
        if let Some(previous) = std::mem::replace(&mut registration.times[Timer::Expires as usize], time) {
            self.timers.cancel(previous, &(key, Timer::Expires));
        }
        if let Some(time) = time {
            self.insert(time, key, Timer::Expires);
        }
    }

    /// See [`pause`].
    fn pause(&mut self, key: Key, time: Duration) {
        let is_enabled = |known: &&Registration| known.times[Timer::Resumes as usize].is_none();
        let Some(registration) = self.registrations.get(&key).filter(is_enabled) else { return };
        if self.epoll.control(libc::EPOLL_CTL_MOD, registration.fd, disabled(key)).is_ok() {
            self.set_after(key, Timer::Resumes, time);
        }
    }

    /// Watches the second descriptor of `key`. If that fails, the program's next call finds what the
    /// service would have been called for.
    fn watch_now(&mut self, key: Key) {
        let usable = self.is_usable();
        let Some(registration) = self.registrations.get_mut(&key) else { return };
        if let Some((fd, _)) = registration.second.filter(|_| usable) {
            let _ = self.watch_second(key, fd);
        }
    }

    /// Enables the descriptor of `key` again.
    fn resume(&mut self, key: Key) {
        let usable = self.is_usable();
        let Some(registration) = self.registrations.get(&key).filter(|_| usable) else { return };
        // Cannot fail for a registered descriptor.
        let _ = self.epoll.control(libc::EPOLL_CTL_MOD, registration.fd, readable(key));
    }
}

/// Takes the locks before a fork() and keeps them.
pub(super) fn before_fork() {
    REACTORS.iter().for_each(GlobalLock::before_fork);
}

/// Releases the locks taken by [`before_fork`].
pub(super) fn after_fork_in_parent() {
    REACTORS.iter().rev().for_each(GlobalLock::after_fork_in_parent);
}

/// Frees the locks in the child, which has no reactor thread: its parent keeps the registrations.
///
/// # Safety
/// The process has no other thread.
pub(super) unsafe fn after_fork_in_child() {
    for lock in REACTORS.iter().rev() {
        // SAFETY: the process has no other thread: guaranteed by the caller.
        unsafe { lock.after_fork_in_child(|| None) };
        if let Some(mut reactor) = lock.try_lock() {
            leave_to_parent(&mut reactor);
        }
    }
}

/// Takes the lock of a reactor. Drops a reactor of the parent, which may be left after a fork() in a
/// signal handler.
fn lock(role: Role) -> Guard<'static, Option<Reactor>> {
    let mut reactor = REACTORS[role as usize].lock();
    leave_to_parent(&mut reactor);
    reactor
}

fn leave_to_parent(reactor: &mut Option<Reactor>) {
    if let Some(left) = reactor.take_if(|reactor| !reactor.owner.is_this_process()) {
        if left.wake.is_unchanged() {
            // The descriptors are copies, which the child closes. The services are leaked: threads
            // that do not exist here may have locked them.
            drop((left.epoll, left.wake));
            std::mem::forget((left.registrations, left.timers));
        } else {
            left.abandon();
        }
    }
}
