//! Memory that a family of processes (a process and its forked descendants) shares: a slot for each
//! RDMA connection that has a stand-in.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use base::netlink::Messages;
use base::sock_diag::{self, BY_FAMILY, SOCKET_ID};
use libc::{AF_INET, AF_INET6, AF_NETLINK, MSG_DONTWAIT, NETLINK_SOCK_DIAG, NLM_F_REQUEST, SOCK_CLOEXEC, SOCK_RAW};

use super::log::Reason;
use crate::memory::{Once, plain};
use crate::sockets::{AtomicName, SockAddr, kernel};
use crate::{errno, next_symbol, process};

/// Maximum number of connections with stand-ins in a family of processes.
pub const MAX_SLOTS: usize = 1 << 14;
/// Number of slots for stand-ins of one port.
const PLACES: usize = 16;

/// Mask for the stand-in's state.
const STATE: u32 = 3;
/// The slot has no stand-in, or its stand-in was withdrawn.
const NO_STAND_IN: u32 = 0;
/// The stand-in has been sent to a listener, and waits for accept(2).
const SENT: u32 = 1;
/// The stand-in has been accepted, or is that of a connection made by connect(2).
const TAKEN: u32 = 2;

/// A process other than the owner uses the connection: the owner is to forward its data.
const WANTED: u32 = 4;

/// Mask for how the connection is used ([`Use`]), which may make its listener TCP only.
const USE: u32 = 3 * 8;

/// Unit of the generation, a counter in the upper bits that is incremented when the slot gets
/// another connection.
const GENERATION: u32 = 32;

/// What another process does with a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Uses a connection that its parent has accepted or made.
    Inherited = 0,
    /// Has accepted the connection.
    Accepted = 8,
    /// Is about to execute a program with the connection.
    Executed = 16,
}

/// The slot of a connection.
pub struct Slot {
    /// The state of the stand-in, [`WANTED`], [`Use`], and the generation. They share one word, so
    /// that another process's change fails if the slot has a later connection by then.
    word: AtomicU32,
    /// The process that has the rsocket, or 0 if the slot is free. A slot is claimed by changing
    /// this word alone, so that the slot of a process that has died can always be recognized.
    owner: AtomicI32,
    /// The descriptor of the socket that wakes the owner's thread, which the owner's children
    /// inherit, and the socket's inode.
    wake: AtomicI32,
    wake_inode: AtomicU64,
    stand_in: AtomicName,
    listener_port: AtomicU32,
    /// The peer's and the local address of the connection.
    pub peer: AtomicName,
    pub own: AtomicName,
}

plain! { Slot }

static SLOTS: Once<[Slot; MAX_SLOTS]> = Once::new();

/// Maps the memory if this has not been done yet. Returns false if there is not enough memory.
pub fn prepare() -> bool {
    SLOTS.get_or_make(libc::MAP_SHARED, |_| ()).is_some()
}

/// Whether stand-ins may exist: the memory has been mapped.
#[inline(always)]
pub fn is_used() -> bool {
    SLOTS.exists()
}

/// Whether a process has ended.
pub fn has_ended(process: c_int) -> bool {
    // SAFETY: kill(2) takes no pointers, and signal 0 is not sent.
    unsafe { libc::kill(process, 0) != 0 && errno::get() == libc::ESRCH }
}

/// The indexes of the slots for stand-ins of a port: a group that other ports share. The kernel
/// assigns every port in sequence, or every second one; the multiplication by the golden ratio
/// spreads the ports over the groups.
fn indexes(port: u16) -> impl Iterator<Item = usize> + Clone {
    const GROUPS: usize = MAX_SLOTS / PLACES;
    let group = (u32::from(port).wrapping_mul(0x9E37_79B9) >> (u32::BITS - GROUPS.ilog2())) as usize;
    (0..PLACES).map(move |place| group * PLACES + place)
}

/// The slot of an index.
pub fn slot(index: usize) -> Option<&'static Slot> {
    SLOTS.get()?.get(index)
}

/// Takes a slot for a connection. `stand_in` is the local address of its stand-in at the owner's
/// end, `names` are the peer's and the local address, `wake` is the owner's wake-up socket and its
/// inode. Returns the slot's index, or `None` if all slots for the stand-in's port are taken. A
/// stand-in without a listener (port 0) needs no accept(2), is not looked up by its port, and gets
/// any slot.
pub fn claim(
    stand_in: &SockAddr,
    listener_port: u16,
    names: (&SockAddr, &SockAddr),
    wake: (c_int, u64),
) -> Option<usize> {
    let all = SLOTS.get()?;
    let (state, most) = if listener_port == 0 { (TAKEN, MAX_SLOTS) } else { (SENT, PLACES) };
    let first = indexes(stand_in.port()).next()?;
    let indexes = (first..MAX_SLOTS).chain(0..first).take(most);
    let take_from = |slot: &Slot, owner| slot.owner.compare_exchange(owner, process::this(), SeqCst, SeqCst).is_ok();
    let free = |slot: &Slot| take_from(slot, 0);
    let left = |slot: &Slot| {
        let owner = slot.owner.load(SeqCst);
        owner != 0 && has_ended(owner) && take_from(slot, owner)
    };
    let find = |take: &dyn Fn(&Slot) -> bool| indexes.clone().find(|&index| all.get(index).is_some_and(take));
    let index = find(&free).or_else(|| find(&left))?;
    let slot = all.get(index)?;
    // Increment the generation first: a process may still read the slot for the ended connection.
    slot.begin_generation();
    slot.wake.store(wake.0, SeqCst);
    slot.wake_inode.store(wake.1, SeqCst);
    slot.stand_in.store(stand_in);
    slot.listener_port.store(listener_port.into(), SeqCst);
    slot.peer.store(names.0);
    slot.own.store(names.1);
    slot.set_state(state);
    Some(index)
}

/// A stand-in that accept(2) has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    pub index: usize,
    /// The generation of the connection. Its owner may have ended, so another process may take the
    /// slot at any time.
    pub generation: u32,
}

/// Finds the stand-in with the address `from` that accept(2) has returned, and marks it as taken.
/// Returns `None` if the socket is no stand-in for this listener.
pub fn accepted(from: &SockAddr, listener_port: impl FnOnce() -> Option<u16>) -> Option<Accepted> {
    let all = SLOTS.get()?;
    let find = |index: usize| {
        let slot = all.get(index)?;
        let generation = slot.generation();
        let is_it = slot.is_sent() && slot.stand_in.load().is_some_and(|stand_in| stand_in.is_at(from));
        is_it.then_some((index, slot, generation))
    };
    let (index, slot, generation) = indexes(from.port()).find_map(find)?;
    if listener_port().is_some_and(|port| port != slot.listener_port()) {
        return None;
    }
    slot.leave_sent(generation, TAKEN).then_some(Accepted { index, generation })
}

impl Slot {
    fn change(&self, change: impl FnMut(u32) -> Option<u32>) -> Option<u32> {
        self.word.fetch_update(SeqCst, SeqCst, change).ok()
    }

    /// Increments the generation, and clears the state, [`WANTED`] and [`Use`].
    fn begin_generation(&self) {
        self.change(|word| Some((word & !(GENERATION - 1)).wrapping_add(GENERATION)));
    }

    fn set_state(&self, state: u32) {
        self.change(|word| Some(word & !STATE | state));
    }

    /// Whether the stand-in waits for accept(2).
    pub fn is_sent(&self) -> bool {
        self.word.load(SeqCst) & STATE == SENT
    }

    /// Changes the stand-in's state to `next`. Returns false, without a change, if the slot has
    /// another generation, or the stand-in does not wait for accept(2).
    fn leave_sent(&self, generation: u32, next: u32) -> bool {
        let waits = |word| word & STATE == SENT && generation_of(word) == generation;
        self.change(|word| waits(word).then_some(word & !STATE | next)).is_some()
    }

    /// The port of the listener to which the stand-in was sent, or 0 if there was no listener.
    pub fn listener_port(&self) -> u16 {
        self.listener_port.load(SeqCst) as u16
    }

    /// Gives up a stand-in. Returns false if the stand-in does not wait for accept(2) any more.
    pub fn withdraw(&self) -> bool {
        self.leave_sent(self.generation(), NO_STAND_IN)
    }

    /// Frees the slot of a connection that has ended.
    pub fn free(&self) {
        self.begin_generation();
        // Last: another process may take the slot from here on.
        self.owner.store(0, SeqCst);
    }

    /// Whether this process has the rsocket.
    pub fn is_own(&self) -> bool {
        self.owner.load(SeqCst) == process::this()
    }

    /// The 16 bits that distinguish the connection from earlier connections of the slot.
    pub fn generation(&self) -> u32 {
        generation_of(self.word.load(SeqCst))
    }

    /// Whether the owner is to forward data.
    pub fn is_wanted(&self) -> bool {
        self.word.load(SeqCst) & WANTED != 0
    }

    /// The reason to make the connection's listener TCP only: another process has accepted the
    /// connection, or executes a program with it. `None` if neither has happened.
    pub fn unsuitable_use(&self) -> Option<Reason> {
        match self.word.load(SeqCst) & USE {
            0 => None,
            8 => Some(Reason::Elsewhere),
            _ => Some(Reason::Executed),
        }
    }
}

/// Tells the owner to forward the data of a connection from now on, if the slot still has this
/// generation.
pub fn want(index: usize, generation: u32, how: Use) {
    let Some(slot) = slot(index) else { return };
    let set = WANTED | how as u32;
    let is_new = |word| word & set != set && generation_of(word) == generation;
    if slot.change(|word| is_new(word).then_some(word | set)).is_some() {
        wake(slot.wake.load(SeqCst), slot.wake_inode.load(SeqCst), index as u32);
    }
}

fn generation_of(word: u32) -> u32 {
    (word / GENERATION) & 0xffff
}

/// Returns the inode of a socket, or `None` if `fd` is something else.
pub fn socket_inode(fd: c_int) -> Option<u64> {
    let status = crate::open_fds::status(fd)?;
    (status.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(status.st_ino)
}

/// In place of an index: wakes the thread without naming a connection.
pub const NO_INDEX: u32 = u32::MAX;

/// Sends an index to wake a thread. Does nothing if `fd` is another file by now: the program may
/// have closed all descriptors by a call that is not intercepted.
pub fn wake(fd: c_int, inode: u64, index: u32) {
    errno::keeping(|| {
        if socket_inode(fd) == Some(inode) {
            let _ = kernel::send(fd, &index.to_ne_bytes(), libc::MSG_NOSIGNAL);
        }
    });
}

// Whether a process has accepted a TCP connection within this host (sock_diag(7)). An end that
// waits for accept(2), or that every process has closed, belongs to no file: its inode is 0.

/// Whether the kernel reports TCP sockets, tested with the one that listens at `own`. Without
/// tcp_diag, the request fails as for a socket that does not exist.
pub fn tells(own: &SockAddr) -> bool {
    let at = match (own.address().is_unspecified(), own.address()) {
        (true, IpAddr::V4(_)) => SockAddr::new(Ipv4Addr::LOCALHOST.into(), own.port()),
        (true, IpAddr::V6(_)) => SockAddr::new(Ipv6Addr::LOCALHOST.into(), own.port()),
        _ => *own,
    };
    socket(&at, &at).is_some_and(|(state, _)| state == sock_diag::LISTEN)
}

/// Whether a process has accepted the connection from `remote` to `local`, both of this host. False
/// if the kernel does not report its sockets.
pub fn has_accepted(local: &SockAddr, remote: &SockAddr) -> bool {
    // Without such a connection the kernel returns the socket that listens at the address.
    socket(local, remote).is_some_and(|(state, inode)| inode != 0 && state != sock_diag::LISTEN)
}

/// Asks the kernel for the state and the inode of the TCP socket with these addresses. The answer
/// can be read at once, since the kernel handles a request in the call that sends it.
fn socket(local: &SockAddr, remote: &SockAddr) -> Option<(u8, u32)> {
    // There is space for attributes, which the kernel adds without request.
    let (request, mut answer) = (request(local, remote), [0; 512]);
    let received = errno::keeping(|| {
        let fd = next_symbol::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
        if fd < 0 {
            return Err(errno::get());
        }
        let sent = kernel::send(fd, &request, MSG_DONTWAIT);
        let received = sent.and_then(|_| kernel::receive(fd, &mut answer, MSG_DONTWAIT));
        next_symbol::close(fd);
        received
    });
    let answer = Messages(answer.get(..received.ok()?)?).next().filter(|answer| answer.kind == BY_FAMILY)?;
    sock_diag::state_and_inode(answer.payload)
}

fn request(local: &SockAddr, remote: &SockAddr) -> [u8; sock_diag::REQUEST] {
    let family = if local.address().is_ipv4() { AF_INET } else { AF_INET6 };
    // The socket may be in any state.
    let mut request = sock_diag::request(family, NLM_F_REQUEST, u32::MAX, 0);
    let mut put = |at: usize, bytes: &[u8]| request[SOCKET_ID + at..][..bytes.len()].copy_from_slice(bytes);
    // Set the ports, the addresses, the interface, and the value for no cookie, since any socket
    // with these addresses is wanted.
    put(0, &local.port().to_be_bytes());
    put(2, &remote.port().to_be_bytes());
    for (at, name) in [(4, local), (20, remote)] {
        match name.address() {
            IpAddr::V4(address) => put(at, &address.octets()),
            IpAddr::V6(address) => put(at, &address.octets()),
        }
    }
    put(36, &local.scope().to_ne_bytes());
    put(40, &[0xff; 8]);
    request
}

#[cfg(test)]
mod tests_of_shared {
    use super::*;

    #[test]
    fn stand_ins_are_found_by_their_address_once() {
        assert!(prepare());
        let (stand_in, other) =
            (SockAddr::new([127, 0, 0, 1].into(), 40_000), SockAddr::new([127, 0, 0, 1].into(), 40_001));
        let (peer, own) = (SockAddr::new([10, 0, 0, 1].into(), 7), SockAddr::new([10, 0, 0, 2].into(), 8));
        let index = claim(&stand_in, 80, (&peer, &own), (-1, 0)).unwrap();
        let is_plain = |name: &SockAddr, port| accepted(name, || Some(port)).is_none();
        assert!(is_plain(&other, 80) && is_plain(&stand_in, 81));
        let generation = slot(index).unwrap().generation();
        assert_eq!(accepted(&stand_in, || Some(80)), Some(Accepted { index, generation }));
        assert!(is_plain(&stand_in, 80), "already accepted");
        assert!(!slot(index).unwrap().withdraw(), "already accepted");
        assert_eq!(slot(index).unwrap().peer.load().unwrap().address(), peer.address());
        assert_eq!(slot(index).unwrap().own.load().unwrap().port(), 8);
        slot(index).unwrap().free();
        assert_ne!(slot(index).unwrap().generation(), generation);
    }

    #[test]
    fn a_place_has_many_slots() {
        assert!(prepare());
        let stand_in = |last| SockAddr::new([127, 0, 1, last].into(), 50_000);
        let name = stand_in(1);
        let indexes: Vec<_> =
            (0..PLACES as u8).map(|last| claim(&stand_in(last), 80, (&name, &name), (-1, 0))).collect();
        assert!(indexes.iter().all(Option::is_some));
        assert!(claim(&stand_in(200), 80, (&name, &name), (-1, 0)).is_none());
        indexes.into_iter().flatten().for_each(|index| slot(index).unwrap().free());
    }

    /// Returns the id of a process that has ended.
    fn ended_process() -> c_int {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id() as c_int
    }

    #[test]
    fn slots_of_processes_that_have_ended_are_taken_once() {
        const THREADS: usize = 4;
        assert!(prepare());
        let stand_in = SockAddr::new([127, 0, 2, 1].into(), 51_000);
        let ended = ended_process();
        for _ in 0..500 {
            for (place, index) in indexes(stand_in.port()).enumerate() {
                let slot = slot(index).unwrap();
                // The owner may have ended at any point.
                slot.set_state([NO_STAND_IN, SENT, TAKEN][place % 3]);
                slot.owner.store(ended, SeqCst);
            }
            let barrier = std::sync::Barrier::new(THREADS);
            let claim_all = || {
                barrier.wait();
                let next = || claim(&stand_in, 80, (&stand_in, &stand_in), (-1, 0));
                std::iter::from_fn(next).collect::<Vec<_>>()
            };
            let mut taken: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(claim_all)).collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            });
            taken.sort_unstable();
            let mut all: Vec<_> = indexes(stand_in.port()).collect();
            all.sort_unstable();
            assert_eq!(taken, all);
            taken.into_iter().for_each(|index| slot(index).unwrap().free());
        }
    }

    #[test]
    fn a_process_that_takes_the_slot_keeps_its_own_stand_in() {
        assert!(prepare());
        let (stand_in, other) =
            (SockAddr::new([127, 0, 2, 3].into(), 53_000), SockAddr::new([127, 0, 2, 4].into(), 53_000));
        let index = claim(&stand_in, 80, (&stand_in, &stand_in), (-1, 0)).unwrap();
        let slot = slot(index).unwrap();
        let before = slot.generation();
        // The process ends after its stand-in was found, and another one takes the slot and sends
        // its own.
        let take_over = || {
            slot.begin_generation();
            slot.stand_in.store(&other);
            slot.set_state(SENT);
            Some(80)
        };
        assert_eq!(accepted(&stand_in, take_over), None);
        assert!(slot.is_sent(), "the other process's stand_in was taken");
        want(index, before, Use::Accepted);
        assert!(!slot.is_wanted(), "for the connection that the slot had before");
        let generation = slot.generation();
        assert_eq!(accepted(&other, || Some(80)), Some(Accepted { index, generation }));
        want(index, generation, Use::Accepted);
        assert!(slot.is_wanted());
        slot.free();
        assert!(!slot.is_wanted());
    }

    #[test]
    fn a_free_slot_has_no_owner() {
        assert!(prepare());
        let stand_in = SockAddr::new([127, 0, 2, 2].into(), 52_000);
        let index = claim(&stand_in, 80, (&stand_in, &stand_in), (-1, 0)).unwrap();
        let slot = slot(index).unwrap();
        assert!(slot.is_own());
        slot.free();
        assert_eq!(slot.owner.load(SeqCst), 0);
    }
}

#[cfg(test)]
mod tests_of_socket_owner {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;

    fn name(address: SocketAddr) -> SockAddr {
        SockAddr::new(address.ip(), address.port())
    }

    #[test]
    fn connections_are_seen_to_be_accepted() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(at).unwrap();
            let to = listener.local_addr().unwrap();
            let client = TcpStream::connect(to).unwrap();
            let from = client.local_addr().unwrap();
            assert!(tells(&name(to)) && !tells(&name(from)), "{at}");
            assert!(!has_accepted(&name(to), &name(from)), "{at}: waits");
            let _server = listener.accept().unwrap();
            assert!(has_accepted(&name(to), &name(from)), "{at}: accepted");
            assert!(!has_accepted(&name(from), &name(from)), "{at}: no such connection");
        }
    }

    #[test]
    fn a_dual_stack_listener_accepts_ipv4() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (to, from) = (client.peer_addr().unwrap(), client.local_addr().unwrap());
        assert!(!has_accepted(&name(to), &name(from)));
        let _server = listener.accept().unwrap();
        assert!(has_accepted(&name(to), &name(from)));
    }
}
