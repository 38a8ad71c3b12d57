//! Requests from the kernel.

use std::net::SocketAddr;

use super::{Action, Engine};
use crate::proto::mappings::{Mapping, PortId, key};
use crate::proto::netlink::{
    ErrorCode, Header, Incoming, KernelMessage, LIBRARY, VERSION, VERSION_MIN, Value, is_hello,
};
use crate::proto::requests::Query;
use crate::proto::uapi::*;
use nix::Result;
use nix::errno::Errno;
use nix::syslog::Severity::{LOG_ERR, LOG_INFO, LOG_WARNING};

/// A port to be bound, and the kernel's request that needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// ID of the mapping that needs the port.
    pub id: PortId,
    /// The address to be mapped.
    pub local: SocketAddr,
    /// The port to bind; 0 for any.
    pub port: u16,
    header: Header,
    /// Whether the mapping needs a bound port; false if the device uses the address unmapped.
    bound: bool,
    purpose: Purpose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Add,
    Query(SocketAddr),
    Restore,
}

impl Engine {
    /// Sends `HELLO` to the kernel, which answers with its protocol version.
    pub fn start(&mut self) {
        // The first message has sequence number 0.
        let header = Header { client: RDMA_NL_IWCM, op: RDMA_NL_IWPM_HELLO, seq: 0 };
        let hello = crate::proto::netlink::emit(header, self.pid, &[Value::U16(VERSION)]);
        self.actions.push_back(Action::Kernel(hello));
    }

    /// Handles a message from the kernel.
    pub fn kernel(&mut self, incoming: Incoming<'_>, now: u64) {
        match incoming {
            Incoming::Message(header, message) => {
                self.note_sequence(header.seq);
                self.handle(header, message, now);
            }
            Incoming::Malformed(header) => {
                self.note_sequence(header.seq);
                self.log(LOG_WARNING, format!("a message of the kernel cannot be read: operation {}", header.op));
                // The kernel waits for answers to these requests only.
                let answered = [RDMA_NL_IWPM_REG_PID, RDMA_NL_IWPM_ADD_MAPPING, RDMA_NL_IWPM_QUERY_MAPPING];
                if answered.contains(&header.op) {
                    self.error(header, ErrorCode::InvalidMessage);
                }
            }
            Incoming::Failed { errno, message } => self.failed(errno, message, now),
        }
    }

    fn note_sequence(&mut self, seen: u32) {
        if (seen.wrapping_sub(self.sequence) as i32) > 0 {
            self.sequence = seen;
        }
    }

    fn handle(&mut self, header: Header, message: KernelMessage, now: u64) {
        match message {
            KernelMessage::Hello(version) => self.hello(header, version, now),
            KernelMessage::Register { interface, device, library } => {
                self.register(header, &interface, &device, &library)
            }
            KernelMessage::Add { local, flags } => self.add(header, local, flags, now),
            KernelMessage::Query { local, remote, flags } => self.query(header, local, remote, flags, now),
            KernelMessage::Remove(local) => self.remove(header, local),
            KernelMessage::MapInfo { local, mapped, flags } => self.restore(header, local, mapped, flags, now),
            KernelMessage::MapInfoNumber(sent) => self.listed(header, sent),
            KernelMessage::Error(code) => self.log(LOG_WARNING, format!("the kernel reports error {code}")),
        }
    }

    fn hello(&mut self, header: Header, version: u16, now: u64) {
        if !(VERSION_MIN..=VERSION).contains(&version) {
            self.log(LOG_ERR, format!("the kernel speaks version {version} of the protocol, this is {VERSION}"));
            return self.error(header, ErrorCode::Version);
        }
        self.version = version;
        self.list(now);
    }

    fn failed(&mut self, errno: i32, message: &[u8], now: u64) {
        if errno == libc::EBUSY {
            // The kernel handles one request of a socket at a time, and had not finished the
            // previous one.
            self.actions.push_back(Action::KernelRetry(message.to_vec()));
        } else if is_hello(message) {
            self.log(LOG_INFO, format!("the kernel does not know greetings: version {VERSION_MIN} of the protocol"));
            self.version = VERSION_MIN;
            self.list(now);
        } else {
            self.log(LOG_INFO, format!("the kernel refuses a message: {}", Errno::from_raw(errno)));
        }
    }

    fn register(&mut self, header: Header, interface: &[u8], device: &[u8], library: &[u8]) {
        if let Err(code) = self.clients.register(header.client, library, device, interface) {
            return self.error(header, code);
        }
        let (seq, version) = (Value::U32(header.seq), Value::U16(self.version));
        let values = [seq, Value::Text(device), Value::Text(LIBRARY), version, Value::U16(0)];
        self.send_to_kernel(header.client, RDMA_NL_IWPM_REG_PID, &values);
    }

    fn add(&mut self, header: Header, local: SocketAddr, flags: u32, now: u64) {
        if !self.clients.knows(header.client) {
            return self.refuse(header, local, ErrorCode::ClientDevice);
        }
        if self.mappings.overlapping(key(&local)).is_none() {
            return self.open(header, local, flags, 0, Purpose::Add, now);
        }
        // The kernel requests the mapping of a wildcard listener once for each device.
        let shared = self.mappings.get_mut(key(&local)).filter(|mapping| mapping.is_wildcard());
        match shared.filter(|mapping| fits(mapping, header, flags)) {
            Some(mapping) => {
                mapping.references += 1;
                mapping.last_used = now;
                let mapped = mapping.mapped;
                self.added(header, local, mapped);
            }
            None => self.refuse(header, local, ErrorCode::DuplicateMapping),
        }
    }

    fn added(&mut self, header: Header, local: SocketAddr, mapped: SocketAddr) {
        let values = [Value::U32(header.seq), Value::Address(local), Value::Address(mapped), Value::U16(0)];
        self.send_to_kernel(header.client, RDMA_NL_IWPM_ADD_MAPPING, &values);
    }

    fn query(&mut self, header: Header, local: SocketAddr, remote: SocketAddr, flags: u32, now: u64) {
        if !self.clients.knows(header.client) {
            return self.refuse(header, local, ErrorCode::ClientDevice);
        }
        if local.is_ipv4() != remote.is_ipv4() {
            return self.refuse(header, local, ErrorCode::InvalidMessage);
        }
        let overlapping = self.mappings.overlapping(key(&local));
        if local.ip().is_unspecified() || overlapping.is_some_and(Mapping::is_wildcard) {
            return self.refuse(header, local, ErrorCode::CreateMapping);
        }
        match self.mappings.get_mut(key(&local)) {
            Some(mapping) if fits(mapping, header, flags) => {
                mapping.references += 1;
                mapping.last_used = now;
                let query = Query::new(header, mapping, remote, now);
                self.ask(query);
            }
            Some(_) => self.refuse(header, local, ErrorCode::DuplicateMapping),
            None => self.open(header, local, flags, 0, Purpose::Query(remote), now),
        }
    }

    fn remove(&mut self, header: Header, local: SocketAddr) {
        let mapping = self.mappings.get_mut(key(&local)).filter(|mapping| mapping.owner == header.client);
        let Some(mapping) = mapping else { return };
        mapping.removals = mapping.removals.wrapping_add(1);
        if mapping.surplus_removals > 0 {
            mapping.surplus_removals -= 1;
            return;
        }
        mapping.references -= 1;
        if mapping.references == 0 {
            self.drop_mapping(local);
        }
    }

    /// Drops the reference that a failed query has to its mapping, unless the kernel has sent a
    /// removal since the query started. A kernel of version 4 sends a removal later, so for such a
    /// kernel only the last reference is dropped here.
    pub(super) fn release(&mut self, query: &Query) {
        let mapping = self.mappings.get_mut(key(&query.local));
        let Some(mapping) = mapping.filter(|mapping| query.mapping == (mapping.id, mapping.removals)) else { return };
        if mapping.references == 1 {
            self.drop_mapping(query.local);
        } else if self.version == VERSION_MIN {
            mapping.references -= 1;
        }
    }

    /// Removes a mapping and closes its port.
    pub(super) fn drop_mapping(&mut self, local: SocketAddr) {
        if let Some(mapping) = self.mappings.remove(key(&local))
            && mapping.bound
        {
            self.actions.push_back(Action::Close(mapping.id));
        }
    }

    fn restore(&mut self, header: Header, local: SocketAddr, mapped: SocketAddr, flags: u32, now: u64) {
        self.listing.progress(header.client).received += 1;
        let known = self.mappings.get_mut(key(&local));
        if let Some(mapping) = known.filter(|mapping| mapping.mapped == mapped && fits(mapping, header, flags)) {
            self.listing.matched(mapping);
            self.listing.progress(header.client).processed += 1;
            return;
        }
        if self.mappings.overlapping(key(&local)).is_some() || local.ip() != mapped.ip() {
            self.log(LOG_WARNING, format!("{local} cannot be mapped to {mapped} again: it overlaps another mapping"));
            return self.error(header, ErrorCode::DuplicateMapping);
        }
        self.open(header, local, flags, mapped.port(), Purpose::Restore, now);
    }

    /// Requests a port for a mapping: `port`, or any port if `port` is 0. If the device uses the
    /// address unmapped, adds the mapping at once.
    fn open(&mut self, header: Header, local: SocketAddr, flags: u32, port: u16, purpose: Purpose, now: u64) {
        self.last_port += 1;
        let bound = needs_port(flags);
        let opening = Opening { id: PortId(self.last_port), local, port, header, bound, purpose };
        if bound {
            self.actions.push_back(Action::Open(opening));
        } else {
            self.opened(opening, Ok(local.port()), now);
        }
    }

    /// Handles the result of [`Action::Open`]: `port` was bound, or binding has failed.
    pub fn opened(&mut self, opening: Opening, port: Result<u16>, now: u64) {
        let Opening { id, local, header, bound, purpose, .. } = opening;
        let mut mapped = local;
        match port {
            Ok(port) => mapped.set_port(port),
            Err(error) => {
                self.log(LOG_ERR, format!("no port can be had for {local}: {error}"));
                return self.refuse(header, local, ErrorCode::CreateMapping);
            }
        }
        let mapping = Mapping {
            local,
            mapped,
            owner: header.client,
            id,
            bound,
            references: 1,
            surplus_removals: 0,
            removals: 0,
            last_used: now,
            listed: (self.listing.round, u32::from(matches!(purpose, Purpose::Restore))),
        };
        self.mappings.insert(mapping.clone());
        match purpose {
            Purpose::Add => self.added(header, local, mapped),
            Purpose::Query(remote) => self.ask(Query::new(header, &mapping, remote, now)),
            Purpose::Restore => self.listing.progress(header.client).processed += 1,
        }
    }

    /// Rejects a request. A kernel of version 4 still sends a removal of the mapping that was
    /// refused: an existing mapping of the address must ignore this removal.
    pub(super) fn refuse(&mut self, header: Header, local: SocketAddr, code: ErrorCode) {
        if let Some(mapping) = self.mappings.get_mut(key(&local))
            && mapping.owner == header.client
            && self.version > VERSION_MIN
            // The kernel does not wait for an answer to MAPINFO, so a refusal causes no removal.
            && header.op != RDMA_NL_IWPM_MAPINFO
        {
            mapping.surplus_removals += 1;
        }
        self.error(header, code);
    }

    pub(super) fn error(&mut self, header: Header, code: ErrorCode) {
        let values = [Value::U32(header.seq), Value::U16(code as u16)];
        self.send_to_kernel(header.client, RDMA_NL_IWPM_HANDLE_ERR, &values);
    }
}

/// Returns whether a request with these flags needs a port.
fn needs_port(flags: u32) -> bool {
    flags & IWPM_FLAGS_NO_PORT_MAP == 0
}

/// Returns whether a request can share this mapping.
fn fits(mapping: &Mapping, header: Header, flags: u32) -> bool {
    mapping.owner == header.client && mapping.bound == needs_port(flags)
}
