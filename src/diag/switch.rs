//! The variable RDMACM_LOG. It is read once, when the library is loaded, because a program may
//! change or overwrite its environment later.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU8, Ordering};

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

const OFF: u8 = 0;
/// Bits of the level.
const FAILURES: u8 = 1;
const ALL: u8 = 2;
const CONNECTIONS: u8 = 4;
const TIME: u8 = 8;

static LEVEL: AtomicU8 = AtomicU8::new(OFF);

/// Maximum length of a path, with its NUL.
const MAX_PATH: usize = 1024;

/// The word that names the destination of log lines, followed by zeros.
struct Target(UnsafeCell<[u8; MAX_PATH]>);

// SAFETY: one thread writes the word, before main() and before it sets LEVEL, which readers check
// first.
unsafe impl Sync for Target {}

static TARGET: Target = Target(UnsafeCell::new([0; MAX_PATH]));

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
    let (level, target) = match parse(unsafe { CStr::from_ptr(value) }.to_bytes()) {
        Ok(Some(parsed)) => parsed,
        Ok(None) => return,
        Err(word) => return super::unknown_value(word),
    };
    // SAFETY: no thread reads the word while the level is 0.
    unsafe { (&mut *TARGET.0.get())[..target.len()].copy_from_slice(target) };
    LEVEL.store(level, Ordering::Release);
}

/// Parses words that are separated by commas. Targets: `stderr` (the default), `syslog`, or an
/// absolute path. `1` is the default level; `2` or `all` adds expected errors; `connections` adds
/// events of connections that report no failure, and the time; `time` adds the time. Returns the
/// level and the target, or `None` if nothing is to be logged. Fails with the first word that is
/// invalid.
fn parse(value: &[u8]) -> Result<Option<(u8, &[u8])>, &[u8]> {
    let (mut level, mut target) = (FAILURES, &b"stderr"[..]);
    if matches!(value, b"" | b"0") {
        return Ok(None);
    }
    for word in value.split(|&byte| byte == b',') {
        match word {
            b"1" => {}
            b"2" | b"all" => level |= ALL,
            b"connections" => level |= CONNECTIONS | TIME,
            b"time" => level |= TIME,
            b"stderr" | b"syslog" => target = word,
            [b'/', ..] if word.len() < MAX_PATH => target = word,
            _ => return Err(word),
        }
    }
    Ok(Some((level, target)))
}

/// Returns whether logging is on.
#[inline]
pub fn is_on() -> bool {
    LEVEL.load(Ordering::Relaxed) != OFF
}

/// Returns whether errors that are expected in normal operation are logged, too.
pub fn is_verbose() -> bool {
    LEVEL.load(Ordering::Relaxed) & ALL != 0
}

/// Returns whether events of connections that report no failure are logged, too.
#[inline]
pub fn shows_connections() -> bool {
    LEVEL.load(Ordering::Relaxed) & CONNECTIONS != 0
}

/// Returns whether lines on standard error begin with the time.
pub fn shows_time() -> bool {
    LEVEL.load(Ordering::Relaxed) & TIME != 0
}

/// Returns the destination of log lines: `syslog`, an absolute path, or another text for standard
/// error. The caller has checked that logging is on, or runs while the library is being loaded.
pub fn target() -> &'static CStr {
    LEVEL.load(Ordering::Acquire);
    // SAFETY: the library is being loaded, or logging is on and the word is never written again.
    CStr::from_bytes_until_nul(unsafe { &*TARGET.0.get() }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_variable() {
        for off in ["", "0"] {
            assert_eq!(parse(off.as_bytes()), Ok(None), "{off}");
        }
        for (value, word) in [("yes", "yes"), ("1,maybe", "maybe"), ("relative/path", "relative/path"), ("1,", "")] {
            assert_eq!(parse(value.as_bytes()), Err(word.as_bytes()));
        }
        let parsed = |value: &'static str| parse(value.as_bytes()).unwrap().unwrap();
        assert_eq!(parsed("1"), (FAILURES, &b"stderr"[..]));
        assert_eq!(parsed("stderr"), (FAILURES, &b"stderr"[..]));
        assert_eq!(parsed("2"), (FAILURES | ALL, &b"stderr"[..]));
        assert_eq!(parsed("all,syslog"), (FAILURES | ALL, &b"syslog"[..]));
        assert_eq!(parsed("/tmp/x"), (FAILURES, &b"/tmp/x"[..]));
        assert_eq!(parsed("connections,/tmp/x"), (FAILURES | CONNECTIONS | TIME, &b"/tmp/x"[..]));
        assert_eq!(parsed("time"), (FAILURES | TIME, &b"stderr"[..]));
        assert!(parse(&[b'/'; MAX_PATH]).is_err());
    }
}
