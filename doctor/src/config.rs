//! Configuration files.

use std::fs;
use std::path::Path;

use crate::devices::entries;
use crate::report::Report;

const RSOCKET: &str = "/etc/rdma/rsocket";
/// The files of it (rsocket(7)).
const NUMBERS: [&str; 11] = [
    "mem_default",
    "wmem_default",
    "sqsize_default",
    "rqsize_default",
    "inline_default",
    "iomap_size",
    "polling_time",
    "dgram_any_address",
    "dgram_path_lifetime",
    "wake_up_interval",
    "grow_limit",
];

pub fn check(report: &mut Report) {
    rsocket(report);
    environment(report);
}

fn rsocket(report: &mut Report) {
    if !Path::new(RSOCKET).is_dir() {
        return report.ok("configuration", format!("{RSOCKET} is not there: rsockets use their built-in sizes"));
    }
    let mut good = true;
    for name in entries(RSOCKET) {
        let path = format!("{RSOCKET}/{name}");
        match fs::read_to_string(&path) {
            _ if !NUMBERS.contains(&name.as_str()) => {
                good = false;
                report.warning(
                    "configuration",
                    format!("{path} means nothing to rsockets"),
                    "see rsocket(7) for the names",
                );
            }
            Ok(text) if text.split_whitespace().next().is_some_and(|word| word.parse::<u32>().is_ok()) => {}
            Ok(_) => {
                good = false;
                report.warning(
                    "configuration",
                    format!("{path} does not begin with a number: it is ignored"),
                    "see rsocket(7)",
                );
            }
            Err(error) => {
                good = false;
                report.warning(
                    "configuration",
                    format!("{path} cannot be read: {error}"),
                    "make it readable for everybody",
                );
            }
        }
    }
    if good {
        report.ok("configuration", format!("the files of {RSOCKET} are numbers"));
    }
}

/// What programs started from here have in their environment.
fn environment(report: &mut Report) {
    for (name, meaning) in [
        ("LD_LIBRARY_PATH", "libraries are looked for there first"),
        ("LD_PRELOAD", "programs get this in addition"),
        ("RDMACM_LOG", "failures are logged there"),
    ] {
        if let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) {
            report.ok("environment", format!("{name}={}: {meaning}", value.to_string_lossy()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// rsocket(7) lists the files as `.It Pa NAME`.
    #[test]
    fn the_files_of_the_manual_page_are_known() {
        let page = include_str!("../../man/rsocket.7");
        for name in NUMBERS {
            assert!(page.contains(&format!(".It Pa {name}")), "{name} is not in rsocket(7)");
        }
        let listed = page.lines().filter_map(|line| line.strip_prefix(".It Pa "));
        for name in listed.filter(|name| name.ends_with("_default") || name.ends_with("_limit")) {
            assert!(NUMBERS.contains(&name), "{name}");
        }
    }
}
