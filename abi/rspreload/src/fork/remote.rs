//! A child's calls on an rsocket of its parent, which makes them ([`super::relay`]).
//!
//! Requests do not block in the parent. A call that has to wait asks for a message when it may go
//! on, and waits here, where the program's signals reach it.

use core::cell::Cell;
use core::ffi::{c_int, c_short};
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::{
    EAGAIN, ECONNRESET, EFAULT, EINTR, EPIPE, F_GETFL, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_WAITALL, O_NONBLOCK,
    POLLHUP, POLLIN, POLLOUT, POLLPRI, POLLRDHUP, c_void, iovec, msghdr, pollfd, size_t, sockaddr, socklen_t, ssize_t,
};

use super::message::{self, Head};
use super::thread::SignalsBlocked;
use crate::table::Entry;
use crate::{cancel, errno, next_symbol, rsocket_abi, scratch};

/// Rsockets that one fork(2) shares at most. Each takes a thread of the parent.
pub const MAX_CHANNELS: usize = 64;

/// The lock for a request and its answer. A futex: 1 while it is held.
static LOCK: AtomicU32 = AtomicU32::new(0);

/// In a child of fork(2), which does not have the thread that may hold the lock.
pub fn forget() {
    LOCK.store(0, Ordering::SeqCst);
    CHANNELS.iter().for_each(|known| known.store(0, Ordering::SeqCst));
    WAITERS.iter().for_each(|count| count.store(0, Ordering::SeqCst));
}

/// The channels, plus one, in the order of the pairs of the fork(2).
static CHANNELS: [AtomicI32; MAX_CHANNELS] = [const { AtomicI32::new(0) }; MAX_CHANNELS];

/// Adds a channel.
pub fn add(index: usize, channel: c_int) {
    if let Some(known) = CHANNELS.get(index) {
        known.store(channel + 1, Ordering::SeqCst);
    }
}

/// Whether `fd` is a channel.
pub fn is_channel(fd: c_int) -> bool {
    CHANNELS.iter().any(|known| known.load(Ordering::SeqCst) == fd + 1)
}

/// Closes the child's part: its last number for the rsocket is closed.
pub fn release(entry: Entry) -> c_int {
    for known in &CHANNELS {
        let _ = known.compare_exchange(entry.inner + 1, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
    errno::keeping(|| {
        // The copies that fork(2) made of the rsocket's descriptors. SAFETY: numbers that only this
        // library knows.
        unsafe {
            rsocket_abi::rclose(entry.flags as c_int);
            next_symbol::close(entry.inner)
        }
    })
}

/// Makes a request. Returns its result, or -1 with `errno`. Blocks signals, because a handler may
/// use the same rsocket, and cancellation: the waits for the answer are cancellation points.
fn request(channel: c_int, head: Head, out: &[iovec], into: &[iovec]) -> ssize_t {
    let signals = SignalsBlocked::new();
    lock();
    let result = exchange(channel, head, out, into);
    unlock();
    drop(signals);
    match result {
        Ok(value) if value >= 0 => value as ssize_t,
        Ok(value) => errno::fail(-value),
        // The parent is gone, and the connection with it.
        Err(_) => errno::fail(ECONNRESET),
    }
}

/// Makes a request, and reads what was reported before its answer. A report ends all that was asked
/// for, so what this thread and others still wait for is asked for again.
fn exchange(channel: c_int, head: Head, out: &[iovec], into: &[iovec]) -> Result<c_int, c_int> {
    let own = if head.what == message::ASK { head.value as c_short } else { 0 };
    let (result, taken) = answer(channel, head, out, into)?;
    let others = if taken { wanted_by_others(channel, own) } else { 0 };
    if others != 0 {
        answer(channel, Head { what: message::ASK, value: (others | own).into(), flags: 0 }, &[], &[])?;
    }
    Ok(result)
}

/// Returns the answer, and whether a report came before it.
fn answer(channel: c_int, head: Head, out: &[iovec], into: &[iovec]) -> Result<(c_int, bool), c_int> {
    let mut taken = false;
    message::put(channel, head, out)?;
    loop {
        match message::take(channel, into, MSG_DONTWAIT) {
            Ok((head, _)) if head.what == message::REPLY => return Ok((head.value, taken)),
            Ok(_) => taken = true,
            Err(EAGAIN | EINTR) => until_something_comes(channel),
            Err(error) => return Err(error),
        }
    }
}

/// Uses poll(2), because a message wakes all threads that poll but only one that receives, which
/// may be one that only peeks.
fn until_something_comes(channel: c_int) {
    let mut fds = [pollfd { fd: channel, events: POLLIN, revents: 0 }];
    // SAFETY: an array of one.
    unsafe { next_symbol::poll(fds.as_mut_ptr(), 1, -1) };
}

/// The number of threads that wait for a channel, by its number: to send in the upper half, for
/// anything else in the lower half. Channels that share an index cost a needless check.
static WAITERS: [AtomicU32; 1024] = [const { AtomicU32::new(0) }; 1024];
const ONE_TO_SEND: u32 = 1 << 16;

fn waiters(channel: c_int) -> &'static AtomicU32 {
    &WAITERS[channel as usize % WAITERS.len()]
}

fn weight(events: c_short) -> u32 {
    let send = if events & POLLOUT != 0 { ONE_TO_SEND } else { 0 };
    send + u32::from(events & !POLLOUT != 0)
}

fn enter(channel: c_int, events: c_short) {
    waiters(channel).fetch_add(weight(events), Ordering::SeqCst);
}

fn leave(channel: c_int, events: c_short) {
    waiters(channel).fetch_sub(weight(events), Ordering::SeqCst);
}

/// What a thread waits for: channels and events. A record, because the numbers may be closed by
/// other threads meanwhile, and the thread may be cancelled.
pub struct Waits<'a> {
    channels: &'a [Cell<pollfd>],
    used: Cell<usize>,
}

impl Waits<'_> {
    /// Runs `call`, which enters at most `count` channels at a time. Fails with `ENOMEM`.
    pub fn with<T>(count: usize, call: impl FnOnce(&Waits) -> T) -> Result<T, c_int> {
        if count == 0 {
            return Ok(call(&Waits { channels: &[], used: Cell::new(0) }));
        }
        scratch::with::<pollfd, _>(count, |channels| {
            let waits = Waits { channels: Cell::from_mut(channels).as_slice_of_cells(), used: Cell::new(0) };
            let result = cancel::with_cleanup(|| waits.leave(), || call(&waits));
            waits.leave();
            result
        })
    }

    /// The thread is going to wait for `events`, until [`leave`](Self::leave).
    pub fn enter(&self, channel: c_int, events: c_short) {
        if let Some(record) = self.channels.get(self.used.get()) {
            record.set(pollfd { fd: channel, events, revents: 0 });
            self.used.set(self.used.get() + 1);
            enter(channel, events);
        }
    }

    /// The thread waits no longer for what it has entered.
    pub fn leave(&self) {
        for record in self.channels.iter().take(self.used.replace(0)) {
            let record = record.get();
            leave(record.fd, record.events);
        }
    }
}

/// Whether a thread waits for a channel.
#[cfg(test)]
pub fn is_waited_for(channel: c_int) -> bool {
    wanted_by_others(channel, 0) != 0
}

/// The events that other threads wait for. The caller waits for `own`, or for nothing.
fn wanted_by_others(channel: c_int, own: c_short) -> c_short {
    let others = waiters(channel).load(Ordering::SeqCst).saturating_sub(weight(own));
    let send = if others >= ONE_TO_SEND { POLLOUT } else { 0 };
    if others & (ONE_TO_SEND - 1) != 0 { send | POLLIN | POLLPRI | POLLRDHUP } else { send }
}

fn lock() {
    while LOCK.swap(1, Ordering::Acquire) != 0 {
        futex(libc::FUTEX_WAIT);
    }
}

fn unlock() {
    LOCK.store(0, Ordering::Release);
    futex(libc::FUTEX_WAKE);
}

fn futex(operation: c_int) {
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a static word. Waits for a change from 1, or wakes one thread.
    unsafe { libc::syscall(libc::SYS_futex, LOCK.as_ptr(), operation, 1, ptr::null::<libc::timespec>()) };
}

/// Asks for a report of `events`, for which this thread waits already ([`Waits::enter`]). The
/// report makes the channel readable ([`POLLIN`]); [`reported_events`] reads it.
pub fn ask(channel: c_int, events: c_short) {
    errno::keeping(|| {
        let now = request(channel, Head { what: message::ASK, value: events.into(), flags: 0 }, &[], &[]) > 0;
        if now {
            // The report comes at once: a poll with a time-out of 0 must not miss it.
            until_something_comes(channel);
        }
    });
}

/// The reported events, none if there is no report.
pub fn reported_events(channel: c_int) -> c_short {
    match errno::keeping(|| message::take(channel, &[], MSG_PEEK | MSG_DONTWAIT)) {
        Ok((head, _)) if head.what == message::READY => head.value as c_short,
        Ok(_) | Err(EAGAIN | EINTR) => 0,
        Err(_) => POLLIN | POLLHUP,
    }
}

/// Waits as a blocking call. Returns false if the call fails, with `errno` set.
fn wait(channel: c_int, events: c_short) -> bool {
    enter(channel, events);
    let interrupted = cancel::with_cleanup(
        || leave(channel, events),
        || {
            ask(channel, events);
            // Not by poll(2), so that SA_RESTART applies. At the end of the channel the next
            // request fails.
            message::take(channel, &[], MSG_PEEK) == Err(EINTR)
        },
    );
    leave(channel, events);
    if interrupted {
        errno::set(EINTR);
    }
    !interrupted
}

fn blocks(fd: c_int, flags: c_int) -> bool {
    // SAFETY: a command without an argument.
    flags & MSG_DONTWAIT == 0 && unsafe { next_symbol::fcntl(fd, F_GETFL, 0) } & O_NONBLOCK == 0
}

/// # Safety
/// The pieces are writable.
unsafe fn receive(fd: c_int, channel: c_int, data: &[iovec], flags: c_int) -> ssize_t {
    let all = flags & MSG_WAITALL != 0 && flags & MSG_PEEK == 0;
    let mut done = 0;
    loop {
        let (list, count, total) = message::limited(data, done);
        let head = Head { what: message::RECEIVE, value: total as c_int, flags: flags & !MSG_WAITALL };
        let result = request(channel, head, &[], &list[..count]);
        done += usize::try_from(result).unwrap_or(0);
        let more = if result < 0 { again(fd, channel, flags, POLLIN) } else { all && result > 0 && total > 0 };
        if !more {
            return if done > 0 { done as ssize_t } else { result };
        }
    }
}

/// # Safety
/// The pieces are readable.
unsafe fn transmit(fd: c_int, channel: c_int, data: &[iovec], flags: c_int) -> ssize_t {
    let mut done = 0;
    loop {
        let (list, count, total) = message::limited(data, done);
        if total == 0 && done > 0 {
            return done as ssize_t;
        }
        let head = Head { what: message::SEND, value: total as c_int, flags };
        let result = request(channel, head, &list[..count], &[]);
        done += usize::try_from(result).unwrap_or(0);
        if result == 0 || result < 0 && !again(fd, channel, flags, POLLOUT) {
            if result < 0 && done == 0 && errno::get() == EPIPE && flags & MSG_NOSIGNAL == 0 {
                // SAFETY: a signal to this thread.
                errno::keeping(|| unsafe { libc::raise(libc::SIGPIPE) });
            }
            return if done > 0 { done as ssize_t } else { result };
        }
    }
}

/// Whether to try a failed call again, after waiting.
fn again(fd: c_int, channel: c_int, flags: c_int, events: c_short) -> bool {
    errno::get() == EAGAIN && blocks(fd, flags) && wait(channel, events)
}

/// The list of pieces, empty if the kernel would reject it.
///
/// # Safety
/// There are `count` pieces, or `list` is null.
unsafe fn list<'a>(list: *const iovec, count: usize) -> &'a [iovec] {
    // SAFETY: `count` pieces: guaranteed by the caller.
    if list.is_null() || count > 1024 { &[] } else { unsafe { slice::from_raw_parts(list, count) } }
}

fn piece(buf: *const c_void, len: usize) -> [iovec; 1] {
    [iovec { iov_base: buf.cast_mut(), iov_len: len }]
}

// The calls, by the names of rsocket_abi. They take the program's number before the channel.

pub unsafe fn rread(fd: c_int, channel: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the C contract.
    unsafe { receive(fd, channel, &piece(buf, len), 0) }
}

pub unsafe fn rreadv(fd: c_int, channel: c_int, pieces: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the C contract.
    unsafe { receive(fd, channel, list(pieces, usize::try_from(count).unwrap_or(0)), 0) }
}

pub unsafe fn rrecv(fd: c_int, channel: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the C contract.
    unsafe { receive(fd, channel, &piece(buf, len), flags) }
}

/// The address is left as it is, as TCP does.
pub unsafe fn rrecvfrom(
    fd: c_int,
    channel: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    _addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the C contract.
    unsafe {
        if !addrlen.is_null() {
            addrlen.write(0);
        }
        receive(fd, channel, &piece(buf, len), flags)
    }
}

pub unsafe fn rrecvmsg(fd: c_int, channel: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the C contract.
    unsafe {
        let Some(msg) = msg.as_mut() else { return errno::fail(EFAULT) };
        (msg.msg_namelen, msg.msg_controllen, msg.msg_flags) = (0, 0, 0);
        receive(fd, channel, list(msg.msg_iov, msg.msg_iovlen), flags)
    }
}

pub unsafe fn rwrite(fd: c_int, channel: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the C contract.
    unsafe { transmit(fd, channel, &piece(buf, len), 0) }
}

pub unsafe fn rwritev(fd: c_int, channel: c_int, pieces: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the C contract.
    unsafe { transmit(fd, channel, list(pieces, usize::try_from(count).unwrap_or(0)), 0) }
}

pub unsafe fn rsend(fd: c_int, channel: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the C contract.
    unsafe { transmit(fd, channel, &piece(buf, len), flags) }
}

pub unsafe fn rsendto(
    fd: c_int,
    channel: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    _addr: *const sockaddr,
    _addrlen: socklen_t,
) -> ssize_t {
    // SAFETY: the C contract.
    unsafe { transmit(fd, channel, &piece(buf, len), flags) }
}

pub unsafe fn rsendmsg(fd: c_int, channel: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the C contract.
    unsafe {
        let Some(msg) = msg.as_ref() else { return errno::fail(EFAULT) };
        transmit(fd, channel, list(msg.msg_iov, msg.msg_iovlen), flags)
    }
}

pub unsafe fn rshutdown(_fd: c_int, channel: c_int, how: c_int) -> c_int {
    request(channel, Head { what: message::SHUTDOWN, value: how, flags: 0 }, &[], &[]) as c_int
}
