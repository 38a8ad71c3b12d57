//! What the kernel asks for.

use std::net::SocketAddr;

use super::{Action, Engine, IWCM, Level};
use crate::errno::{Errno, Result};
use crate::iwpm::mappings::{Mapping, PortId, key};
use crate::iwpm::netlink::{Code, Header, Incoming, LIBRARY, Said, VERSION, VERSION_MIN, Value, is_hello};
use crate::iwpm::requests::Query;
use crate::sys::uapi::*;

const NO_PORT_MAP: u32 = IWPM_FLAGS_NO_PORT_MAP;

/// A port that is about to be opened, and what for.
pub(super) struct Opening {
    header: Header,
    local: SocketAddr,
    flags: u32,
    purpose: Purpose,
}

#[derive(Clone, Copy)]
enum Purpose {
    Add,
    Query(SocketAddr),
    Restore,
}

impl Engine {
    /// Greets the kernel: it answers with the version to speak.
    pub fn start(&mut self) {
        // What goes before all others has number 0.
        let header = Header { client: IWCM, op: RDMA_NL_IWPM_HELLO as u16, seq: 0 };
        let hello = crate::iwpm::netlink::emit(header, self.pid, &[Value::U16(VERSION)]);
        self.actions.push_back(Action::Kernel(hello));
    }

    /// A message of the kernel.
    pub fn kernel(&mut self, incoming: Incoming<'_>, now: u64) {
        match incoming {
            Incoming::Said(header, said) => {
                self.keep_ahead(header.seq);
                self.said(header, said, now);
            }
            Incoming::Malformed(header) => {
                self.keep_ahead(header.seq);
                self.log(Level::Warning, format!("a message of the kernel cannot be read: operation {}", header.op));
                // Only these are waited for.
                let waits = [RDMA_NL_IWPM_REG_PID, RDMA_NL_IWPM_ADD_MAPPING, RDMA_NL_IWPM_QUERY_MAPPING];
                if waits.contains(&u32::from(header.op)) {
                    self.error(header, Code::InvalidMessage);
                }
            }
            Incoming::Failed { errno, message } => self.failed(errno, message, now),
        }
    }

    fn keep_ahead(&mut self, seen: u32) {
        if (seen.wrapping_sub(self.sequence) as i32) > 0 {
            self.sequence = seen;
        }
    }

    fn said(&mut self, header: Header, said: Said, now: u64) {
        match said {
            Said::Hello(version) => self.hello(header, version, now),
            Said::Register { interface, device, library } => self.register(header, &interface, &device, &library),
            Said::Add { local, flags } => self.add(header, local, flags, now),
            Said::Query { local, remote, flags } => self.query(header, local, remote, flags, now),
            Said::Remove(local) => self.remove(header, local),
            Said::MapInfo { local, mapped, flags } => self.restore(header, local, mapped, flags, now),
            Said::MapInfoNumber(sent) => self.listed(header, sent),
            Said::Error(code) => self.log(Level::Warning, format!("the kernel reports error {code}")),
        }
    }

    fn hello(&mut self, header: Header, version: u16, now: u64) {
        if !(VERSION_MIN..=VERSION).contains(&version) {
            self.log(Level::Error, format!("the kernel speaks version {version} of the protocol, this is {VERSION}"));
            return self.error(header, Code::Version);
        }
        self.version = version;
        self.list(now);
    }

    fn failed(&mut self, errno: i32, message: &[u8], now: u64) {
        if errno == libc::EBUSY {
            // The kernel does one thing at a time for each socket, and was not done with the one before.
            self.actions.push_back(Action::KernelAgain(message.to_vec()));
        } else if is_hello(message) {
            self.log(Level::Info, format!("the kernel does not know greetings: version {VERSION_MIN} of the protocol"));
            self.version = VERSION_MIN;
            self.list(now);
        } else {
            self.log(Level::Info, format!("the kernel refuses a message: {}", Errno::new(errno)));
        }
    }

    fn register(&mut self, header: Header, interface: &[u8], device: &[u8], library: &[u8]) {
        match self.clients.register(header.client, library, device, interface) {
            Ok(()) => {
                let values = [
                    Value::U32(header.seq),
                    Value::Text(device),
                    Value::Text(LIBRARY),
                    Value::U16(self.version),
                    Value::U16(0),
                ];
                self.tell_kernel(header.client, RDMA_NL_IWPM_REG_PID, &values);
            }
            Err(code) => self.error(header, code),
        }
    }

    fn add(&mut self, header: Header, local: SocketAddr, flags: u32, now: u64) {
        if !self.clients.knows(header.client) {
            return self.refuse(header, local, Code::ClientDevice);
        }
        if self.mappings.overlapping(key(&local)).is_none() {
            return self.open(Opening { header, local, flags, purpose: Purpose::Add }, 0, now);
        }
        // Listeners at all addresses come once for each device.
        let shared = self.mappings.get_mut(key(&local)).filter(|mapping| mapping.is_wildcard());
        match shared.filter(|mapping| fits(mapping, header, flags)) {
            Some(mapping) => {
                mapping.references += 1;
                mapping.touched = now;
                let mapped = mapping.mapped;
                self.added(header, local, mapped);
            }
            None => self.refuse(header, local, Code::DuplicateMapping),
        }
    }

    fn added(&mut self, header: Header, local: SocketAddr, mapped: SocketAddr) {
        let values = [Value::U32(header.seq), Value::Address(local), Value::Address(mapped), Value::U16(0)];
        self.tell_kernel(header.client, RDMA_NL_IWPM_ADD_MAPPING, &values);
    }

    fn query(&mut self, header: Header, local: SocketAddr, remote: SocketAddr, flags: u32, now: u64) {
        if !self.clients.knows(header.client) {
            return self.refuse(header, local, Code::ClientDevice);
        }
        if local.is_ipv4() != remote.is_ipv4() {
            return self.refuse(header, local, Code::InvalidMessage);
        }
        let overlapping = self.mappings.overlapping(key(&local));
        if local.ip().is_unspecified() || overlapping.is_some_and(Mapping::is_wildcard) {
            return self.refuse(header, local, Code::CreateMapping);
        }
        match self.mappings.get_mut(key(&local)) {
            Some(mapping) if fits(mapping, header, flags) => {
                mapping.references += 1;
                mapping.touched = now;
                let query = Query::new(header, mapping, remote, now);
                self.ask(query);
            }
            Some(_) => self.refuse(header, local, Code::DuplicateMapping),
            None => self.open(Opening { header, local, flags, purpose: Purpose::Query(remote) }, 0, now),
        }
    }

    fn remove(&mut self, header: Header, local: SocketAddr) {
        let mapping = self.mappings.get_mut(key(&local)).filter(|mapping| mapping.owner == header.client);
        let Some(mapping) = mapping else { return };
        mapping.removals = mapping.removals.wrapping_add(1);
        if mapping.owed > 0 {
            mapping.owed -= 1;
            return;
        }
        mapping.references -= 1;
        if mapping.references == 0 {
            self.drop_mapping(local);
        }
    }

    /// Nobody answered a query: what it had of its mapping goes. The kernel of version 4 removes it itself in the end, so
    /// that only the last reference is taken, and only if the kernel has not been there in the meantime.
    pub(super) fn release(&mut self, query: &Query) {
        let mapping = self.mappings.get_mut(key(&query.local));
        let Some(mapping) = mapping.filter(|mapping| query.mapping == (mapping.id, mapping.removals)) else { return };
        if mapping.references == 1 {
            self.drop_mapping(query.local);
        } else if self.version == VERSION_MIN {
            mapping.references -= 1;
        }
    }

    /// Takes a mapping away and closes its port.
    pub(super) fn drop_mapping(&mut self, local: SocketAddr) {
        if let Some(mapping) = self.mappings.remove(key(&local))
            && mapping.kept
        {
            self.actions.push_back(Action::Close(mapping.id));
        }
    }

    fn restore(&mut self, header: Header, local: SocketAddr, mapped: SocketAddr, flags: u32, now: u64) {
        self.listing.heard(header.client);
        let known = self.mappings.get_mut(key(&local)).filter(|mapping| mapping.mapped == mapped);
        if let Some(mapping) = known.filter(|mapping| fits(mapping, header, flags)) {
            self.listing.found(mapping);
            return self.listing.processed(header.client);
        }
        if self.mappings.overlapping(key(&local)).is_some() || local.ip() != mapped.ip() {
            self.log(
                Level::Warning,
                format!("{local} cannot be mapped to {mapped} again: it overlaps another mapping"),
            );
            return self.error(header, Code::DuplicateMapping);
        }
        self.open(Opening { header, local, flags, purpose: Purpose::Restore }, mapped.port(), now);
    }

    /// Opens a port, unless the device wants the address as it is.
    fn open(&mut self, opening: Opening, port: u16, now: u64) {
        let id = self.next_port();
        if opening.flags & NO_PORT_MAP != 0 {
            let port = opening.local.port();
            return self.finish(id, opening, Ok(port), now);
        }
        self.actions.push_back(Action::Open { id, local: opening.local, port });
        self.opening.insert(id, opening);
    }

    pub(super) fn finish(&mut self, id: PortId, opening: Opening, port: Result<u16>, now: u64) {
        let Opening { header, local, flags, purpose } = opening;
        let kept = flags & NO_PORT_MAP == 0;
        let port = match port {
            Ok(port) => port,
            Err(error) => {
                self.log(Level::Error, format!("no port can be had for {local}: {error}"));
                return self.refuse(header, local, Code::CreateMapping);
            }
        };
        let mut mapped = local;
        mapped.set_port(port);
        let (owner, touched, listed) = (header.client, now, self.listing.first(matches!(purpose, Purpose::Restore)));
        let mapping =
            Mapping { local, mapped, owner, flags, id, kept, references: 1, owed: 0, removals: 0, touched, listed };
        if self.mappings.overlapping(key(&local)).is_some() || !self.mappings.insert(mapping.clone()) {
            if kept {
                self.actions.push_back(Action::Close(id));
            }
            return self.refuse(header, local, Code::DuplicateMapping);
        }
        match purpose {
            Purpose::Add => self.added(header, local, mapped),
            Purpose::Query(remote) => self.ask(Query::new(header, &mapping, remote, now)),
            Purpose::Restore => self.listing.processed(header.client),
        }
    }

    /// Refuses a request. The kernel of version 4 will remove all the same what it did not get.
    pub(super) fn refuse(&mut self, header: Header, local: SocketAddr, code: Code) {
        let waits = u32::from(header.op) != RDMA_NL_IWPM_MAPINFO;
        if let Some(mapping) = self.mappings.get_mut(key(&local))
            && mapping.owner == header.client
            && self.version > VERSION_MIN
            && waits
        {
            mapping.owed += 1;
        }
        self.error(header, code);
    }

    pub(super) fn error(&mut self, header: Header, code: Code) {
        let values = [Value::U32(header.seq), Value::U16(code as u16)];
        self.tell_kernel(header.client, RDMA_NL_IWPM_HANDLE_ERR, &values);
    }
}

/// Whether a request can share this mapping.
fn fits(mapping: &Mapping, header: Header, flags: u32) -> bool {
    mapping.owner == header.client && (mapping.flags ^ flags) & NO_PORT_MAP == 0
}
