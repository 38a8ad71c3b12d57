//! Chooses between the original and one mutant: tests/mutants/run adds this file to each crate of its copy.

use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicU32, Ordering};

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
    fn atoi(text: *const c_char) -> c_int;
}

const UNREAD: u32 = u32::MAX;

static CHOSEN: AtomicU32 = AtomicU32::new(UNREAD);

/// Returns whether RDMACM_MUTANT has this number.
#[inline(never)]
pub fn on(number: u32) -> bool {
    let mut chosen = CHOSEN.load(Ordering::Relaxed);
    if chosen == UNREAD {
        chosen = read();
        CHOSEN.store(chosen, Ordering::Relaxed);
    }
    chosen == number
}

fn read() -> u32 {
    // SAFETY: the name ends in a zero byte; the value is read before anybody can change it.
    unsafe {
        let value = getenv(c"RDMACM_MUTANT".as_ptr());
        if value.is_null() { 0 } else { atoi(value) as u32 }
    }
}
