//! The RDMA connections of this process that have a stand-in: a TCP connection within the host
//! between the program's descriptor and this process. A connection's index selects its slot in the
//! memory that processes share ([`super::shared`]), and its `Private` fields, which belong to this
//! process alone.

use core::ffi::c_int;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, fence};

use libc::{EAGAIN, F_SETFL, O_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, SOL_SOCKET};

use super::log::Reason;
use super::shared::{Accepted, MAX_SLOTS, Slot, Use};
use super::{log, route, shared, thread};
use crate::memory::{Bits, plain, zero};
use crate::process::Deadline;
use crate::sockets::{self, SockAddr, kernel, rdma};
use crate::table::{Entry, Growing, Kind};
use crate::thread::Lock;
use crate::transition::{self, Moving};
use crate::transition::{is_auto, is_entry_of};
use crate::{epoll, errno, next_symbol, open_fds, rsocket, rsocket_abi, table, tcp};

/// This process's fields of a connection. Descriptors are stored plus one; 0 means no descriptor.
struct Private {
    rsocket: AtomicI32,
    stand_in: AtomicI32,
    /// Whether the stand-in had been accepted at the last check ([`is_lost`]).
    accepted: AtomicBool,
    /// [`start_forwarding`] was called: the program's descriptors are or become TCP sockets.
    demoted: AtomicBool,
    /// The slot's generation when this connection took the slot. In a child of fork(2) the slot may
    /// have another connection by now.
    generation: AtomicU32,
}

plain! { Private }

static PRIVATE: [Private; MAX_SLOTS] = zero();

/// A set of indexes.
type Indexes = Bits<{ MAX_SLOTS / 64 }>;

/// The indexes in use.
pub static USED: Indexes = zero();
/// The indexes whose stand-ins wait for accept(2), or waited at the last check.
pub static SENT: Indexes = zero();
/// The indexes whose connections another process may use.
pub static FORKED: Indexes = zero();
/// The indexes whose connections this process forwards.
pub static FORWARDED: Indexes = zero();

/// Maximum number of ports to try for a stand-in. With three quarters of all slots taken, about one
/// port in six has no free slot.
const PORT_TRIES: usize = 20;

/// For each rsocket descriptor, the index of the rsocket plus one; 0 if the rsocket has no
/// stand-in.
static INDEX_OF: Growing<AtomicU32> = Growing::new();

/// The index of an rsocket, or `None` if it has no stand-in.
fn index_of(rsocket: c_int) -> Option<usize> {
    (INDEX_OF.get(rsocket)?.load(SeqCst) as usize).checked_sub(1)
}

/// The rsocket of an index, or -1 if the index is unused.
pub fn rsocket(index: usize) -> c_int {
    PRIVATE.get(index).map_or(-1, |private| private.rsocket.load(SeqCst) - 1)
}

/// This process's end of the stand-in of an index, or -1 if the index is unused.
pub fn stand_in(index: usize) -> c_int {
    PRIVATE.get(index).map_or(-1, |private| private.stand_in.load(SeqCst) - 1)
}

/// The generation of the connection of an index.
pub fn generation(index: usize) -> u32 {
    PRIVATE.get(index).map_or(0, |private| private.generation.load(SeqCst))
}

/// Records an rsocket and its stand-in, for which the slot `index` was claimed. Returns the slot.
/// Without memory, frees the slot and returns `None`.
pub fn enter(index: usize, rsocket: c_int, stand_in: c_int) -> Option<&'static Slot> {
    let (private, slot) = (PRIVATE.get(index)?, shared::slot(index)?);
    let Ok(word) = INDEX_OF.get_or_grow(rsocket) else {
        slot.free();
        return None;
    };
    private.rsocket.store(rsocket + 1, SeqCst);
    private.stand_in.store(stand_in + 1, SeqCst);
    FORKED.clear(index);
    private.accepted.store(false, SeqCst);
    private.demoted.store(false, SeqCst);
    private.generation.store(slot.generation(), SeqCst);
    word.store(index as u32 + 1, SeqCst);
    USED.set(index);
    Some(slot)
}

/// The number of connections at which a process stops accepting over RDMA. The remaining slots are
/// for handshakes still under way, for connections that are given to children, and for other
/// processes.
const MOST: usize = MAX_SLOTS / 4 * 3;

/// [`has_room`] has returned false: the thread must be woken when a slot is freed.
static FULL: AtomicBool = AtomicBool::new(false);

/// Whether there is room for another RDMA connection. A listener that was full needs more room to
/// reopen than other listeners need to stay open.
pub fn has_room(was_full: bool) -> bool {
    let count = USED.count();
    let has_room = is_room(count, was_full)
        && open_fds::has_room(
            [count, super::connect::attempts(), FORWARDED.count()],
            rsocket::own_descriptors(),
            was_full,
        );
    if !has_room {
        FULL.store(true, SeqCst);
    }
    has_room
}

/// Whether a process with these limits has room when it has no connections.
pub fn may_have_room() -> bool {
    open_fds::has_room([0; 3], 0, true)
}

pub fn is_room(count: usize, was_full: bool) -> bool {
    count < if was_full { MOST / 3 * 2 } else { MOST }
}

/// Frees an index and its slot, and resets the stand-in. The rsocket stays open.
pub fn leave(index: usize) {
    let Some(private) = PRIVATE.get(index) else { return };
    if let Some(word) = INDEX_OF.get(private.rsocket.swap(0, SeqCst) - 1) {
        let _ = word.compare_exchange(index as u32 + 1, 0, SeqCst, SeqCst);
    }
    SENT.clear(index);
    FORKED.clear(index);
    if USED.clear(index) && FULL.swap(false, SeqCst) {
        // A listener may have room again.
        thread::wake();
    }
    close_stand_in(private.stand_in.swap(0, SeqCst) - 1);
    if let Some(slot) = shared::slot(index) {
        slot.free();
    }
}

/// Frees an index and its slot. Closes the stand-in without a reset, so that data already sent
/// arrives.
pub fn leave_in_order(index: usize) {
    if let Some(private) = PRIVATE.get(index) {
        open_fds::close(private.stand_in.swap(0, SeqCst) - 1);
    }
    leave(index);
}

/// Whether a process without this library has accepted the stand-in of an index: the stand-in is
/// still not marked as taken, though it was accepted at this check and the last one.
pub fn is_lost(index: usize) -> bool {
    let (Some(slot), Some(private)) = (shared::slot(index).filter(|slot| slot.is_sent()), PRIVATE.get(index)) else {
        SENT.clear(index);
        return false;
    };
    let ends = |stand_in| Some((kernel::peer(stand_in)?, kernel::own(stand_in)?));
    let accepted = ends(stand_in(index)).is_some_and(|(to, from)| shared::has_accepted(&to, &from));
    private.accepted.swap(accepted, SeqCst) && accepted && slot.is_sent()
}

/// Sends a stand-in for `rsocket`: connects it to the program's listener at `to`. Returns false if
/// this fails.
pub fn send_stand_in(rsocket: c_int, to: &SockAddr) -> bool {
    let names = (rdma::peer(rsocket), rdma::own(rsocket), thread::wake_socket());
    let (Some(peer), Some(own), Some(wake)) = names else { return false };
    let claim = |stand_in: &SockAddr| shared::claim(stand_in, to.port(), (&peer, &own), wake);
    let Some((stand_in, index)) = with_slot(|| bound_socket(&to.with_port(0)), claim) else { return false };
    let Some(slot) = enter(index, rsocket, stand_in) else {
        close_stand_in(stand_in);
        return false;
    };
    SENT.set(index);
    let sent = kernel::connect(stand_in, to) == 0 || errno::get() == libc::EINPROGRESS;
    if !sent && slot.withdraw() {
        leave(index);
        return false;
    }
    thread::watch(index, stand_in);
    true
}

/// Makes a TCP socket of the library, and binds it to an address.
fn bound_socket(at: &SockAddr) -> Option<c_int> {
    let kind = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
    let socket = open_fds::create(|| next_symbol::socket(at.family(), kind, 0));
    if socket < 0 || kernel::bind(socket, at) != 0 {
        close_stand_in(socket);
        return None;
    }
    Some(socket)
}

/// Makes up to `PORT_TRIES` stand-ins, until `claim` takes a slot for the port of the latest one.
/// Returns that stand-in and the slot's index.
pub fn with_slot(
    stand_in: impl Fn() -> Option<c_int>,
    claim: impl Fn(&SockAddr) -> Option<usize>,
) -> Option<(c_int, usize)> {
    // Keep the other stand-ins open until the end, since the kernel may assign a freed port again.
    let mut others = [-1; PORT_TRIES];
    let mut found = None;
    for other in &mut others {
        let Some(stand_in) = stand_in() else { break };
        found = kernel::own(stand_in).and_then(|own| claim(&own)).map(|index| (stand_in, index));
        if found.is_some() {
            break;
        }
        *other = stand_in;
    }
    others.into_iter().for_each(close_stand_in);
    found
}

/// Makes `fd`, which accept(2) has returned for a stand-in, a descriptor of the RDMA connection. If
/// another process owns the rsocket, `fd` is forwarded. Returns the peer, or `None` if the
/// connection has ended or there is no memory.
pub fn adopt(fd: c_int, accepted: Accepted) -> Option<SockAddr> {
    let index = accepted.index;
    let slot = shared::slot(index)?;
    let (peer, is_own, rsocket) = (slot.peer.load()?, slot.is_own(), rsocket(index));
    thread::stand_in_accepted();
    // Check this after reading the slot: if the slot's owner has ended, another process, or another
    // thread of this process, may have taken the slot.
    if slot.generation() != accepted.generation {
        return None;
    }
    if is_own {
        if rsocket < 0 || !transition::become_rsocket(fd, fd, None, rsocket, transition::AUTO) {
            return None;
        }
        log::accepted(fd, &peer, Reason::Connected);
        return Some(peer);
    }
    table::prepare(fd).ok()?;
    table::swap(fd, Some(forwarded(fd, index, accepted.generation)));
    shared::want(index, accepted.generation, Use::Accepted);
    log::accepted(fd, &peer, Reason::Forwarded);
    Some(peer)
}

/// Bit in the flags of a forwarded descriptor's entry: the socket is IPv6. The lower bits are the
/// generation.
pub const FORWARDED_V6: u32 = 1 << 16;

fn forwarded(fd: c_int, index: usize, generation: u32) -> Entry {
    let is_v6 = tcp::family(fd) == Some(libc::AF_INET6);
    let family = if is_v6 { FORWARDED_V6 } else { 0 };
    Entry { kind: Kind::Forwarded, flags: generation | family, handle: index as c_int }
}

/// The generation in a forwarded descriptor's entry.
pub fn generation_of(entry: Entry) -> u32 {
    entry.flags & !FORWARDED_V6
}

/// The slot of a forwarded descriptor, or `None` if its connection has ended.
pub fn slot_of(entry: Entry) -> Option<&'static Slot> {
    shared::slot(usize::try_from(entry.handle).ok()?).filter(|slot| slot.generation() == generation_of(entry))
}

/// Closes an rsocket of which the program has closed the last descriptor. If another process may
/// use the connection, forwards the data instead, until that process closes the connection. Returns
/// 0, or -1 with `errno`.
pub fn close(rsocket: c_int) -> c_int {
    let index = index_of(rsocket);
    if let Some(index) = index.filter(|&index| FORKED.has(index)) {
        request_forwarding(index, Use::Inherited);
        return 0;
    }
    match rsocket::library_option::<c_int>(rsocket, base::private::READABLE_BYTES) {
        // In a signal handler librdmacm may refuse the call: the connection stays as it is.
        Err(EAGAIN) => return errno::fail(EAGAIN),
        // TCP resets a connection that is closed with unread data, too.
        Ok(1..) => rsocket::reset_when_closed(rsocket),
        _ => {}
    }
    index.into_iter().for_each(leave);
    rsocket_abi::rclose(rsocket)
}

/// Turns the program's descriptors of an rsocket into TCP sockets (stand-ins), whose data is
/// forwarded to and from the rsocket. The descriptors stay members of the program's epoll
/// instances.
pub fn start_forwarding(index: usize) {
    let rsocket = rsocket(index);
    // Set before the table is searched, so that a copy that gets its entry later is noticed.
    if let Some(private) = PRIVATE.get(index) {
        private.demoted.store(true, SeqCst);
    }
    // Pairs with the fence in `demote_copy`: at least one of the two threads sees what the other
    // has stored.
    fence(SeqCst);
    let demote_all = || {
        table::each(|fd, entry| {
            if is_entry_of(rsocket, entry) {
                demote_fd(fd, rsocket, index);
            }
        });
    };
    demote_all();
    // Wakes threads that wait for the rsocket; they then wait for the TCP sockets. Fails with
    // EAGAIN in a signal handler that has interrupted a call on the rsocket; the library's thread
    // then calls this function again before it forwards data.
    let _ = rsocket::set_library_option(rsocket, base::private::HANDED_OVER);
    // Repeat this for descriptors that dup(2) has made meanwhile.
    demote_all();
}

/// Makes a copy of an rsocket's descriptor a TCP socket if [`start_forwarding`] was called, which
/// may have missed the copy's entry.
pub fn demote_copy(fd: c_int, rsocket: c_int) {
    // Orders the store of the copy's entry before the loads below.
    fence(SeqCst);
    let Some(index) = index_of(rsocket) else { return };
    if PRIVATE.get(index).is_some_and(|private| private.demoted.load(SeqCst)) {
        demote_fd(fd, rsocket, index);
    }
}

fn demote_fd(fd: c_int, rsocket: c_int, index: usize) {
    // epoll_ctl(2) on `fd` waits until `moving` is dropped.
    let moving = Moving::begin(fd);
    // Try again if another thread has changed the entry's flags.
    while let Some(entry) = table::get(fd).filter(|&entry| is_entry_of(rsocket, entry)) {
        if table::replace(fd, Some(entry), Some(forwarded(fd, index, generation(index)))) {
            epoll::hand_over_to_kernel(fd, entry);
            drop(moving);
            rsocket::drop_reference(entry);
            return;
        }
    }
}

/// Forwards the data of a connection from now on: its descriptors become TCP sockets of the kernel.
/// Fails with the reason if the connection has no stand-in or the thread cannot be started.
pub fn forward_from_now(fd: c_int, rsocket: c_int, how: Use) -> Result<(), Reason> {
    let index = index_with_stand_in(fd, rsocket)?;
    if !thread::wake() {
        return Err(failed());
    }
    start_forwarding(index);
    request_forwarding(index, how);
    Ok(())
}

/// Tells the library's thread that another process may use a connection of this process from now
/// on, so that the thread forwards the data.
pub fn request_forwarding(index: usize, how: Use) {
    FORKED.set(index);
    shared::want(index, generation(index), how);
}

/// Before fork(2): lets the child use each connection by its stand-in.
pub fn before_fork() {
    prepare_for_child("child", |_| true);
    // Mark connections whose stand-ins wait for accept(2), too.
    USED.each().for_each(|index| FORKED.set(index));
}

/// Before posix_spawn(3) and the like: lets the executed program use each connection that it
/// inherits by its stand-in.
pub fn before_spawn() {
    prepare_for_child("program that is executed with it", open_fds::is_inheritable);
}

/// Gives a stand-in to each connection of which `is_given` accepts a descriptor, so that `user` (a
/// child or a program) may use the connection. Logs connections for which this fails.
fn prepare_for_child(user: &str, is_given: impl Fn(c_int) -> bool) {
    table::each(|fd, entry| {
        if is_auto(entry) && !entry.is_inherited() && is_given(fd) {
            match index_with_stand_in(fd, entry.handle) {
                Ok(index) => FORKED.set(index),
                Err(reason) => log::not_given(fd, user, reason),
            }
        }
    });
}

/// Called in a child of vfork(2), which uses its parent's memory and hands the connection to a
/// program. Starts forwarding at once, because a program that only reads would not start it.
/// Returns false if the connection has no stand-in, without which the program cannot use it.
pub fn lend(rsocket: c_int) -> bool {
    index_of(rsocket).map(|index| request_forwarding(index, Use::Executed)).is_some()
}

/// Called when the process ends. Closes its descriptors of connections that other processes may
/// use, and waits up to two seconds until data sent over these connections has been forwarded and
/// has arrived. Then resets connections that another process still has, so that no peer sees an
/// orderly shutdown.
pub fn drain() {
    const TIME: c_int = 2_000;
    /// How long the close of this process's descriptors may take to reach the stand-ins.
    const MOMENT: c_int = 20;
    table::each(|fd, entry| {
        let is_own = match entry.kind {
            Kind::Forwarded => slot_of(entry).is_some_and(Slot::is_own),
            Kind::Socket => {
                is_auto(entry) && !entry.is_inherited() && index_of(entry.handle).is_some_and(|at| FORKED.has(at))
            }
            _ => false,
        };
        if is_own && table::replace(fd, Some(entry), None) {
            next_symbol::close(fd);
        }
    });
    // When a stand-in reports POLLRDHUP, every process has closed the program's end.
    let has_ended = |index| sockets::is_ready(stand_in(index), libc::POLLRDHUP);
    let others = || USED.each().filter(|&index| FORKED.has(index) && !has_ended(index));
    let is_sending = |index| {
        rsocket::library_option::<c_int>(rsocket(index), base::private::UNSENT_BYTES).is_ok_and(|bytes| bytes > 0)
    };
    let is_forwarding = || USED.each().filter_map(shared::slot).any(Slot::is_wanted);
    let until = |time, condition: &dyn Fn() -> bool| {
        let end = Deadline::after(time);
        while !condition() && end.left() > 0 {
            sockets::sleep_ms(1);
        }
    };
    until(TIME, &|| !is_forwarding() && !others().any(is_sending));
    until(MOMENT, &|| others().next().is_none());
    for index in others() {
        if shared::slot(index).is_some_and(|slot| slot.listener_port() == 0) {
            route::used_by_child();
        }
        rsocket::reset_when_closed(rsocket(index));
    }
}

/// Held while a stand-in is made: the TCP socket of a connection can be connected only once.
static PAIRS: Lock = Lock::new();

/// Returns the index of an rsocket, after making a stand-in if the rsocket has none. Fails with the
/// reason for the log.
fn index_with_stand_in(fd: c_int, rsocket: c_int) -> Result<usize, Reason> {
    if let Some(index) = index_of(rsocket) {
        return Ok(index);
    }
    let _held = PAIRS.hold();
    index_of(rsocket).map_or_else(|| make_pair(fd, rsocket), Ok)
}

/// Gives a connection a stand-in: connects its TCP socket to this process itself. Fails with the
/// reason for the log.
fn make_pair(fd: c_int, rsocket: c_int) -> Result<usize, Reason> {
    let wake = thread::wake_socket().filter(|_| shared::prepare()).ok_or_else(failed)?;
    let stand_in = connect(fd, rsocket);
    let entered =
        stand_in.and_then(|stand_in| enter_pair(rsocket, stand_in, wake).inspect_err(|_| close_stand_in(stand_in)));
    entered.inspect_err(|_| disconnect(fd))
}

/// Claims a slot for a connection and its new stand-in. Returns the index.
fn enter_pair(rsocket: c_int, stand_in: c_int, wake: (c_int, u64)) -> Result<usize, Reason> {
    let names = rdma::peer(rsocket).zip(rdma::own(rsocket));
    let ((peer, own), end) = names.zip(kernel::own(stand_in)).ok_or_else(failed)?;
    let index = shared::claim(&end, 0, (&peer, &own), wake).ok_or(Reason::Slots)?;
    enter(index, rsocket, stand_in).ok_or(Reason::NoStandIn(libc::ENOMEM))?;
    thread::watch(index, stand_in);
    Ok(index)
}

/// In a child of fork(2): removes the parent's connections, and makes the descriptors TCP sockets.
pub fn in_child() {
    PAIRS.reset();
    table::each(|fd, entry| {
        if is_auto(entry) {
            let index = index_of(entry.handle);
            table::swap(fd, index.map(|index| forwarded(fd, index, generation(index))));
        }
    });
    for index in USED.each() {
        let Some(private) = PRIVATE.get(index) else { continue };
        if let Some(word) = INDEX_OF.get(private.rsocket.swap(0, SeqCst) - 1) {
            word.store(0, SeqCst);
        }
        // Closes the child's copy.
        open_fds::close(private.stand_in.swap(0, SeqCst) - 1);
    }
    [&USED, &SENT, &FORKED, &FORWARDED].into_iter().for_each(Bits::clear_all);
}

/// Starts the thread, or wakes it, after fork(2) in the parent.
pub fn in_parent() {
    if USED.any() {
        thread::wake();
    }
}

// The stand-in of a connection that was not accepted from a listener: the TCP socket of the
// program's descriptor, which was never connected, is connected to this process itself.

/// Connects the TCP socket of an RDMA connection's descriptor to this process itself. Returns the
/// stand-in, or fails with the reason for the log.
fn connect(fd: c_int, rsocket: c_int) -> Result<c_int, Reason> {
    let listener = address(fd, rsocket).and_then(|at| bound_socket(&at)).ok_or_else(failed)?;
    let stand_in = if next_symbol::listen(listener, 1) == 0 { connect_to(fd, listener) } else { -1 };
    open_fds::close(listener);
    if stand_in < 0 {
        return Err(failed());
    }
    kernel::fcntl(stand_in, F_SETFL, O_NONBLOCK);
    Ok(stand_in)
}

/// The reason for a stand-in that could not be made, with `errno`.
fn failed() -> Reason {
    Reason::NoStandIn(errno::get())
}

/// The address, with port 0, of the listener to which the TCP socket connects. Not a loopback
/// address: an executed program takes this address for the peer's, and might trust a local peer.
fn address(fd: c_int, rsocket: c_int) -> Option<SockAddr> {
    let bound = kernel::own(fd).filter(|own| !own.address().is_unspecified());
    Some(bound.or_else(|| rdma::own(rsocket))?.with_port(0).in_family(tcp::family(fd)?))
}

/// Disconnects a socket whose stand-in could not be made, so that the next fork(2) can try again.
fn disconnect(fd: c_int) {
    // The family 0 is AF_UNSPEC.
    let (nowhere, len) = (zero::<libc::sockaddr_storage>(), size_of::<libc::sockaddr>() as libc::socklen_t);
    // SAFETY: `nowhere` is readable for at least `len` bytes.
    errno::keeping(|| unsafe { next_symbol::connect(fd, (&raw const nowhere).cast(), len) });
}

/// Connects `fd` to the listener. Returns the accepted end of the connection, or -1 with `errno`.
fn connect_to(fd: c_int, listener: c_int) -> c_int {
    let Some(to) = kernel::own(listener) else { return -1 };
    let to = to.in_family(tcp::family(fd).unwrap_or(libc::AF_INET));
    let mut fds = [libc::pollfd { fd: listener, events: libc::POLLIN, revents: 0 }];
    if kernel::connect(fd, &to) != 0 && errno::get() != libc::EINPROGRESS {
        return -1;
    }
    if !tcp::poll(&mut fds, &Deadline::after(1_000)) {
        return errno::fail(libc::ETIMEDOUT);
    }
    let stand_in = open_fds::relocate(kernel::accept(listener));
    if stand_in < 0 {
        return -1;
    }
    if kernel::peer(stand_in).zip(kernel::own(fd)).is_some_and(|(peer, own)| peer.is_at(&own)) {
        return stand_in;
    }
    close_stand_in(stand_in);
    errno::fail(libc::ECONNREFUSED)
}

/// Closes this end of a stand-in by a reset, so that no connection in TIME_WAIT keeps the port.
pub fn close_stand_in(stand_in: c_int) {
    if stand_in >= 0 {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let _ = kernel::set(stand_in, (SOL_SOCKET, libc::SO_LINGER), &linger);
        open_fds::close(stand_in);
    }
}
