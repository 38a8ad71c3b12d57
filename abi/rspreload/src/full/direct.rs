//! System calls that a program makes by syscall(3). libuv closes descriptors in this way, and so do
//! Node.js and other programs that use libuv.
//!
//! librdmacm uses syscall(3), too, for calls that must reach the kernel: on its own descriptors,
//! which have no entry in the table, and for fcntl and writev also on the program's descriptors. So
//! `syscall` passes fcntl and writev to the kernel.

use core::ffi::{c_int, c_long, c_uint};

use libc::{pid_t, socklen_t};

use super::{data, descriptors};
use crate::{auto, calls, fork_handlers, table};

exports_and_next! {
    /// syscall(3). It is variadic in C: arguments that were not given have arbitrary values, which
    /// are passed on as the C library's definition does.
    fn syscall(
        number: c_long,
        a: c_long,
        b: c_long,
        c: c_long,
        d: c_long,
        e: c_long,
        f: c_long,
    ) -> c_long {
        let fd = a as c_int;
        let known = table::get(fd).is_some();
        match number {
            libc::SYS_close if known => calls::close(fd).into(),
            libc::SYS_close => {
                auto::log::before_close(fd);
                next::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_dup3 if known || table::get(b as c_int).is_some() => {
                descriptors::dup3(fd, b as c_int, c as c_int).into()
            }
            libc::SYS_close_range if table::any() => {
                descriptors::close_range(a as c_uint, b as c_uint, c as c_int).into()
            }
            libc::SYS_sendmmsg if table::any() => data::sendmmsg(fd, b as *mut _, c as c_uint, d as c_int).into(),
            // On a kernel socket this may pass descriptors to another process.
            libc::SYS_sendmsg if table::any() => calls::sendmsg(fd, b as *const _, c as c_int) as c_long,
            libc::SYS_accept4 if known || auto::has_stand_ins() => {
                calls::accept4(fd, b as *mut _, c as *mut _, d as c_int).into()
            }
            // An option that rsockets do not have makes the socket stay TCP.
            libc::SYS_setsockopt if known || auto::is_on() => {
                calls::setsockopt(fd, b as c_int, c as c_int, d as *const _, e as socklen_t).into()
            }
            libc::SYS_clone if b == 0 && is_fork(a) => {
                fork_handlers::around(|| next::syscall(number, a, b, c, d, e, f) as pid_t).into()
            }
            libc::SYS_read if known => calls::read(fd, b as *mut _, c as usize) as c_long,
            libc::SYS_write if known => calls::write(fd, b as *const _, c as usize) as c_long,
            libc::SYS_recvfrom if known => {
                calls::recvfrom(fd, b as *mut _, c as usize, d as c_int, e as *mut _, f as *mut _) as c_long
            }
            libc::SYS_sendto if known => {
                calls::sendto(fd, b as *const _, c as usize, d as c_int, e as *const _, f as socklen_t) as c_long
            }
            libc::SYS_recvmsg if known => calls::recvmsg(fd, b as *mut _, c as c_int) as c_long,
            libc::SYS_recvmmsg if known => {
                data::recvmmsg(fd, b as *mut _, c as c_uint, d as c_int, e as *mut _).into()
            }
            libc::SYS_connect if known => calls::connect(fd, b as *const _, c as socklen_t).into(),
            libc::SYS_shutdown if known => calls::shutdown(fd, b as c_int).into(),
            libc::SYS_getsockname if known => calls::getsockname(fd, b as *mut _, c as *mut _).into(),
            libc::SYS_getpeername if known => calls::getpeername(fd, b as *mut _, c as *mut _).into(),
            libc::SYS_getsockopt if known => {
                calls::getsockopt(fd, b as c_int, c as c_int, d as *mut _, e as *mut _).into()
            }
            libc::SYS_dup if known => calls::dup(fd).into(),
            _ => next::syscall(number, a, b, c, d, e, f),
        }
    }
}

/// Whether clone(2) with these flags and no stack acts like fork(2).
fn is_fork(flags: c_long) -> bool {
    flags & c_long::from(libc::CLONE_VM | libc::CLONE_FILES) == 0
}
