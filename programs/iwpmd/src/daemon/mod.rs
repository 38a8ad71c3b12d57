//! The daemon around [`crate::proto`]: sockets, signals, log. It has one thread that sleeps in
//! epoll_wait(2), and one that writes the log.

pub mod link;
mod log_queue;
pub mod ports;
pub mod settings;
pub mod start;

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use std::vec;

use nix::Result;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signalfd::SignalFd;
use nix::syslog::Severity::{self, LOG_INFO, LOG_WARNING};

use self::link::{Input, Link};
use self::ports::Ports;
use crate::proto::engine::{Action, Engine, Socket};
use crate::proto::netlink::messages;
use crate::proto::wire;
use crate::sys::process::random;
use crate::sys::sockets::Udp;

/// Receives the lines of the log, with their severities.
pub type Log = Box<dyn FnMut(Severity, &str)>;

/// Maximum number of messages received from one descriptor before the others have their turn.
const MAX_MESSAGES_PER_TURN: usize = 64;
/// Maximum number of lines of a dump written to the log before the descriptors have their turn: the
/// log's reader may be slow.
const MAX_LINES_PER_TURN: usize = 64;

const KERNEL: u64 = 0;
const SIGNALS: u64 = 1;
const UDP: u64 = 2;

/// The daemon: the engine, its descriptors, and the epoll instance that watches them.
pub struct Daemon {
    engine: Engine,
    kernel: Link,
    /// Whether the kernel's descriptor is watched for space to send instead of for messages.
    full: bool,
    udp: Vec<(Socket, Udp)>,
    ports: Ports,
    signals: Option<SignalFd>,
    epoll: Epoll,
    started: Instant,
    log: Log,
    /// Lines of the requested dump that are not in the log yet.
    lines: vec::IntoIter<String>,
}

impl Daemon {
    /// Returns a daemon that talks over `kernel` to the kernel, or to a test that plays the kernel.
    /// The daemon handles `signals`, if given.
    pub fn new(kernel: Link, udp: Vec<(Socket, Udp)>, signals: Option<SignalFd>, log: Log) -> Result<Daemon> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&kernel, EpollEvent::new(EpollFlags::EPOLLIN, KERNEL))?;
        if let Some(signals) = &signals {
            epoll.add(signals, EpollEvent::new(EpollFlags::EPOLLIN, SIGNALS))?;
        }
        for (token, (_, udp)) in (UDP..).zip(&udp) {
            epoll.add(udp, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        }
        let mut engine = Engine::new(kernel.pid(), Box::new(random));
        engine.start();
        let mut daemon = Daemon {
            engine,
            kernel,
            full: false,
            udp,
            ports: Ports::default(),
            signals,
            epoll,
            started: Instant::now(),
            log,
            lines: Vec::new().into_iter(),
        };
        daemon.perform_actions();
        Ok(daemon)
    }

    /// Runs until a signal ends the daemon. Returns the signal.
    pub fn run(&mut self) -> Result<c_int> {
        loop {
            if let Some(signal) = self.turn(None)? {
                return Ok(signal);
            }
        }
    }

    /// Waits for events or the engine's deadline, at most for `max_wait`, and handles them. Returns
    /// the signal that ends the daemon, if one arrived.
    pub fn turn(&mut self, max_wait: Option<Duration>) -> Result<Option<c_int>> {
        let max_wait = if self.lines.len() > 0 { Some(Duration::ZERO) } else { max_wait };
        let now = self.now();
        let until_deadline = self.engine.deadline().map(|time| Duration::from_millis(time.saturating_sub(now)));
        let wait = [max_wait, until_deadline].into_iter().flatten().min();
        let wait = wait.map_or(EpollTimeout::NONE, |wait| wait.try_into().unwrap_or(EpollTimeout::MAX));
        let mut events = [EpollEvent::empty(); 8];
        let count = match self.epoll.wait(&mut events, wait) {
            Err(Errno::EINTR) => 0,
            result => result?,
        };
        for event in &events[..count] {
            match event.data() {
                KERNEL => self.kernel_ready()?,
                SIGNALS => {
                    if let Some(signal) = self.signal() {
                        return Ok(Some(signal));
                    }
                }
                token => self.udp_ready((token - UDP) as usize),
            }
        }
        self.write_lines();
        let now = self.now();
        self.engine.timer(now);
        self.perform_actions();
        Ok(None)
    }

    /// Returns the protocol's state machine, for tests.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn write_lines(&mut self) {
        for line in self.lines.by_ref().take(MAX_LINES_PER_TURN) {
            (self.log)(LOG_INFO, &line);
        }
    }

    fn kernel_ready(&mut self) -> Result<()> {
        self.flush();
        let mut buffer = Vec::new();
        for _ in 0..MAX_MESSAGES_PER_TURN {
            // While the kernel takes no answers, its further requests are left in the socket.
            if self.full {
                return Ok(());
            }
            let (input, now) = (self.kernel.receive(&mut buffer)?, self.now());
            match input {
                Input::Messages(size) => {
                    for message in messages(&buffer[..size]) {
                        self.engine.kernel(message, now);
                        self.perform_actions();
                    }
                }
                Input::Overrun => {
                    self.engine.overrun(now);
                    self.perform_actions();
                }
                Input::Ignored => {}
                Input::Drained => {
                    self.flush();
                    break;
                }
            }
        }
        Ok(())
    }

    fn udp_ready(&mut self, index: usize) {
        // One byte more than the largest message, so that larger datagrams are detected.
        let mut buffer = [0; wire::REQUEST_SIZE + 1];
        for _ in 0..MAX_MESSAGES_PER_TURN {
            let Some((socket, udp)) = self.udp.get(index) else { return };
            let datagram = match udp.receive(&mut buffer) {
                Ok(datagram) => datagram,
                Err(Errno::EAGAIN) => return,
                // An ICMP error of an earlier datagram, which the kernel reports once.
                Err(_) => continue,
            };
            let (socket, now) = (*socket, self.now());
            let bytes = &buffer[..datagram.size.min(buffer.len())];
            self.engine.udp(socket, datagram.from, datagram.to, bytes, now);
            self.perform_actions();
        }
    }

    fn signal(&mut self) -> Option<c_int> {
        while let Ok(Some(record)) = self.signals.as_ref()?.read_signal() {
            let signal = record.ssi_signo as c_int;
            if signal != libc::SIGUSR1 {
                return Some(signal);
            }
            // A dump in progress is restarted.
            self.lines = self.engine.dump().into_iter();
        }
        None
    }

    /// Performs the actions of the engine.
    fn perform_actions(&mut self) {
        while let Some(action) = self.engine.action() {
            match action {
                Action::Kernel(bytes) => {
                    self.kernel.send(bytes);
                    self.flush();
                }
                Action::KernelRetry(bytes) => self.kernel.send_when_drained(bytes),
                Action::Send { socket, from, to, message } => self.send(socket, from, to, &message),
                Action::Open(opening) => {
                    let (opened, now) = (self.ports.open(opening.id, opening.local, opening.port), self.now());
                    self.engine.opened(opening, opened, now);
                }
                Action::Close(id) => self.ports.close(id),
                Action::Log(severity, text) => (self.log)(severity, &text),
            }
        }
    }

    fn send(&mut self, socket: Socket, from: Option<IpAddr>, to: SocketAddr, bytes: &[u8]) {
        let wanted = (socket, to.is_ipv6());
        let Some((_, udp)) = self.udp.iter().find(|(socket, udp)| (*socket, udp.is_ipv6()) == wanted) else { return };
        // An error is ignored: the engine resends lost requests, and reports a timeout in the end.
        let _ = udp.send(bytes, to, from);
    }

    /// Sends queued messages until the socket is full. The rest is sent when there is space again.
    fn flush(&mut self) {
        if let Err(error) = self.kernel.flush() {
            (self.log)(LOG_WARNING, &format!("a message cannot be sent to the kernel: {error}"));
        }
        let full = self.kernel.has_unsent();
        if full != self.full {
            self.full = full;
            let wanted = if full { EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
            // Cannot fail: the descriptor is in the epoll instance already.
            let _ = self.epoll.modify(&self.kernel, &mut EpollEvent::new(wanted, KERNEL));
        }
    }
}

/// Returns the UDP sockets at `addresses`, except for wildcard addresses of a family that the host
/// does not support. Fails with EAFNOSUPPORT if no socket remains.
pub fn udp_sockets(addresses: &[IpAddr]) -> Result<Vec<(Socket, Udp)>> {
    let mut sockets = Vec::new();
    for &ip in addresses {
        for (socket, port) in [(Socket::Service, wire::PORT), (Socket::Client, 0)] {
            match Udp::new(SocketAddr::new(ip, port)) {
                Ok(udp) => sockets.push((socket, udp)),
                Err(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL) if ip.is_unspecified() => {}
                Err(error) => return Err(error),
            }
        }
    }
    if sockets.is_empty() { Err(Errno::EAFNOSUPPORT) } else { Ok(sockets) }
}
