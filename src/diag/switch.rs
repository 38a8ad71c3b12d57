//! RDMACM_LOG, read once when the library is loaded: later, a program may have changed its environment or written over it.

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

/// Where lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard error.
    Stderr,
    /// The system's log.
    Syslog,
    /// A file, by its absolute path.
    File(&'static CStr),
}

/// Room for a path and its NUL.
const PATH: usize = 1024;

struct Settings(UnsafeCell<(Place, [u8; PATH])>);

enum Place {
    Stderr,
    Syslog,
    File,
}

// SAFETY: written before main() by the one thread that loads the library, and before LEVEL says that anybody may read.
unsafe impl Sync for Settings {}

static SETTINGS: Settings = Settings(UnsafeCell::new((Place::Stderr, [0; PATH])));

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = read;

/// Name of the variable. In `.data`, which the loader has written to: reading it there when the
/// library is loaded costs no page fault.
#[unsafe(link_section = ".data")]
static VARIABLE: [u8; 11] = *b"RDMACM_LOG\0";

#[unsafe(link_section = ".text.startup")]
extern "C" fn read() {
    // SAFETY: a C string; the result is NULL in programs that run with the rights of another user than their caller.
    let value = unsafe { secure_getenv(VARIABLE.as_ptr().cast()) };
    if value.is_null() {
        return;
    }
    // SAFETY: a variable of the environment.
    let Some((level, target)) = parse(unsafe { CStr::from_ptr(value) }.to_bytes()) else { return };
    // SAFETY: nobody reads it while the level is 0.
    let settings = unsafe { &mut *SETTINGS.0.get() };
    settings.0 = match target {
        Wanted::Stderr => Place::Stderr,
        Wanted::Syslog => Place::Syslog,
        Wanted::File(path) => {
            settings.1[..path.len()].copy_from_slice(path);
            Place::File
        }
    };
    LEVEL.store(level, Ordering::Release);
}

#[derive(Debug, PartialEq, Eq)]
enum Wanted<'a> {
    Stderr,
    Syslog,
    File(&'a [u8]),
}

/// Words, separated by commas: `0`; `1` or `stderr`, `syslog`, a path; `2` or `all` for more. `None` for off, and for what is
/// not understood.
fn parse(value: &[u8]) -> Option<(u8, Wanted<'_>)> {
    let (mut level, mut target) = (FAILURES, Wanted::Stderr);
    for word in value.split(|&byte| byte == b',') {
        match word {
            b"1" => {}
            b"2" | b"all" => level = ALL,
            b"stderr" => target = Wanted::Stderr,
            b"syslog" => target = Wanted::Syslog,
            [b'/', ..] if word.len() < PATH => target = Wanted::File(word),
            _ => return None,
        }
    }
    Some((level, target))
}

/// Whether anything is to be said.
#[inline]
pub fn is_on() -> bool {
    LEVEL.load(Ordering::Relaxed) != OFF
}

/// Whether what is no failure is to be told, too.
pub fn wants_all() -> bool {
    LEVEL.load(Ordering::Relaxed) == ALL
}

/// Where lines go; for those who know that the level is not 0.
pub fn target() -> Target {
    LEVEL.load(Ordering::Acquire);
    // SAFETY: not written any more.
    let settings = unsafe { &*SETTINGS.0.get() };
    match settings.0 {
        Place::Stderr => Target::Stderr,
        Place::Syslog => Target::Syslog,
        Place::File => Target::File(CStr::from_bytes_until_nul(&settings.1).unwrap_or_default()),
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
        assert_eq!(parse(b"1"), Some((FAILURES, Wanted::Stderr)));
        assert_eq!(parse(b"stderr"), Some((FAILURES, Wanted::Stderr)));
        assert_eq!(parse(b"2"), Some((ALL, Wanted::Stderr)));
        assert_eq!(parse(b"all,syslog"), Some((ALL, Wanted::Syslog)));
        assert_eq!(parse(b"/tmp/x"), Some((FAILURES, Wanted::File(b"/tmp/x"))));
        assert_eq!(parse(&[b'/'; PATH]), None);
    }
}
