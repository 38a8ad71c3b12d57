//! Which sockets are served by rsockets, and how large those are: `preload_config` and the environment, read once.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{EINTR, O_CLOEXEC, O_RDONLY};

use crate::rules;
use crate::{errno, real};

const FILE: &CStr = c"/etc/rdma/rsocket/preload_config";
/// More than anybody writes; what is beyond is not read.
const MOST: usize = 1 << 20;

unsafe extern "C" {
    /// The last part of argv[0], by the C library.
    static program_invocation_short_name: *const c_char;
}

/// What was read. Mapped, never freed: a signal handler may be looking at it.
struct Settings {
    fork_safe: bool,
    sizes: [Option<c_int>; 3],
    len: usize,
    text: [u8; MOST],
}

static SETTINGS: AtomicPtr<Settings> = AtomicPtr::new(ptr::null_mut());

fn settings() -> Option<&'static Settings> {
    let known = SETTINGS.load(Ordering::Acquire);
    let known = if known.is_null() { read_settings() } else { known };
    // SAFETY: complete before it was stored, and there for good.
    unsafe { known.as_ref() }
}

/// Of several threads that come here at once, all read, and what one of them has read holds.
#[cold]
fn read_settings() -> *mut Settings {
    let size = mem::size_of::<Settings>();
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, of zeros, which Settings may be; pages that the file doesn't reach cost nothing.
    unsafe {
        let new = libc::mmap(ptr::null_mut(), size, access, kind | libc::MAP_NORESERVE, -1, 0);
        if new == libc::MAP_FAILED {
            return ptr::null_mut();
        }
        let new = new.cast::<Settings>();
        let settings = &mut *new;
        settings.sizes = [c"RS_SQ_SIZE", c"RS_RQ_SIZE", c"RS_INLINE"].map(variable);
        settings.fork_safe = variable(c"RDMAV_FORK_SAFE").is_some();
        settings.len = read_file(FILE, &mut settings.text);
        match SETTINGS.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(other) => {
                libc::munmap(new.cast(), size);
                other
            }
        }
    }
}

/// An environment variable as a number, by the rules of atoi(3). 0, which any other text is, is as good as none.
fn variable(name: &CStr) -> Option<c_int> {
    // SAFETY: a string; the value is one, too, as long as the program leaves its environment alone.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| libc::atoi(value)).filter(|&value| value != 0)
    }
}

/// The length of what was read: 0 if there is no such file.
fn read_file(name: &CStr, text: &mut [u8]) -> usize {
    let mut len = 0;
    // SAFETY: a string, and a buffer with its size.
    unsafe {
        let fd = libc::open(name.as_ptr(), O_RDONLY | O_CLOEXEC);
        if fd < 0 {
            return 0;
        }
        while let Some(rest) = text.get_mut(len..).filter(|rest| !rest.is_empty()) {
            match usize::try_from(real::read(fd, rest.as_mut_ptr().cast::<c_void>(), rest.len())) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(_) if errno::get() == EINTR => {}
                Err(_) => break,
            }
        }
        real::close(fd);
    }
    len
}

/// Whether such a socket of this program is to be an rsocket. `kind` is without flags.
pub fn intercepts(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    let text = settings().and_then(|settings| settings.text.get(..settings.len)).unwrap_or_default();
    // SAFETY: a string that the C library keeps.
    let program = unsafe { CStr::from_ptr(program_invocation_short_name) };
    rules::allow(text, program.to_bytes(), &rules::Socket { domain, kind, protocol })
}

/// The options at level SOL_RDMA for new rsockets, with their values.
pub fn sizes() -> impl Iterator<Item = (c_int, c_int)> {
    // RDMA_SQSIZE, RDMA_RQSIZE, RDMA_INLINE are 0, 1, 2.
    let sizes = settings().map_or([None; 3], |settings| settings.sizes);
    (0..).zip(sizes).filter_map(|(name, size)| Some((name, size?)))
}

/// RDMAV_FORK_SAFE.
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
