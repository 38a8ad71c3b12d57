//! The devices and the network between them.

use std::sync::OnceLock;

use super::{Completion, Effect, End, Part, RINGS, Source, key, shorten};

impl End {
    /// Completes the next work request that was executed.
    pub fn complete(&mut self) {
        if let Some(work) = self.executed.pop_front() {
            self.changes += 1;
            if work.signaled {
                self.completions.push_back(Completion::Send(work.wr_id));
            }
        }
    }

    /// Returns the memory for a write to the ring.
    fn fill(&mut self, addr: u64, rkey: u32, len: u32) -> &mut [u8] {
        let Part { memory, offset, .. } = *self.writable.front().expect("more than was advertised");
        assert_eq!(rkey, key(memory));
        assert_eq!(addr, RINGS[memory] + u64::from(offset), "not after the previous bytes");
        assert_eq!(shorten(&mut self.writable, len.into()), len, "beyond the end of a half");
        &mut self.memory[memory][offset as usize..][..len as usize]
    }
}

/// Executes the next work request of `from`.
pub fn deliver(from: &mut End, to: &mut End) {
    let Some(work) = from.posted.pop_front() else { return };
    from.changes += 1;
    match work.effect {
        Effect::Nothing => {}
        Effect::Data { addr, key, len, source } => copy(from, source, to.fill(addr, key, len)),
        Effect::Other { len, source } => {
            let mut bytes = vec![0; len as usize];
            copy(from, source, &mut bytes);
        }
        Effect::Advertise { sgl_entry, region } => {
            assert_eq!(to.sgl[sgl_entry].length, 0, "an unused entry is overwritten");
            to.sgl[sgl_entry] = region;
        }
    }
    if let Some(message) = work.message {
        assert!(to.receives > 0, "the receive queue is overrun");
        to.receives -= 1;
        to.completions.push_back(Completion::Received(message));
    }
    from.executed.push_back(work);
}

/// Copies the bytes that the device reads, which must not have been overwritten.
fn copy(from: &End, source: Source, into: &mut [u8]) {
    let position = match source {
        Source::Inline { position } => {
            into.copy_from_slice(pattern(position, into.len()));
            return;
        }
        Source::Buffer { which, offset, position } => {
            let buffer = &from.buffers[which];
            let first = into.len().min(buffer.len() - offset as usize);
            let (start, end) = into.split_at_mut(first);
            start.copy_from_slice(&buffer[offset as usize..][..first]);
            end.copy_from_slice(&buffer[..end.len()]);
            position
        }
    };
    assert!(into == pattern(position, into.len()), "the send buffer was reused too early");
}

/// Returns the bytes of every stream from `position` on.
pub(super) fn pattern(position: u64, len: usize) -> &'static [u8] {
    const PERIOD: usize = 251;
    const MAX_LEN: usize = 1 << 18;
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| (0..MAX_LEN + PERIOD).map(|at| (at % PERIOD) as u8).collect());
    &bytes[(position % PERIOD as u64) as usize..][..len]
}
