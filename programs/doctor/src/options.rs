//! The command line.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use lexopt::Parser;
use lexopt::prelude::*;

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
    /// Make one connection. The doctor runs itself with `--try` as a child that may hang or crash.
    Try {
        kind: String,
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

/// Parses the arguments after the program's name. The error is a message for the user.
pub fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Action, lexopt::Error> {
    let mut parser = Parser::from_args(arguments);
    let mut options = Options { json: false, monitor: false, quiet: false, connections: true, library: None };
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Action::Help),
            Long("version") => return Ok(Action::Version),
            Long("json") => options.json = true,
            Long("monitor") => options.monitor = true,
            Short('q') | Long("quiet") => options.quiet = true,
            Long("no-connection") => options.connections = false,
            Long("library") => options.library = Some(parser.value()?.into()),
            Long("try") => {
                let (kind, address) = (parser.value()?.string()?, parser.value()?.parse()?);
                return Ok(Action::Try { kind, address, library: parser.value()?.into() });
            }
            _ => return Err(argument.unexpected()),
        }
    }
    Ok(Action::Examine(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Action, String> {
        parse(line.split_whitespace().map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn command_lines() {
        assert_eq!((parsed("--help"), parsed("-h")), (Ok(Action::Help), Ok(Action::Help)));
        let library = Some(PathBuf::from("/x"));
        let all = Options { json: true, monitor: false, quiet: true, connections: false, library };
        assert_eq!(parsed("--json -q --no-connection --library /x"), Ok(Action::Examine(all)));
        assert!(matches!(parsed("--monitor"), Ok(Action::Examine(Options { monitor: true, json: false, .. }))));
        assert_eq!(parsed("--library=/x"), parsed("--library /x"));
        assert!(parsed("--library").is_err() && parsed("--nonsense").is_err() && parsed("--try rdma here /x").is_err());
        assert!(matches!(parsed("--try rsockets ::1 /x"), Ok(Action::Try { kind, .. }) if kind == "rsockets"));
    }
}
