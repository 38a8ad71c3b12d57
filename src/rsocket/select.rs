//! rselect: select(2) for rsockets and other descriptors, built on rpoll.

use std::ffi::{c_int, c_short, c_ulong};
use std::time::Duration;

use libc::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDBAND, POLLRDNORM, POLLWRBAND, POLLWRNORM, pollfd,
    timeval,
};

use super::poll::{INLINE_FDS, wait_for_all};
use super::pollable::Lookup;
use crate::errno::{Errno, Result};
use crate::os::alloc::{SmallList, try_push_small};
use crate::os::event::Deadline;

/// A set of descriptors is an array of these words (`__fd_mask` in sys/select.h).
pub type Word = c_ulong;

const BITS: usize = Word::BITS as usize;

// The events that the kernel polls for in each set, and the results that count for the set
// (fs/select.c).
const READ: c_short = POLLIN | POLLRDNORM | POLLRDBAND;
const WRITE: c_short = POLLOUT | POLLWRNORM | POLLWRBAND;
const EXCEPT: c_short = POLLPRI;
const READABLE: c_short = READ | POLLHUP | POLLERR;
const WRITABLE: c_short = WRITE | POLLERR;

/// Returns the number of words in a set for `nfds` descriptors.
pub fn words(nfds: usize) -> usize {
    nfds.div_ceil(BITS)
}

/// The sets of a call, each of [`words`] words if present. They may be larger than FD_SETSIZE.
#[derive(Default)]
pub struct Sets<'a> {
    /// Tested for reading.
    pub read: Option<&'a mut [Word]>,
    /// Tested for writing.
    pub write: Option<&'a mut [Word]>,
    /// Tested for urgent data, which rsockets never have.
    pub except: Option<&'a mut [Word]>,
}

/// Like select(2). Updates the time-out, if there is one, to the time left. A failure leaves the
/// sets unchanged.
///
/// # Errors
/// Fails with `EBADF` also if an rsocket in the sets is closed during the call, and with `EAGAIN`,
/// which is not logged, if one of the rsockets is handed over to librspreload before or during the
/// call.
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
    let mut fds = SmallList::<pollfd, INLINE_FDS>::new();
    sets.list(nfds, |fd, events| try_push_small(&mut fds, pollfd { fd, events, revents: 0 }))?;
    loop {
        let ready = match wait_for_all(lookup, fds.as_mut_slice(), deadline, false) {
            // There are more descriptors than the process can have open, so some are invalid.
            Err(Errno::EINVAL) => Err(Errno::EBADF),
            result => result,
        }?;
        let mut reported = 0;
        for fd in fds.as_mut_slice().iter_mut().filter(|fd| fd.revents != 0) {
            if fd.revents & POLLNVAL != 0 {
                return Err(if is_handed_over(lookup, fd.fd) { Errno::EAGAIN } else { Errno::EBADF });
            }
            fd.revents = bits_by_set(lookup, fd);
            reported += fd.revents.count_ones();
            // POLLHUP or POLLERR may count for none of the requested sets. poll would report the
            // same again at once, so disable the descriptor.
            if fd.revents == 0 {
                fd.fd = !fd.fd;
            }
        }
        if reported > 0 || ready == 0 || deadline.passed() {
            sets.store(fds.as_slice());
            return Ok(c_int::try_from(reported).unwrap_or(c_int::MAX));
        }
    }
}

/// Returns whether the rsocket was handed over to librspreload ([`base::private::HANDED_OVER`]):
/// such an rsocket is valid only for requests with FORWARDER_EVENT.
fn is_handed_over(lookup: &dyn Lookup, fd: c_int) -> bool {
    let is_valid = |wanted| lookup.ready(fd, wanted).is_some_and(|ready| ready & POLLNVAL == 0);
    is_valid(base::private::FORWARDER_EVENT) && !is_valid(0)
}

/// Converts the result of poll for `fd` to one bit for each set: POLLIN, POLLOUT, POLLPRI.
fn bits_by_set(lookup: &dyn Lookup, fd: &pollfd) -> c_short {
    let mut bits = fd.revents & EXCEPT & fd.events;
    if fd.events & READ != 0 && fd.revents & READABLE != 0 {
        bits |= POLLIN;
    }
    // POLLHUP makes an rsocket writable: sending without a peer fails immediately.
    let hung_up = || fd.revents & POLLHUP != 0 && lookup.find(fd.fd).is_some();
    if fd.events & WRITE != 0 && (fd.revents & WRITABLE != 0 || hung_up()) {
        bits |= POLLOUT;
    }
    bits
}

impl Sets<'_> {
    /// Calls `add` for each descriptor below `nfds` in one of the sets, with the events to poll
    /// for.
    fn list(&self, nfds: usize, mut add: impl FnMut(c_int, c_short) -> Result<()>) -> Result<()> {
        let word = |set: &Option<&mut [Word]>, index| set.as_ref().and_then(|set| set.get(index).copied()).unwrap_or(0);
        for index in 0..words(nfds) {
            let (read, write, except) = (word(&self.read, index), word(&self.write, index), word(&self.except, index));
            let mut any = read | write | except;
            while any != 0 {
                let bit = any.trailing_zeros() as usize;
                any &= any - 1;
                let fd = index * BITS + bit;
                if fd < nfds {
                    let asked = |set: Word, events| if set >> bit & 1 != 0 { events } else { 0 };
                    // `nfds` was converted from an int, so `fd` fits in one.
                    add(fd as c_int, asked(read, READ) | asked(write, WRITE) | asked(except, EXCEPT))?;
                }
            }
        }
        Ok(())
    }

    /// Writes the results of [`bits_by_set`] to the sets.
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
