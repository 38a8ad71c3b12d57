//! The command line.

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

/// Parses the arguments after the program's name.
pub fn parse(arguments: impl Iterator<Item = String>) -> Options {
    let mut options = Options::default();
    for argument in arguments {
        if argument == "--" {
            break;
        }
        match argument.strip_prefix("--") {
            // As in getopt_long(3), unambiguous prefixes are accepted.
            Some(long) if "systemd".starts_with(long) => options.systemd = true,
            Some(long) if "help".starts_with(long) => options.help = true,
            Some(long) if "version".starts_with(long) => options.version = true,
            Some(_) => options.unknown.push(format!("unrecognized option '{argument}'")),
            None => short(argument.strip_prefix('-').unwrap_or_default(), &mut options),
        }
    }
    options
}

fn short(letters: &str, options: &mut Options) {
    for letter in letters.chars() {
        match letter {
            's' => options.systemd = true,
            'h' => options.help = true,
            'V' => options.version = true,
            other => options.unknown.push(format!("invalid option -- '{other}'")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Options {
        parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn options() {
        let systemd = Options { systemd: true, ..Options::default() };
        for line in ["-s", "--systemd", "--sys", "-ss", "extra -s", "-s -- -x"] {
            assert_eq!(parsed(line), systemd, "{line}");
        }
        assert!(parsed("-h").help && parsed("--help").help && parsed("-sV").version && parsed("--version").version);
        assert_eq!(parsed("extra"), Options::default());
        assert_eq!(parsed("-x --bogus").unknown, ["invalid option -- 'x'", "unrecognized option '--bogus'"]);
    }
}
