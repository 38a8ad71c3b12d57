//! The command line.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use lexopt::Parser;
use lexopt::prelude::*;

use crate::socket::{Socket, State};

pub const USAGE: &str = "\
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

/// What is listed, and how.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub processes: Vec<u32>,
    pub listening: bool,
    pub connected: bool,
    pub extended: bool,
    pub json: bool,
    pub watch: Option<Duration>,
}

impl Options {
    /// Parses the arguments after the program's name. If the arguments request the help or the
    /// version, prints the text and returns `None`.
    pub fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Option<Options>, lexopt::Error> {
        let mut options = Options::default();
        let mut parser = Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Short('l') | Long("listening") => options.listening = true,
                Short('c') | Long("connected") => options.connected = true,
                Short('e') | Long("extended") => options.extended = true,
                Short('j') | Long("json") => options.json = true,
                Short('w') | Long("watch") => options.watch = Some(seconds(&mut parser)?),
                Short('h') | Long("help") => {
                    print!("{USAGE}");
                    return Ok(None);
                }
                Short('V') | Long("version") => {
                    println!("rsstat (rdmacm-rs) {}", env!("CARGO_PKG_VERSION"));
                    return Ok(None);
                }
                Value(process) => options.processes.push(process.parse()?),
                _ => return Err(argument.unexpected()),
            }
        }
        Ok(Some(options))
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

/// Returns the interval of `-w`: the joined value, the next argument if it is a number, or 1
/// second.
fn seconds(parser: &mut Parser) -> Result<Duration, lexopt::Error> {
    let is_number = |next: &OsStr| next.to_str().is_some_and(|next| next.parse::<f64>().is_ok());
    let given = parser.optional_value().or_else(|| parser.try_raw_args()?.next_if(is_number));
    given.unwrap_or_else(|| OsString::from("1")).parse_with(interval)
}

fn interval(seconds: &str) -> Result<Duration, &'static str> {
    let seconds = seconds.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|interval| *interval >= Duration::from_millis(10)).ok_or("not a number of seconds from 0.01 on")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Options>, lexopt::Error> {
        Options::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn options_and_processes() {
        let options = parse("-l --json 17 4 -w 0.5").unwrap().unwrap();
        assert_eq!((options.listening, options.json, options.processes), (true, true, vec![17, 4]));
        assert_eq!(options.watch, Some(Duration::from_millis(500)));
        let watch = |line| parse(line).unwrap().unwrap().watch;
        assert_eq!((watch("-w -e"), watch("--watch=2")), (Some(Duration::from_secs(1)), Some(Duration::from_secs(2))));
    }

    #[test]
    fn wrong_options_are_reported() {
        assert!(matches!(parse("-h"), Ok(None)));
        for line in ["--nothing", "x", "--watch=0", "--watch=-1", "--watch=nan", "-w 1e300"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
