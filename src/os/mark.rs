//! The mark of a thread that is in a call of the library, and the thread-local words that hold this
//! mark and the [cancellation](crate::os::cancel) setting.
//!
//! A signal handler that has interrupted a call of its thread must not make another call: the first
//! call may hold a lock or be in the middle of a change. So a call marks its thread, and fails with
//! `EAGAIN` if the thread is marked already. A call that sleeps holds no lock, and clears the mark
//! meanwhile ([`asleep`]).
//!
//! The mark is the address of a frame of the call. A handler may leave the call by siglongjmp(3),
//! and the mark stays set: the thread's next call from the same frame or an outer one replaces it.
//!
//! The words are in the static block of thread-local data. In the usual model of a shared library,
//! a function returns the address of such a word, which costs more than all accesses of a call to
//! the words. Here the offset from the thread pointer is determined when the library is loaded.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

/// The mark while the thread forks: the library's fork handlers hold locks meanwhile.
const FORKS: usize = 1;

/// The thread's mark, which is set until this value is dropped.
#[derive(Debug)]
pub struct Mark(Words);

impl Mark {
    /// Marks the thread. Returns `None` in a signal handler that has interrupted a call.
    #[inline(always)] // a few instructions of each call
    pub fn set() -> Option<Mark> {
        let frame = MaybeUninit::<u8>::uninit();
        let (words, here) = (Words::here(), frame.as_ptr().addr());
        if words.read(Word::Mark) != 0 && !is_stale(words.read(Word::Mark), here) {
            return None;
        }
        words.write(Word::Mark, here);
        // A signal handler sees the mark before any effect of the call.
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

/// Marks the thread before fork(), unless it is marked already because a signal handler forks in
/// the middle of a call.
pub fn begin_fork() {
    if read(Word::Mark) == 0 {
        Words::here().write(Word::Mark, FORKS);
    }
}

/// Removes the mark of [`begin_fork`] after fork(), in the parent or the child.
pub fn end_fork() {
    if read(Word::Mark) == FORKS {
        Words::here().write(Word::Mark, 0);
    }
}

/// Runs `call`, which sleeps and holds no lock, without the mark.
#[inline]
pub fn asleep<T>(call: impl FnOnce() -> T) -> T {
    let words = Words::here();
    let before = words.read(Word::Mark);
    words.write(Word::Mark, 0);
    let result = call();
    words.write(Word::Mark, before);
    result
}

/// Returns whether the frame at the address `mark` no longer exists, because the caller's frame, at
/// `here`, is further out on the same stack. On an alternate signal stack this is unknown, and the
/// mark counts as valid.
#[cold]
#[inline(never)]
fn is_stale(mark: usize, here: usize) -> bool {
    let mut stack = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: `stack` is writable.
    let failed = unsafe { libc::sigaltstack(ptr::null(), &raw mut stack) } != 0;
    mark != FORKS && here >= mark && !failed && stack.ss_flags & libc::SS_ONSTACK == 0
}

/// One of the thread's words.
#[derive(Clone, Copy)]
pub(crate) enum Word {
    /// The mark, see [`Mark`]: an address, [`FORKS`], or 0.
    Mark,
    /// The setting of [cancellation](crate::os::cancel).
    Cancel,
}

/// The address of the calling thread's words, for several accesses after one look-up. Contains a
/// pointer, so it is neither `Send` nor `Sync` and stays in its thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words(*mut usize);

impl Words {
    #[inline]
    pub fn here() -> Words {
        Words(words::address())
    }

    /// Returns the address of the words, which is different in each thread of the process.
    #[inline]
    pub fn address(self) -> usize {
        self.0.addr()
    }

    #[inline]
    pub fn read(self, word: Word) -> usize {
        // SAFETY: one of the two words of this thread. Only this thread and its signal handlers
        // access it.
        unsafe { self.0.add(word as usize).read_volatile() }
    }

    #[inline]
    pub fn write(self, word: Word, value: usize) {
        // SAFETY: one of the two words of this thread. Only this thread and its signal handlers
        // access it.
        unsafe { self.0.add(word as usize).write_volatile(value) };
    }
}

/// Returns a word of the calling thread.
#[inline]
pub(crate) fn read(word: Word) -> usize {
    Words::here().read(word)
}

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(all(test, loom))))]
mod words {
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tbss.rdmacm_words, \"awT\", %nobits",
        ".globl rdmacm_words",
        ".hidden rdmacm_words",
        ".type rdmacm_words, %object",
        ".size rdmacm_words, 16",
        ".p2align 3",
        "rdmacm_words:",
        ".zero 16",
        ".popsection",
    );

    #[inline]
    pub fn address() -> *mut usize {
        let words: *mut usize;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: only reads the thread pointer, and the offset of the words from it.
        unsafe {
            asm!(
                "mov {words}, qword ptr fs:[0]",
                "add {words}, qword ptr [rip + rdmacm_words@GOTTPOFF]",
                words = out(reg) words,
                options(nostack, nomem, pure),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: only reads the thread pointer, and the offset of the words from it.
        unsafe {
            asm!(
                "mrs {words}, tpidr_el0",
                "adrp {distance}, :gottprel:rdmacm_words",
                "ldr {distance}, [{distance}, :gottprel_lo12:rdmacm_words]",
                "add {words}, {words}, {distance}",
                words = out(reg) words,
                distance = out(reg) _,
                options(nostack, nomem, pure),
            );
        }
        words
    }
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(all(test, loom)))))]
mod words {
    use std::cell::Cell;

    std::thread_local! {
        static WORDS: [Cell<usize>; 2] = const { [const { Cell::new(0) }; 2] };
    }

    #[inline]
    pub fn address() -> *mut usize {
        WORDS.with(|words| words.as_ptr().cast::<usize>().cast_mut())
    }
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

    /// Leaves the thread marked, like a handler that leaves the call of an inner frame.
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
