//! The log line of each connection: which way it goes, and why.

use core::fmt::{self, Write};
use core::mem;

use libc::socklen_t;

use super::tcp_bytes;
use crate::tcp::name::Name;
use crate::{config, errno, rsocket_abi};

/// Why a connection, or a listener, is what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    Rule,
    Loopback,
    Option,
    NoRoute,
    NoDevice,
    WasSilent,
    WasRejected,
    Silent,
    Rejected,
    Failed(i32),
    Busy,
    SocketShared,
    Instances,
    Descriptors,
    Ring,
    NoDiag,
    Connected,
    Reuse,
    PortTaken,
    NotOwn,
    Stranger,
    Passed,
    Forwarded,
    CameByTcp,
    NoToken(i32),
    Slots,
    NotPrepared,
    Executed,
    Elsewhere,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Rule => "a rule of the configuration",
            Reason::Loopback => "a loopback address",
            Reason::Option => "the socket has an option that rsockets do not have",
            Reason::NoRoute => "there is no route",
            Reason::NoDevice => "no RDMA device that can share ports with TCP has the local address",
            Reason::WasSilent => "the host did not answer by RDMA a short time ago",
            Reason::WasRejected => "nobody listened there by RDMA a short time ago",
            Reason::Silent => "no answer by RDMA in time",
            Reason::Rejected => "rejected: nobody listens there by RDMA",
            Reason::Failed(error) => return write!(f, "the attempt by RDMA failed with errno {error}"),
            Reason::Busy => "too many attempts at a time, or no memory",
            Reason::SocketShared => "the program has copied or shut down the socket",
            Reason::Instances => "the socket is a member of too many epoll instances",
            Reason::Descriptors => "too few descriptors",
            Reason::Ring => "the program has an instance of io_uring",
            Reason::NoDiag => "the kernel does not tell who has accepted a connection (inet_diag, tcp_diag)",
            Reason::Connected => "connected",
            Reason::Reuse => "SO_REUSEPORT: other sockets may listen at the port",
            Reason::PortTaken => "another rsocket has the port",
            Reason::NotOwn => "the socket is a copy, or was made by another process or before a fork",
            Reason::Stranger => "another process accepts its connections",
            Reason::Passed => "the program has passed it to another process",
            Reason::CameByTcp => "the peer has connected by TCP",
            Reason::Forwarded => "used by another process than the one that accepted it",
            Reason::NoToken(error) => return write!(f, "no connection inside the host: errno {error}"),
            Reason::Slots => "too many connections by RDMA",
            Reason::NotPrepared => "vfork(2) and posix_spawn(3) need librspreload-full.so",
            Reason::Elsewhere => "another process of the program accepts its connections",
            Reason::Executed => "a program was executed with one of its connections",
        })
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
    // SAFETY: `len` bytes of the text are readable.
    errno::keeping(|| unsafe {
        let (bytes, len) = (line.bytes.as_ptr().cast(), line.len as socklen_t);
        rsocket_abi::rsetsockopt(-1, rdmacm_private::LEVEL, rdmacm_private::LOG, bytes, len)
    });
}

/// `ADDRESS PORT`, for a log line.
struct Shown<'a>(&'a Name);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.0.address(), self.0.number())
    }
}

/// A connection of connect(2).
pub fn connection(fd: i32, to: &Name, way: &str, reason: Reason) {
    line(format_args!("connect: socket {fd} -> {}: {way}: {reason}", Shown(to)));
    by_tcp(fd, to, way);
}

/// A connection of accept(2).
pub fn accepted(fd: i32, from: &Name, way: &str, reason: Reason) {
    line(format_args!("accept: socket {fd} <- {}: {way}: {reason}", Shown(from)));
    by_tcp(fd, from, way);
}

fn by_tcp(fd: i32, peer: &Name, way: &str) {
    if config::logs() && way == "TCP" {
        tcp_bytes::logged(fd, peer);
    }
}

/// A listener. `reason`: why not both ways.
pub fn listener(fd: i32, own: &Name, way: &str, reason: Option<Reason>) {
    match reason {
        None => line(format_args!("listen: socket {fd} at {}: {way}", Shown(own))),
        Some(reason) => line(format_args!("listen: socket {fd} at {}: {way}: {reason}", Shown(own))),
    }
}

/// A child, or a program that is executed, has a connection that it cannot use.
pub fn not_given(fd: i32, user: &str, reason: Reason) {
    line(format_args!("socket {fd}: not connected in the {user}: {reason}"));
}

/// The lines of `auto_config` that have no effect, once.
pub fn problems() {
    use core::sync::atomic::{AtomicBool, Ordering};
    static TOLD: AtomicBool = AtomicBool::new(false);
    if config::logs() && !TOLD.swap(true, Ordering::Relaxed) {
        for (number, problem) in config::problems() {
            line(format_args!("/etc/rdma/rsocket/auto_config: line {number} is ignored: {problem}"));
        }
    }
}

const _: () = assert!(mem::size_of::<Reason>() <= 8);
