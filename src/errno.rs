//! The error type of the library: an errno value.
//!
//! Nearly all fallible functions return [`Result`]. Only `report.rs` of `abi/rdmacm` converts an
//! [`Errno`] to the return value -1 (or NULL) and `errno`, for the C entry points.

use std::ffi::c_int;
use std::fmt;

/// An errno value, always greater than zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(c_int);

/// The result of a fallible function of this library.
pub type Result<T> = std::result::Result<T, Errno>;

macro_rules! values {
    ($($name:ident)*) => {
        impl Errno {
            $(#[doc = concat!("errno(3): ", stringify!($name), ".")] pub const $name: Errno = Errno(libc::$name);)*

            /// Returns the symbolic name, or `None` if the value is not listed in `values!`.
            fn name(self) -> Option<&'static str> {
                match self.0 {
                    $(libc::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

values! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EXDEV
    ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY EFBIG ENOSPC ESPIPE EROFS EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG
    ENOLCK ENOSYS ENOTEMPTY ELOOP ENOMSG ENODATA ETIME ENOLINK EPROTO EBADMSG EOVERFLOW EILSEQ ENOTSOCK EDESTADDRREQ
    EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE
    EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETIMEDOUT
    ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE EREMOTEIO ECANCELED
}

impl Errno {
    /// errno(3): ENOTSUP, which Linux calls EOPNOTSUPP.
    pub const ENOTSUP: Errno = Errno::EOPNOTSUPP;

    /// Creates an errno from a value that a C interface has returned. Zero and negative values,
    /// which are no errno, become `EIO`.
    pub fn new(value: c_int) -> Errno {
        if value > 0 { Errno(value) } else { Errno::EIO }
    }

    /// Returns the calling thread's `errno`, which the last failed system call has set.
    pub fn last() -> Errno {
        Errno::new(base::errno::get())
    }

    /// Returns the value, which is greater than zero.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_and_unknown_names() {
        assert_eq!(format!("{:?}", Errno::ECONNREFUSED), "ECONNREFUSED");
        assert_eq!(format!("{:?}", Errno::new(4711)), "errno 4711");
    }

    #[test]
    fn zero_and_negative_values_become_eio() {
        assert_eq!(Errno::new(0), Errno::EIO);
        assert_eq!(Errno::new(-22), Errno::EIO);
    }
}
