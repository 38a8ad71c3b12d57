//! Ids: the public structure, what the library keeps behind it, creation and destruction.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::channel::{create_event_channel, destroy_event_channel};
use super::completed::Completed;
use super::device::{self, Bound, Limits};
use super::endpoint::Template;
use super::event::{ack_cm_event, get_cm_event};
use super::handles;
use super::library::library;
use super::lookup::Search;
use super::multicast::Groups;
use crate::diag::probes;
use crate::errno::{Errno, Result};
use crate::ffi::{
    ibv_sa_path_rec, rdma_addr, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_event_channel, rdma_port_space,
};
use crate::sys::alloc::try_box;
use crate::sys::own::OwnFd;
use crate::sys::uapi::rdma_ucm_ece;
use crate::sys::ucma;
use crate::sys::verbs::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_type, ibv_srq, ibv_transport_type,
};

/// An id: `struct rdma_cm_id`, which programs read and write, with the library's part behind it.
///
/// Its address is what the kernel sends back in events (`uid`), so it never moves. The public fields have no lock:
/// C programs order their uses of an id themselves (rdma_cm(7)).
#[repr(C)]
pub struct Id {
    public: UnsafeCell<rdma_cm_id>,
    /// The kernel's name for it.
    handle: AtomicU32,
    /// Owns its channel: every call waits for the event that ends it.
    sync: AtomicBool,
    /// Events of the id, those of its multicast groups included.
    pub(super) completed: Completed,
    state: Mutex<State>,
}

// SAFETY: the public part is the program's to order (see above); the rest is locked, atomic or constant.
unsafe impl Sync for Id {}

/// What the library keeps of an id, under its lock; held for no call to the kernel or to libibverbs.
pub(super) struct State {
    /// The device, once known.
    pub bound: Option<Bound>,
    /// RDMA reads and atomics outstanding to the peer, as negotiated.
    pub initiator_depth: u8,
    /// RDMA reads and atomics outstanding from the peer, as negotiated.
    pub responder_resources: u8,
    /// The library gave the connection up after the peer had accepted: what the kernel reports next is not news.
    pub connect_failed: bool,
    /// Options the peer offered (enhanced connection establishment).
    pub remote_ece: rdma_ucm_ece,
    /// Options to offer, or negotiated.
    pub local_ece: rdma_ucm_ece,
    /// The array behind `route.path_rec`.
    pub paths: Vec<ibv_sa_path_rec>,
    /// Goes in front of the private data when connecting (`ai_connect` of an endpoint).
    pub connect_data: Vec<u8>,
    /// Passive endpoints: how to make the QPs of their connections.
    pub template: Option<Template>,
    /// rdma_resolve_addrinfo().
    pub search: Search,
    /// Multicast groups joined.
    pub groups: Groups,
    /// The channel's files before the one that the id was moved to: see [`migrate`](super::migrate).
    pub former: Vec<OwnFd>,
}

// SAFETY: the pointers in it are libibverbs objects, which any thread may use.
unsafe impl Send for State {}

/// Reads and writes fields of the public structure.
macro_rules! public_fields {
    ($($field:ident $set:ident: $type:ty;)*) => {
        impl Id {
            $(
                #[doc = concat!("The public field `", stringify!($field), "`.")]
                pub fn $field(&self) -> $type {
                    // SAFETY: a plain field of a live structure, which the program does not write during the call.
                    unsafe { (*self.public.get()).$field }
                }

                #[doc = concat!("Sets the public field `", stringify!($field), "`.")]
                pub(super) fn $set(&self, value: $type) {
                    // SAFETY: as above.
                    unsafe { (*self.public.get()).$field = value }
                }
            )*
        }
    };
}

public_fields! {
    verbs set_verbs: *mut ibv_context;
    channel set_channel: *mut rdma_event_channel;
    context set_context: *mut c_void;
    qp set_qp: *mut ibv_qp;
    ps set_ps: u32;
    port_num set_port_num: u8;
    event set_event: *mut rdma_cm_event;
    send_cq_channel set_send_cq_channel: *mut ibv_comp_channel;
    send_cq set_send_cq: *mut ibv_cq;
    recv_cq_channel set_recv_cq_channel: *mut ibv_comp_channel;
    recv_cq set_recv_cq: *mut ibv_cq;
    srq set_srq: *mut ibv_srq;
    pd set_pd: *mut ibv_pd;
    qp_type set_qp_type: u32;
}

impl Id {
    /// The id behind a program's pointer; `EINVAL` for NULL.
    ///
    /// # Safety
    /// NULL, or from this library and not yet destroyed.
    pub unsafe fn from_c<'a>(id: *mut rdma_cm_id) -> Result<&'a Id> {
        // SAFETY: the public structure is the beginning of an Id.
        unsafe { id.cast::<Id>().as_ref() }.ok_or(Errno::EINVAL)
    }

    /// The pointer that programs know it by.
    pub fn as_c(&self) -> *mut rdma_cm_id {
        self.public.get()
    }

    /// What the kernel reports its events with.
    pub(super) fn uid(&self) -> u64 {
        ptr::from_ref(self) as usize as u64
    }

    /// Descriptor of its channel.
    pub(super) fn fd(&self) -> c_int {
        // SAFETY: an id's channel outlives it (rdma_destroy_event_channel(3)).
        unsafe { (*self.channel()).fd }
    }

    /// The kernel's name for it.
    pub(super) fn handle(&self) -> u32 {
        self.handle.load(Ordering::Relaxed)
    }

    pub(super) fn is_sync(&self) -> bool {
        self.sync.load(Ordering::Relaxed)
    }

    pub(super) fn set_sync(&self, sync: bool) {
        self.sync.store(sync, Ordering::Relaxed);
    }

    /// Datagrams: no connection, `rdma_ud_param` in events.
    pub(crate) fn is_ud(&self) -> bool {
        self.qp_type() == ibv_qp_type::IBV_QPT_UD
    }

    /// The library's part.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What its device can do at most; `None` before it has one.
    pub fn limits(&self) -> Option<Limits> {
        self.state().bound.map(|bound| bound.limits)
    }

    /// The addresses of its route.
    pub fn addr(&self) -> *mut rdma_addr {
        // SAFETY: a projection into a live structure.
        unsafe { &raw mut (*self.public.get()).route.addr }
    }

    /// The first path record of its route.
    pub fn first_path(&self) -> Option<ibv_sa_path_rec> {
        self.state().paths.first().copied()
    }

    /// Shows the path records of [`State::paths`].
    pub(super) fn set_paths(&self, paths: Vec<ibv_sa_path_rec>) {
        let mut state = self.state();
        state.paths = paths;
        let (records, count) = match state.paths.as_mut_slice() {
            [] => (ptr::null_mut(), 0),
            paths => (paths.as_mut_ptr(), paths.len() as c_int),
        };
        // SAFETY: as in public_fields.
        unsafe {
            (*self.public.get()).route.path_rec = records;
            (*self.public.get()).route.num_paths = count;
        }
    }

    /// Transport of its device; `None` before it has one.
    pub fn transport(&self) -> Option<ibv_transport_type> {
        NonNull::new(self.verbs()).map(|verbs| {
            // SAFETY: an open context has a device.
            unsafe { (*(*verbs.as_ptr()).device).transport_type }
        })
    }

    /// A call that is about to start an operation.
    pub(super) fn operation(&self) -> Operation<'_> {
        Operation(self.is_sync().then_some(self))
    }

    /// For synchronous ids: waits for the event, leaves it in `event` and turns its status into an
    /// errno.
    fn wait_for_event(&self) -> Result<()> {
        self.drop_event();
        let channel = NonNull::new(self.channel()).ok_or(Errno::EINVAL)?;
        let mut event = ptr::null_mut();
        // SAFETY: a synchronous id's channel is its own.
        unsafe { get_cm_event(channel, NonNull::from(&mut event))? };
        self.set_event(event);
        // SAFETY: just received.
        event_result(unsafe { &*event })
    }

    /// Acknowledges the event of the last synchronous call.
    pub(super) fn drop_event(&self) {
        if let Some(event) = NonNull::new(self.event()) {
            self.set_event(ptr::null_mut());
            // SAFETY: the library put it there and nobody acknowledged it.
            let _ = unsafe { ack_cm_event(event) };
        }
    }
}

/// A call that starts an operation in the kernel. Made before the kernel is told: an asynchronous id may be destroyed, by the
/// thread that reads its events, as soon as it is, and must not be looked at afterwards.
#[must_use]
pub(super) struct Operation<'a>(Option<&'a Id>);

impl Operation<'_> {
    /// Ends the call: at once for an asynchronous id, with its event for a synchronous one.
    pub(super) fn complete(self) -> Result<()> {
        self.0.map_or(Ok(()), Id::wait_for_event)
    }

    /// Ends a call that no event follows.
    pub(super) fn drop_event(self) {
        if let Some(id) = self.0 {
            id.drop_event();
        }
    }
}

/// What a synchronous call returns for an event.
pub(super) fn event_result(event: &rdma_cm_event) -> Result<()> {
    match event.status {
        _ if event.event == rdma_cm_event_type::RDMA_CM_EVENT_REJECTED as u32 => Err(Errno::ECONNREFUSED),
        0 => Ok(()),
        status => Err(Errno::new(status.saturating_abs())),
    }
}

/// rdma_create_id(3): on `channel`, or synchronous with a channel of its own when NULL.
///
/// # Safety
/// `channel` is NULL or a live channel; `id` is writable.
pub unsafe fn create_id(
    channel: *mut rdma_event_channel,
    id: NonNull<*mut rdma_cm_id>,
    context: *mut c_void,
    ps: u32,
) -> Result<()> {
    let datagrams = ps == rdma_port_space::RDMA_PS_UDP as u32 || ps == rdma_port_space::RDMA_PS_IPOIB as u32;
    let qp_type = if datagrams { ibv_qp_type::IBV_QPT_UD } else { ibv_qp_type::IBV_QPT_RC };
    // SAFETY: `channel` is NULL or a live channel; `id` is writable: guaranteed by the caller.
    let new = unsafe { create(channel, context, ps, qp_type)? };
    // SAFETY: `channel` is NULL or a live channel; `id` is writable: guaranteed by the caller.
    unsafe { id.write(new.as_c()) };
    Ok(())
}

/// As [`create_id`], with the QP type that its QPs will have.
///
/// # Safety
/// `channel` is NULL or a live channel.
pub(super) unsafe fn create<'a>(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: u32,
    qp_type: u32,
) -> Result<&'a Id> {
    library()?;
    let id = allocate(channel, context, ps, qp_type)?;
    let made = ucma::create_id(id.fd(), id.uid(), ps as u16, qp_type as u8).and_then(|handle| adopt(id, handle));
    if let Err(error) = made {
        // SAFETY: nobody else has seen it.
        unsafe { free(id) };
        return Err(error);
    }
    Ok(id)
}

/// An id for a kernel id that came with a connection request, on the listener's channel. On failure the kernel's id is
/// destroyed, which tells the peer.
pub(super) fn create_for_request<'a>(listener: &Id, handle: u32) -> Result<&'a Id> {
    let id = allocate(listener.channel(), listener.context(), listener.ps(), listener.qp_type()).inspect_err(|_| {
        // Nothing better can be done with a failure here.
        let _ = ucma::destroy_id(listener.fd(), handle);
    })?;
    if let Err(error) = adopt(id, handle) {
        // SAFETY: nobody else has seen it.
        unsafe { free(id) };
        return Err(error);
    }
    Ok(id)
}

fn allocate<'a>(channel: *mut rdma_event_channel, context: *mut c_void, ps: u32, qp_type: u32) -> Result<&'a Id> {
    // SAFETY: all zeros are a value of this structure of numbers and pointers.
    let public: rdma_cm_id = unsafe { zeroed() };
    let ece = rdma_ucm_ece { vendor_id: 0, attr_mod: 0 };
    let state = State {
        bound: None,
        initiator_depth: 0,
        responder_resources: 0,
        connect_failed: false,
        remote_ece: ece,
        local_ece: ece,
        paths: Vec::new(),
        connect_data: Vec::new(),
        template: None,
        search: Search::default(),
        groups: Groups::default(),
        former: Vec::new(),
    };
    let id: &Id = Box::leak(try_box(Id {
        public: UnsafeCell::new(public),
        handle: AtomicU32::new(u32::MAX),
        sync: AtomicBool::new(false),
        completed: Completed::default(),
        state: Mutex::new(state),
    })?);
    id.set_context(context);
    id.set_ps(ps);
    id.set_qp_type(qp_type);
    id.set_channel(channel);
    if channel.is_null() {
        match create_event_channel() {
            Ok(own) => id.set_channel(own.as_ptr()),
            // Whatever stood in the way: programs know it as ENOMEM (docs/quirks.md).
            Err(_) => {
                // SAFETY: nobody else has seen it.
                unsafe { free(id) };
                return Err(Errno::ENOMEM);
            }
        }
        id.set_sync(true);
    }
    Ok(id)
}

/// Ties a fresh id to its kernel handle; on failure the kernel's id is destroyed.
fn adopt(id: &Id, handle: u32) -> Result<()> {
    id.handle.store(handle, Ordering::Relaxed);
    handles::insert(handle, NonNull::from(id)).inspect_err(|_| {
        // Nothing better can be done with a failure here.
        let _ = ucma::destroy_id(id.fd(), handle);
    })
}

/// rdma_destroy_id(3). Waits until every event that was reported for the id is acknowledged.
///
/// When the kernel refuses (in a child that did not open the channel, say), an asynchronous id stays as it was; a
/// synchronous one is freed all the same, for closing its channel ends it in the kernel too.
///
/// # Safety
/// Not used afterwards, unless it failed and the id is asynchronous.
pub unsafe fn destroy_id(id: &Id) -> Result<()> {
    probes::cm_close(id.as_c());
    match ucma::destroy_id(id.fd(), id.handle()) {
        Ok(reported) => {
            id.drop_event();
            id.completed.wait_for(reported);
            // SAFETY: the kernel reports nothing for it any more, and all that it had reported is acknowledged.
            unsafe { free(id) };
            Ok(())
        }
        Err(error) => {
            if id.is_sync() {
                id.drop_event();
                // SAFETY: its channel is its own, and closed with it: no event can come any more.
                unsafe { free_id(id) };
            }
            Err(error)
        }
    }
}

/// Destroys a kernel id together with its half-made id, when a connection request can't be shown.
///
/// # Safety
/// Nobody else has seen the id.
pub(super) unsafe fn discard(id: &Id) {
    // The request is answered with a reject by the kernel; a failure leaves nothing to do.
    let _ = ucma::destroy_id(id.fd(), id.handle());
    // SAFETY: nobody else has seen the id: guaranteed by the caller.
    unsafe { free(id) };
}

/// # Safety
/// From [`allocate`], and nothing refers to it any more.
unsafe fn free(id: &Id) {
    let bound = retire(id);
    // SAFETY: from Box::leak; nothing else refers to it: guaranteed by the caller.
    drop(unsafe { Box::from_raw(ptr::from_ref(id).cast_mut()) });
    if let Some(bound) = bound {
        device::release(bound);
    }
}

/// Frees an id that the kernel has no more, as it went with its channel. Its memory stays while the program holds events that refer
/// to it: a listener's connection requests.
///
/// # Safety
/// From [`allocate`], the channel is closed, and nothing but events refers to the id any more.
pub unsafe fn free_id(id: &Id) {
    if id.completed.is_done() {
        // SAFETY: from [`allocate`], the channel is closed, and nothing but events refers to the id
        // any more: guaranteed by the caller, and no event does.
        unsafe { free(id) };
    } else if let Some(bound) = retire(id) {
        device::release(bound);
    }
}

/// Takes everything from an id but its memory.
fn retire(id: &Id) -> Option<Bound> {
    handles::remove(id.handle(), NonNull::from(id));
    if id.is_sync()
        && let Some(channel) = NonNull::new(id.channel())
    {
        // SAFETY: a synchronous id owns its channel.
        unsafe { destroy_event_channel(channel) };
    }
    id.state().bound.take()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_public_part_comes_first() {
        assert_eq!(offset_of!(Id, public), 0);
        assert_eq!(size_of::<rdma_cm_id>(), 416);
    }

    /// What was resolved before is given back (scripts/asan would see it leak), and the program
    /// sees the last.
    #[test]
    fn a_route_is_resolved_twice() {
        let mut channel = rdma_event_channel { fd: -1 };
        let ps = rdma_port_space::RDMA_PS_TCP as u32;
        let id = allocate(&raw mut channel, ptr::null_mut(), ps, ibv_qp_type::IBV_QPT_RC).unwrap();
        for (round, count) in [1, 3, 0, 2].into_iter().enumerate() {
            // SAFETY: all zeros are a value of this structure.
            let record = ibv_sa_path_rec { mtu: round as u8, ..unsafe { zeroed() } };
            id.set_paths(vec![record; count]);
            // SAFETY: live, and so many records.
            unsafe {
                let route = &(*id.public.get()).route;
                assert_eq!((route.num_paths as usize, route.path_rec.is_null()), (count, count == 0));
                assert!((0..count).all(|place| (*route.path_rec.add(place)).mtu == round as u8));
            }
        }
        // SAFETY: nobody else has it.
        unsafe { free(id) };
    }

    #[test]
    fn status_to_errno() {
        // SAFETY: all zeros are a value of this structure.
        let mut event: rdma_cm_event = unsafe { zeroed() };
        assert_eq!(event_result(&event), Ok(()));
        event.status = -libc::ETIMEDOUT;
        assert_eq!(event_result(&event), Err(Errno::ETIMEDOUT));
        event.status = 28;
        assert_eq!(event_result(&event), Err(Errno::new(28)));
        event.event = rdma_cm_event_type::RDMA_CM_EVENT_REJECTED as u32;
        assert_eq!(event_result(&event), Err(Errno::ECONNREFUSED));
    }
}
