//! Sending: data, control messages, the peer's mapped memory.

use std::ptr;

use super::{CONTROL, Link, SGL, STAGE, WORD};
use crate::errno::{Errno, Result};
use crate::rsocket::flow::Chunk;
use crate::rsocket::wire::{self, Control, IOMAP_ENTRY, Mapping, Message, Region, SGL_ENTRY};
use crate::sys::rc::{self, Kind, Piece, Work};

/// Soft-iWARP's smallest write that is not copied.
const PAGE: u32 = 4096;

impl Link {
    /// Sends a control message; `EAGAIN` while all are outstanding.
    pub fn control(&mut self, control: Control) -> Result<()> {
        if self.sender.is_none() {
            return Err(Errno::ENOTCONN);
        }
        if self.has_control() { self.send_control(Message::Control(control), &[], 0) } else { Err(Errno::EAGAIN) }
    }

    /// A message with `bytes`, at most `STAGE`, for the peer's memory at `addr`.
    pub(super) fn send_control(&mut self, message: Message, bytes: &[u8], addr: u64) -> Result<()> {
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
    #[inline]
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
        // Soft-iWARP hands pages of a write that is not reported to TCP, and has what follows complete before they are sent:
        // whoever then writes into them changes what is sent (docs/quirks.md). Where it reports the write it copies.
        let copied = self.iwarp && pieces[0].len + pieces[1].len >= PAGE;
        let write = Work { number, kind: Kind::Write, addr, key, pieces, inline, report: report || copied };
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
        let write = Work { number: number - 1, report: copied, ..write };
        // SAFETY: as above; the word lives until the call returns.
        unsafe { if empty { rc::send(self.qp, &[send]) } else { rc::send(self.qp, &[write, send]) } }
    }

    /// Whether `len` bytes can go without a buffer of ours.
    pub fn takes_inline(&self, len: usize) -> bool {
        len <= self.inline as usize && self.failed.is_none()
    }

    /// Sends all of `data`, which [`takes_inline`](Self::takes_inline), in one message if that is possible now; a failure shows in
    /// the link.
    #[inline]
    pub fn send_inline(&mut self, data: &[u8]) -> bool {
        let chunk = self.sender.as_ref().and_then(|sender| sender.plan(data.len(), true));
        match chunk.filter(|chunk| chunk.len as usize == data.len()) {
            Some(chunk) => self.send_chunk(&chunk, here(data), true).is_ok(),
            None => false,
        }
    }

    /// Sends of `data` what can be sent now; how many bytes. An error without a failure of the link is a lack of memory for the
    /// first of them: the send buffer is made with its first use, and replaced only when there is another.
    pub fn send(&mut self, data: &[u8]) -> Result<usize> {
        let mut done = 0;
        while done < data.len() {
            let rest = &data[done..];
            let inline = rest.len() <= self.inline as usize;
            if !inline {
                self.make_room(rest.len());
            }
            let Some(chunk) = self.sender.as_ref().and_then(|sender| sender.plan(rest.len(), inline)) else { break };
            // A chunk that the peer has no room for takes the rest along later.
            let part = &rest[..chunk.len as usize];
            let pieces = if inline { here(part) } else { self.buffer.fill(self.qp, part, chunk.offset)? };
            self.send_chunk(&chunk, pieces, inline)?;
            done += part.len();
        }
        Ok(done)
    }

    /// Sends what was planned.
    #[inline]
    fn send_chunk(&mut self, chunk: &Chunk, pieces: [Piece; 2], inline: bool) -> Result<()> {
        let sender = self.sender.as_mut().ok_or(Errno::ENOTCONN)?;
        let (number, report) = sender.take(chunk, inline);
        let message = Message::Data(chunk.len);
        self.post(Some(message), pieces, inline, chunk.addr, chunk.key, number, report)
            .inspect_err(|&error| self.fail(error))?;
        self.retarget();
        Ok(())
    }

    /// Looks whether what was sent has left the send buffer, if `wanted` bytes don't fit into the rest of it, and has it grow or
    /// shrink.
    fn make_room(&mut self, wanted: usize) {
        let Some(sender) = &self.sender else { return };
        if wanted > sender.free() as usize {
            if !sender.is_idle() {
                self.look_at_sent();
            }
            if self.sender.as_ref().is_some_and(|sender| sender.is_cramped(wanted)) {
                self.grow_buffer();
            }
        } else if sender.is_calm() {
            self.shrink_buffer();
        }
    }

    /// A write without effect: shows whether the peer is there, and completes here in any case.
    pub fn keep_alive(&mut self) -> Result<()> {
        let may = self.has_control();
        let Some(sender) = &mut self.sender else { return Err(Errno::ENOTCONN) };
        if !may {
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
        let pieces = if inline { here(&bytes) } else { self.buffer.fill(self.qp, &bytes, offset)? };
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

    /// Writes `data` into the peer's `region`, as far as there is room to send; how many bytes. Errors as of
    /// [`send`](Self::send).
    pub fn write(&mut self, data: &[u8], region: Region) -> Result<usize> {
        let mut done = 0;
        let most = data.len().min(region.length as usize);
        while done < most {
            let rest = &data[done..most];
            let inline = rest.len() <= self.inline as usize;
            if !inline {
                self.make_room(rest.len());
            }
            let Some((len, offset)) = self.sender.as_ref().and_then(|sender| sender.plan_write(rest.len(), inline))
            else {
                break;
            };
            let part = &rest[..len as usize];
            let pieces = if inline { here(part) } else { self.buffer.fill(self.qp, part, offset)? };
            let Some(sender) = &mut self.sender else { break };
            let (number, report) = sender.take_write(len, inline);
            let addr = region.addr.wrapping_add(done as u64);
            self.post(None, pieces, inline, addr, region.key, number, report).inspect_err(|&error| self.fail(error))?;
            done += part.len();
        }
        Ok(done)
    }
}

/// Bytes that go inline from where they are.
fn here(bytes: &[u8]) -> [Piece; 2] {
    [Piece { addr: bytes.as_ptr() as usize as u64, len: bytes.len() as u32, lkey: 0 }, Piece::default()]
}
