//! Sending: data, control messages, the peer's mapped memory.

use std::mem::MaybeUninit;
use std::ptr;

use super::post::Out;
use super::source::{Gather, SMALL, Source};
use super::{CONTROL, Link, SGL, STAGE};
use crate::errno::{Errno, Result};
use crate::rsocket::flow::Chunk;
use crate::rsocket::wire::{self, Control, IOMAP_ENTRY, Mapping, Message, Region, SGL_ENTRY};
use crate::sys::rc::Piece;

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
        let (pieces, inline) = self.stage(bytes);
        self.post(Out { message: Some(message), pieces, inline, addr, key: self.peer.key, number, report: true })
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
            Some(chunk) => {
                let sent = self.claim(&chunk, here(data), true).and_then(|out| self.post_or_fail(out));
                self.retarget();
                sent.is_ok()
            }
            None => false,
        }
    }

    /// Whether the peer's buffer that is being filled takes some of `len` bytes, but not all.
    pub fn splits(&self, len: usize) -> bool {
        self.sender.as_ref().is_some_and(|sender| sender.splits(len))
    }

    /// Sends of `data` what can be sent now; how many bytes. `begun`: it is not the beginning of what the program sends. An error
    /// without a failure of the link is a lack of memory for the first of them: the send buffer is made with its first use, and
    /// replaced only when there is another.
    pub fn send<S: Source>(&mut self, data: S, begun: bool) -> Result<usize> {
        let mut done = 0;
        while done < data.size() {
            let (_, rest) = data.split(done);
            let (rest, _) = rest.split(self.until(done, data.size(), begun) - done);
            let inline = rest.size() <= self.inline as usize && rest.in_one_piece().is_some();
            if !inline {
                self.make_room(rest.size());
            }
            let Some(chunk) = self.sender.as_ref().and_then(|sender| sender.plan(rest.size(), inline)) else { break };
            let (part, tail) = rest.split(chunk.len as usize);
            let pieces = self.pieces(&part, inline, chunk.offset)?;
            let out = self.claim(&chunk, pieces, inline)?;
            done += part.size() + self.send_with_tail(out, tail, inline)?;
        }
        Ok(done)
    }

    /// As [`send`](Self::send), in as few messages as if the bytes lay in one buffer.
    pub fn send_gathered(&mut self, data: Gather<'_>, begun: bool) -> Result<usize> {
        // A small message goes inline from here.
        let mut room = [const { MaybeUninit::uninit() }; SMALL];
        if data.size() <= self.inline as usize
            && let Some(bytes) = data.collect(&mut room)
        {
            return self.send(bytes, begun);
        }
        self.send(data, begun)
    }

    /// Where the device finds the bytes of a message: in the program's memory, or copied into the
    /// send buffer.
    #[inline]
    fn pieces<S: Source>(&mut self, part: &S, inline: bool, offset: u32) -> Result<[Piece; 2]> {
        match part.in_one_piece() {
            Some(bytes) if inline => Ok(here(bytes)),
            _ => self.buffer.fill(self.qp, *part, offset),
        }
    }

    /// Sends a message that was claimed and, where it has filled the peer's buffer and there is another, as much of `tail` as goes into
    /// one more: both in one go. How many bytes of that.
    fn send_with_tail<S: Source>(&mut self, out: Out, tail: S, inline: bool) -> Result<usize> {
        self.retarget();
        let next = match tail.size() {
            0 => None,
            wanted => self.sender.as_ref().and_then(|sender| sender.plan(wanted, inline)),
        };
        let Some(next) = next else {
            self.post_or_fail(out)?;
            return Ok(0);
        };
        let (part, _) = tail.split(next.len as usize);
        // The buffer is there: the message before has used it.
        let pieces = self.pieces(&part, inline, next.offset)?;
        let last = self.claim(&next, pieces, inline)?;
        self.post_both([out, last]).inspect_err(|&error| self.fail(error))?;
        self.retarget();
        Ok(part.size())
    }

    /// The message that was planned, to be posted.
    #[inline]
    fn claim(&mut self, chunk: &Chunk, pieces: [Piece; 2], inline: bool) -> Result<Out> {
        let sender = self.sender.as_mut().ok_or(Errno::ENOTCONN)?;
        let (number, report) = sender.take(chunk, inline);
        let message = Some(Message::Data(chunk.len));
        Ok(Out { message, pieces, inline, addr: chunk.addr, key: chunk.key, number, report })
    }

    #[inline]
    fn post_or_fail(&mut self, out: Out) -> Result<()> {
        self.post(out).inspect_err(|&error| self.fail(error))
    }

    /// To where of `len` bytes the next message may go, with `done` of them sent.
    fn until(&self, done: usize, len: usize, begun: bool) -> usize {
        match &self.sender {
            Some(sender) if done == 0 && !begun => sender.first(len),
            _ => len,
        }
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
        let pieces = [Piece::default(); 2];
        self.post(Out { message: None, pieces, inline: false, addr: 0, key: 0, number, report: true })
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
        if index >= self.peer.iomap {
            // Something else of the peer's is behind its table.
            return Err(Errno::ENOMEM);
        }
        let inline = IOMAP_ENTRY as u32 <= self.can_inline;
        let space = if inline { 0 } else { IOMAP_ENTRY as u32 };
        let Some(sender) = &self.sender else { return Err(Errno::ENOTCONN) };
        let Some(offset) = sender.plan_update(space) else { return Ok(false) };
        let bytes = wire::emit_iomap(mapping, self.peer.swap);
        let pieces = if inline { here(&bytes) } else { self.buffer.fill(self.qp, &bytes[..], offset)? };
        let Some(sender) = &mut self.sender else { return Err(Errno::ENOTCONN) };
        let (number, report) = sender.take_update(space);
        let addr = self.peer.sgl + (SGL * SGL_ENTRY + usize::from(index) * IOMAP_ENTRY) as u64;
        let key = self.peer.key;
        let message = Some(Message::Iomap(index));
        self.post_or_fail(Out { message, pieces, inline, addr, key, number, report })?;
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
    pub fn write(&mut self, data: &[u8], region: Region, begun: bool) -> Result<usize> {
        let mut done = 0;
        let most = data.len().min(region.length as usize);
        while done < most {
            let rest = &data[done..self.until(done, most, begun)];
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
            self.post_or_fail(Out { message: None, pieces, inline, addr, key: region.key, number, report })?;
            done += part.len();
        }
        Ok(done)
    }
}

/// Bytes that go inline from where they are.
fn here(bytes: &[u8]) -> [Piece; 2] {
    [Piece { addr: bytes.as_ptr() as usize as u64, len: bytes.len() as u32, lkey: 0 }, Piece::default()]
}
