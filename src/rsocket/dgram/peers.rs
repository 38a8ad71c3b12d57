//! Decides how to reach the peers of a datagram socket: over UDP until the peer's QP and a path to
//! it are known, then over UD. Does no I/O.
//!
//! The header of a peer's UDP packet contains its QP number. Anyone can send such headers. So the
//! memory for senders is bounded, senders never displace peers that the program sends to, and paths
//! are searched only to peers that the program sends to. The QP in an unsolicited header is a
//! claim: datagrams are sent to this QP after the peer has confirmed it in the answer to a
//! datagram. A claim that differs from the QP in use only causes an early confirmation: the next
//! datagram goes over UDP.
//!
//! Paths age: LIDs, service levels and MAC addresses change. A path in use is resolved again at the
//! end of its lifetime, and stays in use while it is being resolved.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::errno::{Errno, Result};

/// Maximum number of peers that the program sends to. At this limit, a new peer evicts the least
/// recently used one.
const MAX_USED: usize = 4096;
/// Maximum number of peers that have sent something, but that the program does not send to.
const MAX_HEARD: usize = 256;
/// Time since the last answer after which datagrams are sent over UDP again, until an answer
/// confirms the peer's QP.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(3);
/// While datagrams over UDP are unanswered, later datagrams are sent over UDP, too, for this time
/// at most: over UD they could overtake the unanswered datagrams.
const REORDER_DELAY: Duration = Duration::from_millis(100);
/// Delay between a failed search for a path to a peer and the next search.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Minimum time between two early confirmations that claims of another QP cause.
const CLAIM_INTERVAL: Duration = Duration::from_secs(1);

/// The peers. `H` is the type of a resolved path.
pub(super) struct Peers<H> {
    map: HashMap<SocketAddr, Peer<H>>,
    /// Number of peers that the program sends to.
    used: usize,
    /// Counts uses of peers, to find the least recently used one for eviction.
    clock: u64,
    /// Time after which a path in use is resolved again.
    lifetime: Duration,
}

struct Peer<H> {
    /// The QP in the peer's last answer.
    qp: Option<Qp>,
    /// The QP in the peer's last unsolicited header. Until there is an answer, a path to this QP is
    /// searched.
    claimed: Option<Qp>,
    /// Whether a claim differs from `qp`. If set, the next datagram requests a confirmation.
    doubted: bool,
    /// Time at which an early confirmation was last requested.
    doubt_asked: Option<Instant>,
    path: Path<H>,
    /// Whether the program sends to the peer.
    used: bool,
    last_used: u64,
    /// Number of datagrams sent over UDP that are unanswered.
    unanswered: u32,
    /// The time from which [`REORDER_DELAY`] counts: when the first of these datagrams was sent or,
    /// if later, the search for a path ended.
    since: Option<Instant>,
}

/// The QP in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Qp {
    pub number: u32,
    pub address: IpAddr,
    /// When the header was received.
    pub confirmed: Instant,
}

impl Qp {
    fn matches(&self, number: u32, address: IpAddr) -> bool {
        (self.number, self.address) == (number, address)
    }
}

enum Path<H> {
    Unknown,
    Wanted,
    Known(Known<H>),
    /// The search has failed. The next search starts at this time or later.
    Failed(Instant),
}

struct Known<H> {
    handle: H,
    /// IP address of the QP that the path leads to.
    address: IpAddr,
    found: Instant,
    /// When to resolve the path again; `None` while the path is being resolved.
    renewal: Option<Instant>,
}

/// How to send a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route<H> {
    /// Over UDP, with a header that requests an answer.
    Udp,
    /// Over UD on this path, to this QP number.
    Ud(H, u32),
}

impl<H: Clone> Peers<H> {
    pub fn new(lifetime: Duration) -> Peers<H> {
        Peers { map: HashMap::new(), used: 0, clock: 0, lifetime }
    }

    /// Returns the route to a peer that the program sends to, and the address for which the caller
    /// has to search a path, if any.
    pub fn route(&mut self, to: SocketAddr, now: Instant) -> Result<(Route<H>, Option<IpAddr>)> {
        let last_used = self.tick();
        if self.map.get(&to).is_none_or(|peer| !peer.used) {
            self.reserve(true, MAX_USED)?;
            self.used += 1;
        }
        let peer = self.map.entry(to).or_insert_with(Peer::new);
        (peer.used, peer.last_used) = (true, last_used);
        let wanted = peer.wants_path(now);
        Ok((peer.route(now), wanted))
    }

    /// Handles a header received from `from`. If `wants_answer` is set, the header requests an
    /// answer, and its QP is a claim. Otherwise the header is an answer, which is accepted only
    /// from peers that the program sends to. Returns the address for which the caller has to search
    /// a path, if any.
    pub fn header_received(&mut self, from: SocketAddr, qp: Qp, wants_answer: bool) -> Result<Option<IpAddr>> {
        if wants_answer && !self.map.contains_key(&from) {
            self.reserve(false, MAX_HEARD)?;
            let last_used = self.tick();
            self.map.insert(from, Peer { last_used, ..Peer::new() });
        }
        let Some(peer) = self.map.get_mut(&from) else { return Ok(None) };
        if wants_answer {
            peer.claim(qp);
        } else {
            peer.answer(qp);
        }
        Ok(if peer.used { peer.wants_path(qp.confirmed) } else { None })
    }

    /// Takes the result of the path search for the peer `to`, whose QP was at `address`.
    pub fn search_finished(&mut self, to: &SocketAddr, address: IpAddr, path: Result<H>, now: Instant) {
        let (due, retry) = (now + self.lifetime, now + RETRY_DELAY);
        let Some(peer) = self.map.get_mut(to) else { return };
        match &peer.path {
            Path::Wanted if peer.address() == Some(address) => peer.since = Some(now),
            Path::Known(known) if known.renewal.is_none() && known.address == address => {}
            _ => return,
        }
        match (path, &mut peer.path) {
            (Ok(handle), old) => *old = Path::Known(Known { handle, address, found: now, renewal: Some(due) }),
            // The fabric may be busy: the old path stays in use for another lifetime at most.
            (Err(_), Path::Known(known)) if now < known.found + 2 * self.lifetime => known.renewal = Some(retry),
            (Err(_), old) => *old = Path::Failed(retry),
        }
    }

    /// Notes that the search for a path to `to` was not started or was abandoned. The search may be
    /// requested again.
    pub fn search_not_started(&mut self, to: &SocketAddr) {
        let Some(peer) = self.map.get_mut(to) else { return };
        match &mut peer.path {
            Path::Wanted => peer.path = Path::Unknown,
            Path::Known(known) => known.renewal = known.renewal.or(Some(known.found + self.lifetime)),
            _ => {}
        }
    }

    /// Returns the peer with this QP and IP address, for senders that do not state their port
    /// number.
    pub fn find_by_qp(&self, address: IpAddr, number: u32) -> Option<SocketAddr> {
        let matches = |peer: &Peer<H>| peer.qp.iter().chain(&peer.claimed).any(|qp| qp.matches(number, address));
        self.map.iter().find(|(_, peer)| matches(peer)).map(|(&addr, _)| addr)
    }

    /// Removes all paths for which `removed` returns true.
    pub fn forget(&mut self, removed: impl Fn(&H) -> bool) {
        for peer in self.map.values_mut() {
            if matches!(&peer.path, Path::Known(known) if removed(&known.handle)) {
                peer.path = Path::Unknown;
            }
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Reserves memory for another peer whose field `used` is `used`. Evicts the least recently
    /// used of these peers if there are already `max` of them.
    fn reserve(&mut self, used: bool, max: usize) -> Result<()> {
        let count = if used { self.used } else { self.map.len() - self.used };
        let candidates = self.map.iter().filter(|(_, peer)| peer.used == used);
        if count >= max
            && let Some(oldest) = candidates.min_by_key(|(_, peer)| peer.last_used).map(|(&addr, _)| addr)
        {
            self.map.remove(&oldest);
            self.used -= usize::from(used);
        }
        self.map.try_reserve(1).map_err(|_| Errno::ENOMEM)
    }
}

impl<H: Clone> Peer<H> {
    fn new() -> Peer<H> {
        Peer {
            qp: None,
            claimed: None,
            doubted: false,
            doubt_asked: None,
            path: Path::Unknown,
            used: false,
            last_used: 0,
            unanswered: 0,
            since: None,
        }
    }

    /// Returns the IP address of the peer's QP: of the QP in the last answer or, without an answer,
    /// of the claimed QP.
    fn address(&self) -> Option<IpAddr> {
        self.qp.or(self.claimed).map(|qp| qp.address)
    }

    /// Handles the QP in an unsolicited header.
    fn claim(&mut self, claim: Qp) {
        match self.qp {
            None => self.drop_path_unless_to(claim.address),
            Some(qp) => {
                let recent = |asked: Instant| claim.confirmed.saturating_duration_since(asked) < CLAIM_INTERVAL;
                self.doubted |= !qp.matches(claim.number, claim.address) && !self.doubt_asked.is_some_and(recent);
            }
        }
        self.claimed = Some(claim);
    }

    /// Handles the QP in an answer. A QP that differs from the known one is accepted only while a
    /// datagram is unanswered.
    fn answer(&mut self, answer: Qp) {
        let changed = self.qp.is_none_or(|qp| !qp.matches(answer.number, answer.address));
        if changed && self.unanswered == 0 {
            return;
        }
        self.unanswered = self.unanswered.saturating_sub(1);
        self.drop_path_unless_to(answer.address);
        self.qp = Some(answer);
    }

    /// Drops the path if it leads to an address other than `address`, the address of the peer's new
    /// QP. After a failed search, the delay before the next search remains.
    fn drop_path_unless_to(&mut self, address: IpAddr) {
        if self.address() != Some(address) && !matches!(self.path, Path::Failed(_)) {
            self.path = Path::Unknown;
        }
    }

    fn route(&mut self, now: Instant) -> Route<H> {
        let passed = |since: Instant, time| now.saturating_duration_since(since) >= time;
        let in_order = self.unanswered == 0 || self.since.is_some_and(|since| passed(since, REORDER_DELAY));
        if let (Path::Known(path), Some(qp)) = (&self.path, self.qp)
            && in_order
            && !self.doubted
            && !passed(qp.confirmed, CONFIRM_INTERVAL)
        {
            self.unanswered = 0;
            return Route::Ud(path.handle.clone(), qp.number);
        }
        if std::mem::take(&mut self.doubted) {
            self.doubt_asked = Some(now);
        }
        if self.unanswered == 0 {
            self.since = Some(now);
        }
        self.unanswered = self.unanswered.saturating_add(1);
        Route::Udp
    }

    fn wants_path(&mut self, now: Instant) -> Option<IpAddr> {
        let address = self.address()?;
        match &mut self.path {
            Path::Known(known) if known.renewal.is_some_and(|due| now >= due) => known.renewal = None,
            Path::Failed(until) if now < *until => return None,
            Path::Failed(_) | Path::Unknown => self.path = Path::Wanted,
            Path::Known(_) | Path::Wanted => return None,
        }
        Some(address)
    }
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
