//! System calls of a daemon: session, signals as events, capabilities, the system log.

use std::ffi::{CStr, CString, c_int};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rdmacm_core::{Errno, Result};

/// Number of the capability to bind ports below 1024 (`linux/capability.h`).
pub const CAP_NET_BIND_SERVICE: u32 = 10;
/// Number of the capability to administer the network.
pub const CAP_NET_ADMIN: u32 = 12;
const LAST_CAPABILITY: u32 = 63;

fn check(result: c_int) -> Result<c_int> {
    if result < 0 { Err(Errno::last()) } else { Ok(result) }
}

/// Signals that are read from a descriptor instead of interrupting the process.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks `signals` in the calling thread and in those that it starts, so that they can be
    /// read.
    pub fn block(signals: &[c_int]) -> Result<Signals> {
        // SAFETY: all zeros are a valid value.
        let mut set: libc::sigset_t = unsafe { zeroed() };
        // SAFETY: `set` is a local value, and the old mask is not requested.
        unsafe {
            libc::sigemptyset(&raw mut set);
            for &signal in signals {
                libc::sigaddset(&raw mut set, signal);
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) != 0 {
                return Err(Errno::EINVAL);
            }
            for &signal in signals {
                // A signal that was ignored at the start (nohup) would not arrive. It is blocked,
                // so its default action does not apply.
                libc::signal(signal, libc::SIG_DFL);
            }
            let fd = check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
            Ok(Signals(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// Returns the next pending signal.
    pub fn next(&self) -> Option<c_int> {
        // SAFETY: all zeros are a valid value.
        let mut record: libc::signalfd_siginfo = unsafe { zeroed() };
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the record is writable for its size.
        let got = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut record).cast(), size) };
        (got == size as isize).then_some(record.ssi_signo as c_int)
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// fork(2) of a process with a single thread. Returns true in the child.
pub fn fork() -> Result<bool> {
    // SAFETY: the process has a single thread, so the child may call any function.
    Ok(check(unsafe { libc::fork() })? == 0)
}

/// Leaves the session and the working directory of the parent.
pub fn detach() -> Result<()> {
    // SAFETY: the only pointer is a constant string.
    unsafe {
        check(libc::setsid())?;
        check(libc::chdir(c"/".as_ptr()))?;
    }
    Ok(())
}

/// Redirects standard input, output and error to /dev/null.
pub fn redirect_stdio() -> Result<()> {
    // SAFETY: a constant path; a daemon may replace its standard descriptors.
    unsafe {
        let null = check(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC))?;
        for fd in 0..=2 {
            check(libc::dup2(null, fd))?;
        }
        libc::close(null);
    }
    Ok(())
}

/// Raises the limit of descriptors (RLIMIT_NOFILE) to its hard limit. Returns the limit.
pub fn raise_descriptor_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is readable and writable.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
    rdmacm_core::sys::event::descriptor_limit()
}

/// Makes malloc(3) return large blocks to the kernel when they are freed. By default the first such
/// block raises the threshold, and the C library keeps later ones.
pub fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no pointers. The value is the initial threshold.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

/// `struct __user_cap_header_struct` and `__user_cap_data_struct` of `linux/capability.h`, which
/// the libc crate lacks.
#[repr(C)]
struct CapHeader {
    version: u32,
    pid: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAP_VERSION_3: u32 = 0x2008_0522;

/// Drops all capabilities except those in `keep`, and the means to gain others.
pub fn keep_capabilities(keep: &[u32]) -> Result<()> {
    let kept = |number: u32| keep.contains(&number);
    let mut header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let mut sets = [CapData::default(); 2];
    // SAFETY: version 3 has one header and two sets, which are local values. The other calls have
    // no pointers. Those for the bounding set fail for unknown capabilities and without
    // CAP_SETPCAP, which does no harm: the daemon executes no program.
    unsafe {
        for number in (0..=LAST_CAPABILITY).filter(|&number| !kept(number)) {
            libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(number), 0, 0, 0);
        }
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        if libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) != 0 {
            return Err(Errno::last());
        }
        for (word, set) in (0u32..).zip(&mut sets) {
            let mask = (0..32).filter(|bit| kept(word * 32 + bit)).fold(0, |mask, bit| mask | 1 << bit);
            let permitted = set.permitted & mask;
            *set = CapData { effective: permitted, permitted, inheritable: 0 };
        }
        if libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) != 0 {
            return Err(Errno::last());
        }
    }
    Ok(())
}

/// Returns 64 random bits.
pub fn random() -> u64 {
    let mut bytes = [0u8; 8];
    loop {
        // SAFETY: `bytes` is writable for its length. So few bytes are never returned in part.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if got == bytes.len() as isize {
            return u64::from_ne_bytes(bytes);
        }
    }
}

/// A level of syslog(3).
pub type Priority = c_int;

/// Opens the system log for a daemon of this name.
pub fn open_log(name: &'static CStr) {
    // SAFETY: the string lives as long as the process.
    unsafe { libc::openlog(name.as_ptr(), libc::LOG_PID, libc::LOG_DAEMON) };
}

/// Writes a line to the system log.
pub fn log(priority: Priority, line: &str) {
    let line = CString::new(line.replace('\0', "")).unwrap_or_default();
    // SAFETY: two C strings, the first a format with one %s.
    unsafe { libc::syslog(priority, c"%s".as_ptr(), line.as_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_read_once() {
        let signals = Signals::block(&[libc::SIGUSR2]).unwrap();
        assert_eq!(signals.next(), None);
        // SAFETY: the signal is blocked in this thread.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
        assert_eq!(signals.next(), Some(libc::SIGUSR2));
        assert_eq!(signals.next(), None);
    }

    #[test]
    fn random_numbers_differ() {
        assert_ne!(random(), random());
    }
}
