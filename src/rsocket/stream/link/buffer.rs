//! The send buffer: made with the first send that needs it, larger for a stream that is held up by it.

use std::ptr::NonNull;

use super::rings::{self, Grown};
use super::source::Source;
use super::{Link, ibv_qp};
use crate::errno::{Errno, Result};
use crate::rsocket::flow::Sender;
use crate::rsocket::spare;
use crate::sys::rc::{Piece, Registered};

/// Bytes of one that has grown once, and twice, as receive buffers do.
const STEPS: [u32; 2] = [1 << 18, 1 << 20];
/// How often the stream could have sent more before it grows.
const OFTEN: u32 = 2;

#[derive(Debug)]
enum Memory {
    Usual(Registered),
    Grown(Grown),
}

impl Memory {
    fn registered(&self) -> &Registered {
        match self {
            Memory::Usual(memory) => memory,
            Memory::Grown(grown) => &grown.memory,
        }
    }
}

/// Memory of a buffer's first size; others may have to give some back for it.
fn usual(qp: NonNull<ibv_qp>, size: u32) -> Result<Memory> {
    spare::with_memory(|| usual_now(qp, size))
}

fn usual_now(qp: NonNull<ibv_qp>, size: u32) -> Result<Memory> {
    // SAFETY: the QP is the link's, and live; its PD goes after the link.
    unsafe {
        let pd = NonNull::new((*qp.as_ptr()).pd).ok_or(Errno::EIO)?;
        Registered::new(pd, size as usize, false).map(Memory::Usual)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct SendBuffer {
    memory: Option<Memory>,
    size: u32,
    /// Its size at first.
    least: u32,
    may_grow: bool,
    /// How often more could have been sent, and how often there was no larger buffer to be had.
    cramped: u32,
    refused: u32,
    /// The one before, until the work request of this number is complete.
    before: Option<(Memory, u64)>,
}

impl SendBuffer {
    pub fn new(size: u32, may_grow: bool) -> SendBuffer {
        SendBuffer { memory: None, size, least: size, may_grow, cramped: 0, refused: 0, before: None }
    }

    /// Its size at first.
    pub fn least(&self) -> u32 {
        self.least
    }

    fn memory(&mut self, qp: NonNull<ibv_qp>) -> Result<&Registered> {
        let memory = match &mut self.memory {
            Some(memory) => memory,
            none => none.insert(usual(qp, self.size)?),
        };
        Ok(memory.registered())
    }

    /// Copies into the buffer, from `offset` on.
    #[inline]
    pub fn fill(&mut self, qp: NonNull<ibv_qp>, bytes: impl Source, offset: u32) -> Result<[Piece; 2]> {
        let (size, offset) = (self.size as usize, offset as usize);
        let memory = self.memory(qp)?;
        let first = bytes.size().min(size - offset);
        let (before, behind) = bytes.split(first);
        let (start, lkey) = (memory.start(), memory.lkey());
        // SAFETY: both parts lie in the buffer, and no outstanding work request reads there: the sender keeps account.
        unsafe {
            before.copy_to(start.add(offset));
            behind.copy_to(start);
        }
        let at = |offset: usize| start.as_ptr() as usize as u64 + offset as u64;
        Ok([
            Piece { addr: at(offset), len: first as u32, lkey },
            Piece { addr: at(0), len: behind.size() as u32, lkey },
        ])
    }
}

impl Link {
    /// Whether it helped that the stream needs more than its buffer.
    pub(super) fn grow_buffer(&mut self) -> bool {
        let buffer = &mut self.buffer;
        let Some(size) = rings::larger(STEPS, buffer.size).filter(|_| buffer.may_grow) else { return false };
        buffer.cramped += 1;
        if buffer.cramped < OFTEN << buffer.refused.min(16) {
            return false;
        }
        buffer.cramped = 0;
        // SAFETY: the QP is live; its PD lives as long as the id, and so longer than the link.
        let grown = if buffer.before.is_none() { unsafe { Grown::new(self.qp, size, false).ok() } } else { None };
        let Some(grown) = grown else {
            buffer.refused += 1;
            return false;
        };
        buffer.refused = 0;
        self.use_buffer(Memory::Grown(grown), size);
        true
    }

    /// A buffer that has grown, and was not needed for long, goes.
    pub(super) fn shrink_buffer(&mut self) {
        let buffer = &mut self.buffer;
        let size = buffer.least;
        if buffer.size > size
            && buffer.before.is_none()
            && let Ok(memory) = usual(self.qp, size)
        {
            self.use_buffer(memory, size);
        }
    }

    /// Goes back to the first size, if nothing is under way. The larger memory goes first: there
    /// may be none for both.
    pub fn give_memory_back(&mut self) {
        self.look_at_sent();
        let buffer = &mut self.buffer;
        let Some(sender) = self.sender.as_mut().filter(|sender| sender.is_idle()) else { return };
        if buffer.size > buffer.least && buffer.before.is_none() {
            sender.rebuffer(buffer.least);
            buffer.size = buffer.least;
            buffer.memory = None;
            // Without it the next send makes it, or says that it can't.
            buffer.memory = usual_now(self.qp, buffer.least).ok();
        }
    }

    fn use_buffer(&mut self, memory: Memory, size: u32) {
        let Some(sender) = &mut self.sender else { return };
        let number = sender.rebuffer(size);
        let before = self.buffer.memory.replace(memory);
        self.buffer.size = size;
        self.buffer.before = before.map(|before| (before, number));
        self.drop_old_buffer();
    }

    /// The buffer before goes when nothing that was sent from it is under way.
    pub(super) fn drop_old_buffer(&mut self) {
        if let Some((_, number)) = self.buffer.before
            && self.sender.as_ref().is_none_or(|sender: &Sender| sender.is_complete(number))
        {
            self.buffer.before = None;
        }
    }
}
