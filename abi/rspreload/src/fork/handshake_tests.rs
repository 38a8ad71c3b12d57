//! Servers that wait for several connections at once, one of which keeps silent. The kernel's
//! sockets have the part of rsockets, so these are matched as the reference's are: by their host.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use libc::{EAGAIN, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLOUT, POLLIN, POLLOUT};

use super::tests::{decide, rsocket};
use super::*;
use crate::epoll;

/// Two connections to one address: a silent one, whose peer is not in fork mode, and another one.
struct Server {
    silent_peer: TcpStream,
    silent: TcpStream,
    client: TcpStream,
    honest: TcpStream,
}

impl Server {
    fn new() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || {
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (client, listener.accept().unwrap().0)
        };
        let ((silent_peer, silent), (client, honest)) = (connect(), connect());
        for (socket, role) in [(&client, Role::Active), (&silent, Role::Passive), (&honest, Role::Passive)] {
            table::prepare(socket.as_raw_fd()).unwrap();
            table::swap(socket.as_raw_fd(), Some(State::new(role).entry()));
        }
        Server { silent_peer, silent, client, honest }
    }

    /// The silent one and its peer only.
    fn without_client(self) -> (TcpStream, TcpStream) {
        table::swap(self.client.as_raw_fd(), None);
        table::swap(self.honest.as_raw_fd(), None);
        (self.silent_peer, self.silent)
    }

    /// `serve` returns when the honest client's data is there.
    fn serve(self, serve: impl FnOnce(&TcpStream, &TcpStream)) {
        std::thread::scope(|scope| {
            let active = scope.spawn(|| {
                assert!(matches!(decide(&self.client, Way::Receive), Ok(Some(_))));
                let mut near = rsocket(&self.client);
                near.write_all(b"data").unwrap();
                near
            });
            serve(&self.silent, &self.honest);
            drop(active.join().unwrap());
        });
        // Nobody has waited for the silent one.
        assert!(is_undecided(self.silent.as_raw_fd()));
        self.silent.set_nonblocking(true).unwrap();
        assert_eq!(decide(&self.silent, Way::Send), Err(EAGAIN));
        let mut far = rsocket(&self.honest);
        far.set_nonblocking(false).unwrap();
        let mut text = String::new();
        far.read_to_string(&mut text).unwrap();
        assert_eq!(text, "data");
        self.becomes_tcp();
    }

    /// What the silent one says at last is for the program.
    fn becomes_tcp(mut self) {
        self.silent_peer.write_all(b"late").unwrap();
        let mut fds = [libc::pollfd { fd: self.silent.as_raw_fd(), events: POLLIN, revents: 0 }];
        // SAFETY: an array of one.
        assert_eq!(unsafe { crate::calls::poll::poll(fds.as_mut_ptr(), 1, -1) }, 1);
        assert_eq!((fds[0].revents, table::get(self.silent.as_raw_fd())), (POLLIN, None));
        let mut bytes = [0; 4];
        self.silent.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"late");
    }
}

#[test]
fn polls_do_not_wait_for_silent_peers() {
    Server::new().serve(|silent, honest| {
        let mut fds =
            [silent, honest].map(|socket| libc::pollfd { fd: socket.as_raw_fd(), events: POLLIN, revents: 0 });
        // SAFETY: an array of two.
        assert_eq!(unsafe { crate::calls::poll::poll(fds.as_mut_ptr(), 2, -1) }, 1);
        assert_eq!((fds[0].revents, fds[1].revents), (0, POLLIN));
        fds[0].events = POLLIN | POLLOUT;
        // SAFETY: an array of one and of two.
        unsafe {
            assert_eq!(crate::calls::poll::poll(fds.as_mut_ptr(), 1, 1), 0);
            assert_eq!(crate::calls::poll::poll(fds.as_mut_ptr(), 2, -1), 1);
        }
    });
}

#[test]
fn selects_do_not_wait_for_silent_peers() {
    Server::new().serve(|silent, honest| {
        let (silent, honest) = (silent.as_raw_fd(), honest.as_raw_fd());
        let count = silent.max(honest) + 1;
        // SAFETY: sets that have room for the numbers.
        unsafe {
            let (mut read, mut write): (libc::fd_set, libc::fd_set) = (core::mem::zeroed(), core::mem::zeroed());
            libc::FD_SET(silent, &raw mut read);
            libc::FD_SET(honest, &raw mut read);
            libc::FD_SET(silent, &raw mut write);
            let none = core::ptr::null_mut();
            assert_eq!(
                crate::calls::select::select(count, &raw mut read, &raw mut write, none, core::ptr::null_mut()),
                1
            );
            assert!(libc::FD_ISSET(honest, &raw const read) && !libc::FD_ISSET(silent, &raw const read));
            libc::FD_SET(silent, &raw mut write);
            let mut timeout = libc::timeval { tv_sec: 0, tv_usec: 120_000 };
            assert_eq!(crate::calls::select::select(count, none, &raw mut write, none, &raw mut timeout), 0);
            assert_eq!((timeout.tv_sec, timeout.tv_usec), (0, 0));
        }
    });
}

#[test]
fn receiving_without_waiting_does_not_wait_for_silent_peers() {
    Server::new().serve(|silent, honest| {
        honest.set_nonblocking(true).unwrap();
        while decide(honest, Way::Receive) == Err(EAGAIN) {
            assert_eq!(decide(silent, Way::ReceiveNow), Err(EAGAIN));
            assert_eq!(decide(silent, Way::SendNow), Err(EAGAIN));
            std::thread::yield_now();
        }
    });
}

fn control(epfd: &OwnedFd, op: c_int, socket: &TcpStream, events: c_int, data: u64) -> c_int {
    let mut event = libc::epoll_event { events: events as u32, u64: data };
    // SAFETY: an event of this function.
    unsafe { crate::calls::epoll::control(epfd.as_raw_fd(), op, socket.as_raw_fd(), &raw mut event) }
}

/// The only event; none within the time.
fn wait(epfd: &OwnedFd, timeout: c_int) -> Option<(u32, u64)> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
    // SAFETY: room for so many.
    let count = unsafe { epoll::wait(epfd.as_raw_fd(), events.as_mut_ptr(), 2, timeout) };
    assert!(count < 2);
    (count == 1).then(|| (events[0].events, events[0].u64))
}

fn new_epoll() -> OwnedFd {
    // SAFETY: a new descriptor.
    let epfd: OwnedFd = unsafe { std::os::fd::FromRawFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    table::swap(epfd.as_raw_fd(), None);
    epfd
}

#[test]
fn epolls_do_not_wait_for_silent_peers() {
    for edge in [0, EPOLLET] {
        let epfd = new_epoll();
        let server = Server::new();
        let (silent, mut silent_peer) = (server.silent.try_clone().unwrap(), server.silent_peer.try_clone().unwrap());
        let number = server.silent.as_raw_fd();
        server.serve(|silent, honest| {
            assert_eq!(control(&epfd, EPOLL_CTL_ADD, silent, EPOLLIN | EPOLLOUT | edge, 1), 0);
            assert_eq!(control(&epfd, EPOLL_CTL_ADD, honest, EPOLLIN | edge, 7), 0);
            assert_eq!((control(&epfd, EPOLL_CTL_ADD, honest, EPOLLIN, 7), errno::get()), (-1, libc::EEXIST));
            assert_eq!(control(&epfd, EPOLL_CTL_DEL, silent, 0, 0), 0);
            assert_eq!((control(&epfd, EPOLL_CTL_MOD, silent, EPOLLIN, 1), errno::get()), (-1, libc::ENOENT));
            assert_eq!(control(&epfd, EPOLL_CTL_ADD, silent, EPOLLIN | EPOLLOUT | edge, 1), 0);
            assert_eq!(control(&epfd, EPOLL_CTL_MOD, silent, EPOLLIN | edge, 2), 0);
            assert_eq!(wait(&epfd, -1), Some((EPOLLIN as u32, 7)));
            assert_eq!(control(&epfd, EPOLL_CTL_DEL, honest, 0, 0), 0);
        });
        // It has become TCP, with what the program asked for last. The number is closed, the
        // connection not.
        assert_eq!(wait(&epfd, 0), None);
        silent_peer.write_all(b"more").unwrap();
        assert_eq!(wait(&epfd, -1), Some((EPOLLIN as u32, 2)));
        assert_eq!(table::get(number), None);
        drop((silent, epfd));
    }
}

#[test]
fn a_second_epoll_gets_what_has_been_decided() {
    let (mut silent_peer, silent) = Server::new().without_client();
    let (first, second) = (new_epoll(), new_epoll());
    assert_eq!(control(&first, EPOLL_CTL_ADD, &silent, EPOLLIN, 1), 0);
    std::thread::scope(|scope| {
        let added = scope.spawn(|| control(&second, EPOLL_CTL_ADD, &silent, EPOLLIN, 2));
        silent_peer.peek(&mut [0; 4]).unwrap();
        assert!(is_undecided(silent.as_raw_fd()));
        silent_peer.write_all(b"late").unwrap();
        assert_eq!(added.join().unwrap(), 0);
    });
    assert_eq!(table::get(silent.as_raw_fd()), None);
    assert_eq!([wait(&first, -1), wait(&second, -1)], [1, 2].map(|data| Some((EPOLLIN as u32, data))));
}

#[test]
fn shutting_down_does_not_wait() {
    let (mut silent_peer, silent) = Server::new().without_client();
    silent.set_nonblocking(true).unwrap();
    assert_eq!(decide(&silent, Way::ReceiveNow), Err(EAGAIN));
    assert_eq!(decide(&silent, Way::Shutdown), Ok(None));
    assert_eq!(table::get(silent.as_raw_fd()), None);
    silent.shutdown(std::net::Shutdown::Write).unwrap();
    let mut said = Vec::new();
    silent_peer.read_to_end(&mut said).unwrap();
    assert!(said.is_empty() || said == active::WORD, "{said:?}");
}

#[test]
fn what_the_parent_has_begun_is_tcp_in_the_child() {
    // In a process of its own: a child has the descriptors of all tests.
    let test = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "fork::handshake_tests::a_child_of_fork", "--ignored"])
        .output()
        .unwrap();
    assert!(test.status.success(), "{}", String::from_utf8_lossy(&test.stdout));
}

#[test]
#[ignore = "run by what_the_parent_has_begun_is_tcp_in_the_child"]
fn a_child_of_fork() {
    crate::fork_handlers::register();
    let (silent_peer, silent) = Server::new().without_client();
    assert_eq!(decide(&silent, Way::ReceiveNow), Err(EAGAIN));
    // The word: the parent has told its peer to connect.
    silent_peer.peek(&mut [0; 4]).unwrap();
    let fd = silent.as_raw_fd();
    let tcp = slots::of(table::get(fd).unwrap()).unwrap().tcp();
    // SAFETY: no pointers but to a live int; the child makes system calls only.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let closed = libc::fcntl(tcp, libc::F_GETFD) == -1;
            libc::_exit(c_int::from(table::get(fd).is_some() || !closed));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0);
    }
    assert!(is_undecided(fd));
    table::swap(fd, None);
}
