//! select: with an rsocket in the sets, librdmacm's, in sets of inner numbers.
//!
//! Those may be larger than FD_SETSIZE though the program's are not; librdmacm's rselect takes sets of any size, as
//! the kernel does.

use core::ffi::{c_int, c_short, c_ulong};
use core::slice;

use libc::{EBADF, FD_SETSIZE, POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, fd_set, timeval};

use crate::fork::remote;
use crate::poll::{Pieces, concerns, polled, relayed, settled};
use crate::table::{self, Kind};
use crate::time::Deadline;
use crate::{errno, fds, fork, r, real, scratch};

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
    let count = if count > FD_SETSIZE as c_int && table::any() { count.min(fds::programs_count()) } else { count };
    // The kernel refuses a negative count, which is as good as none here.
    let limit = if table::any() { usize::try_from(count).unwrap_or(0) } else { 0 };
    // SAFETY: the C contract: a set has as many bits as there are numbers, or is NULL.
    let set = |set: *mut fd_set| unsafe {
        if set.is_null() { &mut [][..] } else { slice::from_raw_parts_mut(set.cast::<Word>(), limit.div_ceil(BITS)) }
    };
    let mut sets = [set(read), set(write), set(except)];
    if sets.iter().any(|set| numbers_in(set, limit).any(concerns)) {
        return select_both(limit, &mut sets, timeout);
    }
    // SAFETY: the C contract.
    unsafe { real::select(count, read, write, except, timeout) }
}

/// The numbers below `limit` in a set.
fn numbers_in(set: &[Word], limit: usize) -> impl Iterator<Item = c_int> {
    let places = set.iter().enumerate();
    let numbers = places.flat_map(|(place, &word)| {
        let mut left = word;
        core::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(place * BITS + bit)
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

/// What poll calls what the sets ask for.
const ASKED: [c_short; 3] = [POLLIN, POLLOUT, POLLPRI];

/// Waits for what the sets ask, again when a socket in fork mode became an rsocket by what was told of it: `timeout`
/// is then what is left.
fn select_both(limit: usize, sets: &mut [&mut [Word]; 3], timeout: *mut timeval) -> c_int {
    let mut pieces = Pieces::new();
    loop {
        each_relayed(limit, sets, remote::enter);
        // Sockets in fork mode that are to become rsockets do so here: their numbers are the same in what follows.
        let numbers =
            sets.iter().filter_map(|set| numbers_in(set, limit).map(|fd| polled(fd, asked_of(sets, fd))).max());
        let count = match numbers.max() {
            Some(table::CLOSING) => {
                each_relayed(limit, sets, remote::leave);
                return errno::fail(EBADF);
            }
            highest => highest.map_or(0, |highest| highest as usize + 1),
        };
        let words = count.div_ceil(BITS);
        let result = scratch::with::<Word, _>(3 * words, |inner| {
            let (read, rest) = inner.split_at_mut(words);
            let (write, except) = rest.split_at_mut(words);
            select_inner(limit, sets, count, &mut [read, write, except], timeout, &mut pieces)
        });
        match result {
            Ok(Some(result)) => return result,
            Ok(None) => {}
            Err(why) => {
                each_relayed(limit, sets, remote::leave);
                return errno::fail(why);
            }
        }
    }
}

/// By sets of inner numbers, which are empty yet; none when to be tried again.
fn select_inner(
    limit: usize,
    sets: &mut [&mut [Word]; 3],
    count: usize,
    inner: &mut [&mut [Word]; 3],
    timeout: *mut timeval,
    pieces: &mut Pieces,
) -> Option<c_int> {
    for (place, set) in sets.iter().enumerate() {
        for fd in numbers_in(set, limit) {
            let number = number_of(fd);
            if fork::is_undecided(fd) {
                if pieces.watch() {
                    // Of its TCP connection: what the peer says, and its end.
                    put(inner[0], fd);
                }
            } else if (number as usize) < count {
                put(inner[place_of(fd, place)], number);
            } else {
                // Decided since the numbers were counted.
                pieces.watch();
            }
        }
    }
    let [read, write, except] = inner.each_mut().map(|set| set.as_mut_ptr().cast::<fd_set>());
    // SAFETY: sets of so many bits; the time-out is the caller's.
    let (result, undecided) = unsafe { select_piece(count as c_int, [read, write, except], timeout, pieces) };
    each_relayed(limit, sets, remote::leave);
    if result > 0 {
        let mut again = false;
        for ((place, set), events) in sets.iter().enumerate().zip(ASKED) {
            for fd in numbers_in(set, limit) {
                if has(inner[0], fd) || is_told(inner, place, fd) {
                    let number = if has(inner[0], fd) { fd } else { number_of(fd) };
                    again |= settled(fd, number, events, pieces);
                }
            }
        }
        if again {
            return None;
        }
    }
    if result == 0 && undecided {
        return None;
    }
    if result < 0 {
        return Some(result);
    }
    // What is told of another process's rsocket may have been asked for by another thread.
    let something = |place: usize, set: &[Word]| numbers_in(set, limit).any(|fd| is_told(inner, place, fd));
    if result > 0 && !sets.iter().enumerate().any(|(place, set)| something(place, set)) {
        return None;
    }
    Some(sets.iter_mut().enumerate().map(|(place, set)| store(set, limit, inner, place)).sum())
}

/// rselect for a piece of the time-out, of which it leaves what is left. Returns whether it was
/// one, and more is left, too.
///
/// # Safety
/// Of sets of `count` bits, and a time-out or NULL.
unsafe fn select_piece(
    count: c_int,
    [read, write, except]: [*mut fd_set; 3],
    timeout: *mut timeval,
    pieces: &mut Pieces,
) -> (c_int, bool) {
    // SAFETY: as for this function.
    let left = unsafe { timeout.as_ref() }.map_or(-1, milliseconds);
    let (piece, undecided) = pieces.next(left);
    if !undecided || piece == left {
        // SAFETY: as for this function.
        return (unsafe { r::rselect(count, read, write, except, timeout) }, false);
    }
    let deadline = Deadline::after(left);
    let mut short = timeval { tv_sec: 0, tv_usec: libc::suseconds_t::from(piece) * 1000 };
    // SAFETY: as for this function.
    let result = unsafe { r::rselect(count, read, write, except, &raw mut short) };
    // SAFETY: as for this function.
    if let Some(timeout) = unsafe { timeout.as_mut() } {
        let left = deadline.left();
        *timeout = timeval { tv_sec: (left / 1000).into(), tv_usec: libc::suseconds_t::from(left % 1000) * 1000 };
    }
    (result, true)
}

/// A time-out, rounded up; what is no time the kernel refuses.
fn milliseconds(time: &timeval) -> c_int {
    let rounded = time.tv_sec.saturating_mul(1000).saturating_add((time.tv_usec.saturating_add(999)) / 1000);
    c_int::try_from(rounded).unwrap_or(c_int::MAX).max(0)
}

/// Calls `call` for each set's numbers of other processes' rsockets, with what the set asks.
fn each_relayed(limit: usize, sets: &[&mut [Word]; 3], call: fn(c_int, c_short)) {
    for (set, events) in sets.iter().zip(ASKED) {
        numbers_in(set, limit).filter(|&fd| relayed(fd)).for_each(|fd| call(number_of(fd), events));
    }
}

/// Leaves in `set` the numbers that are told, and counts them: two numbers for one rsocket both count.
fn store(set: &mut [Word], limit: usize, inner: &[&mut [Word]; 3], which: usize) -> c_int {
    let mut told = 0;
    for (place, word) in set.iter_mut().enumerate() {
        let asked = [*word];
        *word = 0;
        for bit in numbers_in(&asked, limit - place * BITS) {
            if is_told(inner, which, (place * BITS) as c_int + bit) {
                *word |= 1 << bit;
                told += 1;
            }
        }
    }
    told
}

/// All that the sets ask of `fd`.
fn asked_of(sets: &[&mut [Word]; 3], fd: c_int) -> c_short {
    sets.iter().zip(ASKED).filter(|(set, _)| has(set, fd)).fold(0, |all, (_, events)| all | events)
}

/// The number for `fd` in the sets of inner numbers.
fn number_of(fd: c_int) -> c_int {
    match table::get(fd) {
        Some(entry) if matches!(entry.kind, Kind::Socket | Kind::Relayed) => entry.inner,
        _ => fd,
    }
}

/// The inner set for a number of the set `place`: whatever is told of another process's rsocket is a message to read.
fn place_of(fd: c_int, place: usize) -> usize {
    if relayed(fd) { 0 } else { place }
}

/// Whether the inner sets tell what the set `place` asks of `fd`.
fn is_told(inner: &[&mut [Word]; 3], place: usize, fd: c_int) -> bool {
    let told = has(inner[place_of(fd, place)], number_of(fd)) && !fork::is_undecided(fd);
    told && (!relayed(fd) || remote::told(number_of(fd)) & (ASKED[place] | POLLERR | POLLHUP) != 0)
}
