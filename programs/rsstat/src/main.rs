//! rsstat: lists the rsockets of the machine's processes. See rsstat(8).
//!
//! It reads the tables that librdmacm keeps in shared memory (`base::socket_table`), and for
//! programs under librspreload the kernel's list of TCP connections. The listed processes run no
//! code for rsstat.

mod options;
mod output;
mod process;
mod sock_diag;
mod socket;
mod tcp;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::thread;

use options::{Options, USAGE};
use socket::Socket;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args_os().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprint!("rsstat: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the pipe, which is no failure.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rsstat: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    let mut out = io::stdout().lock();
    loop {
        let sockets = list(options)?;
        if options.json {
            output::json(&mut out, &sockets)?;
        } else {
            if options.watch.is_some() {
                output::clear(&mut out)?;
            }
            output::text(&mut out, &sockets, options.extended)?;
        }
        out.flush()?;
        let Some(interval) = options.watch else { return Ok(()) };
        thread::sleep(interval);
    }
}

/// Returns the sockets of all processes that this user may inspect, or of those whose PIDs are in
/// the options.
fn list(options: &Options) -> io::Result<Vec<Socket>> {
    let mut sockets = Vec::new();
    let mut kernel = sock_diag::Namespace::default();
    for process in process::all(&options.processes)? {
        let descriptors = process.descriptors();
        process.add_rsockets(&descriptors, &mut sockets);
        tcp::add_sockets(&process, &descriptors, &mut kernel, &mut sockets);
    }
    sockets.retain(|socket| options.shows(socket));
    Ok(sockets)
}
