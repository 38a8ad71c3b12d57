//! A port: the UD QP for a local address, with its memory and CQs.
//!
//! Unsafe code: the memory that the device accesses. The device owns receive slots and send slots
//! from posting to completion. Otherwise the owner of the [`Port`] may access them.

use std::ffi::c_int;
use std::mem::{MaybeUninit, zeroed};
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::errno::{Errno, Result};
use crate::ffi::{ibv_sa_path_rec, rdma_port_space};
use crate::os::event;
use crate::os::library_fds;
use crate::os::sockaddr::SockAddr;
use crate::rsocket::cm_id::CmId;
use crate::rsocket::reactor::{self, Key, Role, Service};
use crate::rsocket::socket_table;
use crate::verbs::rc::{CompletionChannel, CompletionQueue, MemoryRegion, RECV_WR_ID_FLAG, ibv_wc};
use crate::verbs::ud::{self, AddressHandle, GRH};
use crate::verbs::{IBV_TRANSPORT_IB, ibv_context, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_qp_type};

/// Maximum length of a datagram with its header, in bytes.
pub(super) const MAX_MESSAGE: usize = 2048;
/// Maximum length of a UD message: the greatest MTU. Each receive has room for such a message,
/// because a message that is longer than its receive breaks the QP, and anyone can send messages.
const MAX_MTU: usize = 4096;
/// Length of the memory for the part of a message beyond [`MAX_MESSAGE`]. All receives share this
/// memory, which is never read.
const EXCESS_LEN: usize = MAX_MTU - MAX_MESSAGE;
/// Distance between two receive slots in bytes.
const RECEIVE_SLOT_LEN: usize = (GRH + MAX_MESSAGE).next_multiple_of(64);
/// Minimum number of queue entries.
const MIN_ENTRIES: u16 = 16;
/// Maximum number of completions polled at a time.
const POLL_BATCH: usize = 16;

/// A resolved path: the peer's address handle, the port that sends on the path, and the path's MTU.
pub(super) struct Path {
    handle: AddressHandle,
    pub port: Key,
    pub mtu: usize,
}

/// Numbers of queue entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub send: u16,
    pub receive: u16,
}

/// The UD QP of a local address with its resources. Dropping a port destroys the QP first, then
/// drops the fields in the order of their declaration: the CQs before their channel.
pub(super) struct Port {
    /// For each send slot, the path whose address handle the device uses until the send completes.
    in_flight: Vec<Option<Arc<Path>>>,
    /// Unused send slots.
    free_slots: Vec<u32>,
    /// Receive slots to post again. Has capacity for all slots.
    to_repost: Vec<u32>,
    /// Armed only if no send slot is free: otherwise completed sends would wake receivers.
    send_cq: Cq,
    recv_cq: Cq,
    pub channel: CompletionChannel,
    memory: MemoryRegion,
    receive_slots: usize,
    /// Whether the port must be removed: an operation failed, the device is being removed, or the
    /// socket has lost its UDP port number.
    pub broken: bool,
    qp: NonNull<ibv_qp>,
    pub qpn: u32,
    /// The local address, with the port number of the program's socket.
    pub local: SocketAddr,
    /// The port's entry in the table that rsstat(8) reads.
    entry: Option<socket_table::Entry>,
    /// The id's registration in the reactor, which identifies the port.
    pub key: Key,
    /// Its addresses have a port number of their own, not the socket's.
    pub id: CmId,
}

/// A CQ.
struct Cq {
    completions: CompletionQueue,
    /// Whether the CQ is armed, or has raised an event that was not read.
    armed: bool,
}

impl Cq {
    fn arm(&mut self) -> Result<()> {
        if !self.armed {
            self.completions.arm()?;
            self.armed = true;
        }
        Ok(())
    }
}

// SAFETY: any thread may use the objects of libibverbs, and all of them, like the memory, are used
// under the socket's lock.
unsafe impl Send for Port {}

/// A received datagram in its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub slot: u32,
    /// Length without the GRH, in bytes.
    pub len: usize,
    /// The sender's QP number.
    pub qpn: u32,
}

/// Creates an id for datagrams and binds it to the address of `local`.
pub(super) fn bound_id(local: &SocketAddr) -> Result<CmId> {
    let id = CmId::new(rdma_port_space::RDMA_PS_UDP as u32)?;
    let mut address = *local;
    // Any port number will do: RDMA port numbers are separate from UDP port numbers.
    address.set_port(0);
    id.bind(&SockAddr::from_inet(&address))?;
    Ok(id)
}

/// Returns the device of an id, and the PD that all ids on the device share. Fails with `ENODEV`
/// unless they are known.
fn device_of(id: &CmId) -> Result<(NonNull<ibv_context>, NonNull<ibv_pd>)> {
    NonNull::new(id.id().verbs()).zip(NonNull::new(id.id().pd())).ok_or(Errno::ENODEV)
}

impl Port {
    /// Creates the port of a local address. Fails with `ENODEV` if no device has the address, and
    /// with `EPROTONOSUPPORT` for devices without datagrams (iWARP). `fd` is the socket's
    /// descriptor, for the table that rsstat(8) reads. `service` is called for the id's events.
    pub fn new(local: SocketAddr, wanted: Sizes, fd: c_int, service: Arc<dyn Service>) -> Result<Port> {
        let id = bound_id(&local)?;
        let (context, pd) = device_of(&id)?;
        if id.id().transport() != Some(IBV_TRANSPORT_IB) {
            return Err(Errno::new(libc::EPROTONOSUPPORT));
        }
        let limits = id.id().limits().ok_or(Errno::ENODEV)?;
        let max = u16::try_from(limits.work_requests.min(limits.completions)).unwrap_or(u16::MAX).max(MIN_ENTRIES);
        let (sends, receive_slots) = (wanted.send.clamp(MIN_ENTRIES, max), wanted.receive.clamp(MIN_ENTRIES, max));
        let bytes = EXCESS_LEN + usize::from(receive_slots) * RECEIVE_SLOT_LEN + usize::from(sends) * MAX_MESSAGE;
        // SAFETY: the id, which is dropped last, keeps the device and the PD open; all zeros are
        // valid attributes.
        let (channel, memory, mut attr): (_, _, ibv_qp_init_attr) =
            unsafe { (CompletionChannel::new(context)?, MemoryRegion::new(pd, bytes, false)?, zeroed()) };
        event::set_nonblocking(channel.fd(), true)?;
        // SAFETY: the device stays open, and the channel is dropped after the CQ.
        let completions = |entries: u16| unsafe { CompletionQueue::new(context, entries.into(), &channel) };
        let cq = |entries| completions(entries).map(|completions| Cq { completions, armed: false });
        let (send_cq, recv_cq) = (cq(sends)?, cq(receive_slots)?);
        (attr.send_cq, attr.recv_cq) = (send_cq.completions.cq(), recv_cq.completions.cq());
        (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (sends.into(), receive_slots.into());
        (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (1, 2);
        attr.qp_type = ibv_qp_type::IBV_QPT_UD;
        let (mut in_flight, mut free_slots, mut to_repost) = (Vec::new(), Vec::new(), Vec::new());
        in_flight.try_reserve_exact(sends.into()).map_err(|_| Errno::ENOMEM)?;
        free_slots.try_reserve_exact(sends.into()).map_err(|_| Errno::ENOMEM)?;
        to_repost.try_reserve_exact(receive_slots.into()).map_err(|_| Errno::ENOMEM)?;
        in_flight.resize_with(sends.into(), || None);
        free_slots.extend((0..u32::from(sends)).rev());
        // SAFETY: `Drop` destroys the QP before the CQs, and the id, which is dropped last, keeps
        // the PD.
        unsafe { id.create_qp(pd, &mut attr)? };
        let Some(qp) = NonNull::new(id.id().qp()) else { return Err(Errno::EIO) };
        // SAFETY: the QP is live.
        let qpn = unsafe { (*qp.as_ptr()).qp_num };
        let receive_slots = usize::from(receive_slots);
        let entry = socket_table::Entry::new(socket_table::DATAGRAM, fd, id.id(), qpn, 0);
        let mut port = Port {
            in_flight,
            free_slots,
            to_repost,
            send_cq,
            recv_cq,
            channel,
            memory,
            receive_slots,
            broken: false,
            qp,
            qpn,
            local,
            entry,
            key: Key::default(),
            id,
        };
        port.key = reactor::register(Role::Events, port.id.fd(), true, service)?;
        for slot in 0..port.receive_slots as u32 {
            port.repost(slot)?;
        }
        Ok(port)
    }

    pub fn can_send(&self) -> bool {
        !self.free_slots.is_empty()
    }

    /// Polls the CQs and calls `received` for each datagram. `received` returns false to reject the
    /// datagram. Slots of rejected datagrams are posted again after polling, so that a sender of
    /// such datagrams cannot keep this loop running.
    pub fn poll(&mut self, mut received: impl FnMut(&Port, Received) -> bool) {
        // Completed sends only free slots, so poll the send CQ only when at most half of the slots
        // are free.
        if self.free_slots.len() <= self.in_flight.len() / 2 {
            self.poll_queue(|port| &port.send_cq, |port, wc| port.send_completed(wc));
        }
        self.poll_queue(
            |port| &port.recv_cq,
            |port, wc| {
                let slot = (wc.wr_id() & !RECV_WR_ID_FLAG) as u32;
                let len = wc.len().saturating_sub(GRH);
                if let Some(entry) = &port.entry {
                    entry.counters().count_received(len as u32);
                }
                // A longer message is not from an rsocket.
                if len > MAX_MESSAGE || !received(port, Received { slot, len, qpn: wc.src_qp }) {
                    port.to_repost.push(slot);
                }
            },
        );
        while let Some(slot) = self.to_repost.pop() {
            // Fails only if the QP has failed, which its completions report.
            let _ = self.repost(slot);
        }
    }

    fn poll_queue(&mut self, queue: impl Fn(&Port) -> &Cq, mut complete: impl FnMut(&mut Port, &ibv_wc)) {
        loop {
            let mut batch = [const { MaybeUninit::uninit() }; POLL_BATCH];
            let Ok(completed) = queue(self).completions.poll(&mut batch) else {
                self.broken = true;
                return;
            };
            for wc in completed {
                if wc.error().is_some() {
                    self.broken = true;
                } else {
                    complete(self, wc);
                }
            }
            if completed.len() < POLL_BATCH {
                return;
            }
        }
    }

    /// Frees the slot and the address handle of a completed send.
    fn send_completed(&mut self, wc: &ibv_wc) {
        if let Some(entry) = self.in_flight.get_mut(wc.wr_id() as usize) {
            *entry = None;
            self.free_slots.push(wc.wr_id() as u32);
        }
    }

    /// Returns the bytes of a received datagram.
    pub fn bytes(&self, datagram: &Received) -> &[u8] {
        debug_assert!((datagram.slot as usize) < self.receive_slots && datagram.len <= MAX_MESSAGE);
        // SAFETY: the bytes are in the slot, which the device does not access until it is posted
        // again.
        unsafe { std::slice::from_raw_parts(self.receive_slot(datagram.slot).byte_add(GRH).as_ptr(), datagram.len) }
    }

    /// Posts a receive slot.
    pub fn repost(&self, slot: u32) -> Result<()> {
        let into = [(self.receive_slot(slot), (GRH + MAX_MESSAGE) as u32), (self.memory.start(), EXCESS_LEN as u32)];
        // SAFETY: the QP is live, the slot has no other users, and nobody reads the excess.
        unsafe { ud::post_recv(self.qp, slot, into, self.memory.lkey()) }
    }

    fn receive_slot(&self, slot: u32) -> NonNull<u8> {
        // SAFETY: slot numbers are less than `receive_slots`, for which the memory has room.
        unsafe { self.memory.start().byte_add(EXCESS_LEN + slot as usize * RECEIVE_SLOT_LEN) }
    }

    /// Sends the message that `fill` writes. `fill` returns the length of the message. Fails with
    /// `EAGAIN` if no slot is free.
    pub fn send(
        &mut self,
        path: &Arc<Path>,
        qpn: u32,
        fill: impl FnOnce(&mut [u8; MAX_MESSAGE]) -> usize,
    ) -> Result<()> {
        let slot = self.free_slots.pop().ok_or(Errno::EAGAIN)?;
        let offset = EXCESS_LEN + self.receive_slots * RECEIVE_SLOT_LEN + slot as usize * MAX_MESSAGE;
        // SAFETY: the memory has room for all send slots after the receive slots, and this slot has
        // no other users.
        let (start, bytes) = unsafe {
            let start = self.memory.start().byte_add(offset);
            (start, start.cast::<[u8; MAX_MESSAGE]>().as_mut())
        };
        let len = fill(bytes).min(MAX_MESSAGE) as u32;
        // SAFETY: the QP is live; the slot and the handle are kept until the completion.
        let posted = unsafe { ud::post_send(self.qp, slot.into(), start, len, self.memory.lkey(), &path.handle, qpn) };
        posted.inspect_err(|_| self.free_slots.push(slot))?;
        if let Some(entry) = &self.entry {
            entry.counters().count_sent(len);
        }
        if let Some(entry) = self.in_flight.get_mut(slot as usize) {
            *entry = Some(Arc::clone(path));
        }
        Ok(())
    }

    /// Arms the receive CQ and, if no send slot is free, the send CQ.
    pub fn arm(&mut self) {
        if self.broken {
            return;
        }
        let slots = if self.free_slots.is_empty() { self.send_cq.arm() } else { Ok(()) };
        self.broken |= self.recv_cq.arm().and(slots).is_err();
    }

    /// Reads the pending completion events.
    pub fn take_event(&mut self) {
        // Both CQs may have raised an event.
        while self.recv_cq.armed || self.send_cq.armed {
            // SAFETY: the channel is live. It is non-blocking.
            match unsafe { self.channel.handle().take() } {
                Ok(event) => {
                    for queue in [&mut self.recv_cq, &mut self.send_cq] {
                        queue.armed &= !queue.completions.note_event(&event);
                    }
                }
                Err(Errno::EAGAIN | Errno::EINTR) => return,
                // The channel can deliver no more events, although it is readable.
                Err(_) => {
                    self.broken = true;
                    return;
                }
            }
        }
    }

    /// Returns the path that `id` has resolved. `id` is bound to the port's address. Fails with
    /// `ENODEV` if the device of `id` is not the port's.
    pub fn path(&self, id: &CmId) -> Result<Path> {
        let found: ibv_sa_path_rec = id.id().first_path().ok_or(Errno::new(libc::EHOSTUNREACH))?;
        let (context, pd) = device_of(&self.id)?;
        if device_of(id)?.0 != context {
            return Err(Errno::ENODEV);
        }
        // SAFETY: the port's id keeps the context and the PD open, and the socket drops its paths
        // before its ports.
        let handle = unsafe { AddressHandle::new(context, pd, id.id().port_num(), &found, &self.local)? };
        Ok(Path { handle, port: self.key, mtu: 128 << u32::from(found.mtu.clamp(1, 5)) })
    }

    /// Closes a child's copies of the descriptors. The caller leaks the port afterwards.
    pub fn close_copies(&self) {
        [self.channel.fd(), self.id.fd()].into_iter().for_each(library_fds::close);
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // The QP is destroyed first, because it uses the CQs, the memory and the address handles.
        self.id.destroy_qp();
        reactor::unregister(self.key);
    }
}
