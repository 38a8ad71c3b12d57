//! Connections of a listener that the program has not accepted yet, and the limit on their number.
//!
//! Each of them takes two descriptors before the program knows of it. One listener gets at most
//! half of the slots that the other listeners have left, so that a flooded listener leaves slots to
//! the others. All listeners together leave half of the process's descriptors to the program.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Stream;
use crate::rsocket::socket_table;
use crate::sys::event;
use crate::sys::owner::Owner;

/// Number of unaccepted connections of all listeners.
static UNACCEPTED: AtomicUsize = AtomicUsize::new(0);
/// The descriptor limit is divided by this: a connection uses two descriptors, and connections may
/// use half of the limit.
const DESCRIPTORS_PER_CONNECTION: usize = 4;
/// Number of unaccepted connections that are always allowed.
const MIN_LIMIT: usize = 4;

/// A slot for one unaccepted connection; released when dropped.
pub(super) struct Slot {
    owner: Owner,
}

impl Slot {
    /// Takes a slot for a listener that uses `own` slots.
    fn take(own: usize) -> Option<Slot> {
        if !has_slot(UNACCEPTED.load(Ordering::Relaxed), own, limit()) {
            return None;
        }
        // Only the reactor's thread takes slots.
        UNACCEPTED.fetch_add(1, Ordering::Relaxed);
        Some(Slot { owner: Owner::this_process() })
    }
}

/// Returns the number of unaccepted connections that the process may have.
fn limit() -> usize {
    (event::descriptor_limit() / DESCRIPTORS_PER_CONNECTION).max(MIN_LIMIT)
}

/// Returns whether a listener that uses `own` slots may take one more if `all` of `limit` are used.
fn has_slot(all: usize, own: usize, limit: usize) -> bool {
    own < limit.saturating_sub(all)
}

impl Drop for Slot {
    fn drop(&mut self) {
        // A child of fork() counts only its own connections.
        if self.owner.is_this_process() {
            UNACCEPTED.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Resets the counter in a child of fork(), which has none of its parent's connections.
pub fn in_child() {
    UNACCEPTED.store(0, Ordering::Relaxed);
}

/// A listener's unaccepted connections.
pub(super) struct Listening {
    backlog: usize,
    /// Connections in the handshake, oldest first.
    pending: VecDeque<(Arc<Stream>, Slot)>,
    /// Established connections, for raccept(3).
    ready: VecDeque<(Arc<Stream>, Slot)>,
    /// The listener in the table for rsstat(8).
    _entry: Option<socket_table::Entry>,
}

impl Listening {
    pub fn new(backlog: usize, entry: Option<socket_table::Entry>) -> Listening {
        Listening { backlog, pending: VecDeque::new(), ready: VecDeque::new(), _entry: entry }
    }

    pub fn set_backlog(&mut self, backlog: usize) {
        self.backlog = backlog;
    }

    /// Returns whether raccept(3) would return a connection.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes the next connection for raccept(3).
    pub fn next(&mut self) -> Option<Arc<Stream>> {
        self.ready.pop_front().map(|(stream, _)| stream)
    }

    /// Returns the oldest pending connection if there is no slot for a new one.
    pub fn next_to_evict(&self) -> Option<&Arc<Stream>> {
        let own = self.pending.len() + self.ready.len();
        let is_full = own >= self.backlog || !has_slot(UNACCEPTED.load(Ordering::Relaxed), own, limit());
        self.pending.front().filter(|_| is_full).map(|(oldest, _)| oldest)
    }

    /// Takes a slot for a new connection. If there is none, evicts the oldest pending connection
    /// and returns it with its slot; the caller closes it.
    pub fn admit(&mut self) -> Option<(Slot, Option<Arc<Stream>>)> {
        self.pending.try_reserve(1).ok()?;
        let own = self.pending.len() + self.ready.len();
        let free = if own < self.backlog { Slot::take(own) } else { None };
        match free {
            Some(slot) => Some((slot, None)),
            None => self.pending.pop_front().map(|(oldest, slot)| (slot, Some(oldest))),
        }
    }

    /// Adds a connection whose handshake begins.
    pub fn add_pending(&mut self, stream: Arc<Stream>, slot: Slot) {
        if self.pending.try_reserve(1).is_ok() {
            self.pending.push_back((stream, slot));
        }
    }

    /// The handshake of a connection has succeeded or failed. Returns the connection if the caller
    /// has to close it.
    pub fn finish(&mut self, connection: &Stream, succeeded: bool) -> Option<Arc<Stream>> {
        let index = self.pending.iter().position(|(pending, _)| std::ptr::eq(&raw const **pending, connection))?;
        let (stream, slot) = self.pending.remove(index)?;
        if succeeded && self.ready.try_reserve(1).is_ok() {
            self.ready.push_back((stream, slot));
            return None;
        }
        Some(stream)
    }

    /// Takes all connections; the caller closes them.
    pub fn take_all(&mut self) -> impl Iterator<Item = Arc<Stream>> + use<> {
        let (pending, ready) = (std::mem::take(&mut self.pending), std::mem::take(&mut self.ready));
        pending.into_iter().chain(ready).map(|(stream, _)| stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of slots that one listener gets while other listeners use `others`.
    fn max_slots(others: usize, limit: usize) -> usize {
        (0..).find(|&own| !has_slot(others + own, own, limit)).unwrap()
    }

    #[test]
    fn a_flooded_listener_leaves_slots_to_others() {
        assert_eq!(max_slots(0, 256), 128);
        assert_eq!(max_slots(128, 256), 64);
        assert_eq!(max_slots(256, 256), 0);
        assert_eq!(max_slots(0, MIN_LIMIT), 2);
        assert!(max_slots(300, 256) == 0);
    }
}
