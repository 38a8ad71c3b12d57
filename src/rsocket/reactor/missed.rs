//! Checks that a thread could not ask for, because another one kept the reactor's lock. They are
//! noted without the lock, and the thread that gives it back sets their timers: an idle connection
//! makes no later call that could.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use super::registrations::{Reactor, Timer};
use super::{REACTORS, ROLES, Role, leave_to_parent};
use crate::cm::Guard;

/// The pause before checks that were missed, in microseconds; 0: none was. In the order of
/// [`Role`].
static MISSED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// The lock of a reactor. When it is dropped, the lock is given back, and checks that were missed
/// meanwhile are made up for.
pub(super) struct Held {
    guard: ManuallyDrop<Guard<'static, Option<Reactor>>>,
    role: Role,
}

impl Held {
    pub fn new(mut guard: Guard<'static, Option<Reactor>>, role: Role) -> Held {
        leave_to_parent(&mut guard);
        Held { guard: ManuallyDrop::new(guard), role }
    }
}

impl Deref for Held {
    type Target = Option<Reactor>;

    fn deref(&self) -> &Option<Reactor> {
        &self.guard
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Option<Reactor> {
        &mut self.guard
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: not used or dropped after this.
        unsafe { ManuallyDrop::drop(&mut self.guard) };
        make_up(self.role);
    }
}

/// A service is to be checked after `pause`, and another thread has the lock.
pub(super) fn note(role: Role, pause: Duration) {
    let micros = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX).max(1);
    MISSED[role as usize].store(micros, Ordering::Relaxed);
    make_up(role);
}

/// As [`make_up`], for all reactors, after fork(2) has given the locks back.
pub(super) fn make_up_for_all() {
    ROLES.into_iter().for_each(make_up);
}

/// Sets the timers for checks that were missed. Waits for no lock, and does not allocate: a signal
/// handler may have interrupted this thread while it holds any.
fn make_up(role: Role) {
    let missed = &MISSED[role as usize];
    loop {
        // Comes after the note, or after the lock was given back. So who notes finds the lock free,
        // or its holder finds the note.
        fence(Ordering::SeqCst);
        if missed.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Some(mut guard) = REACTORS[role as usize].try_lock() else { return };
        leave_to_parent(&mut guard);
        let pause = Duration::from_micros(missed.swap(0, Ordering::Relaxed));
        if let Some(reactor) = guard.as_mut().filter(|reactor| !pause.is_zero() && reactor.is_usable()) {
            // Whose check it was is not known. One that is not necessary does no harm.
            reactor.set_for_all(Timer::Checks, Instant::now() + pause);
        }
    }
}
