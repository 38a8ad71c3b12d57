//! Shutting down and closing.

use std::ffi::c_int;
use std::mem;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::options::Linger;
use super::wait::Wait;
use super::{Guard, Notice, Phase, State, Stream, turns};
use crate::errno::{Errno, Result};
use crate::rsocket::forks;
use crate::rsocket::reactor;
use crate::rsocket::wire::Control;
use crate::sys::own;

/// How long the last messages may take to arrive: longer than the transport retries, for a peer that is there but takes nothing.
const FAREWELL: Duration = Duration::from_secs(60);
/// How long closing waits at most for the end of an iWARP connection, for a peer that is not there any more.
const PARTING: Duration = Duration::from_secs(1);

impl Stream {
    /// rshutdown(3). Returns when the peer's adapter has all that was sent.
    pub fn shutdown(&self, how: c_int) -> Result<()> {
        let (read, write) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(Errno::EINVAL),
        };
        let state = self.enter()?;
        match state.phase {
            Phase::Connected => {}
            Phase::Disconnected => return Ok(()),
            Phase::Listening(_) => return if read { self.end_listening(state) } else { Ok(()) },
            _ => return Err(Errno::ENOTCONN),
        }
        drop(self.shut(state, read, write, Instant::now() + FAREWELL));
        Ok(())
    }

    /// A listener that is shut down for reading listens no more, as TCP has it: whoever connects is refused, connections that
    /// were not accepted are dropped, and the socket keeps its address.
    fn end_listening(&self, mut state: Guard<'_>) -> Result<()> {
        let Phase::Listening(listening) = &mut state.phase else { return Ok(()) };
        let (pending, ready) = (mem::take(&mut listening.pending), mem::take(&mut listening.ready));
        let result = self.start_over(&mut state);
        state.shut_read = true;
        drop(state);
        self.notify(Notice::Changed);
        for stream in pending.into_iter().chain(ready) {
            stream.close_unseen();
        }
        result
    }

    /// Ends directions of a connection; waits until what was sent has arrived, at most until `deadline`.
    fn shut<'a>(&'a self, mut state: Guard<'a>, read: bool, write: bool, deadline: Instant) -> Guard<'a> {
        let wrote = state.shut_write;
        state.shut_read |= read;
        state.shut_write |= write;
        let both = state.shut_write && (state.shut_read || state.ended);
        // The peer is told of the end of our data, or of everything; it need not know that nobody reads.
        let message = match (both, write && !wrote) {
            (true, _) => Some(Control::Disconnect),
            (false, true) => Some(Control::Shutdown),
            (false, false) => None,
        };
        if let Some(message) = message {
            state = self.say(state, message, deadline);
            if both {
                state.disconnect(None);
            }
        }
        self.wake_leader(&mut state);
        self.notify(Notice::Changed);
        state
    }

    /// Sends a last message and waits until everything has arrived.
    fn say<'a>(&'a self, mut state: Guard<'a>, message: Control, deadline: Instant) -> Guard<'a> {
        if let Some(link) = &mut state.link {
            link.flushing += 1;
        }
        state = self.say_and_flush(state, message, deadline);
        if let Some(link) = &mut state.link {
            link.flushing -= 1;
        }
        state
    }

    fn say_and_flush<'a>(&'a self, mut state: Guard<'a>, message: Control, deadline: Instant) -> Guard<'a> {
        let mut wait = Wait::until(deadline);
        let mut said = false;
        loop {
            self.poll(&mut state);
            let Some(link) = state.link.as_mut().filter(|link| link.failure().is_none()) else { return state };
            if !said {
                match link.control(message) {
                    Ok(()) => said = true,
                    Err(Errno::EAGAIN) => {}
                    Err(_) => return state,
                }
            }
            if said && link.is_flushed() {
                return state;
            }
            let (back, result) = self.sleep(state, &mut wait);
            state = back;
            // Signals don't end it: there is no way to call again for the rest.
            // Without a connection nothing arrives any more, even if the device does not say so.
            if result == Err(Errno::ETIMEDOUT) || state.lost || matches!(state.phase, Phase::Closed) {
                return state;
            }
        }
    }

    /// Has a thread that sleeps in the completion channel look at what changed.
    fn wake_leader(&self, state: &mut State) {
        if let Some(link) = state.link.as_mut().filter(|link| link.turns.is_led())
            && link.rouse().is_err()
        {
            link.stop();
        }
    }

    /// rclose(3): the caller has taken the number out of the table. Other threads' calls end with `EBADF`.
    pub fn close(&self) -> Result<()> {
        if self.generation != forks::generation() {
            self.close_copies();
            return Ok(());
        }
        let mut state = self.lock();
        if let Phase::Closed = state.phase {
            return Err(Errno::EBADF);
        }
        let limit = match state.options.linger {
            Linger::On(seconds) => Duration::from_secs(seconds.unsigned_abs().into()),
            Linger::Default | Linger::Off(_) => FAREWELL,
        };
        if matches!(state.phase, Phase::Connected) && !limit.is_zero() {
            state = self.shut(state, true, true, Instant::now() + limit);
        }
        state = self.part(state);
        self.end(state);
        Ok(())
    }

    /// iWARP: a work request is complete when TCP has it, and TCP forgets what it has when the connection is torn down. Ends the
    /// connection in order, and waits until the peer's adapter has done so, too.
    fn part<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        let abort = state.options.linger == Linger::On(0);
        if abort || state.lost || !state.link.as_ref().is_some_and(|link| link.parts_in_order()) {
            return state;
        }
        if !state.id().is_ok_and(|id| id.disconnect().is_ok()) {
            return state;
        }
        let deadline = Instant::now() + PARTING;
        while !state.lost && !matches!(state.phase, Phase::Closed) {
            let count = self.changed.count();
            drop(state);
            let result = self.changed.wait(count, Some(deadline));
            state = self.lock();
            if result == Err(Errno::ETIMEDOUT) {
                break;
            }
        }
        state
    }

    /// For a process that ends without rclose(): as that, but the stream stays, and is let be while somebody is busy with it: it may be
    /// the call that is interrupted by the signal handler that ends the process.
    pub fn farewell(&self, deadline: Instant) {
        if self.generation != forks::generation() || Instant::now() >= deadline {
            return;
        }
        let Ok(state) = self.state.try_lock() else { return };
        if matches!(state.phase, Phase::Connected) && state.options.linger != Linger::On(0) {
            drop(self.part(self.shut(state, true, true, deadline)));
        }
    }

    /// As [`close`](Self::close), for a connection that the program never saw.
    pub(super) fn close_unseen(&self) {
        let state = self.lock();
        if !matches!(state.phase, Phase::Closed) {
            self.end(state);
        }
    }

    fn end<'a>(&'a self, mut state: Guard<'a>) {
        let phase = mem::replace(&mut state.phase, Phase::Closed);
        if let Some(link) = state.link.as_mut().filter(|link| link.turns.is_led()) {
            // Ends the leader's sleep. Without one the connection ends in order, which lets the last messages of iWARP arrive.
            link.stop();
        }
        drop(state);
        // Without the lock: watchers look at their members when they let go of one.
        self.notify(Notice::Closed);
        match turns::leave(self, self.lock()) {
            Ok(mut state) => {
                state.release();
                self.channel_fd.store(-1, Ordering::Relaxed);
            }
            // The call that sleeps is the last one to hold the stream, and ends it when it returns.
            Err(mut state) => state.key.take().into_iter().for_each(reactor::forget),
        }
        if let Phase::Listening(listening) = phase {
            for stream in listening.pending.into_iter().chain(listening.ready) {
                stream.close_unseen();
            }
        }
    }

    /// In a child: the connection is the parent's, the descriptors are copies.
    fn close_copies(&self) {
        for fd in [self.fd, self.channel_fd.swap(-1, Ordering::Relaxed)] {
            if fd >= 0 {
                own::close(fd);
            }
        }
    }
}

impl State {
    /// Gives everything back but the memory of the stream.
    pub(super) fn release(&mut self) {
        if let Some(key) = self.key.take() {
            reactor::forget(key);
        }
        if let (Some(id), true) = (&self.id, self.link.is_some()) {
            // Tells the peer at once; it fails when there is no connection any more.
            let _ = id.disconnect();
        }
        // The QP goes with the link, before the memory that the peer may write to.
        self.link = None;
        self.mappings.clear();
        self.domain = None;
        self.id = None;
    }
}
