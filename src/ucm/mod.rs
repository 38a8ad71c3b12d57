//! Commands of the `rdma_cm` device (`rdma/rdma_user_cm.h`): one function for each
//! command, with typed arguments and answers.
//!
//! A command is one write(2) of `{cmd, in, out}` and the command's structure. The kernel writes the
//! answer to the address in `response`.

pub mod chardev;
mod commands;
mod recent;

pub use commands::*;
pub use recent::*;

use std::mem::{MaybeUninit, size_of};
use std::os::fd::RawFd;
use std::ptr;

use crate::errno::{Errno, Result};
use crate::os::cancel;
use crate::os::uapi::rdma_ucm_cmd_hdr;

#[repr(C)]
struct Message<T> {
    header: rdma_ucm_cmd_hdr,
    body: T,
}

/// Writes one command. `out` is the size of the memory at `body.response`; 0 if there is no answer.
///
/// # Safety
/// `body` is the kernel's structure for `cmd`. The memory at the addresses in it is valid for the
/// sizes in it, and the memory at `response` is writable for `out` bytes.
unsafe fn issue<T>(fd: RawFd, cmd: u32, body: T, out: usize) -> Result<()> {
    // SAFETY: `body` and `out` fit `cmd`: guaranteed by the caller.
    unsafe { issue_filled(fd, cmd, out, |place: &mut T| *place = body) }
}

/// Like [`issue`], for a command with an answer, which the kernel writes to `answer`. `body` makes
/// the command's structure from the address of the answer.
///
/// # Safety
/// The structure is as [`issue`] requires it. The kernel's answer is an `A`, which consists of
/// numbers.
unsafe fn ask<A, T>(fd: RawFd, cmd: u32, answer: &mut A, body: impl FnOnce(u64) -> T) -> Result<()> {
    let body = body(response(answer));
    // SAFETY: the body fits `cmd`: guaranteed by the caller. The answer is writable for its size.
    unsafe { issue(fd, cmd, body, size_of::<A>()) }
}

/// Like [`issue`], but avoids a copy of a long structure: `fill` sets the zeroed structure in
/// place.
///
/// # Safety
/// The structure that `fill` sets is as [`issue`] requires it, and `T` consists of numbers.
unsafe fn issue_filled<T>(fd: RawFd, cmd: u32, out: usize, fill: impl FnOnce(&mut T)) -> Result<()> {
    let mut message = MaybeUninit::<Message<T>>::zeroed();
    // SAFETY: zeros are a value of `T`, which consists of numbers: guaranteed by the caller.
    let message = unsafe { message.assume_init_mut() };
    message.header = header::<T>(cmd, out);
    fill(&mut message.body);
    before_command();
    // A direct system call, which is not a cancellation point: locks may be held, and the answer
    // must not be lost.
    // SAFETY: the message is readable for its length; the addresses in it are valid: guaranteed by
    // the caller.
    let written = unsafe { libc::syscall(libc::SYS_write, fd, ptr::from_ref(message), size_of::<Message<T>>()) };
    check::<T>(written as isize)
}

/// Like [`issue`], for a command that waits. The thread may be cancelled during the wait.
///
/// # Safety
/// `body` and `out` are as [`issue`] requires them.
unsafe fn issue_and_wait<T>(fd: RawFd, cmd: u32, body: T, out: usize) -> Result<()> {
    let message = Message { header: header::<T>(cmd, out), body };
    before_command();
    // SAFETY: the message is readable for its length, and the addresses in it are valid.
    let write = || unsafe { libc::write(fd, (&raw const message).cast(), size_of::<Message<T>>()) };
    check::<T>(cancel::sleep(write))
}

fn header<T>(cmd: u32, out: usize) -> rdma_ucm_cmd_hdr {
    rdma_ucm_cmd_hdr { cmd, in_: size_of::<T>() as u16, out: out as u16 }
}

/// Converts the result of the write(2) of a message.
fn check<T>(written: isize) -> Result<()> {
    match usize::try_from(written) {
        Ok(written) if written == size_of::<Message<T>>() => Ok(()),
        // A short write sets no errno.
        Ok(_) => Err(Errno::ENODATA),
        Err(_) => Err(Errno::last()),
    }
}

/// Returns the address of `answer` in the kernel's format.
fn response<T: ?Sized>(answer: *mut T) -> u64 {
    answer.cast::<u8>() as usize as u64
}

/// Called before a command that may cause an event. Tells ThreadSanitizer (`scripts/sanitized`) how
/// the kernel synchronizes threads: what a thread has written before it issues a command is visible
/// to the thread that reads the event which the command causes. Empty in all other builds, as is
/// [`after_event`].
#[inline]
fn before_command() {
    #[cfg(thread_sanitizer)]
    // SAFETY: any address may be given: it only names the synchronization.
    unsafe {
        __tsan_release((&raw const EVENTS).cast_mut().cast());
    }
}

/// Called after an event was read (see [`before_command`]).
#[inline]
fn after_event() {
    #[cfg(thread_sanitizer)]
    // SAFETY: any address may be given: it only names the synchronization.
    unsafe {
        __tsan_acquire((&raw const EVENTS).cast_mut().cast());
    }
}

#[cfg(thread_sanitizer)]
static EVENTS: u8 = 0;

#[cfg(thread_sanitizer)]
unsafe extern "C" {
    fn __tsan_acquire(address: *mut std::ffi::c_void);
    fn __tsan_release(address: *mut std::ffi::c_void);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_write_is_an_error() {
        let whole = size_of::<Message<u32>>() as isize;
        assert_eq!(check::<u32>(whole), Ok(()));
        assert_eq!(check::<u32>(whole - 1).err(), Some(Errno::ENODATA));
    }
}
