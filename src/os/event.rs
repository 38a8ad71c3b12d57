//! Waiting: deadlines, and the kernel's poll, epoll and eventfd.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use base::clock::timespec;
use libc::{epoll_event, pollfd};

use crate::errno::{Errno, Result};
use crate::os::cancel;
use crate::os::library_fds::OwnFd;

pub use base::clock::{millis, monotonic_ms};

/// The time at which a call stops waiting.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// Returns the deadline `timeout` milliseconds from now. If `timeout` is negative, the deadline
    /// never comes, as for poll(2).
    #[inline]
    pub fn after_ms(timeout: c_int) -> Deadline {
        Deadline::after(u64::try_from(timeout).ok().map(Duration::from_millis))
    }

    /// Returns the deadline `time` from now. If `time` is `None` or beyond the clock's range, the
    /// deadline never comes.
    #[inline]
    pub fn after(time: Option<Duration>) -> Deadline {
        Deadline(time.and_then(|time| Instant::now().checked_add(time)))
    }

    /// Returns the time left, zero if the deadline has passed; `None` for a deadline that never
    /// comes.
    #[inline]
    pub fn left(&self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// Returns the point in time; `None` for a deadline that never comes.
    pub fn instant(&self) -> Option<Instant> {
        self.0
    }

    /// Returns whether the deadline has passed.
    pub fn passed(&self) -> bool {
        self.left() == Some(Duration::ZERO)
    }
}

/// A non-blocking eventfd, readable between raise() and clear().
#[derive(Debug)]
pub struct EventFd(OwnFd);

impl EventFd {
    /// Creates an eventfd that is not readable.
    pub fn new() -> Result<EventFd> {
        // SAFETY: plain system call.
        OwnFd::new(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).map(EventFd)
    }

    /// Makes the eventfd readable. A failure does not matter: an eventfd whose counter is full is
    /// readable, too.
    pub fn raise(&self) {
        let one = 1u64;
        // A direct system call, which is not a cancellation point: locks may be held.
        // SAFETY: 8 bytes at `one` are readable.
        unsafe { libc::syscall(libc::SYS_write, self.0.as_raw_fd(), &raw const one, size_of::<u64>()) };
    }

    /// Makes the eventfd unreadable.
    pub fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: 8 bytes at `count` are writable.
        unsafe { libc::syscall(libc::SYS_read, self.0.as_raw_fd(), &raw mut count, size_of::<u64>()) };
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// poll(2) with a resolution of nanoseconds; `None` waits without limit. Returns the number of
/// ready descriptors. A cancellation point unless the timeout is zero.
pub fn poll(fds: &mut [pollfd], timeout: Option<Duration>) -> Result<usize> {
    let waits = timeout != Some(Duration::ZERO);
    let timeout = timeout.map(timespec);
    let time = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the slice is readable and writable, `time` is readable or NULL; the signal mask is
    // not changed.
    let mut poll = || unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, time, ptr::null()) };
    let ready = if waits { cancel::sleep(poll) } else { poll() };
    usize::try_from(ready).map_err(|_| Errno::last())
}

/// An epoll instance of the kernel.
#[derive(Debug)]
pub struct KernelEpoll(OwnFd);

impl KernelEpoll {
    /// Calls epoll_create1(2).
    pub fn new(flags: c_int) -> Result<KernelEpoll> {
        // SAFETY: no pointers. A direct system call: librspreload.so interposes the C library's
        // function.
        OwnFd::new(unsafe { libc::syscall(libc::SYS_epoll_create1, flags) } as c_int).map(KernelEpoll)
    }

    /// Duplicates the descriptor.
    pub fn duplicate(&self) -> Result<KernelEpoll> {
        OwnFd::duplicate(self.0.as_raw_fd()).map(KernelEpoll)
    }

    /// epoll_ctl(2).
    pub fn control(&self, op: c_int, fd: c_int, event: Option<epoll_event>) -> Result<()> {
        epoll_ctl(self.0.as_raw_fd(), op, fd, event)
    }

    /// epoll_wait(2). Returns the number of events written to the front of `events`. A cancellation
    /// point unless the timeout is zero.
    pub fn wait(&self, events: &mut [MaybeUninit<epoll_event>], timeout: Option<Duration>) -> Result<usize> {
        let room = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
        let time = millis(timeout);
        // SAFETY: the slice is writable for its length.
        let mut wait = || unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr().cast(), room, time) };
        let count = if time == 0 { wait() } else { cancel::sleep(wait) };
        usize::try_from(count).map_err(|_| Errno::last())
    }
}

/// epoll_ctl(2), as a direct system call: librspreload.so interposes the C library's function, and
/// would wait for itself while it changes the socket behind `fd`.
pub fn epoll_ctl(epfd: RawFd, op: c_int, fd: RawFd, mut event: Option<epoll_event>) -> Result<()> {
    let event = event.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: `event` is readable or NULL.
    let result = unsafe { libc::syscall(libc::SYS_epoll_ctl, epfd, op, fd, event) };
    if result == 0 { Ok(()) } else { Err(Errno::last()) }
}

impl AsRawFd for KernelEpoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// fcntl(2) with a command that gets or sets flags. Returns the result of the system call.
pub fn fcntl(fd: RawFd, command: c_int, argument: c_int) -> Result<c_int> {
    debug_assert!(matches!(command, libc::F_GETFL | libc::F_SETFL | libc::F_GETFD | libc::F_SETFD));
    // SAFETY: a command without a pointer.
    match unsafe { libc::fcntl(fd, command, argument) } {
        -1 => Err(Errno::last()),
        flags => Ok(flags),
    }
}

/// Sets or clears O_NONBLOCK of a descriptor that has no other status flag.
pub fn set_nonblocking(fd: RawFd, on: bool) -> Result<()> {
    fcntl(fd, libc::F_SETFL, if on { libc::O_NONBLOCK } else { 0 }).map(drop)
}

/// Returns the number of CPUs that the process may run on; determined at the first call.
#[inline]
pub fn cpus() -> c_int {
    static COUNT: AtomicI32 = AtomicI32::new(0);
    let known = COUNT.load(Ordering::Relaxed);
    if known != 0 { known } else { count_cpus(&COUNT) }
}

#[cold]
fn count_cpus(known: &AtomicI32) -> c_int {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: `set` is writable, and all zeros are a valid value.
    let count = unsafe {
        let failed = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) != 0;
        if failed { 1 } else { libc::CPU_COUNT(set.assume_init_ref()).max(1) }
    };
    known.store(count, Ordering::Relaxed);
    count
}

/// Pauses a polling thread for about the duration of a poll, so that other threads can take the
/// lock and the CQ that polling uses.
pub fn spin() {
    const ROUNDS: u32 = 8;
    for _ in 0..ROUNDS {
        std::hint::spin_loop();
    }
}

/// Returns the soft limit on the number of descriptors (RLIMIT_NOFILE).
pub fn descriptor_limit() -> usize {
    usize::try_from(base::raised_limit::limits().rlim_cur).unwrap_or(usize::MAX)
}

/// Returns the time until `deadline`; `None` without a deadline. Fails with `ETIMEDOUT` once the
/// deadline has passed.
#[inline]
pub fn left(deadline: Option<Instant>) -> Result<Option<Duration>> {
    match Deadline(deadline).left() {
        Some(Duration::ZERO) => Err(Errno::ETIMEDOUT),
        left => Ok(left),
    }
}

/// Returns the timeout for poll(2) in milliseconds, rounded up so that it never ends early; -1 (no
/// timeout) for `None`.
pub fn poll_time(deadline: Option<Instant>) -> c_int {
    millis(Deadline(deadline).left())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(fd: RawFd) -> bool {
        let mut fds = [pollfd { fd, events: libc::POLLIN, revents: 0 }];
        poll(&mut fds, Some(Duration::ZERO)).unwrap() == 1
    }

    #[test]
    fn an_eventfd_is_readable_between_raise_and_clear() {
        let event = EventFd::new().unwrap();
        assert!(!readable(event.as_raw_fd()));
        event.raise();
        event.raise();
        assert!(readable(event.as_raw_fd()));
        event.clear();
        event.clear();
        assert!(!readable(event.as_raw_fd()));
    }

    #[test]
    fn deadline_beyond_the_clock_is_none() {
        let poll_timeout = |deadline: Deadline| left(deadline.instant()).map(millis);
        assert_eq!(poll_timeout(Deadline::after(Some(Duration::MAX))), Ok(-1));
        assert!(poll_timeout(Deadline::after(Some(Duration::from_nanos(1)))).unwrap_or(0) <= 1);
    }

    #[test]
    fn deadlines() {
        assert!(Deadline::after_ms(0).passed());
        assert!(!Deadline::after_ms(-1).passed());
        assert_eq!(Deadline::after_ms(-1).left(), None);
        assert!(Deadline::after_ms(c_int::MAX).left() > Some(Duration::from_secs(1_000_000)));
        assert_eq!(Deadline::after(Some(Duration::MAX)).left(), None);
    }

    #[test]
    fn a_wait_is_never_shorter_than_asked() {
        let epoll = KernelEpoll::new(0).unwrap();
        let (start, time) = (Instant::now(), Duration::from_nanos(1_000_001));
        assert_eq!(epoll.wait(&mut [MaybeUninit::uninit()], Some(time)), Ok(0));
        assert!(start.elapsed() >= time);
    }

    #[test]
    fn there_is_a_cpu() {
        assert!(cpus() >= 1 && cpus() == cpus());
        assert!(descriptor_limit() > 0);
    }
}
