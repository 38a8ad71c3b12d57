//! Checks the configuration files of rsockets and librspreload, and environment variables.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use base::{auto_config, preload_rules};

use crate::codes::{Check, Warning};
use crate::devices::entries;
use crate::report::Report;

const RSOCKET: &str = "/etc/rdma/rsocket";
/// The files in [`RSOCKET`] that hold a number (rsocket(7)).
const FILES: [&str; 11] = [
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

/// The files in [`RSOCKET`] that librspreload reads (librspreload(7)).
const PRELOAD_CONFIG: &str = "preload_config";
const AUTO_CONFIG: &str = "auto_config";

pub fn check(report: &mut Report) {
    rsocket(report, RSOCKET);
    environment(report);
}

/// Checks the files of a directory: [`RSOCKET`], or a test's.
fn rsocket(report: &mut Report, directory: &str) {
    if !Path::new(directory).is_dir() {
        return report
            .ok(Check::Configuration, format!("{directory} does not exist: rsockets use their built-in defaults"));
    }
    let before = report.len();
    for name in entries(directory) {
        let path = format!("{directory}/{name}");
        let is_known = FILES.contains(&name.as_str()) || [PRELOAD_CONFIG, AUTO_CONFIG].contains(&name.as_str());
        match fs::read_to_string(&path) {
            Ok(text) if name == PRELOAD_CONFIG => ignored(report, &path, preload_rules::problems(text.as_bytes())),
            Ok(text) if name == AUTO_CONFIG => {
                ignored(report, &path, auto_config::Config(text.as_bytes()).problems());
            }
            _ if !is_known => report.warning(
                Warning::ConfigurationUnknownSetting,
                format!("{path} is no setting of rsockets"),
                "see rsocket(7) for the names",
            ),
            Ok(text) if text.split_whitespace().next().is_some_and(|word| word.parse::<u32>().is_ok()) => {}
            Ok(_) => report.warning(
                Warning::ConfigurationNotANumber,
                format!("{path} does not begin with a number: it is ignored"),
                "see rsocket(7)",
            ),
            Err(error) => report.warning(
                Warning::ConfigurationUnreadable,
                format!("{path} cannot be read: {error}"),
                "make it readable for everybody",
            ),
        }
    }
    if report.len() == before {
        report.ok(Check::Configuration, format!("the files of {directory} are correct"));
    }
}

/// Reports the lines of a file that have no effect.
fn ignored<P: Display>(report: &mut Report, path: &str, problems: impl Iterator<Item = (usize, P)>) {
    for (number, problem) in problems {
        report.warning(
            Warning::ConfigurationIgnoredLine,
            format!("{path}, line {number}: {problem}: it is ignored"),
            "see librspreload(7)",
        );
    }
}

/// Reports variables that affect programs started from this environment.
fn environment(report: &mut Report) {
    for (name, meaning) in [
        ("LD_LIBRARY_PATH", "the loader searches these directories first"),
        ("LD_PRELOAD", "programs load this library, too"),
        ("RDMACM_LOG", "the library logs failures"),
    ] {
        if let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) {
            report.ok(Check::Environment, format!("{name}={}: {meaning}", value.to_string_lossy()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::State;

    #[test]
    fn lines_of_librspreload_are_checked() {
        let mut report = Report::default();
        let mut automatic = |text: &str| {
            let before = report.len();
            ignored(&mut report, "auto_config", auto_config::Config(text.as_bytes()).problems());
            report.len() == before
        };
        assert!(automatic("# nothing\ntcp ssh *\n") && !automatic("mode auto\nmode fast\n"));
        let mut rules = |text: &str| {
            let before = report.len();
            ignored(&mut report, "preload_config", preload_rules::problems(text.as_bytes()));
            report.len() == before
        };
        assert!(rules("nc INET STREAM *\n") && !rules("nc INET STREM *\n"));
    }

    #[test]
    fn files_are_settings_with_numbers() {
        let directory = std::env::temp_dir().join(format!("rsocket-settings-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let state_with = |name: &str, text: &str| {
            let file = directory.join(name);
            fs::write(&file, text).unwrap();
            let mut report = Report::default();
            rsocket(&mut report, directory.to_str().unwrap());
            fs::remove_file(file).unwrap();
            (report.len(), report.worst())
        };
        let states = [
            state_with("mem_default", "131072\n"),
            state_with("polling_time", " 10 microseconds\n"),
            state_with("mem_default", "128k\n"),
            state_with("mem_default", ""),
            state_with("mem_defaults", "131072\n"),
        ];
        fs::remove_dir(&directory).unwrap();
        assert_eq!(states.map(|(findings, _)| findings), [1; 5]);
        let (ok, warning) = (State::Ok, State::Warning);
        assert_eq!(states.map(|(_, state)| state), [ok, ok, warning, warning, warning]);
    }

    /// rsocket(7) lists the files as `.It Pa NAME`.
    #[test]
    fn files_are_those_of_the_manual_page() {
        let page = include_str!("../../../docs/man/rsocket.7");
        for name in FILES {
            assert!(page.contains(&format!(".It Pa {name}")), "{name} is not in rsocket(7)");
        }
        let listed = page.lines().filter_map(|line| line.strip_prefix(".It Pa "));
        for name in listed.filter(|name| name.ends_with("_default") || name.ends_with("_limit")) {
            assert!(FILES.contains(&name), "{name}");
        }
    }
}
