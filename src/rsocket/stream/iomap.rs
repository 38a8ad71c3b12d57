//! Memory of the program that the peer may write to with riowrite(3).

use std::ffi::c_int;
use std::ptr::NonNull;

use super::connection::Connection;
use super::{Life, State, Stream};
use crate::cm;
use crate::diag::Cause;
use crate::errno::{Errno, Result};
use crate::os::alloc::try_push;
use crate::rsocket::pinned_budget;
use crate::rsocket::wire::{Mapping, Region};
use crate::verbs::rc::MemoryRegion;

/// Number of credits that are left for data when entries are withdrawn: a peer that does not read
/// grants no more credits.
const RESERVED_CREDITS: u32 = 8;

/// Memory that riomap(3) has registered.
#[derive(Default)]
pub(super) struct Mappings {
    pub list: Vec<Mapped>,
    /// Some mappings may have to be advertised or withdrawn before data is sent.
    pub pending: bool,
}

pub(super) struct Mapped {
    start: usize,
    len: usize,
    offset: u64,
    /// `None` after riounmap(3).
    memory: Option<MemoryRegion>,
    entry: Entry,
}

/// A mapping's entry in the peer's iomap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    /// No entry: the peer may not write to the memory.
    Local,
    /// Not advertised yet.
    Wanted,
    /// Advertised in the entry with this index.
    Written(u16),
    /// Not mapped any more, but still advertised in this entry.
    Stale(u16),
}

impl Mappings {
    fn entries(&self) -> impl Iterator<Item = Entry> + Clone {
        self.list.iter().map(|mapped| mapped.entry)
    }
}

/// Returns the position of the next mapping that wants an entry, and the index of an entry for it
/// in an iomap of `capacity` entries. Returns `None` if there is no such mapping, or no free entry:
/// before it was connected, the program may have mapped more memory than the iomap has entries for.
/// Prefers the first stale entry: this saves the message that would withdraw the entry, and no
/// stale entry precedes the new one (of several entries for an offset, the peer uses the first).
fn next_wanted(entries: impl Iterator<Item = Entry> + Clone, capacity: u16) -> Option<(usize, u16)> {
    let position = entries.clone().position(|entry| entry == Entry::Wanted)?;
    let is_free = |index| entries.clone().all(|entry| entry != Entry::Written(index));
    let stale = entries.clone().filter_map(|entry| if let Entry::Stale(index) = entry { Some(index) } else { None });
    let index = stale.min().or_else(|| (0..capacity).find(|&index| is_free(index)))?;
    Some((position, index))
}

/// Returns the position of the first mapping with a stale entry, and the entry's index.
fn next_stale(entries: impl Iterator<Item = Entry>) -> Option<(usize, u16)> {
    entries.enumerate().find_map(|(position, entry)| match entry {
        Entry::Stale(index) => Some((position, index)),
        _ => None,
    })
}

/// Returns whether an iomap of `capacity` entries has a free entry for another mapping. Stale
/// entries count as free.
fn has_free_entry(entries: impl Iterator<Item = Entry>, capacity: u16) -> bool {
    entries.filter(|entry| matches!(entry, Entry::Wanted | Entry::Written(_))).count() < usize::from(capacity)
}

impl State {
    /// Advertises mappings before data is sent. Returns false if the caller has to wait for credits
    /// or space. A failure is recorded in the connection.
    pub(super) fn advertise_mappings(&mut self) -> bool {
        if !self.mappings.pending {
            return true;
        }
        let Some(connection) = self.life.connection_mut() else { return true };
        while let Some((position, index)) = next_wanted(self.mappings.entries(), connection.peer.iomap_size) {
            if !self.mappings.write(position, index, connection) {
                return false;
            }
        }
        // Data does not wait until entries are withdrawn, and the last credits are reserved for
        // data.
        while let Some((position, index)) = next_stale(self.mappings.entries()) {
            if connection.credits() <= RESERVED_CREDITS || !self.mappings.write(position, index, connection) {
                return true;
            }
        }
        self.mappings.pending = false;
        if self.mappings.entries().any(|entry| entry == Entry::Wanted)
            && let Some(id) = &self.id
        {
            cm::log::background(id.id(), Errno::ENOMEM, Cause::NoEntry);
        }
        true
    }
}

impl Mappings {
    /// Writes the mapping at `position` into entry `index` of the peer's iomap. Returns false if
    /// the caller has to wait for credits or space. A failure is recorded in the connection.
    fn write(&mut self, position: usize, index: u16, connection: &mut Connection) -> bool {
        let Some(mapped) = self.list.get_mut(position) else { return true };
        let region = match &mapped.memory {
            Some(memory) => Region { addr: mapped.start as u64, rkey: memory.rkey(), length: mapped.len as u32 },
            None => Region::default(),
        };
        if connection.advertise_mapping(index, Mapping { offset: mapped.offset, region }) == Ok(false) {
            return false;
        }
        if mapped.memory.is_some() {
            mapped.entry = Entry::Written(index);
        }
        // The entry is not stale any more.
        self.list.retain(|mapped| mapped.entry != Entry::Stale(index));
        true
    }
}

impl Stream {
    /// riomap(3): with an `offset` of -1 the address is the offset. Returns the offset.
    ///
    /// # Safety
    /// The memory stays mapped until riounmap(3) or rclose(3), and the program expects that the
    /// peer writes there.
    pub unsafe fn map(&self, start: NonNull<u8>, len: usize, prot: c_int, offset: i64) -> Result<i64> {
        let mut state = self.enter()?;
        if prot & !libc::PROT_WRITE != 0 || len == 0 || u32::try_from(len).is_err() {
            return Err(Errno::EINVAL);
        }
        let remote = prot & libc::PROT_WRITE != 0;
        if let (true, Life::Open(connection)) = (remote, &state.life)
            && !connection.ends.over
            && !has_free_entry(state.mappings.entries(), connection.peer.iomap_size)
        {
            return Err(Errno::ENOMEM);
        }
        let address = start.as_ptr() as usize;
        let offset = if offset == -1 { address as i64 } else { offset };
        // An id without an address has no device yet.
        let domain = state.domain().map_err(|error| if error == Errno::ENODEV { Errno::EINVAL } else { error })?;
        let pd = domain.pd();
        // SAFETY: the PD is dropped after the mappings (`State`); the memory stays mapped:
        // guaranteed by the caller.
        let memory = pinned_budget::with_memory(|| unsafe { MemoryRegion::of(pd, start, len, remote) })?;
        let entry = if remote { Entry::Wanted } else { Entry::Local };
        let mapped = Mapped { start: address, len, offset: offset as u64, memory: Some(memory), entry };
        try_push(&mut state.mappings.list, mapped)?;
        // Advertise the mapping only before the next data: a peer with rdma-core never gives back
        // the credit that the message takes.
        state.mappings.pending |= remote;
        Ok(offset)
    }

    /// riounmap(3). Fails with `EINVAL` unless riomap(3) has mapped the same memory.
    pub fn unmap(&self, start: usize, len: usize) -> Result<()> {
        let mut state = self.enter()?;
        let is_same = |mapped: &Mapped| mapped.memory.is_some() && mapped.start == start && mapped.len == len;
        let position = state.mappings.list.iter().position(is_same).ok_or(Errno::EINVAL)?;
        let connected = state.life.is_connected();
        let mapped = &mut state.mappings.list[position];
        match mapped.entry {
            Entry::Written(index) if connected => {
                // Deregister the memory region now, before the peer is notified.
                mapped.memory = None;
                mapped.entry = Entry::Stale(index);
                state.mappings.pending = true;
            }
            _ => drop(state.mappings.list.remove(position)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Entry::{Local, Stale, Wanted, Written};
    use super::*;

    fn next(entries: &[Entry], capacity: u16) -> Option<(usize, u16)> {
        next_wanted(entries.iter().copied(), capacity)
    }

    #[test]
    fn entries_are_taken_in_order() {
        assert_eq!(next(&[Wanted, Wanted], 4), Some((0, 0)));
        assert_eq!(next(&[Written(0), Local, Wanted], 4), Some((2, 1)));
        assert_eq!(next(&[Written(1), Wanted], 4), Some((1, 0)));
        assert_eq!(next(&[Written(0), Local], 4), None);
    }

    #[test]
    fn no_entry_beyond_the_iomap() {
        assert_eq!(next(&[Wanted], 0), None);
        assert_eq!(next(&[Written(0), Written(1), Wanted], 2), None);
        assert_eq!(next(&[Wanted, Written(0), Written(1)], 3), Some((0, 2)));
    }

    #[test]
    fn the_first_stale_entry_is_taken() {
        assert_eq!(next(&[Wanted, Written(0), Stale(1)], 3), Some((0, 1)));
        assert_eq!(next(&[Stale(2), Written(0), Stale(1), Wanted], 4), Some((3, 1)));
        assert_eq!(next(&[Stale(0), Wanted], 1), Some((1, 0)));
        assert_eq!(next_stale([Wanted, Written(0), Stale(1)].into_iter()), Some((2, 1)));
        assert_eq!(next_stale([Wanted, Written(0)].into_iter()), None);
    }

    #[test]
    fn only_wanted_and_written_entries_are_in_use() {
        let free = |entries: &[Entry], capacity| has_free_entry(entries.iter().copied(), capacity);
        assert!(free(&[], 1) && free(&[Local, Local], 1) && free(&[Written(0), Stale(1)], 3));
        assert!(!free(&[], 0) && free(&[Stale(0)], 1) && !free(&[Wanted], 1) && !free(&[Written(0)], 1));
    }
}
