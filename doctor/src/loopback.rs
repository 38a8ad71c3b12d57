//! Connections from the machine to itself, each in a process of its own: a library that hangs or crashes is a finding.

use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::devices::Port;
use crate::library::Library;
use crate::report::Report;
use crate::{rdma, rsockets};

/// For one connection, on a slow machine too.
const LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at the process.
const PAUSE: Duration = Duration::from_millis(20);

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Rdma,
    Rsockets,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Rdma => "rdma",
            Kind::Rsockets => "rsockets",
        }
    }

    pub fn from_name(name: &str) -> Option<Kind> {
        [Kind::Rdma, Kind::Rsockets].into_iter().find(|kind| kind.name() == name)
    }
}

/// Tries each kind over each port that has an address: its first ones of IPv4 and IPv6.
pub fn check(ports: &[Port], library: Option<PathBuf>, report: &mut Report) {
    let Some(library) = library else {
        return report.not_applicable("connection", "not tried: there is no library to try it with");
    };
    let mut tried = false;
    for port in ports {
        let first = |v4: bool| port.addresses.iter().find(|address| address.is_ipv4() == v4);
        for address in [first(true), first(false)].into_iter().flatten() {
            for kind in [Kind::Rdma, Kind::Rsockets] {
                tried = true;
                attempt(kind, port, *address, &library, report);
            }
        }
    }
    if !tried {
        report.not_applicable("connection", "not tried: no RDMA device has an IP address");
    }
}

fn attempt(kind: Kind, port: &Port, address: IpAddr, library: &Path, report: &mut Report) {
    let what = format!("{} ({}) to {address}", port.name, kind.name());
    match in_process(kind, address, library) {
        Ok(()) => report.ok("connection", format!("{what}: connected, sent a message, closed")),
        Err(message) => report.problem(
            "connection",
            format!("{what}: {message}"),
            "see above for what may be the reason; RDMACM_LOG=stderr rdmacm-doctor tells more with the library that knows it",
        ),
    }
}

fn in_process(kind: Kind, address: IpAddr, library: &Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program)
        .args(["--try", kind.name(), &address.to_string()])
        .arg(library)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let status = wait(&mut child)?;
    let mut said = String::new();
    if let Some(mut output) = child.stdout.take() {
        // Without words the status has to do.
        let _ = output.read_to_string(&mut said);
    }
    match (status.success(), said.trim()) {
        (true, _) => Ok(()),
        (false, "") => Err(format!("the program that tried it ended with {status}")),
        (false, said) => Err(said.to_owned()),
    }
}

fn wait(child: &mut Child) -> Result<ExitStatus, String> {
    let end = Instant::now() + LIMIT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < end => thread::sleep(PAUSE),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it hangs: no result after {} seconds", LIMIT.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// In the process of its own.
pub fn run(kind: Kind, address: IpAddr, library: &Path) -> ExitCode {
    let result = Library::open(library).and_then(|library| match kind {
        Kind::Rdma => rdma::connect(library, address),
        Kind::Rsockets => rsockets::connect(library, address),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Functions of a library by their names: `functions!(Name { function(argument types) -> result; … })`.
macro_rules! functions {
    ($type:ident { $($name:ident($($argument:ty),*) -> $result:ty;)* }) => {
        #[derive(Clone, Copy)]
        struct $type {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $type {
            /// Those that are there; the name of one that is not.
            ///
            /// # Safety
            /// The functions are of these types.
            unsafe fn load(library: $crate::library::Library) -> Result<$type, String> {
                Ok($type {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        let name = std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default();
                        let found = library.symbol(name).ok_or(concat!("there is no ", stringify!($name)))?;
                        // SAFETY: the caller's word.
                        unsafe {
                            std::mem::transmute::<std::ptr::NonNull<std::ffi::c_void>,
                                unsafe extern "C" fn($($argument),*) -> $result>(found)
                        }
                    },)*
                })
            }
        }
    };
}

pub(crate) use functions;

/// The result of a call that leaves errno.
pub fn done(name: &str, result: libc::c_int) -> Result<libc::c_int, String> {
    if result >= 0 { Ok(result) } else { Err(format!("{name} failed: {}", std::io::Error::last_os_error())) }
}

/// As [`done`], for pointers.
pub fn made<T>(name: &str, result: *mut T) -> Result<*mut T, String> {
    if result.is_null() { Err(format!("{name} failed: {}", std::io::Error::last_os_error())) } else { Ok(result) }
}
