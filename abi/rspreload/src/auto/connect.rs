//! connect(2) on a TCP socket in automatic mode: attempts to connect over RDMA, and falls back to
//! TCP.
//!
//! The attempt of a non-blocking socket has a slot, and is completed by the thread of
//! [`super::thread`]. The `handle` of the descriptor's table entry is the slot's ticket, which
//! differs for each attempt: the result of an attempt reaches the descriptor only if the entry
//! still has the attempt's ticket. The thread works on a duplicate of the TCP descriptor, so the
//! program may close the original.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr};
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicUsize};

use libc::{
    EACCES, EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EAGAIN, ECONNABORTED, ECONNREFUSED, ECONNRESET, EINPROGRESS,
    EINVAL, EMFILE, ENFILE, ENOBUFS, ENOMEM, EPERM, ETIMEDOUT, F_SETFL, O_NONBLOCK, POLLOUT, SOL_SOCKET, epoll_event,
    pollfd, sockaddr, socklen_t,
};

use super::log::Reason;
use super::route::Fact;
use super::{connections, log, route, thread};
use crate::epoll::members;
use crate::memory::{plain, zero};
use crate::process::Deadline;
use crate::sockets::{self, AtomicName, SockAddr, kernel, rdma};
use crate::table::{Entry, Kind};
use crate::thread::{CancelDisabled, SignalsBlocked, with_cleanup, without_cancel};
use crate::transition::Moving;
use crate::{config, errno, next_symbol, open_fds, process, rsocket, table, tcp, transition};

/// connect(2), over RDMA or TCP.
///
/// # Safety
/// `addr` is NULL or readable for `len` bytes.
pub unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: `addr` is NULL or has `len` bytes: guaranteed by the caller.
    let next = || unsafe { next_symbol::connect(fd, addr, len) };
    // SAFETY: `addr` is NULL or has `len` bytes: guaranteed by the caller.
    let Some(to) = (unsafe { SockAddr::read(addr, len) }) else { return next() };
    let (given, to) = (to, to.of_device());
    let mut limit = None;
    match errno::keeping(|| without_cancel(|cancel| by_rdma(fd, &given, &to, &mut limit, cancel))) {
        Ok(None) => 0,
        Ok(Some(error)) => errno::fail(error),
        Err(None) => next(),
        Err(Some(reason)) => {
            log::connection(fd, &to, reason);
            let result = match limit {
                None => next(),
                Some(limit) => before(fd, &limit, next),
            };
            if result == 0 {
                remember_rejection(&to, reason, u64::MAX);
            }
            result
        }
    }
}

/// Makes a call with SO_SNDTIMEO reduced to the time until `limit`, and restores the option.
fn before(fd: c_int, limit: &Deadline, call: impl FnOnce() -> c_int) -> c_int {
    const NAME: (c_int, c_int) = (libc::SOL_SOCKET, libc::SO_SNDTIMEO);
    let Some((programs, _)) = kernel::get::<libc::timeval>(fd, NAME) else { return call() };
    // At least 1, since a timeout of 0 is no limit.
    let left = i64::from(limit.left().max(1));
    let rest = libc::timeval { tv_sec: left / 1000, tv_usec: left % 1000 * 1000 };
    let _ = kernel::set(fd, NAME, &rest);
    let restore = || {
        let _ = kernel::set(fd, NAME, &programs);
    };
    let result = with_cleanup(restore, call);
    restore();
    result
}

/// Connects over RDMA. Returns `Ok(None)` if connected, or `Ok` with the errno for connect(2).
/// Fails with the reason for TCP, or with `None` if there is nothing to log. `given` is the
/// destination that the program has passed; `to` has an IPv4-mapped address as IPv4. Before the
/// attempt of a blocking socket with SO_SNDTIMEO, sets `limit` to the option's deadline. `cancel`
/// allows cancellation during a wait.
fn by_rdma(
    fd: c_int,
    given: &SockAddr,
    to: &SockAddr,
    limit: &mut Option<Deadline>,
    cancel: &CancelDisabled,
) -> Result<Option<c_int>, Option<Reason>> {
    let ruled_out = route::ruled_out(to);
    if ruled_out.is_err() && !crate::config::logs() {
        // Nothing is logged, so the kind of socket does not matter.
        return Err(None);
    }
    // Only the kernel handles connect(2) on a socket that is connected, connecting, or listening.
    let is_used = || tcp::state(fd).is_some_and(|state| state != base::sock_diag::CLOSED);
    if !route::is_candidate(fd, to.family()) || is_used() || !has_address(fd, given, to) {
        return Err(None);
    }
    log::problems();
    ruled_out?;
    // Before the next check, which makes rsockets.
    let _blocking = Blocking::begin();
    Reason::Descriptors.unless(connections::has_room(false))?;
    route::allows_rdma(fd, to)?;
    // Make these checks before the attempt, because an attempt that has succeeded cannot be given
    // up.
    Reason::NotOwn.unless(members::are_known(fd))?;
    Reason::Instances.unless(!members::are_too_many(fd))?;
    Reason::Ring.unless(!route::has_ring())?;
    let is_blocking = tcp::is_blocking(fd);
    let timeout = if is_blocking { tcp::send_timeout(fd) } else { 0 };
    *limit = (timeout > 0).then(|| Deadline::after(timeout));
    let rsocket = begin(fd, to)?;
    let ended = if is_blocking {
        let undo = || {
            rsocket::close(rsocket);
            BLOCKING.fetch_sub(1, SeqCst);
        };
        cancel.allow(undo, || wait(rsocket, to, limit.as_ref()))
    } else {
        match submit(fd, rsocket, to) {
            Ok(()) => return Ok(Some(EINPROGRESS)),
            Err(reason) => give_up(rsocket, || reason),
        }
    };
    if let Err(reason) = ended {
        rsocket::close(rsocket);
        return Err(Some(reason));
    }
    // Make the rsocket report its success, so that the program's next connect(2) fails with
    // `EISCONN`.
    rdma::connect(rsocket, to);
    // The program's epoll instances would report the kernel socket, which is not connected.
    members::leave(fd);
    let connected = transition::become_rsocket(fd, fd, None, rsocket, transition::AUTO);
    members::join(fd);
    if !connected {
        rsocket::close(rsocket);
        return Err(Some(Reason::Busy));
    }
    log::connection(fd, to, Reason::Connected);
    Ok(None)
}

/// Number of calls of connect(2) that are attempting RDMA. Negative in a child of fork(2) whose
/// thread has forked in such a call.
static BLOCKING: AtomicI32 = AtomicI32::new(0);

/// One of them.
struct Blocking;

impl Blocking {
    fn begin() -> Blocking {
        BLOCKING.fetch_add(1, SeqCst);
        Blocking
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        BLOCKING.fetch_sub(1, SeqCst);
    }
}

/// Returns the number of attempts under way.
pub fn attempts() -> usize {
    usize::try_from(BLOCKING.load(SeqCst)).unwrap_or(0) + ready().count()
}

/// Whether the socket's family and IPV6_V6ONLY allow the destination; connect(2) fails otherwise.
fn has_address(fd: c_int, given: &SockAddr, to: &SockAddr) -> bool {
    let v6only = || tcp::int(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) != Some(0);
    tcp::family(fd) == Some(given.family()) && (given.family() == to.family() || !v6only())
}

/// How long a rejection over RDMA is remembered if the result of TCP is not known yet: a client
/// that retries until the server has started must soon try RDMA again.
const REJECTED_SECONDS: u64 = 2;

/// Begins to connect a non-blocking rsocket in place of the TCP socket `fd`. Returns the rsocket's
/// descriptor, or the reason for TCP.
fn begin(fd: c_int, to: &SockAddr) -> Result<c_int, Reason> {
    let mut error = 0;
    let rsocket = tcp::make_rsocket(to, |rsocket| {
        let begun = connect_rsocket(fd, rsocket, to);
        error = errno::get();
        begun
    });
    rsocket.ok_or_else(|| if error == 0 { Reason::Busy } else { ended(to, error) })
}

fn connect_rsocket(fd: c_int, rsocket: c_int, to: &SockAddr) -> bool {
    route::copy_early_options(fd, rsocket);
    tcp::copy_reuse(fd, rsocket);
    rdma::fcntl(rsocket, F_SETFL, O_NONBLOCK);
    // Bind to the address and port that the program has chosen.
    if route::bound(fd).is_some_and(|own| rdma::bind(rsocket, &in_family(&own, to)) != 0) {
        return false;
    }
    rdma::connect(rsocket, to) == 0 || errno::get() == EINPROGRESS
}

/// Returns the program's local address in the family of the destination: the wildcard address of an
/// IPv6 socket covers both families.
fn in_family(own: &SockAddr, to: &SockAddr) -> SockAddr {
    match to.address() {
        IpAddr::V4(_) if own.address().is_unspecified() => SockAddr::new(Ipv4Addr::UNSPECIFIED.into(), own.port()),
        _ => own.of_device(),
    }
}

/// Waits for the end of an attempt, at most for the configured timeout and for half of the time
/// until `limit`, which leaves the rest to TCP. A signal does not end the wait. Fails with the
/// reason for TCP.
fn wait(rsocket: c_int, to: &SockAddr, limit: Option<&Deadline>) -> Result<(), Reason> {
    let mut fds = [pollfd { fd: rsocket, events: POLLOUT, revents: 0 }];
    let end = Deadline::after(config::timeout());
    let half = limit.map(|limit| Deadline::after((limit.left() / 2).max(1)));
    let half = half.filter(|half| half.left() < end.left());
    if tcp::poll(&mut fds, half.as_ref().unwrap_or(&end)) {
        result(rsocket, to)
    } else if half.is_none() {
        expire(rsocket, to)
    } else {
        // The host had less than the configured time, so its silence is not remembered.
        give_up(rsocket, || Reason::Silent)
    }
}

/// Cancels an attempt that has timed out. Returns `Ok` if the attempt has succeeded meanwhile.
pub fn expire(rsocket: c_int, to: &SockAddr) -> Result<(), Reason> {
    give_up(rsocket, || ended(to, ETIMEDOUT))
}

/// Gives up an attempt and fails with `reason`, unless the attempt has succeeded meanwhile.
fn give_up(rsocket: c_int, reason: impl FnOnce() -> Reason) -> Result<(), Reason> {
    match rsocket::set_library_option(rsocket, base::private::CANCEL) {
        Err(libc::EISCONN) => Ok(()),
        _ => Err(reason()),
    }
}

/// The result of an attempt that has ended.
pub fn result(rsocket: c_int, to: &SockAddr) -> Result<(), Reason> {
    match rdma::get::<c_int>(rsocket, (SOL_SOCKET, libc::SO_ERROR)).map_or_else(errno::get, |(error, _)| error) {
        0 if rdma::peer(rsocket).is_some() => Ok(()),
        0 => Err(ended(to, ECONNREFUSED)),
        error => Err(ended(to, error)),
    }
}

/// Returns why an attempt has failed, and remembers a host that did not answer.
fn ended(to: &SockAddr, error: c_int) -> Reason {
    match error {
        ECONNREFUSED => Reason::Rejected,
        // These errors say nothing about the host: this end lacks a port, address, descriptor,
        // memory or permission, or the host has answered, and its server was closing.
        ECONNRESET | ECONNABORTED | EADDRINUSE | EADDRNOTAVAIL | EAFNOSUPPORT | EINVAL | EMFILE | ENFILE | ENOMEM
        | ENOBUFS | EAGAIN | EPERM | EACCES => Reason::Failed(error),
        _ => {
            route::remember(Fact::Silent(to.address()));
            if error == ETIMEDOUT { Reason::Silent } else { Reason::Failed(error) }
        }
    }
}

/// If a port has rejected RDMA, remembers this for at most `seconds`.
fn remember_rejection(to: &SockAddr, reason: Reason, seconds: u64) {
    if reason == Reason::Rejected {
        route::remember_for(seconds, Fact::Rejected(to.address(), to.port()));
    }
}

/// Maximum number of simultaneous attempts of a process.
pub const MAX_ATTEMPTS: usize = 256;

/// The rest of a slot after an attempt, in nanoseconds. A resting slot is reused only if no rested
/// slot is free.
const REST: i64 = 20_000_000;

static SLOTS: [Attempt; MAX_ATTEMPTS] = zero();

/// Number of slots, counted from the first, that may have been used.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

const FREE: u32 = 0;
/// The slot is being filled or emptied.
const CLAIMED: u32 = 1;
const READY: u32 = 2;

/// A slot for the attempt of a non-blocking socket.
pub struct Attempt {
    state: AtomicU32,
    ticket: AtomicI32,
    /// The program's descriptor.
    fd: AtomicI32,
    /// The duplicate of the TCP descriptor, plus one; 0 if there is no duplicate.
    tcp: AtomicI32,
    rsocket: AtomicI32,
    /// The time at which the attempt times out, on the monotonic clock.
    end: AtomicI64,
    to: AtomicName,
    /// The descriptor, plus one, of an eventfd that is readable once the attempt has ended; 0 until
    /// the slot's first attempt.
    done: AtomicI32,
    /// The time at which the last attempt ended, on the monotonic clock.
    freed: AtomicI64,
}

plain! { Attempt }

impl Attempt {
    /// Changes the state from `from` to `CLAIMED`. Returns false if the state is not `from`.
    fn claim(&self, from: u32) -> bool {
        self.state.compare_exchange(from, CLAIMED, SeqCst, SeqCst).is_ok()
    }

    /// The duplicate of the TCP descriptor, or -1 if there is no duplicate.
    fn tcp(&self) -> c_int {
        self.tcp.load(SeqCst) - 1
    }

    fn close_tcp(&self) {
        open_fds::close(self.tcp.swap(0, SeqCst) - 1);
    }

    /// The rsocket of the attempt.
    pub fn rsocket(&self) -> c_int {
        self.rsocket.load(SeqCst)
    }

    /// The milliseconds until the attempt is given up.
    pub fn left(&self) -> c_int {
        process::left_until(self.end.load(SeqCst))
    }

    /// The ticket of the current or the last attempt.
    pub fn ticket(&self) -> c_int {
        self.ticket.load(SeqCst)
    }

    /// The socket's table entry, or `None` if the descriptor no longer has the attempt's entry.
    pub fn entry(&self) -> Option<Entry> {
        let ticket = self.ticket();
        table::get(self.fd.load(SeqCst)).filter(|entry| entry.kind == Kind::Connecting && entry.handle == ticket)
    }

    /// Ends the attempt with the result of `end` ([`result`] or [`expire`]), unless another thread
    /// is ending the attempt.
    pub fn finish_by(&self, end: fn(c_int, &SockAddr) -> Result<(), Reason>) {
        if let Some(to) = self.to.load() {
            self.finish(end(self.rsocket(), &to));
        }
    }

    /// Ends the attempt: the socket becomes the rsocket, or TCP if `result` is a reason. Does
    /// nothing if another thread is ending the attempt.
    pub fn finish(&self, result: Result<(), Reason>) {
        // A signal handler on this thread that waited for the end of the attempt would deadlock.
        let signals = SignalsBlocked::new();
        if !self.claim(READY) {
            return;
        }
        let (fd, copy, rsocket) = (self.fd.load(SeqCst), self.tcp(), self.rsocket());
        let to = self.to.load();
        // Held until the descriptor is a member of its epoll instances again: meanwhile `control`
        // must not change the record of the instances.
        let moving = Moving::begin(fd);
        let entry = self.entry().filter(|&entry| {
            // A descriptor that refers to another file now was closed by a call that is not
            // intercepted.
            let is_same = tcp::identity(fd) == tcp::identity(copy);
            if !is_same {
                table::replace(fd, Some(entry), None);
            }
            is_same
        });
        // An attempt that is given up may have succeeded just now.
        let result = match result {
            Err(reason @ (Reason::SocketShared | Reason::Instances)) => give_up(rsocket, || reason),
            result => result,
        };
        let becomes_it = |entry| transition::become_rsocket(fd, copy, Some(entry), rsocket, transition::AUTO);
        let result = result.and_then(|()| Reason::Busy.unless(entry.is_some_and(becomes_it)));
        if result.is_err() {
            rsocket::close(rsocket);
        }
        if let (Some(entry), Some(to)) = (entry, to) {
            // Log before the program learns the result and can log its close(2).
            log::connection(fd, &to, result.err().unwrap_or(Reason::Connected));
            if let Err(reason) = result {
                transition::connect_tcp(copy, &to);
                remember_rejection(&to, reason, REJECTED_SECONDS);
                // Close the duplicate before the program learns the result: the program may close
                // its socket, and bind another one to the port.
                self.close_tcp();
                table::replace(fd, Some(entry), None);
            }
        }
        self.close_tcp();
        if entry.is_some() {
            members::join(fd);
        }
        drop(moving);
        drop(signals);
        // Wakes the threads that poll the socket.
        errno::keeping(|| sockets::write(self.done.load(SeqCst) - 1, &1_u64.to_ne_bytes()));
        transition::announce();
        self.free();
    }

    fn free(&self) {
        self.close_tcp();
        self.freed.store(process::now(), SeqCst);
        self.state.store(FREE, SeqCst);
    }

    /// Whether waiters had time to see the end of the last attempt: the next attempt clears the
    /// eventfd.
    fn has_rested(&self) -> bool {
        let freed = self.freed.load(SeqCst);
        freed == 0 || process::now() - freed > REST
    }

    /// Creates the eventfd, or clears it after the last attempt. Returns false if it cannot be
    /// created.
    fn reset_done(&self) -> bool {
        if self.done.load(SeqCst) == 0 {
            let new = open_fds::create_eventfd();
            self.done.store(new + 1, SeqCst);
            return new >= 0;
        }
        sockets::read(self.done.load(SeqCst) - 1, &mut [0; 8]);
        true
    }
}

/// The attempts under way.
pub fn ready() -> impl Iterator<Item = &'static Attempt> {
    SLOTS.iter().take(HIGHEST.load(SeqCst)).filter(|slot| slot.state.load(SeqCst) == READY)
}

/// The slot of an entry's ticket, or `None` if the slot has another ticket now.
fn of(entry: Entry) -> Option<&'static Attempt> {
    let slot = SLOTS.get(usize::try_from(entry.handle).ok()? % MAX_ATTEMPTS)?;
    (slot.ticket() == entry.handle).then_some(slot)
}

/// Gives the socket `fd`, for which `rsocket` connects, a slot and an entry. Fails with `Busy` if
/// there is no free slot, descriptor or memory.
fn submit(fd: c_int, rsocket: c_int, to: &SockAddr) -> Result<(), Reason> {
    let slots = || SLOTS.iter().enumerate();
    let rested = slots().find(|(_, slot)| slot.has_rested() && slot.claim(FREE));
    let claimed = rested.or_else(|| slots().find(|(_, slot)| slot.claim(FREE)));
    let Some((index, slot)) = claimed else { return Err(Reason::Busy) };
    HIGHEST.fetch_max(index + 1, SeqCst);
    let turns = slot.ticket() as usize / MAX_ATTEMPTS + 1;
    let ticket = ((turns * MAX_ATTEMPTS + index) & (i32::MAX as usize >> 1)) as c_int;
    slot.ticket.store(ticket, SeqCst);
    slot.fd.store(fd, SeqCst);
    slot.tcp.store(open_fds::duplicate(fd) + 1, SeqCst);
    if slot.tcp() < 0 || !slot.reset_done() || table::prepare(fd).is_err() {
        slot.free();
        return Err(Reason::Busy);
    }
    slot.rsocket.store(rsocket, SeqCst);
    slot.end.store(process::now() + i64::from(config::timeout()) * 1_000_000, SeqCst);
    slot.to.store(to);
    let entry = Entry { kind: Kind::Connecting, flags: 0, handle: ticket };
    // A signal handler that used the descriptor now would wait for an attempt that cannot begin.
    let signals = SignalsBlocked::new();
    table::swap(fd, Some(entry));
    members::leave(fd);
    slot.state.store(READY, SeqCst);
    drop(signals);
    if !thread::wake() {
        slot.finish(Err(Reason::Busy));
    }
    Ok(())
}

/// The eventfd that stands for the socket in poll(2), or -1 if the attempt has ended.
pub fn done(entry: Entry) -> c_int {
    of(entry).map_or(-1, |slot| slot.done.load(SeqCst) - 1)
}

/// epoll_ctl(2) on a descriptor whose attempt is under way. Returns the result, or `None` if the
/// attempt has ended and the caller must make the call again.
pub fn control(epfd: c_int, op: c_int, fd: c_int, entry: Entry, event: Option<epoll_event>) -> Option<c_int> {
    let slot = of(entry)?;
    let moving = Moving::begin(fd);
    let is_under_way = slot.entry() == Some(entry) && slot.state.load(SeqCst) == READY;
    let result = is_under_way.then(|| members::control(epfd, op, fd, event));
    drop(moving);
    match result {
        None => {
            transition::wait_for_change(fd, entry);
        }
        Some(Err(libc::E2BIG)) => slot.finish(Err(Reason::Instances)),
        Some(result) => return Some(result.map_or_else(errno::fail, |()| 0)),
    }
    None
}

/// Called when a descriptor has lost its entry while its attempt was under way: gives up the
/// attempt.
pub fn abandon(entry: Entry) {
    stay_tcp(entry);
    thread::wake();
}

/// Gives up the attempt: the socket becomes TCP, unless the attempt has succeeded meanwhile.
pub fn stay_tcp(entry: Entry) {
    if let Some(slot) = of(entry) {
        slot.finish(Err(Reason::SocketShared));
    }
}

/// In a child of fork(2): removes the attempts, which are the parent's.
pub fn in_child() {
    BLOCKING.store(0, SeqCst);
    for slot in &SLOTS {
        if slot.state.load(SeqCst) != FREE {
            if let Some(entry) = slot.entry() {
                table::replace(slot.fd.load(SeqCst), Some(entry), None);
            }
            // Closes the child's copy: the parent goes on with the attempt.
            rsocket::close(slot.rsocket());
            slot.free();
        }
        open_fds::close(slot.done.swap(0, SeqCst) - 1);
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_answer_is_not_silence() {
        let remembered = |number, error| {
            let to = SockAddr::new(Ipv4Addr::new(203, 0, 113, number).into(), 1);
            ended(&to, error);
            route::is_known(Fact::Silent(to.address()))
        };
        assert_eq!([ECONNRESET, ECONNREFUSED, EMFILE].map(|error| remembered(1, error)), [false; 3]);
        assert_eq!([ETIMEDOUT, libc::EHOSTUNREACH].map(|error| remembered(2, error)), [true; 2]);
    }
}
