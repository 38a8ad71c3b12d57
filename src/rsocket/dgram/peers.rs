//! How to reach the peers of a datagram socket: over UDP until their QP and a path to it are known, then over UD. No I/O.
//!
//! A peer's QP is known from the header of what it sends over UDP. Anybody can send such headers, so they make nothing
//! grow without bound, and take no place from peers that the program sends to; a path is only looked for on the way
//! to those.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::errno::{Errno, Result};

/// Most peers that the program sends to; beyond, the one that was used longest ago is forgotten.
const MOST_USED: usize = 4096;
/// Most peers that only sent something.
const MOST_HEARD: usize = 256;
/// After so long, one datagram goes over UDP again: its answer tells whether the QP is still the peer's.
const CONFIRM: Duration = Duration::from_secs(3);
/// Datagrams that went over UDP are not overtaken by UD ones while they are unanswered; but no longer than this.
const SETTLE: Duration = Duration::from_millis(100);
/// How long a peer to whom no path was found is left alone.
const RETRY: Duration = Duration::from_secs(5);

/// The peers; `H` is what a found path is kept as.
#[derive(Debug)]
pub(super) struct Peers<H> {
    map: HashMap<SocketAddr, Peer<H>>,
    used: usize,
    /// Counts uses, for their order.
    clock: u64,
}

#[derive(Debug)]
struct Peer<H> {
    /// The QP and its IP address.
    qp: Option<Qp>,
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

#[derive(Debug)]
enum Path<H> {
    Unknown,
    Wanted,
    Known(H),
    /// Not before then.
    Failed(Instant),
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
    pub fn new() -> Peers<H> {
        Peers { map: HashMap::new(), used: 0, clock: 0 }
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

    /// A header came from `from`. `asked`: it wants an answer; the others count from peers that the program sends to only.
    /// Whether a path to this address should be looked for now.
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
        if peer.qp.is_some_and(|before| before.address != qp.address) {
            peer.path = Path::Unknown;
        }
        peer.qp = Some(qp);
        if !asked {
            peer.unanswered = peer.unanswered.saturating_sub(1);
        }
        Ok(if peer.used { peer.wants_path(qp.confirmed) } else { None })
    }

    /// The search for a path to `address` for `to` ended.
    pub fn found(&mut self, to: &SocketAddr, address: IpAddr, path: Result<H>, now: Instant) {
        if let Some(peer) = self.map.get_mut(to)
            && matches!(peer.path, Path::Wanted)
            && peer.qp.is_some_and(|qp| qp.address == address)
        {
            peer.since = Some(now);
            peer.path = match path {
                Ok(path) => Path::Known(path),
                Err(_) => Path::Failed(now + RETRY),
            };
        }
    }

    /// Nobody looks for the path to `to`, for lack of something; it may be asked for again.
    pub fn not_now(&mut self, to: &SocketAddr) {
        if let Some(peer) = self.map.get_mut(to)
            && matches!(peer.path, Path::Wanted)
        {
            peer.path = Path::Unknown;
        }
    }

    /// The peer behind a QP of an IP address: some senders don't say their port.
    pub fn behind(&self, address: IpAddr, number: u32) -> Option<SocketAddr> {
        let is = |peer: &Peer<H>| peer.qp.is_some_and(|qp| (qp.number, qp.address) == (number, address));
        self.map.iter().find(|(_, peer)| is(peer)).map(|(&addr, _)| addr)
    }

    /// Forgets all paths that `gone` is true for.
    pub fn forget(&mut self, gone: impl Fn(&H) -> bool) {
        for peer in self.map.values_mut() {
            if matches!(&peer.path, Path::Known(path) if gone(path)) {
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
        Peer { qp: None, path: Path::Unknown, used: false, last: 0, unanswered: 0, since: None }
    }

    fn route(&mut self, now: Instant) -> Route<H>
    where
        H: Clone,
    {
        let passed = |since: Instant, time| now.saturating_duration_since(since) >= time;
        let settled = self.unanswered == 0 || self.since.is_some_and(|since| passed(since, SETTLE));
        if let (Path::Known(path), Some(qp)) = (&self.path, self.qp)
            && settled
            && !passed(qp.confirmed, CONFIRM)
        {
            self.unanswered = 0;
            return Route::Ud(path.clone(), qp.number);
        }
        if self.unanswered == 0 {
            self.since = Some(now);
        }
        self.unanswered = self.unanswered.saturating_add(1);
        Route::Udp
    }

    fn wants_path(&mut self, now: Instant) -> Option<IpAddr> {
        let address = self.qp?.address;
        match self.path {
            Path::Known(_) | Path::Wanted => return None,
            Path::Failed(until) if now < until => return None,
            Path::Failed(_) | Path::Unknown => {}
        }
        self.path = Path::Wanted;
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn addr(last: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, (last >> 8) as u8, last as u8], 7))
    }

    fn qp(number: u32, from: SocketAddr, confirmed: Instant) -> Qp {
        Qp { number, address: from.ip(), confirmed }
    }

    #[test]
    fn udp_then_ud() {
        let (mut peers, now, to) = (Peers::<u8>::new(), Instant::now(), addr(1));
        assert_eq!(peers.route(to, now), Ok((Route::Udp, None)));
        assert_eq!(peers.heard(to, qp(9, to, now), false), Ok(Some(to.ip())));
        assert_eq!(peers.route(to, now), Ok((Route::Udp, None)), "only one search");
        peers.found(&to, to.ip(), Ok(3), now);
        assert_eq!(peers.route(to, now), Ok((Route::Udp, None)), "one is unanswered");
        peers.heard(to, qp(9, to, now), false).unwrap();
        peers.heard(to, qp(9, to, now), false).unwrap();
        assert_eq!(peers.route(to, now), Ok((Route::Ud(3, 9), None)));
        assert_eq!(peers.heard(to, qp(10, to, now), true), Ok(None));
        assert_eq!(peers.route(to, now), Ok((Route::Ud(3, 10), None)), "another QP on the same path");
    }

    #[test]
    fn who_asked_is_answered_over_ud_at_last() {
        let (mut peers, now, from) = (Peers::<u8>::new(), Instant::now(), addr(1));
        assert_eq!(peers.heard(from, qp(9, from, now), true), Ok(None), "no search for who only sent");
        assert_eq!(peers.route(from, now), Ok((Route::Udp, Some(from.ip()))));
        peers.found(&from, from.ip(), Ok(3), now);
        assert_eq!(peers.route(from, now + SETTLE), Ok((Route::Ud(3, 9), None)), "the answer got lost");
    }

    #[test]
    fn an_answer_that_nobody_asked_for_is_ignored() {
        let (mut peers, now, from) = (Peers::<u8>::new(), Instant::now(), addr(1));
        assert_eq!(peers.heard(from, qp(9, from, now), false), Ok(None));
        assert_eq!(peers.map.len(), 0);
    }

    #[test]
    fn confirmed_again_and_again() {
        let (mut peers, now, to) = (Peers::<u8>::new(), Instant::now(), addr(1));
        peers.route(to, now).unwrap();
        peers.heard(to, qp(9, to, now), false).unwrap();
        peers.found(&to, to.ip(), Ok(3), now);
        let later = now + CONFIRM;
        assert_eq!(peers.route(to, later), Ok((Route::Udp, None)));
        peers.heard(to, qp(11, to, later), false).unwrap();
        assert_eq!(peers.route(to, later), Ok((Route::Ud(3, 11), None)));
    }

    #[test]
    fn failed_searches_wait() {
        let (mut peers, now, to) = (Peers::<u8>::new(), Instant::now(), addr(1));
        peers.route(to, now).unwrap();
        peers.heard(to, qp(9, to, now), false).unwrap();
        peers.found(&to, to.ip(), Err(Errno::ETIMEDOUT), now);
        assert_eq!(peers.route(to, now), Ok((Route::Udp, None)));
        assert_eq!(peers.route(to, now + RETRY), Ok((Route::Udp, Some(to.ip()))));
        peers.not_now(&to);
        assert_eq!(peers.route(to, now + RETRY), Ok((Route::Udp, Some(to.ip()))));
    }

    #[test]
    fn a_moved_qp_needs_another_path() {
        let (mut peers, now, to) = (Peers::<u8>::new(), Instant::now(), addr(1));
        peers.route(to, now).unwrap();
        peers.heard(to, qp(9, to, now), false).unwrap();
        let other = addr(2).ip();
        let moved = Qp { number: 9, address: other, confirmed: now };
        assert_eq!(peers.heard(to, moved, false), Ok(Some(other)));
        peers.found(&to, to.ip(), Ok(3), now);
        assert_eq!(peers.route(to, now), Ok((Route::Udp, None)), "the path to the former address is of no use");
        peers.found(&to, other, Ok(4), now);
        assert_eq!(peers.route(to, now + SETTLE), Ok((Route::Ud(4, 9), None)));
        assert_eq!((peers.behind(other, 9), peers.behind(to.ip(), 9)), (Some(to), None));
        peers.forget(|&path| path == 4);
        assert_eq!(peers.route(to, now), Ok((Route::Udp, Some(other))));
    }

    #[test]
    fn forged_headers_take_no_place_from_the_programs_peers() {
        let (mut peers, now, mine) = (Peers::<u8>::new(), Instant::now(), addr(0));
        peers.route(mine, now).unwrap();
        peers.heard(mine, qp(9, mine, now), false).unwrap();
        peers.found(&mine, mine.ip(), Ok(3), now);
        for last in 1..20_000 {
            peers.heard(addr(last), qp(9, addr(last), now), true).unwrap();
        }
        assert_eq!(peers.map.len(), 1 + MOST_HEARD);
        assert_eq!(peers.route(mine, now), Ok((Route::Ud(3, 9), None)));
        assert!(peers.map.contains_key(&addr(19_999)));
    }

    #[test]
    fn the_peer_used_longest_ago_goes_first() {
        let (mut peers, now) = (Peers::<u8>::new(), Instant::now());
        for last in 0..MOST_USED as u16 {
            peers.route(addr(last), now).unwrap();
        }
        peers.route(addr(0), now).unwrap();
        peers.route(addr(60_000), now).unwrap();
        assert_eq!(peers.map.len(), MOST_USED);
        assert!(peers.map.contains_key(&addr(0)) && !peers.map.contains_key(&addr(1)));
    }

    proptest! {
        /// Whatever happens: the counts hold, and UD only goes to a QP that the peer named.
        #[test]
        fn any_order(steps in proptest::collection::vec((0_u8..5, 0_u16..6, 2_u32..5), 0..60)) {
            let (mut peers, now) = (Peers::<IpAddr>::new(), Instant::now());
            let mut named = HashMap::new();
            for (what, who, number) in steps {
                let who = addr(who);
                match what {
                    0 => if let (Route::Ud(path, to), _) = peers.route(who, now).unwrap() {
                        prop_assert_eq!((Some(&to), path), (named.get(&who), who.ip()));
                    },
                    1 | 2 => {
                        let known = peers.map.contains_key(&who);
                        peers.heard(who, qp(number, who, now), what == 1).unwrap();
                        if known || what == 1 {
                            named.insert(who, number);
                        }
                    }
                    3 => peers.found(&who, who.ip(), Ok(who.ip()), now),
                    _ => peers.not_now(&who),
                }
                prop_assert_eq!(peers.used, peers.map.values().filter(|peer| peer.used).count());
            }
        }
    }
}
