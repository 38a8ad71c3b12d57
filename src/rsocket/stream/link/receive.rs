//! Receiving: completions, the peer's messages, credits for it.

use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::{Ordering, fence};

use super::{BATCH, Batch, Link, News, REPOST, WORD};
use crate::cm::Id;
use crate::diag::{self, Why};
use crate::errno::{Errno, Result};
use crate::rsocket::flow::{Announcement, Grant, Received, Sender, Violation};
use crate::rsocket::wire::{self, Control, Message, Region, SGL_ENTRY};
use crate::sys::rc::{self, Piece, RECEIVE, ibv_wc};
use crate::sys::verbs::ibv_wc_status;

impl Link {
    /// Bytes that the program can read.
    pub fn available(&self) -> u64 {
        self.receiver.available()
    }

    /// Copies received bytes and takes them, in the usual case: see [`Receiver::take_piece`].
    #[inline]
    pub fn read_piece(&mut self, into: &mut [MaybeUninit<u8>]) -> Option<usize> {
        let piece = self.receiver.take_piece(into.len())?;
        self.copy(piece, into);
        self.grant();
        Some(piece.len as usize)
    }

    /// Copies a piece to the beginning of `into`, which has room for it.
    #[inline]
    fn copy(&self, piece: Received, into: &mut [MaybeUninit<u8>]) {
        let Received { ring, offset, len } = piece;
        let into = &mut into[..len as usize];
        // SAFETY: the piece lies in a ring; the peer was told not to write there until it is told that the piece is taken, and if
        // it does, it only spoils its own data. The program's buffer is another memory.
        unsafe {
            let from = self.rings.place(ring).start.add(offset as usize);
            ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr().cast(), into.len());
        }
    }

    /// Copies received bytes, from `skip` bytes behind the next one on; how many.
    pub fn peek(&self, skip: u64, into: &mut [MaybeUninit<u8>]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let mut piece = self.receiver.piece(skip + done as u64);
            piece.len = piece.len.min(u32::try_from(into.len() - done).unwrap_or(u32::MAX));
            if piece.len == 0 {
                break;
            }
            self.copy(piece, &mut into[done..]);
            done += piece.len as usize;
        }
        done
    }

    /// Copies received bytes and takes them; how many.
    #[inline(never)]
    pub fn read(&mut self, into: &mut [MaybeUninit<u8>]) -> usize {
        let done = self.peek(0, into);
        self.take(done as u64);
        done
    }

    /// The program has taken `len` bytes: room for the peer.
    #[inline]
    pub fn take(&mut self, len: u64) {
        if let Some(ended) = self.receiver.take(len) {
            self.rings.ended(ended);
        }
        self.grant();
    }

    /// Takes completions, for [`complete_all`](Self::complete_all): how many.
    #[inline]
    pub fn completed(&mut self, batch: &mut Batch) -> usize {
        match self.received.poll(&mut batch.0) {
            Ok(completed) => completed.len(),
            Err(error) => {
                self.fail(error);
                0
            }
        }
    }

    /// Goes through the `completed` first ones of the batch, and what there is more, and what was sent if somebody needs that.
    pub fn complete_all(&mut self, batch: &mut Batch, mut completed: usize) -> News {
        let mut news = News {
            any: completed > 0 || mem::take(&mut self.untold),
            edge: mem::take(&mut self.untold_edge),
            ..News::default()
        };
        loop {
            for wc in &batch.0[..completed] {
                // SAFETY: one of those that the provider has filled in ([`Completions::poll`]).
                self.complete(unsafe { wc.assume_init_ref() }, &mut news);
            }
            // Nothing that counts follows a failure: hundreds of receives that were flushed are left where they are.
            if completed < BATCH || self.failed.is_some() {
                break;
            }
            completed = self.completed(batch);
        }
        if self.wants_sent() {
            self.complete_sent(&mut news);
        }
        if self.failed.is_none()
            && self.idle.len() >= REPOST
            && let Err(error) = self.post_receives()
        {
            self.fail(error);
        }
        self.retarget();
        self.grant();
        news.edge |= news.could_send == Some(false) && self.can_send();
        news
    }

    #[inline]
    fn complete(&mut self, wc: &ibv_wc, news: &mut News) {
        if !wc.is_valid() {
            self.broken(wc, news);
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
            None => return self.violated(news),
        };
        if self.iwarp && wc.len() != WORD {
            return self.violated(news);
        }
        // There is room: each receive is in the list or posted.
        self.idle.push(slot);
        // On iWARP a message without a receive ends the connection, and soft-iWARP does not complete what is posted after that:
        // nothing more would ever be heard from this queue. A peer that keeps to its credits never takes the last receive.
        let overrun = self.iwarp && self.idle.len() == self.receives as usize;
        if self.receive(word, news).is_err() || overrun {
            self.violated(news);
        }
    }

    /// The peer broke the rules.
    #[cold]
    fn violated(&mut self, news: &mut News) {
        self.tell(Errno::ECONNABORTED, Why::BadMessage);
        self.fail(Errno::ECONNABORTED);
        news.edge = true;
    }

    /// Logs the first failure.
    #[cold]
    fn tell(&self, error: Errno, why: Why) {
        // SAFETY: the id outlives the link.
        if let (None, Ok(id)) = (self.failed, unsafe { Id::from_c(self.id.as_ptr()) }) {
            diag::background(id, error, why);
        }
    }

    #[cold]
    fn broken(&mut self, wc: &ibv_wc, news: &mut News) {
        // What was sent may tell why.
        self.complete_sent(news);
        self.note_failure(wc, news);
    }

    fn note_failure(&mut self, wc: &ibv_wc, news: &mut News) {
        if let Some((status, _)) = wc.error() {
            // Work that is flushed was the first to fail only where the connection has simply ended.
            if status != ibv_wc_status::IBV_WC_WR_FLUSH_ERR {
                self.tell(errno_of(status), Why::Completion(status));
            }
            self.fail(errno_of(status));
            news.edge = true;
        }
    }

    /// Looks at what was sent.
    pub(super) fn complete_sent(&mut self, news: &mut News) {
        let mut batch = Batch::new();
        loop {
            let completed = match self.sent.poll(&mut batch.0) {
                Ok([]) => break,
                Ok(completed) => completed,
                Err(error) => return self.fail(error),
            };
            news.any = true;
            news.could_send.get_or_insert(self.can_send());
            for wc in completed {
                if !wc.is_valid() {
                    self.note_failure(wc, news);
                } else if let Some(sender) = &mut self.sender {
                    sender.completed(wc.wr_id());
                }
            }
            if completed.len() < BATCH {
                break;
            }
        }
        self.drop_old_buffer();
    }

    /// The same in the middle of something else: whoever polls next tells those who wait.
    pub(super) fn look_at_sent(&mut self) {
        let mut news = News::default();
        self.complete_sent(&mut news);
        self.untold |= news.any;
        self.untold_edge |= news.edge || (news.could_send == Some(false) && self.can_send());
    }

    /// Whether a control message can be sent.
    pub(super) fn has_control(&mut self) -> bool {
        if self.sender.as_ref().is_some_and(|sender| !sender.has_control()) {
            self.look_at_sent();
        }
        self.sender.as_ref().is_some_and(Sender::has_control)
    }

    /// The word that iWARP put into a slot.
    fn word(&self, slot: u32) -> u32 {
        // SAFETY: the slot is within the memory, by its layout; the device wrote it before the completion.
        unsafe {
            self.memory.start().add(self.layout.words + slot as usize * WORD).cast::<u32>().as_ptr().read_volatile()
        }
    }

    #[inline]
    fn receive(&mut self, word: u32, news: &mut News) -> std::result::Result<(), Violation> {
        match Message::parse(word).map_err(|_| Violation::BadGrant)? {
            Message::Data(len) => {
                self.receiver.data(len)?;
                news.edge = true;
            }
            Message::Grant(number) => {
                news.could_send.get_or_insert(self.can_send());
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
    #[inline]
    pub(super) fn retarget(&mut self) {
        if self.peer.news {
            self.retarget_now();
        }
    }

    #[inline(never)]
    fn retarget_now(&mut self) {
        let Some(sender) = self.sender.as_mut().filter(|sender| sender.wants_target()) else { return };
        self.peer.news = false;
        // SAFETY: the SGL is at the beginning of the memory. The peer writes it by RDMA; the length, which it writes last, is
        // read first.
        let entry = unsafe {
            let entry = self.memory.start().add(self.peer.slot * SGL_ENTRY).cast::<[u32; SGL_ENTRY / 4]>().as_ptr();
            let length = (&raw const (*entry)[3]).read_volatile();
            if length == 0 {
                return;
            }
            fence(Ordering::Acquire);
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

    pub(super) fn post_receives(&mut self) -> Result<()> {
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
    #[inline]
    fn grant(&mut self) {
        if self.receiver.is_due() {
            self.grant_now();
        }
    }

    #[cold]
    #[inline(never)]
    fn grant_now(&mut self) {
        while self.failed.is_none() && self.receiver.is_due() && self.has_control() {
            self.resize();
            let Some(grant) = self.receiver.due() else { return };
            // Credits promise receives.
            let result = if self.idle.is_empty() { Ok(()) } else { self.post_receives() };
            match result.and_then(|()| self.send_grant(&grant)) {
                Ok(()) => self.receiver.told(&grant),
                Err(error) => self.fail(error),
            }
        }
    }

    fn send_grant(&mut self, grant: &Grant) -> Result<()> {
        let Some(buffer) = grant.buffer else {
            return self.send_control(Message::Grant(grant.number), &[], 0);
        };
        let Announcement { slot, ring, offset, len } = buffer;
        let place = self.rings.place(ring);
        let addr = place.start.as_ptr() as usize as u64 + u64::from(offset);
        let region = Region { addr, key: place.key, length: len };
        let bytes = wire::emit_sgl(region, self.peer.swap);
        self.send_control(Message::Grant(grant.number), &bytes, self.peer.sgl + (slot * SGL_ENTRY) as u64)
    }
}

/// What a failed work request means to a program.
fn errno_of(status: ibv_wc_status::Type) -> Errno {
    match status {
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR | ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => Errno::ETIMEDOUT,
        // The connection ended, by either side.
        _ => Errno::ECONNRESET,
    }
}
