//! Memory for a call's own copy of a list: on the stack for short lists, mapped for longer ones.
//! Not from malloc(3), which is not async-signal-safe: poll(2) may be called by signal handlers.

use core::mem;
use core::ptr;
use core::slice;

use libc::{ENOMEM, c_int, c_ulong, iovec, pollfd};

use crate::{cancel, errno};

/// Types for which all zeros are a value.
///
/// # Safety
/// All zeros must be a value of the type.
pub unsafe trait Plain: Copy {
    /// That value.
    const ZERO: Self;
}

// SAFETY: an integer.
unsafe impl Plain for c_ulong {
    const ZERO: Self = 0;
}

// SAFETY: three integers.
unsafe impl Plain for pollfd {
    const ZERO: Self = pollfd { fd: 0, events: 0, revents: 0 };
}

// SAFETY: a pointer and an integer.
unsafe impl Plain for iovec {
    const ZERO: Self = iovec { iov_base: ptr::null_mut(), iov_len: 0 };
}

const ON_STACK: usize = 48;

/// Calls `call` with a slice of `len` zeros: `ENOMEM`.
pub fn with<T: Plain, R>(len: usize, call: impl FnOnce(&mut [T]) -> R) -> Result<R, c_int> {
    let mut stack = [T::ZERO; ON_STACK];
    if let Some(stack) = stack.get_mut(..len) {
        return Ok(call(stack));
    }
    let size = len.checked_mul(mem::size_of::<T>()).ok_or(ENOMEM)?;
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping of `size` bytes, aligned to pages, whose zeros are values of T.
    // Unmapped after `call`, which can't keep the slice.
    unsafe {
        let start = libc::mmap(ptr::null_mut(), size, access, kind, -1, 0);
        if start == libc::MAP_FAILED {
            return Err(ENOMEM);
        }
        let unmap = || {
            libc::munmap(start, size);
        };
        let result = cancel::with_cleanup(unmap, || call(slice::from_raw_parts_mut(start.cast::<T>(), len)));
        errno::keeping(unmap);
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_lists_are_zeros() {
        for len in [0, 1, ON_STACK, ON_STACK + 1, 100_000] {
            let zeros = with::<c_ulong, _>(len, |list| {
                let zeros = list.iter().filter(|&&word| word == 0).count();
                list.fill(1);
                zeros
            });
            assert_eq!(zeros, Ok(len));
        }
        assert_eq!(with::<c_ulong, _>(usize::MAX, |_| ()), Err(ENOMEM));
        assert_eq!(with::<c_ulong, _>(usize::MAX / 8, |_| ()), Err(ENOMEM));
    }
}
