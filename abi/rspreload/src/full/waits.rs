//! Waiting with another signal mask: ppoll, pselect, epoll_pwait, epoll_pwait2.
//!
//! For epoll the kernel changes the mask and waits in one step. In the other calls the signals that
//! the new mask permits stay blocked, and a signalfd(2) among the descriptors reports a pending
//! signal. Then the mask is changed briefly, so that the handlers run, and the call fails with
//! EINTR. So no signal is lost between changing the mask and waiting.

use core::ffi::c_int;
use core::slice;

use libc::{
    EINTR, EINVAL, POLLIN, SFD_CLOEXEC, SFD_NONBLOCK, SIG_BLOCK, SIG_SETMASK, epoll_event, fd_set, nfds_t, pollfd,
    sigset_t, timespec,
};

use crate::calls;
use crate::calls::waits::Sets;
use crate::memory::zero;
use crate::process::{Deadline, milliseconds};
use crate::thread::with_cleanup;
use crate::{epoll, errno, fds, memory, next_symbol, open_fds, table};

/// All signals of Linux.
const SIGNALS: core::ops::RangeInclusive<c_int> = 1..=64;

/// Time between two checks for pending signals if there is no signalfd, in milliseconds.
const LOOK_EVERY: c_int = 20;

/// Returns a time-out in milliseconds, -1 for NULL. Fails with `EINVAL` as the kernel does.
///
/// # Safety
/// `timeout` is NULL or readable.
unsafe fn checked_milliseconds(timeout: *const timespec) -> Result<c_int, c_int> {
    // SAFETY: `timeout` is NULL or readable: guaranteed by the caller.
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

/// Returns the signals of a set as bits.
fn bits_of(set: &sigset_t) -> u64 {
    // SAFETY: `set` is a valid set, and `signal` is in the range of signals.
    SIGNALS.filter(|&signal| unsafe { libc::sigismember(set, signal) == 1 }).fold(0, |bits, signal| bits | bit(signal))
}

fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Changes the signal mask. Returns the previous mask.
fn set_mask(how: c_int, mask: &sigset_t) -> sigset_t {
    let mut before = zero::<sigset_t>();
    // SAFETY: `mask` is a valid set, and `before` is writable.
    unsafe { libc::pthread_sigmask(how, mask, &raw mut before) };
    before
}

/// Calls `wait` with a signalfd (or -1) and the milliseconds left, and calls it again after each
/// signal that does not end the wait. Returns the result of `wait`, or -1 with `EINTR`.
fn with_mask(mask: Option<&sigset_t>, end: &Deadline, mut wait: impl FnMut(c_int, c_int) -> Waited) -> c_int {
    let Some(mask) = mask else { return wait(-1, end.left()).result };
    let old = set_mask(SIG_BLOCK, mask);
    let result = match bits_of(&old) & !bits_of(mask) {
        0 => wait(-1, end.left()).result,
        signals => wait_for_signals(signals, mask, end, wait),
    };
    errno::keeping(|| set_mask(SIG_SETMASK, &old));
    result
}

/// Calls `wait` until the wait has a result, the deadline passes, or one of `signals` interrupts
/// the call. `signals` are blocked, and permitted by `mask`.
fn wait_for_signals(
    signals: u64,
    mask: &sigset_t,
    end: &Deadline,
    mut wait: impl FnMut(c_int, c_int) -> Waited,
) -> c_int {
    let mut set = zero::<sigset_t>();
    // SAFETY: `set` is a valid set, and `signal` is in the range of signals.
    SIGNALS.filter(|&signal| signals & bit(signal) != 0).for_each(|signal| unsafe {
        libc::sigaddset(&raw mut set, signal);
    });
    // SAFETY: `set` is a valid set.
    let make = || unsafe { libc::signalfd(-1, &raw const set, SFD_CLOEXEC | SFD_NONBLOCK) };
    // The kernel's call needs no descriptor. So this call must also work if the program has no free
    // descriptor.
    let fd = errno::keeping(|| open_fds::make(make));
    fds::on_new_fd(fd);
    // Without a signalfd (hard limit, no memory) check for pending signals at intervals.
    let piece = if fd < 0 { LOOK_EVERY } else { c_int::MAX };
    let close = || {
        errno::keeping(|| next_symbol::close(fd));
    };
    let result = with_cleanup(close, || {
        loop {
            let left = end.left();
            let is_piece = left < 0 && fd < 0 || left > piece;
            let Waited { result, signalled } = wait(fd, if is_piece { piece } else { left });
            if result != 0 || !signalled && fd >= 0 {
                break result;
            }
            if deliver(signals, mask) {
                break errno::fail(EINTR);
            }
            if fd < 0 && !is_piece {
                break 0;
            }
        }
    });
    close();
    result
}

/// Delivers the pending signals. Returns true if a delivered signal interrupts the call.
fn deliver(signals: u64, mask: &sigset_t) -> bool {
    let mut pending = zero::<sigset_t>();
    // SAFETY: `pending` is writable.
    unsafe { libc::sigpending(&raw mut pending) };
    let pending = bits_of(&pending) & signals;
    let interrupts = SIGNALS.filter(|&signal| pending & bit(signal) != 0).any(has_effect);
    let waiting = set_mask(SIG_SETMASK, mask);
    set_mask(SIG_SETMASK, &waiting);
    interrupts
}

/// Whether a signal has a handler, or a default action other than to be ignored.
fn has_effect(signal: c_int) -> bool {
    let mut action = zero::<libc::sigaction>();
    // SAFETY: `action` is writable, and NULL leaves the current action alone.
    if unsafe { libc::sigaction(signal, core::ptr::null(), &raw mut action) } != 0 {
        return true;
    }
    match action.sa_sigaction {
        libc::SIG_IGN => false,
        libc::SIG_DFL => !matches!(signal, libc::SIGCHLD | libc::SIGCONT | libc::SIGURG | libc::SIGWINCH),
        _ => true,
    }
}

exports_and_next! {
    /// ppoll(2).
    fn ppoll(list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        if !table::any() || list.is_null() || count >= c_int::MAX as nfds_t {
            return next::ppoll(list, count, timeout, mask);
        }
        // The program guarantees that the list is valid, and not used by others meanwhile.
        let list = slice::from_raw_parts_mut(list, count as usize);
        if list.iter().all(|fd| table::get(fd.fd).is_none()) {
            return next::ppoll(list.as_mut_ptr(), count, timeout, mask);
        }
        match checked_milliseconds(timeout) {
            Ok(timeout) => poll_with_mask(list, &Deadline::after(timeout), mask.as_ref()),
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
            Ok(end) => sets.wait(|list| poll_with_mask(list, &end, mask.as_ref())),
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
        // The kernel's wait covers rsockets, too: a ready rsocket makes its side, a member of
        // `epfd`, readable.
        epoll::wait_by(|left| next::epoll_pwait(epfd, events, max, left, mask), events, max, timeout)
    }

    /// epoll_pwait2(2). With rsockets, the time-out is rounded up to milliseconds.
    fn epoll_pwait2(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        let time = match checked_milliseconds(timeout) {
            Ok(time) => time,
            Err(why) => return errno::fail(why),
        };
        let wait = |left| {
            if table::any() {
                next::epoll_pwait(epfd, events, max, left, mask)
            } else {
                next::epoll_pwait2(epfd, events, max, timeout, mask)
            }
        };
        epoll::wait_by(wait, events, max, time)
    }
}

/// poll(2) with another signal mask.
fn poll_with_mask(list: &mut [pollfd], end: &Deadline, mask: Option<&sigset_t>) -> c_int {
    with_mask(mask, end, |signals, left| {
        let waited = memory::with::<pollfd, _>(list.len() + 1, |polled| poll_with(list, polled, signals, left));
        waited.unwrap_or_else(|why| Waited { result: errno::fail(why), signalled: false })
    })
}

/// Polls the list and the signalfd `signals`. `polled` has space for both.
fn poll_with(list: &mut [pollfd], polled: &mut [pollfd], signals: c_int, timeout: c_int) -> Waited {
    let Some((last, copies)) = polled.split_last_mut() else { return Waited { result: 0, signalled: false } };
    copies.copy_from_slice(list);
    *last = pollfd { fd: signals, events: POLLIN, revents: 0 };
    let result = calls::waits::poll_list(polled, timeout);
    let signalled = polled.last().is_some_and(|last| last.revents != 0);
    if result >= 0 {
        for (fd, copy) in list.iter_mut().zip(&*polled) {
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
        // SAFETY: the sets are valid, and `on_signal` is a handler of the right type.
        unsafe {
            let (mut set, mut old) = (core::mem::zeroed::<sigset_t>(), core::mem::zeroed::<sigset_t>());
            libc::signal(libc::SIGUSR2, on_signal as *const () as usize);
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGUSR2);
            libc::pthread_sigmask(SIG_BLOCK, &raw const set, &raw mut old);
            libc::raise(libc::SIGUSR2);
            let (idle, ready) = (libc::eventfd(0, libc::EFD_CLOEXEC), libc::eventfd(1, libc::EFD_CLOEXEC));
            let mut list = [pollfd { fd: idle, events: POLLIN, revents: 0 }];
            // A ready descriptor takes precedence over a signal.
            list[0].fd = ready;
            assert_eq!(poll_with_mask(&mut list, &Deadline::after(-1), Some(&old)), 1);
            list[0].fd = idle;
            assert_eq!(poll_with_mask(&mut list, &Deadline::after(-1), Some(&old)), -1);
            assert_eq!((errno::get(), DELIVERED.load(SeqCst)), (EINTR, before + 1));
            assert_eq!(poll_with_mask(&mut list, &Deadline::after(1), Some(&old)), 0);
            libc::close(idle);
            libc::close(ready);
            set_mask(SIG_SETMASK, &old);
        }
    }
}
