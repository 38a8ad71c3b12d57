//! Questions that are under way: ours to other hosts (*queries*), and theirs to us.
//!
//! A query is sent again each second for ten seconds. What others ask is remembered so that the
//! kernel is told once. The kernel keeps each report (REMOTE_INFO, some 400 bytes) until the
//! connection comes, for ever if none does, and does not say which it has used. As anyone may ask
//! in anyone's name, so many reports are made in [`REMEMBERED`] and no more: in all, and because of
//! one host. A question is answered each time it comes, with a smaller message than its own and
//! never on our own account, so that nobody can be flooded with our answers.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use super::mappings::{Mapping, PortId, key};
use super::netlink::Header;
use super::wire::{Kind, Message, PORT};

/// Milliseconds after which a query is sent again.
pub const AGAIN: u64 = 1000;
/// Milliseconds after which a query has failed.
pub const LIFE: u64 = 10_000;
/// Milliseconds after which a peer's question is forgotten.
pub const REMEMBERED: u64 = 600_000;
/// Queries at a time.
pub const MOST_QUERIES: usize = 1 << 16;
/// Questions of others that are remembered, and which the kernel is told of: in all.
pub const MAX_ASKED: usize = 1 << 13;
/// The same of one host.
pub const MAX_ASKED_BY_HOST: u32 = 1 << 10;

/// A question to another host, for the kernel.
#[derive(Clone, Debug)]
pub struct Query {
    /// What the kernel asked with.
    pub header: Header,
    /// The connecting peer's address.
    pub local: SocketAddr,
    /// What that is mapped to here.
    pub mapped: SocketAddr,
    /// By which mapping, and how many removals that had seen.
    pub mapping: (PortId, u32),
    /// The accepting peer's address.
    pub remote: SocketAddr,
    /// As it is sent.
    pub message: Message,
    /// Sent again until answered; the answer may come again until the query's life ends.
    pub answered: bool,
    born: u64,
}

impl Query {
    /// A query that begins `now`.
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
        Query { header, local, mapped, mapping, remote, message, answered: false, born: now }
    }

    /// Where it is sent. A link-local address is that of the link our own address is on, if it does not say so itself.
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

    /// Whether `from` is who was asked, and `answer` is about what was asked.
    fn is_answered_by(&self, from: SocketAddr, answer: &Message) -> bool {
        from.port() == PORT && from.ip() == self.remote.ip() && answer.cp == self.message.cp
    }
}

/// What is to be done about a query whose time has come.
#[derive(Debug)]
pub enum Due {
    /// Send it again.
    Again(SocketAddr, Message),
    /// Nobody answered.
    Failed(Box<Query>),
}

/// The queries.
#[derive(Default)]
pub struct Queries {
    by_handle: HashMap<u64, Query>,
    /// When which is looked at; all after the same time, so that the first is always in front.
    times: VecDeque<(u64, u64)>,
}

impl Queries {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_handle.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_handle.is_empty()
    }

    /// Adds one under a number that nobody can guess; what to send, or `None` when there are too many.
    pub fn add(&mut self, mut query: Query, random: &mut dyn FnMut() -> u64) -> Option<Message> {
        if self.by_handle.len() >= MOST_QUERIES {
            return None;
        }
        let mut handle = random();
        while handle == 0 || self.by_handle.contains_key(&handle) {
            handle = handle.wrapping_add(random() | 1);
        }
        query.message.handle = handle;
        self.times.push_back((query.born + AGAIN, handle));
        let message = query.message;
        self.by_handle.insert(handle, query);
        Some(message)
    }

    /// The query that `answer` from `from` answers.
    pub fn answered_by(&mut self, from: SocketAddr, answer: &Message) -> Option<&mut Query> {
        self.by_handle.get_mut(&answer.handle).filter(|query| query.is_answered_by(from, answer))
    }

    /// When [`due`](Self::due) next has something.
    pub fn deadline(&self) -> Option<u64> {
        self.times.front().map(|&(time, _)| time)
    }

    /// What is due `now`, one after the other.
    pub fn due(&mut self, now: u64) -> Option<Due> {
        while let Some(&(time, handle)) = self.times.front() {
            if time > now {
                return None;
            }
            self.times.pop_front();
            let Some(query) = self.by_handle.get(&handle) else { continue };
            if now >= query.born + LIFE {
                let query = self.by_handle.remove(&handle).filter(|query| !query.answered);
                self.shrink();
                match query {
                    Some(query) => return Some(Due::Failed(Box::new(query))),
                    None => continue,
                }
            }
            // From now on, not from when it should have been: after a long sleep each is sent once, not ten times.
            self.times.push_back((now + AGAIN, handle));
            if !query.answered {
                return Some(Due::Again(query.to(), query.message));
            }
        }
        None
    }

    fn shrink(&mut self) {
        if self.by_handle.is_empty() {
            *self = Queries::default();
        }
    }
}

/// What a question of another host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// New: the kernel is to be told.
    New,
    /// The kernel was told.
    Known,
    /// New, but there are too many: the kernel is not told. The connection is made all the same,
    /// and shows the peer's mapped address instead of its own.
    TooMany,
}

/// Questions of others that the kernel has been told of.
#[derive(Default)]
pub struct Asked {
    known: HashSet<(SocketAddr, Message)>,
    by_host: HashMap<IpAddr, u32>,
    ends: VecDeque<(u64, SocketAddr, Message)>,
}

impl Asked {
    /// Takes a question, and remembers it if the kernel is to be told.
    pub fn take(&mut self, from: SocketAddr, message: &Message, now: u64) -> Asking {
        self.forget(now);
        if self.known.contains(&(from, *message)) {
            return Asking::Known;
        }
        let host = host(from.ip());
        let of_host = self.by_host.get(&host).copied().unwrap_or(0);
        if self.known.len() >= MAX_ASKED || of_host >= MAX_ASKED_BY_HOST {
            return Asking::TooMany;
        }
        self.by_host.insert(host, of_host + 1);
        self.known.insert((from, *message));
        self.ends.push_back((now + REMEMBERED, from, *message));
        Asking::New
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// When [`forget`](Self::forget) next has something to do.
    pub fn deadline(&self) -> Option<u64> {
        self.ends.front().map(|&(end, ..)| end)
    }

    /// Forgets what is old.
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
        if self.known.is_empty() && self.known.capacity() > 0 {
            *self = Asked::default();
        }
    }
}

/// What counts as one host: of IPv6 the 64 bits of a network, all addresses in which may be one
/// host's. On a link those are all hosts'.
fn host(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) if !v6.is_unicast_link_local() => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
        other => other,
    }
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
