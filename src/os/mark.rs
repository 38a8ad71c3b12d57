//! The mark of a thread that is in a call of the library.
//!
//! A signal handler that has interrupted a call of its thread must not make another one: the call
//! may hold a lock or be in the middle of a change. So a call marks its thread, and fails with
//! `EAGAIN` if the thread is marked already. A call that sleeps holds no lock, and the mark is clear
//! meanwhile ([`asleep`]).
//!
//! The mark is the address of a frame of the call. A handler may leave the call by siglongjmp(3): the
//! thread's next call from that frame or an outer one takes the mark over.

use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::os::thread_word::{Word, Words, read, write};

/// The mark of a thread that forks, whose handlers of fork() hold locks.
const FORKS: usize = 1;

/// Exists while a call runs.
#[derive(Debug)]
pub struct Mark(Words);

impl Mark {
    /// Marks the thread. Returns `None` in a signal handler that has interrupted a call.
    #[expect(clippy::inline_always, reason = "a few instructions of each call")]
    #[inline(always)]
    pub fn set() -> Option<Mark> {
        let frame = 0_u8;
        let (words, here) = (Words::here(), ptr::from_ref(&frame).addr());
        if words.read(Word::Mark) != 0 && !is_stale(words.read(Word::Mark), here) {
            return None;
        }
        words.write(Word::Mark, here);
        // A handler sees the mark before what the call does.
        compiler_fence(Ordering::SeqCst);
        Some(Mark(words))
    }
}

impl Drop for Mark {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.0.write(Word::Mark, 0);
    }
}

/// Before fork(): marks the thread, unless a handler of one of its calls forks.
pub fn begin_fork() {
    if read(Word::Mark) == 0 {
        write(Word::Mark, FORKS);
    }
}

/// After fork(), in the parent or the child: what [`begin_fork`] did.
pub fn end_fork() {
    if read(Word::Mark) == FORKS {
        write(Word::Mark, 0);
    }
}

/// Runs `call`, which sleeps and holds no lock.
#[inline]
pub fn asleep<T>(call: impl FnOnce() -> T) -> T {
    let words = Words::here();
    let before = words.read(Word::Mark);
    words.write(Word::Mark, 0);
    let result = call();
    words.write(Word::Mark, before);
    result
}

/// Returns whether the frame at the address `mark` does not exist any more: the caller's, at `here`,
/// is further out on the same stack. A handler on an alternate stack is never further out.
#[cold]
#[inline(never)]
fn is_stale(mark: usize, here: usize) -> bool {
    let mut stack = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: `stack` is writable.
    let failed = unsafe { libc::sigaltstack(ptr::null(), &raw mut stack) } != 0;
    mark != FORKS && here >= mark && !failed && stack.ss_flags & libc::SS_ONSTACK == 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn is_set() -> bool {
        read(Word::Mark) != 0
    }

    #[inline(never)]
    fn interrupt() -> bool {
        Mark::set().is_none()
    }

    #[test]
    fn no_call_is_made_in_another_one() {
        let mark = Mark::set();
        assert!(mark.is_some() && is_set() && interrupt());
        assert!(std::thread::scope(|scope| scope.spawn(|| !is_set() && !interrupt()).join().unwrap()));
        asleep(|| assert!(!is_set() && !interrupt()));
        assert!(interrupt());
        drop(mark);
        assert!(!is_set() && !interrupt());
    }

    /// A handler leaves the call of an inner frame.
    #[inline(never)]
    fn leave_marked() {
        std::mem::forget(Mark::set());
    }

    #[test]
    fn a_call_that_was_left_does_not_stay_marked() {
        leave_marked();
        assert!(is_set());
        assert!(Mark::set().is_some());
        assert!(!is_set());
    }
}
