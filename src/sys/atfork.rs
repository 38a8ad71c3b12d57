//! Handlers of fork(), registered when the library is loaded: later, a fork() in another thread
//! could come first.

/// Defines `watched()`, and registers three `extern "C" fn()`: before a fork(), and after it in the
/// parent and in the child.
///
/// In a program that is linked with the static library, constructors of the program's may run
/// before ours: calls that they make register the handlers themselves. Threads that do so at the
/// same time register them more than once, which the handlers allow for: none of them waits for
/// another one, whom the child of a fork() may not have.
macro_rules! watch_forks {
    ($before:ident, $in_parent:ident, $in_child:ident) => {
        /// Errno of the registration, 0 when fork() is watched.
        static REGISTERED: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(NOT_YET);

        /// No registration was tried.
        const NOT_YET: i32 = -1;

        #[used]
        #[unsafe(link_section = ".init_array")]
        static ON_LOAD: extern "C" fn() = watch;

        #[unsafe(link_section = ".text.startup")]
        extern "C" fn watch() {
            let _ = watched();
        }

        fn register() -> i32 {
            // SAFETY: functions that live as long as the library, which is never unloaded (-z
            // nodelete).
            let result = unsafe { libc::pthread_atfork(Some($before), Some($in_parent), Some($in_child)) };
            REGISTERED.store(result, std::sync::atomic::Ordering::Relaxed);
            result
        }

        /// `ENOMEM` when the C library had no room for our handlers.
        pub fn watched() -> crate::errno::Result<()> {
            let result = match REGISTERED.load(std::sync::atomic::Ordering::Relaxed) {
                NOT_YET => register(),
                known => known,
            };
            if result == 0 { Ok(()) } else { Err(crate::errno::Errno::new(result)) }
        }
    };
}

pub(crate) use watch_forks;
