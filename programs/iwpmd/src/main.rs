//! The port mapper of iWARP devices. See iwpmd(8).

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    iwpmd::daemon::start::main(env::args_os().skip(1))
}
