//! The data path of a connected stream: QP, CQ and memory, driven by the flow control state machines.
//!
//! The peer writes by RDMA into three places of the main memory: the target SGL, the mapping table, and the receive buffer.
//! The first two are read through [`Layout`]'s volatile copies, the third is given to the program after the completion that
//! announced it. Nothing else of the process is open to the peer.

use std::mem::{MaybeUninit, zeroed};
use std::ptr::{self, NonNull};

use super::options::Options;
use crate::cm::{self, Id};
use crate::errno::{Errno, Result};
use crate::ffi::rdma_cm_id;
use crate::rsocket::cm_id::CmId;
use crate::rsocket::flow::{Announcement, Chunk, Grant, Receiver, SendLimits, Sender, Violation};
use crate::rsocket::wire::{self, ConnData, Control, IOMAP_ENTRY, Mapping, Message, Region, SGL_ENTRY};
use crate::sys::rc::{self, Completions, Kind, Piece, RECEIVE, Registered, Work, ibv_wc};
use crate::sys::verbs::{self, ibv_qp, ibv_qp_init_attr, ibv_qp_type, ibv_wc_status};

/// Entries of the target SGL.
const SGL: usize = 2;
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
    pub completions: Completions,
    memory: Registered,
    layout: Layout,
    /// The send buffer: made with the first send that needs it.
    buffer: Option<Registered>,
    send_buffer: u32,
    iwarp: bool,
    /// Bytes that the device takes inline, and those the program wants to go inline.
    can_inline: u32,
    inline: u32,
    slots: u32,
    queue: u16,
    iomap: u16,
    /// Receives to post again.
    idle: Vec<u32>,
    receiver: Receiver,
    sender: Option<Sender>,
    peer: Peer,
    /// An event was asked for and not taken yet.
    pub armed: bool,
    /// A thread waits in the completion channel.
    pub leader: bool,
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
    /// A QP with its resources for `id`, whose device is known; the receives are posted.
    pub fn new(id: &CmId, options: &Options) -> Result<Link> {
        let (context, pd) = id.context().zip(id.pd()).ok_or(Errno::ENODEV)?;
        // SAFETY: the id's device is open as long as the id lives, which its owner keeps longer than the link.
        let (attr, iwarp) = unsafe {
            let iwarp = (*(*context.as_ptr()).device).transport_type == verbs::IBV_TRANSPORT_IWARP;
            (verbs::query_device(context)?, iwarp)
        };
        let most = u32::try_from(attr.max_qp_wr).unwrap_or(0).clamp(16, 0xfffe);
        let sends = u32::from(options.sq).clamp(16, most);
        let queue = u32::from(options.rq).clamp(16, most.saturating_sub(EXTRA_RECEIVES).max(16));
        let receives = queue + EXTRA_RECEIVES;
        // SAFETY: as above.
        let completions = unsafe { Completions::new(context, sends + receives)? };
        let layout = Layout::new(options, receives, iwarp);
        // SAFETY: the PD lives as long as the id.
        let memory = unsafe { Registered::new(pd, layout.len, true)? };
        let mut idle = Vec::new();
        idle.try_reserve_exact(receives as usize).map_err(|_| Errno::ENOMEM)?;
        idle.extend(0..receives);
        let inline = if iwarp { u32::from(options.inline).max(WORD as u32) } else { u32::from(options.inline) };
        let (qp, can_inline) = create_qp(id, &completions, sends, receives, inline)?;
        let mut link = Link {
            id: NonNull::new(id.id().as_c()).ok_or(Errno::EIO)?,
            qp,
            completions,
            memory,
            layout,
            buffer: None,
            send_buffer: options.send_buffer,
            iwarp,
            can_inline,
            inline: u32::from(options.inline).min(can_inline),
            slots: sends - CONTROL,
            queue: queue as u16,
            iomap: options.iomap,
            idle,
            receiver: Receiver::new(options.receive_buffer, queue as u16),
            sender: None,
            peer: Peer::default(),
            armed: false,
            leader: false,
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
            buffer: self.send_buffer,
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

    fn fail(&mut self, error: Errno) {
        self.failed.get_or_insert(error);
    }

    /// Whether data can be sent.
    pub fn can_send(&self) -> bool {
        self.failed.is_none() && self.sender.as_ref().is_some_and(Sender::is_ready)
    }

    /// Whether nothing that was posted is still to complete.
    pub fn is_flushed(&self) -> bool {
        self.failed.is_some() || self.sender.as_ref().is_none_or(Sender::is_idle)
    }

    /// Bytes that the program can read.
    pub fn available(&self) -> u64 {
        self.receiver.available()
    }

    /// Copies received bytes, from `skip` bytes behind the next one on; how many.
    pub fn peek(&self, skip: u64, into: &mut [MaybeUninit<u8>]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let (offset, len) = self.receiver.piece(skip + done as u64);
            let len = (len as usize).min(into.len() - done);
            if len == 0 {
                break;
            }
            // SAFETY: the piece lies in the ring; the peer was told not to write there until it is taken, and if it does, it
            // only spoils its own data. The program's buffer is another memory.
            unsafe {
                let from = self.memory.start().add(self.layout.ring + offset as usize);
                ptr::copy_nonoverlapping(from.as_ptr(), into[done..].as_mut_ptr().cast(), len);
            }
            done += len;
        }
        done
    }

    /// The program has taken `len` bytes: room for the peer.
    pub fn take(&mut self, len: u64) {
        self.receiver.take(len);
        self.grant();
    }

    /// Looks at what completed.
    pub fn poll(&mut self) -> News {
        let mut news = News::default();
        let could_send = self.can_send();
        // SAFETY: all zeros are values of this structure.
        let mut batch: [ibv_wc; BATCH] = unsafe { zeroed() };
        loop {
            let count = match self.completions.poll(&mut batch) {
                Ok(count) => count,
                Err(error) => {
                    self.fail(error);
                    break;
                }
            };
            for wc in &batch[..count] {
                news.any = true;
                self.complete(wc, &mut news);
            }
            if count < batch.len() {
                break;
            }
        }
        if news.any {
            if self.failed.is_none()
                && self.idle.len() >= REPOST
                && let Err(error) = self.post_receives()
            {
                self.fail(error);
            }
            self.retarget();
            self.grant();
            news.edge |= !could_send && self.can_send();
        }
        news
    }

    fn complete(&mut self, wc: &ibv_wc, news: &mut News) {
        if let Some((status, _)) = wc.error() {
            self.fail(errno_of(status));
            news.edge = true;
            return;
        }
        if wc.wr_id() & RECEIVE == 0 {
            if let Some(sender) = &mut self.sender {
                sender.completed(wc.wr_id());
            }
            return;
        }
        if self.failed.is_some() {
            // What follows a broken rule is not believed.
            return;
        }
        let slot = (wc.wr_id() & !RECEIVE) as u32;
        let word = match wc.imm_data() {
            Some(word) => u32::from_be(word),
            None if self.iwarp => self.word(slot),
            // A SEND, which is not part of the protocol.
            None => {
                news.edge = true;
                return self.fail(Errno::ECONNABORTED);
            }
        };
        if self.iwarp && wc.len() != WORD {
            news.edge = true;
            return self.fail(Errno::ECONNABORTED);
        }
        // There is room: each receive is in the list or posted.
        self.idle.push(slot);
        if self.receive(word, news).is_err() {
            self.fail(Errno::ECONNABORTED);
            news.edge = true;
        }
    }

    /// The word that iWARP put into a slot.
    fn word(&self, slot: u32) -> u32 {
        // SAFETY: the slot is within the memory, by its layout; the device wrote it before the completion.
        unsafe {
            self.memory.start().add(self.layout.words + slot as usize * WORD).cast::<u32>().as_ptr().read_volatile()
        }
    }

    fn receive(&mut self, word: u32, news: &mut News) -> std::result::Result<(), Violation> {
        match Message::parse(word).map_err(|_| Violation::BadGrant)? {
            Message::Data(len) => {
                self.receiver.data(len)?;
                news.edge = true;
            }
            Message::Grant(number) => {
                self.sender.as_mut().ok_or(Violation::BadGrant)?.granted(number)?;
                self.peer.news = true;
            }
            Message::Iomap(index) => {
                self.receiver.message()?;
                if index >= self.iomap {
                    return Err(Violation::BadBuffer);
                }
            }
            Message::Control(Control::Disconnect) => {
                (news.disconnect, news.edge) = (true, true);
            }
            Message::Control(Control::Shutdown) => {
                (news.end, news.edge) = (true, true);
            }
            Message::Control(Control::Keepalive) => {}
        }
        Ok(())
    }

    /// Takes the next buffer that the peer announced, when the one in use is used up.
    fn retarget(&mut self) {
        let Some(sender) = &mut self.sender else { return };
        if !self.peer.news || !sender.wants_target() {
            return;
        }
        self.peer.news = false;
        // SAFETY: the SGL is at the beginning of the memory. The peer writes it by RDMA; the length, which it writes last, is
        // read first.
        let entry = unsafe {
            let entry = self.memory.start().add(self.peer.slot * SGL_ENTRY).cast::<[u32; SGL_ENTRY / 4]>().as_ptr();
            let length = (&raw const (*entry)[3]).read_volatile();
            if length == 0 {
                return;
            }
            std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
            let words = [
                (&raw const (*entry)[0]).read_volatile(),
                (&raw const (*entry)[1]).read_volatile(),
                (&raw const (*entry)[2]).read_volatile(),
            ];
            // The next announcement in this entry will show.
            (&raw mut (*entry)[3]).write_volatile(0);
            let mut bytes = [0; SGL_ENTRY];
            for (bytes, word) in bytes.chunks_exact_mut(4).zip([words[0], words[1], words[2], length]) {
                bytes.copy_from_slice(&word.to_ne_bytes());
            }
            // Entries are in the order of this machine: the writer swaps.
            wire::parse_sgl(&bytes)
        };
        sender.retarget(entry);
        self.peer.slot = 1 - self.peer.slot;
        // The other entry may have been filled by the same batch.
        self.peer.news = true;
    }

    fn post_receives(&mut self) -> Result<()> {
        let (words, lkey, iwarp) = (self.layout.words, self.memory.lkey(), self.iwarp);
        let start = self.memory.start().as_ptr() as usize + words;
        let place =
            |slot: u32| iwarp.then(|| Piece { addr: (start + slot as usize * WORD) as u64, len: WORD as u32, lkey });
        // SAFETY: the QP is live; the slots are in memory that is the device's to write.
        unsafe { rc::receive(self.qp, &self.idle, place)? };
        self.idle.clear();
        Ok(())
    }

    /// Tells the peer what it may send, when it is time.
    fn grant(&mut self) {
        let Some(sender) = &self.sender else { return };
        if self.failed.is_some() || !sender.has_control() {
            return;
        }
        let Some(grant) = self.receiver.due() else { return };
        // Credits promise receives.
        let result = if self.idle.is_empty() { Ok(()) } else { self.post_receives() };
        match result.and_then(|()| self.send_grant(&grant)) {
            Ok(()) => self.receiver.told(&grant),
            Err(error) => self.fail(error),
        }
    }

    fn send_grant(&mut self, grant: &Grant) -> Result<()> {
        let Some(buffer) = grant.buffer else {
            return self.send_control(Message::Grant(grant.number), &[], 0);
        };
        let Announcement { slot, offset, len } = buffer;
        let region = Region {
            addr: self.memory.start().as_ptr() as usize as u64 + self.layout.ring as u64 + u64::from(offset),
            key: self.memory.rkey(),
            length: len,
        };
        let bytes = wire::emit_sgl(region, self.peer.swap);
        self.send_control(Message::Grant(grant.number), &bytes, self.peer.sgl + (slot * SGL_ENTRY) as u64)
    }

    /// Sends a control message; `EAGAIN` while all are outstanding.
    pub fn control(&mut self, control: Control) -> Result<()> {
        match &self.sender {
            Some(sender) if sender.has_control() => self.send_control(Message::Control(control), &[], 0),
            Some(_) => Err(Errno::EAGAIN),
            None => Err(Errno::ENOTCONN),
        }
    }

    /// A message with `bytes`, at most `STAGE`, for the peer's memory at `addr`.
    fn send_control(&mut self, message: Message, bytes: &[u8], addr: u64) -> Result<()> {
        debug_assert!(bytes.len() <= STAGE);
        let Some(sender) = &mut self.sender else { return Err(Errno::ENOTCONN) };
        let requests = if self.iwarp && !bytes.is_empty() { 2 } else { 1 };
        let number = sender.take_control(requests);
        let (piece, inline) = self.stage(bytes);
        self.post(Some(message), piece, inline, addr, self.peer.key, number, true)
    }

    /// Puts bytes where the device finds them: they stay on the caller's stack when they go inline.
    fn stage(&mut self, bytes: &[u8]) -> ([Piece; 2], bool) {
        let len = bytes.len() as u32;
        if len <= self.can_inline {
            return ([Piece { addr: bytes.as_ptr() as usize as u64, len, lkey: 0 }, Piece::default()], true);
        }
        let place = self.layout.stage + (self.controls % CONTROL as usize) * STAGE;
        self.controls = self.controls.wrapping_add(1);
        // SAFETY: within the memory, by its layout. At most CONTROL of these messages are outstanding, and they complete in
        // order, so the place is free.
        let start = unsafe {
            let start = self.memory.start().add(place);
            ptr::copy_nonoverlapping(bytes.as_ptr(), start.as_ptr(), bytes.len());
            start
        };
        ([Piece { addr: start.as_ptr() as usize as u64, len, lkey: self.memory.lkey() }, Piece::default()], false)
    }

    /// Posts a write with its word, as the transport has it, or a plain write.
    #[expect(clippy::too_many_arguments, reason = "what a work request consists of")]
    fn post(
        &mut self,
        message: Option<Message>,
        pieces: [Piece; 2],
        inline: bool,
        addr: u64,
        key: u32,
        number: u64,
        report: bool,
    ) -> Result<()> {
        let empty = pieces[0].len == 0;
        let (addr, key) = if empty { (0, 0) } else { (addr, key) };
        let write = Work { number, kind: Kind::Write, addr, key, pieces, inline, report };
        let Some(message) = message else {
            // SAFETY: the QP is live; the pieces are registered or inline, by the callers.
            return unsafe { rc::send(self.qp, &[write]) };
        };
        let word = message.word();
        if !self.iwarp {
            let kind = Kind::WriteWord(word.to_be());
            // SAFETY: as above.
            return unsafe { rc::send(self.qp, &[Work { kind, ..write }]) };
        }
        let bytes = word.to_ne_bytes();
        let (word, word_inline) = if self.can_inline >= WORD as u32 {
            ([Piece { addr: bytes.as_ptr() as usize as u64, len: WORD as u32, lkey: 0 }, Piece::default()], true)
        } else {
            return Err(Errno::ENOTSUP);
        };
        let send = Work { number, kind: Kind::Send, addr: 0, key: 0, pieces: word, inline: word_inline, report };
        // The write's own number never comes back: it is not reported, and a failure ends the connection anyway.
        let write = Work { number: number - 1, report: false, ..write };
        // SAFETY: as above; the word lives until the call returns.
        unsafe { if empty { rc::send(self.qp, &[send]) } else { rc::send(self.qp, &[write, send]) } }
    }

    /// Sends of `data` what can be sent now; how many bytes.
    pub fn send(&mut self, data: &[u8]) -> Result<usize> {
        let mut done = 0;
        while done < data.len() {
            let rest = &data[done..];
            let inline = rest.len() <= self.inline as usize;
            let Some(chunk) = self.sender.as_ref().and_then(|sender| sender.plan(rest.len(), inline)) else { break };
            // A chunk that the peer has no room for takes the rest along later.
            let part = &rest[..chunk.len as usize];
            let pieces = if inline { here(part) } else { self.buffered(part, chunk.offset)? };
            let Some(sender) = &mut self.sender else { break };
            let (number, report) = sender.take(&chunk, inline);
            let Chunk { addr, key, len, .. } = chunk;
            if let Err(error) = self.post(Some(Message::Data(len)), pieces, inline, addr, key, number, report) {
                self.fail(error);
                return Err(error);
            }
            done += part.len();
            self.retarget();
        }
        Ok(done)
    }

    /// Copies into the send buffer, from `offset` on.
    fn buffered(&mut self, bytes: &[u8], offset: u32) -> Result<[Piece; 2]> {
        let size = self.send_buffer as usize;
        let buffer = match &self.buffer {
            Some(buffer) => buffer,
            // SAFETY: the PD lives as long as the id.
            None => self.buffer.insert(unsafe {
                Registered::new(NonNull::new((*self.qp.as_ptr()).pd).ok_or(Errno::EIO)?, size, false)?
            }),
        };
        let offset = offset as usize;
        let first = bytes.len().min(size - offset);
        let (start, lkey) = (buffer.start(), buffer.lkey());
        // SAFETY: both parts lie in the buffer, and no outstanding work request reads there: the sender keeps account.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), start.add(offset).as_ptr(), first);
            ptr::copy_nonoverlapping(bytes[first..].as_ptr(), start.as_ptr(), bytes.len() - first);
        }
        let at = |offset: usize| start.as_ptr() as usize as u64 + offset as u64;
        Ok([
            Piece { addr: at(offset), len: first as u32, lkey },
            Piece { addr: at(0), len: (bytes.len() - first) as u32, lkey },
        ])
    }

    /// A write without effect: shows whether the peer is there, and completes here in any case.
    pub fn keep_alive(&mut self) -> Result<()> {
        let Some(sender) = &mut self.sender else { return Err(Errno::ENOTCONN) };
        if !sender.has_control() {
            // Something is under way that shows the same.
            return Ok(());
        }
        let number = sender.take_control(1);
        self.post(None, [Piece::default(); 2], false, 0, 0, number, true)
    }

    /// Messages that the peer has room for.
    pub fn credits(&self) -> u32 {
        self.sender.as_ref().map_or(0, |sender| sender.credits().into())
    }

    /// How many regions the peer has room for in its table.
    pub fn peer_mappings(&self) -> u16 {
        self.peer.iomap
    }

    /// Writes `mapping` into entry `index` of the peer's table; false when it has to wait for credits or room.
    pub fn announce(&mut self, index: u16, mapping: Mapping) -> Result<bool> {
        let inline = IOMAP_ENTRY as u32 <= self.can_inline;
        let space = if inline { 0 } else { IOMAP_ENTRY as u32 };
        let Some(sender) = &self.sender else { return Err(Errno::ENOTCONN) };
        let Some(offset) = sender.plan_update(space) else { return Ok(false) };
        let bytes = wire::emit_iomap(mapping, self.peer.swap);
        let pieces = if inline { here(&bytes) } else { self.buffered(&bytes, offset)? };
        let Some(sender) = &mut self.sender else { return Err(Errno::ENOTCONN) };
        let (number, report) = sender.take_update(space);
        let addr = self.peer.sgl + (SGL * SGL_ENTRY + usize::from(index) * IOMAP_ENTRY) as u64;
        let key = self.peer.key;
        self.post(Some(Message::Iomap(index)), pieces, inline, addr, key, number, report)
            .inspect_err(|&error| self.fail(error))?;
        Ok(true)
    }

    /// The region that the peer mapped at `offset`, from there on.
    pub fn mapped(&self, offset: u64) -> Option<Region> {
        (0..self.iomap).map(|index| self.mapping(index)).find_map(|mapping| {
            let skip = offset.checked_sub(mapping.offset).filter(|&skip| skip < u64::from(mapping.region.length))?;
            Some(Region {
                addr: mapping.region.addr.wrapping_add(skip),
                length: mapping.region.length - skip as u32,
                ..mapping.region
            })
        })
    }

    fn mapping(&self, index: u16) -> Mapping {
        let mut bytes = [0; IOMAP_ENTRY];
        let start = self.layout.iomap + usize::from(index) * IOMAP_ENTRY;
        for (at, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: within the memory, by its layout. The peer may write at the same time; any bytes are a mapping, of the
            // peer's own memory.
            *byte = unsafe { self.memory.start().add(start + at).as_ptr().read_volatile() };
        }
        wire::parse_iomap(&bytes)
    }

    /// Writes `data` into the peer's `region`, as far as there is room to send; how many bytes.
    pub fn write(&mut self, data: &[u8], region: Region) -> Result<usize> {
        let mut done = 0;
        let most = data.len().min(region.length as usize);
        while done < most {
            let rest = &data[done..most];
            let inline = rest.len() <= self.inline as usize;
            let Some((len, offset)) = self.sender.as_ref().and_then(|sender| sender.plan_write(rest.len(), inline))
            else {
                break;
            };
            let part = &rest[..len as usize];
            let pieces = if inline { here(part) } else { self.buffered(part, offset)? };
            let Some(sender) = &mut self.sender else { break };
            let (number, report) = sender.take_write(len, inline);
            let addr = region.addr.wrapping_add(done as u64);
            self.post(None, pieces, inline, addr, region.key, number, report).inspect_err(|&error| self.fail(error))?;
            done += part.len();
        }
        Ok(done)
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

/// Bytes that go inline from where they are.
fn here(bytes: &[u8]) -> [Piece; 2] {
    [Piece { addr: bytes.as_ptr() as usize as u64, len: bytes.len() as u32, lkey: 0 }, Piece::default()]
}

/// A QP for `id`, and how many bytes it takes inline.
fn create_qp(
    id: &CmId,
    completions: &Completions,
    sends: u32,
    receives: u32,
    inline: u32,
) -> Result<(NonNull<ibv_qp>, u32)> {
    // SAFETY: all zeros are a value of this structure.
    let mut attr: ibv_qp_init_attr = unsafe { zeroed() };
    attr.send_cq = completions.cq();
    attr.recv_cq = completions.cq();
    attr.qp_type = ibv_qp_type::IBV_QPT_RC;
    attr.cap.max_send_wr = sends;
    attr.cap.max_recv_wr = receives;
    attr.cap.max_send_sge = 2;
    attr.cap.max_recv_sge = 1;
    attr.cap.max_inline_data = inline;
    // SAFETY: the owner destroys the QP before the CQ.
    unsafe { id.create_qp(&mut attr)? };
    let qp = NonNull::new(id.qp()).ok_or(Errno::EIO)?;
    Ok((qp, attr.cap.max_inline_data))
}

/// What a failed work request means to a program.
fn errno_of(status: ibv_wc_status::Type) -> Errno {
    match status {
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR | ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => Errno::ETIMEDOUT,
        // The connection ended, by either side.
        _ => Errno::ECONNRESET,
    }
}
