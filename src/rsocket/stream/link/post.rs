//! What goes to the peer in work requests: one for each message, or two where the device has no write with immediate data.

use super::{Link, WORD};
use crate::errno::{Errno, Result};
use crate::rsocket::wire::Message;
use crate::sys::rc::{self, Kind, Piece, Work};

/// Soft-iWARP's smallest write that is not copied.
const PAGE: u32 = 4096;

/// A write into the peer's memory, with a message or without.
#[derive(Clone, Copy, Debug)]
pub(super) struct Out {
    pub message: Option<Message>,
    /// Registered, unless inline; both empty for none.
    pub pieces: [Piece; 2],
    pub inline: bool,
    pub addr: u64,
    pub key: u32,
    /// Of its last work request.
    pub number: u64,
    /// Whether its success is to be reported.
    pub report: bool,
}

impl Out {
    #[inline]
    fn is_empty(&self) -> bool {
        self.pieces[0].len == 0
    }

    #[inline]
    fn request(&self, kind: Kind, number: u64, report: bool) -> Work {
        let (addr, key) = if self.is_empty() { (0, 0) } else { (self.addr, self.key) };
        Work { number, kind, addr, key, pieces: self.pieces, inline: self.inline, report }
    }

    /// Soft-iWARP hands pages of a write that is not reported to TCP, and has what follows complete before they are sent: whoever
    /// then writes into them changes what is sent (docs/quirks.md). Where it reports the write it copies.
    fn must_report(&self) -> bool {
        self.pieces[0].len + self.pieces[1].len >= PAGE
    }

    /// In one work request: with its word as immediate data, or without one.
    #[inline]
    fn whole(&self, iwarp: bool) -> Work {
        match self.message {
            Some(message) => self.request(Kind::WriteWord(message.word().to_be()), self.number, self.report),
            None => self.request(Kind::Write, self.number, self.report || (iwarp && self.must_report())),
        }
    }

    /// What a message of its own says on iWARP.
    fn word(&self) -> [u8; WORD] {
        self.message.map_or([0; WORD], |message| message.word().to_ne_bytes())
    }

    /// On iWARP: the write, and the word in a message of its own.
    fn apart(&self, word: &[u8; WORD]) -> [Work; 2] {
        let piece = Piece { addr: word.as_ptr() as usize as u64, len: WORD as u32, lkey: 0 };
        let write = self.request(Kind::Write, self.number - 1, self.must_report());
        let send =
            Work { number: self.number, kind: Kind::Send, addr: 0, key: 0, inline: true, report: self.report, ..write };
        [write, Work { pieces: [piece, Piece::default()], ..send }]
    }
}

impl Link {
    /// Posts it. An error ends the connection.
    #[inline]
    pub(super) fn post(&mut self, out: Out) -> Result<()> {
        if self.iwarp && out.message.is_some() {
            return self.post_apart(out);
        }
        // SAFETY: the QP is live; the pieces are registered or inline, by the callers.
        unsafe { rc::send(self.qp, &[out.whole(self.iwarp)]) }
    }

    #[inline(never)]
    fn post_apart(&mut self, out: Out) -> Result<()> {
        self.takes_words()?;
        let word = out.word();
        let [write, send] = out.apart(&word);
        // SAFETY: as above; the word lives until the call returns.
        unsafe { if out.is_empty() { rc::send(self.qp, &[send]) } else { rc::send(self.qp, &[write, send]) } }
    }

    /// Posts two with messages and bytes, one after the other, in one go.
    pub(super) fn post_both(&mut self, outs: [Out; 2]) -> Result<()> {
        if !self.iwarp {
            // SAFETY: as above.
            return unsafe { rc::send(self.qp, &outs.map(|out| out.whole(false))) };
        }
        self.takes_words()?;
        let words = outs.map(|out| out.word());
        let ([write, send], [next_write, next_send]) = (outs[0].apart(&words[0]), outs[1].apart(&words[1]));
        // SAFETY: as above; the words live until the call returns.
        unsafe { rc::send(self.qp, &[write, send, next_write, next_send]) }
    }

    /// Words on iWARP go inline.
    fn takes_words(&self) -> Result<()> {
        if self.can_inline >= WORD as u32 { Ok(()) } else { Err(Errno::ENOTSUP) }
    }
}
