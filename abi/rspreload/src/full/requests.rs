//! ioctl and sockatmark.

use core::ffi::{c_int, c_ulong, c_void};
use core::mem;

use libc::{AF_INET, F_GETFL, F_SETFL, FIONBIO, FIONREAD, O_NONBLOCK, SOCK_CLOEXEC, SOCK_DGRAM, TIOCOUTQ, socklen_t};

use super::next;
use crate::dispatch::Fd;
use crate::{auto, calls, errno, next_symbol, rsocket_abi};

/// Whether there is urgent data (linux/sockios.h).
const SIOCATMARK: c_ulong = 0x8905;
/// Requests about network interfaces and routes (linux/sockios.h).
const INTERFACE_REQUESTS: core::ops::Range<c_ulong> = 0x890b..0x89f0;

/// ioctl(2). It is variadic in C: an argument that was not given is whatever the register has, and
/// is not used.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    if request == libc::FIONCLEX {
        auto::outside::loses_cloexec(fd);
    }
    // SAFETY: the C contract.
    unsafe {
        match Fd::of(fd) {
            Fd::Rsocket(_) if arg.is_null() && matches!(request, FIONBIO | FIONREAD | TIOCOUTQ | SIOCATMARK) => {
                errno::fail(libc::EFAULT)
            }
            Fd::Rsocket(entry) => match request {
                FIONBIO => set_nonblocking(fd, arg.cast::<c_int>().read_unaligned() != 0),
                FIONREAD => write_number(entry.inner, rdmacm_private::READABLE_BYTES, arg.cast()),
                TIOCOUTQ => write_number(entry.inner, rdmacm_private::UNSENT_BYTES, arg.cast()),
                SIOCATMARK => {
                    arg.cast::<c_int>().write_unaligned(0);
                    0
                }
                _ if INTERFACE_REQUESTS.contains(&request) && !auto::is_auto(entry) => by_any_socket(request, arg),
                _ => next::ioctl(fd, request, arg),
            },
            Fd::Connecting(_) | Fd::Pending(_) if request == FIONBIO && !arg.is_null() => {
                set_nonblocking(fd, arg.cast::<c_int>().read_unaligned() != 0)
            }
            Fd::Known(entry) if request == FIONREAD => {
                // Without this no data would arrive in a child that does nothing else.
                auto::before_wait(entry);
                next::ioctl(fd, request, arg)
            }
            _ => next::ioctl(fd, request, arg),
        }
    }
}

fn set_nonblocking(fd: c_int, on: bool) -> c_int {
    // SAFETY: no pointers.
    unsafe {
        let flags = calls::fcntl(fd, F_GETFL, 0);
        if flags < 0 {
            return flags;
        }
        calls::fcntl(fd, F_SETFL, (if on { flags | O_NONBLOCK } else { flags & !O_NONBLOCK }) as usize)
    }
}

/// Writes an option of the private level, an int, to `arg`.
///
/// # Safety
/// `arg` is writable.
unsafe fn write_number(inner: c_int, option: c_int, arg: *mut c_int) -> c_int {
    let (mut number, mut len) = (0_i32, mem::size_of::<c_int>() as socklen_t);
    // SAFETY: live variables of these lengths.
    let result = unsafe {
        rsocket_abi::rgetsockopt(inner, rdmacm_private::LEVEL, option, (&raw mut number).cast(), &raw mut len)
    };
    if result == 0 {
        // SAFETY: writable: guaranteed by the caller.
        unsafe { arg.write_unaligned(number) };
    }
    result
}

/// Any socket of the kernel can be asked about interfaces.
///
/// # Safety
/// The C contract of ioctl(2).
unsafe fn by_any_socket(request: c_ulong, arg: *mut c_void) -> c_int {
    // SAFETY: the C contract of ioctl(2): guaranteed by the caller.
    unsafe {
        let socket = next_symbol::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if socket < 0 {
            return socket;
        }
        let result = next::ioctl(socket, request, arg);
        errno::keeping(|| next_symbol::close(socket));
        result
    }
}

/// sockatmark(3): rsockets have no urgent data.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sockatmark(fd: c_int) -> c_int {
    // SAFETY: the C contract.
    if let Fd::Rsocket(_) = Fd::of(fd) { 0 } else { unsafe { next::sockatmark(fd) } }
}
