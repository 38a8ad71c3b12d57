//! Lists of the kernel's mappings. They are requested at the start, to restore the ports of an
//! earlier port mapper, and after an overrun, to learn what the lost messages said.

use std::collections::HashMap;
use std::net::SocketAddr;

use nix::syslog::Severity::LOG_WARNING;

use super::Engine;
use crate::proto::mappings::Mapping;
use crate::proto::netlink::{Header, LIBRARY, VERSION_MIN, Value};
use crate::proto::uapi::{RDMA_NL_IWCM, RDMA_NL_IWPM_MAPINFO, RDMA_NL_IWPM_MAPINFO_NUM};

/// Minimum time between two lists in milliseconds, because a list can cause an overrun itself.
const MIN_INTERVAL_MS: u64 = 1000;
/// Milliseconds for which a new mapping may be missing in the kernel's list: a thread in the kernel
/// may not have recorded it yet.
const GRACE_PERIOD_MS: u64 = 15_000;

/// Counts of the mappings in a client's list.
#[derive(Clone, Copy, Default)]
pub(super) struct Progress {
    /// Mappings that the kernel has listed.
    pub(super) received: u32,
    /// Listed mappings that were restored or are known.
    pub(super) processed: u32,
}

/// The list in progress.
#[derive(Default)]
pub(super) struct Listing {
    /// Number of the list.
    pub(super) round: u32,
    started: u64,
    /// When to request the next list; `None` if no list is needed.
    pub(super) due: Option<u64>,
    clients: HashMap<u8, Progress>,
}

impl Listing {
    /// Returns the counts of a client's list.
    pub(super) fn progress(&mut self, client: u8) -> &mut Progress {
        self.clients.entry(client).or_default()
    }

    /// Handles the listing of a known mapping. The kernel lists a mapping once for each connection
    /// and listener that uses it.
    pub(super) fn matched(&self, mapping: &mut Mapping) {
        let times = if mapping.listed.0 == self.round { mapping.listed.1 + 1 } else { 1 };
        mapping.listed = (self.round, times);
        mapping.references = mapping.references.max(times);
    }
}

impl Engine {
    /// Requests a list from the kernel.
    pub(super) fn list(&mut self, now: u64) {
        let listing = &mut self.listing;
        listing.round += 1;
        listing.started = now;
        listing.due = None;
        listing.clients.clear();
        let values = [Value::Text(LIBRARY), Value::U16(self.version)];
        self.send_to_kernel(RDMA_NL_IWCM, RDMA_NL_IWPM_MAPINFO, &values);
        if self.version == VERSION_MIN {
            // Before version 4, RDMA_NL_IWCM + 1 was the client number of another driver.
            self.send_to_kernel(RDMA_NL_IWCM + 1, RDMA_NL_IWPM_MAPINFO, &values);
        }
    }

    /// Handles the loss of messages from the kernel.
    pub fn overrun(&mut self, now: u64) {
        self.counts.overruns += 1;
        if self.listing.due.is_none() {
            self.listing.due = Some(now.max(self.listing.started + MIN_INTERVAL_MS));
            self.log(LOG_WARNING, "messages of the kernel were lost: it is asked for its mappings again".into());
        }
        self.list_if_due(now);
    }

    pub(super) fn list_if_due(&mut self, now: u64) {
        if self.listing.due.is_some_and(|time| time <= now) {
            self.list(now);
        }
    }

    /// Handles the end of a client's list, which had `sent` entries.
    pub(super) fn listed(&mut self, header: Header, sent: u32) {
        let progress = self.listing.clients.remove(&header.client).unwrap_or_default();
        let values = [Value::U32(header.seq), Value::U32(sent), Value::U32(progress.processed)];
        self.send_to_kernel(header.client, RDMA_NL_IWPM_MAPINFO_NUM, &values);
        if progress.received == sent {
            self.apply_list(header.client);
        }
    }

    /// Drops the client's mappings that are missing in a complete list, and corrects the references
    /// of its other mappings. Mappings used later than [`GRACE_PERIOD_MS`] before the list are left
    /// alone.
    fn apply_list(&mut self, client: u8) {
        let (round, before) = (self.listing.round, self.listing.started.saturating_sub(GRACE_PERIOD_MS));
        let settled = |mapping: &&mut Mapping| mapping.owner == client && mapping.last_used < before;
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
