//! The one error type of the library: an errno value.
//!
//! Everything below the C entry points returns [`Result`]; the entry points turn an [`Errno`] into `-1` (or NULL)
//! and `errno` in exactly one place, [`report_or`].

use std::ffi::c_int;
use std::fmt;

#[cfg(feature = "library")]
use crate::diag::{self, Call};
#[cfg(feature = "library")]
use crate::sys::cancel;

/// An errno value, always greater than zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(c_int);

/// What fallible functions of this library return.
pub type Result<T> = std::result::Result<T, Errno>;

macro_rules! values {
    ($($name:ident)*) => {
        impl Errno {
            $(#[doc = concat!("errno(3): ", stringify!($name), ".")] pub const $name: Errno = Errno(libc::$name);)*
        }
    };
}

macro_rules! names {
    ($($name:ident)*) => {
        impl Errno {
            /// The symbolic name, if it is a usual one.
            fn name(self) -> Option<&'static str> {
                match self.0 {
                    $(libc::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

// Those that this library raises itself.
values! {
    EACCES EADDRNOTAVAIL EAFNOSUPPORT EAGAIN EALREADY EBADF EBUSY ECONNABORTED ECONNREFUSED ECONNRESET EDOM EEXIST EFAULT
    EINPROGRESS EINTR EINVAL EIO EISCONN EMFILE EMSGSIZE ENETDOWN ENFILE ENODATA ENODEV ENOENT ENOMEM ENOSYS ENOTCONN
    ENOTSUP EOPNOTSUPP EPERM EPIPE EPROTO ETIMEDOUT
}

names! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EXDEV
    ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY EFBIG ENOSPC ESPIPE EROFS EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG
    ENOLCK ENOSYS ENOTEMPTY ELOOP ENOMSG ENODATA ETIME ENOLINK EPROTO EBADMSG EOVERFLOW EILSEQ ENOTSOCK EDESTADDRREQ
    EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE
    EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETIMEDOUT
    ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE EREMOTEIO ECANCELED
}

impl Errno {
    /// An errno value as a C interface returned it; zero and negative values, which no errno has, become `EIO`.
    pub fn new(value: c_int) -> Errno {
        if value > 0 { Errno(value) } else { Errno::EIO }
    }

    /// The calling thread's current `errno`: what the system call that just failed left there.
    pub fn last() -> Errno {
        Errno::new(errno::errno().0)
    }

    /// The value, greater than zero.
    pub fn get(self) -> c_int {
        self.0
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        errno::Errno(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

/// Runs a call for its C caller: its value on success, with `errno` as it was before; otherwise `failed`, with `errno`
/// set. `call` is what the failure is logged with, where that is asked for.
#[cfg(feature = "library")]
pub fn report<T>(call: Call, failed: T, run: impl FnOnce() -> Result<T>) -> T {
    report_or(call, || run().map_err(|error| (failed, error)))
}

/// As [`report`], for calls whose failures have values of their own beside `errno`.
#[cfg(feature = "library")]
pub fn report_or<T>(call: Call, run: impl FnOnce() -> std::result::Result<T, (T, Errno)>) -> T {
    cancel::in_call(|| finish(call, run))
}

/// As [`report`], for a call that mostly need not wait: what does, it runs within
/// [`cancel::in_call`] itself.
#[cfg(feature = "library")]
pub fn report_quick<T>(call: Call, failed: T, run: impl FnOnce() -> Result<T>) -> T {
    finish(call, || run().map_err(|error| (failed, error)))
}

#[cfg(feature = "library")]
fn finish<T>(call: Call, run: impl FnOnce() -> std::result::Result<T, (T, Errno)>) -> T {
    let before = errno::errno();
    let (value, errno) = match run() {
        Ok(value) => (value, before),
        Err((value, error)) => {
            diag::failed(&call, error);
            (value, errno::Errno(error.0))
        }
    };
    errno::set_errno(errno);
    value
}

#[cfg(all(test, feature = "library"))]
mod tests {
    use super::*;

    #[test]
    fn success_leaves_errno_alone() {
        errno::set_errno(errno::Errno(77));
        let value = report(Call::new("test"), -1, || {
            errno::set_errno(errno::Errno(5));
            Ok(3)
        });
        assert_eq!((value, errno::errno().0), (3, 77));
    }

    #[test]
    fn failure_sets_errno() {
        assert_eq!(report(Call::new("test"), -1, || Err(Errno::EBUSY)), -1);
        assert_eq!(Errno::last(), Errno::EBUSY);
    }

    #[test]
    fn known_and_unknown_names() {
        assert_eq!(format!("{:?}", Errno::ECONNREFUSED), "ECONNREFUSED");
        assert_eq!(format!("{:?}", Errno::new(4711)), "errno 4711");
    }

    #[test]
    fn zero_is_no_errno() {
        assert_eq!(Errno::new(0), Errno::EIO);
        assert_eq!(Errno::new(-22), Errno::EIO);
    }
}
