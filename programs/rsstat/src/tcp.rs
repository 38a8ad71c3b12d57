//! TCP sockets of programs under librspreload: listeners, and connections that do not use RDMA.

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::process::Process;
use crate::sock_diag::Namespace;
use crate::socket::{Address, Socket, State};

/// A line of /proc/net/tcp.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    local: SocketAddr,
    peer: SocketAddr,
    state: State,
    send_queue: u64,
    receive_queue: u64,
    inode: u64,
}

/// Adds the TCP sockets of a process that has loaded librspreload.
pub fn add_sockets(
    process: &Process,
    descriptors: &[(i32, PathBuf)],
    kernel: &mut Namespace,
    sockets: &mut Vec<Socket>,
) {
    let maps = fs::read_to_string(process.folder.join("maps")).unwrap_or_default();
    if !maps.contains("/librspreload") {
        return;
    }
    let mut lines = HashMap::new();
    for file in ["net/tcp", "net/tcp6"] {
        let text = fs::read_to_string(process.folder.join(file)).unwrap_or_default();
        lines.extend(text.lines().filter_map(parse).map(|line| (line.inode, line)));
    }
    let end = lowest_library_fd(&fs::read_to_string(process.folder.join("limits")).unwrap_or_default());
    let mut found: Vec<(i32, &Line)> = descriptors
        .iter()
        .filter_map(|(fd, file)| Some((*fd, inode(file).and_then(|inode| lines.get(&inode))?)))
        .collect();
    found.sort_unstable_by_key(|(fd, _)| *fd);
    for (fd, line) in programs(&found, end) {
        sockets.push(Socket {
            pid: process.pid,
            command: process.command.clone(),
            fd,
            state: line.state,
            local: Address::Ip(line.local),
            peer: Address::Ip(line.peer),
            // For a listener these are numbers of connections.
            receive_queue: Some(line.receive_queue).filter(|_| line.state != State::Listening),
            send_queue: Some(line.send_queue).filter(|_| line.state != State::Listening),
            details: None,
            tcp: kernel.counters(&process.folder, line.inode),
        });
    }
}

/// Returns those sockets in `found` that are the program's own. `found` holds all TCP sockets of a
/// process, ordered by descriptor. The library uses descriptors from `end` on for copies of the
/// program's sockets, and for connections to the program's own listeners. These connections stand
/// in for accepted rsockets, which are listed themselves.
fn programs<'a>(found: &[(i32, &'a Line)], end: i32) -> Vec<(i32, &'a Line)> {
    let ends: HashMap<_, _> = found.iter().map(|(fd, line)| ((line.local, line.peer), *fd)).collect();
    let lowest: HashMap<_, _> = found.iter().rev().map(|(fd, line)| (line.inode, *fd)).collect();
    let is_librarys = |(fd, line): &(i32, &Line)| {
        let is_internal = ends.get(&(line.peer, line.local)).is_some_and(|other| (*fd).max(*other) >= end);
        is_internal || *fd >= end && lowest.get(&line.inode).is_some_and(|lowest| lowest < fd)
    };
    found.iter().filter(|socket| !is_librarys(socket)).copied().collect()
}

/// Returns the lowest descriptor that the library uses for itself, given the text of
/// /proc/PID/limits.
fn lowest_library_fd(limits: &str) -> i32 {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let mut words = line.unwrap_or_default().split_whitespace();
    // "unlimited" is no number.
    let mut limit = || words.next().and_then(|word| word.parse().ok()).unwrap_or(u64::MAX);
    // At most 1024: the soft limit may have been lower when the library read it.
    base::private::lowest_library_fd(limit(), limit()).min(1024)
}

pub(crate) fn inode(file: &Path) -> Option<u64> {
    file.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Parses a line of /proc/net/tcp or tcp6. Returns `None` for the header line, and for a socket in
/// no [`State`].
fn parse(line: &str) -> Option<Line> {
    let mut words = line.split_whitespace().skip(1);
    let (local, peer) = (address(words.next()?)?, address(words.next()?)?);
    let state = match words.next()? {
        "01" => State::Connected,
        "0A" => State::Listening,
        // The socket is not yet or no longer connected: SYN_SENT, SYN_RECV, TIME_WAIT or CLOSE.
        "02" | "03" | "06" | "07" => return None,
        _ => State::Closing,
    };
    let (send, receive) = words.next()?.split_once(':')?;
    let (send_queue, receive_queue) = (u64::from_str_radix(send, 16).ok()?, u64::from_str_radix(receive, 16).ok()?);
    let inode = words.nth(4)?.parse().ok()?;
    Some(Line { local, peer, state, send_queue, receive_queue, inode })
}

/// Parses an IP address and a port in hexadecimal, separated by a colon. The IP address consists of
/// 32-bit words in this machine's byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |start: usize| u32::from_str_radix(ip.get(start..start + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            Ipv6Addr::from(*words.as_flattened().first_chunk::<16>()?).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn lines_of_the_kernel() {
        let line =
            "   1: 0100007F:1B58 0200000A:0050 01 00000010:00000020 00:00000000 00000000  1000  0 12345 1 0 100 0";
        let parsed = parse(line).unwrap();
        assert_eq!(
            (parsed.local.to_string(), parsed.peer.to_string()),
            ("127.0.0.1:7000".into(), "10.0.0.2:80".into())
        );
        let Line { state, send_queue, receive_queue, inode, .. } = parsed;
        assert_eq!((state, send_queue, receive_queue, inode), (State::Connected, 16, 32, 12345));
        assert_eq!(parse("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid"), None);
        assert_eq!(address("0000000000000000FFFF00000100007F:0050").unwrap().to_string(), "127.0.0.1:80");
        assert_eq!(address("00000000000000000000000001000000:0050").unwrap().to_string(), "[::1]:80");
        assert_eq!((address("0000:1"), address("x")), (None, None));
    }

    #[test]
    fn the_programs_sockets() {
        let line = |local: &str, peer: &str, inode| Line {
            local: local.parse().unwrap(),
            peer: peer.parse().unwrap(),
            state: State::Connected,
            send_queue: 0,
            receive_queue: 0,
            inode,
        };
        let listener = line("10.0.0.1:80", "0.0.0.0:0", 1);
        let client = line("10.0.0.1:4000", "10.0.0.2:80", 2);
        let many = line("10.0.0.1:4001", "10.0.0.2:80", 3);
        let (token, accepted) = (line("10.0.0.1:5000", "10.0.0.1:80", 4), line("10.0.0.1:80", "10.0.0.1:5000", 5));
        let found = [(3, &listener), (4, &client), (5, &accepted), (7, &client), (1024, &token), (1025, &client)];
        let fds = |found: &[(i32, &Line)]| programs(found, 1024).iter().map(|(fd, _)| *fd).collect::<Vec<_>>();
        assert_eq!(fds(&found), [3, 4, 7], "neither a copy nor a connection inside the process");
        let found = [(4, &client), (1024, &token), (1025, &accepted), (1026, &many), (1027, &listener)];
        assert_eq!(fds(&found), [4, 1026, 1027], "a program with many descriptors");
    }

    #[test]
    fn the_librarys_own_descriptors() {
        let limits = "Limit                     Soft Limit           Hard Limit\nMax open files            512                  4096   files\n";
        assert_eq!((lowest_library_fd(limits), lowest_library_fd("")), (512, 1024));
        assert_eq!((inode(Path::new("socket:[17]")), inode(Path::new("/dev/null"))), (Some(17), None));
    }
}
