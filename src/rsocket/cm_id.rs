//! An id of the connection manager with a channel of its own, whose events are fetched without waiting.

use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, zeroed};
use std::ptr::{self, NonNull};

use crate::cm::{self, Id, Limits};
use crate::errno::{Errno, Result};
use crate::ffi::{rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel};
use crate::rsocket::reactor;
use crate::sys::event;
use crate::sys::own;
use crate::sys::sockaddr::SockAddr;
use crate::sys::verbs::{ibv_context, ibv_pd, ibv_qp, ibv_qp_init_attr};

/// Private data as long as any transport carries it, bytes.
const PRIVATE_DATA: usize = 256;

/// See the module.
#[derive(Debug)]
pub struct CmId {
    id: NonNull<rdma_cm_id>,
    channel: NonNull<rdma_event_channel>,
}

// SAFETY: ids and channels may be used from any thread, one at a time: a CmId is used through `&mut` or under its owner's lock.
unsafe impl Send for CmId {}

/// An event, with what it carried.
#[derive(Debug)]
pub struct Event {
    /// `enum rdma_cm_event_type`.
    pub kind: u32,
    /// 0, -errno, or a reason of the transport's.
    pub status: c_int,
    /// For connection requests: the new id.
    pub request: Option<Request>,
    data: [u8; PRIVATE_DATA],
    len: usize,
}

impl Event {
    /// Private data.
    pub fn data(&self) -> &[u8] {
        &self.data[..self.len]
    }
}

/// An id that came with a connection request, still on its listener's channel: accepted or dropped before that listener's
/// [`CmId`] is, for which the listener's lock is kept. Dropped, it rejects.
#[derive(Debug)]
pub struct Request(NonNull<rdma_cm_id>);

// SAFETY: as for CmId.
unsafe impl Send for Request {}

impl Drop for Request {
    fn drop(&mut self) {
        // SAFETY: nobody else has the id; the event that brought it is acknowledged, and the listener is alive.
        unsafe {
            if let Ok(id) = Id::from_c(self.0.as_ptr()) {
                // The peer learns it at once, instead of by a time-out; a failure leaves nothing to do.
                let _ = cm::reject(id, ptr::null(), 0);
                let _ = cm::destroy_id(id);
            }
        }
    }
}

impl Request {
    /// Takes the id to a channel of its own.
    pub fn accept(self) -> Result<CmId> {
        // Without waiting: the listener's lock is held.
        let channel = cm::create_another_channel()?;
        // SAFETY: a live id, on the channel of a listener that is alive, and a new channel.
        let moved = unsafe { Id::from_c(self.0.as_ptr()).and_then(|id| cm::migrate_id(id, channel.as_ptr())) };
        if let Err(error) = moved {
            // SAFETY: nothing is on it.
            unsafe { cm::destroy_event_channel(channel) };
            return Err(error);
        }
        Ok(CmId::with(ManuallyDrop::new(self).0, channel))
    }
}

/// Programs know a process that may not use the connection manager as `ENOMEM` (docs/quirks.md).
fn unreachable_node(error: Errno) -> Errno {
    match error.get() {
        libc::ENOENT | libc::EACCES => Errno::ENOMEM,
        _ => error,
    }
}

impl CmId {
    /// A new id of a port space.
    pub fn new(port_space: u32) -> Result<CmId> {
        let channel = cm::create_event_channel().map_err(unreachable_node)?;
        // SAFETY: a live channel.
        match unsafe { create_on(channel, port_space) } {
            Ok(id) => Ok(CmId::with(id, channel)),
            Err(error) => {
                // SAFETY: nothing is on it.
                unsafe { cm::destroy_event_channel(channel) };
                Err(error)
            }
        }
    }

    fn with(id: NonNull<rdma_cm_id>, channel: NonNull<rdma_event_channel>) -> CmId {
        // SAFETY: a live channel, of which nobody else knows.
        unsafe { own::settle_in(&raw mut (*channel.as_ptr()).fd) };
        CmId { id, channel }
    }

    /// Replaces the id by a new one of `port_space` on the same channel. The old id's events that
    /// were not read yet are discarded with it. On failure the old id stays. The caller has dropped
    /// everything that was made on the old id's device.
    pub fn start_over(&mut self, port_space: u32) -> Result<()> {
        self.destroy_qp();
        // SAFETY: the channel is live as long as `self`.
        let new = self.retry_on_eacces(|| unsafe { create_on(self.channel, port_space) })?;
        // SAFETY: only `self` uses the old id, and every event that was read is acknowledged.
        if let Err(error) = unsafe { cm::destroy_id(self.id()) } {
            // SAFETY: nobody else has seen the new id; `new` is live until then.
            unsafe {
                if let Ok(id) = Id::from_c(new.as_ptr())
                    && cm::destroy_id(id).is_err()
                {
                    cm::free_id(id);
                }
            }
            return Err(error);
        }
        self.id = new;
        Ok(())
    }

    /// Moves the channel, which the reactor looks after as `key`, to another descriptor, and closes
    /// its present one.
    pub fn relocate(&mut self, key: reactor::Key) -> Result<()> {
        let old = self.fd();
        let new = own::settle(event::fcntl(old, libc::F_DUPFD_CLOEXEC, 0)?);
        if let Err(error) = reactor::moved(key, new) {
            own::close(new);
            return Err(error);
        }
        // SAFETY: a live channel, which is used under the lock of this id's owner.
        unsafe { (*self.channel.as_ptr()).fd = new };
        own::close(old);
        Ok(())
    }

    /// Descriptor of the channel.
    pub fn fd(&self) -> c_int {
        // SAFETY: a live channel.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// Has [`event`](Self::event) not wait.
    pub fn set_nonblocking(&self) -> Result<()> {
        event::set_nonblocking(self.fd(), true)
    }

    /// The id for calls of the connection manager.
    pub fn id(&self) -> &Id {
        // SAFETY: live until `self` is dropped; never NULL.
        unsafe { &*self.id.as_ptr().cast::<Id>() }
    }

    /// A call that the kernel refuses (`EACCES`) where the user has changed since the channel was opened, or another thread has opened
    /// it after that: moves the id to a new one, and tries again. The caller holds the owner's lock.
    fn retry_on_eacces<T>(&self, call: impl Fn() -> Result<T>) -> Result<T> {
        /// Groups, group and user may change one after the other meanwhile. Or it is an address that is not for everybody.
        const TRIES: usize = 4;
        for _ in 0..TRIES {
            match call() {
                Err(Errno::EACCES) => {}
                result => return result,
            }
            match self.renew() {
                Ok(()) | Err(Errno::EACCES) => {}
                Err(Errno::ENOENT) => return Err(Errno::EACCES),
                Err(error) => return Err(error),
            }
        }
        call()
    }

    /// Another file under the channel's number, in which the id and its events are.
    fn renew(&self) -> Result<()> {
        let new = cm::move_to_new_file(self.id())?;
        reactor::replaced(self.fd(), || own::replace(self.fd(), new))
    }

    /// rdma_bind_addr(3).
    pub fn bind(&self, addr: &SockAddr) -> Result<()> {
        // SAFETY: a whole address.
        self.retry_on_eacces(|| unsafe { cm::bind_addr(self.id(), NonNull::from(addr.storage()).cast()) })
    }

    /// rdma_listen(3).
    pub fn listen(&self, backlog: c_int) -> Result<()> {
        self.retry_on_eacces(|| cm::listen(self.id(), backlog))
    }

    /// rdma_set_option(3).
    pub fn set_option(&self, level: u32, name: u32, value: &[u8]) -> Result<()> {
        let place = value.as_ptr().cast_mut().cast();
        // SAFETY: readable for its length.
        self.retry_on_eacces(|| unsafe { cm::set_option(self.id(), level as c_int, name as c_int, place, value.len()) })
    }

    /// rdma_disconnect(3).
    pub fn disconnect(&self) -> Result<()> {
        self.retry_on_eacces(|| cm::disconnect(self.id()))
    }

    /// rdma_resolve_addr(3).
    pub fn resolve_addr(&self, to: &SockAddr, timeout_ms: c_int) -> Result<()> {
        // SAFETY: a whole address.
        self.retry_on_eacces(|| unsafe {
            cm::resolve_addr(self.id(), ptr::null(), NonNull::from(to.storage()).cast(), timeout_ms)
        })
    }

    /// rdma_resolve_route(3), in a thread that may not wait.
    pub fn resolve_route(&self, timeout_ms: c_int) -> Result<()> {
        cm::resolve_route_soon(self.id(), timeout_ms)
    }

    /// rdma_connect(3) or, for a request, rdma_accept(3), with `data` of at most 255 bytes as private data.
    pub fn shake_hands(&self, active: bool, initiator_depth: u8, data: &[u8]) -> Result<()> {
        /// Seven would be without end on soft-RoCE: a peer that is gone has to show.
        const RETRIES: u8 = 6;
        /// Without end: control messages need no credit, and a receive may not be posted yet.
        const RECEIVER_NOT_READY: u8 = 7;
        // SAFETY: all zeros are a value of this structure.
        let mut param: rdma_conn_param = unsafe { zeroed() };
        param.private_data = data.as_ptr().cast();
        param.private_data_len = u8::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
        param.initiator_depth = initiator_depth;
        param.responder_resources = initiator_depth;
        param.flow_control = 1;
        param.retry_count = RETRIES;
        param.rnr_retry_count = RECEIVER_NOT_READY;
        // SAFETY: the private data is readable for its length.
        unsafe { if active { cm::connect(self.id(), &raw const param) } else { cm::accept(self.id(), &raw mut param) } }
    }

    /// The next event; `EAGAIN` when none waits, after [`set_nonblocking`](Self::set_nonblocking).
    pub fn event(&self) -> Result<Event> {
        let mut event: *mut rdma_cm_event = ptr::null_mut();
        let place = NonNull::from(&mut event);
        // SAFETY: a live channel; `event` is writable.
        self.retry_on_eacces(|| unsafe { cm::get_cm_event(self.channel, place) }).inspect_err(|&error| {
            if error == Errno::EAGAIN {
                cm::forget_former(self.id());
            }
        })?;
        let event = NonNull::new(event).ok_or(Errno::EIO)?;
        // SAFETY: just received; it is acknowledged once, after its last use.
        unsafe {
            let received = read(&*event.as_ptr());
            let _ = cm::ack_cm_event(event);
            Ok(received)
        }
    }

    /// The QP, or NULL.
    pub fn qp(&self) -> *mut ibv_qp {
        self.id().qp()
    }

    /// The device, once known.
    pub fn context(&self) -> Option<NonNull<ibv_context>> {
        NonNull::new(self.id().verbs())
    }

    /// The PD that all ids on the device share, once known.
    pub fn pd(&self) -> Option<NonNull<ibv_pd>> {
        NonNull::new(self.id().pd())
    }

    /// What the device can do at most, once it is known.
    pub fn limits(&self) -> Option<Limits> {
        self.id().limits()
    }

    /// rdma_create_qp(3).
    ///
    /// # Safety
    /// PD and CQs live for as long as the QP.
    pub unsafe fn create_qp(&self, pd: NonNull<ibv_pd>, attr: &mut ibv_qp_init_attr) -> Result<()> {
        // SAFETY: PD and CQs live for as long as the QP: guaranteed by the caller.
        unsafe { cm::create_qp(self.id(), pd.as_ptr(), NonNull::from(attr)) }
    }

    /// Destroys the QP, if there is one.
    pub fn destroy_qp(&self) {
        if !self.qp().is_null() {
            // SAFETY: only this id's owner uses it.
            unsafe { cm::destroy_qp(self.id()) };
        }
    }
}

/// Creates an id on `channel`.
///
/// # Safety
/// `channel` is live.
unsafe fn create_on(channel: NonNull<rdma_event_channel>, port_space: u32) -> Result<NonNull<rdma_cm_id>> {
    let mut id = ptr::null_mut();
    // SAFETY: the channel is live, by this function's contract, and `id` is writable.
    unsafe { cm::create_id(channel.as_ptr(), NonNull::from(&mut id), ptr::null_mut::<c_void>(), port_space)? };
    NonNull::new(id).ok_or(Errno::ENOMEM)
}

/// # Safety
/// An event that is not acknowledged yet.
unsafe fn read(event: &rdma_cm_event) -> Event {
    let mut copy = Event { kind: event.event, status: event.status, request: None, data: [0; PRIVATE_DATA], len: 0 };
    if event.event == crate::ffi::rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST as u32 {
        copy.request = NonNull::new(event.id).map(Request);
    }
    // SAFETY: ids of RDMA_PS_TCP: the event's parameters are those of connections.
    let (data, len) = unsafe { (event.param.conn.private_data, usize::from(event.param.conn.private_data_len)) };
    if !data.is_null() {
        copy.len = len.min(PRIVATE_DATA);
        // SAFETY: the event's private data has so many bytes.
        unsafe { ptr::copy_nonoverlapping(data.cast::<u8>(), copy.data.as_mut_ptr(), copy.len) };
    }
    copy
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.destroy_qp();
        // SAFETY: nobody else uses them; every event was acknowledged when it was read. The id is used no more once it is destroyed.
        unsafe {
            let destroyed = self.retry_on_eacces(|| cm::destroy_id(self.id()));
            own::unmark(self.fd());
            cm::destroy_event_channel(self.channel);
            if destroyed.is_err() {
                // The kernel's went with its channel.
                cm::free_id(self.id());
            }
        }
    }
}
