//! Tells ThreadSanitizer (`scripts/sanitized`) how threads are synchronized by the kernel: what a
//! thread has written before it issues a command is visible to the thread that reads the event
//! which the command causes. In all other builds these functions are empty.

/// Called before a command that may cause an event.
#[inline]
pub fn before_command() {
    #[cfg(thread_sanitizer)]
    // SAFETY: any address may be given: it only names the synchronization.
    unsafe {
        __tsan_release((&raw const EVENTS).cast_mut().cast());
    }
}

/// Called after an event was read.
#[inline]
pub fn after_event() {
    #[cfg(thread_sanitizer)]
    // SAFETY: as above.
    unsafe {
        __tsan_acquire((&raw const EVENTS).cast_mut().cast());
    }
}

#[cfg(thread_sanitizer)]
static EVENTS: u8 = 0;

#[cfg(thread_sanitizer)]
unsafe extern "C" {
    fn __tsan_acquire(address: *mut std::ffi::c_void);
    fn __tsan_release(address: *mut std::ffi::c_void);
}
