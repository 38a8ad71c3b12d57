//! Multicast groups of datagram ids.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::sockaddr;

use super::completed::Completed;
use super::event::{forget_group, is_about_group};
use super::id::Id;
use super::library::library;
use crate::errno::{Errno, Result};
use crate::ffi::{rdma_cm_event_type, rdma_cm_join_mc_attr_ex, rdma_cm_join_mc_attr_mask, rdma_cm_mc_join_flags};
use crate::sys::alloc::{try_box, try_push};
use crate::sys::sockaddr::{AF_IB, SockAddr};
use crate::sys::ucma;
use crate::sys::verbs::{self, ibv_ah_attr, ibv_gid};

/// A membership. Its address is the `uid` of its events, so it is boxed.
pub(super) struct Group {
    id: NonNull<Id>,
    /// The kernel's name for it.
    handle: AtomicU32,
    /// The program's own.
    context: *mut c_void,
    addr: SockAddr,
    send_only: bool,
    /// Its events; the id counts them too.
    pub(super) completed: Completed,
    /// What the QP was attached to.
    attached: Mutex<Option<(ibv_gid, u16)>>,
}

/// For a membership whose handle the kernel has not told yet: none of its own.
const NOT_YET: u32 = u32::MAX;

/// The memberships of an id.
#[derive(Default)]
// Boxed: the kernel knows a membership by its address.
#[allow(clippy::vec_box)]
pub(super) struct Groups(Vec<Box<Group>>);

impl Groups {
    fn take(&mut self, wanted: impl Fn(&Group) -> bool) -> Option<Box<Group>> {
        let position = self.0.iter().position(|group| wanted(group))?;
        Some(self.0.remove(position))
    }
}

impl Group {
    /// Whose it is.
    pub(super) fn id(&self) -> &Id {
        // SAFETY: an id owns its memberships.
        unsafe { self.id.as_ref() }
    }

    /// The program's own.
    pub(super) fn context(&self) -> *const c_void {
        self.context
    }

    /// The kernel joined: attaches the id's QP to the group at `address`, unless it only sends.
    pub(super) fn joined(&self, address: &ibv_ah_attr) -> Result<()> {
        if self.send_only {
            return Ok(());
        }
        let (gid, lid) = (address.grh.dgid, address.dlid);
        if let Some(qp) = NonNull::new(self.id().qp()) {
            // SAFETY: the id's QP is live.
            unsafe { verbs::attach_mcast(qp, &gid, lid)? };
            *self.attached.lock().unwrap_or_else(PoisonError::into_inner) = Some((gid, lid));
        }
        Ok(())
    }

    fn detach(&self) {
        let attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some((gid, lid)), Some(qp)) = (attached, NonNull::new(self.id().qp())) {
            // The QP may have been replaced since; the kernel then has nothing to detach.
            // SAFETY: the id's QP is live.
            let _ = unsafe { verbs::detach_mcast(qp, &gid, lid) };
        }
    }
}

/// rdma_join_multicast(3): full membership.
///
/// # Safety
/// An address as long as its family says.
pub unsafe fn join_multicast(id: &Id, addr: NonNull<sockaddr>, context: *mut c_void) -> Result<()> {
    // SAFETY: an address as long as its family says: guaranteed by the caller.
    let addr = unsafe { SockAddr::from_c(addr)? };
    join(id, addr, rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_FULLMEMBER as u32, context)
}

/// rdma_join_multicast_ex(3). `ENOTSUP` for unknown fields, `EINVAL` where one is missing or wrong.
///
/// # Safety
/// A readable structure with an address as long as its family says.
pub unsafe fn join_multicast_ex(id: &Id, attr: NonNull<rdma_cm_join_mc_attr_ex>, context: *mut c_void) -> Result<()> {
    use rdma_cm_join_mc_attr_mask::*;
    // SAFETY: a readable structure with an address as long as its family says: guaranteed by the
    // caller.
    let attr = unsafe { attr.as_ref() };
    if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED as u32 {
        return Err(Errno::ENOTSUP);
    }
    let needed = RDMA_CM_JOIN_MC_ATTR_ADDRESS as u32 | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS as u32;
    if attr.comp_mask & needed != needed || attr.join_flags >= rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_RESERVED as u32
    {
        return Err(Errno::EINVAL);
    }
    let addr = NonNull::new(attr.addr).ok_or(Errno::EINVAL)?;
    // SAFETY: a readable structure with an address as long as its family says: guaranteed by the
    // caller.
    let addr = unsafe { SockAddr::from_c(addr)? };
    join(id, addr, attr.join_flags, context)
}

fn join(id: &Id, addr: SockAddr, flags: u32, context: *mut c_void) -> Result<()> {
    let send_only = flags == rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER as u32;
    let group = try_box(Group {
        id: NonNull::from(id),
        handle: AtomicU32::new(NOT_YET),
        context,
        addr,
        send_only,
        completed: Completed::default(),
        attached: Mutex::new(None),
    })?;
    let address: *const Group = &raw const *group;
    try_push(&mut id.state().groups.0, group)?;
    let operation = id.operation();
    let joined = enter(id, address as usize as u64, &addr, flags);
    let handle = joined.inspect_err(|_| {
        drop(id.state().groups.take(|group| std::ptr::eq(group, address)));
    })?;
    // SAFETY: only this thread knows the membership until the call returns; a second thread that leaves it
    // meanwhile breaks the rule that uses of an id are ordered.
    unsafe { &*address }.handle.store(handle, Ordering::Relaxed);
    operation.complete().inspect_err(|_| drop_failed(id, address))
}

/// The kernel's half of joining.
fn enter(id: &Id, uid: u64, addr: &SockAddr, flags: u32) -> Result<u32> {
    if library()?.af_ib()? {
        return ucma::join_mcast(id.fd(), id.handle(), uid, addr, flags as u16);
    }
    // The older command knows neither AF_IB nor flags: who only wants to send becomes a full member whose QP is not
    // attached.
    if addr.family() == AF_IB {
        return Err(Errno::EINVAL);
    }
    ucma::join_ip_mcast(id.fd(), id.handle(), uid, addr)
}

/// A synchronous join that ended in an error event leaves no membership behind; the event stays for the program.
/// Without an event (the wait was interrupted) the join goes on, and so does the membership.
fn drop_failed(id: &Id, address: *const Group) {
    let Some(event) = NonNull::new(id.event()) else { return };
    // SAFETY: the event of a synchronous id is the library's and live, and so is the membership. The event may be
    // about another one that was lost meanwhile.
    let failed = unsafe {
        (*event.as_ptr()).event == rdma_cm_event_type::RDMA_CM_EVENT_MULTICAST_ERROR as u32
            && is_about_group(event, &(*address).completed)
    };
    if !failed {
        return;
    }
    let Some(group) = id.state().groups.take(|group| std::ptr::eq(group, address)) else { return };
    // Events of it that still wait go with it.
    if ucma::leave_mcast(id.fd(), group.handle.load(Ordering::Relaxed)).is_err() {
        keep(id, group);
        return;
    }
    // SAFETY: as above.
    unsafe { forget_group(event) };
}

/// Keeps a membership that the kernel did not end: it may still report events of it, by its
/// address.
fn keep(id: &Id, group: Box<Group>) {
    let groups = &mut id.state().groups.0;
    match groups.try_reserve(1) {
        Ok(()) => groups.push(group),
        // Without room in the list it stays all the same.
        Err(_) => drop(Box::leak(group)),
    }
}

/// rdma_leave_multicast(3): `EADDRNOTAVAIL` for a group that was not joined. Waits until every event that was
/// reported for it is acknowledged.
///
/// # Safety
/// An address as long as its family says.
pub unsafe fn leave_multicast(id: &Id, addr: NonNull<sockaddr>) -> Result<()> {
    // SAFETY: an address as long as its family says: guaranteed by the caller.
    let addr = unsafe { SockAddr::from_c(addr)? };
    let group = id.state().groups.take(|group| group.addr.bytes() == addr.bytes());
    let group = group.ok_or(Errno::EADDRNOTAVAIL)?;
    match ucma::leave_mcast(id.fd(), group.handle.load(Ordering::Relaxed)) {
        Ok(reported) => {
            if id.is_sync() {
                // It may be the join's, which nobody else would acknowledge.
                id.drop_event();
            }
            group.completed.wait_for(reported);
            // Not earlier: a thread that has just read that it is joined attaches the QP.
            group.detach();
            Ok(())
        }
        Err(error) => {
            keep(id, group);
            Err(error)
        }
    }
}
