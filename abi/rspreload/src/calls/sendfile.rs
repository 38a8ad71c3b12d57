//! sendfile: to an rsocket it reads pieces of the file and sends them.

use core::ffi::{c_int, c_void};

use core::slice;

use libc::{EINVAL, ESPIPE, SEEK_CUR, SEEK_SET, off_t, off64_t, size_t, ssize_t};

use crate::dispatch::{self, Target};
use crate::transition::Way;
use crate::{errno, next_symbol};

/// What is read and sent at once.
const PIECE: usize = 64 << 10;
/// The same without memory for it.
const STACK_PIECE: usize = 4 << 10;
/// The kernel's limit for one call (linux/fs.h, with pages of 4 KB).
const MAX_RW_COUNT: usize = 0x7fff_f000;

exports! {
    /// sendfile(2).
    fn sendfile(out: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        // off_t has 64 bits on the machines this is for.
        send_file(out, file, offset.cast(), count, || next_symbol::sendfile(out, file, offset, count))
    }

    /// sendfile(2) by the name that it has in programs compiled for large files.
    fn sendfile64(out: c_int, file: c_int, offset: *mut off64_t, count: size_t) -> ssize_t {
        send_file(out, file, offset, count, || next_symbol::sendfile64(out, file, offset, count))
    }
}

#[inline(always)]
fn send_file(out: c_int, file: c_int, offset: *mut off64_t, len: usize, next: impl FnOnce() -> ssize_t) -> ssize_t {
    match dispatch::data(out, Way::Send) {
        // The kernel, too, sends files only.
        Target::Kernel | Target::Rsocket(_) if dispatch::setup(file).is_some() => errno::fail(EINVAL),
        Target::Kernel => next(),
        // By its number: the connection may begin to be forwarded.
        // SAFETY: the C contract.
        Target::Rsocket(_) => unsafe { send_to(out, file, offset, len) },
        Target::Fails(why) => errno::fail(why),
    }
}

/// # Safety
/// As sendfile's.
unsafe fn send_to(out: c_int, file: c_int, offset: *mut off64_t, count: usize) -> ssize_t {
    // SAFETY: as sendfile's: guaranteed by the caller.
    let start = unsafe { if offset.is_null() { libc::lseek64(file, 0, SEEK_CUR) } else { offset.read() } };
    if start < 0 {
        return if offset.is_null() && errno::get() != ESPIPE { -1 } else { errno::fail(EINVAL) };
    }
    let sent = with_buffer(|buffer| send_pieces(out, file, start, count.min(MAX_RW_COUNT), buffer));
    if sent > 0 {
        // SAFETY: as sendfile's: guaranteed by the caller.
        unsafe {
            if offset.is_null() {
                errno::keeping(|| libc::lseek64(file, start + sent as off64_t, SEEK_SET));
            } else {
                offset.write(start + sent as off64_t);
            }
        }
    }
    sent
}

fn with_buffer(call: impl FnOnce(&mut [u8]) -> ssize_t) -> ssize_t {
    // SAFETY: no pointers.
    let buffer = errno::keeping(|| unsafe { libc::calloc(1, PIECE) });
    if buffer.is_null() {
        return call(&mut [0; STACK_PIECE]);
    }
    // SAFETY: PIECE bytes, zeroed, which are used by `call` only and freed after it.
    unsafe {
        let result = call(slice::from_raw_parts_mut(buffer.cast::<u8>(), PIECE));
        errno::keeping(|| libc::free(buffer));
        result
    }
}

/// Returns the number of bytes sent before the end of the file or a failure, -1 if a failure came
/// first.
fn send_pieces(out: c_int, file: c_int, start: off64_t, count: usize, buffer: &mut [u8]) -> ssize_t {
    let mut sent = 0;
    while sent < count {
        let want = buffer.len().min(count - sent);
        // SAFETY: `want` bytes at `buffer` are writable.
        let have =
            unsafe { next_symbol::pread64(file, buffer.as_mut_ptr().cast::<c_void>(), want, start + sent as off64_t) };
        if have < 0 && sent == 0 {
            return if errno::get() == ESPIPE { errno::fail(EINVAL) } else { -1 };
        }
        let Some(piece) = usize::try_from(have).ok().and_then(|have| buffer.get(..have)) else { break };
        if piece.is_empty() {
            break;
        }
        match send_piece(out, piece) {
            0 if sent == 0 => return -1,
            part => {
                sent += part;
                if part < piece.len() {
                    break;
                }
            }
        }
    }
    sent as ssize_t
}

/// Returns the number of bytes of `piece` sent before a failure.
fn send_piece(out: c_int, piece: &[u8]) -> usize {
    let mut sent = 0;
    while let Some(rest) = piece.get(sent..).filter(|rest| !rest.is_empty()) {
        // SAFETY: `rest.len()` bytes at `rest` are readable.
        match usize::try_from(unsafe { super::send(out, rest.as_ptr().cast(), rest.len(), 0) }) {
            Ok(part) if part > 0 => sent += part,
            _ => break,
        }
    }
    sent
}
