//! System calls of a daemon: session, signals as events, capabilities.

use std::ffi::c_int;

use nix::Result;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::Mode;
use nix::unistd;

/// Number of the capability to bind ports below 1024 (`linux/capability.h`).
pub const CAP_NET_BIND_SERVICE: u32 = 10;
/// Number of the capability to administer the network.
pub const CAP_NET_ADMIN: u32 = 12;
const LAST_CAPABILITY: u32 = 63;

/// Blocks `signals` in the calling thread and in threads that it starts later. Returns a descriptor
/// from which the signals can be read.
pub fn block(signals: &[Signal]) -> Result<SignalFd> {
    let set: SigSet = signals.iter().copied().collect();
    set.thread_block()?;
    for &number in signals {
        // A signal that was ignored at the start (nohup) would not arrive, so restore the default
        // action. The action is not taken, because the signal is blocked.
        // SAFETY: the default action runs no handler.
        unsafe { signal(number, SigHandler::SigDfl) }?;
    }
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// fork(2) of a process with a single thread. Returns true in the child.
pub fn fork() -> Result<bool> {
    // SAFETY: the process has a single thread, so the child may call any function.
    Ok(unsafe { unistd::fork() }?.is_child())
}

/// Leaves the session and the working directory of the parent.
pub fn detach() -> Result<()> {
    unistd::setsid()?;
    unistd::chdir("/")
}

/// Redirects standard input, output and error to /dev/null.
pub fn redirect_stdio() -> Result<()> {
    let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
    unistd::dup2_stdin(&null)?;
    unistd::dup2_stdout(&null)?;
    unistd::dup2_stderr(&null)
}

/// Raises the limit of descriptors (RLIMIT_NOFILE) to its hard limit. Returns the limit in effect.
pub fn raise_descriptor_limit() -> usize {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
    let limit = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_or(soft, |()| hard);
    usize::try_from(limit).unwrap_or(usize::MAX)
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

/// Drops all capabilities except those in `keep`, and the ways to gain other ones.
pub fn keep_capabilities(keep: &[u32]) -> Result<()> {
    let kept = |number: u32| keep.contains(&number);
    let mut header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let mut sets = [CapData::default(); 2];
    prctl::set_no_new_privs()?;
    // SAFETY: capget and capset of version 3 access one header and two sets, which are local
    // values. The other calls take no pointers. PR_CAPBSET_DROP fails for unknown capabilities and
    // without CAP_SETPCAP, which does no harm: the daemon executes no program.
    unsafe {
        for number in (0..=LAST_CAPABILITY).filter(|&number| !kept(number)) {
            libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(number), 0, 0, 0);
        }
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        Errno::result(libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()))?;
        for (word, set) in (0u32..).zip(&mut sets) {
            let mask = (0..32).filter(|bit| kept(word * 32 + bit)).fold(0, |mask, bit| mask | 1 << bit);
            let permitted = set.permitted & mask;
            *set = CapData { effective: permitted, permitted, inheritable: 0 };
        }
        Errno::result(libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr())).map(drop)
    }
}

/// Returns 64 random bits.
pub fn random() -> u64 {
    let mut bytes = [0u8; 8];
    loop {
        // SAFETY: `bytes` is writable for its length. getrandom(2) does not split so few bytes.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if got == bytes.len() as isize {
            return u64::from_ne_bytes(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_read_once() {
        let signals = block(&[Signal::SIGUSR2]).unwrap();
        let next = || signals.read_signal().unwrap().map(|record| record.ssi_signo as c_int);
        assert_eq!(next(), None);
        // SAFETY: the signal is blocked in this thread.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
        assert_eq!((next(), next()), (Some(libc::SIGUSR2), None));
    }

    #[test]
    fn random_numbers_differ() {
        assert_ne!(random(), random());
    }
}
