//! An attempt to connect by RDMA, and what follows from its end.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr};

use libc::{
    EACCES, EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EAGAIN, ECONNREFUSED, EINPROGRESS, EINVAL, EMFILE, ENFILE,
    ENOBUFS, ENOMEM, EPERM, ETIMEDOUT, F_SETFL, O_NONBLOCK, POLLOUT, SOL_SOCKET, pollfd,
};

use super::log::Reason;
use super::remembered::{self, Outcome, Subject};
use super::route;
use crate::name::Name;
use crate::sockets::rdma;
use crate::time::Deadline;
use crate::{config, errno, rsocket, rsocket_abi, tcp};

/// How long a rejection of RDMA is remembered where TCP was not connected yet.
const REJECTED_SECONDS: u64 = 2;

/// Begins to connect an rsocket in place of the TCP socket `fd`. Returns its number; it is a
/// non-blocking one.
pub fn begin(fd: c_int, to: &Name) -> Result<c_int, Reason> {
    let mut error = 0;
    let inner = tcp::make_rsocket(to, |inner| {
        let begun = connect(fd, inner, to);
        error = errno::get();
        begun
    });
    inner.ok_or_else(|| if error == 0 { Reason::Busy } else { ended(to, error) })
}

fn connect(fd: c_int, inner: c_int, to: &Name) -> bool {
    route::copy_early_options(fd, inner);
    tcp::copy_reuse(fd, inner);
    rdma::fcntl(inner, F_SETFL, O_NONBLOCK);
    // The program's own choice, port included.
    if route::bound(fd).is_some_and(|own| rdma::bind(inner, &in_family(&own, to)) != 0) {
        return false;
    }
    rdma::connect(inner, to) == 0 || errno::get() == EINPROGRESS
}

/// The program's own address for a destination: sockets of IPv6 have the wildcard address for both
/// families.
fn in_family(own: &Name, to: &Name) -> Name {
    match to.address() {
        IpAddr::V4(_) if own.address().is_unspecified() => Name::new(Ipv4Addr::UNSPECIFIED.into(), own.number()),
        _ => own.of_device(),
    }
}

/// Waits for the end of an attempt, at most half of the time until `limit`: the rest is left to
/// TCP. A signal does not end it.
pub fn wait(inner: c_int, to: &Name, limit: Option<&Deadline>) -> Result<(), Reason> {
    let mut fds = [pollfd { fd: inner, events: POLLOUT, revents: 0 }];
    let end = deadline();
    let half = limit.map(|limit| Deadline::after((limit.left() / 2).max(1)));
    match half.filter(|half| half.left() < end.left()) {
        None if tcp::poll(&mut fds, &end) => result(inner, to),
        None => expire(inner, to),
        Some(half) if tcp::poll(&mut fds, &half) => result(inner, to),
        // The host had less time than others: nothing is remembered of it.
        Some(_) => abandon(inner, Reason::Silent),
    }
}

/// The time of an attempt is over.
pub fn expire(inner: c_int, to: &Name) -> Result<(), Reason> {
    if cancel(inner) { Err(ended(to, ETIMEDOUT)) } else { Ok(()) }
}

/// Cancels an attempt. Returns false if it has succeeded meanwhile: the peer has the connection.
fn cancel(inner: c_int) -> bool {
    rsocket::set_library_option(inner, rdmacm_private::CANCEL) != Err(libc::EISCONN)
}

/// Cancels an attempt for a reason, unless it has succeeded meanwhile.
pub fn abandon(inner: c_int, reason: Reason) -> Result<(), Reason> {
    if cancel(inner) { Err(reason) } else { Ok(()) }
}

/// The result of an attempt that has ended.
pub fn result(inner: c_int, to: &Name) -> Result<(), Reason> {
    match error_of(inner) {
        0 if rdma::peer(inner).is_some() => Ok(()),
        0 => Err(ended(to, ECONNREFUSED)),
        error => Err(ended(to, error)),
    }
}

/// The program's connect(2) returns the success of an attempt: the next one fails with `EISCONN`.
pub fn report_success(inner: c_int, to: &Name) {
    errno::keeping(|| rdma::connect(inner, to));
}

fn error_of(inner: c_int) -> c_int {
    rdma::get::<c_int>(inner, (SOL_SOCKET, libc::SO_ERROR)).map_or_else(errno::get, |(error, _)| error)
}

/// An attempt has failed: why, and what is remembered. That nobody listens is remembered when TCP
/// has been accepted there ([`accepted_by_tcp`]).
pub fn ended(to: &Name, error: c_int) -> Reason {
    match error {
        ECONNREFUSED => Reason::Rejected,
        // This end has no port, fitting address, descriptor, memory or permission. Of the host that
        // says nothing.
        EADDRINUSE | EADDRNOTAVAIL | EAFNOSUPPORT | EINVAL | EMFILE | ENFILE | ENOMEM | ENOBUFS | EAGAIN | EPERM
        | EACCES => Reason::Failed(error),
        ETIMEDOUT => {
            remembered::remember(Subject::Host(to.address()), Outcome::Silent);
            Reason::Silent
        }
        error => {
            remembered::remember(Subject::Host(to.address()), Outcome::Silent);
            Reason::Failed(error)
        }
    }
}

/// TCP is connected where RDMA was not.
pub fn accepted_by_tcp(to: &Name, reason: Reason) {
    if reason == Reason::Rejected {
        remembered::remember(Subject::Port(to.address(), to.number()), Outcome::Rejected);
    }
}

/// RDMA was rejected, and TCP is about to be tried: whether somebody listens there by it is not
/// known yet. Clients that try again and again until a server listens find it by RDMA soon.
pub fn rejected(to: &Name) {
    remembered::remember_for(REJECTED_SECONDS, Subject::Port(to.address(), to.number()), Outcome::Rejected);
}

/// The end of an attempt that begins now.
pub fn deadline() -> Deadline {
    Deadline::after(config::timeout())
}

/// Ends an attempt: the peer's connection manager is told.
pub fn give_up(inner: c_int) {
    errno::keeping(|| rsocket_abi::rclose(inner));
}
