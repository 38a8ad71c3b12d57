//! The daemon around [`crate::iwpm`]: sockets, signals, log. One thread, which sleeps in epoll_wait(2).

pub mod choice;
pub mod config;
pub mod link;
pub mod notify;
pub mod options;
pub mod ports;
pub mod start;

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};
use std::vec;

use libc::epoll_event;

use self::link::{Heard, Link};
use self::ports::Ports;
use crate::errno::{Errno, Result};
use crate::iwpm::engine::{Action, Engine, Level, Socket};
use crate::iwpm::netlink::messages;
use crate::iwpm::wire;
use crate::sys::event::KernelEpoll;
use crate::sys::process::{Signals, random};
use crate::sys::sockets::{KernelSocket, Udp};
use crate::sys::timer::Timer;

/// What reads the log: a line, and how much it matters.
pub type Log = Box<dyn FnMut(Level, &str)>;

/// Messages taken from one descriptor before the others have their turn.
const TURN: usize = 64;
/// Lines of a long list that are written to the log before everything else has its turn: whoever reads it may be slow.
const LINES: usize = 64;

const KERNEL: u64 = 0;
const SIGNALS: u64 = 1;
const TIMER: u64 = 2;
const UDP: u64 = 3;

/// Where the UDP sockets are.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// Of IPv4.
    pub v4: Ipv4Addr,
    /// Of IPv6; `None`: there is none.
    pub v6: Option<Ipv6Addr>,
}

impl Addresses {
    /// All of the host's.
    pub const ALL: Addresses = Addresses { v4: Ipv4Addr::UNSPECIFIED, v6: Some(Ipv6Addr::UNSPECIFIED) };
}

/// The daemon.
pub struct Daemon {
    engine: Engine,
    kernel: Link,
    /// Whether the kernel's descriptor is watched for room instead of messages.
    full: bool,
    udp: Vec<(Socket, bool, Udp)>,
    ports: Ports,
    signals: Option<Signals>,
    timer: Timer,
    /// The engine's deadline that the timer is set to.
    set_to: Option<u64>,
    epoll: KernelEpoll,
    born: Instant,
    log: Log,
    /// Of the list that was asked for: what is not in the log yet.
    lines: vec::IntoIter<String>,
}

impl Daemon {
    /// A daemon that speaks over `kernel` with the kernel, or whoever plays it.
    pub fn with(kernel: KernelSocket, udp: Vec<(Socket, Udp)>, log: Log) -> Result<Daemon> {
        let (epoll, timer) = (KernelEpoll::new(libc::EPOLL_CLOEXEC)?, Timer::new()?);
        watch(&epoll, libc::EPOLL_CTL_ADD, timer.as_raw_fd(), TIMER, libc::EPOLLIN)?;
        watch(&epoll, libc::EPOLL_CTL_ADD, kernel.as_raw_fd(), KERNEL, libc::EPOLLIN)?;
        let of_family = |(socket, udp): (Socket, Udp)| (socket, udp.is_ipv6(), udp);
        let udp: Vec<_> = udp.into_iter().map(of_family).collect();
        for (token, (.., udp)) in (UDP..).zip(&udp) {
            watch(&epoll, libc::EPOLL_CTL_ADD, udp.as_raw_fd(), token, libc::EPOLLIN)?;
        }
        let mut engine = Engine::new(kernel.pid(), Box::new(random));
        engine.start();
        let mut daemon = Daemon {
            engine,
            kernel: Link::new(kernel),
            full: false,
            udp,
            ports: Ports::default(),
            signals: None,
            timer,
            set_to: None,
            epoll,
            born: Instant::now(),
            log,
            lines: Vec::new().into_iter(),
        };
        daemon.act();
        Ok(daemon)
    }

    /// As [`with`](Self::with), over a descriptor that is not netlink: a pair of sockets, in tests.
    pub fn over(kernel: OwnedFd, addresses: Addresses, log: Log) -> Result<Daemon> {
        Daemon::with(KernelSocket::with(kernel)?, udp_sockets(addresses)?, log)
    }

    /// Reacts to signals, too.
    pub fn take_signals(&mut self, signals: Signals) -> Result<()> {
        watch(&self.epoll, libc::EPOLL_CTL_ADD, signals.as_raw_fd(), SIGNALS, libc::EPOLLIN)?;
        self.signals = Some(signals);
        Ok(())
    }

    /// Works until a signal ends it; which one.
    pub fn run(&mut self) -> Result<c_int> {
        loop {
            if let Some(signal) = self.turn(None)? {
                return Ok(signal);
            }
        }
    }

    /// Waits for something to do, at most for `most`, and does it; the signal that ends it, if one came.
    pub fn turn(&mut self, most: Option<Duration>) -> Result<Option<c_int>> {
        self.set_timer()?;
        let wait = if self.lines.len() > 0 { Some(Duration::ZERO) } else { most };
        let mut events = [MaybeUninit::uninit(); 8];
        let count = match self.epoll.wait(&mut events, wait) {
            Err(Errno::EINTR) => 0,
            result => result?,
        };
        for event in &events[..count] {
            // SAFETY: the kernel has written as many as it says.
            let token = unsafe { event.assume_init_ref() }.u64;
            match token {
                KERNEL => self.kernel_ready()?,
                // The engine is told the time in any case.
                TIMER => {
                    self.timer.set(None)?;
                    self.set_to = None;
                }
                SIGNALS => {
                    if let Some(signal) = self.signal() {
                        return Ok(Some(signal));
                    }
                }
                _ => self.udp_ready((token - UDP) as usize),
            }
        }
        self.write_lines();
        let now = self.now();
        self.engine.timer(now);
        self.act();
        Ok(None)
    }

    /// What it knows, for people.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn now(&self) -> u64 {
        self.born.elapsed().as_millis() as u64
    }

    fn set_timer(&mut self) -> Result<()> {
        let deadline = self.engine.deadline();
        if deadline != self.set_to {
            let left = |time| Duration::from_millis(time).saturating_sub(self.born.elapsed());
            self.timer.set(deadline.map(left))?;
            self.set_to = deadline;
        }
        Ok(())
    }

    fn write_lines(&mut self) {
        for line in self.lines.by_ref().take(LINES) {
            (self.log)(Level::Info, &line);
        }
    }

    fn kernel_ready(&mut self) -> Result<()> {
        self.flush();
        for _ in 0..TURN {
            // A kernel that takes no answers gets no further questions answered.
            if self.full {
                return Ok(());
            }
            let (heard, now) = (self.kernel.hear()?, self.now());
            match heard {
                Heard::Messages(bytes) => {
                    for message in messages(&bytes) {
                        self.engine.kernel(message, now);
                        self.act();
                    }
                    self.kernel.give_back(bytes);
                }
                Heard::Loss => {
                    self.engine.overrun(now);
                    self.act();
                }
                Heard::Nothing => {}
                Heard::Silence => {
                    self.kernel.silence();
                    self.flush();
                    break;
                }
            }
        }
        Ok(())
    }

    fn udp_ready(&mut self, index: usize) {
        // One more than the largest message: larger ones show.
        let mut buffer = [0; wire::LONG + 1];
        for _ in 0..TURN {
            let Some((socket, _, udp)) = self.udp.get(index) else { return };
            let datagram = match udp.receive(&mut buffer) {
                Ok(datagram) => datagram,
                Err(Errno::EAGAIN) => return,
                // An error that an earlier datagram met; it is said once.
                Err(_) => continue,
            };
            let (socket, now) = (*socket, self.now());
            let bytes = &buffer[..datagram.size.min(buffer.len())];
            self.engine.udp(socket, datagram.from, datagram.to, bytes, now);
            self.act();
        }
    }

    fn signal(&mut self) -> Option<c_int> {
        while let Some(signal) = self.signals.as_ref()?.next() {
            if signal != libc::SIGUSR1 {
                return Some(signal);
            }
            // A list that was not finished is begun anew.
            self.lines = self.engine.dump().into_iter();
        }
        None
    }

    /// Does all that the engine wants done.
    fn act(&mut self) {
        while let Some(action) = self.engine.action() {
            match action {
                Action::Kernel(bytes) => {
                    self.kernel.say(bytes);
                    self.flush();
                }
                Action::KernelAgain(bytes) => self.kernel.say_again(bytes),
                Action::Send { socket, from, to, message } => self.send(socket, from, to, message.as_slice()),
                Action::Open { id, local, port } => {
                    let (opened, now) = (self.ports.open(id, local, port), self.now());
                    self.engine.opened(id, opened, now);
                }
                Action::Close(id) => self.ports.close(id),
                Action::Log(level, text) => (self.log)(level, &text),
            }
        }
    }

    fn send(&mut self, socket: Socket, from: Option<IpAddr>, to: SocketAddr, bytes: &[u8]) {
        let wanted = (socket, to.is_ipv6());
        let Some((.., udp)) = self.udp.iter().find(|(socket, v6, _)| (*socket, *v6) == wanted) else { return };
        // What is lost is sent again; what never arrives is reported when the time is up.
        let _ = udp.send(bytes, to, from);
    }

    /// Sends the kernel what it takes; the rest when there is room again.
    fn flush(&mut self) {
        if let Err(error) = self.kernel.flush() {
            (self.log)(Level::Warning, &format!("a message cannot be sent to the kernel: {error}"));
        }
        let full = self.kernel.is_full();
        if full != self.full {
            self.full = full;
            let wanted = if full { libc::EPOLLOUT } else { libc::EPOLLIN };
            // A descriptor that is watched already can be watched for something else.
            let _ = watch(&self.epoll, libc::EPOLL_CTL_MOD, self.kernel.as_raw_fd(), KERNEL, wanted);
        }
    }
}

fn watch(epoll: &KernelEpoll, op: c_int, fd: c_int, token: u64, what: c_int) -> Result<()> {
    epoll.control(op, fd, Some(epoll_event { events: what as u32, u64: token }))
}

/// The sockets for both families, as far as the host has them.
pub fn udp_sockets(addresses: Addresses) -> Result<Vec<(Socket, Udp)>> {
    let mut sockets = Vec::new();
    for ip in [Some(IpAddr::from(addresses.v4)), addresses.v6.map(IpAddr::from)].into_iter().flatten() {
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
