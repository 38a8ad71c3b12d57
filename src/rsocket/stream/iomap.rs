//! Memory of the program that the peer may write to with riowrite(3).

use std::ffi::c_int;
use std::ptr::NonNull;

use super::connection::Connection;
use super::{Phase, State, Stream};
use crate::cm;
use crate::diag::Why;
use crate::errno::{Errno, Result};
use crate::rsocket::growth_budget;
use crate::rsocket::wire::{Mapping, Region};
use crate::sys::alloc::try_push;
use crate::sys::rc::MemoryRegion;

/// Credits that are kept for data when entries are taken back: a peer that does not read gives no
/// more.
const KEPT_CREDITS: u32 = 8;

/// What riomap(3) has registered.
#[derive(Default)]
pub(super) struct Mappings {
    list: Vec<Mapped>,
    /// Some of them may have to be advertised.
    has_news: bool,
}

struct Mapped {
    start: usize,
    len: usize,
    offset: u64,
    /// `None` once it is unmapped.
    memory: Option<MemoryRegion>,
    entry: Entry,
}

/// A mapping's entry in the peer's iomap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    /// The peer may not write to the memory.
    Local,
    /// Not advertised yet.
    Wanted,
    Written(u16),
    /// Still advertised, but not mapped any more.
    Stale(u16),
}

impl Mappings {
    pub fn clear(&mut self) {
        self.list.clear();
    }

    fn entries(&self) -> impl Iterator<Item = Entry> + Clone {
        self.list.iter().map(|mapped| mapped.entry)
    }
}

/// Where the next mapping that wants an entry goes in a table of `room` entries: its place and its
/// index, which may be a stale one's. What the program mapped before it was connected may be more
/// than there is room for.
fn next_wanted(entries: impl Iterator<Item = Entry> + Clone, room: u16) -> Option<(usize, u16)> {
    let place = entries.clone().position(|entry| entry == Entry::Wanted)?;
    let is_free = |index| entries.clone().all(|entry| entry != Entry::Written(index) && entry != Entry::Stale(index));
    let index =
        (0..room).find(|&index| is_free(index)).or_else(|| next_stale(entries.clone()).map(|(_, index)| index))?;
    Some((place, index))
}

/// The first stale entry: its place and its index.
fn next_stale(entries: impl Iterator<Item = Entry>) -> Option<(usize, u16)> {
    entries.enumerate().find_map(|(place, entry)| match entry {
        Entry::Stale(index) => Some((place, index)),
        _ => None,
    })
}

/// Whether a table of `room` entries has one for another mapping. Stale ones can be had.
fn has_room(entries: impl Iterator<Item = Entry>, room: u16) -> bool {
    entries.filter(|entry| matches!(entry, Entry::Wanted | Entry::Written(_))).count() < usize::from(room)
}

impl State {
    /// Returns whether the program has mapped memory.
    pub(super) fn has_mappings(&self) -> bool {
        !self.mappings.list.is_empty()
    }

    /// Returns whether mappings may have to be advertised before data is sent.
    pub(super) fn has_mapping_news(&self) -> bool {
        self.mappings.has_news
    }

    /// Advertises mappings before data is sent. Returns false if that has to wait. Fails with
    /// `ENOMEM` without a send buffer.
    pub(super) fn announce_mappings(&mut self) -> Result<bool> {
        if !self.mappings.has_news {
            return Ok(true);
        }
        let Some(connection) = &mut self.connection else { return Ok(true) };
        while let Some((place, index)) = next_wanted(self.mappings.entries(), connection.peer_iomap()) {
            if !self.mappings.write(place, index, connection)? {
                return Ok(false);
            }
        }
        // Data does not wait for these, and the last credits are kept for it.
        while let Some((place, index)) = next_stale(self.mappings.entries()) {
            if connection.credits() <= KEPT_CREDITS || !self.mappings.write(place, index, connection).unwrap_or(false) {
                return Ok(true);
            }
        }
        self.mappings.has_news = false;
        if self.mappings.entries().any(|entry| entry == Entry::Wanted)
            && let Some(id) = &self.id
        {
            cm::log::background(id.id(), Errno::ENOMEM, Why::NoEntry);
        }
        Ok(true)
    }
}

impl Mappings {
    /// Writes an entry of the peer's iomap. Returns false if that has to wait. A failure of the
    /// connection is kept in it.
    fn write(&mut self, place: usize, index: u16, connection: &mut Connection) -> Result<bool> {
        let Some(mapped) = self.list.get_mut(place) else { return Ok(true) };
        let region = match &mapped.memory {
            Some(memory) => Region { addr: mapped.start as u64, rkey: memory.rkey(), length: mapped.len as u32 },
            None => Region::default(),
        };
        match connection.advertise_mapping(index, Mapping { offset: mapped.offset, region }) {
            Ok(false) => return Ok(false),
            Err(error) if connection.failure().is_none() => return Err(error),
            Ok(true) | Err(_) => {}
        }
        if mapped.memory.is_some() {
            mapped.entry = Entry::Written(index);
        }
        // What was stale there is gone.
        self.list.retain(|mapped| mapped.entry != Entry::Stale(index));
        Ok(true)
    }
}

impl Stream {
    /// riomap(3): an `offset` of -1 stands for the address. Returns the offset.
    ///
    /// # Safety
    /// The memory stays mapped until riounmap(3) or rclose(3). The program answers for what the
    /// peer writes there.
    pub unsafe fn map(&self, start: NonNull<u8>, len: usize, prot: c_int, offset: i64) -> Result<i64> {
        let mut state = self.enter()?;
        if prot & !libc::PROT_WRITE != 0 || len == 0 || u32::try_from(len).is_err() {
            return Err(Errno::EINVAL);
        }
        let remote = prot & libc::PROT_WRITE != 0;
        if let (true, Phase::Connected, Some(connection)) = (remote, &state.phase, &state.connection)
            && !has_room(state.mappings.entries(), connection.peer_iomap())
        {
            return Err(Errno::ENOMEM);
        }
        let address = start.as_ptr() as usize;
        let offset = if offset == -1 { address as i64 } else { offset };
        // There is no device before the address is known.
        let domain = state.domain().map_err(|error| if error == Errno::ENODEV { Errno::EINVAL } else { error })?;
        let pd = domain.pd();
        // SAFETY: the PD is dropped after the mappings (`State::release`); the memory stays mapped:
        // guaranteed by the caller.
        let memory = growth_budget::with_memory(|| unsafe { MemoryRegion::of(pd, start, len, remote) })?;
        let entry = if remote { Entry::Wanted } else { Entry::Local };
        let mapped = Mapped { start: address, len, offset: offset as u64, memory: Some(memory), entry };
        try_push(&mut state.mappings.list, mapped)?;
        state.mappings.has_news |= remote;
        if matches!(state.phase, Phase::Connected) {
            // At once if there is space, else before the next data.
            self.announce(&mut state);
        }
        Ok(offset)
    }

    /// Advertises what can be advertised now.
    fn announce(&self, state: &mut State) {
        let _ = state.announce_mappings();
        if state.connection.as_ref().is_some_and(|connection| connection.failure().is_some()) {
            // Threads may wait for the connection.
            self.process_completions(state);
        }
    }

    /// riounmap(3). Fails with `EINVAL` unless riomap(3) was called with the same memory.
    pub fn unmap(&self, start: usize, len: usize) -> Result<()> {
        let mut state = self.enter()?;
        let named = |mapped: &Mapped| mapped.memory.is_some() && mapped.start == start && mapped.len == len;
        let place = state.mappings.list.iter().position(named).ok_or(Errno::EINVAL)?;
        let connected = matches!(state.phase, Phase::Connected);
        let mapped = &mut state.mappings.list[place];
        match mapped.entry {
            Entry::Written(index) if connected => {
                // The memory region is deregistered now, whatever the peer knows.
                mapped.memory = None;
                mapped.entry = Entry::Stale(index);
                state.mappings.has_news = true;
                self.announce(&mut state);
            }
            _ => drop(state.mappings.list.remove(place)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Entry::{Local, Stale, Wanted, Written};
    use super::*;

    fn next(entries: &[Entry], room: u16) -> Option<(usize, u16)> {
        next_wanted(entries.iter().copied(), room)
    }

    #[test]
    fn entries_are_taken_in_order() {
        assert_eq!(next(&[Wanted, Wanted], 4), Some((0, 0)));
        assert_eq!(next(&[Written(0), Local, Wanted], 4), Some((2, 1)));
        assert_eq!(next(&[Written(1), Wanted], 4), Some((1, 0)));
        assert_eq!(next(&[Written(0), Local], 4), None);
    }

    #[test]
    fn never_behind_the_table() {
        assert_eq!(next(&[Wanted], 0), None);
        assert_eq!(next(&[Written(0), Written(1), Wanted], 2), None);
        assert_eq!(next(&[Wanted, Written(0), Written(1)], 3), Some((0, 2)));
    }

    #[test]
    fn stale_entries_are_taken_last() {
        assert_eq!(next(&[Wanted, Written(0), Stale(1)], 3), Some((0, 2)));
        assert_eq!(next(&[Wanted, Written(0), Stale(1)], 2), Some((0, 1)));
        assert_eq!(next(&[Stale(0), Wanted], 1), Some((1, 0)));
        assert_eq!(next_stale([Wanted, Written(0), Stale(1)].into_iter()), Some((2, 1)));
        assert_eq!(next_stale([Wanted, Written(0)].into_iter()), None);
    }

    #[test]
    fn room_for_one_more() {
        let room = |entries: &[Entry], room| has_room(entries.iter().copied(), room);
        assert!(room(&[], 1) && room(&[Local, Local], 1) && room(&[Written(0), Stale(1)], 3));
        assert!(!room(&[], 0) && room(&[Stale(0)], 1) && !room(&[Wanted], 1) && !room(&[Written(0)], 1));
    }
}
