//! The command line.

use std::process::ExitCode;
use std::time::Duration;

use crate::socket::{Socket, State};

const USAGE: &str = "\
usage: rsstat [OPTION]... [PID]...
Lists the rsockets of all processes, or of these; of the own user's unless root calls it.

  -l, --listening        only listening sockets
  -c, --connected        only connections
  -e, --extended         bytes and messages, buffers, waits, QP numbers
  -j, --json             one JSON object, for programs
  -w, --watch [SECONDS]  again and again; every second if no number is given
  -h, --help             show this help
  -V, --version          show the version
";

/// See the module.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub processes: Vec<u32>,
    pub listening: bool,
    pub connected: bool,
    pub extended: bool,
    pub json: bool,
    pub watch: Option<Duration>,
}

/// Why the program ends before it has done anything.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Help,
    Version,
    Wrong(String),
}

impl End {
    /// Prints the help, the version, or what is wrong.
    pub fn report(self) -> ExitCode {
        match self {
            End::Help => print!("{USAGE}"),
            End::Version => println!("rsstat (rdmacm-rs) {}", env!("CARGO_PKG_VERSION")),
            End::Wrong(what) => {
                eprint!("rsstat: {what}\n{USAGE}");
                return ExitCode::from(2);
            }
        }
        ExitCode::SUCCESS
    }
}

impl Options {
    /// Parses the arguments after the program's name.
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Options, End> {
        let mut options = Options::default();
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "-l" | "--listening" => options.listening = true,
                "-c" | "--connected" => options.connected = true,
                "-e" | "--extended" => options.extended = true,
                "-j" | "--json" => options.json = true,
                "-w" | "--watch" => {
                    let seconds = arguments.next_if(|next| next.parse::<f64>().is_ok());
                    options.watch = Some(interval(seconds.as_deref().unwrap_or("1"))?);
                }
                "-h" | "--help" => return Err(End::Help),
                "-V" | "--version" => return Err(End::Version),
                other => match (other.strip_prefix("--watch="), other.parse()) {
                    (Some(seconds), _) => options.watch = Some(interval(seconds)?),
                    (None, Ok(process)) => options.processes.push(process),
                    (None, Err(_)) => return Err(End::Wrong(format!("unknown option or process: {other}"))),
                },
            }
        }
        Ok(options)
    }

    /// Returns whether the socket is to be listed.
    pub fn shows(&self, socket: &Socket) -> bool {
        match socket.state {
            State::Listening => self.listening || !self.connected,
            State::Connected | State::Closing => self.connected || !self.listening,
            State::Datagram => !self.connected && !self.listening,
        }
    }
}

fn interval(seconds: &str) -> Result<Duration, End> {
    seconds
        .parse()
        .ok()
        .and_then(|seconds: f64| Duration::try_from_secs_f64(seconds).ok())
        .filter(|interval| *interval >= Duration::from_millis(10))
        .ok_or_else(|| End::Wrong(format!("not a number of seconds: {seconds}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, End> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_and_processes() {
        let options = parse("-l --json 17 4 -w 0.5").unwrap();
        assert_eq!((options.listening, options.json, options.processes), (true, true, vec![17, 4]));
        assert_eq!(options.watch, Some(Duration::from_millis(500)));
        assert_eq!(parse("-w -e").unwrap().watch, Some(Duration::from_secs(1)));
        assert_eq!(parse("--watch=2").unwrap().watch, Some(Duration::from_secs(2)));
    }

    #[test]
    fn wrong_options_are_reported() {
        assert_eq!(parse("-h"), Err(End::Help));
        for line in ["--nothing", "x", "--watch=0", "--watch=-1", "--watch=nan", "-w 1e300"] {
            assert!(matches!(parse(line), Err(End::Wrong(_))), "{line}");
        }
    }
}
