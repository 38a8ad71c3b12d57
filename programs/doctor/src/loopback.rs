//! Connections from the machine to itself. Each connection is made in a child process, so that a
//! library that hangs or crashes becomes a finding.

use std::io::Read;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::codes::{Check, Problem};
use crate::devices::Port;
use crate::library::Library;
use crate::report::Report;
use crate::{rdma, rsockets};

/// Time-out for one connection, long enough for a slow machine.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Interval between two checks whether the child process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Connects this machine to itself, and sends data over the connection.
type Try = fn(Library, IpAddr) -> Result<(), String>;

/// The programming interfaces to try, with their names. Ids are tried first, because rsockets are
/// built on ids.
const KINDS: [(&str, Try); 2] = [("rdma", rdma::connect), ("rsockets", rsockets::connect)];

/// Tries each usable port with its first IPv4 and its first IPv6 address. All addresses are tried
/// at the same time, so that several time-outs take no longer than one. A port with a reported
/// problem is not tried.
pub fn check(ports: &[Port], library: Option<&Path>, report: &mut Report) {
    let mut tries: Vec<(&Port, IpAddr)> = Vec::new();
    let mut causes: Vec<String> = Vec::new();
    for port in ports.iter().filter(|port| port.is_usable()) {
        let first = |v4: bool| port.addresses.iter().find(|address| address.is_ipv4() == v4);
        match report.cause(&port.name) {
            None => tries.extend([first(true), first(false)].into_iter().flatten().map(|address| (port, *address))),
            Some(cause) if causes.iter().any(|other| other == cause) => {}
            Some(cause) => causes.push(cause.to_owned()),
        }
    }
    if tries.is_empty() && causes.is_empty() {
        causes.push(report.cause("").unwrap_or("no port can be used").to_owned());
    }
    for cause in causes {
        report.not_applicable(Check::Connection, format!("not tried: {cause}"));
    }
    if let Some(library) = library {
        run_all(&tries, library, report);
    }
}

/// Connections of one kind through one port that failed with the same message.
struct Failure<'a> {
    port: &'a Port,
    what: String,
    addresses: Vec<String>,
    message: String,
}

/// Tries all connections. Addresses of a port that fail in the same way are reported in one
/// finding.
fn run_all(tries: &[(&Port, IpAddr)], library: &Path, report: &mut Report) {
    let mut failures: Vec<Failure> = Vec::new();
    thread::scope(|scope| {
        let start = |&(port, address)| (port, address, scope.spawn(move || attempts(address, library)));
        for (port, address, thread) in tries.iter().map(start).collect::<Vec<_>>() {
            report.about(Some(&port.name));
            for (kind, result) in thread.join().unwrap_or_default() {
                let what = format!("{} ({kind}) to ", port.name);
                let Err(message) = result else {
                    report.ok(Check::Connection, format!("{what}{address}: connected, sent a message, closed"));
                    continue;
                };
                match failures.iter_mut().find(|failure| (&failure.what, &failure.message) == (&what, &message)) {
                    Some(failure) => failure.addresses.push(address.to_string()),
                    None => failures.push(Failure { port, what, addresses: vec![address.to_string()], message }),
                }
            }
        }
    });
    for Failure { port, what, addresses, message } in failures {
        report.about(Some(&port.name));
        report.problem(
            Problem::ConnectionFailed,
            format!("{what}{}: {message}", addresses.join(" and ")),
            "RDMACM_LOG=stderr rdmacm-doctor reports more if the library supports it",
        );
    }
    report.about(None);
}

/// Connects through the interfaces in [`KINDS`] until a connection fails. Returns the result of
/// each interface that was tried.
fn attempts(address: IpAddr, library: &Path) -> Vec<(&'static str, Result<(), String>)> {
    let mut results: Vec<(&str, Result<(), String>)> = Vec::new();
    for (kind, _) in KINDS {
        if results.iter().all(|(_, result)| result.is_ok()) {
            results.push((kind, in_process(kind, address, library)));
        }
    }
    results
}

/// Makes a connection in a child process. Fails with the child's message or exit status.
fn in_process(kind: &str, address: IpAddr, library: &Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program)
        .args(["--try", kind, &address.to_string()])
        .arg(library)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let status = wait(&mut child)?;
    let mut output = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        // Without output the exit status is the message.
        let _ = stdout.read_to_string(&mut output);
    }
    match (status.success(), output.trim()) {
        (true, _) => Ok(()),
        (false, "") => Err(format!("the process that tried it ended with {status}")),
        (false, message) => Err(message.to_owned()),
    }
}

/// Waits until the child has ended. Kills the child after [`TIMEOUT`] and fails, without waiting
/// for its end: a process that hangs in the kernel may not end soon.
fn wait(child: &mut Child) -> Result<ExitStatus, String> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(POLL_INTERVAL),
            Ok(None) => {
                let _ = child.kill();
                return Err(format!("no result within {} s", TIMEOUT.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Makes a connection in this process, which `in_process` has started. Prints the message if the
/// connection fails.
pub fn run(kind: &str, address: IpAddr, library: &Path) -> ExitCode {
    let found = KINDS.iter().find(|(name, _)| *name == kind).ok_or_else(|| "unknown kind".to_owned());
    match found.and_then(|(_, connect)| connect(Library::open(library)?, address)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the result of the call `name`. Fails with the message of `errno` if the result is
/// negative.
pub fn done(name: &str, result: libc::c_int) -> Result<libc::c_int, String> {
    if result >= 0 { Ok(result) } else { Err(format!("{name} failed: {}", std::io::Error::last_os_error())) }
}

/// Returns the pointer from the call `name`. Fails with the message of `errno` if the pointer is
/// NULL.
pub fn non_null<T>(name: &str, result: *mut T) -> Result<*mut T, String> {
    if result.is_null() { Err(format!("{name} failed: {}", std::io::Error::last_os_error())) } else { Ok(result) }
}
