//! The named semaphore by which processes take turns with listening: `/rsocket_fork`, as the reference has it.
//!
//! It may be impossible to have (another user's, no /dev/shm), and a process that is killed in its turn leaves it
//! taken for good. Neither must stop anybody: then it goes without a turn, and at worst the address is in use.

use core::ffi::{CStr, c_int};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{CLOCK_REALTIME, O_CREAT, SEM_FAILED, sem_t, timespec};

use crate::epoll::Deadline;
use crate::errno;

const NAME: &CStr = c"/rsocket_fork";

/// Opened once: semaphores stay valid in the children of a fork().
static SEMAPHORE: AtomicPtr<sem_t> = AtomicPtr::new(ptr::null_mut());

/// A turn, until it is dropped.
pub struct Turn {
    semaphore: *mut sem_t,
}

impl Turn {
    /// Waits for the turn until `end`, as long as `wanted` says that it is. `None` if it is not
    /// wanted any more.
    pub fn take_while(end: &Deadline, wanted: impl Fn() -> bool) -> Option<Turn> {
        Turn::of_while(open(&SEMAPHORE, NAME), end, wanted)
    }

    fn of_while(semaphore: *mut sem_t, end: &Deadline, wanted: impl Fn() -> bool) -> Option<Turn> {
        while wanted() {
            let slice = end.left().min(SLICE);
            if semaphore.is_null() || wait(semaphore, slice) || end.left() == 0 {
                return wanted().then_some(Turn { semaphore });
            }
        }
        None
    }

    #[cfg(test)]
    fn of(semaphore: *mut sem_t, patience: c_int) -> Turn {
        Turn::of_while(semaphore, &Deadline::after(patience), || true).unwrap()
    }
}

/// How long is waited between two looks at whether the turn is still wanted, in milliseconds.
const SLICE: c_int = 50;

/// Waits so many milliseconds; whether the semaphore was taken. If not for long: whoever had the
/// turn is gone, or so slow that it finds the address in use. In both cases the turn is given back
/// for it.
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
        let mut value = 0;
        // SAFETY: an open semaphore, which is never closed. Never more than one turn: somebody whose time ran out may
        // have given back another's.
        unsafe {
            if !self.semaphore.is_null() && libc::sem_getvalue(self.semaphore, &raw mut value) == 0 && value <= 0 {
                libc::sem_post(self.semaphore);
            }
        }
    }
}

fn open(known: &AtomicPtr<sem_t>, name: &CStr) -> *mut sem_t {
    let semaphore = known.load(Ordering::Acquire);
    if !semaphore.is_null() {
        return semaphore;
    }
    let (mode, free): (libc::c_uint, libc::c_uint) = (0o666, 1);
    // SAFETY: a name, and the arguments that go with O_CREAT. Opened twice, it is the same semaphore at the same
    // address.
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
        let killed = Turn::of(semaphore, 1000);
        assert_eq!(value(semaphore), 0);
        core::mem::forget(killed);
        let next = Turn::of(semaphore, 1);
        drop(next);
        assert_eq!(value(semaphore), 1);
        let (slow, impatient) = (Turn::of(semaphore, 1000), Turn::of(semaphore, 1));
        drop(impatient);
        drop(slow);
        assert_eq!(value(semaphore), 1);
    }

    #[test]
    fn without_a_semaphore_nobody_waits() {
        let known = AtomicPtr::new(ptr::null_mut());
        let semaphore = open(&known, c"/not/a/name");
        assert!(semaphore.is_null());
        drop(Turn::of(semaphore, 1000));
    }
}
