//! The variable RDMACM_LOG. It is read once, when the library is loaded, because a program may
//! change or overwrite its environment later.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU8, Ordering};

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

const OFF: u8 = 0;
const FAILURES: u8 = 1;
const ALL: u8 = 2;

static LEVEL: AtomicU8 = AtomicU8::new(OFF);

/// The destination of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard error.
    Stderr,
    /// The system's log.
    Syslog,
    /// A file, by its absolute path.
    File(&'static CStr),
}

/// Maximum length of a path, with its NUL.
const MAX_PATH: usize = 1024;

/// The kind of target, and the path of a file.
struct Settings(UnsafeCell<(Kind, [u8; MAX_PATH])>);

enum Kind {
    Stderr,
    Syslog,
    File,
}

// SAFETY: one thread writes the settings, before main() and before it sets LEVEL, which readers
// check first.
unsafe impl Sync for Settings {}

static SETTINGS: Settings = Settings(UnsafeCell::new((Kind::Stderr, [0; MAX_PATH])));

/// Name of the variable. It is in `.data`, which the loader has written to, so reading it when the
/// library is loaded causes no page fault.
#[unsafe(link_section = ".data")]
static VARIABLE: [u8; 11] = *b"RDMACM_LOG\0";

/// Reads RDMACM_LOG. Called once, when the library is loaded.
#[unsafe(link_section = ".text.startup")]
pub fn read_settings() {
    // SAFETY: the name is a C string. The result is NULL in programs that run with other
    // credentials than their caller.
    let value = unsafe { secure_getenv(VARIABLE.as_ptr().cast()) };
    if value.is_null() {
        return;
    }
    // SAFETY: the value is a C string in the environment.
    let Some((level, target)) = parse(unsafe { CStr::from_ptr(value) }.to_bytes()) else { return };
    // SAFETY: no thread reads the settings while the level is 0.
    let settings = unsafe { &mut *SETTINGS.0.get() };
    settings.0 = match target {
        ParsedTarget::Stderr => Kind::Stderr,
        ParsedTarget::Syslog => Kind::Syslog,
        ParsedTarget::File(path) => {
            settings.1[..path.len()].copy_from_slice(path);
            Kind::File
        }
    };
    LEVEL.store(level, Ordering::Release);
}

#[derive(Debug, PartialEq, Eq)]
enum ParsedTarget<'a> {
    Stderr,
    Syslog,
    File(&'a [u8]),
}

/// Parses words that are separated by commas: `1` or `stderr`, `syslog`, or a path; `2` or `all`
/// for all errors. Returns `None` for `0` and for an invalid value.
fn parse(value: &[u8]) -> Option<(u8, ParsedTarget<'_>)> {
    let (mut level, mut target) = (FAILURES, ParsedTarget::Stderr);
    for word in value.split(|&byte| byte == b',') {
        match word {
            b"1" => {}
            b"2" | b"all" => level = ALL,
            b"stderr" => target = ParsedTarget::Stderr,
            b"syslog" => target = ParsedTarget::Syslog,
            [b'/', ..] if word.len() < MAX_PATH => target = ParsedTarget::File(word),
            _ => return None,
        }
    }
    Some((level, target))
}

/// Returns whether logging is on.
#[inline]
pub fn is_on() -> bool {
    LEVEL.load(Ordering::Relaxed) != OFF
}

/// Returns whether errors that are expected in normal operation are logged, too.
pub fn is_verbose() -> bool {
    LEVEL.load(Ordering::Relaxed) == ALL
}

/// Returns the destination of log lines. The caller has checked that logging is on.
pub fn target() -> Target {
    LEVEL.load(Ordering::Acquire);
    // SAFETY: logging is on, so the settings are not written any more.
    let settings = unsafe { &*SETTINGS.0.get() };
    match settings.0 {
        Kind::Stderr => Target::Stderr,
        Kind::Syslog => Target::Syslog,
        Kind::File => Target::File(CStr::from_bytes_until_nul(&settings.1).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_variable() {
        for off in ["", "0", "yes", "file", "1,maybe", "relative/path"] {
            assert_eq!(parse(off.as_bytes()), None, "{off}");
        }
        assert_eq!(parse(b"1"), Some((FAILURES, ParsedTarget::Stderr)));
        assert_eq!(parse(b"stderr"), Some((FAILURES, ParsedTarget::Stderr)));
        assert_eq!(parse(b"2"), Some((ALL, ParsedTarget::Stderr)));
        assert_eq!(parse(b"all,syslog"), Some((ALL, ParsedTarget::Syslog)));
        assert_eq!(parse(b"/tmp/x"), Some((FAILURES, ParsedTarget::File(b"/tmp/x"))));
        assert_eq!(parse(&[b'/'; MAX_PATH]), None);
    }
}
