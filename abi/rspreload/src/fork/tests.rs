//! Both ends in one process, with the kernel's sockets in the part of rsockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};

use libc::{EAGAIN, POLLIN};

use super::commit::Outcome;
use super::*;
use crate::test_sockets;

/// A connection: the end that connected, and the accepted one. Its port is free for an "rsocket" to
/// listen.
fn connection() -> (TcpStream, TcpStream) {
    let (client, server) = test_sockets::connection();
    for (socket, role) in [(&client, Role::Active), (&server, Role::Passive)] {
        table::prepare(socket.as_raw_fd()).unwrap();
        table::swap(socket.as_raw_fd(), Some(State::new(role).entry()));
    }
    (client, server)
}

pub fn decide(socket: &TcpStream, way: Way) -> Result<Option<c_int>, c_int> {
    let fd = socket.as_raw_fd();
    // SAFETY: an open descriptor.
    unsafe { resolve_pending(fd, table::get(fd).unwrap(), way) }
}

fn role(socket: &TcpStream) -> Option<Role> {
    table::get(socket.as_raw_fd()).map(|entry| State::of(entry).role)
}

/// Forgets a socket, and gives the "rsocket" that it became.
pub fn rsocket(socket: &TcpStream) -> TcpStream {
    let entry = table::swap(socket.as_raw_fd(), None).unwrap();
    assert_eq!(entry.kind, Kind::Socket);
    assert!(table::drop(entry.inner));
    // SAFETY: nobody else has it any more.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(entry.inner) }
}

#[test]
fn both_ends_become_rsockets() {
    for way in [Way::Send, Way::Receive] {
        let (client, server) = connection();
        client.set_nodelay(true).unwrap();
        std::thread::scope(|scope| {
            let active = scope.spawn(|| decide(&client, way));
            assert!(matches!(decide(&server, Way::Receive), Ok(Some(_))));
            assert!(matches!(active.join().unwrap(), Ok(Some(_))));
        });
        let (mut near, mut far) = (rsocket(&client), rsocket(&server));
        assert!(near.nodelay().unwrap());
        assert!(!far.nodelay().unwrap());
        near.write_all(b"over the rsocket").unwrap();
        drop(near);
        let mut text = String::new();
        far.read_to_string(&mut text).unwrap();
        assert_eq!(text, "over the rsocket");
    }
}

/// A connection from 127.0.0.`host`.
fn connect_from(host: u8, to: SocketAddr) -> TcpStream {
    let from = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, host]) },
        sin_zero: [0; 8],
    };
    let to = libc::sockaddr_in {
        sin_port: to.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        ..from
    };
    let len = size_of::<libc::sockaddr_in>() as socklen_t;
    // SAFETY: addresses of this length, and a new descriptor.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert_eq!(libc::bind(fd, (&raw const from).cast(), len), 0);
        assert_eq!(libc::connect(fd, (&raw const to).cast(), len), 0);
        std::os::fd::FromRawFd::from_raw_fd(fd)
    }
}

#[test]
fn rsockets_of_other_hosts_are_closed() {
    let (client, server) = connection();
    let to = server.local_addr().unwrap();
    // Threads of other tests follow the words of the host's pending connections.
    let waiting = table::swap(client.as_raw_fd(), None);
    std::thread::scope(|scope| {
        let passive = scope.spawn(|| decide(&server, Way::Receive));
        // The word: the other end listens.
        client.peek(&mut [0; 4]).unwrap();
        let mut strangers: Vec<_> = (2..6).map(|host| connect_from(host, to)).collect();
        table::swap(client.as_raw_fd(), waiting);
        assert!(matches!(decide(&client, Way::Receive), Ok(Some(_))));
        assert!(matches!(passive.join().unwrap(), Ok(Some(_))));
        for stranger in &mut strangers {
            assert_eq!(stranger.read(&mut [0; 8]).unwrap_or(0), 0);
        }
    });
    let (near, far) = (rsocket(&client), rsocket(&server));
    assert_eq!(far.peer_addr().unwrap(), near.local_addr().unwrap());
}

#[test]
fn a_silent_peer_does_not_keep_others_from_their_turn() {
    let (silent, waiting) = connection();
    // Not in fork mode: it does not even look for the word.
    table::swap(silent.as_raw_fd(), None);
    let (client, server) = connection();
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        let passive = scope.spawn(|| decide(&waiting, Way::Receive));
        silent.peek(&mut [0; 4]).unwrap();
        let active = scope.spawn(|| decide(&client, Way::Receive));
        assert!(matches!(decide(&server, Way::Receive), Ok(Some(_))));
        assert!(matches!(active.join().unwrap(), Ok(Some(_))));
        // Before the silent one is given up: what took its turn must not be what made it end.
        assert!(!passive.is_finished() && start.elapsed().as_millis() < decide::HANDSHAKE_TIMEOUT as u128);
        drop(silent);
        assert_eq!(passive.join().unwrap(), Ok(None));
    });
    drop((rsocket(&client), rsocket(&server)));
}

#[test]
fn an_rsocket_comes_from_the_address_of_its_tcp_socket() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = connect_from(7, listener.local_addr().unwrap());
    let (server, from) = listener.accept().unwrap();
    drop(listener);
    for (socket, role) in [(&client, Role::Active), (&server, Role::Passive)] {
        table::prepare(socket.as_raw_fd()).unwrap();
        table::swap(socket.as_raw_fd(), Some(State::new(role).entry()));
    }
    std::thread::scope(|scope| {
        let active = scope.spawn(|| decide(&client, Way::Receive));
        assert!(matches!(decide(&server, Way::Receive), Ok(Some(_))));
        assert!(matches!(active.join().unwrap(), Ok(Some(_))));
    });
    let (near, far) = (rsocket(&client), rsocket(&server));
    assert_eq!((near.local_addr().unwrap().ip(), far.peer_addr().unwrap().ip()), (from.ip(), from.ip()));
}

#[test]
fn a_peer_that_speaks_first_stays_tcp() {
    let (mut client, mut server) = connection();
    client.write_all(b"hello").unwrap();
    assert_eq!(decide(&server, Way::Receive), Ok(None));
    assert_eq!(table::get(server.as_raw_fd()), None);
    let mut bytes = [0; 5];
    server.read_exact(&mut bytes).unwrap();
    server.write_all(b"world").unwrap();
    assert_eq!(decide(&client, Way::Receive), Ok(None));
    assert_eq!(table::get(client.as_raw_fd()), None);
    client.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"world");
}

#[test]
fn a_peer_that_leaves_stays_tcp() {
    let (client, server) = connection();
    table::swap(client.as_raw_fd(), None);
    drop(client);
    assert_eq!(decide(&server, Way::Receive), Ok(None));
    let (client, server) = connection();
    std::thread::scope(|scope| {
        let passive = scope.spawn(|| decide(&server, Way::Send));
        let mut word = [1; 4];
        table::swap(client.as_raw_fd(), None);
        (&client).read_exact(&mut word).unwrap();
        assert_eq!(word, active::WORD);
        drop(client);
        assert_eq!(passive.join().unwrap(), Ok(None));
    });
    assert_eq!(table::get(server.as_raw_fd()), None);
}

#[test]
fn receiving_now_decides_nothing_without_the_word() {
    let (client, mut server) = connection();
    assert_eq!(decide(&client, Way::ReceiveNow), Err(EAGAIN));
    assert_eq!(role(&client), Some(Role::Active));
    client.set_nonblocking(true).unwrap();
    assert_eq!(decide(&client, Way::Receive), Err(EAGAIN));
    let fd = client.as_raw_fd();
    // SAFETY: an open descriptor.
    unsafe {
        assert_eq!(resolve_for_poll(fd, table::get(fd).unwrap(), POLLIN), None);
        assert!(!after_poll(fd, POLLIN));
        server.write_all(b"data").unwrap();
        let mut fds = [libc::pollfd { fd, events: POLLIN, revents: 0 }];
        assert_eq!(libc::poll(fds.as_mut_ptr(), 1, -1), 1);
        assert!(after_poll(fd, POLLIN));
    }
    assert_eq!(table::get(fd), None);
    table::swap(server.as_raw_fd(), None);
}

#[test]
fn the_word_without_a_listener_is_dropped() {
    for role in [Role::Active, Role::Late] {
        let (mut client, mut server) = connection();
        table::swap(client.as_raw_fd(), Some(State::new(role).entry()));
        server.write_all(&active::WORD).unwrap();
        assert_eq!(decide(&client, Way::Receive), Ok(None));
        assert_eq!(table::get(client.as_raw_fd()), None);
        server.write_all(b"data").unwrap();
        let mut bytes = [0; 4];
        client.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"data");
        table::swap(server.as_raw_fd(), None);
    }
}

#[test]
fn sending_and_receiving_threads_decide_once() {
    for _ in 0..20 {
        let (client, server) = connection();
        std::thread::scope(|scope| {
            let threads: Vec<_> = [Way::Receive, Way::Send, Way::Receive, Way::Send]
                .map(|way| {
                    let client = &client;
                    scope.spawn(move || decide_if_there(client, way))
                })
                .into();
            let passive = decide(&server, Way::Receive).unwrap();
            assert!(passive.is_some());
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            let inner = table::get(client.as_raw_fd()).unwrap().inner;
            assert!(results.iter().all(|result| *result == Ok(Some(inner))), "{results:?}");
        });
        drop((rsocket(&client), rsocket(&server)));
    }
}

/// As [`decide`], for a socket that another thread may have decided before.
fn decide_if_there(socket: &TcpStream, way: Way) -> Result<Option<c_int>, c_int> {
    match table::get(socket.as_raw_fd()) {
        Some(Entry { kind: Kind::Socket, inner, .. }) => Ok(Some(inner)),
        _ => decide(socket, way),
    }
}

#[test]
fn a_member_of_an_epoll_is_handed_over() {
    let (client, server) = connection();
    client.set_nonblocking(true).unwrap();
    // SAFETY: a new descriptor, and events of our own.
    unsafe {
        let epfd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        table::swap(epfd, None);
        let mut event = libc::epoll_event { events: POLLIN as u32, u64: 77 };
        assert_eq!(crate::calls::epoll::control(epfd, libc::EPOLL_CTL_ADD, client.as_raw_fd(), &raw mut event), 0);
        assert_eq!(role(&client), Some(Role::Active));
        std::thread::scope(|scope| {
            let passive = scope.spawn(|| decide(&server, Way::Receive));
            assert_eq!(crate::epoll::wait(epfd, &raw mut event, 1, -1), 1);
            assert!(matches!(decide(&client, Way::Receive), Ok(Some(_))));
            assert!(matches!(passive.join().unwrap(), Ok(Some(_))));
        });
        assert_eq!(crate::epoll::wait(epfd, &raw mut event, 1, 0), 0);
        let mut far = rsocket(&server);
        far.write_all(b"data").unwrap();
        assert_eq!(crate::epoll::wait(epfd, &raw mut event, 1, -1), 1);
        let data = event.u64;
        assert_eq!(data, 77);
        crate::fds::release(table::swap(epfd, None).unwrap());
        libc::close(epfd);
    }
    drop(rsocket(&client));
}

#[test]
fn copies_become_the_same_rsocket() {
    let (client, server) = connection();
    let copies: Vec<_> = (0..3).map(|_| server.try_clone().unwrap()).collect();
    for copy in &copies {
        let fd = copy.as_raw_fd();
        let entry = table::get(server.as_raw_fd()).unwrap();
        table::prepare(fd).unwrap();
        table::swap(fd, Some(copied(entry)));
    }
    let inner = std::thread::scope(|scope| {
        scope.spawn(|| decide(&client, Way::Receive));
        // Two of them at a time: one decides, the other finds out.
        let other = scope.spawn(|| decide_if_there(&copies[1], Way::Receive));
        let inner = decide_if_there(&copies[0], Way::Send).unwrap().unwrap();
        assert_eq!(other.join().unwrap(), Ok(Some(inner)));
        inner
    });
    let mut indices = Vec::new();
    for socket in copies.iter().chain([&server]) {
        let entry = table::swap(socket.as_raw_fd(), None).unwrap();
        assert_eq!((entry.kind, entry.inner, entry.flags & table::DECIDED), (Kind::Socket, inner, table::DECIDED));
        indices.push(entry.index());
        crate::fds::release(entry);
    }
    indices.sort_unstable();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert!(!table::hold(inner));
    let mut near = rsocket(&client);
    assert_eq!(near.read(&mut [0; 8]).unwrap(), 0);
}

/// The peer ends TCP when its rsocket is connected, which this end may see before the rsocket.
#[test]
fn a_copy_joins_a_handshake_that_is_nearly_over() {
    let (client, server) = connection();
    let to = server.local_addr().unwrap();
    // Threads of other tests follow the words of the host's pending connections.
    table::swap(client.as_raw_fd(), None);
    let second = server.try_clone().unwrap();
    table::prepare(second.as_raw_fd()).unwrap();
    table::swap(second.as_raw_fd(), Some(copied(table::get(server.as_raw_fd()).unwrap())));
    assert_eq!(decide(&server, Way::ReceiveNow), Err(EAGAIN));
    // The word: the other end listens.
    client.peek(&mut [0; 4]).unwrap();
    client.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(decide(&second, Way::ReceiveNow), Err(EAGAIN));
    let near = TcpStream::connect(to).unwrap();
    let inner = decide(&server, Way::Receive).unwrap();
    assert!(inner.is_some());
    assert_eq!(decide_if_there(&second, Way::Receive), Ok(inner));
    for socket in [&server, &second] {
        crate::fds::release(table::swap(socket.as_raw_fd(), None).unwrap());
    }
    drop(near);
}

#[test]
fn what_is_closed_meanwhile_is_no_rsocket() {
    let (client, server) = connection();
    let (fd, number) = (server.as_raw_fd(), client.as_raw_fd());
    // Threads of other tests follow the words of the host's pending connections.
    let waiting = table::swap(number, None);
    assert_eq!(decide(&server, Way::ReceiveNow), Err(EAGAIN));
    // The word: the other end listens.
    client.peek(&mut [0; 4]).unwrap();
    let entry = table::get(fd).unwrap();
    // As close() does. The number is another connection's at once.
    table::swap(fd, Some(State::new(Role::Passive).entry()));
    crate::fds::release(entry);
    let slot = slots::of(entry).unwrap();
    assert!(slot.entry() != Some(entry));
    slot.finish((fd, entry.inner), Outcome::Tcp);
    assert_eq!(table::get(fd), Some(State::new(Role::Passive).entry()));
    table::swap(fd, None);
    drop(server);
    table::swap(number, waiting);
    // Whatever becomes of the client sees the end.
    let _ = decide(&client, Way::Receive);
    let mut near = match table::get(number).map(|entry| entry.kind) {
        Some(Kind::Socket) => rsocket(&client),
        _ => client.try_clone().unwrap(),
    };
    assert_eq!(near.read(&mut [0; 8]).unwrap_or(0), 0);
    // SAFETY: still this test's own.
    unsafe { libc::close(client.into_raw_fd()) };
    table::swap(number, None);
}

#[test]
fn states_survive_the_table() {
    for role in [Role::Fresh, Role::Active, Role::Passive, Role::Late] {
        for (busy, ticket) in [(false, -1), (true, -1), (false, -2), (false, -2 - (i32::MAX >> 1))] {
            for epfd in [0, 5, (1 << 21) - 2] {
                let state = State::new(role).busy(busy).in_epoll(epfd).with_ticket(ticket);
                let entry = state.entry();
                assert!(entry.flags < 1 << 24);
                assert_eq!(State::of(entry), state);
                assert_eq!(State::of(entry).epoll(), Some(epfd));
                assert_eq!(State::of(entry).has_ticket(), ticket != -1);
                assert_eq!(copied(entry), State::new(role).entry());
            }
            assert_eq!(State::new(role).in_epoll(1 << 21).epoll(), None);
        }
    }
}
