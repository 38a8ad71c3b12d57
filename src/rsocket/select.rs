//! rselect: select(2) over rsockets and other descriptors together, by rpoll.

use std::ffi::{c_int, c_short, c_ulong};
use std::time::Duration;

use libc::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDBAND, POLLRDNORM, POLLWRBAND, POLLWRNORM, pollfd,
    timeval,
};

use super::few::Few;
use super::poll::poll_until;
use super::watch::Lookup;
use crate::errno::{Errno, Result};
use crate::sys::event::Deadline;

/// A set of descriptors is an array of these (`__fd_mask` of sys/select.h).
pub type Word = c_ulong;

const BITS: usize = Word::BITS as usize;
const FEW: usize = 32;

// What the kernel counts as what (fs/select.c), and asks for.
const READ: c_short = POLLIN | POLLRDNORM | POLLRDBAND;
const WRITE: c_short = POLLOUT | POLLWRNORM | POLLWRBAND;
const EXCEPT: c_short = POLLPRI;
const READABLE: c_short = READ | POLLHUP | POLLERR;
const WRITABLE: c_short = WRITE | POLLERR;

/// How many words a set for `nfds` descriptors has.
pub fn words(nfds: usize) -> usize {
    nfds.div_ceil(BITS)
}

/// The sets of a call, each of [`words`] words where there is one. They may be larger than FD_SETSIZE.
#[derive(Default)]
pub struct Sets<'a> {
    /// To be tested for reading.
    pub read: Option<&'a mut [Word]>,
    /// To be tested for writing.
    pub write: Option<&'a mut [Word]>,
    /// To be tested for urgent data, which rsockets never have.
    pub except: Option<&'a mut [Word]>,
}

/// select(2). The time-out, if there is one, becomes the time left. On failure the sets stay as they are; `EBADF` also
/// when an rsocket in them is closed meanwhile.
pub fn select(lookup: &dyn Lookup, nfds: c_int, sets: &mut Sets<'_>, timeout: Option<&mut timeval>) -> Result<c_int> {
    let nfds = usize::try_from(nfds).map_err(|_| Errno::EINVAL)?;
    let deadline = Deadline::after(timeout.as_deref().map(duration).transpose()?);
    let result = select_until(lookup, nfds, sets, deadline);
    if let (Some(timeout), Some(left)) = (timeout, deadline.left()) {
        timeout.tv_sec = libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX);
        timeout.tv_usec = left.subsec_micros().into();
    }
    result
}

fn duration(time: &timeval) -> Result<Duration> {
    let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::EINVAL)?;
    let micros = u64::try_from(time.tv_usec).map_err(|_| Errno::EINVAL)?;
    Ok(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
}

fn select_until(lookup: &dyn Lookup, nfds: usize, sets: &mut Sets<'_>, deadline: Deadline) -> Result<c_int> {
    let mut fds = Few::<pollfd, FEW>::new();
    sets.list(nfds, |fd, events| fds.push(pollfd { fd, events, revents: 0 }))?;
    loop {
        let ready = match poll_until(lookup, fds.as_mut_slice(), deadline) {
            // Too many to be open all.
            Err(Errno::EINVAL) => Err(Errno::EBADF),
            result => result,
        }?;
        let mut told = 0;
        for fd in fds.as_mut_slice().iter_mut().filter(|fd| fd.revents != 0) {
            if fd.revents & POLLNVAL != 0 {
                return Err(Errno::EBADF);
            }
            fd.revents = seen(lookup, fd);
            told += fd.revents.count_ones();
            // Told of POLLHUP or POLLERR though nothing was asked that they count as: poll would tell so again at once.
            if fd.revents == 0 {
                fd.fd = !fd.fd;
            }
        }
        if told > 0 || ready == 0 || deadline.passed() {
            sets.store(fds.as_slice());
            return Ok(c_int::try_from(told).unwrap_or(c_int::MAX));
        }
    }
}

/// What poll told of `fd`, as one bit for each set it is in: POLLIN, POLLOUT, POLLPRI.
fn seen(lookup: &dyn Lookup, fd: &pollfd) -> c_short {
    let mut seen = fd.revents & EXCEPT & fd.events;
    if fd.events & READ != 0 && fd.revents & READABLE != 0 {
        seen |= POLLIN;
    }
    // Writing to an rsocket without a peer fails at once.
    let hung_up = || fd.revents & POLLHUP != 0 && lookup.find(fd.fd).is_some();
    if fd.events & WRITE != 0 && (fd.revents & WRITABLE != 0 || hung_up()) {
        seen |= POLLOUT;
    }
    seen
}

impl Sets<'_> {
    /// The descriptors below `nfds` that are in one of the sets, and what to poll them for.
    fn list(&self, nfds: usize, mut add: impl FnMut(c_int, c_short) -> Result<()>) -> Result<()> {
        let word = |set: &Option<&mut [Word]>, place| set.as_ref().and_then(|set| set.get(place).copied()).unwrap_or(0);
        for place in 0..words(nfds) {
            let (read, write, except) = (word(&self.read, place), word(&self.write, place), word(&self.except, place));
            let mut any = read | write | except;
            while any != 0 {
                let bit = any.trailing_zeros() as usize;
                any &= any - 1;
                let fd = place * BITS + bit;
                if fd < nfds {
                    let asked = |set: Word, events| if set >> bit & 1 != 0 { events } else { 0 };
                    // `nfds` was an int.
                    add(fd as c_int, asked(read, READ) | asked(write, WRITE) | asked(except, EXCEPT))?;
                }
            }
        }
        Ok(())
    }

    /// Leaves in the sets those of which [`seen`] says so.
    fn store(&mut self, fds: &[pollfd]) {
        for (set, bit) in [(&mut self.read, POLLIN), (&mut self.write, POLLOUT), (&mut self.except, POLLPRI)] {
            let Some(set) = set else { continue };
            set.fill(0);
            for fd in fds.iter().filter(|fd| fd.revents & bit != 0) {
                let fd = fd.fd as usize;
                if let Some(word) = set.get_mut(fd / BITS) {
                    *word |= 1 << (fd % BITS);
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "select_tests.rs"]
mod tests;
