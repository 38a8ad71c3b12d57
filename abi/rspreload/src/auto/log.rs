//! The log: a line for each connection and listener, and one when a TCP connection is closed.

use core::ffi::c_int;
use core::fmt::{self, Write};
use core::net::SocketAddr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use base::sock_diag;

use crate::sockets::{AtomicName, SockAddr, kernel, rdma};
use crate::table::Growing;
use crate::{config, errno, open_fds};

// The log line of each connection: its transport, and the reason for this transport.

/// Defines `Reason`: why a connection or a listener uses RDMA or TCP, with the text of the log.
macro_rules! reasons {
    ($($reason:ident => $text:literal,)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Reason {
            $($reason,)*
            /// The attempt over RDMA failed with this errno.
            Failed(i32),
            NoStandIn(i32),
        }

        impl fmt::Display for Reason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Reason::$reason => f.write_str($text),)*
                    Reason::Failed(error) => write!(f, "the attempt by RDMA failed with errno {error}"),
                    Reason::NoStandIn(error) => write!(f, "no connection inside the host: errno {error}"),
                }
            }
        }
    };
}

reasons! {
    Rule => "a rule of the configuration",
    Loopback => "a loopback address",
    Option => "the socket has an option that rsockets do not have",
    NoRoute => "there is no route",
    NoDevice => "no RDMA device that can share ports with TCP has the local address",
    WasSilent => "the host did not answer by RDMA a short time ago",
    WasRejected => "nobody listened there by RDMA a short time ago",
    Silent => "no answer by RDMA in time",
    Rejected => "rejected: nobody listens there by RDMA",
    Busy => "too many attempts at a time, or no memory",
    SocketShared => "the program has copied or shut down the socket",
    Instances => "the socket is a member of too many epoll instances",
    Descriptors => "too few descriptors",
    Ring => "the program has an instance of io_uring",
    NoDiag => "the kernel does not tell who has accepted a connection (inet_diag, tcp_diag)",
    Connected => "connected",
    Reuse => "SO_REUSEPORT: other sockets may listen at the port",
    PortTaken => "another rsocket has the port",
    NotOwn => "the socket is a copy, or was made by another process or before a fork",
    Stranger => "another process accepts its connections",
    Passed => "the program has passed it to another process",
    Forwarded => "used by another process than the one that accepted it",
    CameByTcp => "the peer has connected by TCP",
    Slots => "too many connections by RDMA",
    NotPrepared => "vfork(2) and posix_spawn(3) need librspreload-full.so",
    Executed => "a program was executed with one of its connections",
    Elsewhere => "another process of the program accepts its connections",
    UsedByChild => "a child of this command has used its parent's connection",
}

impl Reason {
    /// Fails with the reason unless `holds`.
    pub fn unless(self, holds: bool) -> Result<(), Reason> {
        if holds { Ok(()) } else { Err(self) }
    }
}

/// Text of a limited length.
struct Text {
    bytes: [u8; 300],
    len: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

/// Writes a line, if there is a log.
pub fn line(text: fmt::Arguments<'_>) {
    if !config::logs() {
        return;
    }
    let mut line = Text { bytes: [0; 300], len: 0 };
    let _ = line.write_fmt(text);
    let _ = rdma::set_bytes(-1, (base::private::LEVEL, base::private::LOG), &line.bytes, line.len);
}

/// Logs a connection of connect(2).
pub fn connection(fd: i32, to: &SockAddr, reason: Reason) {
    let way = way(fd, to, reason);
    line(format_args!("connect: socket {fd} -> {} port {}: {way}: {reason}", to.address(), to.port()));
}

/// Logs a connection of accept(2).
pub fn accepted(fd: i32, from: &SockAddr, reason: Reason) {
    let way = way(fd, from, reason);
    line(format_args!("accept: socket {fd} <- {} port {}: {way}: {reason}", from.address(), from.port()));
}

/// Returns the transport of a connection. Remembers the peer of a TCP connection for the log line
/// of its close(2).
fn way(fd: c_int, peer: &SockAddr, reason: Reason) -> &'static str {
    match reason {
        Reason::Connected => return "RDMA",
        Reason::Forwarded => return "RDMA, forwarded",
        _ => {}
    }
    if config::logs()
        && let Ok(word) = PEERS.get_or_grow(fd)
    {
        word.store(peer);
        LOGGED.store(true, Relaxed);
    }
    "TCP"
}

/// Logs a listener. `reason` tells why it is TCP only; `None` if it uses both transports.
pub fn listener(fd: i32, own: &SockAddr, reason: Option<Reason>) {
    let (address, port) = (own.address(), own.port());
    match reason {
        None => line(format_args!("listen: socket {fd} at {address} port {port}: RDMA and TCP")),
        Some(reason) => line(format_args!("listen: socket {fd} at {address} port {port}: TCP: {reason}")),
    }
}

/// Logs that a child or an executed program has a connection that it cannot use.
pub fn not_given(fd: i32, user: &str, reason: Reason) {
    line(format_args!("socket {fd}: not connected in the {user}: {reason}"));
}

/// Logs the lines of `auto_config` that have no effect, once.
pub fn problems() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if config::logs() && !TOLD.swap(true, Relaxed) {
        for (number, problem) in config::problems() {
            line(format_args!("/etc/rdma/rsocket/auto_config: line {number} is ignored: {problem}"));
        }
    }
}

// The log line when a TCP connection is closed: the bytes of both directions, or that the socket
// was never connected. The bytes of rsockets are logged by librdmacm.

/// Whether this process, or an ancestor before fork(2), has logged a TCP connection.
static LOGGED: AtomicBool = AtomicBool::new(false);

/// For each descriptor, the peer of its TCP connection. The kernel does not report the peer once
/// both ends have shut down, or if no connection was established.
static PEERS: Growing<AtomicName> = Growing::new();

/// Called before a kernel descriptor is closed. Logs the connection.
#[inline(always)]
pub fn before_close(fd: c_int) {
    if LOGGED.load(Relaxed) {
        errno::keeping(|| report(fd));
    }
}

/// Called when the process ends. Logs all open connections.
pub fn before_exit() {
    if LOGGED.load(Relaxed) {
        open_fds::each(0..c_int::MAX, report);
    }
}

#[cold]
fn report(fd: c_int) {
    let Some(info) = info(fd) else { return };
    let logged = PEERS.get(fd).and_then(AtomicName::take);
    let (Some(own), Some(peer)) = (kernel::own(fd), kernel::peer(fd).or(logged)) else { return };
    let [own, peer] = [own, peer].map(|name| SocketAddr::new(name.address(), name.port()));
    if sock_diag::was_established(&info) {
        let (sent, received) = sock_diag::bytes(&info).unwrap_or_default();
        line(format_args!("close: socket {fd} {own} -> {peer} tcp: sent {sent} bytes, received {received}"));
    } else {
        line(format_args!("close: socket {fd} {own} -> {peer} tcp: not connected"));
    }
}

/// Returns the `tcp_info` of a TCP socket that does not listen. Returns `None` for other
/// descriptors, and if the kernel's structure is shorter.
fn info(fd: c_int) -> Option<[u8; sock_diag::TCP_INFO]> {
    let (info, len) = kernel::get::<[u8; sock_diag::TCP_INFO]>(fd, (libc::IPPROTO_TCP, libc::TCP_INFO))?;
    (len >= info.len() && info[0] != sock_diag::LISTEN).then_some(info)
}
