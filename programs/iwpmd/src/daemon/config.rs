//! `/etc/iwpmd.conf`: lines of `name=value`. Lines that start with `#` are comments.

/// Path of the configuration file.
pub const PATH: &str = "/etc/iwpmd.conf";

/// The settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Receive buffer of the netlink socket, in bytes.
    pub nl_sock_rbuf_size: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config { nl_sock_rbuf_size: 400 << 20 }
    }
}

/// Parses the text of the file. Invalid lines are ignored; the second value has a message for the
/// log for each.
pub fn parse(text: &str) -> (Config, Vec<String>) {
    let (mut config, mut complaints) = (Config::default(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Err(why) = read(line, &mut config) {
            complaints.push(format!("{PATH}:{number}: {why}: {}", line.escape_debug()));
        }
    }
    (config, complaints)
}

fn read(line: &str, config: &mut Config) -> Result<(), &'static str> {
    let (name, value) = line.split_once('=').ok_or("no name=value")?;
    match name.trim_end() {
        "nl_sock_rbuf_size" => {
            let value = value.trim().parse::<i32>().ok().and_then(|value| u32::try_from(value).ok());
            config.nl_sock_rbuf_size = value.filter(|&value| value > 0).ok_or("no number of bytes")?;
            Ok(())
        }
        _ => Err("unknown name"),
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
            assert_eq!(parse(text), (Config { nl_sock_rbuf_size: 4096 }, vec![]), "{text}");
        }
        assert_eq!(parse("").0.nl_sock_rbuf_size, 419_430_400);
    }

    #[test]
    fn bad_lines_are_named_and_skipped() {
        let (config, complaints) = parse(
            "nl_sock_rbuf_size\nnl_sock_rbuf_size=many\nother=1\nnl_sock_rbuf_size=-5\n=\nnl_sock_rbuf_size=9999999999\nnl_sock_rbuf_size=7",
        );
        assert_eq!(config.nl_sock_rbuf_size, 7);
        assert_eq!(complaints.len(), 6);
        assert_eq!(complaints[2], "/etc/iwpmd.conf:3: unknown name: other=1");
    }
}
