//! From the command line to the running daemon.

use std::fs;
use std::io::{self, Read, Write};
use std::process::ExitCode;

use super::config::{self, Config};
use super::options;
use super::{Addresses, Daemon, notify, udp_sockets};
use crate::iwpm::engine::Level;
use crate::sys::process::{self, CAP_NET_ADMIN, CAP_NET_BIND_SERVICE, Signals};
use crate::sys::sockets::KernelSocket;

/// Why it does not start, for people.
type Failure = String;

/// The program.
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    let options = options::parse(arguments);
    for unknown in &options.unknown {
        complain(unknown);
    }
    if options.help {
        return print(options::HELP);
    }
    if options.version {
        return print(concat!("iwpmd ", env!("CARGO_PKG_VERSION"), "\n"));
    }
    process::give_memory_back();
    process::open_log(c"iwpmd");
    match if options.systemd { in_front() } else { behind() } {
        Ok(code) => code,
        Err(failure) => {
            complain(&failure);
            write_log(Level::Error, &failure);
            ExitCode::FAILURE
        }
    }
}

/// Not by print!, which panics where nobody reads.
fn print(text: &str) -> ExitCode {
    let printed = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
    if printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "iwpmd: {text}");
}

fn in_front() -> Result<ExitCode, Failure> {
    let daemon = set_up()?;
    if let Err(error) = notify::notify("READY=1") {
        write_log(Level::Warning, &format!("systemd cannot be told: {error}"));
    }
    run(daemon)
}

/// The program that was started ends when the daemon works, or does not: so whoever started it knows.
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
    process::silence().map_err(|error| format!("/dev/null: {error}"))?;
    // Nobody may be waiting any more.
    let _ = tell.write_all(&[0]);
    drop(tell);
    run(daemon)
}

fn run(mut daemon: Daemon) -> Result<ExitCode, Failure> {
    let signal = daemon.run().map_err(|error| format!("the kernel cannot be heard any more: {error}"))?;
    drop(daemon);
    let _ = notify::notify("STOPPING=1");
    write_log(Level::Info, if signal == libc::SIGTERM { "ends: SIGTERM" } else { "ends: SIGHUP" });
    // As the reference ends: with 0 for SIGTERM, and the number of SIGHUP for that.
    Ok(if signal == libc::SIGTERM { ExitCode::SUCCESS } else { ExitCode::from(libc::SIGHUP as u8) })
}

fn set_up() -> Result<Daemon, Failure> {
    let config = configuration();
    let signals = Signals::take(&[libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1]).map_err(|e| format!("signalfd: {e}"))?;
    let udp = udp_sockets(Addresses::ALL).map_err(|error| match error.get() {
        libc::EADDRINUSE => "UDP port 3935 is in use: there is a port mapper already".into(),
        _ => format!("UDP port 3935: {error}"),
    })?;
    let kernel = KernelSocket::netlink().map_err(|error| match error.get() {
        libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT => "the kernel has no RDMA netlink: is ib_core loaded?".into(),
        libc::EPERM | libc::EACCES => "RDMA netlink needs CAP_NET_ADMIN: run iwpmd as root, or by its unit".into(),
        _ => format!("RDMA netlink: {error}"),
    })?;
    set_room(&kernel, config);
    let limit = process::raise_descriptor_limit();
    // The kernel may ask for that of any message in future versions, and for ports below 1024 that it had without a mapping.
    process::keep_capabilities(&[CAP_NET_ADMIN, CAP_NET_BIND_SERVICE]).map_err(|e| format!("capabilities: {e}"))?;
    let mut daemon = Daemon::with(kernel, udp, Box::new(write_log)).map_err(|error| format!("epoll: {error}"))?;
    daemon.take_signals(signals).map_err(|error| format!("epoll: {error}"))?;
    let version = env!("CARGO_PKG_VERSION");
    write_log(Level::Info, &format!("version {version} starts; descriptors for up to {limit} mappings"));
    Ok(daemon)
}

fn configuration() -> Config {
    let text = match fs::read(config::PATH) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => {
            write_log(Level::Warning, &format!("{}: {error}", config::PATH));
            String::new()
        }
    };
    let (config, complaints) = config::parse(&text);
    for complaint in complaints {
        write_log(Level::Warning, &complaint);
    }
    config
}

fn set_room(kernel: &KernelSocket, config: Config) {
    let wanted = config.nl_sock_rbuf_size;
    match kernel.set_room(wanted) {
        Ok(room) if room >= wanted => {}
        Ok(room) => write_log(Level::Warning, &format!("room for {room} bytes of messages only, not {wanted}")),
        Err(error) => write_log(Level::Warning, &format!("no more room for messages: {error}")),
    }
}

fn write_log(level: Level, line: &str) {
    let priority = match level {
        Level::Error => libc::LOG_ERR,
        Level::Warning => libc::LOG_WARNING,
        Level::Info => libc::LOG_INFO,
    };
    process::log(priority, line);
}
