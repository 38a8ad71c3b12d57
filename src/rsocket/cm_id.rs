//! A connection manager id with its own channel, whose events can be read without blocking.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

use crate::acm;
use crate::cm::{self, ConnParam, EventChannel, Id, InitAttr, OwnedChannel, OwnedId, Pd};
use crate::errno::{Errno, Result};
use crate::ffi::{rdma_cm_event, rdma_cm_id, rdma_event_channel};
use crate::os::event;
use crate::os::library_fds::{self, OwnFd};
use crate::os::sockaddr::SockAddr;
use crate::rsocket::reactor;
use crate::verbs::{IBV_TRANSPORT_IWARP, ibv_pd, ibv_qp_init_attr};

/// Maximum length of private data on any transport, in bytes.
const PRIVATE_DATA: usize = 256;

/// An id and its channel.
#[derive(Debug)]
pub struct CmId {
    id: NonNull<rdma_cm_id>,
    channel: NonNull<rdma_event_channel>,
}

// SAFETY: any thread may use an id and its channel, one at a time. A CmId is used through `&mut` or
// under its owner's lock.
unsafe impl Send for CmId {}

/// A copy of an event.
#[derive(Debug)]
pub struct Event {
    /// A value of `enum rdma_cm_event_type`.
    pub kind: u32,
    /// 0, -errno, or a reason of the transport.
    pub status: c_int,
    /// The new id of a connection request.
    pub request: Option<Request>,
    /// Whether the peer takes RDMA reads, according to its part of the handshake. A peer with
    /// rdma-core does if it is the accepting side.
    pub takes_reads: bool,
    data: [u8; PRIVATE_DATA],
    len: usize,
}

impl Event {
    /// Returns the private data.
    pub fn data(&self) -> &[u8] {
        &self.data[..self.len]
    }
}

/// The id of a connection request, which is still on the listener's channel. Dropping it rejects
/// the connection. It is accepted or dropped before the listener's [`CmId`], which owns the
/// channel: under the listener's lock, after the listener was closed, or by a thread that rclose(3)
/// waits for.
#[derive(Debug)]
pub struct Request {
    id: NonNull<rdma_cm_id>,
    /// Whether the peer takes RDMA reads ([`Event::takes_reads`]).
    pub takes_reads: bool,
}

// SAFETY: any thread may use an id, one at a time, and only the owner of the request uses this one.
unsafe impl Send for Request {}

impl Drop for Request {
    fn drop(&mut self) {
        // SAFETY: `self` is the only user of the id, its event is acknowledged, and its channel is
        // live.
        unsafe {
            // The kernel rejects a request whose id is destroyed. A failure has no remedy.
            let _ = OwnedId::from_c(self.id.as_ptr()).and_then(cm::destroy_id);
        }
    }
}

impl Request {
    /// Opens the device of the request for [`accept`](Self::accept), unless it is open.
    pub fn open_device(&self) -> Result<()> {
        // SAFETY: the id is live until `self` is dropped.
        unsafe { Id::from_c(self.id.as_ptr()) }.and_then(cm::open_request_device)
    }

    /// Moves the id to `channel`. Returns both. A failure drops both, which rejects the connection.
    pub fn accept(self, channel: OwnedChannel) -> Result<CmId> {
        let channel = channel.into_c();
        // SAFETY: the id, its listener and the new channel are live.
        let (id, target) = unsafe { (Id::from_c(self.id.as_ptr()), EventChannel::from_c(channel.as_ptr())) };
        id.and_then(|id| cm::migrate_id(id, target)).inspect_err(|_| {
            // SAFETY: only this call uses the channel, which has no ids.
            drop(unsafe { OwnedChannel::from_c(channel.as_ptr()) });
        })?;
        Ok(CmId::with(ManuallyDrop::new(self).id, channel))
    }
}

impl CmId {
    /// Creates an id in `port_space`, and its channel.
    pub fn new(port_space: u32) -> Result<CmId> {
        let channel = match cm::create_event_channel() {
            // The process has no access to the connection manager (docs/compatibility.md).
            Err(Errno::ENOENT | Errno::EACCES) => return Err(Errno::ENOMEM),
            created => created?.into_c(),
        };
        // SAFETY: the channel is live, and only this call uses it. After a failure the channel has
        // no ids.
        let id =
            unsafe { create_on(channel, port_space).inspect_err(|_| drop(OwnedChannel::from_c(channel.as_ptr())))? };
        Ok(CmId::with(id, channel))
    }

    fn with(id: NonNull<rdma_cm_id>, channel: NonNull<rdma_event_channel>) -> CmId {
        // SAFETY: the channel is live and has no other users.
        unsafe { library_fds::relocate_fd_in(&raw mut (*channel.as_ptr()).fd) };
        let new = CmId { id, channel };
        // Cannot fail for a descriptor of the library.
        let _ = event::set_nonblocking(new.fd(), true);
        new
    }

    /// Replaces the id by a new one in `port_space` on the same channel. Unread events of the old
    /// id are discarded. A failure leaves the old id in place. The caller has dropped all objects
    /// on the old id's device.
    pub fn replace_id(&mut self, port_space: u32) -> Result<()> {
        self.destroy_qp();
        // SAFETY: the channel is live as long as `self`.
        let new = self.retry_on_eacces(|| unsafe { create_on(self.channel, port_space) })?;
        // SAFETY: only `self` uses the old id, and every event that was read is acknowledged.
        if let Err(error) = unsafe { OwnedId::from_c(self.id.as_ptr()) }.and_then(cm::destroy_id) {
            // SAFETY: the new id is live and has no other users. It has no events.
            unsafe {
                if OwnedId::from_c(new.as_ptr()).and_then(cm::destroy_id).is_err()
                    && let Ok(id) = OwnedId::from_c(new.as_ptr())
                {
                    cm::free_id(id);
                }
            }
            return Err(error);
        }
        self.id = new;
        Ok(())
    }

    /// Moves the channel, which the reactor has registered as `key`, to another descriptor. Returns
    /// the old descriptor, which is no longer used.
    pub fn relocate(&mut self, key: reactor::Key) -> Result<OwnFd> {
        let old = self.fd();
        let new = OwnFd::duplicate(old)?.into_fd();
        if let Err(error) = reactor::set_fd(key, new) {
            library_fds::close(new);
            return Err(error);
        }
        // SAFETY: the channel is live and used under the lock of this id's owner.
        unsafe { (*self.channel.as_ptr()).fd = new };
        // SAFETY: `old` is open, and only the channel would have closed it, which has another
        // descriptor now.
        Ok(unsafe { OwnFd::adopt(old) })
    }

    /// Returns the descriptor of the channel.
    pub fn fd(&self) -> c_int {
        // SAFETY: the channel is live.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// Returns the id for calls of the connection manager.
    pub fn id(&self) -> &Id {
        // SAFETY: the id is live until `self` is dropped, and never NULL.
        unsafe { &*self.id.as_ptr().cast::<Id>() }
    }

    /// Makes a call. The kernel rejects it with `EACCES` if the process has changed its user since
    /// the channel was opened or, after such a change, if another thread opened the channel. Then
    /// the id is moved to a new file, and the call is repeated. The caller holds the owner's lock.
    fn retry_on_eacces<T>(&self, call: impl Fn() -> Result<T>) -> Result<T> {
        match call() {
            Err(Errno::EACCES) => {
                self.renew().map_err(|error| if error == Errno::ENOENT { Errno::EACCES } else { error })?;
                call()
            }
            result => result,
        }
    }

    /// Opens a new file under the channel's descriptor and moves the id and its events to it.
    fn renew(&self) -> Result<()> {
        let new = cm::move_to_new_file(self.id())?;
        reactor::replace_file(self.fd(), || library_fds::replace(self.fd(), new))
    }

    /// rdma_bind_addr(3).
    pub fn bind(&self, addr: &SockAddr) -> Result<()> {
        self.retry_on_eacces(|| cm::bind_addr(self.id(), addr))
    }

    /// rdma_listen(3). The caller has to call [`Request::open_device`] for each request.
    pub fn listen(&self, backlog: c_int) -> Result<()> {
        cm::defer_devices(self.id());
        self.retry_on_eacces(|| cm::listen(self.id(), backlog))
    }

    /// rdma_set_option(3).
    pub fn set_option(&self, level: u32, name: u32, value: &[u8]) -> Result<()> {
        self.retry_on_eacces(|| cm::set_option(self.id(), level as c_int, name as c_int, value))
    }

    /// rdma_disconnect(3).
    pub fn disconnect(&self) -> Result<()> {
        self.retry_on_eacces(|| cm::disconnect(self.id()))
    }

    /// rdma_resolve_addr(3).
    pub fn resolve_addr(&self, to: &SockAddr, timeout_ms: c_int) -> Result<()> {
        self.retry_on_eacces(|| cm::resolve_addr(self.id(), None, to, timeout_ms))
    }

    /// rdma_resolve_route(3) without blocking.
    pub fn resolve_route(&self, timeout_ms: c_int) -> Result<()> {
        cm::resolve_route(self.id(), timeout_ms, acm::CACHED_ANSWER_TIMEOUT)
    }

    /// rdma_connect(3) if `active` is set, otherwise rdma_accept(3). `data` is the private data of
    /// at most 255 bytes.
    pub fn connect_or_accept(&self, active: bool, data: &[u8]) -> Result<()> {
        /// With 7, soft-RoCE retries for ever, but a peer that is gone must be noticed.
        const RETRIES: u8 = 6;
        /// No limit: control messages take no credit, so they may find no receive posted yet.
        const RECEIVER_NOT_READY: u8 = 7;
        // rsockets use no RDMA reads, but iWARP needs one to start the connection.
        let initiator_depth = u8::from(self.id().transport() == Some(IBV_TRANSPORT_IWARP));
        let param = Some(ConnParam {
            private_data: data,
            initiator_depth,
            responder_resources: initiator_depth,
            flow_control: 1,
            retry_count: RETRIES,
            rnr_retry_count: RECEIVER_NOT_READY,
            ..ConnParam::default()
        });
        if active { cm::connect(self.id(), param) } else { cm::accept(self.id(), param) }
    }

    /// Returns the next event. Fails with `EAGAIN` without an event.
    pub fn event(&self) -> Result<Event> {
        // SAFETY: the channel is live as long as `self`.
        let channel = unsafe { EventChannel::from_c(self.channel.as_ptr()) }.ok_or(Errno::EINVAL)?;
        let event = self.retry_on_eacces(|| cm::get_cm_event(channel)).inspect_err(|&error| {
            if error == Errno::EAGAIN {
                cm::forget_former(self.id());
            }
        })?;
        // SAFETY: the event is not acknowledged yet.
        let received = unsafe { read(event.public()) };
        cm::ack_cm_event(event);
        Ok(received)
    }

    /// rdma_create_qp(3).
    ///
    /// # Safety
    /// The PD and the CQs outlive the QP.
    pub unsafe fn create_qp(&self, pd: NonNull<ibv_pd>, attr: &mut ibv_qp_init_attr) -> Result<()> {
        // SAFETY: the PD and the CQs outlive the QP: guaranteed by the caller.
        let (pd, mut attr) = unsafe { (Pd::from_c(pd.as_ptr()), InitAttr::new(attr)) };
        cm::create_qp(self.id(), pd, &mut attr)
    }

    /// Destroys the QP, if there is one.
    pub fn destroy_qp(&self) {
        if !self.id().qp().is_null() {
            cm::destroy_qp(self.id());
        }
    }
}

/// Creates an id on `channel`.
///
/// # Safety
/// `channel` is live.
unsafe fn create_on(channel: NonNull<rdma_event_channel>, port_space: u32) -> Result<NonNull<rdma_cm_id>> {
    // SAFETY: the channel is live: guaranteed by the caller.
    let channel = unsafe { EventChannel::from_c(channel.as_ptr()) };
    let id = cm::create_id(channel, ptr::null_mut(), port_space)?;
    NonNull::new(id.into_c()).ok_or(Errno::ENOMEM)
}

/// Copies an event.
///
/// # Safety
/// The event is not acknowledged yet.
unsafe fn read(event: &rdma_cm_event) -> Event {
    // SAFETY: all bytes of `param` are initialised, and `conn` consists of numbers and a pointer to
    // private data, which is at the same place in the parameters of datagram ids.
    let conn = unsafe { event.param.conn };
    let is_request = event.event == crate::ffi::rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST as u32;
    // Soft-iWARP swaps `initiator_depth` and `responder_resources` of an accepting peer.
    let takes_reads = conn.initiator_depth > 0 || !is_request && conn.responder_resources > 0;
    let request = NonNull::new(event.id).filter(|_| is_request).map(|id| Request { id, takes_reads });
    let mut copy =
        Event { kind: event.event, status: event.status, request, takes_reads, data: [0; PRIVATE_DATA], len: 0 };
    let (data, len) = (conn.private_data, usize::from(conn.private_data_len));
    if !data.is_null() {
        copy.len = len.min(PRIVATE_DATA);
        // SAFETY: the event's private data has `len` bytes.
        unsafe { ptr::copy_nonoverlapping(data.cast::<u8>(), copy.data.as_mut_ptr(), copy.len) };
    }
    copy
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.destroy_qp();
        // SAFETY: `self` is the only user of the id and the channel. Every event was acknowledged
        // when it was read, and the id is not used after it is destroyed.
        unsafe {
            let destroyed = self.retry_on_eacces(|| cm::destroy_id(OwnedId::from_c(self.id.as_ptr())?));
            library_fds::unmark(self.fd());
            drop(OwnedChannel::from_c(self.channel.as_ptr()));
            if destroyed.is_err()
                && let Ok(id) = OwnedId::from_c(self.id.as_ptr())
            {
                // Closing the channel has destroyed the kernel's id.
                cm::free_id(id);
            }
        }
    }
}
