//! System calls that a program makes by syscall(3): libuv closes descriptors in this way, and so do
//! Node.js and all other programs that use it.
//!
//! Librdmacm makes system calls by syscall(3) as well, to reach the kernel in any case. It does so
//! for its own descriptors, which have no entry in the table.

use core::ffi::{c_int, c_long, c_uint};

use super::{messages, next, numbers};
use crate::{auto, calls, table};

/// syscall(3). It is variadic in C: arguments that were not given are whatever the registers and the
/// stack have there, as in the C library's own definition.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let fd = a as c_int;
    // SAFETY: the arguments of the call with that number: guaranteed by the caller.
    unsafe {
        match number {
            libc::SYS_close => {
                if table::get(fd).is_some() {
                    return calls::close(fd).into();
                }
                auto::tcp_bytes::before_close(fd);
            }
            libc::SYS_dup3 if is_known(fd) || is_known(b as c_int) => {
                return numbers::dup3(fd, b as c_int, c as c_int).into();
            }
            libc::SYS_close_range if table::any() => {
                return numbers::close_range(a as c_uint, b as c_uint, c as c_int).into();
            }
            libc::SYS_read if is_known(fd) => return calls::read(fd, b as *mut _, c as usize) as c_long,
            libc::SYS_write if is_known(fd) => return calls::write(fd, b as *const _, c as usize) as c_long,
            libc::SYS_accept4 if is_known(fd) => {
                return calls::accept4(fd, b as *mut _, c as *mut _, d as c_int).into();
            }
            libc::SYS_sendmmsg if table::any() => {
                return messages::sendmmsg(fd, b as *mut _, c as c_uint, d as c_int).into();
            }
            libc::SYS_recvmmsg if is_known(fd) => {
                return messages::recvmmsg(fd, b as *mut _, c as c_uint, d as c_int, e as *mut _).into();
            }
            _ => {}
        }
        next::syscall(number, a, b, c, d, e, f)
    }
}

fn is_known(fd: c_int) -> bool {
    table::get(fd).is_some()
}
