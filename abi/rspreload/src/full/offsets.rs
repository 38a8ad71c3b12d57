//! Reads and writes at an offset, which sockets do not have: pread, preadv, preadv2 and their like.
//! The offset -1 of preadv2 and pwritev2 means the current position, so they serve sockets as readv
//! and writev do, with flags.

use core::ffi::c_int;
use core::mem;
use core::slice;

use libc::{
    EFAULT, EINVAL, EOPNOTSUPP, ESPIPE, MSG_DONTWAIT, MSG_NOSIGNAL, c_void, iovec, msghdr, off_t, off64_t, size_t,
    ssize_t,
};

use super::next;
use crate::dispatch::Fd;
use crate::{calls, errno};

/// The kernel's limit for a list of buffers (UIO_MAXIOV).
const MAX_BUFFERS: c_int = 1024;

// The flags of preadv2 and pwritev2 (linux/fs.h).
const RWF_NOWAIT: c_int = 0x8;
const RWF_APPEND: c_int = 0x10;
const RWF_NOAPPEND: c_int = 0x20;
const RWF_NOSIGNAL: c_int = 0x100;
/// RWF_HIPRI, RWF_DSYNC and RWF_SYNC: the kernel accepts them for sockets, without effect.
const RWF_OF_FILES: c_int = 0x7;

/// Fails for a socket: a call with an offset.
fn fails(offset: i64) -> ssize_t {
    errno::fail(if offset < 0 { EINVAL } else { ESPIPE })
}

/// Whether the number is a placeholder that has not the offsets of a socket.
pub(super) fn is_placeholder(fd: c_int) -> bool {
    matches!(Fd::of(fd), Fd::Rsocket(_))
}

macro_rules! at_offset {
    ($($name:ident($($arg:ident: $type:ty),*; $offset:ty);)*) => {$(
        #[doc = concat!(stringify!($name), "(2).")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(fd: c_int, $($arg: $type,)* offset: $offset) -> ssize_t {
            // SAFETY: the C contract.
            if is_placeholder(fd) { fails(offset) } else { unsafe { next::$name(fd, $($arg,)* offset) } }
        }
    )*};
}

at_offset! {
    pread(buf: *mut c_void, len: size_t; off_t);
    pread64(buf: *mut c_void, len: size_t; off64_t);
    preadv(list: *const iovec, count: c_int; off_t);
    preadv64(list: *const iovec, count: c_int; off64_t);
    pwrite(buf: *const c_void, len: size_t; off_t);
    pwrite64(buf: *const c_void, len: size_t; off64_t);
    pwritev(list: *const iovec, count: c_int; off_t);
    pwritev64(list: *const iovec, count: c_int; off64_t);
}

/// pread(2) of programs compiled with _FORTIFY_SOURCE. glibc's function aborts the program if the
/// buffer is too small.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __pread_chk(fd: c_int, buf: *mut c_void, len: size_t, offset: off_t, room: size_t) -> ssize_t {
    if len <= room && is_placeholder(fd) {
        return fails(offset);
    }
    // SAFETY: the C contract.
    unsafe { next::__pread_chk(fd, buf, len, offset, room) }
}

/// pread64(2), as [`__pread_chk`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __pread64_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    offset: off64_t,
    room: size_t,
) -> ssize_t {
    if len <= room && is_placeholder(fd) {
        return fails(offset);
    }
    // SAFETY: the C contract.
    unsafe { next::__pread64_chk(fd, buf, len, offset, room) }
}

macro_rules! with_flags {
    ($($name:ident($offset:ty) by $transfer:ident;)*) => {$(
        #[doc = concat!(stringify!($name), "(2).")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            fd: c_int,
            list: *const iovec,
            count: c_int,
            offset: $offset,
            flags: c_int,
        ) -> ssize_t {
            // SAFETY: the C contract.
            unsafe {
                match Fd::of(fd) {
                    Fd::Kernel | Fd::Epoll(_) => next::$name(fd, list, count, offset, flags),
                    _ if offset != -1 => fails(offset),
                    _ => $transfer(fd, list, count, flags),
                }
            }
        }
    )*};
}

with_flags! {
    preadv2(off_t) by receive;
    preadv64v2(off64_t) by receive;
    pwritev2(off_t) by transmit;
    pwritev64v2(off64_t) by transmit;
}

/// Receives as readv does, with the flags of preadv2.
///
/// # Safety
/// The C contract of readv(2).
unsafe fn receive(fd: c_int, list: *const iovec, count: c_int, flags: c_int) -> ssize_t {
    // SAFETY: the C contract: guaranteed by the caller.
    unsafe {
        match message_flags(list, count, flags) {
            Err(why) => errno::fail(why),
            Ok(None) => calls::readv(fd, list, count),
            Ok(Some(flags)) => calls::recvmsg(fd, &mut message(list, count), flags),
        }
    }
}

/// Sends as writev does, with the flags of pwritev2.
///
/// # Safety
/// The C contract of writev(2).
unsafe fn transmit(fd: c_int, list: *const iovec, count: c_int, flags: c_int) -> ssize_t {
    // SAFETY: the C contract: guaranteed by the caller.
    unsafe {
        match message_flags(list, count, flags) {
            Err(why) => errno::fail(why),
            Ok(None) => calls::writev(fd, list, count),
            Ok(Some(flags)) => calls::sendmsg(fd, &message(list, count), flags),
        }
    }
}

/// The MSG_ flags for the flags of preadv2 and pwritev2, or `None` if readv and writev do the same.
/// Fails as the kernel does with a TCP socket, whose flags are examined if there is something to
/// transfer only.
///
/// # Safety
/// `list` has `count` buffers.
unsafe fn message_flags(list: *const iovec, count: c_int, flags: c_int) -> Result<Option<c_int>, c_int> {
    if flags == 0 || count == 0 {
        return Ok(None);
    }
    if !(0..=MAX_BUFFERS).contains(&count) {
        return Err(EINVAL);
    }
    if list.is_null() {
        return Err(EFAULT);
    }
    // SAFETY: `count` buffers: guaranteed by the caller.
    let is_empty = unsafe { slice::from_raw_parts(list, count as usize) }.iter().all(|buffer| buffer.iov_len == 0);
    if is_empty {
        return Ok(None);
    }
    if flags & !(RWF_OF_FILES | RWF_NOWAIT | RWF_APPEND | RWF_NOAPPEND | RWF_NOSIGNAL) != 0 {
        return Err(EOPNOTSUPP);
    }
    if flags & RWF_APPEND != 0 && flags & RWF_NOAPPEND != 0 {
        return Err(EINVAL);
    }
    let without_waiting = if flags & RWF_NOWAIT != 0 { MSG_DONTWAIT } else { 0 };
    let without_signal = if flags & RWF_NOSIGNAL != 0 { MSG_NOSIGNAL } else { 0 };
    Ok(Some(without_waiting | without_signal))
}

/// A message of these buffers.
fn message(list: *const iovec, count: c_int) -> msghdr {
    // SAFETY: integers and pointers, of which zeros are values.
    let mut message: msghdr = unsafe { mem::zeroed() };
    message.msg_iov = list.cast_mut();
    message.msg_iovlen = count as _;
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags_of(lens: &[usize], flags: c_int) -> Result<Option<c_int>, c_int> {
        let list: Vec<iovec> = lens.iter().map(|&iov_len| iovec { iov_base: core::ptr::null_mut(), iov_len }).collect();
        // SAFETY: the buffers of `list`.
        unsafe { message_flags(list.as_ptr(), list.len() as c_int, flags) }
    }

    #[test]
    fn flags_are_those_of_a_tcp_socket() {
        assert_eq!(flags_of(&[1], 0), Ok(None));
        assert_eq!(flags_of(&[1], RWF_OF_FILES | RWF_APPEND), Ok(Some(0)));
        assert_eq!(flags_of(&[0, 1], RWF_NOWAIT), Ok(Some(MSG_DONTWAIT)));
        assert_eq!(flags_of(&[1], RWF_NOSIGNAL | RWF_NOWAIT), Ok(Some(MSG_NOSIGNAL | MSG_DONTWAIT)));
        assert_eq!(flags_of(&[1], RWF_APPEND | RWF_NOAPPEND), Err(EINVAL));
        for flag in [0x40, 0x80, 0x200, 0x400, c_int::MIN] {
            assert_eq!(flags_of(&[1], flag | RWF_NOWAIT), Err(EOPNOTSUPP), "{flag:#x}");
        }
    }

    #[test]
    fn flags_of_empty_transfers_are_not_examined() {
        assert_eq!(flags_of(&[], c_int::MAX), Ok(None));
        assert_eq!(flags_of(&[0, 0], c_int::MAX), Ok(None));
    }

    #[test]
    fn the_number_of_buffers_is_limited() {
        assert_eq!(flags_of(&[1; 1024], RWF_NOWAIT), Ok(Some(MSG_DONTWAIT)));
        assert_eq!(flags_of(&[1; 1025], RWF_NOWAIT), Err(EINVAL));
        // SAFETY: the list is not read.
        assert_eq!(unsafe { message_flags(core::ptr::null(), -1, RWF_NOWAIT) }, Err(EINVAL));
        // SAFETY: as above.
        assert_eq!(unsafe { message_flags(core::ptr::null(), 1, RWF_NOWAIT) }, Err(EFAULT));
    }
}
