//! The command line.

use std::ffi::OsString;

use lexopt::Parser;
use lexopt::prelude::*;

/// The options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `-s`: stay in the foreground and notify systemd.
    pub systemd: bool,
    /// `-h`.
    pub help: bool,
    /// `-V`.
    pub version: bool,
    /// Error messages for unknown options. As in the reference, they do not keep the daemon from
    /// starting: a service that starts one daemon can start the other.
    pub unknown: Vec<String>,
}

/// What `--help` prints.
pub const HELP: &str = "\
usage: iwpmd [-s]
Port mapper of iWARP devices: see iwpmd(8).

  -s, --systemd  stay in the foreground and tell systemd when ready
  -h, --help     print this
  -V, --version  print the version
";

/// Parses the arguments after the program's name. Long options may be abbreviated, as in
/// getopt_long(3).
pub fn parse(arguments: impl Iterator<Item = OsString>) -> Options {
    let mut options = Options::default();
    let mut parser = Parser::from_args(arguments);
    let abbreviates = |name: &str, option: &str| !name.is_empty() && option.starts_with(name);
    loop {
        match parser.next() {
            Ok(Some(Short('s'))) => options.systemd = true,
            Ok(Some(Short('h'))) => options.help = true,
            Ok(Some(Short('V'))) => options.version = true,
            Ok(Some(Long(name))) if abbreviates(name, "systemd") => options.systemd = true,
            Ok(Some(Long(name))) if abbreviates(name, "help") => options.help = true,
            Ok(Some(Long(name))) if abbreviates(name, "version") => options.version = true,
            Ok(Some(Value(_))) => {}
            Ok(Some(other)) => options.unknown.push(other.unexpected().to_string()),
            Ok(None) => return options,
            Err(error) => options.unknown.push(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Options {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn options() {
        let systemd = Options { systemd: true, ..Options::default() };
        for line in ["-s", "--systemd", "--sys", "-ss", "extra -s", "-s -- -x"] {
            assert_eq!(parsed(line), systemd, "{line}");
        }
        assert!(parsed("-h").help && parsed("--help").help && parsed("-sV").version && parsed("--version").version);
        assert_eq!(parsed("extra"), Options::default());
        assert_eq!(parsed("-x --bogus").unknown, ["invalid option '-x'", "invalid option '--bogus'"]);
    }
}
