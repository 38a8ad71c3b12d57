//! Copying and closing: dup3, close_range, closefrom, fclose.

use core::ffi::{c_int, c_uint};

use libc::{CLOSE_RANGE_CLOEXEC, CLOSE_RANGE_UNSHARE, EINVAL, F_SETFD, FD_CLOEXEC, FILE, O_CLOEXEC};

use super::next;
use crate::{calls, errno, fds, next_symbol, open_fds, process, table};

/// dup3(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if !table::any() || old == new || flags & !O_CLOEXEC != 0 {
        // SAFETY: the C contract.
        return unsafe { next::dup3(old, new, flags) };
    }
    // SAFETY: the C contract.
    let result = unsafe { calls::dup2(old, new) };
    if result >= 0 && flags & O_CLOEXEC != 0 {
        // Not atomic: a thread that forks and executes now passes the number on.
        // SAFETY: no pointers.
        errno::keeping(|| unsafe { next_symbol::fcntl(new, F_SETFD, FD_CLOEXEC as usize) });
    }
    result
}

/// close_range(2). Descriptors of the library stay open.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let known = CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE;
    // Without an rsocket there is nothing to keep. A child of vfork(2) closes its own numbers.
    if !table::any() || process::is_guest() || flags as c_uint & known != 0 {
        // SAFETY: the C contract.
        return unsafe { next::close_range(first, last, flags) };
    }
    if first > last || flags != 0 {
        return errno::fail(EINVAL);
    }
    close_each(first, last);
    0
}

/// closefrom(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn closefrom(low: c_int) {
    if table::any() && !process::is_guest() || !next::closefrom(low) {
        close_each(low.max(0).cast_unsigned(), c_uint::MAX);
    }
}

fn close_each(first: c_uint, last: c_uint) {
    let number = |number: c_uint| c_int::try_from(number).unwrap_or(c_int::MAX);
    errno::keeping(|| {
        open_fds::each(number(first)..number(last).saturating_add(1), |fd| {
            // SAFETY: no pointers; the program closes the number.
            unsafe { calls::close(fd) };
        });
    });
}

/// fclose(3): the peer of an rsocket sees the end at once.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fclose(file: *mut FILE) -> c_int {
    if !table::any() || file.is_null() {
        // SAFETY: the C contract.
        return unsafe { next::fclose(file) };
    }
    // SAFETY: the C contract: an open stream.
    let fd = errno::keeping(|| unsafe { libc::fileno(file) });
    let entry = table::get(fd);
    // SAFETY: the C contract.
    let result = unsafe { next::fclose(file) };
    // Another thread may have got the number meanwhile: then the entry was replaced already.
    if let Some(entry) = entry
        && !process::is_guest()
        && table::replace(fd, Some(entry), None)
    {
        errno::keeping(|| fds::release(entry));
    }
    result
}
