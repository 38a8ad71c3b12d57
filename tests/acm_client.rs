//! Tests of the ibacm client with correct and misbehaving servers. A wait without a timeout would
//! show as a test that never ends.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "that is how a test fails")]

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rdmacm_core::acm::client::{Client, SocketPaths};
use rdmacm_core::acm::wire::{Answer, Query};
use rdmacm_core::acm::{CACHED_ANSWER_TIMEOUT, resolve_path};
use rdmacm_core::os::sockaddr::SockAddr;
use server::{Mode, Server};

#[path = "acm_server.rs"]
#[allow(dead_code, missing_docs, reason = "the example uses more of it")]
mod server;

/// Long enough for any machine; only the tests of timeouts wait as long as [`SOON`].
const LONG: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_millis(50);

/// A test's folder, which is removed with the value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("acm-client-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        Folder(folder)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("ibacm.sock")
    }

    fn port_file(&self) -> PathBuf {
        self.0.join("ibacm.port")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Leaks a path, so that it lives as long as the test program.
fn leak(path: &Path) -> &'static str {
    String::leak(path.to_str().unwrap().to_owned())
}

fn client(folder: &Folder, timeout: Duration) -> Client<'static> {
    client_with_retry_delay(folder, timeout, Duration::ZERO)
}

fn client_with_retry_delay(folder: &Folder, timeout: Duration, retry_delay: Duration) -> Client<'static> {
    let paths = SocketPaths { port_file: leak(&folder.port_file()), socket: leak(&folder.socket()) };
    Client::new(paths, timeout, retry_delay)
}

/// A server, and a client that reaches it by its unix socket.
fn pair(mode: Mode) -> (Folder, Server, Client<'static>) {
    let folder = Folder::new();
    let server = Server::unix(&folder.socket(), mode).unwrap();
    let client = client(&folder, LONG);
    (folder, server, client)
}

fn address(port: u16, ip: [u8; 4]) -> Option<SockAddr> {
    Some(SockAddr::from_inet(&(ip, port).into()))
}

fn there() -> Option<SockAddr> {
    address(7174, [10, 77, 1, 1])
}

fn here() -> Option<SockAddr> {
    address(5, [10, 77, 1, 2])
}

fn query() -> Query {
    Query { src: here(), dst: there(), ..Query::default() }
}

fn assert_correct(answer: Option<Answer>) {
    let answer = answer.expect("an answer");
    assert_eq!(answer.source, Some([10, 77, 1, 2].into()));
    let path = answer.paths.records().first().expect("a path").path;
    // SAFETY: any bytes are a value of the GIDs.
    let (dgid, sgid) = unsafe { (path.dgid.raw, path.sgid.raw) };
    assert_eq!(dgid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 77, 1, 1]);
    assert_eq!(sgid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 77, 1, 2]);
    assert_eq!(path.pkey, 0xFFFF);
}

fn tids(server: &Server) -> Vec<u64> {
    server.requests().iter().map(|request| u64::from_ne_bytes(request[8..16].try_into().unwrap())).collect()
}

#[test]
fn one_connection_serves_many_queries() {
    let (_folder, server, client) = pair(Mode::Good);
    for _ in 0..3 {
        assert_correct(client.ask(&query()));
    }
    assert_eq!(server.connections(), 1);
    assert_eq!(tids(&server), [1, 2, 3]);
    assert_eq!(server.requests()[0].len(), 16 + 2 * 72);
}

#[test]
fn port_file_selects_tcp() {
    let folder = Folder::new();
    let unix = Server::unix(&folder.socket(), Mode::Good).unwrap();
    let tcp = Server::tcp(&folder.port_file(), Mode::Good).unwrap();
    assert_correct(client(&folder, LONG).ask(&query()));
    assert_eq!((unix.connections(), tcp.connections()), (0, 1));
}

#[test]
fn file_without_port_selects_the_unix_socket() {
    for text in ["", "none\n", "0\n", "70000\n"] {
        let folder = Folder::new();
        fs::write(folder.port_file(), text).unwrap();
        let server = Server::unix(&folder.socket(), Mode::Good).unwrap();
        assert_correct(client(&folder, LONG).ask(&query()));
        assert_eq!(server.connections(), 1, "{text:?}");
    }
}

#[test]
fn without_daemon_there_is_no_answer() {
    let folder = Folder::new();
    let client = client(&folder, LONG);
    assert!(client.ask(&query()).is_none());
    drop(UnixListener::bind(folder.socket()).unwrap()); // the socket of a daemon that was killed
    assert!(client.ask(&query()).is_none());
}

#[test]
fn daemon_may_start_later() {
    let folder = Folder::new();
    let client = client(&folder, LONG);
    assert!(client.ask(&query()).is_none());
    let _server = Server::unix(&folder.socket(), Mode::Good).unwrap();
    assert_correct(client.ask(&query()));
}

#[test]
fn absent_daemon_is_not_tried_at_every_query() {
    let folder = Folder::new();
    let client = client_with_retry_delay(&folder, LONG, Duration::from_secs(3600));
    assert!(client.ask(&query()).is_none());
    let _server = Server::unix(&folder.socket(), Mode::Good).unwrap();
    assert!(client.ask(&query()).is_none());
}

#[test]
fn stale_port_is_no_answer() {
    let folder = Folder::new();
    drop(Server::tcp(&folder.port_file(), Mode::Good).unwrap());
    assert!(client(&folder, LONG).ask(&query()).is_none());
}

#[test]
fn too_long_socket_name_is_no_answer() {
    let paths =
        SocketPaths { port_file: "/nonexistent/port", socket: leak(Path::new(&format!("/{}", "x".repeat(200)))) };
    assert!(Client::new(paths, LONG, Duration::ZERO).ask(&query()).is_none());
}

#[test]
fn empty_query_needs_no_connection() {
    let (_folder, server, client) = pair(Mode::Good);
    assert!(client.ask(&Query::default()).is_none());
    assert_eq!(server.connections(), 0);
}

#[test]
fn records_in_any_order() {
    let (_folder, _server, client) = pair(Mode::Split);
    let answer = client.ask(&query()).unwrap();
    assert_eq!(answer.paths.records().len(), 2);
    assert!(answer.paths.records().iter().all(|data| data.flags == 0x2B && data.reserved == 0));
}

#[test]
fn answer_may_come_in_pieces() {
    let (_folder, server, client) = pair(Mode::Trickle);
    assert_correct(client.ask(&query()));
    assert_correct(client.ask(&query()));
    assert_eq!(server.connections(), 1);
}

#[test]
fn failure_status_keeps_the_connection() {
    let (_folder, server, client) = pair(Mode::NoData);
    assert!(client.ask(&query()).is_none());
    server.set_mode(Mode::Good);
    assert_correct(client.ask(&query()));
    assert_eq!(server.connections(), 1);
}

#[test]
fn unknown_records_are_ignored() {
    for mode in [Mode::Empty, Mode::GarbageRecords] {
        let (_folder, server, client) = pair(mode);
        let answer = client.ask(&query()).unwrap();
        assert!(answer.paths.is_empty() && answer.source.is_none());
        assert!(resolve_path(&client, here(), there(), LONG).is_none());
        server.set_mode(Mode::Good);
        assert_correct(client.ask(&query()));
        assert_eq!(server.connections(), 1, "{mode:?}");
    }
}

// The reference keeps using the broken connection, accepts these answers, and is killed by SIGPIPE
// at the next query.
#[test]
fn invalid_answers_are_ignored_and_the_next_query_uses_a_new_connection() {
    for mode in [
        Mode::Short,
        Mode::ShortHeader,
        Mode::OddLength,
        Mode::HugeCount,
        Mode::WrongTid,
        Mode::WrongVersion,
        Mode::Echo,
        Mode::Garbage,
        Mode::Close,
    ] {
        let (_folder, server, client) = pair(mode);
        assert!(client.ask(&query()).is_none(), "{mode:?}");
        assert_eq!(server.connections(), 1, "{mode:?}");
        server.set_mode(Mode::Good);
        assert_correct(client.ask(&query()));
        assert_eq!(server.connections(), 2, "{mode:?}");
    }
}

#[test]
fn query_with_an_invalid_answer_is_not_repeated() {
    let (_folder, server, client) = pair(Mode::Good);
    assert_correct(client.ask(&query()));
    server.set_mode(Mode::WrongTid);
    assert!(client.ask(&query()).is_none());
    assert_eq!((server.connections(), server.requests().len()), (1, 2));
}

#[test]
fn unsolicited_bytes_end_a_connection() {
    let (_folder, server, client) = pair(Mode::Excess);
    assert_correct(client.ask(&query()));
    server.set_mode(Mode::Good);
    assert_correct(client.ask(&query()));
    assert_eq!(server.connections(), 2);
}

#[test]
fn daemon_that_closes_after_each_answer() {
    let (_folder, server, client) = pair(Mode::Once);
    for count in 1..=3 {
        assert_correct(client.ask(&query()));
        server.hang_up();
        assert_eq!(server.connections(), count);
    }
}

#[test]
fn restarted_daemon_is_queried_immediately() {
    let (folder, server, client) = pair(Mode::Good);
    assert_correct(client.ask(&query()));
    drop(server);
    fs::remove_file(folder.socket()).unwrap();
    assert!(client.ask(&query()).is_none());
    let _server = Server::unix(&folder.socket(), Mode::Good).unwrap();
    assert_correct(client.ask(&query()));
}

#[test]
fn connection_lost_during_a_query_is_replaced() {
    let (_folder, server, client) = pair(Mode::Good);
    assert_correct(client.ask(&query()));
    server.set_mode(Mode::Close);
    assert!(client.ask(&query()).is_none());
    assert_eq!((server.connections(), server.requests().len()), (2, 3));
}

#[test]
fn silent_daemon_times_out() {
    let folder = Folder::new();
    let server = Server::unix(&folder.socket(), Mode::Silent).unwrap();
    let client = client(&folder, SOON);
    assert!(client.ask(&query()).is_none());
    assert!(client.ask(&query()).is_none());
    assert_eq!(server.connections(), 2);
}

#[test]
fn shorter_timeout_is_used() {
    let folder = Folder::new();
    let server = Server::unix(&folder.socket(), Mode::Silent).unwrap();
    let client = client(&folder, LONG);
    assert!(resolve_path(&client, here(), there(), CACHED_ANSWER_TIMEOUT).is_none());
    assert_eq!(server.connections(), 1);
}

#[test]
fn daemon_that_does_not_accept_times_out() {
    let folder = Folder::new();
    let _listener = UnixListener::bind(folder.socket()).unwrap();
    assert!(client(&folder, SOON).ask(&query()).is_none());
}

#[test]
fn concurrent_queries_get_their_own_answers() {
    let (_folder, server, client) = pair(Mode::Trickle);
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..10u8 {
                    let ip = [10, thread, round, 1];
                    let answer = client.ask(&Query { src: address(0, ip), dst: there(), ..Query::default() }).unwrap();
                    assert_eq!(answer.source, Some(ip.into()));
                }
            });
        }
    });
    let mut tids = tids(&server);
    tids.sort_unstable();
    assert_eq!(tids, (1..=80).collect::<Vec<_>>());
}

#[test]
fn path_for_a_route() {
    let (_folder, server, client) = pair(Mode::PathOnly);
    let paths = resolve_path(&client, here(), there(), LONG).unwrap();
    assert_eq!((paths.as_bytes().len(), paths.records()[0].flags), (72, 0x2B));
    server.set_mode(Mode::NoData);
    assert!(resolve_path(&client, here(), there(), LONG).is_none());
}

/// Returns the number of sockets that a newly started program inherits.
fn inherited_sockets() -> usize {
    let listing = std::process::Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let text = String::from_utf8(listing.stdout).unwrap();
    assert!(text.contains("->"), "{text}");
    text.matches("socket:").count()
}

#[test]
fn connections_are_not_inherited_by_exec() {
    let (_folder, _server, client) = pair(Mode::Good);
    let before = inherited_sockets();
    assert_correct(client.ask(&query()));
    assert_eq!(inherited_sockets(), before);
}

/// A child after fork(2) does not use its parent's connection.
#[test]
fn child_has_its_own_connection() {
    let (_folder, server, client) = pair(Mode::Good);
    assert_correct(client.ask(&query()));
    // SAFETY: the child calls ask(), which takes no lock and allocates nothing, and _exit().
    let child = unsafe { libc::fork() };
    if child == 0 {
        let answered = client.ask(&query()).is_some() && client.ask(&query()).is_some();
        // SAFETY: ends the child without the test program's destructors.
        unsafe { libc::_exit(if answered { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: room for a status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7);
    assert_correct(client.ask(&query()));
    assert_eq!(server.connections(), 2, "one of the parent, one of the child");
}
