//! The state machine of the port mapper: messages and the time go in, [`Action`]s come out. The
//! caller performs all actions before it passes in the next message, and answers each
//! [`Action::Open`] by [`Engine::opened`].

mod kernel;
mod listing;
mod peers;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use nix::syslog::Severity;

pub use self::kernel::Opening;
use self::listing::Listing;
use super::mappings::{Clients, Mappings, PortId};
use super::netlink::{self, Header, Value};
use super::requests::{PeerRequests, Queries};

/// The two UDP sockets of each address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// Bound to the port of port mappers: receives requests from peers.
    Service,
    /// Bound to any port: sends queries and receives their answers.
    Client,
}

/// An action for the caller to perform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a message to the kernel.
    Kernel(Vec<u8>),
    /// Resend a message to the kernel once everything that the kernel has sent was received.
    KernelRetry(Vec<u8>),
    /// Send a message to another host.
    Send {
        /// The socket to send from.
        socket: Socket,
        /// The source address; `None` for any.
        from: Option<IpAddr>,
        /// The destination.
        to: SocketAddr,
        /// The message.
        message: Vec<u8>,
    },
    /// Bind a port.
    Open(Opening),
    /// Release a port.
    Close(PortId),
    /// Write a line to the log.
    Log(Severity, String),
}

/// Statistics since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Requests from peers that were accepted.
    pub accepted: u64,
    /// Accepted requests that were not reported to the kernel because of the limits.
    pub not_reported: u64,
    /// Requests from peers that were rejected.
    pub rejected: u64,
    /// Queries that were answered.
    pub answered: u64,
    /// Queries that timed out.
    pub unanswered: u64,
    /// UDP datagrams that were invalid or unexpected.
    pub dropped: u64,
    /// Overruns of the netlink socket.
    pub overruns: u64,
}

/// The state machine of the port mapper.
pub struct Engine {
    actions: VecDeque<Action>,
    clients: Clients,
    mappings: Mappings,
    queries: Queries,
    peer_requests: PeerRequests,
    listing: Listing,
    counts: Counts,
    random: Box<dyn FnMut() -> u64>,
    pid: u32,
    version: u16,
    sequence: u32,
    last_port: u64,
}

/// Step between the sequence numbers of messages to the kernel. The kernel continues its own
/// numbering from the last number that it receives, and matches answers by number. The number of
/// each message is one step above all numbers seen, and the kernel uses fewer numbers than a step
/// between two messages. Therefore the kernel never uses a number twice.
const SEQUENCE_STEP: u32 = 256;

impl Engine {
    /// Returns a port mapper whose netlink port is `pid`. `random` returns unpredictable numbers.
    pub fn new(pid: u32, mut random: Box<dyn FnMut() -> u64>) -> Engine {
        let sequence = random() as u32;
        Engine {
            actions: VecDeque::new(),
            clients: Clients::default(),
            mappings: Mappings::default(),
            queries: Queries::default(),
            peer_requests: PeerRequests::default(),
            listing: Listing::default(),
            counts: Counts::default(),
            random,
            pid,
            version: netlink::VERSION,
            sequence,
            last_port: 0,
        }
    }

    /// Takes the next action from the queue; `None` if the queue is empty.
    pub fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns when to call [`Engine::timer`], in milliseconds of the same clock as the `now` of
    /// all calls. `None` if nothing has a deadline.
    pub fn deadline(&self) -> Option<u64> {
        [self.queries.deadline(), self.peer_requests.deadline(), self.listing.due].into_iter().flatten().min()
    }

    /// Does what is due at `now`: forgets expired requests of peers, resends queries or lets them
    /// time out, requests a list.
    pub fn timer(&mut self, now: u64) {
        self.peer_requests.forget(now);
        self.repeat_queries(now);
        self.list_if_due(now);
    }

    /// Returns the number of mappings.
    pub fn mappings(&self) -> usize {
        self.mappings.len()
    }

    /// Returns the statistics.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the lines of a dump of the state.
    pub fn dump(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{} mappings, {} questions under way, {} of others remembered; protocol {}",
            self.mappings.len(),
            self.queries.len(),
            self.peer_requests.len(),
            self.version
        )];
        lines.push(format!("since the start: {:?}", self.counts));
        lines.extend(self.clients.dump());
        let mut mappings: Vec<_> = self.mappings.iter().collect();
        mappings.sort_unstable_by_key(|mapping| mapping.id);
        let line = |(number, mapping): (usize, &super::mappings::Mapping)| {
            let bound = if mapping.bound { "" } else { ", not mapped" };
            let (local, mapped, references) = (mapping.local, mapping.mapped, mapping.references);
            format!("Mapping #{number}: local address {local}, mapped address {mapped}, references {references}{bound}")
        };
        lines.extend((1..).zip(mappings).map(line));
        lines
    }

    fn log(&mut self, severity: Severity, text: String) {
        self.actions.push_back(Action::Log(severity, text));
    }

    fn send_to_kernel(&mut self, client: u8, op: u16, values: &[Value<'_>]) {
        self.sequence = self.sequence.wrapping_add(SEQUENCE_STEP);
        let header = Header { client, op, seq: self.sequence };
        self.actions.push_back(Action::Kernel(netlink::emit(header, self.pid, values)));
    }
}

#[cfg(test)]
mod tests;
