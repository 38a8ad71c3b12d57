//! What makes a process a daemon: its own session, signals as events, capabilities, the system's log.

use std::ffi::{CStr, CString, c_int};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use crate::errno::{Errno, Result};

/// As Linux numbers them (`linux/capability.h`).
pub const CAP_NET_BIND_SERVICE: u32 = 10;
/// See [`CAP_NET_BIND_SERVICE`].
pub const CAP_NET_ADMIN: u32 = 12;
const LAST_CAPABILITY: u32 = 63;

fn check(result: c_int) -> Result<c_int> {
    if result < 0 { Err(Errno::last()) } else { Ok(result) }
}

/// Signals that come as readable records instead of interrupting.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks `signals` in the calling thread, and all that it starts; they can be read from then on.
    pub fn take(signals: &[c_int]) -> Result<Signals> {
        // SAFETY: all zeros are a value of it.
        let mut set: libc::sigset_t = unsafe { zeroed() };
        // SAFETY: the set is ours, the old one is not asked for.
        unsafe {
            libc::sigemptyset(&raw mut set);
            for &signal in signals {
                libc::sigaddset(&raw mut set, signal);
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) != 0 {
                return Err(Errno::EINVAL);
            }
            for &signal in signals {
                // What whoever started us had ignored (nohup) would not come. It is blocked, so that nothing ends by it.
                libc::signal(signal, libc::SIG_DFL);
            }
            let fd = check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
            Ok(Signals(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// The next one that has come.
    pub fn next(&self) -> Option<c_int> {
        // SAFETY: all zeros are a value of it.
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

/// fork(2), of a process with one thread: true in the child.
pub fn fork() -> Result<bool> {
    // SAFETY: the process has no other thread (see above), so the child may call anything.
    Ok(check(unsafe { libc::fork() })? == 0)
}

/// Leaves the session and folder of whoever started us.
pub fn detach() -> Result<()> {
    // SAFETY: no memory is involved but a constant string.
    unsafe {
        check(libc::setsid())?;
        check(libc::chdir(c"/".as_ptr()))?;
    }
    Ok(())
}

/// Standard input, output and error become /dev/null.
pub fn silence() -> Result<()> {
    // SAFETY: a constant path; the three numbers are a daemon's to change.
    unsafe {
        let null = check(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC))?;
        for fd in 0..=2 {
            check(libc::dup2(null, fd))?;
        }
        libc::close(null);
    }
    Ok(())
}

/// Allows as many descriptors as may be allowed; how many.
pub fn raise_descriptor_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is readable and writable.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
    super::event::descriptor_limit()
}

/// Has the C library give large pieces of memory back to the kernel when they are freed, in any order. Otherwise it learns
/// from the first one that such are wanted, and keeps room for more.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: numbers only. The value is the one that it begins with.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

/// `struct __user_cap_header_struct` and `__user_cap_data_struct` of `linux/capability.h`, which the libc crate lacks.
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

/// Gives up every capability but those in `keep` that there are, and the possibility to get any.
pub fn keep_capabilities(keep: &[u32]) -> Result<()> {
    let kept = |number: u32| keep.contains(&number);
    let mut header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let mut sets = [CapData::default(); 2];
    // SAFETY: version 3 has one header and two sets, which are ours. The other calls have no pointers; that of bounds fails
    // for numbers the kernel does not know and without CAP_SETPCAP, which is no loss: nothing is executed.
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

/// 64 random bits.
pub fn random() -> u64 {
    let mut bytes = [0u8; 8];
    loop {
        // SAFETY: the bytes are writable. As few are all there or none.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if got == bytes.len() as isize {
            return u64::from_ne_bytes(bytes);
        }
    }
}

/// How much a line of the system's log matters, as syslog(3) counts.
pub type Priority = c_int;

/// Opens the system's log for a daemon of this name.
pub fn open_log(name: &'static CStr) {
    // SAFETY: the string lives as long as the process.
    unsafe { libc::openlog(name.as_ptr(), libc::LOG_PID, libc::LOG_DAEMON) };
}

/// A line for it.
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
        let signals = Signals::take(&[libc::SIGUSR2]).unwrap();
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
