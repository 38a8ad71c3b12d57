//! How to reach the peers of a datagram socket: over UDP until their QP and a path to it are known, then over UD. No I/O.
//!
//! A peer's QP is known from the header of what it sends over UDP. Anybody can send such headers,
//! so they make nothing grow without bound, and take no place from peers that the program sends to;
//! a path is only looked for on the way to those. The QP in a header of a peer's own accord is a
//! claim: datagrams go to it after the peer has named it in the answer to a datagram. A claim that
//! differs from the QP in use only brings the next question forward.
//!
//! Paths age: LIDs, service levels and MAC addresses change. A path in use is resolved again once
//! it is as old as its lifetime, and serves meanwhile.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::errno::{Errno, Result};

/// Largest number of peers that the program sends to. Beyond it the least recently used one is
/// forgotten.
const MOST_USED: usize = 4096;
/// Largest number of peers that have only sent something.
const MOST_HEARD: usize = 256;
/// Interval after which one datagram goes over UDP again: its answer confirms the peer's QP.
const CONFIRM: Duration = Duration::from_secs(3);
/// While datagrams over UDP are unanswered, further ones go over UDP, too, for at most this long:
/// over UD they would overtake them.
const SETTLE: Duration = Duration::from_millis(100);
/// Interval between two attempts to resolve a path to a peer.
const RETRY: Duration = Duration::from_secs(5);
/// Claims of another QP cause at most one early confirmation in this interval.
const CLAIM_INTERVAL: Duration = Duration::from_secs(1);

/// The peers; `H` is what a found path is kept as.
#[derive(Debug)]
pub(super) struct Peers<H> {
    map: HashMap<SocketAddr, Peer<H>>,
    used: usize,
    /// Counts uses, for their order.
    clock: u64,
    /// A path in use is resolved again after this time.
    lifetime: Duration,
}

#[derive(Debug)]
struct Peer<H> {
    /// The QP and its IP address, as the peer last answered.
    qp: Option<Qp>,
    /// The QP that the peer last named of its own accord: a path to it is looked for while none has
    /// answered.
    claimed: Option<Qp>,
    /// A claim differs from `qp`: the next datagram asks.
    doubted: bool,
    /// When a doubt last brought a question forward.
    doubt_asked: Option<Instant>,
    path: Path<H>,
    /// The program sends to it.
    used: bool,
    last: u64,
    /// Datagrams sent over UDP since then, or since a path is known, less the answers to them.
    unanswered: u32,
    since: Option<Instant>,
}

/// What a header says of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Qp {
    pub number: u32,
    pub address: IpAddr,
    /// When it said so.
    pub confirmed: Instant,
}

impl Qp {
    fn is(&self, number: u32, address: IpAddr) -> bool {
        (self.number, self.address) == (number, address)
    }
}

#[derive(Debug)]
enum Path<H> {
    Unknown,
    Wanted,
    Known(Known<H>),
    /// Not before then.
    Failed(Instant),
}

#[derive(Debug)]
struct Known<H> {
    handle: H,
    /// The address that it leads to.
    address: IpAddr,
    found: Instant,
    renewal: Renewal,
}

/// Resolving a path again.
#[derive(Debug)]
enum Renewal {
    /// Due from then on.
    Due(Instant),
    UnderWay,
}

/// How to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route<H> {
    /// With the header that asks for an answer.
    Udp,
    /// To this QP.
    Ud(H, u32),
}

impl<H: Clone> Peers<H> {
    pub fn new(lifetime: Duration) -> Peers<H> {
        Peers { map: HashMap::new(), used: 0, clock: 0, lifetime }
    }

    /// The way to a peer that the program sends to; and whether a path to this address should be looked for.
    pub fn route(&mut self, to: SocketAddr, now: Instant) -> Result<(Route<H>, Option<IpAddr>)> {
        let last = self.tick();
        if self.map.get(&to).is_none_or(|peer| !peer.used) {
            self.make_room(true, MOST_USED)?;
            self.used += 1;
        }
        let peer = self.map.entry(to).or_insert_with(Peer::new);
        (peer.used, peer.last) = (true, last);
        let wanted = peer.wants_path(now);
        Ok((peer.route(now), wanted))
    }

    /// A header came from `from`. `asked`: it wants an answer, and its QP is a claim. The others
    /// are answers; they count from peers that the program sends to only. Returns the address to
    /// which a path should be looked for now.
    pub fn heard(&mut self, from: SocketAddr, qp: Qp, asked: bool) -> Result<Option<IpAddr>> {
        if !self.map.contains_key(&from) {
            if !asked {
                return Ok(None);
            }
            self.make_room(false, MOST_HEARD)?;
            let last = self.tick();
            self.map.insert(from, Peer { last, ..Peer::new() });
        }
        let Some(peer) = self.map.get_mut(&from) else { return Ok(None) };
        if asked {
            peer.claim(qp);
        } else {
            peer.answer(qp);
        }
        Ok(if peer.used { peer.wants_path(qp.confirmed) } else { None })
    }

    /// The search for a path to `address` for `to` ended.
    pub fn found(&mut self, to: &SocketAddr, address: IpAddr, path: Result<H>, now: Instant) {
        let due = now + self.lifetime;
        let Some(peer) = self.map.get_mut(to) else { return };
        let current = peer.address() == Some(address);
        match &mut peer.path {
            Path::Wanted if current => {
                peer.since = Some(now);
                peer.path = match path {
                    Ok(handle) => Path::Known(Known { handle, address, found: now, renewal: Renewal::Due(due) }),
                    Err(_) => Path::Failed(now + RETRY),
                };
            }
            Path::Known(known) if matches!(known.renewal, Renewal::UnderWay) && known.address == address => {
                match path {
                    Ok(handle) => *known = Known { handle, address, found: now, renewal: Renewal::Due(due) },
                    // The fabric may be busy: the old path serves for another lifetime at most.
                    Err(_) if now < known.found + 2 * self.lifetime => known.renewal = Renewal::Due(now + RETRY),
                    Err(_) => peer.path = Path::Failed(now + RETRY),
                }
            }
            _ => {}
        }
    }

    /// Nobody looks for the path to `to`, for lack of something; it may be asked for again.
    pub fn not_now(&mut self, to: &SocketAddr) {
        let Some(peer) = self.map.get_mut(to) else { return };
        match &mut peer.path {
            Path::Wanted => peer.path = Path::Unknown,
            Path::Known(known) if matches!(known.renewal, Renewal::UnderWay) => {
                known.renewal = Renewal::Due(known.found + self.lifetime);
            }
            _ => {}
        }
    }

    /// The peer behind a QP of an IP address: some senders don't say their port.
    pub fn behind(&self, address: IpAddr, number: u32) -> Option<SocketAddr> {
        let is = |peer: &Peer<H>| peer.qp.iter().chain(&peer.claimed).any(|qp| qp.is(number, address));
        self.map.iter().find(|(_, peer)| is(peer)).map(|(&addr, _)| addr)
    }

    /// Forgets all paths that `gone` is true for.
    pub fn forget(&mut self, gone: impl Fn(&H) -> bool) {
        for peer in self.map.values_mut() {
            if matches!(&peer.path, Path::Known(known) if gone(&known.handle)) {
                peer.path = Path::Unknown;
            }
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.map.clear();
        self.used = 0;
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Sees to it that one more of a kind fits.
    fn make_room(&mut self, used: bool, most: usize) -> Result<()> {
        let count = if used { self.used } else { self.map.len() - self.used };
        if count >= most {
            let of_kind = self.map.iter().filter(|(_, peer)| peer.used == used);
            if let Some(oldest) = of_kind.min_by_key(|(_, peer)| peer.last).map(|(&addr, _)| addr) {
                self.map.remove(&oldest);
                self.used -= usize::from(used);
            }
        }
        self.map.try_reserve(1).map_err(|_| Errno::ENOMEM)
    }
}

impl<H> Peer<H> {
    fn new() -> Peer<H> {
        Peer {
            qp: None,
            claimed: None,
            doubted: false,
            doubt_asked: None,
            path: Path::Unknown,
            used: false,
            last: 0,
            unanswered: 0,
            since: None,
        }
    }

    /// The address of the QP.
    fn address(&self) -> Option<IpAddr> {
        self.qp.or(self.claimed).map(|qp| qp.address)
    }

    /// The peer named a QP of its own accord.
    fn claim(&mut self, claim: Qp) {
        match self.qp {
            None => self.set_address(claim.address, |peer| peer.claimed = Some(claim)),
            Some(qp) => {
                self.claimed = Some(claim);
                let recent = |asked| claim.confirmed.saturating_duration_since(asked) < CLAIM_INTERVAL;
                self.doubted |= !qp.is(claim.number, claim.address) && !self.doubt_asked.is_some_and(recent);
            }
        }
    }

    /// The peer named its QP in an answer. A changed one counts while a datagram is unanswered.
    fn answer(&mut self, answer: Qp) {
        let changed = self.qp.is_none_or(|qp| !qp.is(answer.number, answer.address));
        if changed && self.unanswered == 0 {
            return;
        }
        self.unanswered = self.unanswered.saturating_sub(1);
        self.set_address(answer.address, |peer| peer.qp = Some(answer));
    }

    /// Runs `set`, which may change the address. A path to another address is of no use; after a
    /// failed search the next one waits all the same.
    fn set_address(&mut self, address: IpAddr, set: impl FnOnce(&mut Self)) {
        if self.address() != Some(address) && !matches!(self.path, Path::Failed(_)) {
            self.path = Path::Unknown;
        }
        set(self);
    }

    fn route(&mut self, now: Instant) -> Route<H>
    where
        H: Clone,
    {
        let passed = |since: Instant, time| now.saturating_duration_since(since) >= time;
        let settled = self.unanswered == 0 || self.since.is_some_and(|since| passed(since, SETTLE));
        if let (Path::Known(path), Some(qp)) = (&self.path, self.qp)
            && settled
            && !self.doubted
            && !passed(qp.confirmed, CONFIRM)
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
            Path::Known(known) => {
                return match known.renewal {
                    Renewal::Due(due) if now >= due => {
                        known.renewal = Renewal::UnderWay;
                        Some(address)
                    }
                    _ => None,
                };
            }
            Path::Wanted => return None,
            Path::Failed(until) if now < *until => return None,
            Path::Failed(_) | Path::Unknown => {}
        }
        self.path = Path::Wanted;
        Some(address)
    }
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
