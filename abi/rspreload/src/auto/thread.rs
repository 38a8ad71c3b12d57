//! The thread of automatic mode: it completes the attempts of non-blocking sockets, accepts
//! rsockets, sends stand-ins (local connections that make accept(2) report RDMA connections), and
//! forwards data. It starts when it is first needed, and runs until the process ends.

use core::ffi::{c_int, c_short, c_void};
use core::ptr;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64};

use libc::{
    AF_UNIX, EINTR, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLONESHOT, POLLIN, POLLOUT,
    SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, epoll_event, pollfd,
};

use super::connect::{Attempt, MAX_ATTEMPTS};
use super::forward::Forwards;
use super::listeners::{Listener, MAX_ADDRESSES, MAX_LISTENERS};
use super::log::Reason;
use super::shared::{MAX_SLOTS, Slot, Use};
use super::{connect, connections, listeners, shared};
use crate::memory::{Mapping, Plain, plain, zero};
use crate::process::Deadline;
use crate::sockets::{self, rdma};
use crate::thread::Lock;
use crate::{errno, next_symbol, open_fds, rsocket, tcp, thread as threads};

static RUNNING: AtomicBool = AtomicBool::new(false);

/// The sockets by which the thread is woken.
static WAKE: WakeSockets = zero();

/// Interval, in milliseconds, at which stand-ins that wait for accept(2) and connections of
/// children are checked: a child that has closed all descriptors can't wake the thread.
const LOOK_EVERY: c_int = 1_000;

/// The pause before retrying after a failure, in milliseconds.
const AFTER_A_FAILURE: c_int = 100;

/// Starts the thread, or wakes it. Returns false if it cannot be started.
pub fn wake() -> bool {
    if RUNNING.swap(true, SeqCst) {
        if let Some((sender, inode)) = WAKE.sender() {
            shared::wake(sender, inode, shared::NO_INDEX);
        }
        return true;
    }
    let started = errno::keeping(|| WAKE.made().is_some() && threads::start(run));
    if !started {
        RUNNING.store(false, SeqCst);
    }
    started
}

/// Returns the socket by which the thread is woken, and its inode. Makes the socket if there is
/// none. Returns `None` with `errno` on failure.
pub fn wake_socket() -> Option<(c_int, u64)> {
    WAKE.made()
}

/// Some listener has as many waiting stand-ins as its backlog allows.
static FULL: AtomicBool = AtomicBool::new(false);

/// The ports of the listeners to which this process's waiting stand-ins were sent.
pub fn waiting_stand_ins() -> impl Iterator<Item = u16> {
    connections::SENT.each().filter_map(shared::slot).filter(|slot| slot.is_sent()).map(Slot::listener_port)
}

/// Called when a stand-in was accepted: a listener may have room for another one.
pub fn stand_in_accepted() {
    if FULL.swap(false, SeqCst) {
        wake();
    }
}

/// Makes the thread handle the next event at a stand-in.
pub fn watch(index: usize, stand_in: c_int) {
    let data = u64::from(connections::generation(index)) << 32 | index as u64;
    let event = epoll_event { events: (EPOLLIN | EPOLLONESHOT) as u32, u64: data };
    errno::keeping(|| sockets::epoll_ctl(WAKE.stand_ins(), EPOLL_CTL_ADD, stand_in, Some(event)));
}

/// Called in a child of fork(2), which does not have the parent's thread.
pub fn in_child() {
    RUNNING.store(false, SeqCst);
    WAKE.in_child();
}

/// The purpose for which a descriptor is polled.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Purpose {
    Wake = 0,
    /// The epoll instance of the stand-ins.
    StandIns,
    /// The rsocket of the attempt with this ticket.
    Attempt(c_int),
    Listener,
    /// One of the two descriptors of the forward with this index.
    Forward(u16),
}

/// Maximum number of descriptors that are polled at a time.
const MAX_FDS: usize = 2 + MAX_ATTEMPTS + MAX_LISTENERS * MAX_ADDRESSES + 2 * MAX_SLOTS;

/// The descriptors that are polled, and their purposes: the first `count` elements of each.
struct Polled {
    fds: [pollfd; MAX_FDS],
    purposes: [Purpose; MAX_FDS],
    count: usize,
}

// SAFETY: zeros are valid for integers, and for `Purpose` as `Wake`, which has no fields.
unsafe impl Plain for Polled {}

impl Polled {
    fn push(&mut self, fd: c_int, events: c_short, purpose: Purpose) {
        if let (Some(entry), Some(last)) = (self.fds.get_mut(self.count), self.purposes.get_mut(self.count)) {
            (*entry, *last) = (pollfd { fd, events, revents: 0 }, purpose);
            self.count += 1;
        }
    }

    fn get(&self, index: usize) -> Option<(pollfd, Purpose)> {
        (index < self.count).then(|| (self.fds[index], self.purposes[index]))
    }
}

struct Thread {
    polled: &'static mut Polled,
    forwards: Forwards,
    /// The time at which all connections are checked again.
    look: Deadline,
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    let (Some([polled]), Some(forwards)) = (Mapping::new(1).map(Mapping::leak), Forwards::new()) else {
        RUNNING.store(false, SeqCst);
        return ptr::null_mut();
    };
    let mut thread = Thread { polled, forwards, look: Deadline::after(LOOK_EVERY) };
    loop {
        let timeout = thread.collect();
        let ready = rdma::poll(&mut thread.polled.fds[..thread.polled.count], timeout);
        if ready > 0 {
            thread.handle();
        } else if ready < 0 && errno::get() != EINTR {
            // Out of memory, or more descriptors than RLIMIT_NOFILE: try again later.
            sockets::sleep_ms(AFTER_A_FAILURE);
        }
        if thread.look.left() == 0 {
            thread.look_at_all();
        }
        end_attempts();
    }
}

/// Ends attempts that have timed out, and those whose descriptors were closed.
fn end_attempts() {
    for slot in connect::ready() {
        if slot.entry().is_none() {
            slot.finish(Err(Reason::SocketShared));
        } else if slot.left() == 0 {
            slot.finish_by(connect::expire);
        }
    }
}

impl Thread {
    /// Starts forwarding the connection of an index if another process needs this. Makes the
    /// connection's listener TCP only if the use is unsuitable for RDMA.
    fn attend(&mut self, index: usize) {
        let Some(slot) = shared::slot(index).filter(|slot| slot.is_wanted() && connections::rsocket(index) >= 0) else {
            return;
        };
        if let Some(reason) = slot.unsuitable_use() {
            listeners::learn(slot.listener_port(), reason);
        }
        if !connections::FORWARDED.has(index) {
            connections::start_forwarding(index);
            if !self.forwards.begin(index) {
                // Out of memory: try again later.
                self.look = Deadline::after(AFTER_A_FAILURE);
            }
        }
    }

    /// Collects the descriptors to poll. Returns the timeout of poll(2).
    fn collect(&mut self) -> c_int {
        let must_look = connections::FORKED.any() || connections::SENT.any();
        let mut timeout = if must_look { self.look.left() } else { -1 };
        self.polled.count = 0;
        self.polled.push(WAKE.receiver(), POLLIN, Purpose::Wake);
        self.polled.push(WAKE.stand_ins(), POLLIN, Purpose::StandIns);
        for slot in connect::ready() {
            let left = slot.left();
            timeout = if timeout < 0 { left } else { left.min(timeout) };
            self.polled.push(slot.rsocket(), POLLOUT, Purpose::Attempt(slot.ticket()));
        }
        for listener in listeners::open() {
            listener.admit();
            if !listener.has_room(waiting_stand_ins()) {
                FULL.store(true, SeqCst);
                // Check again: a stand-in accepted before `FULL` was set has not woken the thread.
                if !listener.has_room(waiting_stand_ins()) {
                    continue;
                }
            }
            for rsocket in listener.rsockets() {
                self.polled.push(rsocket, POLLIN, Purpose::Listener);
            }
        }
        let Thread { polled, forwards, .. } = self;
        forwards.each(|forward| {
            for (fd, events) in forward.events() {
                polled.push(fd, events, Purpose::Forward(forward.index as u16));
            }
        });
        timeout
    }

    /// Checks all connections: whether a process without this library has accepted a stand-in, and
    /// whether another process uses a connection without having woken the thread.
    fn look_at_all(&mut self) {
        self.look = Deadline::after(LOOK_EVERY);
        for index in connections::SENT.each() {
            if connections::is_lost(index) {
                lose_stand_in(index);
            }
        }
        for index in connections::USED.each() {
            self.attend(index);
        }
    }

    /// Reads the indexes that were sent to the thread, and attends to their connections.
    fn read_indexes(&mut self, fd: c_int) {
        let mut bytes = [0; 64 * size_of::<u32>()];
        let count = usize::try_from(sockets::read(fd, &mut bytes)).unwrap_or(0);
        for index in bytes[..count].as_chunks().0 {
            self.attend(u32::from_ne_bytes(*index) as usize);
        }
        if count == bytes.len() {
            // The socket may have been full, so further indexes may be lost.
            self.look_at_all();
        }
    }

    fn handle(&mut self) {
        let mut position = 0;
        while let Some((first, purpose)) = self.polled.get(position) {
            position += 1;
            match purpose {
                Purpose::Forward(index) => {
                    // The next element is the forward's second descriptor.
                    let revents = [first.revents, self.polled.get(position).map_or(0, |(second, _)| second.revents)];
                    position += 1;
                    self.forwards.step(index.into(), revents);
                }
                _ if first.revents == 0 => {}
                Purpose::Wake => self.read_indexes(first.fd),
                Purpose::StandIns => handle_stand_ins(first.fd),
                Purpose::Attempt(ticket) => {
                    let is_it = |slot: &&Attempt| slot.ticket() == ticket && slot.rsocket() == first.fd;
                    if let Some(slot) = connect::ready().find(is_it) {
                        slot.finish_by(connect::result);
                    }
                }
                Purpose::Listener => {
                    let is_it = |listener: &&Listener| listener.rsockets().any(|own| own == first.fd);
                    if let Some(listener) = listeners::open().find(is_it) {
                        listener.accept(first.fd);
                    }
                }
            }
        }
    }
}

fn handle_stand_ins(epfd: c_int) {
    let mut events = [epoll_event { events: 0, u64: 0 }; 64];
    for event in sockets::epoll_wait(epfd, &mut events, 0) {
        let (index, generation) = (event.u64 as u32 as usize, (event.u64 >> 32) as u32);
        // The slot may have another connection by now.
        if let Some(slot) = shared::slot(index).filter(|slot| slot.generation() == generation) {
            handle_stand_in(index, slot, event.events as c_int);
        }
    }
}

/// Handles an event at a stand-in.
fn handle_stand_in(index: usize, slot: &Slot, events: c_int) {
    if slot.is_sent() {
        // Without an error, a process without this library has accepted the stand-in and has sent
        // data. With an error, the stand-in was refused.
        if events & (EPOLLHUP | EPOLLERR) == 0 {
            lose_stand_in(index);
        } else {
            // If the listener was shut down, close its rsockets first: the client may try again at
            // once.
            listeners::stand_in_refused(slot.listener_port());
            withdraw(index, slot);
        }
    } else if connections::FORKED.has(index)
        || events & EPOLLIN != 0 && tcp::peek(connections::stand_in(index), &mut [0], libc::MSG_DONTWAIT) == Ok(1)
    {
        // A child has sent data, or the last process has closed the socket; or this process has
        // sent data by a call that is not intercepted, such as one of io_uring.
        connections::request_forwarding(index, Use::Inherited);
    }
}

/// Resets the connection of a stand-in that waits for accept(2). Returns false if the stand-in does
/// not wait.
fn withdraw(index: usize, slot: &Slot) -> bool {
    let withdrawn = slot.withdraw();
    if withdrawn {
        let rsocket = connections::rsocket(index);
        connections::leave(index);
        rsocket::reset(rsocket);
    }
    withdrawn
}

/// Called when a process without this library has accepted a stand-in. Ends the connection, and
/// makes the listener TCP only: the process would take the peer for a client on this host.
fn lose_stand_in(index: usize) {
    let Some(slot) = shared::slot(index) else { return };
    let port = slot.listener_port();
    if withdraw(index, slot) {
        listeners::learn(port, Reason::Stranger);
    }
}

// The descriptors that wake the thread of automatic mode: sockets to which other processes write,
// too, and an epoll instance with the stand-ins.

/// The sockets, made when they are first needed.
struct WakeSockets {
    /// Descriptors plus one. The thread reads from the first; the second is stored last.
    ends: [AtomicI32; 2],
    /// The inode of the second socket.
    inode: AtomicU64,
    /// Epoll descriptor plus one.
    stand_ins: AtomicI32,
    /// Held while the sockets are made: the descriptors and the inode of two pairs must not be
    /// mixed.
    making: Lock,
}

plain! { WakeSockets }

impl WakeSockets {
    /// The socket to which an index is sent, and its inode. `None` before the sockets are made.
    fn sender(&self) -> Option<(c_int, u64)> {
        let sender = self.ends[1].load(SeqCst) - 1;
        (sender >= 0).then(|| (sender, self.inode.load(SeqCst)))
    }

    /// Makes the sockets if there are none. Returns the sender and its inode, or `None` with
    /// `errno`.
    fn made(&self) -> Option<(c_int, u64)> {
        self.sender().or_else(|| {
            let _held = self.making.hold();
            self.sender().or_else(|| self.make())
        })
    }

    fn make(&self) -> Option<(c_int, u64)> {
        let mut ends = [-1; 2];
        // Not a pipe: a child that writes after this process has ended would get SIGPIPE.
        // SAFETY: `ends` has room for two descriptors.
        if unsafe { libc::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.as_mut_ptr()) } != 0 {
            return None;
        }
        let ends = ends.map(open_fds::relocate);
        self.stand_ins.store(open_fds::create(|| next_symbol::epoll_create1(EPOLL_CLOEXEC)) + 1, SeqCst);
        self.inode.store(shared::socket_inode(ends[1]).unwrap_or(0), SeqCst);
        self.ends[0].store(ends[0] + 1, SeqCst);
        self.ends[1].store(ends[1] + 1, SeqCst);
        self.sender()
    }

    /// The epoll instance, or -1 if there is none.
    fn stand_ins(&self) -> c_int {
        self.stand_ins.load(SeqCst) - 1
    }

    /// The socket from which the thread reads, or -1 if there is none.
    fn receiver(&self) -> c_int {
        self.ends[0].load(SeqCst) - 1
    }

    /// In a child of fork(2): resets the lock, which another thread of the parent may have held.
    /// The sender stays open: the child uses it to wake the parent.
    fn in_child(&self) {
        self.making.reset();
        self.ends[1].store(0, SeqCst);
        for slot in [&self.ends[0], &self.stand_ins] {
            open_fds::close(slot.swap(0, SeqCst) - 1);
        }
    }
}

#[cfg(test)]
mod tests_of_wake {
    use std::sync::Barrier;

    use super::*;

    /// Reads the available bytes, up to 8. Returns their number.
    fn read(fd: c_int) -> isize {
        let mut bytes = [0_u8; 8];
        // SAFETY: `bytes` is writable for its length.
        unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) }
    }

    #[test]
    fn threads_that_need_the_sockets_first_get_the_same_ones() {
        const THREADS: usize = 4;
        for _ in 0..500 {
            let (sockets, barrier) = (zero::<WakeSockets>(), Barrier::new(THREADS));
            let get = || {
                barrier.wait();
                sockets.made().unwrap()
            };
            let got: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(get)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(got.iter().all(|&sender| sender == got[0]), "{got:?}");
            assert!(open_fds::has(got[0].0) && open_fds::has(sockets.receiver()));
            shared::wake(got[0].0, got[0].1, 7);
            assert_eq!(read(sockets.receiver()), 4, "a wake-up is lost");
            // SAFETY: the descriptor belongs to this test, and is not used any more.
            unsafe { libc::close(got[0].0) };
            sockets.in_child();
            assert_eq!(sockets.receiver(), -1);
        }
    }
}
