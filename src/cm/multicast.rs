//! Multicast groups of datagram ids.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::event::{forget_group, keeps_failed_join};
use super::id::{Completed, Group, Id};
use super::library::library;
use crate::errno::{Errno, Result};
use crate::ffi::{rdma_cm_join_mc_attr_mask, rdma_cm_mc_join_flags};
use crate::os::alloc::{try_box, try_push};
use crate::os::sockaddr::{AF_IB, AddrRef, SockAddr};
use crate::os::sync::Mutex;
use crate::ucm;
use crate::verbs::{self, ibv_ah_attr, ibv_gid};

/// The handle of a membership before the kernel has assigned one. The kernel does not use this
/// value.
const NO_HANDLE: u32 = u32::MAX;

impl Group {
    /// Returns the id that is the member.
    pub(super) fn id(&self) -> &Id {
        // SAFETY: an id owns its memberships, so they do not outlive it.
        unsafe { self.id.as_ref() }
    }

    /// Returns the kernel's handle, or [`NO_HANDLE`] before the kernel has joined the group.
    fn handle(&self) -> u32 {
        self.handle.load(Ordering::Relaxed)
    }

    /// Attaches the id's QP, if there is one, to the group at `address`, which the kernel has
    /// joined. Does nothing for a send-only membership.
    pub(super) fn joined(&self, address: &ibv_ah_attr) -> Result<()> {
        if self.send_only {
            return Ok(());
        }
        let (gid, lid) = (address.grh.dgid, address.dlid);
        if let Some(qp) = NonNull::new(self.id().qp()) {
            // SAFETY: the QP of an id is live until rdma_destroy_qp(3), which clears the field.
            unsafe { verbs::attach_mcast(qp, &gid, lid)? };
            *self.attached.lock() = Some((gid, lid));
        }
        Ok(())
    }
}

fn detach(id: &Id, (gid, lid): (ibv_gid, u16)) {
    if let Some(qp) = NonNull::new(id.qp()) {
        // If the QP was replaced since it was attached, the kernel has nothing to detach.
        // SAFETY: the QP of an id is live until rdma_destroy_qp(3), which clears the field.
        let _ = unsafe { verbs::detach_mcast(qp, &gid, lid) };
    }
}

/// Detaches the id's QP from all groups; the id stays a member.
pub(super) fn detach_all(id: &Id) {
    // `next` releases the lock of the id's state: the QP is detached without the lock.
    let next = || id.state().groups.iter().find_map(|group| group.attached.lock().take());
    while let Some(place) = next() {
        detach(id, place);
    }
}

/// The attributes of a join: `struct rdma_cm_join_mc_attr_ex`.
#[derive(Clone, Copy)]
pub struct JoinAttr<'a> {
    /// The fields that are set: bits of `enum rdma_cm_join_mc_attr_mask`.
    pub comp_mask: u32,
    /// `enum rdma_cm_mc_join_flags`.
    pub join_flags: u32,
    /// The address of the group; `None` for NULL.
    pub addr: Option<AddrRef<'a>>,
}

/// Implements rdma_join_multicast(3): joins as a full member.
pub fn join_multicast(id: &Id, addr: &SockAddr, context: *mut c_void) -> Result<()> {
    join(id, *addr, rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_FULLMEMBER as u32, context)
}

/// Implements rdma_join_multicast_ex(3).
///
/// # Errors
/// Fails with `ENOTSUP` for unknown fields, and with `EINVAL` if a field is missing or invalid.
pub fn join_multicast_ex(id: &Id, attr: JoinAttr<'_>, context: *mut c_void) -> Result<()> {
    use rdma_cm_join_mc_attr_mask::*;
    if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED as u32 {
        return Err(Errno::ENOTSUP);
    }
    let needed = RDMA_CM_JOIN_MC_ATTR_ADDRESS as u32 | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS as u32;
    if attr.comp_mask & needed != needed || attr.join_flags >= rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_RESERVED as u32
    {
        return Err(Errno::EINVAL);
    }
    let addr = attr.addr.ok_or(Errno::EINVAL)?.read()?;
    join(id, addr, attr.join_flags, context)
}

fn join(id: &Id, addr: SockAddr, flags: u32, context: *mut c_void) -> Result<()> {
    let send_only = flags == rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER as u32;
    let address = add(id, addr, send_only, context)?;
    let operation = id.operation();
    // SAFETY: the id owns the group, which stays in place until the membership or the id ends.
    unsafe { join_in_kernel(id, address, &addr, flags) }.inspect_err(|_| drop(remove(id, address)))?;
    operation.complete().inspect_err(|_| drop_failed(id, address))
}

/// Adds a membership that the kernel does not know yet. Returns its address.
fn add(id: &Id, addr: SockAddr, send_only: bool, context: *mut c_void) -> Result<*const Group> {
    let group = try_box(Group {
        id: NonNull::from(id),
        handle: AtomicU32::new(NO_HANDLE),
        context,
        addr,
        send_only,
        completed: Completed::default(),
        attached: Mutex::new(None),
    })?;
    let address: *const Group = &raw const *group;
    try_push(&mut id.state().groups, group)?;
    Ok(address)
}

/// Removes the first membership that matches.
fn take(id: &Id, matches: impl Fn(&Group) -> bool) -> Option<Box<Group>> {
    let groups = &mut id.state().groups;
    let position = groups.iter().position(|group| matches(group))?;
    Some(groups.remove(position))
}

fn remove(id: &Id, address: *const Group) -> Option<Box<Group>> {
    take(id, |group| std::ptr::eq(group, address))
}

/// Joins in the kernel, which stores the handle of the membership in the group. Once the kernel has
/// started the join, the id and its groups belong to the thread that reads the id's events.
///
/// # Safety
/// `group` is live, and is one of the id's groups until the kernel has started the join.
unsafe fn join_in_kernel(id: &Id, group: *const Group, addr: &SockAddr, flags: u32) -> Result<()> {
    let uid = group as usize as u64;
    // SAFETY: the group is live: guaranteed by the caller.
    let handle = unsafe { (*group).handle.as_ptr() };
    if library()?.af_ib()? {
        // SAFETY: the kernel writes the handle before it ends the membership, and the group is not
        // freed before the membership has ended.
        return unsafe { ucm::join_mcast(id.fd(), id.handle(), uid, addr, flags as u16, handle) };
    }
    // The older command supports neither AF_IB nor flags: a send-only member becomes a full member
    // whose QP is not attached.
    if addr.family() == AF_IB {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the kernel writes the handle before the group can be freed (see above).
    unsafe { ucm::join_ip_mcast(id.fd(), id.handle(), uid, addr, handle) }
}

/// Removes the membership of a synchronous join that ended with an error event. The id keeps the
/// event for the program. If there is no event, because the wait was interrupted, the join
/// continues, and the membership is kept.
fn drop_failed(id: &Id, address: *const Group) {
    // SAFETY: the group is live: nothing has ended the membership yet.
    let failed = keeps_failed_join(id, unsafe { &(*address).completed });
    if !failed {
        return;
    }
    let Some(group) = remove(id, address) else { return };
    // The kernel drops the unread events of the membership.
    if ucm::leave_mcast(id.fd(), group.handle()).is_err() {
        keep(id, group);
        return;
    }
    forget_group(id);
}

/// Keeps a membership that the kernel did not end: events with its address may still come.
fn keep(id: &Id, group: Box<Group>) {
    let groups = &mut id.state().groups;
    match groups.try_reserve(1) {
        Ok(()) => groups.push(group),
        // Without memory for the list, the membership is leaked.
        Err(_) => drop(Box::leak(group)),
    }
}

/// Implements rdma_leave_multicast(3). Waits until all reported events of the membership are
/// acknowledged.
///
/// # Errors
/// Fails with `EADDRNOTAVAIL` if the id is not a member of the group.
pub fn leave_multicast(id: &Id, addr: &SockAddr) -> Result<()> {
    // Skip a membership that another thread is adding: if the kernel rejects the join, that thread
    // has to find the membership in the list. The kernel assigns the handle when the join cannot
    // fail any more.
    let matches = |group: &Group| group.handle() != NO_HANDLE && group.addr.bytes() == addr.bytes();
    let group = take(id, matches).ok_or(Errno::EADDRNOTAVAIL)?;
    match ucm::leave_mcast(id.fd(), group.handle()) {
        Ok(reported) => {
            if id.is_sync() {
                // The id may keep the event of the join, which the program does not acknowledge.
                id.drop_event();
            }
            group.completed.wait_for(reported);
            // Detach only now: until the join event is acknowledged, another thread may be
            // attaching the QP to the group.
            let place = group.attached.lock().take();
            place.into_iter().for_each(|place| detach(id, place));
            Ok(())
        }
        Err(error) => {
            keep(id, group);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::{rdma_event_channel, rdma_port_space};
    use crate::verbs::ibv_qp_type;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::{ptr, thread};

    /// Returns a socket on which a write blocks until the other end is closed, and the other end.
    fn blocked_socket() -> (UnixStream, UnixStream) {
        let (mut full, other) = UnixStream::pair().unwrap();
        full.set_nonblocking(true).unwrap();
        for size in [4096, 1] {
            while full.write(&[0; 4096][..size]).is_ok() {}
        }
        full.set_nonblocking(false).unwrap();
        (full, other)
    }

    fn group_address() -> SockAddr {
        // SAFETY: all zeros are a value of this structure of numbers.
        let mut addr: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        addr.sin_family = libc::AF_INET as u16;
        addr.sin_addr.s_addr = u32::from_ne_bytes([239, 1, 1, 2]);
        // SAFETY: a plain structure without padding.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const addr).cast(), size_of_val(&addr)) };
        SockAddr::from_bytes(bytes).unwrap()
    }

    #[test]
    fn a_send_only_member_attaches_no_qp() {
        let id = Id::new(ptr::null_mut(), rdma_port_space::RDMA_PS_UDP as u32, ibv_qp_type::IBV_QPT_UD);
        id.set_qp(ptr::without_provenance_mut(8));
        add(&id, group_address(), true, ptr::null_mut()).unwrap();
        // SAFETY: all zeros are a value of this structure of numbers.
        let address = unsafe { std::mem::zeroed() };
        // Another member would attach the QP, which does not exist.
        assert_eq!(id.state().groups[0].joined(&address), Ok(()));
        id.set_qp(ptr::null_mut());
    }

    /// The kernel refuses a join while another thread leaves the same group.
    #[test]
    fn a_join_that_fails_beside_a_leave_leaves_no_membership() {
        let (commands, kernel) = blocked_socket();
        let mut channel = rdma_event_channel { fd: commands.as_raw_fd() };
        let id = Id::new(ptr::null_mut(), rdma_port_space::RDMA_PS_UDP as u32, ibv_qp_type::IBV_QPT_UD);
        id.set_channel(&raw mut channel);
        let addr = group_address();
        let joining = add(&id, addr, false, ptr::null_mut()).unwrap();
        thread::scope(|scope| {
            let leaving = scope.spawn(|| leave_multicast(&id, &addr));
            // The thread has found the membership, or has ended without it.
            while id.state().groups.len() == 1 && !leaving.is_finished() {
                thread::yield_now();
            }
            drop(remove(&id, joining));
            // A command that has begun fails.
            drop(kernel);
            let left = leaving.join().unwrap();
            assert!(id.state().groups.is_empty());
            assert_eq!(left, Err(Errno::EADDRNOTAVAIL));
        });
    }
}
