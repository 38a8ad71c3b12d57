//! Deciding what a pending socket becomes: by one thread, while others that want to use it wait.
//!
//! The decision works on a copy of the TCP descriptor. So the program may close its own meanwhile: the table then has
//! another entry than the deciding thread left there, and what it made is thrown away.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use libc::{EAGAIN, F_DUPFD_CLOEXEC, F_GETFL, F_SETFL, O_NONBLOCK};

use super::state::{Role, State};
use super::{Way, active, copy, member, others, share, slots};
use crate::epoll::Deadline;
use crate::table::{self, Entry, Kind};
use crate::{errno, fds, r, real};

/// What a decision came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is this rsocket, connected.
    Rsocket(c_int),
    /// It is an ordinary TCP socket for good.
    Tcp,
    /// Not decided yet, and nothing that the call at hand could do but fail so.
    Later(c_int),
    /// Used as TCP, but the peer's word may still come.
    Late,
}

/// How long either end waits for the other, in milliseconds, when it is not the program's own wish to wait.
pub const PATIENCE: c_int = 10_000;

/// How long a thread waits for another's decision, in seconds: longer than one takes. The other thread may be one of
/// the parent, from before a fork().
const LONG: i64 = 60;

/// Decisions so far: a futex.
static DECISIONS: AtomicU32 = AtomicU32::new(0);

/// [`super::settle`].
pub fn settle(fd: c_int, entry: Entry, way: Way) -> Result<Option<c_int>, c_int> {
    let mut seen = Some(entry);
    loop {
        let decisions = DECISIONS.load(Ordering::SeqCst);
        let entry = match seen {
            Some(entry @ Entry { kind: Kind::Pending, .. }) => entry,
            Some(Entry { kind: Kind::Socket, inner, .. }) => return Ok(Some(inner)),
            _ => return Ok(None),
        };
        let state = State::of(entry);
        if state.role == Role::Fresh || state.role == Role::Late && way.sends() {
            return Ok(None);
        }
        if state.role == Role::Passive {
            if let Some(error) = settle_accepted(fd, entry, way, decisions) {
                return Err(error);
            }
            seen = table::get(fd);
            continue;
        }
        // `seen` may be older than the number of decisions.
        if state.busy && (table::get(fd) != Some(entry) || wait(decisions)) {
            seen = table::get(fd);
            continue;
        }
        if !state.busy && way == Way::Receive {
            hear(fd)?;
        }
        match begin(fd, entry, decisions, way) {
            Some(Err(EAGAIN)) if way == Way::Receive => {}
            Some(result) => return result,
            None => {}
        }
        seen = table::get(fd);
    }
}

/// Waits for the handshake of an accepted connection. A call that can't wait fails with the result;
/// after `None` it is to be looked at again.
fn settle_accepted(fd: c_int, entry: Entry, way: Way, decisions: u32) -> Option<c_int> {
    if !State::of(entry).has_ticket() {
        slots::begin(fd, entry);
    } else if way.waits() && is_blocking(fd) {
        // `entry` may be older than the number of decisions.
        if table::get(fd) == Some(entry) && !wait(decisions) {
            slots::stay_tcp(fd, entry);
        }
    } else if way == Way::Shutdown {
        // No call that may fail with EAGAIN, and who shuts down what has not been used yet gives
        // up.
        slots::stay_tcp(fd, entry);
    } else {
        return Some(EAGAIN);
    }
    None
}

/// Waits until `fd` has another entry, at least for a handshake's longest time.
pub fn await_decision(fd: c_int, entry: Entry) {
    loop {
        let decisions = DECISIONS.load(Ordering::SeqCst);
        if table::get(fd) != Some(entry) || !wait(decisions) {
            return;
        }
    }
}

/// Decides if no other thread does: `None` means to look again.
fn begin(fd: c_int, entry: Entry, decisions: u32, way: Way) -> Option<Result<Option<c_int>, c_int>> {
    let Some(turn) = copy::take_turn(fd) else {
        if !wait(decisions) {
            copy::end_turn(fd);
        }
        return None;
    };
    let busy = State::of(entry).busy(true);
    let result = table::replace(fd, Some(entry), Some(busy.entry())).then(|| decide(fd, busy, way));
    drop(turn);
    announce();
    result
}

/// Waits for what the peer says, as the program's recv(2) would: with its flags, its time-out, and its signals. Not as
/// the deciding thread: another one may want to send meanwhile.
fn hear(fd: c_int) -> Result<(), c_int> {
    if is_silent(fd) && is_blocking(fd) && others::exist(fd) {
        others::wait(fd, &Deadline::after(receive_timeout(fd)));
    }
    peek(fd, &mut [0], 0).map(|_| ())
}

fn is_blocking(fd: c_int) -> bool {
    // SAFETY: a command without an argument.
    unsafe { real::fcntl(fd, F_GETFL, 0) & O_NONBLOCK == 0 }
}

/// SO_RCVTIMEO in milliseconds, -1 for none.
fn receive_timeout(fd: c_int) -> c_int {
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut len = size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: a structure of this size.
    unsafe {
        real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw mut time).cast(), &raw mut len);
    }
    match time.tv_sec.saturating_mul(1000).saturating_add(time.tv_usec / 1000) {
        0 => -1,
        some => c_int::try_from(some).unwrap_or(c_int::MAX),
    }
}

/// Decides, as the one thread that does, and leaves the table as it is to be.
fn decide(fd: c_int, busy: State, way: Way) -> Result<Option<c_int>, c_int> {
    // SAFETY: takes a number.
    let tcp = unsafe { real::fcntl(fd, F_DUPFD_CLOEXEC, 0) };
    let outcome = if tcp < 0 { Outcome::Tcp } else { active::decide(tcp, busy.role, way) };
    let result = commit(fd, tcp, busy.entry(), outcome);
    if tcp >= 0 {
        // SAFETY: this function's own copy.
        unsafe { real::close(tcp) };
    }
    result
}

/// Puts the outcome for a number into the table, if it still has `entry`.
pub fn commit(fd: c_int, tcp: c_int, entry: Entry, outcome: Outcome) -> Result<Option<c_int>, c_int> {
    let idle = State::of(entry).busy(false);
    let (next, result) = match outcome {
        Outcome::Rsocket(inner) => return Ok(become_rsocket(fd, tcp, entry, inner)),
        Outcome::Tcp => match copy::find(tcp) {
            // Decided by a copy of the number meanwhile.
            Some(rsocket) => return Ok(take(fd, entry, rsocket)),
            None => (None, Ok(None)),
        },
        Outcome::Late => (Some(idle.with(Role::Late)), Ok(None)),
        Outcome::Later(error) => (Some(idle), Err(error)),
    };
    // If it is another entry by now the program has closed the number: its own call is to find that out.
    let stays = table::replace(fd, Some(entry), next.map(State::entry));
    if stays && outcome == Outcome::Tcp {
        copy::stay_tcp(tcp);
    }
    result
}

fn become_rsocket(fd: c_int, tcp: c_int, entry: Entry, inner: c_int) -> Option<c_int> {
    copy_options(tcp, inner);
    if table::first(inner).is_err() {
        // SAFETY: an rsocket that nobody else knows. The peer is told by its end.
        unsafe { r::rclose(inner) };
        table::replace(fd, Some(entry), None);
        return None;
    }
    let now = take(fd, entry, Entry::rsocket(inner, share::DECIDED));
    if now.is_some() {
        copy::share(tcp, inner, hand_over);
        // The peer does the same; whoever has another copy of the TCP socket, a parent perhaps, sees that it is used up.
        // SAFETY: takes a number.
        unsafe { real::shutdown(tcp, libc::SHUT_RDWR) };
    }
    now
}

/// Puts an rsocket into the table, with the caller's reference; `None` if the program has closed the number.
fn take(fd: c_int, entry: Entry, rsocket: Entry) -> Option<c_int> {
    share::made();
    if table::replace(fd, Some(entry), Some(rsocket)) {
        hand_over(fd, State::of(entry));
        return Some(rsocket.inner);
    }
    fds::release(rsocket);
    None
}

fn hand_over(fd: c_int, state: State) {
    if let Some(epfd) = state.epoll() {
        member::hand_over(epfd, fd);
    }
}

/// What the program has set on the TCP socket and rsockets have too.
fn copy_options(tcp: c_int, inner: c_int) {
    use libc::{IPPROTO_TCP, SOL_SOCKET};
    const ALWAYS: [(c_int, c_int); 4] = [
        (SOL_SOCKET, libc::SO_REUSEADDR),
        (IPPROTO_TCP, libc::TCP_NODELAY),
        (SOL_SOCKET, libc::SO_RCVTIMEO),
        (SOL_SOCKET, libc::SO_SNDTIMEO),
    ];
    const KEEPALIVE: [(c_int, c_int); 4] = [
        (IPPROTO_TCP, libc::TCP_KEEPIDLE),
        (IPPROTO_TCP, libc::TCP_KEEPINTVL),
        (IPPROTO_TCP, libc::TCP_KEEPCNT),
        (SOL_SOCKET, libc::SO_KEEPALIVE),
    ];
    // What these two are without the program's wish is another thing for an rsocket.
    let wished = |level, name| option(tcp, level, name).is_some_and(|(value, _)| value[0] != 0);
    let keepalive = if wished(SOL_SOCKET, libc::SO_KEEPALIVE) { &KEEPALIVE[..] } else { &[] };
    let linger = if wished(SOL_SOCKET, libc::SO_LINGER) { &[(SOL_SOCKET, libc::SO_LINGER)][..] } else { &[] };
    for &(level, name) in ALWAYS.iter().chain(keepalive).chain(linger) {
        if let Some((value, len)) = option(tcp, level, name) {
            // SAFETY: a value of this size.
            unsafe { r::rsetsockopt(inner, level, name, value.as_ptr().cast(), len) };
        }
    }
    // SAFETY: commands that take a number or nothing.
    unsafe {
        let flags = real::fcntl(tcp, F_GETFL, 0);
        r::rfcntl(inner, F_SETFL, if flags < 0 { 0 } else { flags & O_NONBLOCK });
    }
}

/// An option of a socket of the kernel's.
fn option(tcp: c_int, level: c_int, name: c_int) -> Option<([c_int; 4], libc::socklen_t)> {
    // Of the structures among them a timeval is the largest.
    let (mut value, mut len) = ([0; 4], size_of::<libc::timeval>() as libc::socklen_t);
    // SAFETY: room for so many bytes.
    let result = unsafe { real::getsockopt(tcp, level, name, value.as_mut_ptr().cast(), &raw mut len) };
    (result == 0).then_some((value, len))
}

/// Waits for the decision after `seen`; false when it is not to be waited for any longer.
fn wait(seen: u32) -> bool {
    let long = libc::timespec { tv_sec: LONG, tv_nsec: 0 };
    let word = DECISIONS.as_ptr();
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word and a time that outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_futex, word, operation, seen, &raw const long) };
    result == 0 || errno::get() != libc::ETIMEDOUT
}

/// Wakes the threads that wait for a decision.
pub fn announce() {
    DECISIONS.fetch_add(1, Ordering::SeqCst);
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: only the address of the word is used.
    unsafe { libc::syscall(libc::SYS_futex, DECISIONS.as_ptr(), operation, c_int::MAX) };
}

/// What of `len` bytes is there without taking it: as recv(2), or the errno.
pub fn peek(tcp: c_int, bytes: &mut [u8], flags: c_int) -> Result<usize, c_int> {
    // SAFETY: the slice is this long.
    let count = unsafe { real::recv(tcp, bytes.as_mut_ptr().cast(), bytes.len(), flags | libc::MSG_PEEK) };
    usize::try_from(count).map_err(|_| errno::get())
}

/// Whether the peer has said nothing so far: no data, no end, no failure.
pub fn is_silent(tcp: c_int) -> bool {
    peek(tcp, &mut [0], libc::MSG_DONTWAIT) == Err(EAGAIN)
}

/// poll(2) of one or two descriptors until the end of the patience; false when it has come.
pub fn poll(fds: &mut [libc::pollfd], end: &Deadline) -> bool {
    loop {
        // The library polls both kinds. SAFETY: the slice is this long.
        let count = unsafe { r::rpoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, end.left()) };
        // A handler of the program's does not end the decision: it has an end.
        if count >= 0 || errno::get() != libc::EINTR {
            return count > 0;
        }
    }
}

/// A connected or listening rsocket's address argument.
pub type Name<'a> = (&'a libc::sockaddr_storage, libc::socklen_t);

/// Makes an rsocket for `name` and does `use_it`; it is closed if that fails, with errno left as
/// `use_it` has set it.
pub fn rsocket_for(name: Name<'_>, use_it: impl FnOnce(c_int) -> bool) -> Option<c_int> {
    let inner = fds::rsocket(c_int::from(name.0.ss_family), libc::SOCK_STREAM, 0);
    if inner < 0 {
        return None;
    }
    if use_it(inner) {
        return Some(inner);
    }
    // SAFETY: nobody else knows it.
    errno::keeping(|| unsafe { r::rclose(inner) });
    None
}

/// The address as the calls take it.
pub fn address(name: &libc::sockaddr_storage) -> *const libc::sockaddr {
    ptr::from_ref(name).cast()
}
