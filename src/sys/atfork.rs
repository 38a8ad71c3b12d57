//! Handlers of fork(), registered when the library is loaded: later, a fork() in another thread could come first.

/// Defines `watched()`, and registers three `extern "C" fn()`: before a fork(), and after it in the parent and in the child.
macro_rules! watch_forks {
    ($before:ident, $in_parent:ident, $in_child:ident) => {
        /// Errno of the registration, 0 when fork() is watched.
        static REGISTERED: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(libc::EAGAIN);

        #[used]
        #[unsafe(link_section = ".init_array")]
        static ON_LOAD: extern "C" fn() = watch;

        extern "C" fn watch() {
            // SAFETY: functions that live as long as the library, which is never unloaded (-z nodelete).
            let result = unsafe { libc::pthread_atfork(Some($before), Some($in_parent), Some($in_child)) };
            REGISTERED.store(result, std::sync::atomic::Ordering::Relaxed);
        }

        /// `ENOMEM` when the C library had no room for our handlers.
        pub fn watched() -> crate::errno::Result<()> {
            match REGISTERED.load(std::sync::atomic::Ordering::Relaxed) {
                0 => Ok(()),
                error => Err(crate::errno::Errno::new(error)),
            }
        }
    };
}

pub(crate) use watch_forks;
