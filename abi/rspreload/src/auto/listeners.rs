//! Listeners: a TCP socket of the program, and rsockets that listen at the same port. For each
//! connection that arrives at an rsocket, the library connects a *stand-in*, a TCP connection
//! within the host, to the program's socket; accept(2) then returns the stand-in.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::SeqCst};

use libc::{
    AF_INET6, EAGAIN, ECONNABORTED, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM, F_SETFL, IPPROTO_IPV6, IPPROTO_TCP,
    IPV6_V6ONLY, O_NONBLOCK, SO_REUSEPORT, SOL_SOCKET,
};

use super::connections;
use super::log::{self, Reason};
use super::{route, shared, thread};
use crate::memory::{plain, zero};
use crate::process::Deadline;
use crate::sockets::{self, AtomicName, SockAddr, kernel, rdma};
use crate::table::{self, Entry, Kind};
use crate::thread::Lock;
use crate::{config, epoll::members, errno, rsocket, rsocket_abi, tcp};

/// Maximum number of listeners of a process, and of addresses of a listener.
pub const MAX_LISTENERS: usize = 64;
pub const MAX_ADDRESSES: usize = 16;
/// Maximum number of a listener's stand-ins that wait for accept(2), whatever the backlog.
pub const MAX_BACKLOG: c_int = 4096;

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const OPEN: u32 = 2;

/// Held while connections are accepted, and while a listener is closed.
static ACCEPTING: Lock = Lock::new();

/// A listener.
pub struct Listener {
    state: AtomicU32,
    /// Number of the program's descriptors for this listener.
    fd_count: AtomicU32,
    /// The local address to which the program has bound the socket.
    own: AtomicName,
    backlog: AtomicI32,
    v6only: AtomicBool,
    /// The rsockets are closed for now, since there is no room for more RDMA connections.
    is_full: AtomicBool,
    /// Descriptors plus one; 0 for an unused element.
    rsockets: [AtomicI32; MAX_ADDRESSES],
}

plain! { Listener }

static LISTENERS: [Listener; MAX_LISTENERS] = zero();

fn of(entry: Entry) -> Option<&'static Listener> {
    LISTENERS.get(usize::try_from(entry.handle).ok()?)
}

/// Called after listen(2) on a socket without an entry. Makes rsockets listen at its address as
/// well, unless RDMA is ruled out, for example because another process may have the socket.
pub fn add(fd: c_int, backlog: c_int) {
    let Some(own) = kernel::own(fd) else { return };
    if !route::is_candidate(fd, own.family()) {
        return;
    }
    log::problems();
    log::listener(fd, &own, try_add(fd, &own, backlog).err());
}

/// Returns why the listener is TCP's: for good, or with `Slots` until there is room.
fn try_add(fd: c_int, own: &SockAddr, backlog: c_int) -> Result<(), Reason> {
    Reason::NotOwn.unless(members::is_own(fd))?;
    Reason::Loopback.unless(!own.address().is_loopback())?;
    Reason::Rule.unless(config::is_automatic(own.address(), own.port()))?;
    Reason::Reuse.unless(!tcp::is_on(fd, SOL_SOCKET, SO_REUSEPORT))?;
    Reason::Option.unless(!route::has_kernel_option(fd))?;
    Reason::Ring.unless(!route::has_ring())?;
    Reason::Descriptors.unless(connections::may_have_room())?;
    Reason::NoDiag.unless(shared::tells(own))?;
    let claimed = |listener: &Listener| listener.state.compare_exchange(FREE, CLAIMED, SeqCst, SeqCst).is_ok();
    let index = LISTENERS.iter().position(claimed).ok_or(Reason::Busy)?;
    let listener = &LISTENERS[index];
    listener.own.store(own);
    listener.backlog.store(backlog, SeqCst);
    let v6only = own.family() == AF_INET6 && tcp::is_on(fd, IPPROTO_IPV6, IPV6_V6ONLY);
    listener.v6only.store(v6only, SeqCst);
    listener.fd_count.store(1, SeqCst);
    let entry = Entry { kind: Kind::Listener, flags: 0, handle: index as c_int };
    let prepared = Reason::Busy.unless(shared::prepare() && table::prepare(fd).is_ok());
    let is_full = !connections::has_room(false);
    listener.is_full.store(is_full, SeqCst);
    let opened = prepared.and_then(|()| if is_full { Ok(()) } else { listener.open(Some(fd)) });
    if let Err(reason) = opened.and_then(|()| Reason::Busy.unless(table::replace(fd, None, Some(entry)))) {
        listener.close();
        listener.state.store(FREE, SeqCst);
        return Err(reason);
    }
    accept_at_once(fd);
    listener.state.store(OPEN, SeqCst);
    if !thread::wake() {
        listener.close();
    }
    Reason::Slots.unless(!is_full)
}

impl Listener {
    /// Makes the rsockets, with the options of the program's socket if `fd` is given.
    fn open(&self, fd: Option<c_int>) -> Result<(), Reason> {
        let own = self.own.load().ok_or(Reason::Busy)?;
        if !own.address().is_unspecified() {
            Reason::NoDevice.unless(route::is_rdma(&own))?;
            return self.open_at(fd, &own);
        }
        // Use one rsocket for all addresses, unless a device can't share its ports with TCP.
        if self.open_at(fd, &own).is_ok() {
            return Ok(());
        }
        let mut result = Err(Reason::NoDevice);
        tcp::each_local(|address| {
            if self.covers(&own, &address) && route::is_rdma(&address) {
                result = result.or(self.open_at(fd, &address.with_port(own.port())));
            }
        });
        result
    }

    /// Whether a listener at the wildcard address `own` accepts connections from other hosts to
    /// `address`.
    fn covers(&self, own: &SockAddr, address: &SockAddr) -> bool {
        let fits = if address.family() == AF_INET6 { own.family() == AF_INET6 } else { !self.v6only.load(SeqCst) };
        fits && !address.address().is_loopback()
    }

    fn open_at(&self, fd: Option<c_int>, at: &SockAddr) -> Result<(), Reason> {
        let free = self.rsockets.iter().find(|slot| slot.load(SeqCst) == 0).ok_or(Reason::Busy)?;
        let rsocket = tcp::make_rsocket(at, |rsocket| {
            if self.v6only.load(SeqCst) {
                let _ = rdma::set(rsocket, (IPPROTO_IPV6, IPV6_V6ONLY), &1);
            }
            if let Some(fd) = fd {
                route::copy_early_options(fd, rsocket);
            }
            rdma::fcntl(rsocket, F_SETFL, O_NONBLOCK);
            tcp::bind(rsocket, at) && rsocket_abi::rlisten(rsocket, self.backlog.load(SeqCst)) == 0
        });
        let rsocket = rsocket.ok_or_else(|| match errno::get() {
            libc::EADDRINUSE => Reason::PortTaken,
            error => Reason::Failed(error),
        })?;
        free.store(rsocket + 1, SeqCst);
        Ok(())
    }

    /// Closes the rsockets.
    fn close(&self) {
        self.is_full.store(false, SeqCst);
        for slot in &self.rsockets {
            rsocket::close(slot.swap(0, SeqCst) - 1);
        }
    }

    /// The rsockets that listen.
    pub fn rsockets(&self) -> impl Iterator<Item = c_int> {
        self.rsockets.iter().map(|slot| slot.load(SeqCst) - 1).filter(|&rsocket| rsocket >= 0)
    }

    /// The address to which the stand-in of a connection is sent: the listener's address, or the
    /// connection's local address if the listener's is a wildcard. Never a loopback address: a
    /// program without this library that got the stand-in might trust its peer.
    fn stand_in_address(&self, rsocket: c_int) -> Option<SockAddr> {
        let own = self.own.load()?;
        if own.address().is_unspecified() {
            Some(rdma::own(rsocket)?.of_device().with_port(own.port()))
        } else {
            Some(own)
        }
    }

    /// Closes the rsockets while the program's socket goes on listening.
    fn listen_by_tcp_only(&self, reason: Reason) {
        self.close();
        if let Some(own) = self.own.load() {
            log::listener(-1, &own, Some(reason));
        }
    }

    /// Whether the listener has rsockets, or gets them again when there is room.
    fn uses_rdma(&self) -> bool {
        self.rsockets().next().is_some() || self.is_full.load(SeqCst)
    }

    /// Closes the rsockets if there is no room for RDMA connections, so that clients use TCP;
    /// reopens the rsockets when there is room again. Called before each poll, during which
    /// handshakes are answered.
    pub fn admit(&self) {
        let was_full = self.is_full.load(SeqCst);
        if connections::has_room(was_full) != was_full {
            return;
        }
        let _held = ACCEPTING.hold();
        if !was_full && self.rsockets().next().is_some() {
            self.send_last_stand_ins();
            self.listen_by_tcp_only(Reason::Slots);
            self.is_full.store(true, SeqCst);
        } else if self.is_full.swap(false, SeqCst) {
            let reason = self.open(None).err();
            if let Some(own) = self.own.load() {
                log::listener(-1, &own, reason);
            }
        }
    }

    fn port(&self) -> u16 {
        self.own.load().map_or(0, |own| own.port())
    }

    /// Whether another stand-in may be sent within the backlog. `waiting` yields the listener port
    /// of each stand-in that waits.
    pub fn has_room(&self, waiting: impl Iterator<Item = u16>) -> bool {
        let port = self.port();
        waiting.filter(|&waits| waits == port).count() < max_stand_ins(self.backlog.load(SeqCst))
    }

    /// Accepts the connections that have arrived at an rsocket, and sends their stand-ins.
    pub fn accept(&self, rsocket: c_int) {
        let _held = ACCEPTING.hold();
        let may_more = || {
            let is_open = self.rsockets().any(|own| own == rsocket);
            is_open && self.has_room(thread::waiting_stand_ins()) && connections::has_room(false)
        };
        let error = self.send_stand_ins(rsocket, may_more);
        // With any other error the rsocket will never accept again: for example, no event channel
        // can be opened after a change of the user or of the root directory.
        let passes = [EAGAIN, EINTR, ECONNABORTED, EMFILE, ENFILE, ENOBUFS, ENOMEM];
        if error != 0 && !passes.contains(&error) {
            self.listen_by_tcp_only(Reason::Failed(error));
        }
    }

    /// Closes the rsockets if the program's socket has been shut down, perhaps by a child of
    /// fork(2).
    fn close_if_stopped(&self) {
        let mut listens = false;
        table::each(|fd, entry| {
            let is_own = entry.kind == Kind::Listener && of(entry).is_some_and(|of| core::ptr::eq(of, self));
            listens |= is_own && tcp::is_listening(fd);
        });
        if !listens {
            self.close();
        }
    }

    /// Sends the stand-ins of the last connections, before the rsockets are closed. Waits for
    /// handshakes that have been answered, since their peers may already be connected. Meanwhile
    /// other listeners wait, at most for the time that a client waits by default.
    fn send_last_stand_ins(&self) {
        let end = Deadline::after(config::DEFAULT_TIMEOUT);
        loop {
            let left: c_int = self.rsockets().map(rsocket::last_connections).sum();
            for rsocket in self.rsockets() {
                let mut entry = [libc::pollfd { fd: rsocket, events: libc::POLLIN, revents: 0 }];
                if rdma::poll(&mut entry, 0) > 0 {
                    self.send_stand_ins(rsocket, || true);
                }
            }
            if left == 0 || end.left() == 0 {
                return;
            }
            sockets::sleep_ms(1);
        }
    }

    /// Accepts connections from an rsocket and sends their stand-ins, while `may_more` returns
    /// true. Returns the errno of accept, or 0 if `may_more` has returned false.
    fn send_stand_ins(&self, rsocket: c_int, may_more: impl Fn() -> bool) -> c_int {
        while may_more() {
            let new = rdma::accept(rsocket);
            if new < 0 {
                return errno::get();
            }
            if !self.stand_in_address(new).is_some_and(|to| connections::send_stand_in(new, &to)) {
                self.close_if_stopped();
                rsocket::reset(new);
            }
        }
        0
    }
}

/// Maximum number of stand-ins that may wait for accept(2): as with TCP, one more than the backlog;
/// at most [`MAX_BACKLOG`].
fn max_stand_ins(backlog: c_int) -> usize {
    (if (0..MAX_BACKLOG).contains(&backlog) { backlog + 1 } else { MAX_BACKLOG }) as usize
}

/// The listeners of this process.
pub fn open() -> impl Iterator<Item = &'static Listener> {
    LISTENERS.iter().filter(|listener| listener.state.load(SeqCst) == OPEN)
}

/// Counts another descriptor of a listener.
pub fn hold(entry: Entry) {
    if let Some(listener) = of(entry) {
        listener.fd_count.fetch_add(1, SeqCst);
    }
}

/// Called when a connection that was accepted at a port is used in a way for which RDMA is
/// unsuitable: makes the listeners at the port TCP only.
pub fn learn(port: u16, reason: Reason) {
    listen_by_tcp_only(reason, |listener| listener.port() == port);
}

/// Called when a stand-in that was sent to a port was refused: closes the rsockets of listeners
/// there that have been shut down.
pub fn stand_in_refused(port: u16) {
    let _held = ACCEPTING.hold();
    open().filter(|listener| listener.port() == port).for_each(Listener::close_if_stopped);
}

/// Makes listeners of this process TCP only: those for which `concerns` returns true.
fn listen_by_tcp_only(reason: Reason, concerns: impl Fn(&Listener) -> bool) {
    let held = ACCEPTING.hold();
    let mut closed = false;
    for listener in open().filter(|listener| listener.uses_rdma() && concerns(listener)) {
        if reason != Reason::Stranger {
            errno::keeping(|| listener.send_last_stand_ins());
        }
        listener.listen_by_tcp_only(reason);
        closed = true;
    }
    drop(held);
    if closed {
        thread::wake();
    }
}

/// Called when a descriptor of a listener was closed.
pub fn release(entry: Entry) {
    let Some(listener) = of(entry) else { return };
    let is_last = listener.fd_count.fetch_sub(1, SeqCst) == 1;
    if is_last && listener.state.compare_exchange(OPEN, CLAIMED, SeqCst, SeqCst).is_ok() {
        // Close the rsockets at once, since the program may listen at the port again.
        stop(entry);
        listener.state.store(FREE, SeqCst);
    }
}

/// Closes the rsockets of a listener that stops, by shutdown(2) for example. A later listen(2) does
/// not reopen the rsockets.
pub fn stop(entry: Entry) {
    let Some(listener) = of(entry) else { return };
    let held = ACCEPTING.hold();
    listener.close();
    drop(held);
    thread::wake();
}

/// listen(2) on a listener: sets its backlog.
pub fn set_backlog(entry: Entry, backlog: c_int) {
    let Some(listener) = of(entry) else { return };
    listener.backlog.store(backlog, SeqCst);
    for rsocket in listener.rsockets() {
        errno::keeping(|| rsocket_abi::rlisten(rsocket, backlog));
    }
}

/// Makes a listener TCP only. Called when the program sets an option that affects which connections
/// or stand-ins the socket gets, or passes the socket to a process that may not have this library.
pub fn leave_to_kernel(entry: Entry, reason: Reason) {
    if let Some(listener) = of(entry) {
        listen_by_tcp_only(reason, |other| core::ptr::eq(other, listener));
    }
}

/// Switches off TCP_DEFER_ACCEPT: the kernel would not report stand-ins, which carry no data.
pub fn accept_at_once(fd: c_int) {
    const NAME: (c_int, c_int) = (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT);
    if tcp::is_on(fd, NAME.0, NAME.1) && tcp::is_listening(fd) {
        let _ = kernel::set(fd, NAME, &0);
    }
}

/// In a child of fork(2): removes the listeners, which are the parent's, and their table entries.
pub fn in_child() {
    ACCEPTING.reset();
    table::each(|fd, entry| {
        if entry.kind == Kind::Listener {
            table::replace(fd, Some(entry), None);
        }
    });
    for listener in &LISTENERS {
        // Closes the child's copies, which would keep the ports when the parent has ended.
        listener.close();
        listener.state.store(FREE, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};
    use std::os::fd::AsRawFd;

    use super::*;

    fn name(text: &str) -> SockAddr {
        let at: SocketAddr = text.parse().unwrap();
        SockAddr::new(at.ip(), at.port())
    }

    fn listener(own: &SockAddr) -> Listener {
        let listener = zero::<Listener>();
        listener.own.store(own);
        listener
    }

    #[test]
    fn no_more_stand_ins_wait_than_the_backlog_allows() {
        assert_eq!([0, 1, 4094, 4095, 4096, c_int::MAX, -1].map(max_stand_ins), [1, 2, 4095, 4096, 4096, 4096, 4096]);
        let listener = listener(&name("10.0.0.1:80"));
        listener.backlog.store(2, SeqCst);
        let waiting = |here, elsewhere| [80; 9].into_iter().take(here).chain([81; 9].into_iter().take(elsewhere));
        assert!(listener.has_room(waiting(2, 9)) && !listener.has_room(waiting(3, 0)));
    }

    #[test]
    fn a_listener_that_does_not_open_leaves_its_slot_free() {
        let Some(own) = route::tests_of_routes::without_rdma() else { return };
        let socket = TcpListener::bind(SocketAddr::new(own.address(), 0)).unwrap();
        let fd = members::begin(socket.as_raw_fd());
        let own = kernel::own(fd).unwrap();
        let added = try_add(fd, &own, 1);
        members::forget(fd);
        // A kernel without tcp_diag is detected before a missing device.
        assert!(matches!(added, Err(Reason::NoDevice | Reason::NoDiag)), "{added:?}");
        assert!(LISTENERS.iter().all(|listener| listener.state.load(SeqCst) == FREE));
    }

    #[test]
    fn addresses_of_the_host_at_which_a_wildcard_listens() {
        for (own, v6only, address, covered) in [
            ("0.0.0.0:80", false, "10.0.0.1:0", true),
            ("0.0.0.0:80", false, "127.0.0.1:0", false),
            ("0.0.0.0:80", false, "[fd00::1]:0", false),
            ("[::]:80", false, "10.0.0.1:0", true),
            ("[::]:80", false, "[fd00::1]:0", true),
            ("[::]:80", false, "[::1]:0", false),
            ("[::]:80", true, "10.0.0.1:0", false),
            ("[::]:80", true, "[fd00::1]:0", true),
        ] {
            let own = name(own);
            let listener = listener(&own);
            listener.v6only.store(v6only, SeqCst);
            assert_eq!(listener.covers(&own, &name(address)), covered, "{}, {address}", own.address());
        }
    }

    #[test]
    fn stand_ins_go_to_the_address_of_the_connection() {
        let (_client, rsocket) = crate::calls::tests::connection();
        let stand_in = |own| {
            let to = listener(&name(own)).stand_in_address(rsocket.as_raw_fd()).unwrap();
            (to.address().to_string(), to.port())
        };
        assert_eq!(stand_in("0.0.0.0:80"), ("127.0.0.1".into(), 80));
        assert_eq!(stand_in("[::]:80"), ("127.0.0.1".into(), 80));
        assert_eq!(stand_in("10.0.0.1:80"), ("10.0.0.1".into(), 80));
    }
}
