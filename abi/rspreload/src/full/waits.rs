//! Waiting with another signal mask: ppoll, pselect, epoll_pwait, epoll_pwait2.
//!
//! The kernel changes the mask and waits in one step, which serves epoll. In the others the signals
//! that the wait lets through stay blocked, and a signalfd(2) among the descriptors reports that
//! one of them is pending: then the mask is changed for a moment, in which the handlers run, and
//! the call fails with EINTR. No signal is lost between changing the mask and waiting.

use core::ffi::{c_int, c_ulong};
use core::mem;
use core::ptr;
use core::slice;

use libc::{
    EINTR, EINVAL, POLLIN, SFD_CLOEXEC, SFD_NONBLOCK, SIG_BLOCK, SIG_SETMASK, epoll_event, fd_set, nfds_t, pollfd,
    sigset_t, timespec, timeval,
};

use super::next;
use crate::calls;
use crate::time::{Deadline, milliseconds};
use crate::{cancel, epoll, errno, fds, next_symbol, scratch, table};

/// The bits of a word of a set for select.
const BITS: usize = c_ulong::BITS as usize;

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
            Some(set) => wait_for_signals(&set, mask, end, &mut wait),
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
    wait: &mut impl FnMut(c_int, c_int) -> Waited,
) -> c_int {
    let before = errno::get();
    // SAFETY: a live set.
    let fd = fds::on_new_fd(unsafe { libc::signalfd(-1, set, SFD_CLOEXEC | SFD_NONBLOCK) });
    if fd < 0 {
        errno::set(before);
        // SAFETY: as for this function.
        return unsafe { wait_in_pieces(set, mask, end, wait) };
    }
    let close = || {
        errno::keeping(|| next_symbol::close(fd));
    };
    let result = cancel::with_cleanup(close, || {
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

/// How often a wait without a signalfd looks for signals, in milliseconds.
const PIECE: c_int = 10;

/// Waits without a signalfd, for which there is no free descriptor: the kernel needs none for such
/// a call.
///
/// # Safety
/// As for [`wait_for_signals`].
unsafe fn wait_in_pieces(
    set: &sigset_t,
    mask: *const sigset_t,
    end: &Deadline,
    wait: &mut impl FnMut(c_int, c_int) -> Waited,
) -> c_int {
    loop {
        let left = end.left();
        let is_pending = pending(set).next().is_some();
        // The kernel, too, reports what is ready before a signal.
        let piece = if is_pending { 0 } else { left.cast_unsigned().min(PIECE.cast_unsigned()).cast_signed() };
        let result = wait(-1, piece).result;
        if result != 0 || piece == left && !is_pending {
            return result;
        }
        // SAFETY: `mask` is readable: guaranteed by the caller; the set is live.
        if is_pending && unsafe { deliver(set, mask) } {
            return errno::fail(EINTR);
        }
        if is_pending && left == 0 {
            return 0;
        }
    }
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

/// ppoll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ppoll(
    list: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if !table::any() || list.is_null() || count >= c_int::MAX as nfds_t {
        // SAFETY: the C contract.
        return unsafe { next::ppoll(list, count, timeout, mask) };
    }
    // SAFETY: the C contract: `count` structures, which no other thread changes meanwhile.
    unsafe {
        let list = slice::from_raw_parts_mut(list, count as usize);
        if list.iter().all(|fd| table::get(fd.fd).is_none()) {
            return next::ppoll(list.as_mut_ptr(), count, timeout, mask);
        }
        let end = match checked_milliseconds(timeout) {
            Ok(timeout) => Deadline::after(timeout),
            Err(why) => return errno::fail(why),
        };
        with_mask(mask, &end, |signals, left| {
            let waited = scratch::with::<pollfd, _>(list.len() + 1, |inner| poll_with(list, inner, signals, left));
            waited.unwrap_or_else(|why| Waited { result: errno::fail(why), signalled: false })
        })
    }
}

/// Polls the list and the signalfd. `inner` has room for both.
fn poll_with(list: &mut [pollfd], inner: &mut [pollfd], signals: c_int, timeout: c_int) -> Waited {
    let Some((last, copies)) = inner.split_last_mut() else { return Waited { result: 0, signalled: false } };
    copies.copy_from_slice(list);
    *last = pollfd { fd: signals, events: POLLIN, revents: 0 };
    // SAFETY: `inner.len()` structures are writable.
    let result = unsafe { calls::waits::poll(inner.as_mut_ptr(), inner.len() as nfds_t, timeout) };
    let signalled = inner.last().is_some_and(|last| last.revents != 0);
    if result >= 0 {
        for (fd, copy) in list.iter_mut().zip(&*inner) {
            fd.revents = copy.revents;
        }
    }
    Waited { result: if signalled && result > 0 { result - 1 } else { result }, signalled }
}

/// pselect(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if !table::any() || count < 0 {
        // SAFETY: the C contract.
        return unsafe { next::pselect(count, read, write, except, timeout, mask) };
    }
    let count = calls::waits::programs_limit(count);
    // SAFETY: the C contract.
    unsafe {
        if !calls::waits::concern(count, [read, write, except]) {
            return next::pselect(count, read, write, except, timeout, mask);
        }
        let end = match checked_milliseconds(timeout) {
            Ok(timeout) => Deadline::after(timeout),
            Err(why) => return errno::fail(why),
        };
        let sets = [read, write, except];
        let result = with_mask(mask, &end, |signals, left| select_with(count, sets, signals, left));
        if result == 0 {
            let words = (count as usize).div_ceil(BITS);
            sets.iter().filter(|set| !set.is_null()).for_each(|set| set.cast::<c_ulong>().write_bytes(0, words));
        }
        result
    }
}

/// Selects by copies of the sets and the signalfd, if there is one. The sets of the program may be
/// longer or shorter than an fd_set, and the signalfd may be beyond them. They are changed if a
/// number is ready.
///
/// # Safety
/// The sets are null or have `count` bits.
unsafe fn select_with(count: c_int, sets: [*mut fd_set; 3], signals: c_int, left: c_int) -> Waited {
    let mut timeout = timeval { tv_sec: (left / 1000).into(), tv_usec: libc::suseconds_t::from(left % 1000) * 1000 };
    let timeout = if left < 0 { ptr::null_mut() } else { &raw mut timeout };
    let limit = count.max(signals + 1);
    let words = (limit as usize).div_ceil(BITS);
    let waited = scratch::with::<c_ulong, _>(3 * words, |copies| {
        let (read, rest) = copies.split_at_mut(words);
        let (write, except) = rest.split_at_mut(words);
        // SAFETY: as for this function; the copies have `limit` bits.
        unsafe { select_copies((count, sets), (limit, [read, write, except]), signals, timeout) }
    });
    waited.unwrap_or_else(|why| Waited { result: errno::fail(why), signalled: false })
}

/// Selects by copies of the program's sets, in which there is room for the signalfd.
///
/// # Safety
/// The sets are null or have `count` bits, the copies have `limit` bits and are empty.
unsafe fn select_copies(
    (count, sets): (c_int, [*mut fd_set; 3]),
    (limit, mut copies): (c_int, [&mut [c_ulong]; 3]),
    signals: c_int,
    timeout: *mut timeval,
) -> Waited {
    // The kernel, too, reads and writes whole words.
    let words = (count as usize).div_ceil(BITS);
    let (word, bit) = match usize::try_from(signals) {
        Ok(signals) => (signals / BITS, 1 << (signals % BITS)),
        Err(_) => (0, 0),
    };
    // SAFETY: as for this function.
    unsafe {
        for (copy, set) in copies.iter_mut().zip(sets).filter(|(_, set)| !set.is_null()) {
            ptr::copy_nonoverlapping(set.cast::<c_ulong>(), copy.as_mut_ptr(), words);
        }
        if let Some(word) = copies[0].get_mut(word) {
            *word |= bit;
        }
        let [read, write, except] = copies.each_mut().map(|copy| copy.as_mut_ptr().cast::<fd_set>());
        let result = calls::waits::select(limit, read, write, except, timeout);
        let mut signalled = false;
        if let Some(word) = copies[0].get_mut(word).filter(|_| result > 0) {
            signalled = *word & bit != 0;
            *word &= !bit;
        }
        let result = if signalled { result - 1 } else { result };
        if result > 0 {
            for (copy, set) in copies.iter().zip(sets).filter(|(_, set)| !set.is_null()) {
                ptr::copy_nonoverlapping(copy.as_ptr(), set.cast(), words);
            }
        }
        Waited { result, signalled }
    }
}

/// epoll_pwait(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // The kernel waits for rsockets, too: they make the instance readable.
    // SAFETY: the C contract.
    unsafe { epoll::wait_by(|left| next::epoll_pwait(epfd, events, max, left, mask), events, max, timeout) }
}

/// epoll_pwait2(2), with milliseconds.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the C contract.
    unsafe {
        if !table::any() {
            return next::epoll_pwait2(epfd, events, max, timeout, mask);
        }
        match checked_milliseconds(timeout) {
            Ok(timeout) => epoll_pwait(epfd, events, max, timeout, mask),
            Err(why) => errno::fail(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use super::*;

    static DELIVERED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn on_signal(_: c_int) {
        DELIVERED.fetch_add(1, SeqCst);
    }

    /// Makes SIGUSR2 pending and blocked, and selects with a mask that lets it through.
    fn is_delivered(count: c_int, signals: c_int) -> bool {
        let before = DELIVERED.load(SeqCst);
        // SAFETY: live sets and a handler of this type.
        let waited = unsafe {
            let (mut set, mut old) = (mem::zeroed::<sigset_t>(), mem::zeroed::<sigset_t>());
            libc::signal(libc::SIGUSR2, on_signal as *const () as usize);
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGUSR2);
            libc::pthread_sigmask(SIG_BLOCK, &raw const set, &raw mut old);
            libc::raise(libc::SIGUSR2);
            let first = libc::signalfd(-1, &raw const set, SFD_CLOEXEC | SFD_NONBLOCK);
            let fd = libc::fcntl(first, libc::F_DUPFD_CLOEXEC, signals);
            let mut words = vec![0 as c_ulong; (count as usize).div_ceil(BITS)];
            let read = words.as_mut_ptr().cast::<fd_set>();
            let waited = select_with(count, [read, ptr::null_mut(), ptr::null_mut()], fd, 1000);
            libc::close(first);
            libc::close(fd);
            libc::pthread_sigmask(SIG_SETMASK, &raw const old, ptr::null_mut());
            waited
        };
        waited.signalled && waited.result == 0 && DELIVERED.load(SeqCst) == before + 1
    }

    #[test]
    fn select_notices_signals_whatever_the_numbers() {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a live structure.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            limit.rlim_cur = limit.rlim_max.min(limit.rlim_cur.max(4096));
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
        for (count, signals) in [(1, 3), (libc::FD_SETSIZE as c_int, 3), (1, 1024), (1024, 1500), (3000, 3), (0, 1023)]
        {
            assert!(is_delivered(count, signals), "{count} {signals}");
        }
    }

    #[test]
    fn waits_without_a_signalfd_let_signals_through() {
        // SAFETY: live sets and a handler of this type.
        unsafe {
            let (mut set, mut old) = (mem::zeroed::<sigset_t>(), mem::zeroed::<sigset_t>());
            libc::signal(libc::SIGUSR1, on_signal as *const () as usize);
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGUSR1);
            libc::sigaddset(&raw mut set, libc::SIGURG);
            libc::pthread_sigmask(SIG_BLOCK, &raw const set, &raw mut old);
            let waited = |ready: c_int, end: c_int| {
                let mut pieces = 0;
                let result = wait_in_pieces(&set, &raw const old, &Deadline::after(end), &mut |fd, left| {
                    assert!(fd == -1 && (0..=PIECE).contains(&left));
                    libc::poll(ptr::null_mut(), 0, left);
                    pieces += 1;
                    Waited { result: if pieces == ready { 1 } else { 0 }, signalled: false }
                });
                (result, pieces)
            };
            assert_eq!(waited(3, -1), (1, 3));
            assert_eq!(waited(1, 0), (1, 1));
            assert_eq!(waited(-1, 0), (0, 1));
            let (result, pieces) = waited(-1, 3 * PIECE);
            assert!(result == 0 && pieces >= 2, "{result} {pieces}");
            libc::raise(libc::SIGUSR1);
            assert_eq!(waited(1, -1), (1, 1));
            assert_eq!((waited(-1, -1), errno::get()), ((-1, 1), EINTR));
            // It has no effect, and the wait goes on.
            libc::raise(libc::SIGURG);
            assert_eq!(waited(3, -1), (1, 3));
            libc::pthread_sigmask(SIG_SETMASK, &raw const old, ptr::null_mut());
        }
    }

    #[test]
    fn select_keeps_the_programs_sets() {
        let (pipe, _end) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = pipe.as_raw_fd();
        let mut words = [0 as c_ulong; 1024 / BITS];
        words[fd as usize / BITS] |= 1 << (fd as usize % BITS);
        let write = words.as_mut_ptr().cast::<fd_set>();
        // SAFETY: a set of that many bits, and a descriptor that is not ready.
        let waited = unsafe {
            let idle = libc::eventfd(0, libc::EFD_CLOEXEC);
            let sets = [ptr::null_mut(), write, ptr::null_mut()];
            let waited = select_with(1024, sets, idle, 1000);
            libc::close(idle);
            waited
        };
        assert_eq!((waited.result, waited.signalled), (1, false));
        assert_eq!(words.iter().map(|word| word.count_ones()).sum::<u32>(), 1);
    }
}
