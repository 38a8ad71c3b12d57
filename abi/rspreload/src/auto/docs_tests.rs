//! Tests that docs/preload.md lists all reasons of the log and all limits, and no others, and that
//! automatic mode and fork mode do not use each other.

use std::fs;
use std::path::Path;

use super::log::Reason;
use super::{connect, listeners, route, shared};
use crate::config;
use crate::epoll::members;

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// The rows of the table in a section of the document.
fn rows(section: &str) -> Vec<Vec<String>> {
    let text = read("../../docs/preload.md");
    let (_, section) = text.split_once(section).unwrap();
    let lines = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    // Skip the titles and the line below them.
    lines.skip(2).map(|line| line.split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

#[test]
fn all_reasons_are_documented() {
    let source = read("src/auto/log.rs");
    let (_, source) = source.split_once("reasons! {\n").unwrap();
    let (texts, _) = source.split_once("\n}").unwrap();
    let rows = rows("### Reasons in the log");
    // Two further reasons contain an errno.
    assert_eq!(rows.len(), texts.lines().count() + 2);
    for row in rows {
        let text = row[1].trim_matches('`');
        if text.ends_with(" N") {
            let with_numbers = [Reason::Failed(7), Reason::NoStandIn(7)].map(|reason| reason.to_string());
            assert!(with_numbers.contains(&text.replace('N', "7")), "no reason of the log: {text}");
        } else {
            assert!(texts.contains(&format!("=> \"{text}\"")), "no reason of the log: {text}");
        }
    }
}

#[test]
fn automatic_mode_and_fork_mode_do_not_know_each_other() {
    let mut files = 0;
    for (folder, other) in [("auto", "fork::"), ("fork", "auto::")] {
        for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder)).unwrap() {
            let path = file.unwrap().path();
            // Skip folders.
            let Ok(source) = fs::read_to_string(&path) else { continue };
            let own = path.ends_with("docs_tests.rs");
            assert!(own || !source.contains(&format!("crate::{other}")), "{}", path.display());
            files += 1;
        }
    }
    assert!(files > 10);
}

#[test]
fn all_limits_are_documented() {
    let limits = [
        ("MAX_ATTEMPTS", connect::MAX_ATTEMPTS),
        ("MAX_INSTANCES", members::MAX_INSTANCES),
        ("MAX_LISTENERS", listeners::MAX_LISTENERS),
        ("MAX_ADDRESSES", listeners::MAX_ADDRESSES),
        ("MAX_BACKLOG", listeners::MAX_BACKLOG as usize),
        ("MAX_SLOTS", shared::MAX_SLOTS),
        ("MAX_REMEMBERED", route::MAX_REMEMBERED),
        ("MAX_FILE", config::MAX_FILE),
    ];
    let listed: Vec<(String, usize)> = rows("### Hard limits")
        .into_iter()
        .map(|row| (row[1].trim_matches('`').to_owned(), row[2].replace(',', "").parse().unwrap()))
        .collect();
    assert_eq!(listed, limits.map(|(name, limit)| (name.to_owned(), limit)));
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/auto")).unwrap() {
        let source = fs::read_to_string(file.unwrap().path()).unwrap();
        for word in source.split("const ").skip(1).filter(|word| word.starts_with("MAX_")) {
            let name = word.split(':').next().unwrap();
            // MAX_FDS is computed from other limits.
            assert!(name == "MAX_FDS" || limits.iter().any(|limit| limit.0 == name), "not documented: {name}");
        }
    }
}
