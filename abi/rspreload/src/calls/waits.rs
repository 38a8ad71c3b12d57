//! poll and select.

use core::ffi::{c_int, c_short, c_ulong};
use core::slice;

use libc::{EAGAIN, EBADF, FD_SETSIZE, POLLIN, POLLOUT, POLLPRI, fd_set, nfds_t, pollfd, timeval};

use crate::dispatch::Fd;
use crate::time::Deadline;
use crate::{auto, errno, fds, fork, next_symbol, rsocket_abi, scratch, table};

// What poll and select have in common: which numbers librdmacm polls for the program's.

/// Whether `fd` is or may become an rsocket.
pub fn concerns(fd: c_int) -> bool {
    match Fd::of(fd) {
        Fd::Rsocket(_) | Fd::Pending(_) | Fd::Connecting(_) => true,
        Fd::Known(entry) => {
            auto::before_wait(entry);
            false
        }
        Fd::Kernel | Fd::Epoll(_) => false,
    }
}

/// The number that librdmacm polls for `fd`, without settling what a pending socket is.
pub fn inner_number(fd: c_int) -> c_int {
    match Fd::of(fd) {
        Fd::Rsocket(entry) => entry.inner,
        Fd::Connecting(entry) => auto::slots::done(entry),
        Fd::Kernel | Fd::Pending(_) | Fd::Epoll(_) | Fd::Known(_) => fd,
    }
}

/// The number that librdmacm polls for `fd`, before a wait: settles a pending socket.
pub fn begin_wait(fd: c_int) -> c_int {
    match Fd::of(fd) {
        Fd::Rsocket(entry) => entry.inner,
        // SAFETY: `entry` is what the table has for the program's number.
        Fd::Pending(entry) => unsafe { fork::resolve_for_poll(fd, entry).unwrap_or(fd) },
        Fd::Connecting(entry) => auto::slots::done(entry),
        Fd::Kernel | Fd::Epoll(_) | Fd::Known(_) => fd,
    }
}

/// Whether `fd`, for which `revents` of `number` was reported, was in fork mode and has become
/// another kind of socket by it, or while it was waited for.
pub fn settled(fd: c_int, number: c_int, revents: c_short) -> bool {
    match Fd::of(fd) {
        // It was a socket whose attempt was under way.
        Fd::Rsocket(entry) if auto::is_auto(entry) => number != entry.inner,
        // The latter has begun to be forwarded.
        Fd::Kernel | Fd::Known(_) if number != fd => true,
        Fd::Connecting(_) => true,
        Fd::Rsocket(_) => number == fd,
        // SAFETY: `fd` is a descriptor of the program.
        Fd::Pending(_) => unsafe { fork::after_poll(fd, revents) },
        Fd::Kernel | Fd::Epoll(_) | Fd::Known(_) => false,
    }
}

// poll: librdmacm's if there is an rsocket among the numbers. It takes both kinds.

/// poll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // The kernel rejects what is no list.
    if !table::any() || fds.is_null() || count > c_int::MAX as nfds_t {
        // SAFETY: the C contract.
        return unsafe { next_symbol::poll(fds, count, timeout) };
    }
    // SAFETY: the C contract: `count` structures, which no other thread changes meanwhile.
    unsafe {
        let list = slice::from_raw_parts_mut(fds, count as usize);
        if list.iter().any(|fd| concerns(fd.fd)) {
            let result = scratch::with::<pollfd, _>(list.len(), |inner| poll_both(list, inner, timeout));
            return result.unwrap_or_else(errno::fail);
        }
        next_symbol::poll(fds, count, timeout)
    }
}

/// What librdmacm polls for `fd`.
fn asked(fd: &pollfd) -> pollfd {
    while let Fd::Connecting(entry) = Fd::of(fd.fd) {
        let done = auto::slots::done(entry);
        if done >= 0 {
            return pollfd { fd: done, events: POLLIN, revents: 0 };
        }
        // The attempt has ended since its entry was read, and its slot has another one.
    }
    pollfd { fd: begin_wait(fd.fd), events: fd.events, revents: 0 }
}

/// Polls by librdmacm. `inner` has the length of `list`.
fn poll_both(list: &mut [pollfd], inner: &mut [pollfd], timeout: c_int) -> c_int {
    let deadline = Deadline::after(timeout);
    let mut left = timeout;
    loop {
        for (inner, fd) in inner.iter_mut().zip(&*list) {
            *inner = asked(fd);
        }
        // SAFETY: `inner.len()` structures at `inner` are writable.
        let result = unsafe { rsocket_abi::rpoll(inner.as_mut_ptr(), inner.len() as nfds_t, left) };
        if result < 0 {
            return result;
        }
        if result == 0 || !changed(list, inner) {
            let mut count = 0;
            for (fd, inner) in list.iter_mut().zip(&*inner) {
                fd.revents = inner.revents;
                count += c_int::from(fd.revents != 0);
            }
            return count;
        }
        left = deadline.left();
    }
}

/// Whether reported events concern sockets that have become another kind by them.
fn changed(list: &[pollfd], inner: &[pollfd]) -> bool {
    let ready = list.iter().zip(inner).filter(|(_, inner)| inner.revents != 0);
    ready.fold(false, |changed, (fd, inner)| settled(fd.fd, inner.fd, inner.revents) || changed)
}

// select: librdmacm's, with sets of inner numbers, if there is an rsocket in the program's sets.
//
// Inner numbers may be larger than FD_SETSIZE where the program's are not. librdmacm's rselect
// takes sets of any size, as the kernel does.

/// A set of numbers is an array of these (`__fd_mask` of sys/select.h).
type Word = c_ulong;
const BITS: usize = Word::BITS as usize;

/// select(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let count = programs_limit(count);
    // The kernel rejects a negative count: no set is read here.
    let limit = if table::any() { usize::try_from(count).unwrap_or(0) } else { 0 };
    // SAFETY: the C contract: a set has as many bits as there are numbers, or is NULL.
    let mut sets = [read, write, except].map(|set| unsafe { words_of(set, limit) });
    if sets.iter().any(|set| numbers_in(set, limit).any(concerns)) {
        return select_both(limit, &mut sets, timeout);
    }
    // SAFETY: the C contract.
    unsafe { next_symbol::select(count, read, write, except, timeout) }
}

/// The count of select(2), but not beyond the program's numbers if it is larger than an fd_set.
pub fn programs_limit(count: c_int) -> c_int {
    if count > FD_SETSIZE as c_int && table::any() { fds::programs_count(count) } else { count }
}

/// Whether there is a number in the sets that is or may become an rsocket.
///
/// # Safety
/// The sets are null or have `count` bits, which no other thread changes meanwhile.
pub unsafe fn concern(count: c_int, sets: [*mut fd_set; 3]) -> bool {
    let limit = usize::try_from(count).unwrap_or(0);
    // SAFETY: as for this function.
    sets.into_iter().any(|set| numbers_in(unsafe { words_of(set, limit) }, limit).any(concerns))
}

/// # Safety
/// The set is null or has `limit` bits, of which there is no other reference.
unsafe fn words_of<'a>(set: *mut fd_set, limit: usize) -> &'a mut [Word] {
    // SAFETY: as for this function.
    unsafe { if set.is_null() { &mut [] } else { slice::from_raw_parts_mut(set.cast(), limit.div_ceil(BITS)) } }
}

/// The numbers below `limit` in a set.
fn numbers_in(set: &[Word], limit: usize) -> impl Iterator<Item = c_int> {
    let words = set.iter().enumerate();
    let numbers = words.flat_map(|(index, &word)| {
        let mut left = word;
        core::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(index * BITS + bit)
        })
    });
    // The limit was an int.
    numbers.take_while(move |&number| number < limit).map(|number| number as c_int)
}

fn has(set: &[Word], number: c_int) -> bool {
    let number = number as usize;
    set.get(number / BITS).is_some_and(|word| word >> (number % BITS) & 1 != 0)
}

fn put(set: &mut [Word], number: c_int) {
    let number = number as usize;
    if let Some(word) = set.get_mut(number / BITS) {
        *word |= 1 << (number % BITS);
    }
}

/// The events of poll(2) for the three sets.
const ASKED: [c_short; 3] = [POLLIN, POLLOUT, POLLPRI];

/// Waits by librdmacm. When a reported socket has become an rsocket by the event, it waits again,
/// for what is left in `timeout`.
fn select_both(limit: usize, sets: &mut [&mut [Word]; 3], timeout: *mut timeval) -> c_int {
    loop {
        // Pending sockets that are to become rsockets do so here, so that their numbers stay the
        // same below.
        let numbers = sets.iter().filter_map(|set| numbers_in(set, limit).map(begin_wait).max());
        let count = match numbers.max() {
            Some(table::CLOSING) => return errno::fail(EBADF),
            highest => highest.map_or(0, |highest| highest as usize + 1),
        };
        let words = count.div_ceil(BITS);
        let result = scratch::with::<Word, _>(3 * words, |inner| {
            let (read, rest) = inner.split_at_mut(words);
            let (write, except) = rest.split_at_mut(words);
            select_inner(limit, sets, count, &mut [read, write, except], timeout)
        });
        match result {
            Ok(Some(result)) => return result,
            Ok(None) => {}
            Err(why) => return errno::fail(why),
        }
    }
}

/// Waits once, with the sets of inner numbers, which are empty at first. Returns `None` if the wait
/// is to be repeated.
fn select_inner(
    limit: usize,
    sets: &mut [&mut [Word]; 3],
    count: usize,
    inner: &mut [&mut [Word]; 3],
    timeout: *mut timeval,
) -> Option<c_int> {
    // Before their numbers are taken: any of them may begin to be forwarded.
    let rsockets = rsockets_in(limit, sets);
    for (index, set) in sets.iter().enumerate() {
        for fd in numbers_in(set, limit) {
            let number = inner_number(fd);
            if number as usize >= count {
                // Decided after the numbers were counted.
                return None;
            }
            put(inner[inner_set_of(fd, index)], number);
        }
    }
    let [read, write, except] = inner.each_mut().map(|set| set.as_mut_ptr().cast::<fd_set>());
    // SAFETY: the sets have at least `count` bits, and `timeout` is the caller's, reduced to what
    // is left.
    let result = unsafe { rsocket_abi::rselect(count as c_int, read, write, except, timeout) };
    if result > 0 {
        let mut again = false;
        for ((index, set), events) in sets.iter().enumerate().zip(ASKED) {
            for fd in numbers_in(set, limit) {
                let has_ended = matches!(Fd::of(fd), Fd::Connecting(_)) && has(inner[0], inner_number(fd));
                if has_ended || has(inner[0], fd) || is_ready(inner, index, fd) {
                    let number = if has(inner[0], fd) { fd } else { inner_number(fd) };
                    again |= settled(fd, number, events);
                }
            }
        }
        if again {
            return None;
        }
    }
    if result < 0 {
        // An rsocket began to be forwarded.
        let is_forwarded = match errno::get() {
            EAGAIN => true,
            EBADF => rsockets_in(limit, sets) < rsockets,
            _ => false,
        };
        return (!is_forwarded).then_some(result);
    }
    let something = |index: usize, set: &[Word]| numbers_in(set, limit).any(|fd| is_ready(inner, index, fd));
    if result > 0 && !sets.iter().enumerate().any(|(index, set)| something(index, set)) {
        return None;
    }
    Some(sets.iter_mut().enumerate().map(|(index, set)| store(set, limit, inner, index)).sum())
}

/// How often the numbers of rsockets are in the sets.
fn rsockets_in(limit: usize, sets: &[&mut [Word]; 3]) -> usize {
    let numbers = sets.iter().flat_map(|set| numbers_in(set, limit));
    numbers.filter(|&fd| matches!(Fd::of(fd), Fd::Rsocket(_))).count()
}

/// Leaves the ready numbers in `set`, and returns their count. Two numbers of one rsocket both
/// count.
fn store(set: &mut [Word], limit: usize, inner: &[&mut [Word]; 3], which: usize) -> c_int {
    let mut ready = 0;
    for (index, word) in set.iter_mut().enumerate() {
        let asked = [*word];
        *word = 0;
        for bit in numbers_in(&asked, limit - index * BITS) {
            if is_ready(inner, which, (index * BITS) as c_int + bit) {
                *word |= 1 << bit;
                ready += 1;
            }
        }
    }
    ready
}

/// The inner set for a number of set number `index`. The end of an attempt is an event to read.
fn inner_set_of(fd: c_int, index: usize) -> usize {
    if matches!(Fd::of(fd), Fd::Connecting(_)) { 0 } else { index }
}

/// Whether `fd` is ready for set number `index`, by the inner sets.
fn is_ready(inner: &[&mut [Word]; 3], index: usize, fd: c_int) -> bool {
    has(inner[inner_set_of(fd, index)], inner_number(fd)) && !matches!(Fd::of(fd), Fd::Connecting(_))
}

#[cfg(test)]
mod tests_of_select {
    use super::*;

    #[test]
    fn numbers_of_a_set() {
        let mut set = [0; 2];
        [0, 5, 63, 64, 127, 128, 1000].into_iter().for_each(|number| put(&mut set, number));
        assert_eq!(set, [1 | 1 << 5 | 1 << 63, 1 | 1 << 63]);
        for (limit, expected) in [(128, &[0, 5, 63, 64, 127][..]), (127, &[0, 5, 63, 64]), (6, &[0, 5]), (0, &[])] {
            assert_eq!(numbers_in(&set, limit).collect::<Vec<_>>(), expected);
        }
        assert!(has(&set, 63) && has(&set, 64) && !has(&set, 62) && !has(&set, 65) && !has(&set, 128));
    }
}
