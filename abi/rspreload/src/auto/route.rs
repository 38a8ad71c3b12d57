//! Whether a connection may use RDMA: by rules, the socket's options, its route, and past attempts.
//!
//! Past attempts yield facts about destinations, local addresses and commands. A hash table stores
//! each fact as a word: a hash of the fact, and the second in which the fact expires. The table is
//! read and written without a lock. If two facts have the same hash, which is improbable, a
//! connection uses TCP where it could use RDMA.

use core::ffi::c_int;
use core::net::IpAddr;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU64, Ordering};

use libc::{IPPROTO_IP, IPPROTO_TCP, SO_BINDTODEVICE, SO_MARK, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_STREAM, SOL_SOCKET};

use super::kernel_options;
use super::log::Reason;
use crate::memory::zero;
use crate::sockets::{SockAddr, kernel, rdma};
use crate::{config, errno, next_symbol, open_fds, process, rsocket, table, tcp};

/// Whether `fd` is a TCP socket that the configuration lets become an rsocket.
pub fn is_candidate(fd: c_int, family: c_int) -> bool {
    let protocol = tcp::int(fd, SOL_SOCKET, libc::SO_PROTOCOL);
    protocol == Some(IPPROTO_TCP) && config::intercepts(family, SOCK_STREAM, IPPROTO_TCP)
}

/// Whether the socket has an option that an rsocket does not have and whose effect the program
/// needs.
pub fn has_kernel_option(fd: c_int) -> bool {
    let is_on = |option| kernel::get::<[c_int; 4]>(fd, option).is_some_and(|(value, len)| len > 0 && value[0] != 0);
    let waits_for_more = || tcp::int(fd, SOL_SOCKET, libc::SO_RCVLOWAT).is_some_and(|bytes| bytes > 1);
    READABLE_OPTIONS.into_iter().any(is_on) || kernel_options::are_set(fd) || waits_for_more() || tcp::is_signalled(fd)
}

/// Whether [`has_kernel_option`] reads an option's current value from the kernel: the option rules
/// out RDMA only until the program switches it off. IP_TRANSPARENT has a name for IPv6, too.
pub fn is_readable_option(level: c_int, name: c_int) -> bool {
    READABLE_OPTIONS.contains(&(level, name)) || (level, name) == (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT)
}

const READABLE_OPTIONS: [(c_int, c_int); 3] =
    [(SOL_SOCKET, SO_BINDTODEVICE), (SOL_SOCKET, SO_MARK), (IPPROTO_IP, libc::IP_TRANSPARENT)];

/// The local address to which the program has bound the socket, or `None` if the socket is not
/// bound.
pub fn bound(fd: c_int) -> Option<SockAddr> {
    kernel::own(fd).filter(|own| own.port() != 0 || !own.address().is_unspecified())
}

/// Returns the local address of the route to an address.
fn source(to: &SockAddr) -> Option<SockAddr> {
    // Connecting a UDP socket sends no packet.
    let udp = next_symbol::socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if udp < 0 {
        return None;
    }
    // Use any port but 0. The kernel accepts port 0, too, but this is undocumented.
    let to = if to.port() == 0 { to.with_port(1) } else { *to };
    let own = if kernel::connect(udp, &to) == 0 { kernel::own(udp) } else { None };
    next_symbol::close(udp);
    own
}

/// Whether rsockets can listen at a local address beside TCP. This is also required of the local
/// address of an RDMA connection that the host makes.
pub fn is_rdma(own: &SockAddr) -> bool {
    let fact = |shares| Fact::Local(own.address(), shares);
    let known = [true, false].into_iter().find(|&shares| is_known(fact(shares)));
    known.unwrap_or_else(|| {
        let shares = tcp::shares_port(own) == Some(true);
        remember(fact(shares));
        shares
    })
}

/// Fails with the reason that rules out RDMA for an address. Makes no system call, so that nearly
/// every connection to a destination without RDMA is decided at little cost.
pub fn ruled_out(to: &SockAddr) -> Result<(), Reason> {
    let (address, port) = (to.address(), to.port());
    Reason::Loopback.unless(!address.is_loopback())?;
    // The kernel treats an unspecified address as a loopback address.
    Reason::NoRoute.unless(!address.is_unspecified() && !address.is_multicast())?;
    Reason::Rule.unless(config::is_automatic(address, port))?;
    Reason::NoDevice.unless(!is_known(Fact::Beyond(address)))?;
    Reason::WasSilent.unless(!is_known(Fact::Silent(address)))?;
    Reason::WasRejected.unless(!is_known(Fact::Rejected(address, port)))
}

/// Decides whether `fd` may use RDMA to an address that has passed [`ruled_out`]. Fails with the
/// reason if not.
pub fn allows_rdma(fd: c_int, to: &SockAddr) -> Result<(), Reason> {
    Reason::Option.unless(!has_kernel_option(fd))?;
    Reason::UsedByChild.unless(!command().1)?;
    let bound = bound(fd).filter(|own| !own.address().is_unspecified());
    let own = bound.or_else(|| source(to)).ok_or(Reason::NoRoute)?;
    Reason::Loopback.unless(!own.address().is_loopback())?;
    if is_rdma(&own) {
        return Ok(());
    }
    if bound.is_none() {
        remember(Fact::Beyond(to.address()));
    }
    Err(Reason::NoDevice)
}

/// Copies the options that an rsocket needs before it connects or listens.
pub fn copy_early_options(fd: c_int, rsocket: c_int) {
    for_early_options(fd, |level, name, value| {
        let _ = rdma::set(rsocket, (level, name), &value);
    });
}

/// Calls `set` with each early option that the program has set, as level, name, and the value for
/// an rsocket.
fn for_early_options(fd: c_int, mut set: impl FnMut(c_int, c_int, c_int)) {
    /// A bit for each of the two buffer sizes that the program has set (linux/socket.h, since Linux
    /// 5.15).
    const SO_BUF_LOCK: c_int = 72;
    let locked = tcp::int(fd, SOL_SOCKET, SO_BUF_LOCK).unwrap_or(0);
    for (bit, name) in [(1, libc::SO_SNDBUF), (2, libc::SO_RCVBUF)] {
        if locked & bit != 0
            && let Some(size) = tcp::int(fd, SOL_SOCKET, name)
        {
            // The kernel returns twice the size that was set.
            set(SOL_SOCKET, name, size / 2);
        }
    }
    let services = [(IPPROTO_IP, libc::IP_TOS), (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)];
    let mut service = services.iter().filter_map(|&(level, name)| tcp::int(fd, level, name));
    if let Some(service) = service.find(|&service| service > 0) {
        set(IPPROTO_IP, libc::IP_TOS, service);
    }
}

/// A fact that is remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fact {
    /// A host did not answer over RDMA.
    Silent(IpAddr),
    /// A host rejected RDMA at a port where it accepted TCP.
    Rejected(IpAddr, u16),
    /// No route through an RDMA device leads to a host.
    Beyond(IpAddr),
    /// Whether rsockets can listen at a local address, beside TCP.
    Local(IpAddr, bool),
    /// A child of a command has used the connection that its parent had made. The command is given
    /// as a hash of its command line.
    UsedByChild(u64),
}

impl Fact {
    fn is_of_command(self) -> bool {
        matches!(self, Fact::UsedByChild(_))
    }
}

/// The number of words, and the number of words that one hash may use.
pub const MAX_REMEMBERED: usize = 1024;
const WAYS: usize = 4;
/// A word has the hash's upper bits, a bit for the facts of commands, and the second in which the
/// fact expires.
const TIME_BITS: u32 = 24;
const TIME: u64 = (1 << TIME_BITS) - 1;
const OF_COMMAND: u64 = 1 << TIME_BITS;
const HASH_SHIFT: u32 = TIME_BITS + 1;

static WORDS: [AtomicU64; MAX_REMEMBERED] = zero();

fn hash(fact: Fact) -> u64 {
    let bits = |address| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    let (kind, subject, port) = match fact {
        Fact::Silent(address) => (1, bits(address), 0),
        Fact::Rejected(address, port) => (2, bits(address), port),
        Fact::Local(address, shares) => (3, bits(address), shares.into()),
        Fact::Beyond(address) => (4, bits(address), 0),
        Fact::UsedByChild(command) => (5, u128::from(command), 0),
    };
    hash_of([kind, u64::from(port), (subject >> 64) as u64, subject as u64])
}

/// The steps of FNV-1a, on 64-bit pieces. The shift at the end of each step spreads differences in
/// the last bits of an address.
fn hash_of(pieces: impl IntoIterator<Item = u64>) -> u64 {
    pieces.into_iter().fold(0xCBF2_9CE4_8422_2325, |hash: u64, piece| {
        let hash = (hash ^ piece).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        hash ^ hash >> 29
    })
}

/// Returns the fact that a child of this process's command has used its parent's connection, and
/// whether the fact is known. The first call determines both, and later calls repeat the result.
fn command() -> (Fact, bool) {
    static COMMAND: AtomicU64 = AtomicU64::new(0);
    const IS_READ: u64 = 1;
    const IS_KNOWN: u64 = 2;
    let mut word = COMMAND.load(Ordering::Relaxed);
    if word == 0 {
        let mut words = [0; 1024];
        let len = errno::keeping(|| config::read_file(c"/proc/self/cmdline", &mut words));
        word = hash_of(words[..len].iter().map(|&byte| u64::from(byte))) & !IS_KNOWN | IS_READ;
        word |= if is_known(Fact::UsedByChild(word)) { IS_KNOWN } else { 0 };
        COMMAND.store(word, Ordering::Relaxed);
    }
    (Fact::UsedByChild(word & !IS_KNOWN), word & IS_KNOWN != 0)
}

/// Called when a child uses a connection that its parent has made. The connection ends with the
/// parent, so the next process that runs the same command connects over TCP.
#[cold]
pub fn used_by_child() {
    remember(command().0);
}

/// The words for silent hosts and for commands, which the user's processes share: otherwise each
/// run of a program that makes one connection would wait, or lose the connection, again.
static SHARED: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

fn words_for(fact: Fact, hash: u64) -> impl Iterator<Item = &'static AtomicU64> {
    let first = hash as usize % (MAX_REMEMBERED / WAYS) * WAYS;
    let shared = if matches!(fact, Fact::Silent(_) | Fact::UsedByChild(_)) { shared() } else { None };
    shared.unwrap_or(&WORDS)[first..first + WAYS].iter()
}

/// The memory that the user's processes share, or `WORDS` if it cannot be mapped.
fn shared() -> Option<&'static [AtomicU64; MAX_REMEMBERED]> {
    if SHARED.load(Ordering::Acquire).is_null() {
        let new = errno::keeping(map).map_or(ptr::from_ref(&WORDS).cast_mut().cast(), NonNull::as_ptr);
        // If several threads map the file at once, all mappings but one are leaked, which does no
        // harm.
        SHARED.store(new, Ordering::Release);
    }
    // SAFETY: `SHARED` is a mapping of this length, or `WORDS`; neither is ever freed.
    unsafe { SHARED.load(Ordering::Acquire).cast::<[AtomicU64; MAX_REMEMBERED]>().as_ref() }
}

/// Maps the file of this user and network namespace, which only the user can have created and can
/// write. Allocates the file's blocks first: touching a hole would end the process (SIGBUS) if the
/// file system is full.
fn map() -> Option<NonNull<AtomicU64>> {
    const SIZE: usize = size_of::<[AtomicU64; MAX_REMEMBERED]>();
    let mut path = [0_u8; 80];
    // SAFETY: `path` has 80 bytes, as snprintf(3) is told; `fd` is used by this function only; the
    // new mapping is no longer than the file, which is allocated.
    unsafe {
        let (user, path) = (libc::geteuid(), path.as_mut_ptr().cast());
        let space = open_fds::status_at(libc::AT_FDCWD, c"/proc/self/ns/net", 0)?.st_ino;
        libc::snprintf(path, 80, c"/dev/shm/librspreload.%u.%lu".as_ptr(), user, space);
        let fd = libc::open(path, libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_CLOEXEC, 0o600);
        let is_own = |status: libc::stat| status.st_uid == user && status.st_mode == libc::S_IFREG | 0o600;
        let usable = open_fds::status(fd).is_some_and(is_own) && libc::posix_fallocate(fd, 0, SIZE as libc::off_t) == 0;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let new =
            if usable { libc::mmap(ptr::null_mut(), SIZE, access, libc::MAP_SHARED, fd, 0) } else { libc::MAP_FAILED };
        if fd >= 0 {
            next_symbol::close(fd);
        }
        NonNull::new(new).filter(|_| new != libc::MAP_FAILED).map(NonNull::cast)
    }
}

fn second() -> u64 {
    // Add one, since the clock starts at 0, and a word of 0 is empty.
    (process::now() / 1_000_000_000) as u64 + 1
}

/// Whether a word has not expired at `now`, on a clock that wraps around. The time left must not
/// exceed [`longest`]: half a turn of the clock after a word has expired, its second would seem to
/// lie ahead again.
fn is_current(word: u64, now: u64) -> bool {
    let left = (word & TIME).wrapping_sub(now) & TIME;
    word != 0 && (1..=longest(word & OF_COMMAND != 0)).contains(&left)
}

/// The time for which a fact is remembered, in seconds, as configured. Commands are remembered for
/// three weeks unless the configured time is 0, since finding out again would cost a connection.
fn longest(is_of_command: bool) -> u64 {
    match (config::remember() as u64).min(TIME / 2) {
        1.. if is_of_command => 21 * 24 * 3600,
        configured => configured,
    }
}

/// Whether a fact is remembered and has not expired.
pub fn is_known(fact: Fact) -> bool {
    let (hash, now) = (hash(fact), second());
    let mut words = words_for(fact, hash).map(|word| word.load(Ordering::Relaxed));
    words.any(|word| word >> HASH_SHIFT == hash >> HASH_SHIFT && is_current(word, now))
}

/// Remembers a fact for the time that `longest` returns.
pub fn remember(fact: Fact) {
    remember_for(TIME, fact);
}

/// Remembers a fact for at most `most` seconds.
pub fn remember_for(most: u64, fact: Fact) {
    store(fact, longest(fact.is_of_command()).min(most));
}

fn store(fact: Fact, seconds: u64) {
    let (hash, now) = (hash(fact), second());
    let of_command = if fact.is_of_command() { OF_COMMAND } else { 0 };
    let word = hash >> HASH_SHIFT << HASH_SHIFT | of_command | (now + seconds) & TIME;
    let is_its = |word: &&AtomicU64| word.load(Ordering::Relaxed) >> HASH_SHIFT == hash >> HASH_SHIFT;
    let is_free = |word: &&AtomicU64| !is_current(word.load(Ordering::Relaxed), now);
    let soonest = |word: &&AtomicU64| (word.load(Ordering::Relaxed) & TIME).wrapping_sub(now) & TIME;
    let words = || words_for(fact, hash);
    let entry = words().find(is_its).or_else(|| words().find(is_free)).or_else(|| words().min_by_key(soonest));
    if let Some(entry) = entry {
        entry.store(word, Ordering::Relaxed);
    }
}

/// Whether the process has an instance of io_uring, which may use sockets without calling this
/// library. The answer may be a second old. Descriptors that are known to be sockets are skipped.
pub fn has_ring() -> bool {
    static KNOWN: AtomicI64 = AtomicI64::new(i64::MIN);
    /// Replaces the last bit of the time.
    const HAS: i64 = 1;
    let (known, now) = (KNOWN.load(Ordering::Relaxed), process::now());
    if known.saturating_add(1_000_000_000) > now {
        return known & HAS != 0;
    }
    let is_known = |fd| table::get(fd).is_some() || open_fds::has(fd) || rsocket::has_mark(fd) == Some(true);
    let found = open_fds::find_ring(is_known);
    KNOWN.store(now & !HAS | i64::from(found), Ordering::Relaxed);
    found
}

#[cfg(test)]
pub mod tests_of_routes {
    use std::net::{SocketAddr, TcpListener, UdpSocket};
    use std::os::fd::AsRawFd;

    use super::*;

    /// Remembers that rsockets cannot listen at an address of this machine, and returns the
    /// address. Returns `None` if the machine has loopback addresses only.
    pub fn without_rdma() -> Option<SockAddr> {
        let udp = UdpSocket::bind("0.0.0.0:0").ok()?;
        udp.connect("192.0.2.1:9").ok()?;
        let own = udp.local_addr().ok()?;
        store(Fact::Local(own.ip(), false), 60);
        Some(SockAddr::new(own.ip(), 9))
    }

    #[test]
    fn an_address_without_rdma_is_remembered() {
        let (Some(own), Ok(socket)) = (without_rdma(), TcpListener::bind("0.0.0.0:0")) else { return };
        assert_eq!(ruled_out(&own), Ok(()));
        assert_eq!(allows_rdma(socket.as_raw_fd(), &own), Err(Reason::NoDevice));
        assert_eq!(ruled_out(&own), Err(Reason::NoDevice));
    }

    #[test]
    fn what_is_bound_says_nothing_about_the_destination() {
        let (Some(own), to) = (without_rdma(), SockAddr::new(IpAddr::from([198, 51, 100, 1]), 9)) else { return };
        for (address, reason) in [(own.address(), Reason::NoDevice), ([127, 0, 0, 1].into(), Reason::Loopback)] {
            let socket = TcpListener::bind(SocketAddr::new(address, 0)).unwrap();
            assert_eq!((allows_rdma(socket.as_raw_fd(), &to), ruled_out(&to)), (Err(reason), Ok(())));
        }
    }
}

#[cfg(test)]
mod tests_of_early_options {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn what_the_program_has_set_is_copied() {
        let options = |socket: &UdpSocket| {
            let mut options = Vec::new();
            for_early_options(socket.as_raw_fd(), |level, name, value| options.push((level, name, value)));
            options
        };
        let service = (IPPROTO_IP, libc::IP_TOS, 0x68);
        for (address, name) in
            [("127.0.0.1:0", (IPPROTO_IP, libc::IP_TOS)), ("[::]:0", (libc::IPPROTO_IPV6, libc::IPV6_TCLASS))]
        {
            let Ok(socket) = UdpSocket::bind(address) else { continue };
            assert_eq!(options(&socket), []);
            kernel::set(socket.as_raw_fd(), name, &0x68_i32).unwrap();
            assert_eq!(options(&socket), [service]);
            kernel::set(socket.as_raw_fd(), (SOL_SOCKET, libc::SO_RCVBUF), &20_000_i32).unwrap();
            assert_eq!(options(&socket), [(SOL_SOCKET, libc::SO_RCVBUF, 20_000), service]);
            kernel::set(socket.as_raw_fd(), (SOL_SOCKET, libc::SO_SNDBUF), &10_000_i32).unwrap();
            assert_eq!(options(&socket)[0], (SOL_SOCKET, libc::SO_SNDBUF, 10_000));
        }
    }
}

#[cfg(test)]
mod tests_of_ring {
    use super::*;

    #[test]
    fn a_ring_is_found_within_a_second() {
        // SAFETY: the structure of 120 bytes is writable.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, [0_u64; 15].as_mut_ptr()) };
        while ring >= 0 && !has_ring() {
            std::thread::yield_now();
        }
        assert_eq!((has_ring(), open_fds::find_ring(|_| true)), (ring >= 0, false));
    }
}

#[cfg(test)]
mod tests_of_remembered {
    use super::*;

    fn host(number: u32) -> Fact {
        Fact::Silent(IpAddr::from(number.to_be_bytes()))
    }

    #[test]
    fn facts_are_known_until_they_expire() {
        let address = IpAddr::from([10, 0, 0, 1]);
        let facts = [
            Fact::Rejected(address, 80),
            Fact::Rejected(address, 81),
            Fact::Beyond(address),
            Fact::Local(address, false),
            Fact::Local(address, true),
        ];
        for fact in facts {
            store(fact, 60);
            assert_eq!(facts.map(is_known), facts.map(|other| other == fact));
            assert!(!is_known(Fact::Silent(address)));
            store(fact, 0);
            assert!(!is_known(fact));
        }
    }

    #[test]
    fn a_command_is_remembered_for_longer() {
        let week = 7 * 24 * 3600;
        let (one, other) = (Fact::UsedByChild(7), Fact::Beyond(IpAddr::from([10, 0, 0, 7])));
        store(one, week);
        store(other, week);
        assert_eq!([one, other].map(is_known), [true, false]);
        let (command, _) = command();
        used_by_child();
        assert!(is_known(command));
        // Expire the words: the user's next processes have this memory, too.
        [one, command].into_iter().for_each(|fact| store(fact, 0));
        assert!(!is_known(command));
    }

    #[test]
    fn the_clock_may_wrap_around() {
        // Half a turn (97 days) after a word has expired, its second is ahead again.
        assert!(!is_current(1 << HASH_SHIFT | 5, 6 + TIME / 2 + 2));
        assert!(is_current(1 << HASH_SHIFT | 5, TIME));
        assert!(!is_current(1 << HASH_SHIFT | 5, 5));
        assert!(!is_current(1 << HASH_SHIFT | 5, 6));
        assert!(!is_current(0, TIME));
    }

    #[test]
    fn the_newest_of_many_are_kept() {
        for number in 0..100_000 {
            store(host(number), 60);
            assert!(is_known(host(number)));
        }
    }
}
