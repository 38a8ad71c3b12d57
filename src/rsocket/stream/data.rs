//! Sending and receiving.
//!
//! Each direction has a fast path and a slow path, so that the usual call needs no reference count,
//! no clock and no cancellation point:
//!
//! - `send_at_once`, `receive_at_once`: complete the call if it needs neither waiting nor
//!   allocation, and does not fail. Otherwise they transfer no data, and the caller usually takes
//!   the slow path.
//! - `receive_locked`: continues a call for which `receive_at_once` has found no data and has kept
//!   the lock: waits for data.
//! - `send`, `receive`: the complete slow path with all flags, several buffers, waiting, and
//!   errors.
//!
//! If one thread sends while another thread receives, both transfer long data without the stream's
//! lock, so that neither waits for the other. At most one thread does this per direction: other
//! threads wait until that thread has finished ([`Stream::wait_while`]), as they would wait for the
//! lock. The sender reserves its messages under the lock first; no other thread posts anything
//! meanwhile.

use std::ffi::c_int;
use std::mem::{self, MaybeUninit};
use std::ptr::{self, NonNull};
use std::slice;

use libc::iovec;

use super::channel_leader::{self, EventSource};
use super::connection::{Connection, Ends, Gather, MAX_COLLECTED, Source, parts};
use super::options::Options;
use super::waiting::Wait;
use super::{Guard, Life, Received, State, Stream};
use crate::errno::{Errno, Result};
use crate::os::cancel;

/// Flags that the fast path accepts: they make no difference to a call that does not wait.
const FAST_PATH_FLAGS: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
/// After this many consecutive calls that have slept, a call arms the CQ without polling first.
const SLEEPS: u8 = 4;
/// Flags that rsockets do not support.
const UNSUPPORTED: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE;

impl Stream {
    /// Fast path: returns buffered data, or why it returns none.
    ///
    /// # Safety
    /// `start` is writable for `len` bytes, or NULL.
    #[inline(always)] // see rsocket::calls
    pub unsafe fn receive_at_once(&self, start: *mut u8, len: usize, flags: c_int) -> Received {
        if flags & !FAST_PATH_FLAGS != 0 || start.is_null() || !self.owner.is_this_process() {
            return Received::Unusual;
        }
        let Some(mut guard) = self.state.try_lock() else { return Received::Unusual };
        let thread = guard.holder();
        let state = &mut *guard;
        let Life::Open(connection) = &mut state.life else { return Received::Unusual };
        if connection.flush_before_read(thread) {
            return Received::Unusual;
        }
        if !connection.has_piece(len) {
            // A call that will probably sleep polls after it has armed the CQ.
            let sleeps = connection.sleeps >= SLEEPS && !state.returns_at_once(flags);
            let has_new = !sleeps && self.process_completions_here(state);
            if !has_new
                && let Life::Open(connection) = &state.life
                && connection.available() == 0
            {
                // The slow path reports the end of the stream or an error.
                let Ends { over, eof, shut_read, .. } = connection.ends;
                if over | eof | shut_read | state.handed_over || state.error.is_some() {
                    return Received::Unusual;
                }
                if !sleeps && state.returns_at_once(flags) {
                    return Received::WouldBlock;
                }
                mem::forget(guard);
                return Received::Nothing;
            }
        }
        let Some(connection) = state.readable(len) else { return Received::Unusual };
        // SAFETY: `start` is writable for `len` bytes: guaranteed by the caller, and not NULL.
        if let Some(read) = unsafe { connection.read_piece(start, len) } {
            drop(guard);
            return Received::Data(read);
        }
        // SAFETY: `start` is not NULL, and writable for `len` bytes: guaranteed by the caller.
        unsafe { connection.read_some(start, len) }.map_or(Received::Unusual, Received::Data)
    }

    /// Waits for data after [`receive_at_once`](Self::receive_at_once) has found no data.
    ///
    /// # Safety
    /// `start` is writable for `len` bytes. This thread has locked the stream.
    #[inline]
    pub unsafe fn receive_locked(&self, start: *mut u8, len: usize, flags: c_int) -> Result<usize> {
        // SAFETY: this thread holds the lock and has forgotten its guard: guaranteed by the caller.
        let mut state = unsafe { self.state.resume() };
        let mut wait = Wait::after(state.options.receive_timeout);
        let Life::Open(connection) = &mut state.life else { return Err(Errno::EBADF) };
        let sleeps = mem::take(&mut connection.sleeps);
        let (mut state, result) = self.sleep(state, &mut wait);
        let Life::Open(connection) = &mut state.life else { return Err(Errno::EBADF) };
        if connection.sleeps > 0 {
            connection.sleeps = sleeps.saturating_add(1);
        } else {
            // The wait may have polled without sleeping, and polling is not a cancellation point.
            drop(state);
            cancel::test();
            state = self.lock();
        }
        goes_on_after(result, 0)?;
        if let Some(connection) = state.readable(len)
            // SAFETY: `start` is writable for `len` bytes: guaranteed by the caller.
            && let Some(done) = unsafe { connection.read_piece(start, len).or_else(|| connection.read_some(start, len)) }
        {
            return Ok(done);
        }
        let buffer = iovec { iov_base: start.cast(), iov_len: len };
        // SAFETY: `start` is writable for `len` bytes: guaranteed by the caller.
        unsafe { self.receive_waiting(state, &[buffer], flags, wait) }
    }

    /// rrecv(3) and related calls: receives into `buffers`, in order. Returns the number of bytes,
    /// or 0 at the end of the stream.
    ///
    /// # Safety
    /// The buffers are writable for their lengths.
    pub unsafe fn receive(&self, buffers: &[iovec], flags: c_int) -> Result<usize> {
        if flags & UNSUPPORTED != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let state = self.enter()?;
        let wait = Wait::after(state.options.receive_timeout);
        // SAFETY: the buffers are writable: guaranteed by the caller.
        unsafe { self.receive_waiting(state, buffers, flags, wait) }
    }

    /// Receives into `buffers`, waiting for data as `flags` and `wait` specify.
    ///
    /// # Safety
    /// The buffers are writable for their lengths.
    unsafe fn receive_waiting<'a>(
        &'a self,
        mut state: Guard<'a>,
        buffers: &[iovec],
        flags: c_int,
        mut wait: Wait,
    ) -> Result<usize> {
        let total = total_len(buffers)?;
        let (peek, all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
        let nonblocking = state.returns_at_once(flags);
        let mut done = 0;
        self.flush_before_read(&mut state);
        loop {
            state = self.wait_while(state, Connection::is_being_read);
            state.check_connected(nonblocking)?;
            // Earlier bytes may still be on their way through librspreload's forwarder. After
            // EAGAIN, librspreload repeats the call on the socket that now has the program's
            // descriptor.
            if state.handed_over && flags & base::private::FORWARDER_FLAG == 0 {
                return if done > 0 { Ok(done) } else { Err(Errno::EAGAIN) };
            }
            // A call that asks for no bytes waits for data, too, as with TCP.
            if state.available(peek, done) < (total - done).max(1) as u64 {
                self.process_completions(&mut state);
            }
            if !peek && state.life.connection().is_some_and(|connection| connection.reads_unlocked(total - done)) {
                // SAFETY: the buffers are writable: guaranteed by the caller; only this thread
                // reads.
                let (back, copied) = unsafe { self.copy_out_unlocked(state, buffers, done) };
                state = back;
                done += copied;
            }
            // SAFETY: the buffers are writable: guaranteed by the caller.
            done += unsafe { state.copy_out(buffers, done, peek) };
            let has_more = state.available(peek, done) > 0;
            if done > 0 && (done == total || !all) || total == 0 && has_more {
                return Ok(done);
            }
            if has_more {
                continue;
            }
            if let Some(result) = state.end_of_data(done) {
                return result;
            }
            let Some(back) = self.pause(state, nonblocking, &mut wait, done)? else { return Ok(done) };
            state = back;
        }
    }

    /// Fast path: sends the data inline, in one message. Returns false if nothing was sent; the
    /// caller then calls [`send`](Self::send).
    ///
    /// # Safety
    /// `data` is readable for `len` bytes.
    #[inline(always)] // see rsocket::calls
    pub unsafe fn send_at_once(&self, data: NonNull<u8>, len: usize, flags: c_int) -> bool {
        if flags & !FAST_PATH_FLAGS != 0 || !self.owner.is_this_process() {
            return false;
        }
        let Some(mut state) = self.state.try_lock() else { return false };
        let (thread, is_unusual) = (state.holder(), state.mappings.pending);
        let Life::Open(connection) = &mut state.life else { return false };
        if is_unusual || !connection.takes_inline(len) {
            return false;
        }
        debug_assert!(connection.ends.can_write(), "nothing goes inline otherwise");
        connection.set_sender_thread(thread);
        // SAFETY: `data` is readable for `len` bytes: guaranteed by the caller; an inline length
        // fits an isize.
        let data = unsafe { slice::from_raw_parts(data.as_ptr(), len) };
        if connection.is_in_burst() {
            return self.send_in_burst(&mut state, data);
        }
        if !connection.send_inline(data) {
            return false;
        }
        drop(state);
        true
    }

    /// Slow part of [`send_at_once`](Self::send_at_once): holds or sends the data. Returns false if
    /// neither is possible.
    #[inline(never)]
    fn send_in_burst(&self, state: &mut State, data: &[u8]) -> bool {
        let Life::Open(connection) = &mut state.life else { return false };
        if connection.hold(data) {
            channel_leader::ensure_flush_scheduled(self, state);
            return true;
        }
        connection.send_held();
        connection.failure().is_none() && connection.send_inline(data)
    }

    /// [`send_at_once`](Self::send_at_once) for several buffers, whose bytes are collected first.
    /// Returns the number of bytes, or `None` if nothing was sent.
    ///
    /// # Safety
    /// The buffers are readable for their lengths.
    pub unsafe fn send_gathered_at_once(&self, buffers: &[iovec], flags: c_int) -> Option<usize> {
        let len = total_len(buffers).ok().filter(|&len| len > 0)?;
        let mut space = [const { MaybeUninit::uninit() }; MAX_COLLECTED];
        // SAFETY: the buffers are readable for `len` bytes in total: guaranteed by the caller.
        let data = unsafe { Gather::new(buffers, 0, len) }.collect(&mut space)?;
        // SAFETY: `data` holds the `len` collected bytes.
        unsafe { self.send_at_once(NonNull::from(data).cast(), len, flags) }.then_some(len)
    }

    /// rsend(3) and related calls: sends the data of `buffers`, in order. Returns the number of
    /// bytes.
    ///
    /// # Safety
    /// The buffers are readable for their lengths.
    pub unsafe fn send(&self, buffers: &[iovec], flags: c_int) -> Result<usize> {
        if flags & UNSUPPORTED != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut state = self.enter()?;
        let total = total_len(buffers)?;
        let nonblocking = state.returns_at_once(flags);
        let mut wait = Wait::after(state.options.send_timeout);
        let mut done = 0;
        let mut polled = false;
        let thread = state.holder();
        state.life.connection_mut().into_iter().for_each(|connection| connection.set_sender_thread(thread));
        loop {
            state = self.until_connected(state, nonblocking, &mut wait)?;
            if !state.can_write() {
                return state.cannot_send(done, total);
            }
            // SAFETY: the buffers are readable: guaranteed by the caller.
            let (back, Sent { bytes, unlocked }) = unsafe { self.send_some(state, buffers, done, total - done) };
            state = back;
            let has_failed = state.life.connection().is_some_and(|connection| connection.failure().is_some());
            let sent = if has_failed { 0 } else { bytes };
            done += sent;
            if done == total {
                return Ok(done);
            }
            // Retry after completions, but only once without progress: a peer can cause any number
            // of completions that free no space.
            polled = (sent > 0 || !polled) && self.process_completions(&mut state);
            // If the lock was released, another thread may have processed the completions.
            if polled || unlocked {
                continue;
            }
            if let Some(connection) = state.life.connection().filter(|_| !nonblocking) {
                connection.count_send_wait();
            }
            let Some(back) = self.pause(state, nonblocking, &mut wait, done)? else { return Ok(done) };
            state = back;
        }
    }

    /// Returns whether a send that has failed with `EPIPE` raises SIGPIPE.
    pub fn raises_sigpipe(&self) -> bool {
        self.lock().options.sigpipe
    }

    /// Makes sends after the end of the connection behave as with TCP, on this socket and on the
    /// sockets that it accepts: the first send after the peer's close succeeds, and sends that fail
    /// with `EPIPE` raise SIGPIPE.
    pub fn set_sigpipe(&self) -> Result<()> {
        self.enter()?.options.sigpipe = true;
        Ok(())
    }

    /// riowrite(3): writes into the memory that the peer has mapped at `offset`. Returns the number
    /// of bytes, which is less than the length of `data` if less is mapped, or if the call ends
    /// early.
    ///
    /// # Safety
    /// `data` is readable memory of the program.
    pub unsafe fn write_mapped(&self, data: &[u8], offset: u64, flags: c_int) -> Result<usize> {
        let mut state = self.enter()?;
        let nonblocking = state.returns_at_once(flags);
        let mut wait = Wait::after(state.options.send_timeout);
        let mut done = 0;
        while done < data.len() {
            state = self.until_connected(state, nonblocking, &mut wait)?;
            if !state.can_write() {
                return state.cannot_send(done, data.len());
            }
            // Process the completion that announces the peer's latest mapping, if it has arrived.
            self.process_completions(&mut state);
            let Life::Open(connection) = &mut state.life else { return Err(Errno::ENOTCONN) };
            let Some(region) = connection.mapped(offset.wrapping_add(done as u64)) else { break };
            let written = connection.write(&data[done..], region, done > 0);
            done += written;
            if connection.failure().is_some() {
                self.process_completions(&mut state);
                continue;
            }
            if written > 0 {
                continue;
            }
            let Some(back) = self.pause(state, nonblocking, &mut wait, done)? else { return Ok(done) };
            state = back;
        }
        Ok(done)
    }

    /// Waits until the socket is connected, and no other thread sends without the lock.
    #[inline]
    fn until_connected<'a>(&'a self, mut state: Guard<'a>, nonblocking: bool, wait: &mut Wait) -> Result<Guard<'a>> {
        loop {
            state = self.wait_while(state, Connection::is_sending_unlocked);
            state.check_connected(nonblocking)?;
            if let Life::Open(_) = state.life {
                return Ok(state);
            }
            // A call on a socket that is connecting has sent nothing.
            state = self.pause(state, nonblocking, wait, 0)?.ok_or(Errno::EAGAIN)?;
        }
    }

    /// Sleeps in the middle of a transfer. Returns the lock if the call goes on. If a signal, a
    /// time-out or O_NONBLOCK ends the call, returns `None` after a transfer of some bytes
    /// (`done`), and fails otherwise.
    #[inline]
    fn pause<'a>(
        &'a self,
        mut state: Guard<'a>,
        nonblocking: bool,
        wait: &mut Wait,
        done: usize,
    ) -> Result<Option<Guard<'a>>> {
        // Another thread may have closed the socket while this call did not hold the lock.
        if state.life.is_closed() {
            return Err(Errno::EBADF);
        }
        // A socket that was handed over does not wait, as in `receive_waiting`.
        if nonblocking || state.handed_over {
            // An edge-triggered watcher polled before the buffer filled up: arm send completions,
            // so that it is woken when space appears, unless there is space already.
            if !self.watchers.is_empty() && self.arm_send_cq(&mut state) && self.process_completions(&mut state) {
                return Ok(Some(state));
            }
            return if done > 0 { Ok(None) } else { Err(Errno::EAGAIN) };
        }
        let (state, result) = self.sleep(state, wait);
        if state.life.is_closed() {
            return Err(Errno::EBADF);
        }
        Ok(goes_on_after(result, done)?.then_some(state))
    }

    /// Sends, without waiting, as much as possible of the `len` bytes after the first `skip` bytes.
    ///
    /// # Safety
    /// The buffers are readable for their lengths, which are `skip` plus `len` in total.
    unsafe fn send_some<'a>(
        &'a self,
        mut state: Guard<'a>,
        buffers: &[iovec],
        skip: usize,
        len: usize,
    ) -> (Guard<'a>, Sent) {
        if !state.advertise_mappings() {
            return (state, Sent::default());
        }
        if let Some((start, first)) = parts(buffers, skip).next()
            && first == len
        {
            // SAFETY: `first` bytes at `start` are readable during this call: guaranteed by the
            // caller.
            return self.send_source(state, unsafe { slice::from_raw_parts(start, first) }, skip > 0);
        }
        // SAFETY: the buffers are readable, and hold `len` bytes after the first `skip` ones:
        // guaranteed by the caller.
        self.send_source(state, unsafe { Gather::new(buffers, skip, len) }, skip > 0)
    }

    /// [`send_some`](Self::send_some) for bytes from a [`Source`]. `begun`: the call has sent data
    /// before. The data may be held instead, which counts as sent.
    fn send_source<'a, S: Source>(&'a self, mut state: Guard<'a>, data: S, begun: bool) -> (Guard<'a>, Sent) {
        let mut sent = Sent::default();
        let Some(connection) = state.working() else { return (state, sent) };
        if !begun && connection.hold(data) {
            channel_leader::ensure_flush_scheduled(self, &mut state);
            return (state, Sent { bytes: data.size(), ..sent });
        }
        connection.send_held();
        while sent.bytes < data.size()
            && let Some(connection) = state.working()
        {
            let (_, rest) = data.split(sent.bytes);
            let Some(planned) = connection.plan(rest, begun || sent.bytes > 0) else { break };
            sent.bytes += planned.size();
            let Some(queue) = connection.begin_unlocked(planned.size()) else {
                let _ = connection.post_planned(&planned);
                continue;
            };
            drop(state);
            sent.unlocked = true;
            // SAFETY: the QP and the send buffer are live: a connection is dropped only when no
            // thread uses it without the lock.
            let posted = unsafe { planned.post(queue) };
            state = self.lock();
            state.life.connection_mut().into_iter().for_each(|connection| connection.end_unlocked(posted));
            self.notify_waiting(&state);
            if !state.can_write() {
                break;
            }
        }
        (state, sent)
    }
}

/// What a part of a call has sent.
#[derive(Default)]
struct Sent {
    bytes: usize,
    /// The lock was released meanwhile, so the state may have changed.
    unlocked: bool,
}

/// Returns whether a call that has transferred `done` bytes goes on after a sleep with `result`.
/// Fails if the sleep has failed and `done` is 0: with `EAGAIN` after a time-out.
#[inline]
fn goes_on_after(result: Result<()>, done: usize) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(_) if done > 0 => Ok(false),
        Err(Errno::ETIMEDOUT) => Err(Errno::EAGAIN),
        Err(error) => Err(error),
    }
}

impl Ends {
    /// Returns the result of a call that cannot send any of its `total` bytes. As with TCP a failure
    /// is reported once; afterwards, and after the peer's disconnect or the program's SHUT_WR, the
    /// error is `EPIPE`. For programs that expect TCP (`sigpipe`), the first call after the peer's
    /// orderly close discards the data that fits the send buffer, and succeeds: such a program may
    /// have to read data before it learns of the close.
    fn cannot_send(&mut self, error: &mut Option<Errno>, options: &Options, total: usize) -> Result<usize> {
        if let Some(error) = error.take() {
            return Err(error);
        }
        if options.sigpipe && !self.shut_write && !self.with_error && !self.send_lost {
            self.send_lost = true;
            return Ok(total.min(options.send_buffer as usize));
        }
        Err(Errno::EPIPE)
    }

    /// Returns the result of a call that has received `done` bytes and finds no more data; `None`
    /// if more data may arrive. The pending error is reported once, and only by a call that has
    /// received nothing.
    fn end_of_data(&self, error: &mut Option<Errno>, done: usize) -> Option<Result<usize>> {
        if !self.eof && !self.shut_read && error.is_none() {
            return None;
        }
        let error = if done == 0 { error.take() } else { None };
        Some(error.map_or(Ok(done), Err))
    }
}

impl State {
    /// Fails with the pending error or `ENOTCONN` if there is no connection and never was. While
    /// the socket is connecting, fails with `EAGAIN` if `nonblocking`; otherwise succeeds, and the
    /// caller waits. Fails with `EBADF` if the socket is closed.
    #[inline]
    fn check_connected(&mut self, nonblocking: bool) -> Result<()> {
        match self.life {
            Life::Open(_) => Ok(()),
            Life::Connecting(_) | Life::Accepting(..) if nonblocking => Err(Errno::EAGAIN),
            Life::Connecting(_) | Life::Accepting(..) => Ok(()),
            Life::Idle | Life::Stopped | Life::Failed { .. } => Err(self.error.take().unwrap_or(Errno::ENOTCONN)),
            Life::Listening(_) => Err(Errno::ENOTCONN),
            Life::Closing(_) | Life::Leaving { .. } | Life::Closed => Err(Errno::EBADF),
        }
    }

    /// Returns the connection, unless there is none or it has failed.
    fn working(&mut self) -> Option<&mut Connection> {
        self.life.connection_mut().filter(|connection| connection.failure().is_none())
    }

    /// Returns whether the program may still write.
    fn can_write(&self) -> bool {
        matches!(&self.life, Life::Open(connection) if connection.ends.can_write())
    }

    /// Returns the result of a call that has sent `done` of `total` bytes and cannot send more.
    fn cannot_send(&mut self, done: usize, total: usize) -> Result<usize> {
        match &mut self.life {
            Life::Open(connection) if done == 0 => connection.ends.cannot_send(&mut self.error, &self.options, total),
            _ => Ok(done),
        }
    }

    /// [`Ends::end_of_data`], also for a stream that is connecting.
    fn end_of_data(&mut self, done: usize) -> Option<Result<usize>> {
        let ends = self.life.connection().map_or(Ends::default(), |connection| connection.ends);
        ends.end_of_data(&mut self.error, done)
    }

    /// Returns the number of bytes that can be read; for a peeking call, without the `done` bytes
    /// that the call has copied already.
    fn available(&self, peek: bool, done: usize) -> u64 {
        let available = self.life.connection().map_or(0, Connection::available);
        if peek { available.saturating_sub(done as u64) } else { available }
    }

    /// Returns the connection for a read of at most `len` bytes under the lock. Returns `None` if
    /// there is no connection, or if the data is copied without the lock or belongs to
    /// librspreload's forwarder.
    #[inline(always)] // see rsocket::calls
    fn readable(&mut self, len: usize) -> Option<&mut Connection> {
        let Life::Open(connection) = &mut self.life else { return None };
        let is_special = connection.is_being_read() || connection.reads_unlocked(len) || self.handed_over;
        (!is_special).then_some(connection)
    }

    /// Copies buffered data into the buffers, after their first `skip` bytes, unless a thread
    /// copies data without the lock. Returns the number of bytes.
    ///
    /// # Safety
    /// The buffers are writable for their lengths.
    unsafe fn copy_out(&mut self, buffers: &[iovec], skip: usize, peek: bool) -> usize {
        let peeked = if peek { skip as u64 } else { 0 };
        let Some(connection) = self.life.connection_mut().filter(|connection| !connection.is_being_read()) else {
            return 0;
        };
        let mut done = 0;
        for (start, len) in parts(buffers, skip) {
            // SAFETY: `len` bytes at `start` are writable, and may be uninitialised: guaranteed by
            // the caller.
            let rest = unsafe { slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), len) };
            let copied = connection.peek(peeked + done as u64, rest);
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

/// Returns the sum of the lengths. Fails with `EINVAL` if the sum exceeds an ssize_t.
fn total_len(buffers: &[iovec]) -> Result<usize> {
    buffers
        .iter()
        .try_fold(0_usize, |sum, buffer| sum.checked_add(buffer.iov_len))
        .filter(|&sum| isize::try_from(sum).is_ok())
        .ok_or(Errno::EINVAL)
}

impl Stream {
    /// Waits while `is_used` returns true: another thread uses the connection without the lock.
    #[inline]
    pub(super) fn wait_while<'a>(&'a self, state: Guard<'a>, is_used: impl Fn(&Connection) -> bool) -> Guard<'a> {
        let is_used = |state: &State| state.life.connection().is_some_and(&is_used);
        if is_used(&state) { self.wait_while_used(state, is_used) } else { state }
    }

    #[cold]
    fn wait_while_used<'a>(&'a self, mut state: Guard<'a>, is_used: impl Fn(&State) -> bool) -> Guard<'a> {
        state.life.connection_mut().into_iter().for_each(|connection| connection.waiting += 1);
        while is_used(&state) {
            // Like a wait for the lock, this is not a cancellation point.
            state = cancel::never(|| channel_leader::wait_for_change(self, state));
        }
        state.life.connection_mut().into_iter().for_each(|connection| connection.waiting -= 1);
        state
    }

    /// Notifies the threads that wait in [`wait_while`](Self::wait_while).
    #[inline]
    fn notify_waiting(&self, state: &State) {
        if state.life.connection().is_some_and(|connection| connection.waiting > 0) {
            self.changed.notify();
        }
    }

    /// Copies received data into the buffers, after their first `skip` bytes, in large pieces, each
    /// without the lock. Returns the lock and the number of bytes.
    ///
    /// # Safety
    /// The buffers are writable for their lengths. No other thread reads.
    pub(super) unsafe fn copy_out_unlocked<'a>(
        &'a self,
        mut state: Guard<'a>,
        buffers: &[iovec],
        skip: usize,
    ) -> (Guard<'a>, usize) {
        let mut done = 0;
        while let Some(connection) = state.life.connection_mut()
            && let Some((start, len)) = parts(buffers, skip + done).next()
            && let Some(unread) = connection.begin_reading(len)
        {
            drop(state);
            let len = unread.len();
            // SAFETY: `len` bytes at `start` are writable: guaranteed by the caller. The data is
            // readable: the connection is dropped only after `end_reading`, and only the thread that
            // reads gives the memory back to the peer. It does not overlap the program's buffer.
            unsafe { ptr::copy_nonoverlapping(unread.as_ptr().cast(), start, len) };
            state = self.lock();
            let Some(connection) = state.life.connection_mut() else { break };
            done += len;
            connection.end_reading(len);
            self.notify_waiting(&state);
        }
        (state, done)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{connecting, failed, listening, state};
    use super::*;

    const RESET: Errno = Errno::ECONNRESET;
    const AGAIN: Errno = Errno::EAGAIN;

    #[test]
    fn data_needs_a_connection() {
        for (life, waiting, now) in [
            (connecting(), Ok(()), Err(AGAIN)),
            (listening(), Err(Errno::ENOTCONN), Err(Errno::ENOTCONN)),
            (Life::Closed, Err(Errno::EBADF), Err(Errno::EBADF)),
        ] {
            let mut state = state(life);
            assert_eq!((state.check_connected(false), state.check_connected(true)), (waiting, now));
            assert!(!state.can_write() && state.end_of_data(5).is_none());
        }
        for life in [Life::Idle, Life::Stopped, failed(false)] {
            let mut state = state(life);
            state.error = Some(RESET);
            assert_eq!([(); 2].map(|()| state.check_connected(false)), [Err(RESET), Err(Errno::ENOTCONN)]);
        }
    }

    #[test]
    fn the_end_of_data_and_errors() {
        let end = |eof, shut_read, mut error, done| {
            let ends = Ends { eof, shut_read, ..Ends::default() };
            [done, 0].map(|done| ends.end_of_data(&mut error, done))
        };
        assert_eq!(end(false, false, None, 5), [None, None]);
        assert_eq!(end(true, false, None, 5), [Some(Ok(5)), Some(Ok(0))]);
        assert_eq!(end(false, true, None, 0), [Some(Ok(0)), Some(Ok(0))]);
        assert_eq!(end(false, false, Some(RESET), 5), [Some(Ok(5)), Some(Err(RESET))]);
        assert_eq!(end(true, false, Some(RESET), 0), [Some(Err(RESET)), Some(Ok(0))]);
    }

    #[test]
    fn what_cannot_be_sent() {
        let (mut ends, mut options, pipe) = (Ends::default(), Options::default(), Err(Errno::EPIPE));
        assert_eq!([9; 2].map(|total| ends.cannot_send(&mut None, &options, total)), [pipe; 2]);
        // For programs that expect TCP.
        options.sigpipe = true;
        assert_eq!([9; 2].map(|total| ends.cannot_send(&mut None, &options, total)), [Ok(9), pipe]);
        ends.send_lost = false;
        let most = options.send_buffer as usize;
        assert_eq!(ends.cannot_send(&mut None, &options, most + 1), Ok(most));
        (ends.send_lost, ends.shut_write) = (false, true);
        assert_eq!(ends.cannot_send(&mut None, &options, 9), pipe);
        (ends.shut_write, ends.with_error) = (false, true);
        let mut error = Some(RESET);
        assert_eq!([9; 2].map(|total| ends.cannot_send(&mut error, &options, total)), [Err(RESET), pipe]);
    }

    #[test]
    fn a_sleep_ends_a_call_with_what_it_has_done() {
        assert_eq!((goes_on_after(Ok(()), 0), goes_on_after(Ok(()), 7)), (Ok(true), Ok(true)));
        for (error, without_data) in [(Errno::ETIMEDOUT, AGAIN), (Errno::EINTR, Errno::EINTR)] {
            assert_eq!(goes_on_after(Err(error), 0), Err(without_data));
            assert_eq!(goes_on_after(Err(error), 7), Ok(false));
        }
    }

    #[test]
    fn lengths_fit_the_result() {
        let (base, most) = (std::ptr::null_mut(), isize::MAX as usize);
        let total = |lens: [usize; 2]| total_len(&lens.map(|iov_len| iovec { iov_base: base, iov_len }));
        assert_eq!([[0, 3], [most - 1, 1]].map(total), [Ok(3), Ok(most)]);
        assert_eq!([[most, 1], [usize::MAX, 1]].map(total), [Err(Errno::EINVAL); 2]);
    }
}
