//! Unit tests of fork mode, with both ends in one process. Kernel sockets take the place of
//! rsockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use libc::{EAGAIN, POLLIN};

use super::*;
use crate::calls::tests as test_sockets;

/// Returns the connecting and the accepted end of a connection. Its port is free, so that a kernel
/// socket can listen there in place of an rsocket.
fn connection() -> (TcpStream, TcpStream) {
    let (client, server) = test_sockets::connection();
    for (socket, role) in [(&client, Role::Active), (&server, Role::Passive)] {
        table::prepare(socket.as_raw_fd()).unwrap();
        table::swap(socket.as_raw_fd(), Some(role.entry()));
    }
    (client, server)
}

fn decide(socket: &TcpStream, intent: Intent) -> Result<Option<c_int>, c_int> {
    let fd = socket.as_raw_fd();
    resolve_pending(fd, table::get(fd).unwrap(), intent)
}

fn role(socket: &TcpStream) -> Option<Role> {
    table::get(socket.as_raw_fd()).map(Role::of)
}

/// Removes a socket's entry, and returns the kernel socket that acts as its rsocket.
fn rsocket(socket: &TcpStream) -> TcpStream {
    let entry = table::swap(socket.as_raw_fd(), None).unwrap();
    assert_eq!(entry.kind, Kind::Socket);
    assert!(table::drop(entry.handle));
    // SAFETY: the last reference was dropped, so nothing else owns the descriptor.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(entry.handle) }
}

#[test]
fn both_ends_become_rsockets() {
    for intent in [Intent::Send, Intent::Receive] {
        let (client, server) = connection();
        client.set_nodelay(true).unwrap();
        std::thread::scope(|scope| {
            let active = scope.spawn(|| decide(&client, intent));
            assert!(matches!(decide(&server, Intent::Receive), Ok(Some(_))));
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

/// Returns a connection from 127.0.0.`host`.
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
    // SAFETY: both addresses have `len` bytes, and nothing else owns the new descriptor.
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
    let waiting = table::swap(client.as_raw_fd(), None);
    std::thread::scope(|scope| {
        let passive = scope.spawn(|| decide(&server, Intent::Receive));
        // The word shows that the other end listens.
        client.peek(&mut [0; 4]).unwrap();
        let mut strangers: Vec<_> = (2..6).map(|host| connect_from(host, to)).collect();
        table::swap(client.as_raw_fd(), waiting);
        assert!(matches!(decide(&client, Intent::Receive), Ok(Some(_))));
        assert!(matches!(passive.join().unwrap(), Ok(Some(_))));
        for stranger in &mut strangers {
            assert_eq!(stranger.read(&mut [0; 8]).unwrap_or(0), 0);
        }
    });
    let (near, far) = (rsocket(&client), rsocket(&server));
    assert_eq!(far.peer_addr().unwrap(), near.local_addr().unwrap());
}

#[test]
fn an_rsocket_comes_from_the_address_of_its_tcp_socket() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = connect_from(7, listener.local_addr().unwrap());
    let (server, from) = listener.accept().unwrap();
    drop(listener);
    for (socket, role) in [(&client, Role::Active), (&server, Role::Passive)] {
        table::prepare(socket.as_raw_fd()).unwrap();
        table::swap(socket.as_raw_fd(), Some(role.entry()));
    }
    std::thread::scope(|scope| {
        let active = scope.spawn(|| decide(&client, Intent::Receive));
        assert!(matches!(decide(&server, Intent::Receive), Ok(Some(_))));
        assert!(matches!(active.join().unwrap(), Ok(Some(_))));
    });
    let (near, far) = (rsocket(&client), rsocket(&server));
    assert_eq!((near.local_addr().unwrap().ip(), far.peer_addr().unwrap().ip()), (from.ip(), from.ip()));
}

#[test]
fn a_peer_that_speaks_first_stays_tcp() {
    let (mut client, mut server) = connection();
    client.write_all(b"hello").unwrap();
    assert_eq!(decide(&server, Intent::Receive), Ok(None));
    assert_eq!(table::get(server.as_raw_fd()), None);
    let mut bytes = [0; 5];
    server.read_exact(&mut bytes).unwrap();
    server.write_all(b"world").unwrap();
    assert_eq!(decide(&client, Intent::Receive), Ok(None));
    assert_eq!(table::get(client.as_raw_fd()), None);
    client.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"world");
}

#[test]
fn a_peer_that_leaves_stays_tcp() {
    let (client, server) = connection();
    table::swap(client.as_raw_fd(), None);
    drop(client);
    assert_eq!(decide(&server, Intent::Receive), Ok(None));
    let (client, server) = connection();
    std::thread::scope(|scope| {
        let passive = scope.spawn(|| decide(&server, Intent::Send));
        let mut word = [1; 4];
        table::swap(client.as_raw_fd(), None);
        (&client).read_exact(&mut word).unwrap();
        assert_eq!(word, handshake::WORD);
        drop(client);
        assert_eq!(passive.join().unwrap(), Ok(None));
    });
    assert_eq!(table::get(server.as_raw_fd()), None);
}

#[test]
fn receiving_now_decides_nothing_without_the_word() {
    let (client, mut server) = connection();
    assert_eq!(decide(&client, Intent::ReceiveNow), Err(EAGAIN));
    assert_eq!(role(&client), Some(Role::Active));
    client.set_nonblocking(true).unwrap();
    assert_eq!(decide(&client, Intent::Receive), Err(EAGAIN));
    let fd = client.as_raw_fd();
    // SAFETY: `fds` has one element.
    unsafe {
        assert_eq!(resolve_for_poll(fd, table::get(fd).unwrap()), None);
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
        table::swap(client.as_raw_fd(), Some(role.entry()));
        server.write_all(&handshake::WORD).unwrap();
        assert_eq!(decide(&client, Intent::Receive), Ok(None));
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
            let threads: Vec<_> = [Intent::Receive, Intent::Send, Intent::Receive, Intent::Send]
                .map(|intent| {
                    let client = &client;
                    scope.spawn(move || decide_if_there(client, intent))
                })
                .into();
            let passive = decide(&server, Intent::Receive).unwrap();
            assert!(passive.is_some());
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            let rsocket = table::get(client.as_raw_fd()).unwrap().handle;
            assert!(results.iter().all(|result| *result == Ok(Some(rsocket))), "{results:?}");
        });
        drop((rsocket(&client), rsocket(&server)));
    }
}

/// Like `decide`, for a socket that another thread may have decided before.
fn decide_if_there(socket: &TcpStream, intent: Intent) -> Result<Option<c_int>, c_int> {
    match table::get(socket.as_raw_fd()) {
        Some(Entry { kind: Kind::Socket, handle: rsocket, .. }) => Ok(Some(rsocket)),
        _ => decide(socket, intent),
    }
}

#[test]
fn a_member_of_an_epoll_is_handed_over() {
    let (client, server) = connection();
    client.set_nonblocking(true).unwrap();
    // SAFETY: `event` outlives the calls, and nothing else owns the new descriptor.
    unsafe {
        let epfd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        table::swap(epfd, None);
        crate::epoll::members::begin(client.as_raw_fd());
        let mut event = libc::epoll_event { events: POLLIN as u32, u64: 77 };
        let asked = crate::calls::waits::Event::new(&raw mut event);
        assert_eq!(crate::calls::waits::control(epfd, libc::EPOLL_CTL_ADD, client.as_raw_fd(), asked), 0);
        assert_eq!(role(&client), Some(Role::Active));
        std::thread::scope(|scope| {
            let passive = scope.spawn(|| decide(&server, Intent::Receive));
            assert_eq!(crate::calls::waits::epoll_wait(epfd, &raw mut event, 1, -1), 1);
            assert!(matches!(decide(&client, Intent::Receive), Ok(Some(_))));
            assert!(matches!(passive.join().unwrap(), Ok(Some(_))));
        });
        assert_eq!(crate::calls::waits::epoll_wait(epfd, &raw mut event, 1, 0), 0);
        let mut far = rsocket(&server);
        far.write_all(b"data").unwrap();
        assert_eq!(crate::calls::waits::epoll_wait(epfd, &raw mut event, 1, -1), 1);
        let data = event.u64;
        assert_eq!(data, 77);
        crate::fds::release(table::swap(epfd, None).unwrap());
        libc::close(epfd);
    }
    drop(rsocket(&client));
}

#[test]
fn a_silent_peer_is_served_over_tcp() {
    for intent in [Intent::Receive, Intent::ReceiveNow, Intent::SendNow] {
        let (mut silent, mut server) = connection();
        // The peer is not in fork mode, and does not look for the word.
        table::swap(silent.as_raw_fd(), None);
        assert_eq!(decide(&server, intent), Ok(None));
        assert_eq!(table::get(server.as_raw_fd()), None);
        silent.write_all(b"late").unwrap();
        let mut bytes = [0; 4];
        server.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"late");
    }
}

#[test]
fn a_socket_whose_descriptor_is_copied_stays_tcp() {
    let (mut client, mut server) = connection();
    for socket in [&client, &server] {
        let (fd, before) = (socket.as_raw_fd(), table::get(socket.as_raw_fd()).unwrap());
        assert!(stay_tcp(fd, before));
        let copy = crate::calls::dup(fd);
        assert_eq!(table::get(copy).map(Role::of), role(socket));
        crate::calls::close(copy);
    }
    assert_eq!((role(&client), table::get(server.as_raw_fd())), (Some(Role::Late), None));
    server.write_all(b"data").unwrap();
    assert_eq!(decide(&client, Intent::Receive), Ok(None));
    let mut bytes = [0; 4];
    client.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"data");
}

#[test]
fn what_is_closed_meanwhile_is_no_rsocket() {
    let (client, server) = connection();
    let (fd, client_fd) = (server.as_raw_fd(), client.as_raw_fd());
    let waiting = table::swap(client_fd, None);
    std::thread::scope(|scope| {
        let passive = scope.spawn(|| decide(&server, Intent::Receive));
        // The word shows that the other end listens.
        client.peek(&mut [0; 4]).unwrap();
        // Act as close(2) and a socket(2) that reuses the descriptor at once.
        table::swap(fd, Some(Role::Fresh.entry()));
        table::swap(client_fd, waiting);
        assert!(matches!(decide(&client, Intent::Receive), Ok(Some(_))));
        assert_eq!(passive.join().unwrap(), Ok(None));
    });
    assert_eq!(table::swap(fd, None), Some(Role::Fresh.entry()));
    assert_eq!(rsocket(&client).read(&mut [0; 8]).unwrap_or(0), 0);
}

#[test]
fn roles_survive_the_table() {
    for role in [Role::Fresh, Role::Active, Role::Passive, Role::Late] {
        let entry = role.entry();
        let busy = Entry { flags: entry.flags | BUSY, ..entry };
        assert_eq!([entry, busy].map(Role::of), [role; 2]);
        assert_eq!((is_busy(entry), is_busy(busy)), (false, true));
    }
}
