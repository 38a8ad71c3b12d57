//! Memory of the program that the peer may write to with riowrite().

use std::ffi::c_int;
use std::ptr::NonNull;

use super::link::Link;
use super::{Phase, State, Stream};
use crate::errno::{Errno, Result};
use crate::rsocket::wire::{Mapping, Region};
use crate::sys::alloc::try_push;
use crate::sys::rc::Registered;

/// What riomap() registered.
#[derive(Default)]
pub(super) struct Mappings(Vec<Mapped>);

struct Mapped {
    memory: Registered,
    start: usize,
    len: usize,
    offset: u64,
    /// The peer's entry, for memory that it may write to.
    index: Option<u16>,
    /// What the peer has to be told still.
    news: News,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum News {
    None,
    Mapped,
    Unmapped,
}

impl Mappings {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    fn free_index(&self, most: u16) -> Option<u16> {
        (0..most).find(|&index| self.0.iter().all(|mapped| mapped.index != Some(index)))
    }
}

impl State {
    /// Whether the program has mapped memory.
    pub(super) fn has_mappings(&self) -> bool {
        !self.mappings.0.is_empty()
    }

    /// Tells the peer of mappings before data goes; false when that has to wait. `ENOMEM` without memory to send from.
    pub(super) fn announce_mappings(&mut self) -> Result<bool> {
        let Some(link) = &mut self.link else { return Ok(true) };
        for mapped in &mut self.mappings.0 {
            if mapped.news != News::None && !mapped.announce(link)? {
                return Ok(false);
            }
        }
        self.mappings.0.retain(|mapped| mapped.len > 0);
        Ok(true)
    }
}

impl Mapped {
    /// Whether the program has not unmapped it.
    fn is_wanted(&self) -> bool {
        self.len > 0 && self.news != News::Unmapped
    }

    /// False when it has to wait; a failure of the connection shows in the link.
    fn announce(&mut self, link: &mut Link) -> Result<bool> {
        let Some(index) = self.index else { return Ok(true) };
        let region = match self.news {
            News::Unmapped => Region::default(),
            _ => Region { addr: self.start as u64, key: self.memory.rkey(), length: self.len as u32 },
        };
        match link.announce(index, Mapping { offset: self.offset, region }) {
            Ok(false) => Ok(false),
            Err(error) if link.failure().is_none() => Err(error),
            Ok(true) | Err(_) => {
                if self.news == News::Unmapped {
                    (self.index, self.len) = (None, 0);
                }
                self.news = News::None;
                Ok(true)
            }
        }
    }
}

impl Stream {
    /// riomap(3): `offset` -1 stands for the address. Returns the offset.
    ///
    /// # Safety
    /// The memory stays mapped until riounmap() or rclose(); what the peer writes there is the program's care.
    pub unsafe fn map(&self, start: NonNull<u8>, len: usize, prot: c_int, offset: i64) -> Result<i64> {
        let mut state = self.enter()?;
        if prot & !libc::PROT_WRITE != 0 || len == 0 || u32::try_from(len).is_err() {
            return Err(Errno::EINVAL);
        }
        let remote = prot & libc::PROT_WRITE != 0;
        let most = match (&state.phase, &state.link) {
            (Phase::Connected, Some(link)) => link.peer_mappings(),
            // How many the peer has room for shows later.
            _ => u16::MAX,
        };
        let index = match remote.then(|| state.mappings.free_index(most)) {
            Some(None) => return Err(Errno::ENOMEM),
            Some(index) => index,
            None => None,
        };
        let address = start.as_ptr() as usize;
        let offset = if offset == -1 { address as i64 } else { offset };
        // Before there is a device, its number is what is wrong.
        let domain = state.domain().map_err(|error| if error == Errno::ENODEV { Errno::EINVAL } else { error })?;
        let pd = domain.pd();
        // SAFETY: the PD goes after the mappings (`State::release`); the caller vouches for the memory.
        let memory = unsafe { Registered::of(pd, start, len, remote)? };
        let news = if remote { News::Mapped } else { News::None };
        let mapped = Mapped { memory, start: address, len, offset: offset as u64, index, news };
        try_push(&mut state.mappings.0, mapped)?;
        if matches!(state.phase, Phase::Connected) {
            // Now if there is room; otherwise before the next data.
            self.announce(&mut state);
        }
        Ok(offset)
    }

    /// Tells the peer what it can be told now.
    fn announce(&self, state: &mut State) {
        let _ = state.announce_mappings();
        if state.link.as_ref().is_some_and(|link| link.failure().is_some()) {
            // For those who wait for the connection.
            self.poll(state);
        }
    }

    /// riounmap(3): `EINVAL` unless riomap() was called with the same memory.
    pub fn unmap(&self, start: usize, len: usize) -> Result<()> {
        let mut state = self.enter()?;
        let found = state
            .mappings
            .0
            .iter()
            .position(|mapped| mapped.start == start && mapped.len == len && mapped.news != News::Unmapped);
        let place = found.ok_or(Errno::EINVAL)?;
        let connected = matches!(state.phase, Phase::Connected);
        let mapped = &mut state.mappings.0[place];
        if mapped.index.is_some() && mapped.news == News::None && connected {
            mapped.news = News::Unmapped;
            self.announce(&mut state);
            // The registration ends now, whatever the peer knows.
            state.mappings.0.retain(Mapped::is_wanted);
        } else {
            state.mappings.0.swap_remove(place);
        }
        Ok(())
    }
}
