//! The kernel lists its mappings when it is asked to: at the start, so that the ports of an earlier port mapper are kept, and
//! after messages were lost, so that we learn what they would have told.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::{Engine, IWCM, Level};
use crate::iwpm::mappings::Mapping;
use crate::iwpm::netlink::{Header, LIBRARY, VERSION_MIN, Value};
use crate::sys::uapi::{RDMA_NL_IWPM_MAPINFO, RDMA_NL_IWPM_MAPINFO_NUM};

/// Milliseconds between two lists: a list that is lost, too, must not be asked for without end.
const BETWEEN: u64 = 1000;
/// Milliseconds for which the kernel may not list what it was given: a thread may not have come to that yet.
const GRACE: u64 = 15_000;

/// What came of a client since it was asked for its list.
#[derive(Clone, Copy, Default)]
struct Progress {
    heard: u32,
    processed: u32,
}

/// The list that is under way.
#[derive(Default)]
pub(super) struct Listing {
    round: u32,
    begun: u64,
    /// A list is to be asked for then.
    wanted: Option<u64>,
    clients: HashMap<u8, Progress>,
}

impl Listing {
    pub(super) fn deadline(&self) -> Option<u64> {
        self.wanted
    }

    /// The kernel has listed something.
    pub(super) fn heard(&mut self, client: u8) {
        self.clients.entry(client).or_default().heard += 1;
    }

    /// It is mapped.
    pub(super) fn processed(&mut self, client: u8) {
        self.clients.entry(client).or_default().processed += 1;
    }

    /// What is listed is known already. It is listed once for each connection and listener that uses it.
    pub(super) fn found(&self, mapping: &mut Mapping) {
        let times = if mapping.listed.0 == self.round { mapping.listed.1 + 1 } else { 1 };
        mapping.listed = (self.round, times);
        mapping.references = mapping.references.max(times);
    }

    /// For a new mapping, which the kernel has listed or not.
    pub(super) fn first(&self, listed: bool) -> (u32, u32) {
        (self.round, u32::from(listed))
    }
}

impl Engine {
    /// Asks for the list.
    pub(super) fn list(&mut self, now: u64) {
        let listing = &mut self.listing;
        listing.round += 1;
        listing.begun = now;
        listing.wanted = None;
        listing.clients.clear();
        let values = [Value::Text(LIBRARY), Value::U16(self.version)];
        self.tell_kernel(IWCM, RDMA_NL_IWPM_MAPINFO, &values);
        if self.version == VERSION_MIN {
            self.tell_kernel(IWCM + 1, RDMA_NL_IWPM_MAPINFO, &values);
        }
    }

    /// Messages of the kernel were lost.
    pub fn overrun(&mut self, now: u64) {
        self.counts.overruns += 1;
        if self.listing.wanted.is_none() {
            self.listing.wanted = Some(now.max(self.listing.begun + BETWEEN));
            self.log(Level::Warning, "messages of the kernel were lost: it is asked for its mappings again".into());
        }
        self.list_if_due(now);
    }

    pub(super) fn list_if_due(&mut self, now: u64) {
        if self.listing.wanted.is_some_and(|time| time <= now) {
            self.list(now);
        }
    }

    /// The end of a client's list, which had `sent` entries.
    pub(super) fn listed(&mut self, header: Header, sent: u32) {
        let progress = self.listing.clients.remove(&header.client).unwrap_or_default();
        let values = [Value::U32(header.seq), Value::U32(sent), Value::U32(progress.processed)];
        self.tell_kernel(header.client, RDMA_NL_IWPM_MAPINFO_NUM, &values);
        if progress.heard == sent {
            self.believe_list(header.client);
        }
    }

    /// A complete list shows which mappings the kernel does not use any more.
    fn believe_list(&mut self, client: u8) {
        let (round, before) = (self.listing.round, self.listing.begun.saturating_sub(GRACE));
        let settled = |mapping: &&mut Mapping| mapping.owner == client && mapping.touched < before;
        let mut gone: Vec<SocketAddr> = Vec::new();
        for mapping in self.mappings.iter_mut().filter(settled) {
            if mapping.listed.0 == round {
                mapping.references = mapping.listed.1;
            } else {
                gone.push(mapping.local);
            }
        }
        for local in gone {
            self.drop_mapping(local);
        }
    }
}
