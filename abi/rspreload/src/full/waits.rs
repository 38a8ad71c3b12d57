//! Waiting with another signal mask: ppoll, pselect, epoll_pwait, epoll_pwait2.
//!
//! The kernel changes the mask and waits in one step, which serves epoll. In the others the signals
//! that the wait lets through stay blocked, and a signalfd(2) among the descriptors reports that
//! one of them is pending: then the mask is changed for a moment, in which the handlers run, and
//! the call fails with EINTR. No signal is lost between changing the mask and waiting.

use core::ffi::c_int;
use core::mem;
use core::ptr;
use core::slice;

use libc::{
    EINTR, EINVAL, POLLIN, SFD_CLOEXEC, SFD_NONBLOCK, SIG_BLOCK, SIG_SETMASK, epoll_event, fd_set, nfds_t, pollfd,
    sigset_t, timespec,
};

use crate::calls;
use crate::calls::waits::Sets;
use crate::thread::with_cleanup;
use crate::time::{Deadline, milliseconds};
use crate::{epoll, errno, fds, memory, next_symbol, open_fds, table};

/// The highest signal is 64.
const SIGNALS: core::ops::RangeInclusive<c_int> = 1..=64;

/// Reads a time-out: -1 for none. Fails with `EINVAL` as the kernel does.
///
/// # Safety
/// `timeout` is null or readable.
unsafe fn checked_milliseconds(timeout: *const timespec) -> Result<c_int, c_int> {
    // SAFETY: null or readable: guaranteed by the caller.
    match unsafe { timeout.as_ref() } {
        None => Ok(-1),
        Some(time) if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) => Err(EINVAL),
        Some(time) => Ok(milliseconds(time.tv_sec, time.tv_nsec)),
    }
}

/// The result of a wait, and whether the signalfd was ready.
struct Waited {
    result: c_int,
    signalled: bool,
}

/// Calls `wait` with a signalfd, or -1, and the milliseconds that it may take, as long as it
/// returns because of a signal that does not end it.
///
/// # Safety
/// `mask` is null or readable.
unsafe fn with_mask(mask: *const sigset_t, end: &Deadline, mut wait: impl FnMut(c_int, c_int) -> Waited) -> c_int {
    if mask.is_null() {
        return wait(-1, end.left()).result;
    }
    // SAFETY: `mask` is readable: guaranteed by the caller; the others are live variables.
    unsafe {
        let mut old = mem::zeroed::<sigset_t>();
        libc::pthread_sigmask(SIG_BLOCK, mask, &raw mut old);
        let let_through = difference(&old, &*mask);
        let result = match let_through {
            None => wait(-1, end.left()).result,
            Some(set) => wait_for_signals(&set, mask, end, wait),
        };
        errno::keeping(|| libc::pthread_sigmask(SIG_SETMASK, &raw const old, ptr::null_mut()));
        result
    }
}

/// Returns the signals of `blocked` that are not in `mask`, if there are any.
fn difference(blocked: &sigset_t, mask: &sigset_t) -> Option<sigset_t> {
    // SAFETY: live sets, and numbers of signals; those that the C library keeps for itself are in
    // neither set.
    unsafe {
        let mut set = mem::zeroed::<sigset_t>();
        libc::sigemptyset(&raw mut set);
        let mut any = false;
        for signal in SIGNALS {
            if libc::sigismember(blocked, signal) == 1 && libc::sigismember(mask, signal) == 0 {
                any |= libc::sigaddset(&raw mut set, signal) == 0;
            }
        }
        any.then_some(set)
    }
}

/// # Safety
/// `mask` is readable.
unsafe fn wait_for_signals(
    set: &sigset_t,
    mask: *const sigset_t,
    end: &Deadline,
    mut wait: impl FnMut(c_int, c_int) -> Waited,
) -> c_int {
    // SAFETY: a live set.
    let make = || unsafe { libc::signalfd(-1, set, SFD_CLOEXEC | SFD_NONBLOCK) };
    let is_full = |fd: &c_int| *fd < 0 && errno::get() == libc::EMFILE;
    // The kernel needs no descriptor for such a call: the program may have all that it may have.
    let fd = errno::keeping(|| Some(make()).filter(|fd| !is_full(fd)).unwrap_or_else(|| open_fds::beyond_limit(make)));
    if fds::on_new_fd(fd) < 0 {
        return errno::fail(libc::ENOMEM);
    }
    let close = || {
        errno::keeping(|| next_symbol::close(fd));
    };
    let result = with_cleanup(close, || {
        loop {
            let Waited { result, signalled } = wait(fd, end.left());
            if result != 0 || !signalled {
                break result;
            }
            // SAFETY: `mask` is readable: guaranteed by the caller; the set is live.
            if unsafe { deliver(set, mask) } {
                break errno::fail(EINTR);
            }
        }
    });
    close();
    result
}

/// The signals of the set that are pending.
fn pending(set: &sigset_t) -> impl Iterator<Item = c_int> {
    // SAFETY: a live set, and all zeros are one.
    let pending = unsafe {
        let mut pending = mem::zeroed::<sigset_t>();
        libc::sigpending(&raw mut pending);
        pending
    };
    let is_in = |set: &sigset_t, signal| {
        // SAFETY: a live set.
        unsafe { libc::sigismember(set, signal) == 1 }
    };
    SIGNALS.filter(move |&signal| is_in(&pending, signal) && is_in(set, signal))
}

/// Lets the pending signals of the set through. Returns whether one of them has a handler (or ends
/// the process).
///
/// # Safety
/// `mask` is readable.
unsafe fn deliver(set: &sigset_t, mask: *const sigset_t) -> bool {
    let interrupts = pending(set).any(has_effect);
    // SAFETY: live sets; `mask` is readable: guaranteed by the caller.
    unsafe {
        let mut waiting = mem::zeroed::<sigset_t>();
        libc::pthread_sigmask(SIG_SETMASK, mask, &raw mut waiting);
        libc::pthread_sigmask(SIG_SETMASK, &raw const waiting, ptr::null_mut());
    }
    interrupts
}

/// Whether the signal is not ignored, by request or by default.
fn has_effect(signal: c_int) -> bool {
    // SAFETY: a live structure.
    unsafe {
        let mut action = mem::zeroed::<libc::sigaction>();
        if libc::sigaction(signal, ptr::null(), &raw mut action) != 0 {
            return true;
        }
        match action.sa_sigaction {
            libc::SIG_IGN => false,
            libc::SIG_DFL => !matches!(signal, libc::SIGCHLD | libc::SIGCONT | libc::SIGURG | libc::SIGWINCH),
            _ => true,
        }
    }
}

exports_and_next! {
    /// ppoll(2).
    fn ppoll(list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        if !table::any() || list.is_null() || count >= c_int::MAX as nfds_t {
            return next::ppoll(list, count, timeout, mask);
        }
        // No other thread changes the list meanwhile.
        let list = slice::from_raw_parts_mut(list, count as usize);
        if list.iter().all(|fd| table::get(fd.fd).is_none()) {
            return next::ppoll(list.as_mut_ptr(), count, timeout, mask);
        }
        match checked_milliseconds(timeout) {
            Ok(timeout) => poll_with_mask(list, &Deadline::after(timeout), mask),
            Err(why) => errno::fail(why),
        }
    }

    /// pselect(2).
    fn pselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        let count = calls::waits::programs_limit(count);
        let Some(mut sets) = Sets::with_rsockets(count, [read, write, except]) else {
            return next::pselect(count, read, write, except, timeout, mask);
        };
        match checked_milliseconds(timeout).map(Deadline::after) {
            Ok(end) => sets.wait(|list| poll_with_mask(list, &end, mask)),
            Err(why) => errno::fail(why),
        }
    }

    /// epoll_pwait(2).
    fn epoll_pwait(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: c_int,
        mask: *const sigset_t,
    ) -> c_int {
        // The kernel waits for rsockets, too: they make the instance readable.
        epoll::wait_by(|left| next::epoll_pwait(epfd, events, max, left, mask), events, max, timeout)
    }

    /// epoll_pwait2(2), with milliseconds.
    fn epoll_pwait2(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        if !table::any() {
            return next::epoll_pwait2(epfd, events, max, timeout, mask);
        }
        match checked_milliseconds(timeout) {
            Ok(timeout) => epoll_pwait(epfd, events, max, timeout, mask),
            Err(why) => errno::fail(why),
        }
    }
}

/// Polls with another signal mask.
///
/// # Safety
/// `mask` is null or readable.
unsafe fn poll_with_mask(list: &mut [pollfd], end: &Deadline, mask: *const sigset_t) -> c_int {
    let wait = |signals, left| {
        let waited = memory::with::<pollfd, _>(list.len() + 1, |inner| poll_with(list, inner, signals, left));
        waited.unwrap_or_else(|why| Waited { result: errno::fail(why), signalled: false })
    };
    // SAFETY: as for this function.
    unsafe { with_mask(mask, end, wait) }
}

/// Polls the list and the signalfd. `inner` has room for both.
fn poll_with(list: &mut [pollfd], inner: &mut [pollfd], signals: c_int, timeout: c_int) -> Waited {
    let Some((last, copies)) = inner.split_last_mut() else { return Waited { result: 0, signalled: false } };
    copies.copy_from_slice(list);
    *last = pollfd { fd: signals, events: POLLIN, revents: 0 };
    let result = calls::waits::poll_list(inner, timeout);
    let signalled = inner.last().is_some_and(|last| last.revents != 0);
    if result >= 0 {
        for (fd, copy) in list.iter_mut().zip(&*inner) {
            fd.revents = copy.revents;
        }
    }
    Waited { result: if signalled && result > 0 { result - 1 } else { result }, signalled }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use super::*;

    static DELIVERED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn on_signal(_: c_int) {
        DELIVERED.fetch_add(1, SeqCst);
    }

    #[test]
    fn a_wait_reports_signals_that_its_mask_lets_through() {
        let before = DELIVERED.load(SeqCst);
        // SAFETY: live sets and a handler of this type.
        unsafe {
            let (mut set, mut old) = (mem::zeroed::<sigset_t>(), mem::zeroed::<sigset_t>());
            libc::signal(libc::SIGUSR2, on_signal as *const () as usize);
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGUSR2);
            libc::pthread_sigmask(SIG_BLOCK, &raw const set, &raw mut old);
            libc::raise(libc::SIGUSR2);
            let (idle, ready) = (libc::eventfd(0, libc::EFD_CLOEXEC), libc::eventfd(1, libc::EFD_CLOEXEC));
            let mut list = [pollfd { fd: idle, events: POLLIN, revents: 0 }];
            // What is ready comes before a signal.
            list[0].fd = ready;
            assert_eq!(poll_with_mask(&mut list, &Deadline::after(-1), &raw const old), 1);
            list[0].fd = idle;
            assert_eq!(poll_with_mask(&mut list, &Deadline::after(-1), &raw const old), -1);
            assert_eq!((errno::get(), DELIVERED.load(SeqCst)), (EINTR, before + 1));
            assert_eq!(poll_with_mask(&mut list, &Deadline::after(1), &raw const old), 0);
            libc::close(idle);
            libc::close(ready);
            libc::pthread_sigmask(SIG_SETMASK, &raw const old, ptr::null_mut());
        }
    }
}
