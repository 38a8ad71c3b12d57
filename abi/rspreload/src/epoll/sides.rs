//! The sides of an epoll instance: one for each index of its rsockets' numbers, so nearly always
//! one, for the index 0.
//!
//! They form a list that begins in the instance's table entry. Like the table it consists of words
//! by number, which are never freed: a look-up takes no lock.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use libc::EBADF;

use crate::table::Growing;

/// By number of a side: its index in the upper half, the next side in the lower half.
static LIST: Growing<AtomicU64> = Growing::new();

/// Instead of a next side: the last one; or the instance is being closed, and none can follow.
const LAST: u32 = u32::MAX;
const CLOSED: u32 = u32::MAX - 1;
/// The word of a side that is being closed: it has no index.
const NO_SIDE: u64 = u64::MAX << 32 | CLOSED as u64;

fn next(word: u64) -> Option<c_int> {
    match word as u32 {
        LAST | CLOSED => None,
        side => Some(side as c_int),
    }
}

fn index(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Makes a new side the only one of its list: `ENOMEM`.
pub fn prepare(side: c_int, index: u32) -> Result<(), c_int> {
    LIST.get_or_grow(side)?.store(u64::from(index) << 32 | u64::from(LAST), Ordering::Release);
    Ok(())
}

/// The side for an index.
pub fn find(first: c_int, wanted: u32) -> Option<c_int> {
    let mut side = first;
    loop {
        let word = LIST.get(side)?.load(Ordering::Acquire);
        if index(word) == wanted {
            return Some(side);
        }
        side = next(word)?;
    }
}

/// Appends a prepared side. Returns the side with the same index instead if there is one.
pub fn append(first: c_int, new: c_int) -> Result<c_int, c_int> {
    let wanted = index(LIST.get(new).ok_or(EBADF)?.load(Ordering::Acquire));
    let mut side = first;
    loop {
        let link = LIST.get(side).ok_or(EBADF)?;
        let word = link.load(Ordering::Acquire);
        if index(word) == wanted {
            return Ok(side);
        }
        match word as u32 {
            CLOSED => return Err(EBADF),
            LAST => {
                let longer = u64::from(index(word)) << 32 | u64::from(new as u32);
                if link.compare_exchange(word, longer, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                    return Ok(new);
                }
            }
            further => side = further as c_int,
        }
    }
}

/// Takes the list apart. Nothing can be appended any more.
pub fn take(first: c_int, mut each: impl FnMut(c_int)) {
    let mut side = Some(first);
    while let Some(now) = side {
        side = LIST.get(now).and_then(|link| next(link.swap(NO_SIDE, Ordering::AcqRel)));
        each(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Numbers no test opens: the list is one for all tests of this program.
    const FAR: c_int = 2_500_000;

    #[test]
    fn there_is_one_side_for_each_index() {
        let sides = [FAR, FAR + 1, FAR + 2, FAR + 3];
        for (side, index) in sides.into_iter().zip([5, 0, 7, 0]) {
            prepare(side, index).unwrap();
        }
        assert_eq!(append(FAR, FAR + 1), Ok(FAR + 1));
        assert_eq!(append(FAR, FAR + 2), Ok(FAR + 2));
        assert_eq!(append(FAR, FAR + 3), Ok(FAR + 1));
        assert_eq!([5, 0, 7, 1].map(|index| find(FAR, index)), [Some(FAR), Some(FAR + 1), Some(FAR + 2), None]);
        let mut taken = Vec::new();
        take(FAR, |side| taken.push(side));
        assert_eq!(taken, [FAR, FAR + 1, FAR + 2]);
        assert_eq!(append(FAR, FAR + 3), Err(EBADF));
    }

    #[test]
    fn of_threads_that_append_the_same_index_one_wins() {
        for round in 0..100 {
            let first = FAR + 100 + 10 * round;
            (0..5).for_each(|index| prepare(first + index, u32::from(index > 0)).unwrap());
            let results: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (1..5).map(|index| scope.spawn(move || append(first, first + index))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(results.iter().all(|result| *result == Ok(find(first, 1).unwrap())), "{results:?}");
        }
    }
}
