//! The one thread of rsockets: does what has to happen while no call of the program is under way.
//!
//! It waits for connection manager events, UDP hand-overs and timers, and sleeps otherwise. It starts with the first
//! socket that needs it. The data path does not pass through here.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::owner::Owner;
use crate::cm::GlobalLock;
use crate::errno::{Errno, Result};
use crate::sys::clock;
use crate::sys::event::KernelEpoll;
use crate::sys::lock::Guard;
use crate::sys::own::{self, OwnFd};

/// What the reactor looks after.
pub trait Service: Send + Sync {
    /// The descriptor registered as `key` is readable, or writable after [`watch_room`]. Never
    /// waits.
    fn service(self: Arc<Self>, key: Key);
    /// The time set for `key` has come.
    fn expired(self: Arc<Self>, key: Key);
}

/// Names a registration; never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

/// Names the reactor's own eventfd.
const WAKE: Key = Key(0);

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Taken while a socket's lock may be held, and released before any is taken (docs/locking.md).
static REACTOR: GlobalLock<Option<Reactor>> = GlobalLock::new(None);

struct Reactor {
    /// Of the process whose thread it is.
    owner: Owner,
    epoll: KernelEpoll,
    /// Reported by the epoll when the thread is to look at the timers anew.
    wake: Wake,
    /// Which of the process's reactors this is: a thread of an earlier one ends.
    number: usize,
    watched: HashMap<Key, Watched>,
    /// Latest first. There is room for two of each that is watched.
    timers: Vec<(Instant, Key, Timer)>,
}

/// A socket that can always be written to, and never is: the epoll is told whether to report that.
/// A write into a number that the program has closed could reach a file of its own.
struct Wake {
    fd: OwnFd,
    /// By which it is known ([`own::cookie`]).
    cookie: Option<u64>,
    raised: bool,
}

struct Watched {
    fd: c_int,
    service: Arc<dyn Service>,
    expires: Option<Instant>,
    /// Its descriptor is not looked at for a while.
    rests: bool,
}

/// What happens when a time has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Timer {
    Expires,
    /// The descriptor is looked at again.
    Resumes,
}

/// Microseconds of the longest turn since somebody asked.
static LONGEST: AtomicU64 = AtomicU64::new(0);

/// Looks after `fd`, which stays open until [`forget`].
pub fn watch(fd: c_int, service: Arc<dyn Service>) -> Result<Key> {
    let mut guard = lock();
    if let Some(lost) = guard.take_if(|reactor| !reactor.is_usable()) {
        lost.abandon();
    }
    let reactor = match &mut *guard {
        Some(reactor) => reactor,
        none => none.insert(Reactor::start()?),
    };
    let key = Key(NEXT.fetch_add(1, Ordering::Relaxed));
    reactor.watched.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    let missing = (2 * (reactor.watched.len() + 1)).saturating_sub(reactor.timers.len());
    reactor.timers.try_reserve(missing).map_err(|_| Errno::ENOMEM)?;
    reactor.epoll.control(libc::EPOLL_CTL_ADD, fd, readable(key))?;
    reactor.watched.insert(key, Watched { fd, service, expires: None, rests: false });
    Ok(key)
}

/// Ends it. A call of the service may still be under way.
pub fn forget(key: Key) {
    let mut guard = lock();
    let Some(reactor) = guard.as_mut() else { return };
    let Some(watched) = reactor.watched.remove(&key) else { return };
    if watched.expires.is_some() || watched.rests {
        reactor.timers.retain(|&(_, timer, _)| timer != key);
    }
    if reactor.is_usable() {
        // It cannot fail for what was added.
        let _ = reactor.epoll.control(libc::EPOLL_CTL_DEL, watched.fd, None);
    }
    drop(guard);
    // Dropped without the lock: it may be the last one to hold the service.
    drop(watched);
}

/// Runs `replace`, which puts another file in the place of a descriptor that may be looked after, and looks after that one.
pub fn replaced(fd: RawFd, replace: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut guard = lock();
    let watched = guard.as_mut().filter(|reactor| reactor.is_usable()).and_then(|reactor| {
        // The last one: a number that was closed behind our back may have been another's.
        let key = reactor.watched.iter().filter(|(_, watched)| watched.fd == fd).map(|(&key, _)| key).max()?;
        Some((reactor, key))
    });
    let Some((reactor, key)) = watched else { return replace() };
    // The file that goes may be open elsewhere, in a child: it would stay in the epoll.
    let _ = reactor.epoll.control(libc::EPOLL_CTL_DEL, fd, None);
    let result = replace();
    reactor.epoll.control(libc::EPOLL_CTL_ADD, fd, readable(key)).and(result)
}

/// What is looked after as `key` has another number from now on, which is open; the one before may
/// be closed.
pub fn moved(key: Key, fd: c_int) -> Result<()> {
    let mut guard = lock();
    let reactor = guard.as_mut().filter(|reactor| reactor.is_usable()).ok_or(Errno::EBADF)?;
    let watched = reactor.watched.get_mut(&key).ok_or(Errno::EBADF)?;
    reactor.epoll.control(libc::EPOLL_CTL_ADD, fd, readable(key))?;
    // It cannot fail for what was added.
    let _ = reactor.epoll.control(libc::EPOLL_CTL_DEL, watched.fd, None);
    watched.fd = fd;
    Ok(())
}

/// Does not look at the descriptor of `key` for so long: what it shows can't be dealt with now, and
/// others are not to wait.
pub fn rest(key: Key, time: Duration) {
    let mut guard = lock();
    let Some(reactor) = guard.as_mut().filter(|reactor| reactor.is_usable()) else { return };
    let Some(watched) = reactor.watched.get_mut(&key).filter(|watched| !watched.rests) else { return };
    let nothing = libc::epoll_event { events: 0, u64: key.0 };
    if reactor.epoll.control(libc::EPOLL_CTL_MOD, watched.fd, Some(nothing)).is_ok() {
        watched.rests = true;
        reactor.insert(Instant::now() + time, key, Timer::Resumes);
    }
}

/// Microseconds that the longest turn took since this was last called.
pub fn longest_turn() -> c_int {
    c_int::try_from(LONGEST.swap(0, Ordering::Relaxed)).unwrap_or(c_int::MAX)
}

/// Has the service be told, too, while `key`'s descriptor is writable; or no longer.
pub fn watch_room(key: Key, wanted: bool) {
    let guard = lock();
    let Some(reactor) = guard.as_ref().filter(|reactor| reactor.is_usable()) else { return };
    let Some(watched) = reactor.watched.get(&key) else { return };
    let events = libc::EPOLLIN | if wanted { libc::EPOLLOUT } else { 0 };
    let event = Some(libc::epoll_event { events: events as u32, u64: key.0 });
    // It cannot fail for what was added.
    let _ = reactor.epoll.control(libc::EPOLL_CTL_MOD, watched.fd, event);
}

/// Sets the time at which `key` expires, in place of an earlier one.
pub fn expire(key: Key, time: Option<Instant>) {
    let mut guard = lock();
    let Some(reactor) = guard.as_mut() else { return };
    let Some(watched) = reactor.watched.get_mut(&key) else { return };
    if std::mem::replace(&mut watched.expires, time).is_some() {
        reactor.timers.retain(|&(_, timer, kind)| timer != key || kind != Timer::Expires);
    }
    if let Some(time) = time {
        reactor.insert(time, key, Timer::Expires);
    }
}

/// What the epoll is to say when a registration's descriptor is readable.
fn readable(key: Key) -> Option<libc::epoll_event> {
    Some(libc::epoll_event { events: libc::EPOLLIN as u32, u64: key.0 })
}

impl Wake {
    fn new() -> Result<Wake> {
        let fd = OwnFd::new(own::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?;
        Ok(Wake { cookie: own::cookie(fd.as_raw_fd()), fd, raised: false })
    }

    fn event(&self) -> Option<libc::epoll_event> {
        let events = if self.raised { libc::EPOLLOUT as u32 } else { 0 };
        Some(libc::epoll_event { events, u64: WAKE.0 })
    }

    fn is_ours(&self) -> bool {
        own::cookie(self.fd.as_raw_fd()) == self.cookie
    }
}

impl Reactor {
    fn start() -> Result<Reactor> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let (epoll, wake) = (KernelEpoll::new(libc::EPOLL_CLOEXEC)?, Wake::new()?);
        epoll.control(libc::EPOLL_CTL_ADD, wake.fd.as_raw_fd(), wake.event())?;
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        spawn(number)?;
        Ok(Reactor { owner: Owner::this_process(), epoll, wake, number, watched: HashMap::new(), timers: Vec::new() })
    }

    /// Has the epoll report `wake`, or not any longer.
    fn report_wake(&mut self, on: bool) {
        if self.wake.raised != on {
            self.wake.raised = on;
            self.is_usable();
        }
    }

    /// Whether the program has left the descriptors alone. Under the numbers may be files of its
    /// own, even an epoll with members of the same numbers: epoll_ctl(2) is called only when the
    /// socket is the reactor's, and says whether the epoll is, too.
    fn is_usable(&self) -> bool {
        self.wake.is_ours()
            && self.epoll.control(libc::EPOLL_CTL_MOD, self.wake.fd.as_raw_fd(), self.wake.event()).is_ok()
    }

    /// Gives up a reactor whose descriptors the program has closed, together with those that it
    /// watched.
    fn abandon(self) {
        self.epoll.forget();
        self.wake.fd.forget();
        // Services may lock what the caller has locked when they are dropped, and close what is not
        // theirs.
        std::mem::forget((self.watched, self.timers));
    }

    fn insert(&mut self, time: Instant, key: Key, kind: Timer) {
        let place = self.timers.partition_point(|&(later, ..)| later > time);
        self.timers.insert(place, (time, key, kind));
        if place + 1 == self.timers.len() {
            self.report_wake(true);
        }
    }

    /// Looks at the descriptor of `key` again.
    fn resume(&mut self, key: Key) {
        let usable = self.is_usable();
        let Some(watched) = self.watched.get_mut(&key).filter(|_| usable) else { return };
        watched.rests = false;
        // It cannot fail for what was added.
        let _ = self.epoll.control(libc::EPOLL_CTL_MOD, watched.fd, readable(key));
    }
}

/// Starts the thread, with all signals blocked: it takes none of the program's. By hand, for the standard library's
/// way ends the program when there is no memory. The stack is as large as the program's threads have it: a smaller one may
/// not hold the program's thread-local variables, which are part of it.
fn spawn(number: usize) -> Result<()> {
    // SAFETY: plain sets and attributes of this thread's stack; the argument is a number.
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

/// The thread. It lives as long as the process, unless the program closes its descriptors.
fn run(number: usize) {
    const BATCH: usize = 64;
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
    while let Some((epoll, timeout)) = next_wait(number) {
        // SAFETY: room for as many events as are asked for; a number that is no epoll's any more is
        // an error.
        let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), BATCH as c_int, timeout) };
        if count < 0 && Errno::last() != Errno::EINTR {
            return;
        }
        let start = Instant::now();
        for event in events.iter().take(usize::try_from(count).unwrap_or(0)) {
            let key = Key(event.u64);
            if let Some(service) = find(key) {
                service.service(key);
            }
        }
        while let Some((key, service)) = next_expired() {
            service.expired(key);
        }
        let turn = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        LONGEST.fetch_max(turn, Ordering::Relaxed);
    }
}

/// What to wait for: the epoll, and the milliseconds until the first timer, -1 without one. Takes
/// the wake-up that said that there is a new one. `None` when the reactor of that number is no
/// more.
fn next_wait(number: usize) -> Option<(RawFd, c_int)> {
    let mut guard = lock();
    let reactor = guard.as_mut().filter(|reactor| reactor.number == number && reactor.wake.is_ours())?;
    reactor.report_wake(false);
    Some((reactor.epoll.as_raw_fd(), clock::poll_time(reactor.timers.last().map(|&(time, ..)| time))))
}

fn find(key: Key) -> Option<Arc<dyn Service>> {
    lock().as_ref()?.watched.get(&key).map(|watched| Arc::clone(&watched.service))
}

fn next_expired() -> Option<(Key, Arc<dyn Service>)> {
    let mut guard = lock();
    let reactor = guard.as_mut()?;
    loop {
        let &(time, key, kind) = reactor.timers.last()?;
        if clock::left(time).is_some() {
            return None;
        }
        reactor.timers.pop();
        if kind == Timer::Resumes {
            reactor.resume(key);
            continue;
        }
        let watched = reactor.watched.get_mut(&key)?;
        watched.expires = None;
        return Some((key, Arc::clone(&watched.service)));
    }
}

/// For forks.rs: takes the lock and keeps it.
pub(super) fn before_fork() {
    REACTOR.before_fork();
}

/// Releases what [`before_fork`] took. A child has no thread; what the parent's looks after is left to the parent.
///
/// # Safety
/// In the thread that called [`before_fork`], or its copy in the child.
pub(super) unsafe fn after_fork(in_child: bool) {
    // SAFETY: as the caller promises.
    unsafe { REACTOR.after_fork(in_child, || None) };
    if in_child && let Some(mut reactor) = REACTOR.try_lock() {
        leave_to_parent(&mut reactor);
    }
}

/// The lock. A reactor of the parent's, which a signal handler's fork() could not take away, goes
/// now.
fn lock() -> Guard<'static, Option<Reactor>> {
    let mut reactor = REACTOR.lock();
    leave_to_parent(&mut reactor);
    reactor
}

fn leave_to_parent(reactor: &mut Option<Reactor>) {
    if let Some(left) = reactor.take_if(|reactor| !reactor.owner.is_this_process()) {
        if left.wake.is_ours() {
            // The descriptors are the child's own copies. The sockets stay: their locks may be held
            // by threads that are not there, so nothing of them may be dropped.
            drop((left.epoll, left.wake));
            std::mem::forget((left.watched, left.timers));
        } else {
            left.abandon();
        }
    }
}
