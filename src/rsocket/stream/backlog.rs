//! Connections of a listener that the program has not accepted yet, and how many of them the
//! process may have.
//!
//! Each takes two descriptors before the program knows of it. One listener gets at most half of
//! what the others have left, so that a flooded listener leaves some to the others, and all
//! listeners together leave half of the process's descriptors to the program.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Stream;
use crate::rsocket::owner::Owner;
use crate::sys::event;

/// Number of connections of all listeners that are not accepted.
static UNACCEPTED: AtomicUsize = AtomicUsize::new(0);
/// Descriptors of the process's limit for each connection: half of them may be used.
const SHARE: usize = 4;
/// Connections that are always allowed.
const LEAST: usize = 4;

/// A share of the unaccepted connections; given back when dropped.
pub(super) struct Place {
    owner: Owner,
}

impl Place {
    /// Takes a share for a listener that has `own` of them.
    fn take(own: usize) -> Option<Place> {
        if !has_room(UNACCEPTED.load(Ordering::Relaxed), own, limit()) {
            return None;
        }
        // Only the reactor's thread takes shares.
        UNACCEPTED.fetch_add(1, Ordering::Relaxed);
        Some(Place { owner: Owner::this_process() })
    }
}

/// Returns how many unaccepted connections the process may have.
fn limit() -> usize {
    (event::descriptor_limit() / SHARE).max(LEAST)
}

/// Returns whether a listener with `own` connections may have one more if `all` of `limit` are
/// used.
fn has_room(all: usize, own: usize, limit: usize) -> bool {
    own < limit.saturating_sub(all)
}

impl Drop for Place {
    fn drop(&mut self) {
        // A child of fork() counts its own only.
        if self.owner.is_this_process() {
            UNACCEPTED.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A child has none of its parent's connections.
pub fn in_child() {
    UNACCEPTED.store(0, Ordering::Relaxed);
}

/// A listener's connections.
pub(super) struct Listening {
    backlog: usize,
    /// Handshakes under way, oldest first.
    pending: VecDeque<(Arc<Stream>, Place)>,
    /// Finished, for raccept(3).
    ready: VecDeque<(Arc<Stream>, Place)>,
}

impl Listening {
    pub fn new(backlog: usize) -> Listening {
        Listening { backlog, pending: VecDeque::new(), ready: VecDeque::new() }
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

    /// Returns the handshake that gives way to a new connection: the oldest one, if there is no
    /// share left.
    pub fn gives_way(&self) -> Option<&Arc<Stream>> {
        let own = self.pending.len() + self.ready.len();
        let is_full = own >= self.backlog || !has_room(UNACCEPTED.load(Ordering::Relaxed), own, limit());
        self.pending.front().filter(|_| is_full).map(|(oldest, _)| oldest)
    }

    /// Takes a share for a new connection. If there is none, the oldest handshake gives way; the
    /// caller closes it.
    pub fn admit(&mut self) -> Option<(Place, Option<Arc<Stream>>)> {
        self.pending.try_reserve(1).ok()?;
        let own = self.pending.len() + self.ready.len();
        let free = if own < self.backlog { Place::take(own) } else { None };
        match free {
            Some(place) => Some((place, None)),
            None => self.pending.pop_front().map(|(oldest, place)| (place, Some(oldest))),
        }
    }

    /// Adds a connection whose handshake begins.
    pub fn wait_for(&mut self, stream: Arc<Stream>, place: Place) {
        if self.pending.try_reserve(1).is_ok() {
            self.pending.push_back((stream, place));
        }
    }

    /// The handshake of a connection has ended. Returns the connection if it is to be closed.
    pub fn finish(&mut self, connection: &Stream, good: bool) -> Option<Arc<Stream>> {
        let index = self.pending.iter().position(|(pending, _)| std::ptr::eq(&raw const **pending, connection))?;
        let (stream, place) = self.pending.remove(index)?;
        if good && self.ready.try_reserve(1).is_ok() {
            self.ready.push_back((stream, place));
            return None;
        }
        Some(stream)
    }

    /// Takes all of them; the caller closes them.
    pub fn take_all(&mut self) -> impl Iterator<Item = Arc<Stream>> + use<> {
        let (pending, ready) = (std::mem::take(&mut self.pending), std::mem::take(&mut self.ready));
        pending.into_iter().chain(ready).map(|(stream, _)| stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many places one listener gets where others have `others`.
    fn most(others: usize, limit: usize) -> usize {
        (0..).find(|&own| !has_room(others + own, own, limit)).unwrap()
    }

    #[test]
    fn a_flooded_listener_leaves_room_for_others() {
        assert_eq!(most(0, 256), 128);
        assert_eq!(most(128, 256), 64);
        assert_eq!(most(256, 256), 0);
        assert_eq!(most(0, LEAST), 2);
        assert!(most(300, 256) == 0);
    }
}
