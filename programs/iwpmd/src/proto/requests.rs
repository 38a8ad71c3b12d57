//! Requests in progress: those of this daemon to other hosts (*queries*), and those of peers.
//!
//! A query is resent every second and times out after ten seconds. Requests from peers are
//! remembered so that each is reported to the kernel once. The kernel keeps a report (REMOTE_INFO,
//! about 400 bytes) until its connection arrives, forever if no connection arrives, and does not
//! tell which reports it has used. Because source addresses can be forged, the number of reports in
//! [`PEER_REQUEST_LIFETIME_MS`] is limited, in total and for each host. Each request is answered by
//! one message that is no larger than the request, and nothing is sent unsolicited, so the answers
//! cannot be used to flood a third party.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use super::mappings::{Mapping, PortId, key};
use super::netlink::Header;
use super::wire::{Kind, Message, PORT};

/// Milliseconds after which a query is resent.
pub const RESEND_INTERVAL_MS: u64 = 1000;
/// Milliseconds after which a query times out.
pub const QUERY_TIMEOUT_MS: u64 = 10_000;
/// Milliseconds for which a peer's request is remembered.
pub const PEER_REQUEST_LIFETIME_MS: u64 = 600_000;
/// Maximum number of queries in progress.
pub const MAX_QUERIES: usize = 1 << 16;
/// Maximum number of peers' requests that are remembered and reported to the kernel.
pub const MAX_PEER_REQUESTS: usize = 1 << 13;
/// Maximum number of one host's requests that are remembered and reported to the kernel.
pub const MAX_PEER_REQUESTS_PER_HOST: u32 = 1 << 10;

/// A request to another host on behalf of the kernel.
#[derive(Clone, Debug)]
pub struct Query {
    /// Header of the kernel's request.
    pub header: Header,
    /// The connecting peer's address.
    pub local: SocketAddr,
    /// The local address that `local` is mapped to.
    pub mapped: SocketAddr,
    /// ID of the mapping, and the mapping's `removals` when the query started.
    pub mapping: (PortId, u32),
    /// The accepting peer's address.
    pub remote: SocketAddr,
    /// The message that is sent to the other host.
    pub message: Message,
    /// Whether an answer has arrived. An answered query is not resent, but repeated accepts are
    /// acknowledged until the query times out.
    pub answered: bool,
    started: u64,
}

impl Query {
    /// Returns a query that starts `now`.
    pub fn new(header: Header, mapping: &Mapping, remote: SocketAddr, now: u64) -> Query {
        let (local, mapped) = (mapping.local, mapping.mapped);
        let message = Message {
            kind: Kind::Request,
            handle: 0,
            cp: key(&local),
            ap: key(&remote),
            mapped_cp: Some(key(&mapped)),
        };
        let mapping = (mapping.id, mapping.removals);
        Query { header, local, mapped, mapping, remote, message, answered: false, started: now }
    }

    /// Returns the destination. A link-local address without a scope gets the scope of `local`.
    pub fn to(&self) -> SocketAddr {
        let mut to = self.remote;
        to.set_port(PORT);
        if let (SocketAddr::V6(to), SocketAddr::V6(local)) = (&mut to, &self.local)
            && to.ip().is_unicast_link_local()
            && to.scope_id() == 0
        {
            to.set_scope_id(local.scope_id());
        }
        to
    }

    /// Returns whether `answer` comes from the queried host's port mapper and repeats the query's
    /// connecting address.
    fn is_answered_by(&self, from: SocketAddr, answer: &Message) -> bool {
        from.port() == PORT && from.ip() == self.remote.ip() && answer.cp == self.message.cp
    }
}

/// What to do about a query that is due.
#[derive(Debug)]
pub enum Due {
    /// The query is to be sent again.
    Resend(SocketAddr, Message),
    /// The query has timed out.
    TimedOut(Box<Query>),
}

/// Queries in progress.
#[derive(Default)]
pub struct Queries {
    by_handle: HashMap<u64, Query>,
    /// Due times with handles, in order, because all intervals are equal.
    times: VecDeque<(u64, u64)>,
}

impl Queries {
    /// Returns the number of queries.
    pub fn len(&self) -> usize {
        self.by_handle.len()
    }

    /// Adds a query under an unpredictable handle. Returns the message to send, or `None` if there
    /// are too many queries.
    pub fn add(&mut self, mut query: Query, random: &mut dyn FnMut() -> u64) -> Option<Message> {
        if self.by_handle.len() >= MAX_QUERIES {
            return None;
        }
        let mut handle = random();
        while handle == 0 || self.by_handle.contains_key(&handle) {
            handle = handle.wrapping_add(random() | 1);
        }
        query.message.handle = handle;
        self.times.push_back((query.started + RESEND_INTERVAL_MS, handle));
        let message = query.message;
        self.by_handle.insert(handle, query);
        Some(message)
    }

    /// Returns the query to which `answer` from `from` belongs.
    pub fn answered_by(&mut self, from: SocketAddr, answer: &Message) -> Option<&mut Query> {
        self.by_handle.get_mut(&answer.handle).filter(|query| query.is_answered_by(from, answer))
    }

    /// Returns when [`due`](Self::due) has to be called next; `None` if there are no queries.
    pub fn deadline(&self) -> Option<u64> {
        self.times.front().map(|&(time, _)| time)
    }

    /// Returns the next query that is due `now`, or `None` if no more queries are due.
    pub fn due(&mut self, now: u64) -> Option<Due> {
        while let Some(&(_, handle)) = self.times.front().filter(|(time, _)| *time <= now) {
            self.times.pop_front();
            let Some(query) = self.by_handle.get(&handle) else { continue };
            if now >= query.started + QUERY_TIMEOUT_MS {
                match self.by_handle.remove(&handle).filter(|query| !query.answered) {
                    Some(query) => return Some(Due::TimedOut(Box::new(query))),
                    None => continue,
                }
            }
            // The next interval starts now: after a suspend, the query is sent once, not once for
            // each missed interval.
            self.times.push_back((now + RESEND_INTERVAL_MS, handle));
            if !query.answered {
                return Some(Due::Resend(query.to(), query.message));
            }
        }
        None
    }
}

/// The outcome of [`PeerRequests::record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// A new request, to be reported to the kernel.
    New,
    /// A request that was reported before.
    Known,
    /// A new request beyond the limits, which is not reported. The connection is still made, but
    /// the kernel shows the peer's mapped address instead of the peer's own address.
    TooMany,
}

/// Requests from peers that were reported to the kernel.
#[derive(Default)]
pub struct PeerRequests {
    known: HashSet<(SocketAddr, Message)>,
    by_host: HashMap<IpAddr, u32>,
    ends: VecDeque<(u64, SocketAddr, Message)>,
}

impl PeerRequests {
    /// Records a request unless it is known or beyond the limits.
    pub fn record(&mut self, from: SocketAddr, message: &Message, now: u64) -> Recorded {
        self.forget(now);
        if self.known.contains(&(from, *message)) {
            return Recorded::Known;
        }
        let host = host(from.ip());
        let of_host = self.by_host.get(&host).copied().unwrap_or(0);
        if self.known.len() >= MAX_PEER_REQUESTS || of_host >= MAX_PEER_REQUESTS_PER_HOST {
            return Recorded::TooMany;
        }
        self.by_host.insert(host, of_host + 1);
        self.known.insert((from, *message));
        self.ends.push_back((now + PEER_REQUEST_LIFETIME_MS, from, *message));
        Recorded::New
    }

    /// Returns the number of remembered requests.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns when [`forget`](Self::forget) has to be called next; `None` if no requests are
    /// remembered.
    pub fn deadline(&self) -> Option<u64> {
        self.ends.front().map(|&(end, ..)| end)
    }

    /// Forgets expired requests.
    pub fn forget(&mut self, now: u64) {
        while let Some(&(_, from, message)) = self.ends.front().filter(|&&(end, ..)| end <= now) {
            self.ends.pop_front();
            self.known.remove(&(from, message));
            let host = host(from.ip());
            if let Some(of_host) = self.by_host.get_mut(&host) {
                *of_host -= 1;
                if *of_host == 0 {
                    self.by_host.remove(&host);
                }
            }
        }
    }
}

/// Returns the address by which a host is counted: for IPv6 its /64 network, in which one host can
/// use every address. Each link-local address counts as a host, because all hosts of a link share
/// one network.
fn host(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) if !v6.is_unicast_link_local() => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
        other => other,
    }
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
