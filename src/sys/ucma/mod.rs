//! Commands of the `rdma_cm` device (`rdma/rdma_user_cm.h`): one function a command, typed arguments and answers.
//!
//! A command is one write(2) of `{cmd, in, out}` and its structure; the answer comes through the address in `response`.

mod commands;
mod recent;

pub use commands::*;
pub use recent::*;

use std::mem::size_of;
use std::os::fd::RawFd;

use super::uapi::rdma_ucm_cmd_hdr;
use crate::errno::{Errno, Result};
use crate::sys::cancel;

#[repr(C)]
struct Message<T> {
    header: rdma_ucm_cmd_hdr,
    body: T,
}

/// Writes one command; `out` is the size of the memory that `body.response` points at, 0 without one.
///
/// # Safety
/// `body` is the kernel's structure for `cmd`, and the addresses in it are valid for the sizes that it and `out` tell.
unsafe fn issue<T>(fd: RawFd, cmd: u32, body: T, out: usize) -> Result<()> {
    // Not a place to be cancelled at: locks may be held, and the answer is wanted.
    // SAFETY: `body` and the sizes fit the command, as this function's contract has it.
    cancel::disabled(|| unsafe { send(fd, cmd, body, out) })
}

/// As [`issue`], of a command that waits: the thread may be cancelled in it.
///
/// # Safety
/// As there.
unsafe fn issue_and_wait<T>(fd: RawFd, cmd: u32, body: T, out: usize) -> Result<()> {
    // SAFETY: `body` and the sizes fit the command, as this function's contract has it.
    cancel::sleep(|| unsafe { send(fd, cmd, body, out) })
}

/// # Safety
/// As for [`issue`].
unsafe fn send<T>(fd: RawFd, cmd: u32, body: T, out: usize) -> Result<()> {
    let header = rdma_ucm_cmd_hdr { cmd, in_: size_of::<T>() as u16, out: out as u16 };
    let message = Message { header, body };
    let length = size_of::<Message<T>>();
    // SAFETY: the message is readable for its length; what the kernel makes of it is the caller's
    // word.
    let written = unsafe { libc::write(fd, (&raw const message).cast(), length) };
    match usize::try_from(written) {
        Ok(written) if written == length => Ok(()),
        // A short write has no errno of its own.
        Ok(_) => Err(Errno::ENODATA),
        Err(_) => Err(Errno::last()),
    }
}

/// The address of `answer` as the kernel takes it.
fn response<T: ?Sized>(answer: *mut T) -> u64 {
    answer.cast::<u8>() as usize as u64
}
