//! Memory that a call leaves to the reactor's thread.
//!
//! A signal handler may call rsend, rrecv and rpoll, and may have interrupted malloc(3), which
//! libibverbs calls for each memory region. In a thread that may be running a handler
//! ([`signals::may_be_in_handler`]), a call therefore goes on with the buffers that it has, and
//! orders the memory for others. The reactor allocates it, and frees what is not used any more,
//! without the stream's lock: the handler may hold the lock of malloc(3) and wait for the stream's.
//! The next call that needs the memory finds it ready. For a first send buffer the call waits a
//! moment (`stream/first_buffer.rs`); without one, messages go inline, in pieces.
//!
//! What a message cannot do without is allocated at once: the send buffer if the device takes no
//! inline data.

use std::ptr::NonNull;
use std::time::Duration;

use super::receive_rings::Grown;
use super::send_buffer::Memory;
use super::{Connection, RdmaWrite};
use crate::errno::Errno;
use crate::rsocket::config::defaults;
use crate::rsocket::growth_budget::Reservation;
use crate::rsocket::reactor::{self, Key};
use crate::sys::signals;
use crate::sys::verbs::ibv_pd;

/// Memory to allocate.
#[derive(Debug)]
struct Order {
    size: u32,
    /// A part of the budget for growing. Memory of a first size needs none.
    reservation: Option<Reservation>,
}

/// Memory that is ready to be used, and its size.
#[derive(Debug, Default)]
pub(super) struct Ready {
    ring: Option<(Grown, u32)>,
    send_buffer: Option<(Memory, u32)>,
    writes: Option<Vec<RdmaWrite>>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Postponed {
    /// The stream's registration with the reactor.
    key: Option<Key>,
    /// The reactor was called, and has not looked yet.
    is_called: bool,
    /// The reactor will look whether the connection is idle.
    is_checked: bool,
    /// The connection is idle: the reactor frees what is ready.
    is_retired: bool,
    /// The reactor uses the PD without the stream's lock.
    is_busy: bool,
    /// A call has waited for the first send buffer in vain, and there is none since.
    is_late: bool,
    ring: Option<Order>,
    send_buffer: Option<Order>,
    /// Number of writes that the outbox is to have memory for.
    writes: Option<usize>,
    /// Sizes of the ring and the send buffer that the reactor is preparing.
    in_work: [Option<u32>; 2],
    ready: Ready,
}

impl Postponed {
    /// Returns whether the calling thread must neither allocate nor free memory. The reactor comes
    /// and does so, if it can be called now. Without a reactor the thread has to do it itself.
    #[cold]
    #[inline(never)]
    pub fn begin(&mut self) -> bool {
        self.is_called && !self.is_late || self.call()
    }

    fn call(&mut self) -> bool {
        let Some(key) = self.key.filter(|_| signals::may_be_in_handler()) else { return false };
        match reactor::call_soon(key) {
            Ok(()) => self.is_called = true,
            Err(Errno::EBADF) => self.is_called = false,
            Err(_) => return true,
        }
        self.is_called
    }

    /// Calls the reactor, which frees what is not used any more. Returns false if it cannot be called
    /// now. Other calls of this connection still allocate and free what they need to.
    pub fn call_now(&self) -> bool {
        self.key.is_some_and(|key| reactor::call_soon(key).is_ok())
    }

    /// The connection has more memory than a new one, or its peer may have: the reactor looks later
    /// whether it is idle.
    #[inline]
    pub fn check_later(&mut self) {
        if !self.is_checked {
            self.check_later_now();
        }
    }

    /// As [`check_later`](Self::check_later). Returns whether the reactor will look. If not, the next
    /// growth of a buffer tries again.
    #[cold]
    #[inline(never)]
    pub fn check_later_now(&mut self) -> bool {
        if let Some((key, time)) = self.idle_timer()
            && !self.is_checked
        {
            self.is_checked = reactor::try_check_later(key, time).is_ok();
        }
        self.is_checked
    }

    /// The reactor has looked. Returns the pause after which it looks again, doubled so many times.
    pub fn checked(&mut self, again: Option<u32>) -> Option<Duration> {
        let pause = again.and_then(|doublings| Some(self.idle_timer()?.1 * (1 << doublings)));
        self.is_checked = pause.is_some();
        pause
    }

    fn idle_timer(&self) -> Option<(Key, Duration)> {
        let time = defaults().idle_time();
        self.key.filter(|_| !time.is_zero()).map(|key| (key, time))
    }

    /// What was prepared for calls and is not used is not needed any more.
    pub fn retire(&mut self) {
        self.is_retired = self.has_ready();
    }

    /// Returns whether something that is not needed any more has not been freed.
    pub fn is_retired(&self) -> bool {
        self.is_retired
    }

    /// Returns whether something was prepared and is not used.
    pub fn has_ready(&self) -> bool {
        self.ready.ring.is_some() || self.ready.send_buffer.is_some()
    }

    /// Returns whether a receive ring of this size is ordered.
    pub fn has_ordered_ring(&self, size: u32) -> bool {
        self.in_work[0] == Some(size) || self.ring.as_ref().is_some_and(|order| order.size == size)
    }

    /// Returns whether a send buffer of this size is ordered.
    pub fn has_ordered_send_buffer(&self, size: u32) -> bool {
        self.in_work[1] == Some(size) || self.send_buffer.as_ref().is_some_and(|order| order.size == size)
    }

    /// Returns whether a send buffer of any size is ordered.
    pub fn awaits_send_buffer(&self) -> bool {
        self.in_work[1].is_some() || self.send_buffer.is_some()
    }

    /// Frees what is ready and not used.
    pub fn give_back(&mut self) {
        self.ready = Ready::default();
    }

    /// Orders a receive ring, unless the reactor cannot be called now.
    pub fn order_ring(&mut self, size: u32, reservation: Reservation) {
        self.ring = self.is_called.then_some(Order { size, reservation: Some(reservation) });
    }

    /// Orders a send buffer, unless the reactor cannot be called now.
    pub fn order_send_buffer(&mut self, size: u32, reservation: Option<Reservation>) {
        self.send_buffer = self.is_called.then_some(Order { size, reservation });
    }

    /// Sets whether a call has waited for the first send buffer in vain. Until there is one, calls do
    /// not wait any more.
    pub fn set_late(&mut self, is_late: bool) {
        self.is_late = is_late;
    }

    /// Returns whether a call has waited for the first send buffer in vain.
    pub fn is_late(&self) -> bool {
        self.is_late
    }

    /// Takes back the order of a send buffer, unless the reactor is preparing it.
    pub fn cancel_send_buffer(&mut self) {
        self.send_buffer = None;
    }

    /// Returns the size of the receive ring that is ready.
    pub fn ring_size(&self) -> Option<u32> {
        self.ready.ring.as_ref().map(|&(_, size)| size)
    }

    /// Takes a receive ring of this size.
    pub fn take_ring(&mut self, size: u32) -> Option<Grown> {
        self.ready.ring.take_if(|ring| ring.1 == size).map(|(ring, _)| ring)
    }

    /// Takes a send buffer whose size satisfies `fits`.
    pub fn take_send_buffer(&mut self, fits: impl Fn(u32) -> bool) -> Option<(Memory, u32)> {
        self.ready.send_buffer.take_if(|&mut (_, size)| fits(size))
    }
}

/// What the reactor does without the stream's lock.
pub(in crate::rsocket::stream) struct Chores {
    /// Valid until [`Connection::finish_chores`].
    pd: NonNull<ibv_pd>,
    ring: Option<Order>,
    send_buffer: Option<Order>,
    /// There is no send buffer: a smaller one will do.
    is_first: bool,
    writes: Option<usize>,
    garbage: Garbage,
}

// SAFETY: any thread may use libibverbs objects.
unsafe impl Send for Chores {}

/// Memory to free.
type Garbage = (Ready, [Option<Grown>; 2], Option<Memory>);

impl Chores {
    /// Frees and allocates. Without memory something stays as it is; it may be ordered again.
    pub fn run(self) -> Prepared {
        drop(self.garbage);
        // SAFETY: the PD is live until `finish_chores`, and outlives the connection.
        let ring = self.ring.and_then(|order| unsafe {
            let ring = Grown::with(order.reservation, self.pd, order.size, true).ok()?;
            Some((ring, order.size))
        });
        // SAFETY: as above.
        let send_buffer = self.send_buffer.and_then(|order| unsafe {
            match order.reservation {
                Some(reservation) => {
                    let memory = Grown::with(Some(reservation), self.pd, order.size, false).ok()?;
                    Some((Memory::Grown(memory), order.size))
                }
                None if self.is_first => Memory::first_or_smaller(self.pd, order.size).ok(),
                None => Some((Memory::first(self.pd, order.size).ok()?, order.size)),
            }
        });
        let writes = self.writes.and_then(|capacity| {
            let mut writes = Vec::new();
            writes.try_reserve_exact(capacity).ok().map(|()| writes)
        });
        Prepared(Ready { ring, send_buffer, writes })
    }
}

/// What the reactor has prepared.
pub(in crate::rsocket::stream) struct Prepared(Ready);

impl Connection {
    /// Sets the stream's registration with the reactor.
    pub fn set_key(&mut self, key: Option<Key>) {
        self.postponed.key = key;
    }

    /// Returns whether the reactor uses the PD without the stream's lock.
    pub fn has_chores(&self) -> bool {
        self.postponed.is_busy
    }

    /// Takes what calls have left to the reactor, which calls [`finish_chores`](Self::finish_chores)
    /// afterwards. The connection is not dropped meanwhile.
    pub fn take_chores(&mut self) -> Option<Chores> {
        self.postponed.is_called = false;
        let pd = self.qp.pd().ok()?;
        let postponed = &mut self.postponed;
        postponed.is_busy = true;
        postponed.in_work =
            [&postponed.ring, &postponed.send_buffer].map(|order| order.as_ref().map(|order| order.size));
        // What is ready and not used will not be: another size has been ordered, or none is needed.
        let is_retired = std::mem::take(&mut postponed.is_retired);
        let stale = Ready {
            ring: postponed.ready.ring.take_if(|_| is_retired || postponed.ring.is_some()),
            send_buffer: postponed.ready.send_buffer.take_if(|_| is_retired || postponed.send_buffer.is_some()),
            writes: None,
        };
        Some(Chores {
            pd,
            ring: postponed.ring.take(),
            send_buffer: postponed.send_buffer.take(),
            is_first: self.send.buffer.is_missing(),
            writes: postponed.writes.take().filter(|_| postponed.ready.writes.is_none()),
            garbage: (stale, self.receive.rings.take_released(), self.send.take_old_buffer()),
        })
    }

    /// Makes the memory ready for the calls that need it. A ring is used at once: the peer may be
    /// waiting for its space, and no call may come. Returns false if the peer has to be told later.
    pub fn finish_chores(&mut self, Prepared(ready): Prepared) -> bool {
        let [ring, send_buffer] = std::mem::take(&mut self.postponed.in_work);
        match (ring, &ready.ring) {
            (Some(_), Some(_)) => self.receive.flow.resize_prepared(),
            (Some(_), None) => self.receive.flow.resize_failed(),
            (None, _) => {}
        }
        let has_failed = send_buffer.is_some() && ready.send_buffer.is_none();
        let is_first = self.send.buffer.is_missing();
        if has_failed && !is_first {
            self.send.buffer.growing_failed();
        }
        let own = &mut self.postponed.ready;
        self.postponed.is_busy = false;
        self.postponed.is_late = has_failed && is_first;
        // The reactor has taken what would be replaced.
        fill(&mut own.ring, ready.ring);
        fill(&mut own.send_buffer, ready.send_buffer);
        fill(&mut own.writes, ready.writes);
        if self.postponed.has_ready() {
            self.postponed.check_later();
        }
        if self.failed.is_none() {
            self.send_credit_updates();
        }
        self.failed.is_some() || !self.receive.flow.wants_credit_update() || self.has_control()
    }

    /// Gives the outbox memory for all writes that can be outstanding. Returns false if it has to do
    /// without.
    pub(super) fn provide_outbox(&mut self) -> bool {
        let capacity = self.send.flow.max_outstanding();
        if self.outbox.has_capacity(capacity) {
            return true;
        }
        if let Some(writes) = self.postponed.ready.writes.take() {
            return self.outbox.set_memory(writes);
        }
        if self.postponed.begin() {
            self.postponed.writes = Some(capacity);
            return false;
        }
        self.outbox.reserve(capacity).is_ok()
    }
}

/// Fills a slot that only the reactor fills.
fn fill<T>(slot: &mut Option<T>, ready: Option<T>) {
    if ready.is_some() {
        debug_assert!(slot.is_none());
        *slot = ready;
    }
}
