//! Descriptors that leave RDMA: by connect(2) with AF_UNSPEC, and because calls use them that do
//! not come here.

use core::ffi::c_int;

use libc::{AF_UNSPEC, EOPNOTSUPP, SCM_RIGHTS, SOL_SOCKET, cmsghdr, msghdr, sa_family_t, sockaddr, socklen_t};

use super::shared::Use;
use super::{connect, connections, execute_with, listeners, log, release_rsocket};
use crate::epoll::members;
use crate::table::{self, Entry, Kind};
use crate::transition::{is_auto, is_number_of};
use crate::{errno, open_fds, process, rsocket};

// connect(2) with AF_UNSPEC, which ends a connection, an attempt or a listener of TCP and leaves
// the socket to be used anew.

/// Whether an address of connect(2) has the family AF_UNSPEC.
///
/// # Safety
/// `addr` is NULL or readable for `len` bytes.
pub unsafe fn is_asked(addr: *const sockaddr, len: socklen_t) -> bool {
    // SAFETY: `addr` has `len` bytes: guaranteed by the caller.
    !addr.is_null()
        && len as usize >= size_of::<sa_family_t>()
        && c_int::from(unsafe { (&raw const (*addr).sa_family).read_unaligned() }) == AF_UNSPEC
}

/// Makes a number of automatic mode a socket of the kernel's, without its rsockets.
pub fn leave_rdma(fd: c_int, entry: Entry) {
    if process::is_guest() {
        return;
    }
    match entry.kind {
        Kind::Socket if is_auto(entry) => errno::keeping(|| reset(entry.handle)),
        Kind::Connecting if table::replace(fd, Some(entry), None) => errno::keeping(|| connect::abandon(entry)),
        Kind::Listener => errno::keeping(|| listeners::stop(entry)),
        Kind::Forwarded => {
            table::replace(fd, Some(entry), None);
        }
        _ => {}
    }
}

/// Closes the rsocket of all its descriptors, as TCP does: the peer sees a reset.
fn reset(rsocket: c_int) {
    rsocket::reset_when_closed(rsocket);
    table::each(|number, entry| {
        if is_number_of(rsocket, entry) && table::replace(number, Some(entry), None) {
            members::begin(number);
            release_rsocket(entry);
        }
    });
}

// Descriptors that will be used by calls that do not come here: those of another process to which
// they are passed (SCM_RIGHTS), and the C library's own (stdio).
//
// The data of a connection by RDMA is forwarded from then on ([`super::forward`]), so that its
// descriptor is a TCP socket of the kernel for every use.

/// The entry of a descriptor without an attempt, which ends first. A child of vfork(2) cannot end
/// its parent's.
fn settled(fd: c_int) -> Option<Entry> {
    loop {
        match table::get(fd) {
            Some(entry) if entry.kind == Kind::Connecting && !process::is_guest() => super::end_attempt(fd, entry),
            entry => return entry,
        }
    }
}

/// Leaves a descriptor to the kernel. Fails for rsockets that are not of automatic mode, whose
/// descriptors are no sockets of the kernel.
pub fn leave_to_kernel(fd: c_int) -> Result<(), c_int> {
    let Some(entry) = settled(fd) else { return Ok(()) };
    errno::keeping(|| match entry.kind {
        Kind::Socket if is_auto(entry) => {
            connections::forward_from_now(fd, entry.handle, Use::Inherited).map_err(|_| libc::ENOBUFS)
        }
        Kind::Socket => Err(EOPNOTSUPP),
        Kind::Listener => {
            listeners::leave_to_kernel(entry, log::Reason::Passed);
            Ok(())
        }
        Kind::Forwarded | Kind::Pending | Kind::Epoll | Kind::Connecting => {
            super::before_wait(entry);
            Ok(())
        }
    })
}

/// A program that is about to be executed gets the connection of a descriptor: its data is
/// forwarded from now on. A program gets a listener as it is.
pub fn give_to_program(fd: c_int) {
    let Some(entry) = settled(fd) else { return };
    errno::keeping(|| match entry.kind {
        Kind::Socket if process::is_guest() => super::guest_copies(fd, entry),
        Kind::Socket if is_auto(entry) => {
            if let Err(reason) = connections::forward_from_now(fd, entry.handle, Use::Executed) {
                log::not_given(fd, "program that is executed with it", reason);
            }
        }
        _ => execute_with(entry),
    });
}

/// A descriptor is about to lose FD_CLOEXEC, which it loses for a program only.
pub fn loses_cloexec(fd: c_int) {
    if table::get(fd).is_some() && errno::keeping(|| !open_fds::is_inheritable(fd)) {
        give_to_program(fd);
    }
}

/// sendmsg(2) is about to pass descriptors to another process.
///
/// # Safety
/// As for sendmsg(2).
#[inline(always)]
pub unsafe fn before_sendmsg(message: *const msghdr) -> Result<(), c_int> {
    // SAFETY: as for this function.
    unsafe {
        match message.as_ref() {
            Some(message) if !message.msg_control.is_null() && table::any() => pass(message),
            _ => Ok(()),
        }
    }
}

/// # Safety
/// The control messages of `message` are readable.
#[cold]
unsafe fn pass(message: &msghdr) -> Result<(), c_int> {
    const HEADER: usize = size_of::<cmsghdr>();
    let (start, end) = (message.msg_control.cast::<u8>(), message.msg_controllen);
    let mut offset = 0;
    while offset + HEADER <= end {
        // SAFETY: within the control messages.
        let header = unsafe { start.add(offset).cast::<cmsghdr>().read_unaligned() };
        if header.cmsg_len < HEADER || header.cmsg_len > end - offset {
            // The kernel's error to report.
            return Ok(());
        }
        if (header.cmsg_level, header.cmsg_type) == (SOL_SOCKET, SCM_RIGHTS) {
            for number in 0..(header.cmsg_len - HEADER) / size_of::<c_int>() {
                // SAFETY: within this control message.
                let fd = unsafe { start.add(offset + HEADER).cast::<c_int>().add(number).read_unaligned() };
                leave_to_kernel(fd)?;
            }
        }
        offset += header.cmsg_len.next_multiple_of(align_of::<cmsghdr>());
    }
    Ok(())
}
