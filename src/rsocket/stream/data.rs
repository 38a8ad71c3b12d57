//! Sending and receiving.
//!
//! Each direction has a fast path and a slow path, so that the usual call needs no reference count,
//! no clock and no cancellation point:
//!
//! - `send_at_once`, `receive_at_once`: do the whole call if that needs no waiting, no allocation and no
//!   error; otherwise they do nothing, and the caller takes the slow path.
//! - `receive_one`: the slow path of a call with one buffer after `receive_at_once` has found nothing; it
//!   mostly waits.
//! - `send`, `receive`: the slow path, complete: all flags, several buffers, waiting, errors.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::slice;

use libc::iovec;

use super::blocking::Wait;
use super::channel_leader::EventSource;
use super::connection::{Gather, MAX_COLLECTED, parts};
use super::{Guard, Phase, State, Stream};
use crate::errno::{Errno, Result};

/// Flags that make no difference to a call that does not wait.
const QUICK: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
/// Flags that rsockets do not support.
const UNSUPPORTED: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE;

impl Stream {
    /// Fast path: returns buffered data. `Err(true)`: nothing was available. `Err(false)`: take the
    /// slow path.
    ///
    /// # Safety
    /// `start` is writable for `len` bytes, or NULL.
    #[expect(clippy::inline_always, reason = "see rsocket::calls")]
    #[inline(always)]
    pub unsafe fn receive_at_once(&self, start: *mut u8, len: usize, flags: c_int) -> std::result::Result<usize, bool> {
        if flags & !QUICK != 0 || start.is_null() || !self.owner.is_this_process() {
            return Err(false);
        }
        let Ok(mut state) = self.state.try_lock() else { return Err(false) };
        let state = &mut *state;
        if !matches!(state.phase, Phase::Connected | Phase::Disconnected) {
            return Err(false);
        }
        let Some(connection) = state.connection.as_deref_mut() else { return Err(false) };
        // Data that has arrived since counts, too, unless there is enough for the whole call.
        let there = connection.available();
        if there < len as u64 && !self.process_completions(state) && there == 0 {
            return Err(true);
        }
        // SAFETY: `start` is writable for `len` bytes: guaranteed by the caller, and not NULL.
        unsafe { state.read_available(start, len) }.ok_or(false)
    }

    /// rrecv(3) after [`receive_at_once`](Self::receive_at_once) has found nothing.
    ///
    /// # Safety
    /// Buffer writable for its length.
    pub unsafe fn receive_one(&self, buffer: iovec, flags: c_int) -> Result<usize> {
        let mut state = self.enter()?;
        let mut wait = Wait::after(state.options.receive_timeout);
        if state.lacks_data() {
            if state.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0 {
                return Err(Errno::EAGAIN);
            }
            match self.pause(state, false, &mut wait, 0)? {
                Ok(back) => state = back,
                Err(done) => return Ok(done),
            }
        }
        // SAFETY: the buffer is writable: guaranteed by the caller.
        if let Some(done) = unsafe { state.read_available(buffer.iov_base.cast(), buffer.iov_len) } {
            return Ok(done);
        }
        // SAFETY: as above.
        unsafe { self.receive_waiting(state, &[buffer], flags, wait) }
    }

    /// rrecv(3) and its relatives: receives into `buffers`, in order. Returns the number of bytes,
    /// 0 at the end of the stream.
    ///
    /// # Safety
    /// Buffers writable for their lengths.
    pub unsafe fn receive(&self, buffers: &[iovec], flags: c_int) -> Result<usize> {
        if flags & UNSUPPORTED != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let state = self.enter()?;
        let wait = Wait::after(state.options.receive_timeout);
        // SAFETY: the buffers are writable: guaranteed by the caller.
        unsafe { self.receive_waiting(state, buffers, flags, wait) }
    }

    /// # Safety
    /// Buffers writable for their lengths.
    unsafe fn receive_waiting<'a>(
        &'a self,
        mut state: Guard<'a>,
        buffers: &[iovec],
        flags: c_int,
        mut wait: Wait,
    ) -> Result<usize> {
        let total = total(buffers)?;
        let (peek, all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
        let nonblocking = state.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let mut done = 0;
        loop {
            state.check_connected(nonblocking)?;
            if total == 0 {
                return Ok(0);
            }
            if state.available(peek, done) < (total - done) as u64 {
                self.process_completions(&mut state);
            }
            // SAFETY: the buffers are writable: guaranteed by the caller.
            done += unsafe { state.copy_out(buffers, done, peek) };
            if done == total || (done > 0 && !all) {
                return Ok(done);
            }
            if state.available(peek, done) > 0 {
                continue;
            }
            if state.ended || state.shut_read || state.error.is_some() {
                return match state.error {
                    Some(error) if done == 0 => {
                        state.error = None;
                        Err(error)
                    }
                    _ => Ok(done),
                };
            }
            match self.pause(state, nonblocking, &mut wait, done)? {
                Ok(back) => state = back,
                Err(done) => return Ok(done),
            }
        }
    }

    /// Fast path: sends a message that goes inline, in one piece. Returns false if it did nothing;
    /// then [`send`](Self::send) does the call.
    ///
    /// # Safety
    /// `data` is readable for `len` bytes.
    #[expect(clippy::inline_always, reason = "see rsocket::calls")]
    #[inline(always)]
    pub unsafe fn send_at_once(&self, data: NonNull<u8>, len: usize, flags: c_int) -> bool {
        if flags & !QUICK != 0 || !self.owner.is_this_process() {
            return false;
        }
        let Ok(mut state) = self.state.try_lock() else { return false };
        if !state.can_write() || state.has_mapping_news() {
            return false;
        }
        let Some(connection) = state.connection.as_deref_mut().filter(|connection| connection.takes_inline(len)) else {
            return false;
        };
        // SAFETY: readable for `len` bytes, which fits an isize as it goes inline: guaranteed by
        // the caller.
        connection.send_inline(unsafe { slice::from_raw_parts(data.as_ptr(), len) })
    }

    /// As [`send_at_once`](Self::send_at_once) for the bytes of several buffers, which are
    /// collected first. Returns their number if all of them were sent.
    ///
    /// # Safety
    /// Buffers readable for their lengths.
    pub unsafe fn send_gathered_at_once(&self, buffers: &[iovec], flags: c_int) -> Option<usize> {
        let len = total(buffers).ok().filter(|&len| len > 0)?;
        let mut room = [const { MaybeUninit::uninit() }; MAX_COLLECTED];
        // SAFETY: the buffers are readable and `len` bytes long.
        let data = unsafe { Gather::new(buffers, 0, len) }.collect(&mut room)?;
        // SAFETY: the collected bytes.
        unsafe { self.send_at_once(NonNull::from(data).cast(), len, flags) }.then_some(len)
    }

    /// rsend(3) and its relatives: sends the data of `buffers`, in order. Returns the number of
    /// bytes.
    ///
    /// # Safety
    /// Buffers readable for their lengths.
    pub unsafe fn send(&self, buffers: &[iovec], flags: c_int) -> Result<usize> {
        if flags & UNSUPPORTED != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut state = self.enter()?;
        let total = total(buffers)?;
        let nonblocking = state.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let mut wait = Wait::after(state.options.send_timeout);
        let mut done = 0;
        let mut looked = false;
        loop {
            state.check_connected(nonblocking)?;
            if !state.can_write() {
                if state.is_being_made() {
                    state = self.pause(state, nonblocking, &mut wait, done)?.map_err(|_| Errno::EAGAIN)?;
                    continue;
                }
                return ended(&mut state, done);
            }
            if state.connection.as_ref().is_some_and(|connection| connection.crosses_target_end(total - done)) {
                // The peer may have advertised its next buffer: the message and the rest are posted
                // together then.
                self.process_completions(&mut state);
            }
            // SAFETY: the buffers are readable: guaranteed by the caller.
            let (sent, lack) = unsafe { self.copy_in(&mut state, buffers, done, total - done) };
            done += sent;
            if done == total {
                return Ok(done);
            }
            if let Some(error) = lack {
                return if done > 0 { Ok(done) } else { Err(error) };
            }
            // Once more if there was progress, and once without it: a peer can cause completions
            // that free nothing, as many as it likes.
            looked = (sent > 0 || !looked) && self.process_completions(&mut state);
            if looked {
                continue;
            }
            match self.pause(state, nonblocking, &mut wait, done)? {
                Ok(back) => state = back,
                Err(done) => return Ok(done),
            }
        }
    }

    /// Whether a send that has failed with `EPIPE` is to raise SIGPIPE. Where it was the peer that
    /// ended the connection, the first one does not: with TCP it would have succeeded.
    pub fn raises_sigpipe(&self) -> bool {
        let state = self.lock();
        state.options.sigpipe && (state.shut_write || state.pipes > 1)
    }

    /// From now on failing sends raise SIGPIPE, on this socket and on those that it accepts.
    pub fn set_sigpipe(&self) -> Result<()> {
        self.enter()?.options.sigpipe = true;
        Ok(())
    }

    /// riowrite(3): writes into the memory that the peer has mapped at `offset`. Returns the number
    /// of bytes, fewer than wanted where less is mapped.
    ///
    /// # Safety
    /// As riowrite(3).
    pub unsafe fn write_mapped(&self, data: &[u8], offset: u64, flags: c_int) -> Result<usize> {
        let mut state = self.enter()?;
        let nonblocking = state.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let mut wait = Wait::after(state.options.send_timeout);
        let mut done = 0;
        while done < data.len() {
            state.check_connected(nonblocking)?;
            if !state.can_write() {
                if state.is_being_made() {
                    state = self.pause(state, nonblocking, &mut wait, done)?.map_err(|_| Errno::EAGAIN)?;
                    continue;
                }
                return ended(&mut state, done);
            }
            // The peer's last mapping may not have been processed yet.
            self.process_completions(&mut state);
            let Some(connection) = &mut state.connection else { return Err(Errno::ENOTCONN) };
            let Some(region) = connection.mapped(offset.wrapping_add(done as u64)) else { break };
            let written = match (connection.write(&data[done..], region, done > 0), connection.failure()) {
                (Ok(written), _) => written,
                (Err(_), Some(_)) => 0,
                (Err(error), None) if done == 0 => return Err(error),
                (Err(_), None) => break,
            };
            done += written;
            if connection.failure().is_some() {
                self.process_completions(&mut state);
                continue;
            }
            if written > 0 {
                continue;
            }
            match self.pause(state, nonblocking, &mut wait, done)? {
                Ok(back) => state = back,
                Err(done) => return Ok(done),
            }
        }
        Ok(done)
    }

    /// Sleeps in the middle of a transfer. A signal, a time-out, or O_NONBLOCK ends the call: with
    /// what it has done, if that is anything (the inner `Err`), else with an error.
    #[inline]
    fn pause<'a>(
        &'a self,
        mut state: Guard<'a>,
        nonblocking: bool,
        wait: &mut Wait,
        done: usize,
    ) -> Result<std::result::Result<Guard<'a>, usize>> {
        if nonblocking {
            if self.rearm_for_watchers(&mut state) {
                return Ok(Ok(state));
            }
            return if done > 0 { Ok(Err(done)) } else { Err(Errno::EAGAIN) };
        }
        let (state, result) = self.sleep(state, wait);
        match result {
            _ if state.is_closed() => Err(Errno::EBADF),
            Ok(()) => Ok(Ok(state)),
            Err(_) if done > 0 => Ok(Err(done)),
            Err(Errno::ETIMEDOUT) => Err(Errno::EAGAIN),
            Err(error) => Err(error),
        }
    }

    /// An edge-triggered watcher polled before the buffer filled up: arms send completions so that
    /// it is woken when space appears. Returns whether there is space already.
    fn rearm_for_watchers(&self, state: &mut State) -> bool {
        !self.watchers.is_empty() && self.arm_send_cq(state) && self.process_completions(state)
    }

    /// Sends what can be sent now of the `len` bytes from `skip` on. Returns how many bytes, and an
    /// error if there is no memory for the send buffer. A failure of the connection is kept in it.
    ///
    /// # Safety
    /// Buffers readable for their lengths, which are `skip` and `len` together.
    unsafe fn copy_in(&self, state: &mut State, buffers: &[iovec], skip: usize, len: usize) -> (usize, Option<Errno>) {
        match state.announce_mappings() {
            Ok(true) => {}
            Ok(false) => return (0, None),
            Err(error) => return (0, Some(error)),
        }
        let Some(connection) = state.connection.as_mut().filter(|connection| connection.failure().is_none()) else {
            return (0, None);
        };
        let sent = match parts(buffers, skip).next() {
            Some((start, first)) if first == len => {
                // SAFETY: readable as long as this call lasts: guaranteed by the caller.
                connection.send(unsafe { slice::from_raw_parts(start, first) }, skip > 0)
            }
            // SAFETY: as above, and `len` bytes follow `skip`.
            _ => connection.send_gathered(unsafe { Gather::new(buffers, skip, len) }, skip > 0),
        };
        match (sent, connection.failure()) {
            (Ok(sent), _) => (sent, None),
            (Err(_), Some(_)) => (0, None),
            (Err(error), None) => (0, Some(error)),
        }
    }
}

/// The result of a call that cannot send any more: what it has sent, or the reason. As with TCP an
/// error is reported once; after that, after the peer's orderly end, and after the program's own
/// SHUT_WR, the error is `EPIPE`.
fn ended(state: &mut State, done: usize) -> Result<usize> {
    if done > 0 {
        return Ok(done);
    }
    let error = state.take_error();
    if error.is_none() {
        state.pipes = state.pipes.saturating_add(1);
    }
    Err(error.unwrap_or(Errno::EPIPE))
}

impl State {
    /// Whether there is or was a connection: `ENOTCONN` otherwise. While it is being made, a call waits, or gets `EAGAIN`.
    fn check_connected(&mut self, nonblocking: bool) -> Result<()> {
        match self.phase {
            Phase::Connected | Phase::Disconnected => Ok(()),
            Phase::Connecting(_) | Phase::Accepting(_) if nonblocking => Err(Errno::EAGAIN),
            Phase::Connecting(_) | Phase::Accepting(_) => Ok(()),
            Phase::Idle | Phase::Failed { .. } => Err(self.take_error().unwrap_or(Errno::ENOTCONN)),
            Phase::Listening(_) => Err(Errno::ENOTCONN),
            Phase::Closing | Phase::Closed => Err(Errno::EBADF),
        }
    }

    /// Whether the connection is being made: a call that sends waits for it.
    fn is_being_made(&self) -> bool {
        matches!(self.phase, Phase::Connecting(_) | Phase::Accepting(_))
    }

    /// Whether there is nothing to read, and neither an end nor an error to tell of.
    fn lacks_data(&self) -> bool {
        let open = matches!(self.phase, Phase::Connected) && !self.ended && !self.shut_read && self.error.is_none();
        open && self.available(false, 0) == 0
    }

    /// Bytes to read, behind the `done` ones that a peeking call has seen.
    fn available(&self, peek: bool, done: usize) -> u64 {
        let available = self.connection.as_ref().map_or(0, |connection| connection.available());
        if peek { available.saturating_sub(done as u64) } else { available }
    }

    /// Takes what is there, at most `len` bytes; `None` when that is nothing.
    ///
    /// # Safety
    /// Writable for `len` bytes.
    #[inline]
    unsafe fn read_available(&mut self, start: *mut u8, len: usize) -> Option<usize> {
        let connection = self.connection.as_deref_mut()?;
        let len = len.min(usize::try_from(connection.available()).unwrap_or(usize::MAX));
        if len == 0 {
            return None;
        }
        // SAFETY: writable for `len` bytes: guaranteed by the caller; possibly uninitialised.
        let into = unsafe { slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), len) };
        connection.read_piece(into).or_else(|| Some(connection.read(into)))
    }

    /// Copies what is there into the buffers, from `skip` bytes on; how many bytes.
    ///
    /// # Safety
    /// Buffers writable for their lengths.
    unsafe fn copy_out(&mut self, buffers: &[iovec], skip: usize, peek: bool) -> usize {
        let seen = if peek { skip as u64 } else { 0 };
        let Some(connection) = &mut self.connection else { return 0 };
        let mut done = 0;
        for (start, len) in parts(buffers, skip) {
            // SAFETY: buffers writable for their lengths: guaranteed by the caller; possibly
            // uninitialised.
            let rest = unsafe { slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), len) };
            let copied = connection.peek(seen + done as u64, rest);
            done += copied;
            if copied < rest.len() {
                break;
            }
        }
        if !peek && done > 0 {
            connection.take(done as u64);
        }
        done
    }
}

/// The sum of the lengths; `EINVAL` for more than an ssize_t can tell.
fn total(buffers: &[iovec]) -> Result<usize> {
    buffers
        .iter()
        .try_fold(0_usize, |sum, buffer| sum.checked_add(buffer.iov_len))
        .filter(|&sum| isize::try_from(sum).is_ok())
        .ok_or(Errno::EINVAL)
}
