//! Which sockets become rsockets, and how large their buffers are: the configuration files and the
//! environment, read once.

use core::ffi::{CStr, c_char, c_int};
use core::net::IpAddr;

use base::auto_config::{self, Config, Mode};
use base::preload_rules as rules;
use libc::{EINTR, O_RDONLY, SOCK_DGRAM, STDERR_FILENO, iovec};

use crate::memory::{Once, Plain};
use crate::{errno, next_symbol, sockets};

const FILE: &CStr = c"/etc/rdma/rsocket/preload_config";
/// The maximum number of bytes that are read of a configuration file.
pub const MAX_FILE: usize = 1 << 20;

unsafe extern "C" {
    /// The last component of argv[0], from the C library.
    static program_invocation_short_name: *const c_char;
}

/// Default time that a host may take to answer over RDMA in automatic mode, in milliseconds.
pub const DEFAULT_TIMEOUT: c_int = 250;
/// Default time that automatic mode remembers that a destination is reached by TCP, in seconds.
const DEFAULT_REMEMBER: c_int = 60;

/// The settings. Mapped and never freed: a signal handler may be reading them.
struct Settings {
    fork_safe: bool,
    sizes: [Option<c_int>; 3],
    mode: Option<Mode>,
    timeout: Option<c_int>,
    remember: Option<c_int>,
    logs: bool,
    /// Length and content of `preload_config`.
    len: usize,
    text: [u8; MAX_FILE],
    /// Length and content of `auto_config`.
    auto_len: usize,
    auto_text: [u8; MAX_FILE],
}

// SAFETY: all-zero bytes are valid for integers and bool, and for each Option either as `None` or
// as `Some` with a value of zeros.
unsafe impl Plain for Settings {}

static SETTINGS: Once<Settings> = Once::new();

/// Returns the settings, or `None` if there is no memory. The first call reads the settings; if
/// several threads read them at once, the first result is kept.
fn settings() -> Option<&'static Settings> {
    SETTINGS.get_or_make(libc::MAP_PRIVATE, Settings::read)
}

/// Returns an environment variable as a number, by the rules of atoi(3). `None` if the variable is
/// unset, 0 or no number.
fn variable(name: &CStr) -> Option<c_int> {
    // SAFETY: `value` comes from `string`, so a NUL byte follows it.
    string(name).map(|value| unsafe { libc::atoi(value.as_ptr().cast()) }).filter(|&value| value != 0)
}

/// Returns the value of an environment variable, or `None` if it is unset.
fn string(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: `name` ends with a NUL byte. So does the value, which is valid as long as the program
    // does not change this variable.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    }
}

/// Returns the number in `text`, or `None` if `text` is not just an unsigned number.
fn number(text: &[u8]) -> Option<u32> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

/// Reports to standard error the environment variables whose values have no effect. Called when the
/// library is loaded: later, descriptor 2 may be another file.
pub fn report_problems() {
    let is_number: fn(&[u8]) -> bool = |value| number(value).is_some();
    for (name, is_known, wanted) in [
        (c"RS_MODE", (|value| Mode::named(value).is_some()) as fn(&[u8]) -> bool, &b"auto, rdma or tcp"[..]),
        (c"RS_TIMEOUT", is_number, b"a number of milliseconds"),
        (c"RS_REMEMBER", is_number, b"a number of seconds"),
    ] {
        if let Some(value) = string(name).filter(|&value| !value.is_empty() && !is_known(value)) {
            let parts = [
                program(),
                b": librspreload: ",
                name.to_bytes(),
                b"=\"",
                value,
                b"\" has no effect: it must be ",
                wanted,
                b"\n",
            ];
            let parts = parts.map(|part| iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
            // SAFETY: the parts are readable for their lengths.
            errno::keeping(|| unsafe { next_symbol::writev(STDERR_FILENO, parts.as_ptr(), parts.len() as c_int) });
        }
    }
}

impl Settings {
    fn auto_config(&self) -> Config<'_> {
        Config(self.auto_text.get(..self.auto_len).unwrap_or_default())
    }

    /// Reads the settings. The environment takes precedence over the files.
    #[cold]
    fn read(&mut self) {
        self.sizes = [c"RS_SQ_SIZE", c"RS_RQ_SIZE", c"RS_INLINE"].map(variable);
        self.fork_safe = variable(c"RDMAV_FORK_SAFE").is_some();
        self.len = read_file(FILE, &mut self.text);
        self.auto_len = read_file(auto_config::FILE, &mut self.auto_text);
        self.logs = string(c"RDMACM_LOG").is_some_and(|value| !value.is_empty() && value != b"0");
        let int = |number: u32| c_int::try_from(number).ok();
        self.mode = string(c"RS_MODE").and_then(Mode::named).or_else(|| self.auto_config().mode(program()));
        self.timeout = string(c"RS_TIMEOUT").and_then(number).or_else(|| self.auto_config().timeout()).and_then(int);
        self.remember = string(c"RS_REMEMBER").and_then(number).or_else(|| self.auto_config().remember()).and_then(int);
    }
}

/// Returns the name of the program.
fn program() -> &'static [u8] {
    // SAFETY: the C library's pointer is a string that it never frees.
    unsafe { CStr::from_ptr(program_invocation_short_name) }.to_bytes()
}

/// Reads a file into `text`, as far as it fits. Returns the number of bytes; 0 if the file cannot
/// be read.
pub fn read_file(name: &CStr, text: &mut [u8]) -> usize {
    let mut len = 0;
    let fd = sockets::open(name, O_RDONLY);
    while let Some(rest) = text.get_mut(len..).filter(|rest| fd >= 0 && !rest.is_empty()) {
        match usize::try_from(sockets::read(fd, rest)) {
            Ok(more @ 1..) => len += more,
            Err(_) if errno::get() == EINTR => {}
            _ => break,
        }
    }
    if fd >= 0 {
        next_symbol::close(fd);
    }
    len
}

/// Whether this program's sockets of this kind become rsockets. `kind` has no flags.
pub fn intercepts(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    let text = settings().and_then(|settings| settings.text.get(..settings.len)).unwrap_or_default();
    let socket = rules::Socket { domain, kind, protocol };
    if kind == SOCK_DGRAM && mode() == Mode::Auto {
        return rules::ask_for(text, program(), &socket);
    }
    rules::allow(text, program(), &socket)
}

/// Returns the mode of this process. Without a configured mode, a program in fork mode gets `Rdma`,
/// because its peers are in fork mode, too.
pub fn mode() -> Mode {
    let built_in = if fork_safe() { Mode::Rdma } else { Mode::Auto };
    settings().and_then(|settings| settings.mode).unwrap_or(built_in)
}

/// Whether the mode is automatic.
pub fn is_automatic_mode() -> bool {
    mode() == Mode::Auto
}

/// Whether `auto_config` leaves the choice between RDMA and TCP for this address and port open.
pub fn is_automatic(address: IpAddr, port: u16) -> bool {
    settings().is_none_or(|settings| settings.auto_config().is_automatic(program(), address, port))
}

/// Returns how long a host may take to answer over RDMA, in milliseconds.
pub fn timeout() -> c_int {
    settings().and_then(|settings| settings.timeout).unwrap_or(DEFAULT_TIMEOUT).max(0)
}

/// Returns how long automatic mode remembers that a destination is reached by TCP, in seconds.
pub fn remember() -> c_int {
    settings().and_then(|settings| settings.remember).unwrap_or(DEFAULT_REMEMBER).max(0)
}

/// Whether RDMACM_LOG requests log lines.
pub fn logs() -> bool {
    settings().is_some_and(|settings| settings.logs)
}

/// Returns the numbers of the lines of `auto_config` that have no effect, with the reasons.
pub fn problems() -> impl Iterator<Item = (usize, auto_config::Problem)> {
    settings().map(|settings| settings.auto_config().problems()).into_iter().flatten()
}

/// Returns the options at level SOL_RDMA for new rsockets, with their values.
pub fn sizes() -> impl Iterator<Item = (c_int, c_int)> {
    // RDMA_SQSIZE, RDMA_RQSIZE, RDMA_INLINE are 0, 1, 2.
    let sizes = settings().map_or([None; 3], |settings| settings.sizes);
    (0..).zip(sizes).filter_map(|(name, size)| Some((name, size?)))
}

/// Whether RDMAV_FORK_SAFE asks for fork mode.
pub fn fork_safe() -> bool {
    settings().is_some_and(|settings| settings.fork_safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_far_as_there_is_room() {
        let path = std::env::temp_dir().join(std::format!("preload_config.{}", std::process::id()));
        std::fs::write(&path, "0123456789").unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let mut text = [0; 20];
        assert_eq!(read_file(&name, &mut text), 10);
        assert_eq!(&text[..10], b"0123456789");
        assert_eq!(read_file(&name, &mut text[..4]), 4);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_file(&name, &mut text), 0);
    }
}
