//! The named semaphore `/rsocket_fork`, by which processes take turns to listen, also with the
//! reference's.
//!
//! It may be unavailable (another user's, no /dev/shm), and a process that is killed during its
//! turn never releases it. Neither stops a handshake: it proceeds without a turn, and at worst the
//! address is in use.

use core::ffi::{CStr, c_int};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::{CLOCK_REALTIME, O_CREAT, SEM_FAILED, sem_t, timespec};

use crate::errno;

const NAME: &CStr = c"/rsocket_fork";

/// Opened once: semaphores stay valid in the children of fork(2).
static SEMAPHORE: AtomicPtr<sem_t> = AtomicPtr::new(ptr::null_mut());

/// Whether this process has a turn, which it returns when it ends.
static HELD: AtomicBool = AtomicBool::new(false);

/// A turn, until it is dropped.
pub struct Turn {
    semaphore: *mut sem_t,
}

impl Turn {
    /// Waits up to `milliseconds` for the turn.
    pub fn within(milliseconds: c_int) -> Option<Turn> {
        Turn::of(open(&SEMAPHORE, NAME), milliseconds).map(Turn::hold)
    }

    /// Takes the turn without waiting for its holder, which has ended or is so slow that its
    /// address will be in use. Dropping the result gives the turn back on behalf of that process.
    pub fn forced() -> Turn {
        Turn { semaphore: open(&SEMAPHORE, NAME) }.hold()
    }

    fn hold(self) -> Turn {
        static WATCHED: AtomicBool = AtomicBool::new(false);
        HELD.store(true, Ordering::SeqCst);
        if !WATCHED.swap(true, Ordering::SeqCst) {
            // SAFETY: a function of this library, which is never unloaded. Without memory for it a
            // turn may be lost, which others repair when their time-outs end.
            unsafe { libc::atexit(at_exit) };
        }
        self
    }

    fn of(semaphore: *mut sem_t, milliseconds: c_int) -> Option<Turn> {
        (semaphore.is_null() || wait(semaphore, milliseconds)).then(|| Turn { semaphore })
    }
}

/// Waits up to `milliseconds`. Returns whether the semaphore was taken.
fn wait(semaphore: *mut sem_t, milliseconds: c_int) -> bool {
    let end = after(milliseconds);
    loop {
        // SAFETY: an open semaphore, which is never closed, and a time.
        if unsafe { libc::sem_timedwait(semaphore, &raw const end) } == 0 {
            return true;
        }
        if errno::get() != libc::EINTR {
            return false;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        HELD.store(false, Ordering::SeqCst);
        give_back(self.semaphore);
    }
}

/// The process ends, and its threads with it.
extern "C" fn at_exit() {
    if HELD.swap(false, Ordering::SeqCst) {
        give_back(SEMAPHORE.load(Ordering::Acquire));
    }
}

/// In a child of fork(2): the turn is the parent's.
pub fn forget() {
    HELD.store(false, Ordering::SeqCst);
}

fn give_back(semaphore: *mut sem_t) {
    let mut value = 0;
    // SAFETY: an open semaphore, which is never closed. Never more than one turn: somebody whose
    // time ran out may have given back another's.
    unsafe {
        if !semaphore.is_null() && libc::sem_getvalue(semaphore, &raw mut value) == 0 && value <= 0 {
            libc::sem_post(semaphore);
        }
    }
}

fn open(known: &AtomicPtr<sem_t>, name: &CStr) -> *mut sem_t {
    let semaphore = known.load(Ordering::Acquire);
    if !semaphore.is_null() {
        return semaphore;
    }
    let (mode, free): (libc::c_uint, libc::c_uint) = (0o666, 1);
    // SAFETY: a name, and the arguments that go with O_CREAT. Opened twice, it is the same
    // semaphore at the same address.
    let semaphore = unsafe { libc::sem_open(name.as_ptr(), O_CREAT, mode, free) };
    if semaphore == SEM_FAILED {
        return ptr::null_mut();
    }
    known.store(semaphore, Ordering::Release);
    semaphore
}

fn after(milliseconds: c_int) -> timespec {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists, and the time is ours.
    unsafe { libc::clock_gettime(CLOCK_REALTIME, &raw mut time) };
    let nanoseconds = time.tv_nsec + i64::from(milliseconds % 1000) * 1_000_000;
    timespec {
        tv_sec: time.tv_sec + i64::from(milliseconds / 1000) + nanoseconds / 1_000_000_000,
        tv_nsec: nanoseconds % 1_000_000_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(semaphore: *mut sem_t) -> c_int {
        let mut value = -1;
        // SAFETY: an open semaphore.
        assert_eq!(unsafe { libc::sem_getvalue(semaphore, &raw mut value) }, 0);
        value
    }

    #[test]
    fn a_turn_that_was_never_given_back_is_repaired() {
        let known = AtomicPtr::new(ptr::null_mut());
        let name = std::ffi::CString::new(format!("/rspreload-test-{}", std::process::id())).unwrap();
        let semaphore = open(&known, &name);
        if semaphore.is_null() {
            eprintln!("skipped: no named semaphores here");
            return;
        }
        // SAFETY: a name.
        unsafe { libc::sem_unlink(name.as_ptr()) };
        assert_eq!(open(&known, &name), semaphore);
        let killed = Turn::of(semaphore, 1000).unwrap();
        assert_eq!(value(semaphore), 0);
        core::mem::forget(killed);
        assert!(Turn::of(semaphore, 0).is_none() && Turn::of(semaphore, 1).is_none());
        drop(Turn { semaphore });
        assert_eq!(value(semaphore), 1);
        let (slow, impatient) = (Turn::of(semaphore, 1000).unwrap(), Turn { semaphore });
        drop(impatient);
        drop(slow);
        assert_eq!(value(semaphore), 1);
    }

    #[test]
    fn without_a_semaphore_nobody_waits() {
        let known = AtomicPtr::new(ptr::null_mut());
        let semaphore = open(&known, c"/not/a/name");
        assert!(semaphore.is_null());
        drop(Turn::of(semaphore, 1000).unwrap());
    }
}
