//! The command line.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::loopback::Kind;

pub const USAGE: &str = "\
usage: rdmacm-doctor [--json | --monitor] [-q] [--no-connection] [--library FILE]
  --json            print JSON
  --monitor         print one line; exit status: 0 ok, 1 warnings, 2 problems, 3 incorrect usage
  -q, --quiet       print only warnings and problems
  --no-connection   do not try connections
  --library FILE    check this librdmacm instead of the one that programs load
  -h, --help; --version
Exit status: 0 no problems (perhaps warnings), 1 problems, 2 incorrect usage.
";

/// What the command line requests.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    Help,
    Version,
    Examine(Options),
    /// For the doctor's own use: one connection, in a process that may hang or crash.
    Try {
        kind: Kind,
        address: IpAddr,
        library: PathBuf,
    },
}

/// Options of the checks and of the report.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    pub json: bool,
    pub monitor: bool,
    pub quiet: bool,
    pub connections: bool,
    pub library: Option<PathBuf>,
}

/// Parses the command line. Fails with a message.
pub fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Action, String> {
    let mut options = Options { json: false, monitor: false, quiet: false, connections: true, library: None };
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("-h" | "--help") => return Ok(Action::Help),
            Some("--version") => return Ok(Action::Version),
            Some("--json") => options.json = true,
            Some("--monitor") => options.monitor = true,
            Some("-q" | "--quiet") => options.quiet = true,
            Some("--no-connection") => options.connections = false,
            Some("--library") => {
                options.library = Some(arguments.next().ok_or("--library needs a file")?.into());
            }
            Some("--try") => return parse_try(arguments),
            _ => return Err(format!("unknown argument {}", argument.to_string_lossy())),
        }
    }
    Ok(Action::Examine(options))
}

fn parse_try(mut arguments: impl Iterator<Item = OsString>) -> Result<Action, String> {
    let mut next = || arguments.next().ok_or("--try KIND ADDRESS FILE");
    let kind = next()?.to_str().and_then(Kind::from_name).ok_or("--try: unknown kind")?;
    let address = next()?.to_str().and_then(|text| text.parse().ok()).ok_or("--try: invalid address")?;
    Ok(Action::Try { kind, address, library: next()?.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Action, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn command_lines() {
        assert_eq!((parsed("--help"), parsed("-h")), (Ok(Action::Help), Ok(Action::Help)));
        let library = Some(PathBuf::from("/x"));
        let all = Options { json: true, monitor: false, quiet: true, connections: false, library };
        assert_eq!(parsed("--json -q --no-connection --library /x"), Ok(Action::Examine(all)));
        assert!(matches!(parsed("--monitor"), Ok(Action::Examine(Options { monitor: true, json: false, .. }))));
        assert!(parsed("--library").is_err() && parsed("--nonsense").is_err() && parsed("--try rdma here /x").is_err());
        assert!(matches!(parsed("--try rsockets ::1 /x"), Ok(Action::Try { kind: Kind::Rsockets, .. })));
    }
}
