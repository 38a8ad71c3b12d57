//! A local address's way into the fabric: its UD QP with memory and completions.
//!
//! Unsafe code: the memory that the device reads and writes. A receive slot is the device's from posting to completion, a
//! send slot likewise; in between they belong to whoever has the [`Port`].

use std::ffi::c_int;
use std::mem::{MaybeUninit, zeroed};
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::Arc;

use super::udp;
use crate::cm;
use crate::diag::Place;
use crate::errno::{Errno, Result};
use crate::ffi::{ibv_sa_path_rec, rdma_port_space};
use crate::rsocket::cm_id::CmId;
use crate::rsocket::reactor::{self, Key};
use crate::sys::event;
use crate::sys::own::{self, OwnFd};
use crate::sys::rc::{CompletionChannel, CompletionQueue, MemoryRegion, RECV_WR_ID_FLAG, ibv_wc};
use crate::sys::ud::{self, AddressHandle, GRH};
use crate::sys::verbs::{IBV_TRANSPORT_IB, ibv_context, ibv_qp, ibv_qp_init_attr, ibv_qp_type};

/// Bytes of a datagram with its header.
pub(super) const MAX_MESSAGE: usize = 2048;
/// Bytes from one receive slot to the next.
const RECEIVE_SLOT: usize = (GRH + MAX_MESSAGE).next_multiple_of(64);
/// Fewest work requests of a queue.
const FEWEST: u16 = 16;
/// Completions taken at a time.
const BATCH: usize = 16;

/// A found path: where datagrams go, from which of the socket's ports, and how long they may be with their header.
#[derive(Debug)]
pub(super) struct Path {
    handle: AddressHandle,
    pub port: Key,
    pub mtu: usize,
}

/// Sizes of the queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub send: u16,
    pub receive: u16,
}

/// See the module. The fields are in the order in which they go, after the QP.
#[derive(Debug)]
pub(super) struct Port {
    /// By send slot: keeps the address handle until the datagram has left.
    sending: Vec<Option<Arc<Path>>>,
    /// Send slots that are not in use.
    free: Vec<u32>,
    /// Receive slots to go back to the device; room for all.
    unwanted: Vec<u32>,
    /// Raises an event only for who waits for a free slot: a sent datagram wakes nobody who wants to receive.
    sent: Queue,
    received: Queue,
    memory: MemoryRegion,
    receives: usize,
    /// A completion failed, or the device is to go: it is of no more use.
    pub broken: bool,
    qp: NonNull<ibv_qp>,
    qpn: u32,
    /// With the port that the program's socket has.
    pub local: SocketAddr,
    /// Before the id, whose descriptor it is about.
    watched: Watched,
    id: CmId,
}

/// The reactor looks after an id under this key, until it is dropped.
#[derive(Debug)]
struct Watched(Key);

impl Drop for Watched {
    fn drop(&mut self) {
        reactor::forget(self.0);
    }
}

/// Completions of one kind.
#[derive(Debug)]
struct Queue {
    /// Before the channel, which it needs.
    completions: CompletionQueue,
    channel: CompletionChannel,
    armed: bool,
}

impl Queue {
    /// # Safety
    /// An open context, which stays open for as long as the result lives.
    unsafe fn new(context: NonNull<ibv_context>, entries: u16) -> Result<Queue> {
        // SAFETY: an open context, which stays open for as long as the result lives: guaranteed by
        // the caller.
        let channel = unsafe { CompletionChannel::new(context)? };
        // Declared after the channel, and so dropped before it, should the next step fail.
        // SAFETY: as above.
        let completions = unsafe { CompletionQueue::new(context, entries.into(), &channel)? };
        event::set_nonblocking(channel.fd(), true)?;
        Ok(Queue { completions, channel, armed: false })
    }

    fn arm(&mut self) -> Result<()> {
        if !self.armed {
            self.completions.arm()?;
            self.armed = true;
        }
        Ok(())
    }

    /// Fails when there will be no more events, which the channel is readable for, too.
    fn take_event(&mut self) -> Result<()> {
        if !self.armed {
            return Ok(());
        }
        // SAFETY: the channel is live; it never blocks.
        match unsafe { self.channel.handle().take() } {
            Ok(event) => {
                self.completions.note_event(&event);
                self.armed = false;
                Ok(())
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

// SAFETY: libibverbs objects and memory, used under the socket's lock.
unsafe impl Send for Port {}

/// A received datagram, still in its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub slot: u32,
    /// Bytes behind the GRH.
    pub len: usize,
    /// The sender's QP.
    pub qpn: u32,
}

/// A new id for datagrams of the local address `ip`.
pub(super) fn bound_id(local: &SocketAddr) -> Result<CmId> {
    let id = CmId::new(rdma_port_space::RDMA_PS_UDP as u32)?;
    let mut address = *local;
    // The port spaces of the kernel's IP stack and of RDMA differ; which port it is does not matter here.
    address.set_port(0);
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    id.bind(&udp::write(family, &address))?;
    Ok(id)
}

impl Port {
    /// Of a local address. `ENODEV` when it is no device's, `EPROTONOSUPPORT` for devices without datagrams (iWARP).
    /// `watch` has the reactor look after the id's descriptor.
    pub fn new(local: SocketAddr, wanted: Sizes, watch: impl FnOnce(c_int) -> Result<Key>) -> Result<Port> {
        let id = bound_id(&local)?;
        id.set_nonblocking()?;
        let watched = Watched(watch(id.fd())?);
        let context = id.context().ok_or(Errno::ENODEV)?;
        let pd = id.pd().ok_or(Errno::ENODEV)?;
        if id.id().transport() != Some(IBV_TRANSPORT_IB) {
            return Err(Errno::new(libc::EPROTONOSUPPORT));
        }
        let limits = id.limits().ok_or(Errno::ENODEV)?;
        let most = u16::try_from(limits.work_requests.min(limits.completions)).unwrap_or(u16::MAX).max(FEWEST);
        let (sends, receives) = (wanted.send.clamp(FEWEST, most), wanted.receive.clamp(FEWEST, most));
        let bytes = usize::from(receives) * RECEIVE_SLOT + usize::from(sends) * MAX_MESSAGE;
        // SAFETY: the id keeps device and PD; all zeros are a value of the attributes.
        let (sent, received, memory, mut attr): (_, _, _, ibv_qp_init_attr) = unsafe {
            (
                Queue::new(context, sends)?,
                Queue::new(context, receives)?,
                MemoryRegion::new(pd, bytes, false)?,
                zeroed(),
            )
        };
        attr.send_cq = sent.completions.cq();
        attr.recv_cq = received.completions.cq();
        attr.cap.max_send_wr = sends.into();
        attr.cap.max_recv_wr = receives.into();
        (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (1, 1);
        attr.qp_type = ibv_qp_type::IBV_QPT_UD;
        let (mut sending, mut free, mut unwanted) = (Vec::new(), Vec::new(), Vec::new());
        sending.try_reserve_exact(sends.into()).map_err(|_| Errno::ENOMEM)?;
        free.try_reserve_exact(sends.into()).map_err(|_| Errno::ENOMEM)?;
        unwanted.try_reserve_exact(receives.into()).map_err(|_| Errno::ENOMEM)?;
        sending.resize_with(sends.into(), || None);
        free.extend((0..u32::from(sends)).rev());
        // SAFETY: the CQs live as long as the QP (see `Drop`), the PD as long as the id.
        unsafe { id.create_qp(pd, &mut attr)? };
        let Some(qp) = NonNull::new(id.qp()) else { return Err(Errno::EIO) };
        // SAFETY: a live QP.
        let qpn = unsafe { (*qp.as_ptr()).qp_num };
        let receives = usize::from(receives);
        let broken = false;
        let port =
            Port { sending, free, unwanted, sent, received, memory, receives, broken, qp, qpn, local, watched, id };
        for slot in 0..port.receives as u32 {
            port.repost(slot)?;
        }
        Ok(port)
    }

    /// The device, for messages. The addresses are those of the id, whose port is another.
    pub fn place(&self) -> Place {
        cm::log::place(self.id.id())
    }

    /// Names the port, and its id to the reactor.
    pub fn key(&self) -> Key {
        self.watched.0
    }

    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Descriptors of the completion channels.
    pub fn fds(&self) -> [c_int; 2] {
        [self.received.channel.fd(), self.sent.channel.fd()]
    }

    pub fn can_send(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes what completed: `received` is called for every datagram.
    /// Those that it does not want go back to the device afterwards: whoever sends nothing else must not keep us here.
    pub fn poll(&mut self, mut received: impl FnMut(&Port, Received) -> bool) {
        // Slots are looked for when they get scarce.
        if self.free.len() <= self.sending.len() / 2 {
            self.poll_queue(|port| &port.sent, |port, wc| port.sent(wc));
        }
        self.poll_queue(
            |port| &port.received,
            |port, wc| {
                let slot = (wc.wr_id() & !RECV_WR_ID_FLAG) as u32;
                let len = wc.len().saturating_sub(GRH).min(MAX_MESSAGE);
                if !received(port, Received { slot, len, qpn: wc.src_qp }) {
                    port.unwanted.push(slot);
                }
            },
        );
        while let Some(slot) = self.unwanted.pop() {
            // It can only fail when the QP did, which its completions tell.
            let _ = self.repost(slot);
        }
    }

    fn poll_queue(&mut self, queue: impl Fn(&Port) -> &Queue, mut complete: impl FnMut(&mut Port, &ibv_wc)) {
        loop {
            let mut batch = [const { MaybeUninit::uninit() }; BATCH];
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
            if completed.len() < BATCH {
                return;
            }
        }
    }

    /// A datagram has left: its slot is free, and its address handle may go.
    fn sent(&mut self, wc: &ibv_wc) {
        if let Some(place) = self.sending.get_mut(wc.wr_id() as usize) {
            *place = None;
            self.free.push(wc.wr_id() as u32);
        }
    }

    /// The bytes of a received datagram.
    pub fn bytes(&self, datagram: &Received) -> &[u8] {
        debug_assert!((datagram.slot as usize) < self.receives && datagram.len <= MAX_MESSAGE);
        // SAFETY: within the slot, which the device is done with until it is posted again.
        unsafe { std::slice::from_raw_parts(self.receive_slot(datagram.slot).byte_add(GRH).as_ptr(), datagram.len) }
    }

    /// Gives a receive slot back to the device.
    pub fn repost(&self, slot: u32) -> Result<()> {
        let len = (GRH + MAX_MESSAGE) as u32;
        // SAFETY: a live QP; nobody has the slot any more.
        unsafe { ud::post_recv(self.qp, slot, self.receive_slot(slot), len, self.memory.lkey()) }
    }

    fn receive_slot(&self, slot: u32) -> NonNull<u8> {
        // SAFETY: slots are below `receives`, which the memory has room for.
        unsafe { self.memory.start().byte_add(slot as usize * RECEIVE_SLOT) }
    }

    /// Sends what `fill` writes; it says how many bytes. `EAGAIN` when no slot is free.
    pub fn send(
        &mut self,
        path: &Arc<Path>,
        qpn: u32,
        fill: impl FnOnce(&mut [u8; MAX_MESSAGE]) -> usize,
    ) -> Result<()> {
        let slot = self.free.pop().ok_or(Errno::EAGAIN)?;
        let at = self.receives * RECEIVE_SLOT + slot as usize * MAX_MESSAGE;
        // SAFETY: behind the receive slots there is room for every send slot, and this one is nobody's.
        let (start, bytes) = unsafe {
            let start = self.memory.start().byte_add(at);
            (start, start.cast::<[u8; MAX_MESSAGE]>().as_mut())
        };
        let len = fill(bytes).min(MAX_MESSAGE) as u32;
        // SAFETY: a live QP; slot and handle stay until the completion.
        let posted = unsafe { ud::post_send(self.qp, slot.into(), start, len, self.memory.lkey(), &path.handle, qpn) };
        match posted {
            Ok(()) => {
                if let Some(place) = self.sending.get_mut(slot as usize) {
                    *place = Some(Arc::clone(path));
                }
                Ok(())
            }
            Err(error) => {
                self.free.push(slot);
                Err(error)
            }
        }
    }

    /// Has the next datagram raise an event and, when there is none, the next free slot.
    pub fn arm(&mut self) {
        if self.broken {
            return;
        }
        let slots = if self.free.is_empty() { self.sent.arm() } else { Ok(()) };
        if self.received.arm().and(slots).is_err() {
            self.broken = true;
        }
    }

    /// Takes completion events, if there are any.
    pub fn take_event(&mut self) {
        let sent = self.sent.take_event();
        if self.received.take_event().and(sent).is_err() {
            self.broken = true;
        }
    }

    /// The kind of the id's next event; `EAGAIN` when there is none.
    pub fn event(&self) -> Result<u32> {
        self.id.event().map(|event| event.kind)
    }

    /// Waits for no more completions: in place of the channels' descriptors there are others, which
    /// go to `keep`.
    pub fn leave_numbers(&mut self, mut keep: impl FnMut(OwnFd)) -> Result<()> {
        for queue in [&mut self.received, &mut self.sent] {
            keep(queue.channel.move_to_new_number()?);
        }
        Ok(())
    }

    /// A path that an id resolved, which was bound to the same address.
    pub fn path(&self, id: &CmId) -> Result<Path> {
        let found: ibv_sa_path_rec = id.id().first_path().ok_or(Errno::new(libc::EHOSTUNREACH))?;
        let (context, pd) = (self.id.context().ok_or(Errno::ENODEV)?, self.id.pd().ok_or(Errno::ENODEV)?);
        if id.context() != Some(context) {
            return Err(Errno::ENODEV);
        }
        // SAFETY: the port's id keeps both; the socket drops its paths before its ports.
        let handle = unsafe { AddressHandle::new(context, pd, id.id().port_num(), &found, &self.local)? };
        Ok(Path { handle, port: self.key(), mtu: 128 << u32::from(found.mtu.clamp(1, 5)) })
    }

    /// In a child: closes the copies of the descriptors, and leaves the rest to the parent.
    pub fn abandon(self) {
        let port = std::mem::ManuallyDrop::new(self);
        for fd in port.fds().into_iter().chain([port.id.fd()]) {
            own::close(fd);
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // First: completions, memory and address handles are in its use.
        self.id.destroy_qp();
    }
}
