//! The command line, and the configuration file `/etc/iwpmd.conf` with lines of the form
//! `name=value`. Lines that start with `#` are comments.

use std::ffi::OsString;

use lexopt::Parser;
use lexopt::prelude::*;

/// Path of the configuration file.
pub const PATH: &str = "/etc/iwpmd.conf";

/// The receive buffer of the netlink socket in bytes, unless the file sets another size.
const DEFAULT_BUFFER_SIZE: usize = 400 << 20;

/// Parses the text of the file. Returns the size of the receive buffer (`nl_sock_rbuf_size`, the
/// only setting), and a message for the log for each invalid line. Invalid lines are ignored.
pub fn parse_file(text: &str) -> (usize, Vec<String>) {
    let (mut buffer_size, mut complaints) = (DEFAULT_BUFFER_SIZE, Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match read(line) {
            Ok(size) => buffer_size = size,
            Err(why) => complaints.push(format!("{PATH}:{number}: {why}: {}", line.escape_debug())),
        }
    }
    (buffer_size, complaints)
}

fn read(line: &str) -> Result<usize, &'static str> {
    let (name, value) = line.split_once('=').ok_or("no name=value")?;
    if name.trim_end() != "nl_sock_rbuf_size" {
        return Err("unknown name");
    }
    // setsockopt(2) takes an int.
    let value = value.trim().parse::<i32>().ok().filter(|&value| value > 0);
    value.map(|value| value as usize).ok_or("no number of bytes")
}

/// The options on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `-s`: stay in the foreground and notify systemd.
    pub systemd: bool,
    /// `-h`: print the help.
    pub help: bool,
    /// `-V`: print the version.
    pub version: bool,
    /// Error messages for unknown options. Like rdma-core's iwpmd, the daemon starts in spite of
    /// them, so that the unit file of one daemon can start the other.
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
pub fn parse_arguments(arguments: impl Iterator<Item = OsString>) -> Options {
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

    #[test]
    fn good_lines() {
        for text in [
            "nl_sock_rbuf_size=4096",
            "# x\n\n  nl_sock_rbuf_size = 4096 \n",
            "nl_sock_rbuf_size=1\nnl_sock_rbuf_size= 4096",
        ] {
            assert_eq!(parse_file(text), (4096, vec![]), "{text}");
        }
        assert_eq!(parse_file("").0, 419_430_400);
    }

    #[test]
    fn bad_lines_are_named_and_skipped() {
        let (buffer_size, complaints) = parse_file(
            "nl_sock_rbuf_size\nnl_sock_rbuf_size=many\nother=1\nnl_sock_rbuf_size=-5\n=\nnl_sock_rbuf_size=9999999999\nnl_sock_rbuf_size=7",
        );
        assert_eq!(buffer_size, 7);
        assert_eq!(complaints.len(), 6);
        assert_eq!(complaints[2], "/etc/iwpmd.conf:3: unknown name: other=1");
    }

    fn parsed(line: &str) -> Options {
        parse_arguments(line.split_whitespace().map(OsString::from))
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
