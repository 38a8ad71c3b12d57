//! Checks ibacm(7): whether it accepts a connection and answers with the path of a port to itself,
//! and whether its configuration is correct. ibacm is optional: without it the paths of InfiniBand
//! come from the subnet administrator.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use base::ibacm::{HEADER_LEN, Header, PATH_DGID, PATH_RECORD_LEN, PATH_SGID, Request, TYPE_PATH};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::time::{TimeVal, TimeValLike};

use crate::codes::{Check, Warning};
use crate::devices::{CLASS, Port, read};
use crate::report::Report;

/// File with the number of ibacm's TCP port; without this file the library uses [`SOCKET`].
const PORT_FILE: &str = "/run/ibacm.port";
const SOCKET: &str = "/run/ibacm.sock";
const OPTIONS: &str = "/etc/rdma/ibacm_opts.cfg";
const ADDRESSES: &str = "/etc/rdma/ibacm_addr.cfg";

/// How long a daemon may take to accept a connection.
const PATIENCE: Duration = Duration::from_secs(2);

/// The options that `ib_acme -O` writes, and the possible values; an empty list allows any value.
const KNOWN: [(&str, &[&str]); 27] = [
    ("log_file", &[]),
    ("log_level", &["0", "1", "2"]),
    ("umad_debug_level", &["0", "1", "2"]),
    ("lock_file", &[]),
    ("addr_prot", &["acm"]),
    ("addr_timeout", NUMBER),
    ("route_prot", &["sa", "acm"]),
    ("route_timeout", NUMBER),
    ("loopback_prot", &["none", "local"]),
    ("server_port", NUMBER),
    ("server_mode", &["unix", "loop", "open"]),
    ("acme_plus_kernel_only", &[]),
    ("timeout", NUMBER),
    ("retries", NUMBER),
    ("resolve_depth", NUMBER),
    ("sa_depth", NUMBER),
    ("send_depth", NUMBER),
    ("recv_depth", NUMBER),
    ("min_mtu", NUMBER),
    ("min_rate", NUMBER),
    ("route_preload", &["none", "opensm_full_v1"]),
    ("route_data_file", &[]),
    ("addr_preload", &["none", "acm_hosts"]),
    ("addr_data_file", &[]),
    ("support_ips_in_addr_cfg", NUMBER),
    ("provider_lib_path", &[]),
    ("provider", &[]),
];
/// Stands for the possible values of an option that takes any whole number.
const NUMBER: &[&str] = &["a whole number"];

/// Checks ibacm if it runs, and its configuration files if they exist.
pub fn check(ports: &[Port], report: &mut Report) {
    let listens = [PORT_FILE, SOCKET].iter().any(|path| Path::new(path).exists());
    if listens {
        reach(ports, report);
    } else if ports.iter().any(Port::is_infiniband) {
        report.not_applicable(Check::Ibacm, "ibacm does not run: the subnet administrator is asked for paths");
    }
    if let Some(text) = read(OPTIONS) {
        options(&text, report);
    }
    if let Some(text) = read(ADDRESSES) {
        addresses(&text, |device, port| Path::new(&format!("{CLASS}/{device}/ports/{port}")).exists(), report);
    }
}

/// Connects as the library does: the port file takes precedence.
fn reach(ports: &[Port], report: &mut Report) {
    let port = read(PORT_FILE).map(|text| text.parse::<u16>());
    if let Some(Err(_)) = port {
        report.warning(
            Warning::IbacmPortFile,
            format!("{PORT_FILE} has no port number"),
            "ibacm writes it: restart ibacm, or remove the file",
        );
    }
    let number = port.and_then(Result::ok);
    let place = number.map_or_else(|| SOCKET.to_owned(), |number| format!("port {number} of {PORT_FILE}"));
    let error = match within(move || open(number)) {
        Ok(stream) => {
            report.ok(Check::Ibacm, format!("ibacm listens at {place}"));
            return paths(ports, stream, report);
        }
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::PermissionDenied => report.warning(
            Warning::IbacmForbidden,
            format!("{place} may not be opened by this user"),
            "rdma_getaddrinfo and rdma_resolve_route do without ibacm: make the socket writable for everybody",
        ),
        ErrorKind::TimedOut => report.warning(
            Warning::IbacmHangs,
            format!("ibacm does not accept connections at {place}"),
            "each rdma_getaddrinfo and rdma_resolve_route waits up to 10 seconds: restart ibacm, see /var/log/ibacm.log",
        ),
        _ => report.warning(
            Warning::IbacmNotRunning,
            format!("nothing listens at {place} ({error}): ibacm has ended"),
            format!("start ibacm, or remove {PORT_FILE} and {SOCKET}: the first one hides the second"),
        ),
    }
}

/// Asks ibacm for the path of each active InfiniBand port to itself.
fn paths(ports: &[Port], mut stream: File, report: &mut Report) {
    for port in ports.iter().filter(|port| port.active && port.is_infiniband()) {
        let Some(status) = path_status(&mut stream, port) else {
            return report.warning(
                Warning::IbacmSilent,
                "ibacm does not answer",
                "restart it (systemctl restart ibacm): each connection waits for its answer",
            );
        };
        report.about(Some(&port.name));
        if status == 0 {
            report.ok(Check::Ibacm, format!("ibacm knows paths of {}", port.name));
        } else {
            report.warning(
                Warning::IbacmNoPath,
                format!("ibacm has no path of {} to itself (status {status})", port.name),
                format!("compare {ADDRESSES} with the addresses (`ib_acme -A` makes a new one), and restart ibacm; until then each connection asks it in vain"),
            );
        }
        report.about(None);
    }
}

/// Runs `connect` in a thread, because it blocks if a daemon does not accept and its listen queue
/// is full. Fails with `TimedOut` after [`PATIENCE`], and leaves the thread running.
fn within<T: Send + 'static>(connect: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    let (sender, receiver) = mpsc::channel();
    // Nobody waits for the result any more if sending fails.
    thread::spawn(move || sender.send(connect()));
    receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

/// Returns the numbered lines of a configuration file as words, without comments.
fn lines(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let words = |line| str::split_whitespace(line).collect::<Vec<_>>();
    let numbered = text.lines().enumerate().map(move |(index, line)| (index + 1, words(line)));
    numbered.filter(|(_, words)| words.first().is_some_and(|word| !word.starts_with('#')))
}

fn options(text: &str, report: &mut Report) {
    for (number, words) in lines(text) {
        let place = format!("{OPTIONS}, line {number}");
        let (name, value) = (words[0], words.get(1).copied().unwrap_or_default());
        let Some((_, values)) = KNOWN.iter().find(|(known, _)| *known == name) else {
            report.warning(
                Warning::IbacmUnknownOption,
                format!("{place}: ibacm has no option {name}"),
                "`ib_acme -O` writes a file with all options",
            );
            continue;
        };
        let valid = match *values {
            [] => !value.is_empty(),
            NUMBER => value.parse::<i64>().is_ok(),
            words => words.contains(&value),
        };
        if !valid {
            let wanted = if values.is_empty() { "a value".to_owned() } else { values.join(", ") };
            report.warning(
                Warning::IbacmInvalidValue,
                format!("{place}: {name} cannot be \"{value}\""),
                format!("possible: {wanted}"),
            );
        } else if name == "acme_plus_kernel_only" && ["true", "yes", "1"].contains(&value) {
            report.warning(
                Warning::IbacmKernelOnly,
                format!("{place}: ibacm answers the kernel and ib_acme only"),
                "rdma_getaddrinfo does without it: remove the line, or set \"no\"",
            );
        } else if name == "server_mode" && value == "open" {
            report.warning(
                Warning::IbacmOpen,
                format!("{place}: ibacm accepts requests of other hosts"),
                "local programs need \"unix\" or \"loop\" only",
            );
        }
    }
}

/// Checks lines of the form ADDRESS DEVICE PORT PKEY.
fn addresses(text: &str, exists: impl Fn(&str, u32) -> bool, report: &mut Report) {
    for (number, words) in lines(text) {
        let place = format!("{ADDRESSES}, line {number}");
        let is_key = |key: &str| key == "default" || u16::from_str_radix(key.trim_start_matches("0x"), 16).is_ok();
        let port = words.get(2).and_then(|port| port.parse::<u32>().ok());
        let Some(port) = port.filter(|_| words.get(3).is_some_and(|key| is_key(key))) else {
            report.warning(
                Warning::IbacmBadLine,
                format!("{place} is not ADDRESS DEVICE PORT PKEY"),
                "`ib_acme -A` writes a file for this machine",
            );
            continue;
        };
        let device = words[1];
        if !exists(device, port) {
            report.about(Some(&format!("{device}/{port}")));
            report.warning(
                Warning::IbacmNoDevice,
                format!("{place}: there is no port {port} of a device {device}"),
                "ibacm ignores the line; `ib_acme -A` writes a file for this machine",
            );
            report.about(None);
        }
    }
}

/// How many seconds an answer may take: ibacm may query the fabric, and gives up after six seconds.
const ANSWER_TIME: i64 = 8;

/// Connects to ibacm's TCP port `number`, or without a number to its Unix socket.
fn open(number: Option<u16>) -> Result<File, Error> {
    let socket: OwnedFd = match number {
        Some(number) => TcpStream::connect((Ipv4Addr::LOCALHOST, number))?.into(),
        None => UnixStream::connect(SOCKET)?.into(),
    };
    setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(ANSWER_TIME))?;
    Ok(File::from(socket))
}

/// Asks ibacm for the path of a port to itself. Returns the status of the answer; `None` if no
/// answer arrives or the library would reject the answer.
fn path_status(stream: &mut File, port: &Port) -> Option<u8> {
    let mut head = [0; HEADER_LEN];
    stream.write_all(request(&gid(port)).as_bytes()).ok()?;
    stream.read_exact(&mut head).ok()?;
    let header = Header::parse(&head).ok()?;
    stream.read_exact(&mut vec![0; header.body_len]).ok()?;
    Some(header.status)
}

fn gid(port: &Port) -> [u8; 16] {
    let gid = read(&format!("{CLASS}/{}/gids/0", port.path())).and_then(|text| text.parse().ok());
    gid.unwrap_or(Ipv6Addr::UNSPECIFIED).octets()
}

/// Returns a request with a path record that has the GID as its source and its destination.
fn request(gid: &[u8; 16]) -> Request {
    let mut path = [0; PATH_RECORD_LEN];
    path[PATH_DGID..PATH_DGID + 16].copy_from_slice(gid);
    path[PATH_SGID..PATH_SGID + 16].copy_from_slice(gid);
    let mut request = Request::new(0);
    request.push(0, TYPE_PATH, &path);
    request
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::State;

    fn options_state(text: &str) -> State {
        let mut report = Report::default();
        options(text, &mut report);
        report.worst_of("ibacm")
    }

    fn addresses_state(text: &str) -> State {
        let mut report = Report::default();
        addresses(text, |device, port| device == "mlx5_0" && port == 1, &mut report);
        report.worst_of("ibacm")
    }

    #[test]
    fn options_are_checked() {
        let fine = "# server_mode shut\n\nserver_mode unix\nroute_timeout -1\nacme_plus_kernel_only no\nprovider ibacmp default\n";
        assert_eq!(options_state(fine), State::NotApplicable);
        for wrong in [
            "server_mod unix",
            "server_mode shut",
            "timeout soon",
            "timeout",
            "log_file",
            "acme_plus_kernel_only yes",
            "server_mode open",
        ] {
            assert_eq!(options_state(wrong), State::Warning, "{wrong}");
        }
    }

    #[test]
    fn addresses_are_checked() {
        assert_eq!(
            addresses_state("# node0 mlx4_0 1 default\nnode1 mlx5_0 1 default\nnode1 mlx5_0 1 0x8001\n"),
            State::NotApplicable
        );
        for wrong in [
            "node1 mlx5_0 2 default",
            "node1 mlx4_0 1 default",
            "node1 mlx5_0",
            "node1 mlx5_0 one default",
            "node1 mlx5_0 1 some",
        ] {
            assert_eq!(addresses_state(wrong), State::Warning, "{wrong}");
        }
    }

    #[test]
    fn a_daemon_that_hangs_is_not_awaited() {
        let slow: Result<(), _> = within(|| {
            loop {
                thread::park();
            }
        });
        assert_eq!(slow.map_err(|error| error.kind()), Err(ErrorKind::TimedOut));
    }

    #[test]
    fn request_has_both_gids() {
        let request = request(&[7; 16]);
        let bytes = request.as_bytes();
        assert_eq!((bytes.len(), bytes[0], bytes[1]), (88, 1, 1));
        assert_eq!((bytes[31], bytes[32], bytes[63], bytes[64]), (0, 7, 7, 0));
    }
}
