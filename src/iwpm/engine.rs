//! What the port mapper does: messages and time go in, [`Action`]s come out. Whoever drives it performs all actions before
//! the next message goes in, and answers each [`Action::Open`] with [`Engine::opened`].

mod kernel;
mod listing;
mod peers;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use self::kernel::Opening;
use self::listing::Listing;
use super::clients::Clients;
use super::mappings::{Mappings, PortId};
use super::netlink::{self, Header, Value};
use super::requests::{Asked, Queries};
use super::wire;
use crate::errno::Errno;
use crate::sys::uapi::RDMA_NL_IWCM;

/// How much a line of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something does not work.
    Error,
    /// Something may not work.
    Warning,
    /// Someone may want to know.
    Info,
}

/// Which of the UDP sockets of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// That at the port of all port mappers: questions of others.
    Service,
    /// That of our own questions.
    Client,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this to the kernel.
    Kernel(Vec<u8>),
    /// Send this to the kernel once more, when nothing that it has sent is left to be received.
    KernelAgain(Vec<u8>),
    /// Send this to another host.
    Send {
        /// By which socket.
        socket: Socket,
        /// From which of our addresses; `None` for any.
        from: Option<IpAddr>,
        /// Where to.
        to: SocketAddr,
        /// The message.
        message: wire::Bytes,
    },
    /// Keep a port.
    Open {
        /// Its name from now on.
        id: PortId,
        /// For this address.
        local: SocketAddr,
        /// Exactly this port; any if 0.
        port: u16,
    },
    /// Keep a port no longer.
    Close(PortId),
    /// Tell who reads the log.
    Log(Level, String),
}

/// What has happened since the start; for people.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Questions of others that were answered with a port.
    pub accepted: u64,
    /// Of these, that the kernel was not told of, as it had been of too many.
    pub not_reported: u64,
    /// Questions of others that were answered with none.
    pub rejected: u64,
    /// Questions of ours that were answered.
    pub answered: u64,
    /// Questions of ours that nobody answered.
    pub unanswered: u64,
    /// UDP messages that were none, or came from someone who was not asked.
    pub dropped: u64,
    /// Overruns of the netlink socket.
    pub overruns: u64,
}

/// The port mapper.
pub struct Engine {
    actions: VecDeque<Action>,
    clients: Clients,
    mappings: Mappings,
    opening: HashMap<PortId, Opening>,
    queries: Queries,
    asked: Asked,
    listing: Listing,
    counts: Counts,
    random: Box<dyn FnMut() -> u64>,
    pid: u32,
    version: u16,
    sequence: u32,
    last_port: u64,
}

/// The kernel counts on from the sequence numbers that it gets from us, and knows its own questions by theirs. Ours are
/// ahead of all that we have seen, by more than it may have sent meanwhile, so that it does not use one twice.
const AHEAD: u32 = 256;

impl Engine {
    /// A port mapper that the kernel knows as `pid`. `random`: numbers that nobody can guess.
    pub fn new(pid: u32, mut random: Box<dyn FnMut() -> u64>) -> Engine {
        let sequence = random() as u32;
        Engine {
            actions: VecDeque::new(),
            clients: Clients::default(),
            mappings: Mappings::default(),
            opening: HashMap::new(),
            queries: Queries::default(),
            asked: Asked::default(),
            listing: Listing::default(),
            counts: Counts::default(),
            random,
            pid,
            version: netlink::VERSION,
            sequence,
            last_port: 0,
        }
    }

    /// The next thing to do.
    pub fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Engine::timer`] wants to be called, in milliseconds of the clock that all calls are told the time of.
    pub fn deadline(&self) -> Option<u64> {
        [self.queries.deadline(), self.asked.deadline(), self.listing.deadline()].into_iter().flatten().min()
    }

    /// It is `now`.
    pub fn timer(&mut self, now: u64) {
        self.asked.forget(now);
        self.repeat_queries(now);
        self.list_if_due(now);
    }

    /// The answer to [`Action::Open`]: the port, or why there is none.
    pub fn opened(&mut self, id: PortId, port: Result<u16, Errno>, now: u64) {
        if let Some(opening) = self.opening.remove(&id) {
            self.finish(id, opening, port, now);
        }
    }

    /// How many mappings there are.
    pub fn mappings(&self) -> usize {
        self.mappings.len()
    }

    /// What has happened.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What there is, in lines for people.
    pub fn dump(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{} mappings, {} questions under way, {} of others remembered; protocol {}",
            self.mappings.len(),
            self.queries.len(),
            self.asked.len(),
            self.version
        )];
        lines.push(format!("since the start: {:?}", self.counts));
        lines.extend(self.clients.dump());
        let mut mappings: Vec<_> = self.mappings.iter().collect();
        mappings.sort_unstable_by_key(|mapping| mapping.id);
        let line = |(number, mapping): (usize, &super::mappings::Mapping)| {
            let kept = if mapping.kept { "" } else { ", not mapped" };
            let (local, mapped, references) = (mapping.local, mapping.mapped, mapping.references);
            format!("Mapping #{number}: local address {local}, mapped address {mapped}, references {references}{kept}")
        };
        lines.extend((1..).zip(mappings).map(line));
        lines
    }

    fn log(&mut self, level: Level, text: String) {
        self.actions.push_back(Action::Log(level, text));
    }

    fn tell_kernel(&mut self, client: u8, op: u32, values: &[Value<'_>]) {
        self.sequence = self.sequence.wrapping_add(AHEAD);
        let header = Header { client, op: op as u16, seq: self.sequence };
        self.actions.push_back(Action::Kernel(netlink::emit(header, self.pid, values)));
    }

    fn next_port(&mut self) -> PortId {
        self.last_port += 1;
        PortId(self.last_port)
    }
}

/// The client that all drivers share; before version 4 of the protocol the next one was a driver's.
const IWCM: u8 = RDMA_NL_IWCM as u8;

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
