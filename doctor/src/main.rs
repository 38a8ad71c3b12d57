//! rdmacm-doctor(8): says what is missing for RDMA connections on this machine, and what to do about it.
//!
//! Looks at what the kernel shows in /sys and /proc and at the configuration, opens the libraries as any program would, and tries
//! connections from the machine to itself. It is linked with none of the libraries, so that it runs whatever is wrong with them.

mod config;
mod devices;
mod library;
mod limits;
mod loopback;
mod machine;
mod netdev;
mod options;
mod rdma;
mod report;
mod rsockets;

use std::process::ExitCode;

use options::{Action, Options};
use report::{Report, State};

/// What it is to the caller that something is wrong.
const PROBLEMS: u8 = 1;
/// What it was called with makes no sense.
const WRONG_USE: u8 = 2;
/// With `--monitor`, as the plug-ins of Nagios and its like tell it.
const MONITOR_WARNINGS: u8 = 1;
const MONITOR_PROBLEMS: u8 = 2;
const MONITOR_WRONG_USE: u8 = 3;

fn main() -> ExitCode {
    match options::parse(std::env::args_os().skip(1)) {
        Ok(Action::Help) => {
            print!("{}", options::USAGE);
            ExitCode::SUCCESS
        }
        Ok(Action::Version) => {
            println!("rdmacm-doctor {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Ok(Action::Try { kind, address, library }) => loopback::run(kind, address, &library),
        Ok(Action::Examine(options)) => examine(&options),
        Err(message) => {
            eprint!("rdmacm-doctor: {message}\n{}", options::USAGE);
            let monitors = std::env::args_os().any(|argument| argument == "--monitor");
            ExitCode::from(if monitors { MONITOR_WRONG_USE } else { WRONG_USE })
        }
    }
}

fn examine(options: &Options) -> ExitCode {
    let mut report = Report::default();
    machine::modules(&mut report);
    let devices = devices::all();
    devices::check(&devices, &mut report);
    machine::nodes(&mut report);
    limits::check(&mut report);
    config::check(&mut report);
    let loaded = library::check(options.library.as_deref(), &devices, &mut report);
    if options.connections {
        loopback::check(&devices, loaded, &mut report);
    }
    report.print(options);
    match (report.worst(), options.monitor) {
        (State::Problem, true) => ExitCode::from(MONITOR_PROBLEMS),
        (State::Problem, false) => ExitCode::from(PROBLEMS),
        (State::Warning, true) => ExitCode::from(MONITOR_WARNINGS),
        _ => ExitCode::SUCCESS,
    }
}
