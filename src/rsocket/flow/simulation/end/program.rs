//! The calls of the program.

use super::network::pattern;
use super::{Effect, End, MAPPING, Source};
use crate::rsocket::flow::{Chunk, Received};
use crate::rsocket::wire::{Control, Message};

impl End {
    /// rsend() of at most `max` bytes on a non-blocking socket.
    pub fn write(&mut self, max: u64) {
        let end = self.sent + max.min(self.total - self.sent);
        if self.hold((end - self.sent) as usize) {
            return;
        }
        self.send_held();
        self.replace_buffer();
        while self.sent < end {
            let rest = (end - self.sent) as usize;
            if rest > self.sender.free() as usize {
                self.reap_sends();
            }
            let inline = rest <= self.setup.inline as usize;
            let Some(chunk) = self.sender.take(rest, inline) else { return self.poll() };
            let Chunk { len, addr, rkey: key, offset, wr_id, signaled } = chunk;
            let source = self.source(inline, offset, self.sent, len);
            self.post(wr_id, signaled, Some(Message::Data(len)), Effect::Data { addr, key, len, source });
            self.sent += u64::from(len);
            self.use_next_target();
        }
    }

    /// Holds the next `len` bytes, if messages are on their way.
    fn hold(&mut self, len: usize) -> bool {
        if !self.sender.may_hold(len) || !self.sender.is_busy() {
            return false;
        }
        self.reap_sends();
        if !self.sender.is_busy() {
            self.sender.note_idle_cq();
            return false;
        }
        let Some(offset) = self.sender.plan_hold(len) else { return false };
        self.source(false, offset, self.sent, len as u32);
        self.sender.hold(len as u32);
        self.sent += len as u64;
        self.changes += 1;
        true
    }

    /// Sends what is held, as one message.
    pub fn send_held(&mut self) {
        let Some(chunk) = self.sender.take_held() else { return };
        let Chunk { len, addr, rkey: key, offset, wr_id, signaled } = chunk;
        let position = self.sent - u64::from(len);
        let source = Source::Buffer { which: self.buffers.len() - 1, offset, position };
        self.post(wr_id, signaled, Some(Message::Data(len)), Effect::Data { addr, key, len, source });
        self.use_next_target();
    }

    /// rrecv() of at most `max` bytes, with or without MSG_PEEK.
    pub fn read(&mut self, max: u64, peek: bool) {
        self.send_held();
        if self.receiver.available() == 0 {
            self.poll();
        }
        let max = max.min(self.receiver.available());
        if !peek && self.read_piece(max) {
            return;
        }
        let mut done = 0;
        while done < max {
            let Received { ring, offset, len } = self.receiver.piece(done);
            let len = u64::from(len).min(max - done) as usize;
            assert!(len > 0, "no bytes although some are available");
            self.check_bytes(ring, offset, len, done);
            done += len as u64;
        }
        if !peek && done > 0 {
            self.taken += done;
            self.changes += 1;
            self.sender.end_burst();
            self.take(done);
        }
    }

    /// Tries the fast path. Returns whether it was possible.
    fn read_piece(&mut self, max: u64) -> bool {
        let previous = self.receiver.available();
        let Some(Received { ring, offset, len }) = self.receiver.take_piece(max as usize) else { return false };
        assert!(u64::from(len) == max && self.receiver.available() == previous - max, "more or less than requested");
        self.check_bytes(ring, offset, len as usize, 0);
        self.taken += max;
        self.changes += 1;
        self.sender.end_burst();
        self.remove_unread(max);
        self.send_credit_updates();
        true
    }

    /// Checks that `len` bytes of a ring are those of the stream, `skip` bytes after the last one
    /// taken.
    fn check_bytes(&self, ring: usize, offset: u32, len: usize, skip: u64) {
        let bytes = &self.memory[self.place(ring)][offset as usize..][..len];
        assert!(bytes == pattern(self.taken + skip, len), "the bytes differ from those sent");
    }

    /// rshutdown(SHUT_WR) after everything was sent.
    pub fn shutdown(&mut self) {
        if self.shutdown || self.sent < self.total {
            return;
        }
        self.poll();
        self.send_held();
        if self.sender.has_control() {
            self.control(Some(Message::Control(Control::Shutdown)), Effect::Nothing, 1);
            self.shutdown = true;
        }
    }

    /// riomap(): updates an entry of the peer's table.
    pub fn update(&mut self) {
        self.send_held();
        let inline = MAPPING <= self.setup.inline;
        let space = if inline { 0 } else { MAPPING };
        if self.shutdown {
            return;
        }
        let Some((offset, (wr_id, signaled))) = self.sender.take_update(space) else { return };
        let source = self.source(inline, offset, self.outside, MAPPING);
        self.post(wr_id, signaled, Some(Message::Iomap(0)), Effect::Other { len: MAPPING, source });
        self.outside += u64::from(MAPPING);
    }

    /// riowrite().
    pub fn write_mapped(&mut self, max: u64) {
        self.send_held();
        let inline = max <= u64::from(self.setup.inline);
        if self.shutdown {
            return;
        }
        let Some((len, offset, (wr_id, signaled))) = self.sender.take_write(max as usize, inline) else { return };
        let source = self.source(inline, offset, self.outside, len);
        self.post(wr_id, signaled, None, Effect::Other { len, source });
        self.outside += u64::from(len);
    }

    /// Sends a write without effect.
    pub fn keep_alive(&mut self) {
        if self.sender.has_control() && !self.shutdown {
            self.control(None, Effect::Nothing, 1);
        }
    }

    /// Returns the source of bytes that are sent inline or through the buffer.
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
