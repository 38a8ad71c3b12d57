//! Unit tests of epoll. Kernel sockets and epoll instances take the place of librdmacm's.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use libc::{EBADF, EEXIST, ENOENT, EPERM, EPOLLET, EPOLLONESHOT, EPOLLOUT};

use super::*;
use crate::calls::waits::{Event, control};
use crate::fds;

fn control_event(epfd: c_int, op: c_int, fd: c_int, event: Option<epoll_event>) -> c_int {
    let mut event = event;
    // SAFETY: the pointer is NULL or points to `event`, which outlives the call.
    control(epfd, op, fd, unsafe { Event::new(event.as_mut().map_or(core::ptr::null_mut(), core::ptr::from_mut)) })
}

/// A socket of the program: a placeholder, and the kernel socket that acts as its rsocket.
struct Rsocket {
    placeholder: OwnedFd,
    rsocket: OwnedFd,
    peer: UnixDatagram,
}

impl Rsocket {
    fn new() -> Rsocket {
        let (rsocket, peer) = UnixDatagram::pair().unwrap();
        let placeholder = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let fd = placeholder.as_raw_fd();
        table::prepare(fd).unwrap();
        table::first(rsocket.as_raw_fd(), 0).unwrap();
        let entry = Entry { kind: Kind::Socket, flags: 0, handle: rsocket.as_raw_fd() };
        table::swap(fd, Some(entry));
        Rsocket { placeholder, rsocket: rsocket.into(), peer }
    }

    fn fd(&self) -> c_int {
        self.placeholder.as_raw_fd()
    }
}

impl Drop for Rsocket {
    fn drop(&mut self) {
        table::swap(self.fd(), None);
        let _ = &self.rsocket;
    }
}

/// An epoll instance of the program.
struct Epoll(OwnedFd);

impl Epoll {
    fn new() -> Epoll {
        // SAFETY: epoll_create1(2) has just returned the descriptor, which nothing else owns.
        let epoll = Epoll(unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(EPOLL_CLOEXEC)) });
        table::swap(epoll.fd(), None);
        epoll
    }

    fn fd(&self) -> c_int {
        self.0.as_raw_fd()
    }

    fn control(&self, op: c_int, fd: c_int, events: c_int, data: u64) -> Result<(), c_int> {
        let event = epoll_event { events: events as u32, u64: data };
        if control_event(self.fd(), op, fd, Some(event)) == 0 { Ok(()) } else { Err(errno::get()) }
    }

    fn wait(&self, max: usize, timeout: c_int) -> Vec<(u64, u32)> {
        let mut events = vec![epoll_event { events: 0, u64: 0 }; max];
        // SAFETY: `events` is writable for `max` events.
        let count = unsafe { crate::calls::waits::epoll_wait(self.fd(), events.as_mut_ptr(), max as c_int, timeout) };
        let mut list: Vec<_> = events[..count as usize].iter().map(|event| (event.u64, event.events)).collect();
        list.sort_unstable();
        list
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        if let Some(entry) = table::swap(self.fd(), None) {
            assert_eq!(fds::release(entry), 0);
        }
    }
}

const IN: u32 = EPOLLIN as u32;

#[test]
fn both_kinds_are_reported_with_the_programs_data() {
    let (epoll, rsocket) = (Epoll::new(), Rsocket::new());
    let (ordinary, far) = UnixDatagram::pair().unwrap();
    epoll.control(EPOLL_CTL_ADD, ordinary.as_raw_fd(), EPOLLIN, 1).unwrap();
    assert_eq!(table::get(epoll.fd()), None);
    epoll.control(EPOLL_CTL_ADD, rsocket.fd(), EPOLLIN, u64::MAX).unwrap();
    assert_eq!(table::get(epoll.fd()).unwrap().kind, Kind::Epoll);
    assert_eq!(epoll.wait(8, 0), []);
    rsocket.peer.send(b"a").unwrap();
    assert_eq!(epoll.wait(8, -1), [(u64::MAX, IN)]);
    far.send(b"b").unwrap();
    assert_eq!(epoll.wait(8, -1), [(1, IN), (u64::MAX, IN)]);
    epoll.control(EPOLL_CTL_MOD, rsocket.fd(), EPOLLIN | EPOLLOUT, 3).unwrap();
    assert_eq!(epoll.wait(8, -1), [(1, IN), (3, IN | EPOLLOUT as u32)]);
    epoll.control(EPOLL_CTL_DEL, rsocket.fd(), 0, 0).unwrap();
    assert_eq!(epoll.wait(8, -1), [(1, IN)]);
}

#[test]
fn one_place_is_shared() {
    let (epoll, rsocket) = (Epoll::new(), Rsocket::new());
    let (ordinary, far) = UnixDatagram::pair().unwrap();
    epoll.control(EPOLL_CTL_ADD, ordinary.as_raw_fd(), EPOLLIN, 1).unwrap();
    epoll.control(EPOLL_CTL_ADD, rsocket.fd(), EPOLLIN, 2).unwrap();
    far.send(b"b").unwrap();
    rsocket.peer.send(b"a").unwrap();
    let seen: Vec<_> = (0..4).flat_map(|_| epoll.wait(1, -1)).collect();
    assert_eq!(seen.iter().filter(|event| event.0 == 1).count(), 2);
    assert_eq!(seen.iter().filter(|event| event.0 == 2).count(), 2);
}

#[test]
fn a_wait_ends_with_its_time_and_wakes_for_an_rsocket() {
    let (epoll, rsocket) = (Epoll::new(), Rsocket::new());
    epoll.control(EPOLL_CTL_ADD, rsocket.fd(), EPOLLIN | EPOLLET, 2).unwrap();
    assert_eq!(epoll.wait(4, 1), []);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| epoll.wait(4, -1));
        rsocket.peer.send(b"a").unwrap();
        assert_eq!(waiting.join().unwrap(), [(2, IN)]);
    });
    // The edge has been reported, and the side has no events.
    assert_eq!(epoll.wait(4, 1), []);
}

#[test]
fn errors_are_the_kernels() {
    let (epoll, rsocket) = (Epoll::new(), Rsocket::new());
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(epoll.control(EPOLL_CTL_MOD, rsocket.fd(), EPOLLIN, 0), Err(ENOENT));
    assert_eq!(epoll.control(EPOLL_CTL_DEL, rsocket.fd(), 0, 0), Err(ENOENT));
    assert_eq!(epoll.control(7, rsocket.fd(), 0, 0), Err(EINVAL));
    assert_eq!(epoll.control(EPOLL_CTL_ADD, file.as_raw_fd(), EPOLLIN, 0), Err(EPERM));
    assert_eq!(control_event(epoll.fd(), EPOLL_CTL_ADD, rsocket.fd(), None), -1);
    assert_eq!(errno::get(), EFAULT);
    assert_eq!(table::get(epoll.fd()), None);
    epoll.control(EPOLL_CTL_ADD, rsocket.fd(), EPOLLIN, 0).unwrap();
    assert_eq!(epoll.control(EPOLL_CTL_ADD, rsocket.fd(), EPOLLIN, 0), Err(EEXIST));
    let (socket, _far) = UnixDatagram::pair().unwrap();
    for (epfd, error) in [(socket.as_raw_fd(), EINVAL), (rsocket.fd(), EINVAL), (-1, EBADF)] {
        for op in [EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL] {
            assert_eq!(control_event(epfd, op, rsocket.fd(), Some(mark(0))), -1, "{epfd} {op}");
            assert_eq!(errno::get(), error, "{epfd} {op}");
        }
        assert_eq!(table::get(epfd).filter(|entry| entry.kind == Kind::Epoll), None);
    }
}

#[test]
fn threads_that_add_the_first_rsocket_share_one_side() {
    for _ in 0..100 {
        let epoll = Epoll::new();
        let rsockets: Vec<_> = (0..4).map(|_| Rsocket::new()).collect();
        std::thread::scope(|scope| {
            for (index, rsocket) in rsockets.iter().enumerate() {
                let epoll = &epoll;
                scope.spawn(move || epoll.control(EPOLL_CTL_ADD, rsocket.fd(), EPOLLIN | EPOLLONESHOT, index as u64));
            }
        });
        for rsocket in &rsockets {
            rsocket.peer.send(b"a").unwrap();
        }
        let events = epoll.wait(8, -1);
        assert_eq!(events, [(0, IN), (1, IN), (2, IN), (3, IN)]);
    }
}

#[test]
fn a_thread_that_waits_already_meets_the_first_rsocket() {
    let (epoll, rsocket) = (Epoll::new(), Rsocket::new());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| epoll.wait(4, -1));
        rsocket.peer.send(b"a").unwrap();
        epoll.control(EPOLL_CTL_ADD, rsocket.fd(), EPOLLIN, 9).unwrap();
        assert_eq!(waiting.join().unwrap(), [(9, IN)]);
    });
}

#[test]
fn each_descriptor_of_an_rsocket_is_a_member() {
    let (epoll, other, rsocket) = (Epoll::new(), Epoll::new(), Rsocket::new());
    let copies = [(); 2].map(|()| rsocket.placeholder.try_clone().unwrap());
    for copy in &copies {
        let entry = fds::hold(table::get(rsocket.fd()).unwrap()).unwrap();
        table::prepare(copy.as_raw_fd()).unwrap();
        table::swap(copy.as_raw_fd(), Some(entry));
    }
    let [one, two] = copies.each_ref().map(|copy| copy.as_raw_fd());
    // The first descriptor that is added gets a side, whatever its index is.
    epoll.control(EPOLL_CTL_ADD, two, EPOLLIN, 2).unwrap();
    for (fd, op) in [(one, EPOLL_CTL_MOD), (one, EPOLL_CTL_DEL), (rsocket.fd(), EPOLL_CTL_DEL)] {
        assert_eq!(epoll.control(op, fd, EPOLLIN, 0), Err(ENOENT));
    }
    epoll.control(EPOLL_CTL_ADD, rsocket.fd(), EPOLLOUT, 0).unwrap();
    epoll.control(EPOLL_CTL_ADD, one, EPOLLIN, 1).unwrap();
    other.control(EPOLL_CTL_ADD, one, EPOLLIN, 7).unwrap();
    for fd in [rsocket.fd(), one, two] {
        assert_eq!(epoll.control(EPOLL_CTL_ADD, fd, EPOLLIN, 9), Err(EEXIST));
    }
    assert_eq!(epoll.wait(8, -1), [(0, EPOLLOUT as u32)]);
    rsocket.peer.send(b"a").unwrap();
    assert_eq!(epoll.wait(8, -1), [(0, EPOLLOUT as u32), (1, IN), (2, IN)]);
    assert_eq!(other.wait(8, -1), [(7, IN)]);
    epoll.control(EPOLL_CTL_DEL, two, 0, 0).unwrap();
    epoll.control(EPOLL_CTL_MOD, one, EPOLLIN, 5).unwrap();
    assert_eq!(epoll.wait(8, -1), [(0, EPOLLOUT as u32), (5, IN)]);
    for fd in [one, two] {
        assert_eq!(fds::release(table::swap(fd, None).unwrap()), 0);
    }
}

#[test]
fn there_is_one_side_for_each_index() {
    let epoll = Epoll::new();
    let sides = [5, 0, 31].map(|index| make_side(epoll.fd(), index).unwrap());
    assert_eq!([5, 0, 31].map(|index| make_side(epoll.fd(), index)), sides.map(Ok));
    let first = table::get(epoll.fd()).unwrap().handle;
    assert_eq!((first, find_side(first, 1)), (sides[0], None));
    let made: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| make_side(epoll.fd(), 1))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(made, [Ok(find_side(first, 1).unwrap()); 4]);
}

#[test]
fn marks_are_removed_from_the_events() {
    let event = |data| epoll_event { events: EPOLLIN as u32, u64: data };
    let mut events = [event(1), mark(9), event(2), mark(8)];
    let mut sides = [-1; SIDES];
    assert_eq!(take_marks(&mut events, &mut sides), Some((2, 2)));
    assert_eq!((sides, [events[0], events[1]].map(|event| event.u64)), ([9, 8, -1, -1], [1, 2]));
    assert_eq!(take_marks(&mut events[..2], &mut sides), None);
}

#[test]
fn a_record_has_what_the_program_has_asked_for_last() {
    use super::members::{
        MAX_INSTANCES, are_too_many, begin, control as control_record, forget, is_own, join, leave, note,
    };
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let fd = begin(socket.as_raw_fd());
    let epolls: Vec<_> = (0..=MAX_INSTANCES).map(|_| Epoll::new()).collect();
    let out = |data| epoll_event { events: EPOLLOUT as u32, u64: data };
    let add = |epoll: &Epoll, op, mut event: epoll_event| {
        // SAFETY: `event` outlives the call.
        unsafe {
            assert_eq!(libc::epoll_ctl(epoll.fd(), op, fd, &raw mut event), 0);
            note(epoll.fd(), op, fd, || Some(event));
        }
    };
    add(&epolls[0], EPOLL_CTL_ADD, out(1));
    add(&epolls[0], EPOLL_CTL_MOD, out(2));
    add(&epolls[1], EPOLL_CTL_ADD, out(3));
    leave(fd);
    assert!(epolls[0].wait(9, 0).is_empty() && epolls[1].wait(9, 0).is_empty());
    assert_eq!(control_record(epolls[1].fd(), EPOLL_CTL_DEL, fd, None), Ok(()));
    assert_eq!(control_record(epolls[1].fd(), EPOLL_CTL_MOD, fd, Some(out(4))), Err(ENOENT));
    assert_eq!(control_record(epolls[0].fd(), EPOLL_CTL_ADD, fd, Some(out(4))), Err(EEXIST));
    assert_eq!(control_record(epolls[2].fd(), EPOLL_CTL_ADD, fd, Some(out(5))), Ok(()));
    join(fd);
    let data = |epoll: &Epoll| epoll.wait(9, 0).iter().map(|event| event.0).collect::<Vec<_>>();
    assert_eq!((data(&epolls[0]), data(&epolls[1]), data(&epolls[2])), (vec![2], vec![], vec![5]));
    for epoll in &epolls[3..] {
        let _ = control_record(epoll.fd(), EPOLL_CTL_ADD, fd, Some(out(6)));
    }
    assert!(!are_too_many(fd) && is_own(fd));
    assert!(control_record(epolls[1].fd(), EPOLL_CTL_ADD, fd, Some(out(6))).is_err() && are_too_many(fd));
    forget(fd);
    assert!(!is_own(fd) && !are_too_many(fd));
}

#[test]
fn an_instance_that_was_closed_is_not_joined_again() {
    use super::members::{begin, join, leave};
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let (fd, [closed, kept]) = (begin(socket.as_raw_fd()), [Epoll::new(), Epoll::new()]);
    closed.control(EPOLL_CTL_ADD, fd, EPOLLOUT, 1).unwrap();
    kept.control(EPOLL_CTL_ADD, fd, EPOLLOUT, 2).unwrap();
    leave(fd);
    // The descriptor refers to another instance now.
    crate::calls::dup2(Epoll::new().fd(), closed.fd());
    join(fd);
    assert_eq!((closed.wait(9, 0), kept.wait(9, 0)), (vec![], vec![(2, EPOLLOUT as u32)]));
    // The socket is no member of that instance.
    let event = Some(epoll_event { events: EPOLLOUT as u32, u64: 3 });
    let control = |op| super::members::control(closed.fd(), op, fd, event);
    assert_eq!([EPOLL_CTL_DEL, EPOLL_CTL_MOD].map(control), [Err(ENOENT); 2]);
    assert_eq!([EPOLL_CTL_ADD; 2].map(control), [Ok(()), Err(EEXIST)]);
}
