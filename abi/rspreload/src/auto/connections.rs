//! The rsockets of this process that have a token: a slot in the memory that the family shares
//! ([`super::shared`]), and here what only this process can use.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};

use libc::{F_SETFL, O_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, SOL_SOCKET};

use super::entry::is_auto;
use super::log::{self, Reason};
use super::shared::{self, MAX_SLOTS, Slot};
use super::{deferred, outcome, socket_owner, steer, thread};
use crate::fork::name::{self, Name};
use crate::fork::tcp;
use crate::table::{self, Entry, Growing, Kind};
use crate::time::Deadline;
use crate::{errno, next_symbol, open_fds, rsocket_abi};

/// What only this process can use. Numbers are stored plus one; 0 for none.
struct Private {
    inner: AtomicI32,
    token: AtomicI32,
    /// A child of this process may use the connection.
    forked: AtomicBool,
    /// The token had been accepted when it was last looked at ([`is_lost`]).
    accepted: AtomicBool,
}

static PRIVATE: [Private; MAX_SLOTS] = [const {
    Private {
        inner: AtomicI32::new(0),
        token: AtomicI32::new(0),
        forked: AtomicBool::new(false),
        accepted: AtomicBool::new(false),
    }
}; MAX_SLOTS];

/// A bit for each index in use.
static USED: [AtomicU64; MAX_SLOTS / 64] = [const { AtomicU64::new(0) }; MAX_SLOTS / 64];

/// By number of an rsocket: its index plus one.
static INDEX_OF: Growing<AtomicU32> = Growing::new();

/// The indexes in use.
pub fn indexes() -> impl Iterator<Item = usize> {
    USED.iter().enumerate().flat_map(|(word, bits)| {
        let mut left = bits.load(SeqCst);
        core::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(word * 64 + bit)
        })
    })
}

/// The index of an rsocket.
fn index_of(inner: c_int) -> Option<usize> {
    (INDEX_OF.get(inner)?.load(SeqCst) as usize).checked_sub(1)
}

/// The rsocket of an index.
pub fn inner(index: usize) -> c_int {
    PRIVATE.get(index).map_or(-1, |private| private.inner.load(SeqCst) - 1)
}

/// This process's end of the token.
pub fn token(index: usize) -> c_int {
    PRIVATE.get(index).map_or(-1, |private| private.token.load(SeqCst) - 1)
}

/// Whether a child may use the connection.
pub fn is_forked(index: usize) -> bool {
    PRIVATE.get(index).is_some_and(|private| private.forked.load(SeqCst))
}

/// Enters an rsocket and its token, for which a slot was claimed.
pub fn enter(index: usize, inner: c_int, token: c_int) -> bool {
    let (Some(private), Ok(word)) = (PRIVATE.get(index), INDEX_OF.get_or_grow(inner)) else { return false };
    private.inner.store(inner + 1, SeqCst);
    private.token.store(token + 1, SeqCst);
    private.forked.store(false, SeqCst);
    private.accepted.store(false, SeqCst);
    deferred::reset(index);
    word.store(index as u32 + 1, SeqCst);
    USED[index / 64].fetch_or(1 << (index % 64), SeqCst);
    true
}

/// Ends what the index was used for, but for the rsocket itself.
pub fn leave(index: usize) {
    let Some(private) = PRIVATE.get(index) else { return };
    if let Some(word) = INDEX_OF.get(private.inner.swap(0, SeqCst) - 1) {
        let _ = word.compare_exchange(index as u32 + 1, 0, SeqCst, SeqCst);
    }
    USED[index / 64].fetch_and(!(1 << (index % 64)), SeqCst);
    close_token(private.token.swap(0, SeqCst) - 1);
    if let Some(slot) = shared::slot(index) {
        slot.free();
    }
}

/// The listener at a port reports connections when data has arrived, from now on.
pub fn defer_at(port: u16) {
    let is_there = |&index: &usize| shared::slot(index).is_some_and(|slot| slot.listener_port() == port);
    indexes().filter(is_there).for_each(deferred::defer);
}

/// Closes this end of a token. By a reset: no connection is left waiting, which would keep the
/// port.
fn close_token(token: c_int) {
    if token >= 0 {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let len = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: a live structure of that length; a descriptor that only this library knows.
        errno::keeping(|| unsafe {
            next_symbol::setsockopt(token, SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len);
            next_symbol::close(token);
        });
    }
}

/// Ends the token of an index in order, after the data.
pub fn leave_in_order(index: usize) {
    if let Some(private) = PRIVATE.get(index) {
        let token = private.token.swap(0, SeqCst) - 1;
        // SAFETY: a descriptor that only this library knows.
        errno::keeping(|| unsafe { next_symbol::close(token) });
    }
    leave(index);
}

/// Whether a process has accepted the token of an index that does not know what it is: it was
/// accepted at this look and at the last one.
pub fn is_lost(index: usize) -> bool {
    let (Some(slot), Some(private)) = (shared::slot(index).filter(|slot| slot.is_sent()), PRIVATE.get(index)) else {
        return false;
    };
    let ends = |token| Some((name::peer(token)?, name::own(token)?));
    let accepted = ends(token(index)).is_some_and(|(to, from)| socket_owner::has_accepted(&to, &from));
    private.accepted.swap(accepted, SeqCst) && accepted && slot.is_sent()
}

/// What a listener has to say of its tokens.
pub struct Destination {
    /// Its address.
    pub to: Name,
    /// Other sockets may listen there.
    pub is_led: bool,
    /// It reports a connection when data has arrived (TCP_DEFER_ACCEPT).
    pub defers: bool,
}

/// Sends a token to a listener of this process: connects to its address. Returns false if that
/// fails.
pub fn send_token(inner: c_int, listener: &Destination, wake: (c_int, u64)) -> bool {
    let to = &listener.to;
    let (Some(peer), Some(own)) = (name::rsocket_peer(inner), name::rsocket_own(inner)) else { return false };
    // SAFETY: no pointers.
    let token =
        open_fds::relocate(unsafe { next_symbol::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) });
    if token < 0 {
        return false;
    }
    let index = bind_token(token, to, (&peer, &own), wake);
    let Some((index, slot)) = index.and_then(|index| Some((index, shared::slot(index)?))) else {
        close_token(token);
        return false;
    };
    if !enter(index, inner, token) {
        slot.free();
        close_token(token);
        return false;
    }
    if listener.defers {
        deferred::defer(index);
    }
    if listener.is_led {
        steer::mark(token);
    }
    slot.send();
    // SAFETY: an address and its length.
    let sent = unsafe { next_symbol::connect(token, to.as_ptr(), to.len) == 0 || errno::get() == libc::EINPROGRESS };
    if !sent && slot.withdraw() {
        leave(index);
        return false;
    }
    true
}

/// Finds a port for the token whose slot is free.
fn bind_token(token: c_int, to: &Name, names: (&Name, &Name), wake: (c_int, u64)) -> Option<usize> {
    let from = name::any_port(to);
    // SAFETY: an address and its length.
    if unsafe { next_symbol::bind(token, from.as_ptr(), from.len) } != 0 {
        return None;
    }
    shared::claim(&name::own(token)?, to.number(), names, wake)
}

/// Makes the number `fd`, which accept(2) has got, stand for the connection of a token, which has a
/// byte of the library's or not. Returns false if the connection has ended.
pub fn adopt(fd: c_int, index: usize, has_spoken: bool) -> bool {
    let Some(slot) = shared::slot(index) else { return false };
    let Some(peer) = slot.peer() else { return false };
    if has_spoken {
        deferred::take_spoken(fd);
    }
    thread::token_accepted();
    if slot.is_own() {
        let adopted = inner(index) >= 0 && outcome::become_rsocket(fd, fd, None, inner(index));
        if adopted {
            log::accepted(fd, &peer, "RDMA", Reason::Connected);
        }
        return adopted;
    }
    if table::prepare(fd).is_err() {
        return false;
    }
    table::swap(fd, Some(forwarded(fd, index, slot)));
    slot.want();
    log::accepted(fd, &peer, "RDMA, forwarded", Reason::Forwarded);
    true
}

/// The bit of the entry of a forwarded number whose socket is of IPv6; below it is the generation.
pub const FORWARDED_V6: u32 = 1 << 16;

fn forwarded(fd: c_int, index: usize, slot: &Slot) -> Entry {
    let is_v6 = tcp::family(fd) == Some(libc::AF_INET6);
    let family = if is_v6 { FORWARDED_V6 } else { 0 };
    Entry { kind: Kind::Forwarded, flags: slot.generation() | family, inner: index as c_int }
}

/// The slot of a number that is forwarded, as long as its connection is.
pub fn slot_of(entry: Entry) -> Option<&'static Slot> {
    shared::slot(usize::try_from(entry.inner).ok()?).filter(|slot| slot.generation() == entry.flags & !FORWARDED_V6)
}

/// Closes an rsocket of which the program has closed the last number. If a child may use it, its
/// data is forwarded until the child closes it.
pub fn close(inner: c_int) -> c_int {
    if let Some(index) = index_of(inner) {
        if is_forked(index)
            && let Some(slot) = shared::slot(index)
        {
            slot.want();
            return 0;
        }
        leave(index);
    }
    // SAFETY: no number stands for the rsocket any more.
    unsafe { rsocket_abi::rclose(inner) }
}

/// Sends the program's numbers of an rsocket to the kernel from now on: its data is forwarded.
pub fn demote(index: usize) {
    let (inner, Some(slot)) = (inner(index), shared::slot(index)) else { return };
    table::each(|fd, entry| {
        if entry.kind == Kind::Socket
            && entry.inner == inner
            && is_auto(entry)
            && table::replace(fd, Some(entry), Some(forwarded(fd, index, slot)))
        {
            table::drop(inner);
        }
    });
}

/// Forwards the data of a connection from now on: its numbers become TCP sockets of the kernel.
/// Returns false if that is not possible.
pub fn forward_from_now(fd: c_int, inner: c_int) -> bool {
    let index = index_of(inner).or_else(|| make_pair(fd, inner, thread::wake_socket()?));
    let Some((index, slot)) = index.and_then(|index| Some((index, shared::slot(index)?))) else { return false };
    if !thread::wake() {
        return false;
    }
    demote(index);
    slot.want();
    true
}

/// Before fork(2): the child may use each connection by its token.
pub fn before_fork(wake: impl Fn() -> Option<(c_int, u64)>) {
    prepare_for_child(wake, |_| true);
    // Tokens that wait for accept(2), too.
    for private in indexes().filter_map(|index| PRIVATE.get(index)) {
        private.forked.store(true, SeqCst);
    }
}

/// Before a program is executed by posix_spawn(3) or its like: it may use each connection that it
/// inherits by its token.
pub fn before_spawn(wake: impl Fn() -> Option<(c_int, u64)>) {
    prepare_for_child(wake, open_fds::is_inheritable);
}

/// Gives each connection whose number `is_given` accepts a token, by which a child may use it.
fn prepare_for_child(wake: impl Fn() -> Option<(c_int, u64)>, is_given: impl Fn(c_int) -> bool) {
    table::each(|fd, entry| {
        if entry.kind == Kind::Socket && is_auto(entry) && !entry.is_inherited() && is_given(fd) {
            let index = index_of(entry.inner).or_else(|| make_pair(fd, entry.inner, wake()?));
            if let Some(private) = index.and_then(|index| PRIVATE.get(index)) {
                private.forked.store(true, SeqCst);
            }
        }
    });
}

/// A child of vfork(2), which has this process's memory, hands the connection to a program. Only
/// connections that have a token can be used there: returns whether this one has. The program may
/// only read, so its data is forwarded from now on, by the thread, which is not suspended.
pub fn lend(inner: c_int) -> bool {
    let index = index_of(inner);
    let (Some(private), Some(slot)) = (index.and_then(|index| PRIVATE.get(index)), index.and_then(shared::slot)) else {
        return false;
    };
    private.forked.store(true, SeqCst);
    slot.want();
    true
}

/// Closes this process's numbers of connections that are forwarded, and waits until what was sent
/// over them has been forwarded. The data of a child that goes on is lost after that.
pub fn drain() {
    const TIME: c_int = 2_000;
    let is_forwarded = || indexes().filter_map(shared::slot).any(Slot::is_wanted);
    if !is_forwarded() {
        return;
    }
    table::each(|fd, entry| {
        let is_own = entry.kind == Kind::Forwarded && slot_of(entry).is_some_and(Slot::is_own);
        if is_own && table::replace(fd, Some(entry), None) {
            // SAFETY: the program has ended, so nobody uses the number any more.
            unsafe { next_symbol::close(fd) };
        }
    });
    let end = Deadline::after(TIME);
    while is_forwarded() && end.left() > 0 {
        // SAFETY: a number only.
        unsafe { libc::usleep(1_000) };
    }
}

/// Connects the TCP socket of a number that was connected by RDMA to this process itself.
fn make_pair(fd: c_int, inner: c_int, wake: (c_int, u64)) -> Option<usize> {
    if !shared::prepare() {
        return None;
    }
    let family = tcp::family(fd)?;
    let (peer, own) = (name::rsocket_peer(inner)?, name::rsocket_own(inner)?);
    // Not a loopback address: a program that is executed may take it for the peer's.
    let bound = name::own(fd).filter(|own| !own.address().is_unspecified());
    let at = name::any_port(&bound.unwrap_or(own)).in_family(family);
    // SAFETY: addresses and their lengths; descriptors that no other thread knows.
    unsafe {
        let listener = next_symbol::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if listener < 0 {
            return None;
        }
        let mut token = -1;
        if next_symbol::bind(listener, at.as_ptr(), at.len) == 0 && next_symbol::listen(listener, 1) == 0 {
            token = connect_pair(fd, listener);
        }
        next_symbol::close(listener);
        if token < 0 {
            return None;
        }
        next_symbol::fcntl(token, F_SETFL, O_NONBLOCK as usize);
        let index = name::own(token).and_then(|end| shared::claim(&end, 0, (&peer, &own), wake));
        let entered = index.filter(|&index| enter(index, inner, token));
        match entered.and_then(shared::slot) {
            Some(slot) => slot.take(),
            None => close_token(token),
        }
        entered
    }
}

/// Returns the other end of the connection that `fd` makes to the listener, or -1.
///
/// # Safety
/// Both are sockets.
unsafe fn connect_pair(fd: c_int, listener: c_int) -> c_int {
    let Some(to) = name::own(listener) else { return -1 };
    let family = tcp::family(fd).unwrap_or(libc::AF_INET);
    let to = to.in_family(family);
    let mut fds = [libc::pollfd { fd: listener, events: libc::POLLIN, revents: 0 }];
    // SAFETY: an address and its length; no addresses are asked for.
    unsafe {
        if next_symbol::connect(fd, to.as_ptr(), to.len) != 0 && errno::get() != libc::EINPROGRESS {
            return -1;
        }
        if !tcp::poll(&mut fds, &Deadline::after(1_000)) {
            return -1;
        }
        let token = next_symbol::accept4(listener, core::ptr::null_mut(), core::ptr::null_mut(), SOCK_CLOEXEC);
        let is_ours = match (name::peer(token), name::own(fd)) {
            (Some(peer), Some(own)) => name::same_end(&peer, &own),
            _ => false,
        };
        if is_ours {
            return open_fds::relocate(token);
        }
        close_token(token);
    }
    -1
}

/// In a child of fork(2): the connections are the parent's, and the numbers TCP sockets of the
/// kernel.
pub fn in_child() {
    table::each(|fd, entry| {
        if entry.kind == Kind::Socket && is_auto(entry) {
            let index = index_of(entry.inner);
            let slot = index.and_then(|index| Some((index, shared::slot(index)?)));
            table::swap(fd, slot.map(|(index, slot)| forwarded(fd, index, slot)));
        }
    });
    for index in indexes() {
        let Some(private) = PRIVATE.get(index) else { continue };
        if let Some(word) = INDEX_OF.get(private.inner.swap(0, SeqCst) - 1) {
            word.store(0, SeqCst);
        }
        let token = private.token.swap(0, SeqCst) - 1;
        if token >= 0 {
            // SAFETY: the child's copy of a descriptor that only this library knows.
            unsafe { next_symbol::close(token) };
        }
    }
    for word in USED.iter().filter(|word| word.load(SeqCst) != 0) {
        word.store(0, SeqCst);
    }
}

/// Whether `fd` is this process's end of a token.
pub fn is_own(fd: c_int) -> bool {
    fd >= 0 && indexes().any(|index| token(index) == fd)
}

/// Starts the thread, or wakes it, after fork(2) in the parent.
pub fn in_parent() {
    if indexes().next().is_some() {
        thread::wake();
    }
}
