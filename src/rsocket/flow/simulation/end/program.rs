//! What the program does with its end.

use super::network::pattern;
use super::{Effect, End, MAPPING, Source};
use crate::rsocket::flow::{Chunk, Received};
use crate::rsocket::wire::{Control, Message};

impl End {
    /// rsend() of at most `most` bytes, on a socket that does not block.
    pub fn write(&mut self, most: u64) {
        self.replace_buffer();
        let end = self.sent + most.min(self.total - self.sent);
        while self.sent < end {
            let rest = (end - self.sent) as usize;
            let inline = rest <= self.setup.inline as usize;
            let Some(chunk) = self.sender.plan(rest, inline) else { return self.poll() };
            let Chunk { len, addr, rkey: key, offset } = chunk;
            let source = self.source(inline, offset, self.sent, len);
            let (number, report) = self.sender.take(&chunk, inline);
            self.post(number, report, Some(Message::Data(len)), Effect::Data { addr, key, len, source });
            self.sent += u64::from(len);
            self.retarget();
        }
    }

    /// rrecv() of at most `most` bytes, or a peek at them.
    pub fn read(&mut self, most: u64, peek: bool) {
        if self.receiver.available() == 0 {
            self.poll();
        }
        let most = most.min(self.receiver.available());
        if !peek && self.read_piece(most) {
            return;
        }
        let mut done = 0;
        while done < most {
            let Received { ring, offset, len } = self.receiver.piece(done);
            let len = u64::from(len).min(most - done) as usize;
            assert!(len > 0, "no piece of what is there");
            self.check_bytes(ring, offset, len, done);
            done += len as u64;
        }
        if !peek && done > 0 {
            self.taken += done;
            self.changes += 1;
            self.take(done);
        }
    }

    /// The short way; whether it was one.
    fn read_piece(&mut self, most: u64) -> bool {
        let before = self.receiver.available();
        let Some(Received { ring, offset, len }) = self.receiver.take_piece(most as usize) else { return false };
        assert!(
            u64::from(len) == most && self.receiver.available() == before - most,
            "more or less than was asked for"
        );
        self.check_bytes(ring, offset, len as usize, 0);
        self.taken += most;
        self.changes += 1;
        self.forget(most);
        self.grant();
        true
    }

    /// `len` bytes of a ring are the stream's, from `skip` bytes behind what was taken on.
    fn check_bytes(&self, ring: usize, offset: u32, len: usize, skip: u64) {
        let bytes = &self.rings[ring][offset as usize..][..len];
        assert!(bytes == pattern(self.taken + skip, len), "other bytes than were sent");
    }

    /// rshutdown(SHUT_WR), when everything is sent.
    pub fn shut(&mut self) {
        if self.shut || self.sent < self.total {
            return;
        }
        self.poll();
        if self.sender.has_control() {
            self.control(Some(Message::Control(Control::Shutdown)), Effect::Nothing, 1);
            self.shut = true;
        }
    }

    /// riomap(): an entry of the peer's table.
    pub fn update(&mut self) {
        let inline = MAPPING <= self.setup.inline;
        let space = if inline { 0 } else { MAPPING };
        let Some(offset) = self.sender.plan_update(space).filter(|_| !self.shut) else { return };
        let source = self.source(inline, offset, self.other, MAPPING);
        let (number, report) = self.sender.take_update(space);
        self.post(number, report, Some(Message::Iomap(0)), Effect::Other { len: MAPPING, source });
        self.other += u64::from(MAPPING);
    }

    /// riowrite().
    pub fn write_mapped(&mut self, most: u64) {
        let inline = most <= u64::from(self.setup.inline);
        let Some((len, offset)) = self.sender.plan_write(most as usize, inline).filter(|_| !self.shut) else { return };
        let source = self.source(inline, offset, self.other, len);
        let (number, report) = self.sender.take_write(len, inline);
        self.post(number, report, None, Effect::Other { len, source });
        self.other += u64::from(len);
    }

    /// A write without effect.
    pub fn keep_alive(&mut self) {
        if self.sender.has_control() && !self.shut {
            self.control(None, Effect::Nothing, 1);
        }
    }

    /// Bytes of the program go inline or through the buffer.
    fn source(&mut self, inline: bool, offset: u32, position: u64, len: u32) -> Source {
        if inline {
            return Source::Inline { position };
        }
        let which = self.buffers.len() - 1;
        let buffer = &mut self.buffers[which];
        let first = (len as usize).min(buffer.len() - offset as usize);
        buffer[offset as usize..][..first].copy_from_slice(pattern(position, first));
        let rest = len as usize - first;
        buffer[..rest].copy_from_slice(pattern(position + first as u64, rest));
        Source::Buffer { which, offset, position }
    }
}
