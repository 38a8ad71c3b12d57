//! Whether a connection may use RDMA: what rules, the socket, its route and the past say.

use core::ffi::c_int;

use libc::{IPPROTO_IP, IPPROTO_TCP, SO_BINDTODEVICE, SO_MARK, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_STREAM, SOL_SOCKET};

use super::kernel_options;
use super::log::Reason;
use super::remembered::{self, Outcome, Subject};
use crate::name::Name;
use crate::sockets::kernel;
use crate::{config, next_symbol, tcp};

/// Whether `fd` is a TCP socket, which the configuration allows to be an rsocket.
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

/// Whether [`has_kernel_option`] asks the kernel for an option, which the program may take back.
/// The last one has a name for IPv6, too.
pub fn is_readable_option(level: c_int, name: c_int) -> bool {
    READABLE_OPTIONS.contains(&(level, name)) || (level, name) == (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT)
}

const READABLE_OPTIONS: [(c_int, c_int); 3] =
    [(SOL_SOCKET, SO_BINDTODEVICE), (SOL_SOCKET, SO_MARK), (IPPROTO_IP, libc::IP_TRANSPARENT)];

/// The local address to which the program has bound the socket, if it is not a wildcard.
pub fn bound(fd: c_int) -> Option<Name> {
    kernel::own(fd).filter(|own| own.number() != 0 || !own.address().is_unspecified())
}

/// The local address of the route to an address.
fn source(to: &Name) -> Option<Name> {
    // No packet is sent.
    let udp = next_symbol::socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if udp < 0 {
        return None;
    }
    // Any port but 0, to which the kernel connects as well, but that is undocumented.
    let to = if to.number() == 0 { to.with_number(1) } else { *to };
    let own = if kernel::connect(udp, &to) == 0 { kernel::own(udp) } else { None };
    next_symbol::close(udp);
    own
}

/// Whether rsockets can listen at a local address beside TCP, and so can be connected from there.
pub fn is_rdma(own: &Name) -> bool {
    let subject = Subject::Local(own.address());
    match remembered::find(subject) {
        Some(Outcome::With) => true,
        Some(_) => false,
        None => {
            let shares = tcp::shares_port(own);
            remembered::remember(subject, if shares { Outcome::With } else { Outcome::Without });
            shares
        }
    }
}

/// What rules out RDMA for an address without a system call: nearly every connection to a
/// destination without RDMA.
pub fn ruled_out(to: &Name) -> Result<(), Reason> {
    let (address, port) = (to.address(), to.number());
    if address.is_loopback() {
        return Err(Reason::Loopback);
    }
    if address.is_unspecified() || address.is_multicast() {
        // The kernel takes the first for a loopback address.
        return Err(Reason::NoRoute);
    }
    if !config::is_automatic(address, port) {
        return Err(Reason::Rule);
    }
    if remembered::find(Subject::Beyond(address)).is_some() {
        return Err(Reason::NoDevice);
    }
    if remembered::find(Subject::Host(address)).is_some() {
        return Err(Reason::WasSilent);
    }
    match remembered::find(Subject::Port(address, port)) {
        Some(_) => Err(Reason::WasRejected),
        None => Ok(()),
    }
}

/// Whether the connection of `fd` to an address that is not [ruled out](ruled_out) may use RDMA.
pub fn allows_rdma(fd: c_int, to: &Name) -> Result<(), Reason> {
    if has_kernel_option(fd) {
        return Err(Reason::Option);
    }
    let bound = bound(fd).filter(|own| !own.address().is_unspecified());
    let own = bound.or_else(|| source(to)).ok_or(Reason::NoRoute)?;
    if own.address().is_loopback() {
        return Err(Reason::Loopback);
    }
    if is_rdma(&own) {
        return Ok(());
    }
    if bound.is_none() {
        remembered::remember(Subject::Beyond(to.address()), Outcome::Without);
    }
    Err(Reason::NoDevice)
}

/// The options that are set before an rsocket connects or listens.
pub fn copy_early_options(fd: c_int, inner: c_int) {
    /// Which of the two sizes the program has set (linux/socket.h, since Linux 5.15).
    const SO_BUF_LOCK: c_int = 72;
    let set = |level, name, value: c_int| {
        let _ = crate::rsocket::set_option(inner, level, name, value);
    };
    let locked = tcp::int(fd, SOL_SOCKET, SO_BUF_LOCK).unwrap_or(0);
    for (bit, name) in [(1, libc::SO_SNDBUF), (2, libc::SO_RCVBUF)] {
        if locked & bit != 0
            && let Some(size) = tcp::int(fd, SOL_SOCKET, name)
        {
            // The kernel returns twice what was set.
            set(SOL_SOCKET, name, size / 2);
        }
    }
    let services = [(IPPROTO_IP, libc::IP_TOS), (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)];
    let mut service = services.iter().filter_map(|&(level, name)| tcp::int(fd, level, name));
    if let Some(service) = service.find(|&service| service > 0) {
        set(IPPROTO_IP, libc::IP_TOS, service);
    }
}
