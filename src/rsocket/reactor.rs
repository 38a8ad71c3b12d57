//! The library's only thread for rsockets: does the work that must happen while the program makes
//! no call.
//!
//! It waits for connection manager events, packets on UDP sockets, and timers. It starts with the
//! first socket that needs it. On the data path, only small messages that are held, the first
//! messages of a connection, and calls of signal handlers that need memory may need it.

mod timers;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use self::timers::Timers;
use crate::cm::{GlobalLock, Guard};
use crate::errno::{Errno, Result};
use crate::sys::clock;
use crate::sys::event::KernelEpoll;
use crate::sys::library_fds::{self, OwnFd};
use crate::sys::owner::Owner;

/// An object with a descriptor or a timer in the reactor.
pub trait Service: Send + Sync {
    /// The descriptor registered as `key` is readable, or writable if [`set_writable_wanted`]
    /// requested this. Never blocks.
    fn service(self: Arc<Self>, key: Key);
    /// The timer of `key` has expired.
    fn expired(self: Arc<Self>, key: Key);
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

/// Identifies a registration. Never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

/// Identifies the reactor's own wake-up socket.
const WAKE: Key = Key(0);
/// Set in the epoll's data for the second descriptor of a registration.
const SECOND: u64 = 1 << 63;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// May be taken with a socket's lock held. Released before any socket's lock is taken
/// (docs/locking.md).
static REACTOR: GlobalLock<Option<Reactor>> = GlobalLock::new(None);

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

/// A socket that is always writable: making the epoll report it wakes the thread. Nothing is ever
/// written to it, because the program may have closed it and opened a file of its own under the
/// same number.
struct Wake {
    fd: OwnFd,
    /// Identifies the socket ([`library_fds::cookie`]).
    cookie: Option<u64>,
    raised: bool,
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

/// Duration of the longest iteration since the last query, in microseconds.
static LONGEST_ITERATION: AtomicU64 = AtomicU64::new(0);

/// Registers `fd`, which stays open until [`unregister`].
pub fn register(fd: c_int, service: Arc<dyn Service>) -> Result<Key> {
    let mut guard = lock();
    if let Some(lost) = guard.take_if(|reactor| !reactor.is_usable()) {
        lost.abandon();
    }
    let reactor = match &mut *guard {
        Some(reactor) => reactor,
        none => none.insert(Reactor::start()?),
    };
    let key = Key(NEXT.fetch_add(1, Ordering::Relaxed));
    reactor.registrations.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    reactor.timers.reserve(TIMERS * (reactor.registrations.len() + 1))?;
    reactor.epoll.control(libc::EPOLL_CTL_ADD, fd, readable(key))?;
    let registration = Registration { fd, second: None, service, times: [None; TIMERS], busy: 0 };
    reactor.registrations.insert(key, registration);
    Ok(key)
}

/// Removes a registration. A call of the service may still be in progress.
pub fn unregister(key: Key) {
    let mut guard = lock();
    let Some(reactor) = guard.as_mut() else { return };
    let Some(registration) = reactor.registrations.remove(&key) else { return };
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
    drop(guard);
    // Dropped without the lock: this may be the last reference to the service.
    drop(registration);
}

/// Calls `replace`, which replaces the file of a descriptor, and keeps a registration of the
/// descriptor for the new file.
pub fn replace_file(fd: RawFd, replace: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut guard = lock();
    let registration = guard.as_mut().filter(|reactor| reactor.is_usable()).and_then(|reactor| {
        // The latest registration: an older one may be of a descriptor with this number that the
        // program has closed.
        let key = reactor
            .registrations
            .iter()
            .filter(|(_, registration)| registration.fd == fd)
            .map(|(&key, _)| key)
            .max()?;
        Some((reactor, key))
    });
    let Some((reactor, key)) = registration else { return replace() };
    // The old file may be open in a child as well, so it would stay in the epoll.
    let _ = reactor.epoll.control(libc::EPOLL_CTL_DEL, fd, None);
    let result = replace();
    reactor.epoll.control(libc::EPOLL_CTL_ADD, fd, readable(key)).and(result)
}

/// Changes the descriptor of a registration to `fd`, which is open. The old descriptor may be
/// closed afterwards.
pub fn set_fd(key: Key, fd: c_int) -> Result<()> {
    let mut guard = lock();
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
    let mut guard = lock();
    let reactor = guard.as_mut().filter(|reactor| reactor.is_usable()).ok_or(Errno::EBADF)?;
    reactor.watch_second(key, fd)?.busy = 0;
    Ok(())
}

/// As [`watch_once`], from `delay` on.
pub fn watch_later(key: Key, fd: c_int, delay: Duration) -> Result<()> {
    let mut guard = lock();
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
    let Some(mut guard) = REACTOR.lock_within(LOCK_TIMEOUT) else { return false };
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
    let mut guard = lock();
    let Some(reactor) = guard.as_mut().filter(|reactor| reactor.is_usable()) else { return };
    let is_enabled = |known: &&Registration| known.times[Timer::Resumes as usize].is_none();
    let Some(registration) = reactor.registrations.get(&key).filter(is_enabled) else { return };
    let no_events = libc::epoll_event { events: 0, u64: key.0 };
    if reactor.epoll.control(libc::EPOLL_CTL_MOD, registration.fd, Some(no_events)).is_ok() {
        reactor.set_after(key, Timer::Resumes, time);
    }
}

/// Returns the duration of the longest iteration since the last call, in microseconds.
pub fn longest_iteration() -> c_int {
    c_int::try_from(LONGEST_ITERATION.swap(0, Ordering::Relaxed)).unwrap_or(c_int::MAX)
}

/// Also calls the service while the descriptor of `key` is writable, or stops doing so.
pub fn set_writable_wanted(key: Key, wanted: bool) {
    let guard = lock();
    let Some(reactor) = guard.as_ref().filter(|reactor| reactor.is_usable()) else { return };
    let Some(registration) = reactor.registrations.get(&key) else { return };
    let events = libc::EPOLLIN | if wanted { libc::EPOLLOUT } else { 0 };
    let event = Some(libc::epoll_event { events: events as u32, u64: key.0 });
    // Cannot fail for a registered descriptor.
    let _ = reactor.epoll.control(libc::EPOLL_CTL_MOD, registration.fd, event);
}

/// Sets the timer of `key`, and cancels its previous timer.
pub fn set_timer(key: Key, time: Option<Instant>) {
    let mut guard = lock();
    let Some(reactor) = guard.as_mut() else { return };
    let Some(registration) = reactor.registrations.get_mut(&key) else { return };
    if let Some(previous) = std::mem::replace(&mut registration.times[Timer::Expires as usize], time) {
        reactor.timers.cancel(previous, &(key, Timer::Expires));
    }
    if let Some(time) = time {
        reactor.insert(time, key, Timer::Expires);
    }
}

/// Returns the epoll event for a readable descriptor of a registration.
fn readable(key: Key) -> Option<libc::epoll_event> {
    Some(libc::epoll_event { events: libc::EPOLLIN as u32, u64: key.0 })
}

impl Wake {
    fn new() -> Result<Wake> {
        let fd = OwnFd::new(library_fds::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?;
        Ok(Wake { cookie: library_fds::cookie(fd.as_raw_fd()), fd, raised: false })
    }

    fn event(&self) -> Option<libc::epoll_event> {
        let events = if self.raised { libc::EPOLLOUT as u32 } else { 0 };
        Some(libc::epoll_event { events, u64: WAKE.0 })
    }

    fn is_unchanged(&self) -> bool {
        library_fds::cookie(self.fd.as_raw_fd()) == self.cookie
    }
}

impl Reactor {
    fn start() -> Result<Reactor> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let (epoll, wake) = (KernelEpoll::new(libc::EPOLL_CLOEXEC)?, Wake::new()?);
        epoll.control(libc::EPOLL_CTL_ADD, wake.fd.as_raw_fd(), wake.event())?;
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        spawn(number)?;
        Ok(Reactor {
            owner: Owner::this_process(),
            epoll,
            wake,
            number,
            registrations: HashMap::new(),
            timers: Timers::new(),
            is_waiting: false,
        })
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

/// Starts the thread with all signals blocked, so that it receives none of the program's. The
/// standard library's spawn would abort without memory. The stack has the default size: a smaller
/// one might not hold the program's thread-local variables, which are stored on it.
fn spawn(number: usize) -> Result<()> {
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

extern "C" fn main(number: *mut c_void) -> *mut c_void {
    run(number as usize);
    std::ptr::null_mut()
}

/// The thread's main function. Runs until the process ends or the program closes the descriptors.
fn run(number: usize) {
    const BATCH: usize = 64;
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
    while let Some((epoll, timeout)) = next_wait(number) {
        // SAFETY: the buffer has room for BATCH events; a number that is no longer an epoll is an
        // error.
        let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), BATCH as c_int, timeout) };
        if count < 0 && Errno::last() != Errno::EINTR {
            return;
        }
        let start = Instant::now();
        for event in events.iter().take(usize::try_from(count).unwrap_or(0)) {
            let key = Key(event.u64 & !SECOND);
            let Some(service) = find(key) else { continue };
            if event.u64 & SECOND == 0 {
                service.service(key);
            } else if !service.second_is_readable() {
                retry(key, Timer::Watches);
            }
        }
        // A service may set its timer again: that one is for the next turn, after other events.
        let due = Instant::now();
        while let Some((key, service, kind)) = next_expired(due) {
            if kind != Timer::Calls {
                service.expired(key);
            } else if !service.called() {
                retry(key, kind);
            }
        }
        let iteration = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        LONGEST_ITERATION.fetch_max(iteration, Ordering::Relaxed);
    }
}

/// Returns the epoll to wait for and the milliseconds until the first timer, -1 without timers.
/// Clears the wake-up for a new timer. Returns `None` if the reactor of this number no longer
/// exists.
fn next_wait(number: usize) -> Option<(RawFd, c_int)> {
    let mut guard = lock();
    let reactor = guard.as_mut().filter(|reactor| reactor.number == number && reactor.wake.is_unchanged())?;
    reactor.report_wake(false);
    reactor.is_waiting = true;
    Some((reactor.epoll.as_raw_fd(), clock::poll_time(reactor.timers.first())))
}

/// Also notes that the thread does not wait.
fn find(key: Key) -> Option<Arc<dyn Service>> {
    let mut guard = lock();
    let reactor = guard.as_mut()?;
    reactor.is_waiting = false;
    reactor.registrations.get(&key).map(|registration| Arc::clone(&registration.service))
}

/// The service of `key` is busy. Sets the timer again, after a pause.
fn retry(key: Key, kind: Timer) {
    if let Some(reactor) = lock().as_mut().filter(|reactor| reactor.is_usable()) {
        let pause = reactor.busy_pause(key);
        reactor.set_after(key, kind, pause);
    }
}

/// Takes a timer that had expired at `due` and is for the service.
fn next_expired(due: Instant) -> Option<(Key, Arc<dyn Service>, Timer)> {
    let mut guard = lock();
    let reactor = guard.as_mut()?;
    loop {
        let (key, kind) = reactor.timers.take_expired(due)?;
        let Some(registration) = reactor.registrations.get_mut(&key) else { continue };
        registration.times[kind as usize] = None;
        match kind {
            Timer::Resumes => reactor.resume(key),
            Timer::Watches => reactor.watch_now(key),
            Timer::Expires | Timer::Calls => return Some((key, Arc::clone(&registration.service), kind)),
        }
    }
}

/// Takes the lock before a fork() and keeps it.
pub(super) fn before_fork() {
    REACTOR.before_fork();
}

/// Releases the lock taken by [`before_fork`].
pub(super) fn after_fork_in_parent() {
    REACTOR.after_fork_in_parent();
}

/// Frees the lock in the child, which has no reactor thread: its parent keeps the registrations.
///
/// # Safety
/// The process has no other thread.
pub(super) unsafe fn after_fork_in_child() {
    // SAFETY: the process has no other thread: guaranteed by the caller.
    unsafe { REACTOR.after_fork_in_child(|| None) };
    if let Some(mut reactor) = REACTOR.try_lock() {
        leave_to_parent(&mut reactor);
    }
}

/// Takes the lock. Drops a reactor of the parent, which may be left after a fork() in a signal
/// handler.
fn lock() -> Guard<'static, Option<Reactor>> {
    let mut reactor = REACTOR.lock();
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
