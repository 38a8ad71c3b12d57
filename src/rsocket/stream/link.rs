//! The data path of a connected stream: QP, CQs and memory, driven by the flow control state machines.
//!
//! What the peer sends completes in one CQ, what is sent in another: its completions only bring room back, and are looked at,
//! or waited for, when there is not enough of it.
//!
//! The peer writes by RDMA into three places of the main memory: the target SGL, the mapping table, and the receive buffer, of
//! which there may be a larger one beside it ([`rings`]). The first two are read through [`Layout`]'s volatile copies, the third
//! is given to the program after the completion that announced it. Nothing else of the process is open to the peer.

mod buffer;
mod post;
mod receive;
mod rings;
mod send;
mod sizes;
mod source;

use std::mem::{MaybeUninit, zeroed};
use std::ptr::NonNull;

use super::options::Options;
use super::turns::Turns;
use crate::cm::{self, Domain, Id};
use crate::errno::{Errno, Result};
use crate::ffi::rdma_cm_id;
use crate::rsocket::cm_id::CmId;
use crate::rsocket::flow::{Receiver, SendLimits, Sender};
use crate::rsocket::wire::{ConnData, IOMAP_ENTRY, Region, SGL_ENTRIES, SGL_ENTRY};
use crate::sys::rc::{Channel, Event, Queue, Registered, ibv_wc};
use crate::sys::verbs::{self, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_qp_type};
use buffer::SendBuffer;
use rings::{Place, Rings};
use sizes::Sizes;
pub(super) use source::{Gather, SMALL, parts};

/// Entries of the target SGL.
const SGL: usize = SGL_ENTRIES as usize;
/// Send queue entries set aside for control messages: 4 messages, or 2 of two entries each on iWARP.
const CONTROL: u32 = 4;
/// Receives beyond those that data has credits for: control messages need none. A peer sends at most six without hearing from
/// us: two grants of buffers, two of credits, and its farewells.
const EXTRA_RECEIVES: u32 = 16;
/// So many used receives are posted again together; the others are enough for control messages meanwhile.
const REPOST: usize = EXTRA_RECEIVES as usize / 2;
/// Bytes of a word that iWARP sends behind a write.
const WORD: usize = 4;
/// Space for the bytes of a control message, where they can't go inline.
const STAGE: usize = 32;
/// Completions looked at in one go.
const BATCH: usize = 16;

/// Room for them.
pub(super) struct Batch([MaybeUninit<ibv_wc>; BATCH]);

impl Batch {
    #[inline]
    pub fn new() -> Batch {
        Batch([const { MaybeUninit::uninit() }; BATCH])
    }
}

/// What came from the peer since it was last asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Something completed.
    pub any: bool,
    /// Data, or the end of it, or more room to send.
    pub edge: bool,
    /// The peer sends no more.
    pub end: bool,
    /// The peer neither sends nor receives any more.
    pub disconnect: bool,
    /// Whether data could be sent before, once something came that may change that.
    could_send: Option<bool>,
}

/// Places in the main memory.
#[derive(Clone, Copy, Debug)]
struct Layout {
    iomap: usize,
    stage: usize,
    words: usize,
    ring: usize,
    len: usize,
}

impl Layout {
    fn new(options: &Options, receives: u32, iwarp: bool) -> Layout {
        let iomap = SGL * SGL_ENTRY;
        let stage = iomap + usize::from(options.iomap) * IOMAP_ENTRY;
        let words = stage + CONTROL as usize * STAGE;
        let ring = words + if iwarp { receives as usize * WORD } else { 0 };
        let ring = ring.next_multiple_of(64);
        Layout { iomap, stage, words, ring, len: ring + options.receive_buffer as usize }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    /// Whose QP it is: it outlives the link.
    id: NonNull<rdma_cm_id>,
    qp: NonNull<ibv_qp>,
    /// Before the channel, which they need.
    pub received: Queue,
    sent: Queue,
    pub channel: Channel,
    /// An event of `sent` was asked for and not taken yet.
    sent_armed: bool,
    /// What was sent was looked at, and had something to say, without telling those who wait.
    untold: bool,
    untold_edge: bool,
    /// Calls that wait until all that was sent has arrived.
    pub flushing: u32,
    memory: Registered,
    layout: Layout,
    buffer: SendBuffer,
    iwarp: bool,
    /// Bytes that the device takes inline, and those the program wants to go inline.
    can_inline: u32,
    inline: u32,
    slots: u32,
    /// Receives, posted or idle.
    receives: u32,
    queue: u16,
    iomap: u16,
    /// Receives to post again.
    idle: Vec<u32>,
    receiver: Receiver,
    rings: Rings,
    sender: Option<Sender>,
    peer: Peer,
    /// Who waits in the completion channel.
    pub turns: Turns,
    /// The kernel has taken the device away: the channel says nothing but that.
    pub cut_off: bool,
    /// The completion channel's descriptor is O_NONBLOCK.
    pub nonblocking: bool,
    /// First failure of a work request or of the peer's.
    failed: Option<Errno>,
    /// Control messages sent: says which staging place is next.
    controls: usize,
}

// SAFETY: libibverbs objects and an id, which any thread may use, one at a time: the stream's lock sees to that.
unsafe impl Send for Link {}

/// What the peer said at connection, and where it is with its SGL.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    swap: bool,
    sgl: u64,
    key: u32,
    iomap: u16,
    /// The entry of our SGL that it fills next, and whether it wrote since it was last looked at.
    slot: usize,
    news: bool,
}

impl Link {
    /// A QP with its resources for `id`, whose device is the domain's; the receives are posted.
    /// `domain` outlives it.
    pub fn new(id: &CmId, domain: &Domain, options: &Options) -> Result<Link> {
        let (context, pd) = (domain.context(), domain.pd());
        let iwarp = id.id().transport() == Some(verbs::IBV_TRANSPORT_IWARP);
        let Sizes { sends, queue } = Sizes::new(options, domain.limits());
        let receives = queue + EXTRA_RECEIVES;
        // What is declared first is dropped last, should anything fail: the queues need the channel.
        // SAFETY: the device is open as long as the domain lives, which its owner keeps longer than
        // the link.
        let channel = unsafe { Channel::new(context)? };
        // SAFETY: as above.
        let (received, sent) =
            unsafe { (Queue::new(context, receives, &channel)?, Queue::new(context, sends, &channel)?) };
        let layout = Layout::new(options, receives, iwarp);
        // SAFETY: the PD lives as long as the domain.
        let memory = unsafe { Registered::new(pd, layout.len, true)? };
        // SAFETY: within the memory, by its layout.
        let ring = Place { start: unsafe { memory.start().add(layout.ring) }, key: memory.rkey() };
        let mut idle = Vec::new();
        idle.try_reserve_exact(receives as usize).map_err(|_| Errno::ENOMEM)?;
        idle.extend(0..receives);
        let inline = if iwarp { u32::from(options.inline).max(WORD as u32) } else { u32::from(options.inline) };
        let least = if iwarp { WORD as u32 } else { 0 };
        let (qp, can_inline) = create_qp(id, pd, [&sent, &received], [sends, receives], [inline, least])?;
        let mut link = Link {
            id: NonNull::new(id.id().as_c()).ok_or(Errno::EIO)?,
            qp,
            received,
            sent,
            channel,
            sent_armed: false,
            untold: false,
            untold_edge: false,
            flushing: 0,
            memory,
            layout,
            buffer: SendBuffer::new(options.send_buffer, options.send_grows),
            iwarp,
            can_inline,
            inline: u32::from(options.inline).min(can_inline),
            slots: sends - CONTROL,
            receives,
            queue: queue as u16,
            iomap: options.iomap,
            idle,
            receiver: Receiver::new(options.receive_buffer, queue as u16),
            rings: Rings::new(ring, options.receive_buffer, options.receive_grows),
            sender: None,
            peer: Peer::default(),
            turns: Turns::default(),
            cut_off: false,
            nonblocking: false,
            failed: None,
            controls: 0,
        };
        link.post_receives()?;
        Ok(link)
    }

    /// What the peer is told at connection.
    pub fn offer(&self) -> ConnData {
        let start = self.memory.start().as_ptr() as usize as u64;
        let half = (self.layout.len - self.layout.ring) as u32 / 2;
        ConnData {
            big_endian: cfg!(target_endian = "big"),
            credits: self.queue,
            iomap_size: Some(self.iomap),
            target_sgl: Region { addr: start, key: self.memory.rkey(), length: SGL as u32 },
            data_buf: Region { addr: start + self.layout.ring as u64, key: self.memory.rkey(), length: half },
        }
    }

    /// The peer's answer to it.
    pub fn agree(&mut self, peer: &ConnData) -> Result<()> {
        let per_message = if self.iwarp { 2 } else { 1 };
        let limits = SendLimits {
            slots: self.slots,
            per_message,
            controls: CONTROL / per_message,
            buffer: self.buffer.least(),
            window: peer.credits,
        };
        self.sender = Some(Sender::new(limits, peer.data_buf)?);
        self.peer = Peer {
            swap: peer.big_endian != cfg!(target_endian = "big"),
            sgl: peer.target_sgl.addr,
            key: peer.target_sgl.key,
            iomap: peer.iomap_size.unwrap_or(0),
            slot: 1,
            news: false,
        };
        Ok(())
    }

    /// Whether the connection has to be ended in order for the last messages to arrive: that of a working iWARP connection.
    pub fn parts_in_order(&self) -> bool {
        self.iwarp && self.failed.is_none() && self.sender.is_some()
    }

    /// First failure of a work request, or what the peer did wrong.
    pub fn failure(&self) -> Option<Errno> {
        self.failed
    }

    /// Nothing is sent or received any more. `EIO` is what the kernel says of a device that is gone.
    pub fn fail(&mut self, error: Errno) {
        self.failed.get_or_insert(if error == Errno::EIO { Errno::ENETDOWN } else { error });
    }

    /// Whether data can be sent.
    pub fn can_send(&self) -> bool {
        self.failed.is_none() && self.sender.as_ref().is_some_and(Sender::is_ready)
    }

    /// Whether nothing that was posted is still to complete.
    pub fn is_flushed(&self) -> bool {
        self.failed.is_some() || self.sender.as_ref().is_none_or(Sender::is_idle)
    }

    /// Whether somebody needs the completions of what was sent.
    #[inline]
    pub fn wants_sent(&self) -> bool {
        self.flushing > 0 || self.untold || self.sender.as_ref().is_some_and(Sender::is_short)
    }

    /// Has them raise an event, if somebody needs that and it was not asked for; whether it is now.
    pub fn arm_sent(&mut self) -> Result<bool> {
        if self.sent_armed || !self.wants_sent() {
            return Ok(false);
        }
        self.sent.arm()?;
        self.sent_armed = true;
        Ok(true)
    }

    /// Whether their event was asked for and not taken yet.
    pub fn has_armed_sent(&self) -> bool {
        self.sent_armed
    }

    /// Has something complete that raises an event, for a thread that sleeps in the channel.
    pub fn rouse(&mut self) -> Result<()> {
        if !self.sent_armed {
            self.sent.arm()?;
            self.sent_armed = true;
        }
        self.keep_alive()
    }

    /// Notes an event that was taken; whether it is that of `received`.
    pub fn took(&mut self, event: &Event) -> bool {
        if self.sent.took(event) {
            self.sent_armed = false;
        }
        self.received.took(event)
    }

    /// Lets every work request end, and the threads that wait for one.
    pub fn stop(&mut self) {
        // SAFETY: a live QP; all zeros are a value of the attributes.
        unsafe {
            let mut attr: verbs::ibv_qp_attr = zeroed();
            attr.qp_state = verbs::ibv_qp_state::IBV_QPS_ERR;
            // A QP that is in this state already, or gone with its device, is what is wanted.
            let _ = verbs::modify_qp(self.qp, &mut attr, verbs::ibv_qp_attr_mask::IBV_QP_STATE.0 as i32);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: the owner drops the link before the id. The QP goes before its CQ and its memory.
        unsafe {
            if let Ok(id) = Id::from_c(self.id.as_ptr()) {
                cm::destroy_qp(id);
            }
        }
    }
}

/// A QP for `id` with its queues for what is sent and received and the numbers of their work
/// requests, and how many bytes it takes inline: as many as wanted or, where the device refuses a
/// QP with so many, fewer, but not less than `least`.
fn create_qp(
    id: &CmId,
    pd: NonNull<ibv_pd>,
    queues: [&Queue; 2],
    requests: [u32; 2],
    [wanted, least]: [u32; 2],
) -> Result<(NonNull<ibv_qp>, u32)> {
    let mut inline = wanted;
    loop {
        // SAFETY: all zeros are a value of this structure.
        let mut attr: ibv_qp_init_attr = unsafe { zeroed() };
        [attr.send_cq, attr.recv_cq] = queues.map(Queue::cq);
        attr.qp_type = ibv_qp_type::IBV_QPT_RC;
        [attr.cap.max_send_wr, attr.cap.max_recv_wr] = requests;
        attr.cap.max_send_sge = 2;
        attr.cap.max_recv_sge = 1;
        attr.cap.max_inline_data = inline;
        // SAFETY: the owner destroys the QP before the CQs and the PD.
        match unsafe { id.create_qp(pd, &mut attr) } {
            Ok(()) => {
                let qp = NonNull::new(id.qp()).ok_or(Errno::EIO)?;
                return Ok((qp, attr.cap.max_inline_data));
            }
            Err(error) => inline = sizes::less_inline(error, inline, least).ok_or(error)?,
        }
    }
}
