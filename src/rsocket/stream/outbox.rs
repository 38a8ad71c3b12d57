//! Copying and posting the bytes to send without the stream's lock.
//!
//! Where one thread sends and another one receives, the latter would wait for the lock while many
//! bytes are copied, and while a software device sends them, in the system call that rings its
//! doorbell. So the sending call collects its writes under the lock, in the order in which the flow
//! control has reserved them, and copies and posts them without it. Writes of other calls are
//! collected behind them meanwhile, and posted by the same thread.
//!
//! As with [`channel_leader`], everything outside of this logic is behind a
//! trait, and the logic is model-checked.

use super::channel_leader::{self, EventSource, LockGuard};
use crate::errno::{Errno, Result};

/// Number of writes that are posted together.
const BATCH: usize = 4;
/// Number of batches that are posted without the lock. The rest is posted with it: other threads
/// could add writes again and again, and the call would not return.
const BATCHES: u32 = 16;

/// Writes to post.
#[derive(Debug)]
pub(super) struct Outbox<W> {
    writes: Vec<W>,
    /// The call that holds the lock collects its writes, and posts them before it returns.
    collects: bool,
    /// A thread posts without the lock.
    posting: bool,
}

impl<W: Copy> Outbox<W> {
    pub fn new() -> Outbox<W> {
        Outbox { writes: Vec::new(), collects: false, posting: false }
    }

    /// Collects the writes of the calling thread from now on, until [`post_collected`]. While
    /// another thread posts, it does nothing. There is memory for all writes that can be
    /// outstanding.
    pub fn begin(&mut self) {
        self.collects = !self.posting;
    }

    /// Allocates memory for `capacity` writes in all.
    pub fn reserve(&mut self, capacity: usize) -> Result<()> {
        let missing = capacity.saturating_sub(self.writes.len());
        self.writes.try_reserve_exact(missing).map_err(|_| Errno::ENOMEM)
    }

    /// Returns whether there is memory for `capacity` writes in all.
    pub fn has_capacity(&self, capacity: usize) -> bool {
        self.writes.capacity() >= capacity
    }

    /// Returns whether the call that holds the lock collects its own writes.
    #[inline]
    pub fn collects(&self) -> bool {
        self.collects
    }

    /// Returns whether writes are to be added to the outbox.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.collects || self.posting
    }

    /// Returns whether a thread posts without the lock.
    #[inline]
    pub fn is_posting(&self) -> bool {
        self.posting
    }

    /// Adds a write. Fails with `ENOMEM` if there are more than can be outstanding.
    pub fn add(&mut self, write: W) -> Result<()> {
        if self.writes.len() == self.writes.capacity() {
            return Err(Errno::ENOMEM);
        }
        self.writes.push(write);
        Ok(())
    }

    /// Ends the collecting. Returns whether the calling thread has to post.
    fn begin_posting(&mut self) -> bool {
        let begins = !self.posting && !self.writes.is_empty();
        self.collects = false;
        self.posting |= begins;
        begins
    }

    /// Moves the next writes to `batch`. Returns their number.
    fn take(&mut self, batch: &mut [Option<W>; BATCH]) -> usize {
        let count = self.writes.len().min(BATCH);
        for (slot, write) in batch.iter_mut().zip(self.writes.drain(..count)) {
            *slot = Some(write);
        }
        count
    }

    fn end_posting(&mut self) {
        self.posting = false;
        self.writes.clear();
    }
}

/// A stream, or a model of one, whose writes can be posted without its lock.
pub(super) trait Posts: EventSource {
    type Write: Copy;
    /// The send queue as it is used without the lock. It stays live while a thread posts.
    type Queue: Clone;

    /// Returns the outbox and the send queue. Returns `None` without a connection.
    fn outbox(state: &mut Self::State) -> Option<(&mut Outbox<Self::Write>, Self::Queue)>;
    /// Posts writes, in order, after copying the bytes that are not in place.
    fn post(queue: &Self::Queue, writes: &[Option<Self::Write>]) -> Result<()>;
    /// Posting has failed: the connection has ended.
    fn post_failed(&self, state: &mut Self::State, error: Errno);
    /// Returns whether a thread uses the connection without the lock: it posts, or copies received
    /// data.
    fn is_in_use(&self, state: &mut Self::State) -> bool;
    /// Returns whether a thread may wait in [`wait_until_unused`].
    fn is_closing(state: &Self::State) -> bool;
}

type Guard<'a, S> = LockGuard<'a, <S as EventSource>::State>;

/// Posts the writes that the calling thread has collected, unless another thread posts them.
/// Returns whether it has released the lock meanwhile: what the caller knows of the state may not
/// be true any more.
#[inline]
pub(super) fn post_collected<'a, S: Posts>(stream: &'a S, mut state: Guard<'a, S>) -> (Guard<'a, S>, bool) {
    let queue = S::outbox(&mut state).and_then(|(outbox, queue)| outbox.begin_posting().then_some(queue));
    match queue {
        Some(queue) => (post_all(stream, state, queue), true),
        None => (state, false),
    }
}

#[inline(never)]
fn post_all<'a, S: Posts>(stream: &'a S, mut state: Guard<'a, S>, queue: S::Queue) -> Guard<'a, S> {
    let mut batches = 0;
    let mut batch = [None; BATCH];
    while let Some((outbox, _)) = S::outbox(&mut state) {
        let count = outbox.take(&mut batch);
        if count == 0 {
            break;
        }
        let writes = &batch[..count];
        batches += 1;
        let posted = if batches <= BATCHES {
            drop(state);
            let posted = S::post(&queue, writes);
            state = stream.lock();
            posted
        } else {
            S::post(&queue, writes)
        };
        if let Err(error) = posted {
            stream.post_failed(&mut state, error);
            break;
        }
    }
    if let Some((outbox, _)) = S::outbox(&mut state) {
        outbox.end_posting();
    }
    if S::is_closing(&state) {
        stream.changed().notify();
    }
    state
}

/// Waits until no thread uses the connection without the lock. The caller has made sure that no
/// thread begins to.
pub(super) fn wait_until_unused<'a, S: Posts>(stream: &'a S, mut state: Guard<'a, S>) -> Guard<'a, S> {
    while stream.is_in_use(&mut state) {
        state = channel_leader::wait_for_change(stream, state);
    }
    state
}
