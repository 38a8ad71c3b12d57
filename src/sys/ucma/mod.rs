//! Commands of the `rdma_cm` device (`rdma/rdma_user_cm.h`): one function for each
//! command, with typed arguments and answers.
//!
//! A command is one write(2) of `{cmd, in, out}` and its structure. The kernel writes the answer to
//! the address in `response`.

mod commands;
mod recent;

pub use commands::*;
pub use recent::*;

use std::mem::size_of;
use std::os::fd::RawFd;

use super::uapi::rdma_ucm_cmd_hdr;
use crate::errno::{Errno, Result};
use crate::sys::{cancel, race_detector};

#[repr(C)]
struct Message<T> {
    header: rdma_ucm_cmd_hdr,
    body: T,
}

/// Writes one command. `out` is the size of the memory at `body.response`; 0 if there is no answer.
///
/// # Safety
/// `body` is the kernel's structure for `cmd`. The memory at the addresses in it is valid for the
/// sizes in it, and for `out` bytes at `response`.
unsafe fn issue<T>(fd: RawFd, cmd: u32, body: T, out: usize) -> Result<()> {
    // Locks may be held, and the answer must not be lost: no cancellation.
    // SAFETY: `body` and the sizes belong to the command: guaranteed by the caller.
    cancel::disabled(|| unsafe { send(fd, cmd, body, out) })
}

/// As [`issue`], for a command that waits: the thread may be cancelled while it does.
///
/// # Safety
/// As for [`issue`].
unsafe fn issue_and_wait<T>(fd: RawFd, cmd: u32, body: T, out: usize) -> Result<()> {
    // SAFETY: `body` and the sizes belong to the command: guaranteed by the caller.
    cancel::sleep(|| unsafe { send(fd, cmd, body, out) })
}

/// # Safety
/// As for [`issue`].
unsafe fn send<T>(fd: RawFd, cmd: u32, body: T, out: usize) -> Result<()> {
    let header = rdma_ucm_cmd_hdr { cmd, in_: size_of::<T>() as u16, out: out as u16 };
    let message = Message { header, body };
    let length = size_of::<Message<T>>();
    race_detector::before_command();
    // SAFETY: the message is readable for its length; the addresses in it are valid: guaranteed by
    // the caller.
    let written = unsafe { libc::write(fd, (&raw const message).cast(), length) };
    match usize::try_from(written) {
        Ok(written) if written == length => Ok(()),
        // A short write sets no errno.
        Ok(_) => Err(Errno::ENODATA),
        Err(_) => Err(Errno::last()),
    }
}

/// Returns the address of `answer` in the kernel's format.
fn response<T: ?Sized>(answer: *mut T) -> u64 {
    answer.cast::<u8>() as usize as u64
}
