//! Descriptors that leave RDMA: by connect(2) with AF_UNSPEC, or because they will be used by calls
//! that this library does not intercept.

use core::ffi::c_int;

use libc::{AF_UNSPEC, EOPNOTSUPP, SCM_RIGHTS, SOL_SOCKET, cmsghdr, msghdr, sa_family_t, sockaddr, socklen_t};

use super::shared::Use;
use super::{connect, connections, execute_with, listeners, log, release_rsocket};
use crate::epoll::members;
use crate::table::{self, Entry, Kind};
use crate::transition::{is_auto, is_entry_of};
use crate::{errno, open_fds, process, rsocket};

// connect(2) with AF_UNSPEC, which ends a connection, an attempt or a listener of TCP, so that the
// program can use the socket anew.

/// Whether an address of connect(2) has the family AF_UNSPEC.
///
/// # Safety
/// `addr` is NULL or readable for `len` bytes.
pub unsafe fn is_asked(addr: *const sockaddr, len: socklen_t) -> bool {
    // SAFETY: `addr` is not NULL and has `len` bytes: guaranteed by the caller.
    !addr.is_null()
        && len as usize >= size_of::<sa_family_t>()
        && c_int::from(unsafe { (&raw const (*addr).sa_family).read_unaligned() }) == AF_UNSPEC
}

/// Makes a descriptor of automatic mode a kernel socket without rsockets. Does nothing in a child
/// of vfork(2).
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

/// Removes an rsocket from all its descriptors, and closes it by a reset, as TCP does.
fn reset(rsocket: c_int) {
    rsocket::reset_when_closed(rsocket);
    table::each(|fd, entry| {
        if is_entry_of(rsocket, entry) && table::replace(fd, Some(entry), None) {
            members::begin(fd);
            release_rsocket(entry);
        }
    });
}

// Descriptors that will be used by calls that this library does not intercept: calls of another
// process to which the descriptors are passed (SCM_RIGHTS), and the C library's own calls (stdio).
//
// The library first starts to forward the data of an RDMA connection ([`super::forward`]); the
// descriptor is then a kernel TCP socket for every use.

/// Returns the entry of a descriptor, after ending its attempt if there is one. A child of vfork(2)
/// cannot end its parent's attempt.
fn settled(fd: c_int) -> Option<Entry> {
    loop {
        match table::get(fd) {
            Some(entry) if entry.kind == Kind::Connecting && !process::is_guest() => super::end_attempt(fd, entry),
            entry => return entry,
        }
    }
}

/// Makes a descriptor usable by calls that are not intercepted. Fails with EOPNOTSUPP for an
/// rsocket of another mode, which has no kernel socket, and with ENOBUFS if the connection cannot
/// be forwarded.
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

/// Called before a program is executed with a descriptor. The data of an RDMA connection is
/// forwarded from now on; a listener is left as it is.
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

/// Called before FD_CLOEXEC is cleared: an executed program will inherit `fd`.
pub fn loses_cloexec(fd: c_int) {
    if table::get(fd).is_some() && errno::keeping(|| !open_fds::is_inheritable(fd)) {
        give_to_program(fd);
    }
}

/// Called before sendmsg(2): makes the descriptors that it passes usable in another process. Fails
/// with the errno for sendmsg(2).
///
/// # Safety
/// `message` is NULL or valid for sendmsg(2).
#[inline(always)]
pub unsafe fn before_sendmsg(message: *const msghdr) -> Result<(), c_int> {
    // SAFETY: `message` is NULL or valid: guaranteed by the caller.
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
        // SAFETY: `HEADER` bytes at `offset` are within the control messages, which are readable.
        let header = unsafe { start.add(offset).cast::<cmsghdr>().read_unaligned() };
        if header.cmsg_len < HEADER || header.cmsg_len > end - offset {
            // The control message is invalid; the kernel reports this.
            return Ok(());
        }
        if (header.cmsg_level, header.cmsg_type) == (SOL_SOCKET, SCM_RIGHTS) {
            for index in 0..(header.cmsg_len - HEADER) / size_of::<c_int>() {
                // SAFETY: this control message, whose length was checked, has that many
                // descriptors.
                let fd = unsafe { start.add(offset + HEADER).cast::<c_int>().add(index).read_unaligned() };
                leave_to_kernel(fd)?;
            }
        }
        offset += header.cmsg_len.next_multiple_of(align_of::<cmsghdr>());
    }
    Ok(())
}
