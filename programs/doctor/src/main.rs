//! rdmacm-doctor(8): reports what is missing for RDMA connections on this machine, and how to fix
//! it.
//!
//! Checks /sys, /proc and the configuration, opens the libraries as any program would, and connects
//! the machine to itself. The program is linked with none of these libraries, so that it runs even
//! if they are missing or broken.

mod codes;
mod config;
mod devices;
mod ibacm;
mod interfaces;
mod library;
mod loopback;
mod machine;
mod netdev;
mod options;
mod rdma;
mod report;
mod roce;
mod rsockets;

use std::process::ExitCode;

use nix::sys::signal::{SigHandler, Signal, signal};

use options::{Action, Options};
use report::{Report, State};

/// Exit status: there are problems.
const PROBLEMS: u8 = 1;
/// Exit status: the command line is invalid.
const USAGE_ERROR: u8 = 2;
/// Exit statuses with `--monitor`: those of Nagios plug-ins.
const MONITOR_WARNINGS: u8 = 1;
const MONITOR_PROBLEMS: u8 = 2;
const MONITOR_USAGE_ERROR: u8 = 3;

fn main() -> ExitCode {
    // Restore the default action of SIGPIPE: Rust ignores SIGPIPE, and `print!` would panic.
    // SAFETY: the default action runs no handler in this process.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
    match options::parse(std::env::args_os().skip(1)) {
        Ok(Action::Help) => {
            print!("{}", options::USAGE);
            ExitCode::SUCCESS
        }
        Ok(Action::Version) => {
            println!("rdmacm-doctor {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Ok(Action::Try { kind, address, library }) => loopback::run(&kind, address, &library),
        Ok(Action::Examine(options)) => examine(&options),
        Err(message) => {
            eprint!("rdmacm-doctor: {message}\n{}", options::USAGE);
            let monitor = std::env::args_os().any(|argument| argument == "--monitor");
            ExitCode::from(if monitor { MONITOR_USAGE_ERROR } else { USAGE_ERROR })
        }
    }
}

fn examine(options: &Options) -> ExitCode {
    let mut report = Report::new(options);
    machine::modules(&mut report);
    let devices = devices::all();
    devices::check(&devices, &mut report);
    interfaces::partitions(&devices, &mut report);
    roce::check(&devices, &mut report);
    roce::check_guids(&devices, &mut report);
    interfaces::subnets(&devices, &mut report);
    machine::nodes(&mut report);
    machine::limits(&mut report);
    config::check(&mut report);
    ibacm::check(&devices, &mut report);
    let library = library::check(options.library.as_deref(), &devices, &mut report);
    if options.connections {
        loopback::check(&devices, library.as_deref(), &mut report);
    }
    report.finish(options);
    match (report.worst(), options.monitor) {
        (State::Problem, true) => ExitCode::from(MONITOR_PROBLEMS),
        (State::Problem, false) => ExitCode::from(PROBLEMS),
        (State::Warning, true) => ExitCode::from(MONITOR_WARNINGS),
        _ => ExitCode::SUCCESS,
    }
}
