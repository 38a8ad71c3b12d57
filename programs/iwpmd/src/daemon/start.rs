//! Starts the daemon: command line, configuration, privileges, and notification of systemd by a
//! datagram, as sd_notify(3) sends it.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::ExitCode;
use std::{env, fs};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::syslog::{Facility, LogFlags, Severity, openlog, syslog};

use super::link::Link;
use super::log_queue::{self, LogQueue};
use super::{Daemon, settings, udp_sockets};
use crate::sys::process::{self, CAP_NET_ADMIN, CAP_NET_BIND_SERVICE};

/// Why the daemon does not start: a message for the log and standard error.
type Failure = String;

/// Runs the program with the given arguments. Returns its exit status.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let options = settings::parse_arguments(arguments);
    for unknown in &options.unknown {
        print_error(unknown);
    }
    if options.help {
        return print(settings::HELP);
    }
    if options.version {
        return print(concat!("iwpmd ", env!("CARGO_PKG_VERSION"), "\n"));
    }
    let _ = openlog(Some(c"iwpmd"), LogFlags::LOG_PID, Facility::LOG_DAEMON);
    match if options.systemd { run_in_foreground() } else { behind() } {
        Ok(code) => code,
        Err(failure) => {
            print_error(&failure);
            write_log(Severity::LOG_ERR, &failure);
            ExitCode::FAILURE
        }
    }
}

/// Prints `text`. Returns a failure if standard output is closed, where `print!` would panic.
fn print(text: &str) -> ExitCode {
    let printed = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
    if printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_error(text: &str) {
    let _ = writeln!(io::stderr(), "iwpmd: {text}");
}

fn run_in_foreground() -> Result<ExitCode, Failure> {
    let daemon = set_up()?;
    if let Err(error) = notify("READY=1") {
        write_log(Severity::LOG_WARNING, &format!("systemd cannot be told: {error}"));
    }
    run(daemon)
}

/// Runs the daemon in a child process. The parent exits once the daemon runs (exit status 0) or has
/// failed to start (exit status 1).
fn behind() -> Result<ExitCode, Failure> {
    let (mut outcome, mut tell) = io::pipe().map_err(|error| format!("pipe: {error}"))?;
    if !process::fork().map_err(|error| format!("fork: {error}"))? {
        drop(tell);
        let works = outcome.read_exact(&mut [0]).is_ok();
        return Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    drop(outcome);
    process::detach().map_err(|error| format!("setsid: {error}"))?;
    let daemon = set_up()?;
    process::redirect_stdio().map_err(|error| format!("/dev/null: {error}"))?;
    // Fails if the parent has ended, which does no harm.
    let _ = tell.write_all(&[0]);
    drop(tell);
    run(daemon)
}

fn run(mut daemon: Daemon) -> Result<ExitCode, Failure> {
    let signal = daemon.run().map_err(|error| format!("the kernel cannot be heard any more: {error}"))?;
    drop(daemon);
    let _ = notify("STOPPING=1");
    write_log(Severity::LOG_INFO, if signal == libc::SIGTERM { "ends: SIGTERM" } else { "ends: SIGHUP" });
    // The exit statuses of rdma-core's iwpmd: 0 after SIGTERM, the number of SIGHUP after SIGHUP.
    Ok(if signal == libc::SIGTERM { ExitCode::SUCCESS } else { ExitCode::from(libc::SIGHUP as u8) })
}

fn set_up() -> Result<Daemon, Failure> {
    let buffer_size = configured_buffer_size();
    let signals =
        process::block(&[Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1]).map_err(|e| format!("signalfd: {e}"))?;
    let udp =
        udp_sockets(&[Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]).map_err(|error| match error {
            Errno::EADDRINUSE => "UDP port 3935 is in use: there is a port mapper already".into(),
            _ => format!("UDP port 3935: {error}"),
        })?;
    let kernel = Link::netlink().map_err(|error| match error {
        Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT => "the kernel has no RDMA netlink: is ib_core loaded?".into(),
        Errno::EPERM | Errno::EACCES => "RDMA netlink needs CAP_NET_ADMIN: run iwpmd as root, or by its unit".into(),
        _ => format!("RDMA netlink: {error}"),
    })?;
    set_receive_buffer(&kernel, buffer_size);
    let limit = process::raise_descriptor_limit();
    // CAP_NET_ADMIN: future kernels may require it for each message. CAP_NET_BIND_SERVICE: needed
    // to restore mappings to ports below 1024.
    process::keep_capabilities(&[CAP_NET_ADMIN, CAP_NET_BIND_SERVICE]).map_err(|e| format!("capabilities: {e}"))?;
    // This starts a second thread, and so comes after the fork. The thread inherits the blocked
    // signals and the reduced capabilities.
    let log =
        LogQueue::start(log_queue::CAPACITY, write_log).map_err(|error| format!("a thread for the log: {error}"))?;
    let log = Box::new(move |severity, line: &str| log.push(severity, line));
    let daemon = Daemon::new(kernel, udp, Some(signals), log).map_err(|error| format!("epoll: {error}"))?;
    let version = env!("CARGO_PKG_VERSION");
    write_log(Severity::LOG_INFO, &format!("version {version} starts; descriptors for up to {limit} mappings"));
    Ok(daemon)
}

/// Returns the size of the receive buffer that the configuration file gives, or the default.
fn configured_buffer_size() -> usize {
    let bytes = fs::read(settings::PATH).unwrap_or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            write_log(Severity::LOG_WARNING, &format!("{}: {error}", settings::PATH));
        }
        Vec::new()
    });
    let (buffer_size, complaints) = settings::parse_file(&String::from_utf8_lossy(&bytes));
    for complaint in complaints {
        write_log(Severity::LOG_WARNING, &complaint);
    }
    buffer_size
}

fn set_receive_buffer(kernel: &Link, wanted: usize) {
    match kernel.set_receive_buffer(wanted) {
        Ok(room) if room >= wanted => {}
        Ok(room) => write_log(Severity::LOG_WARNING, &format!("room for {room} bytes of messages only, not {wanted}")),
        Err(error) => write_log(Severity::LOG_WARNING, &format!("no more room for messages: {error}")),
    }
}

fn write_log(severity: Severity, line: &str) {
    let _ = syslog(severity, &line.replace('\0', ""));
}

/// Sends `state` to the service manager. Does nothing if the daemon was started without
/// `NOTIFY_SOCKET`.
fn notify(state: &str) -> io::Result<()> {
    match env::var_os("NOTIFY_SOCKET") {
        Some(path) if !path.is_empty() => send(&path, state),
        _ => Ok(()),
    }
}

fn send(path: &OsStr, state: &str) -> io::Result<()> {
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_arrives_by_path_and_by_name() {
        let name = format!("iwpmd-test-{}", std::process::id());
        let path = env::temp_dir().join(&name);
        for (socket, to) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
                format!("@{name}").into(),
            ),
        ] {
            send(&to, "READY=1").unwrap();
            let mut buffer = [0; 20];
            let got = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..got], b"READY=1");
        }
        std::fs::remove_file(path).unwrap();
    }
}
