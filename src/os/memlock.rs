//! The limit of locked memory, which includes the memory that is registered with devices.

use std::mem::zeroed;

use libc::{c_int, c_long, rlimit, stat};

/// `struct __user_cap_header_struct` and two `struct __user_cap_data_struct` of linux/capability.h.
#[repr(C)]
struct Header {
    version: u32,
    pid: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Capabilities {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const VERSION_3: u32 = 0x2008_0522;
const CAP_IPC_LOCK: u32 = 14;
/// Inode of /proc/self/ns/user in the first user namespace (`PROC_USER_INIT_INO`): capabilities in
/// other user namespaces do not lift the limit.
const FIRST_NAMESPACE: libc::ino_t = 0xEFFF_FFFD;

/// Returns RLIMIT_MEMLOCK in bytes; `None` if there is no limit, or if this thread has
/// CAP_IPC_LOCK.
pub fn limit() -> Option<u64> {
    // SAFETY: writable, and all zeros are a valid value.
    let limit = unsafe {
        let mut limit: rlimit = zeroed();
        if libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) != 0 {
            return None;
        }
        limit
    };
    if limit.rlim_cur == libc::RLIM_INFINITY || is_exempt() {
        return None;
    }
    Some(limit.rlim_cur)
}

fn is_exempt() -> bool {
    let mut header = Header { version: VERSION_3, pid: 0 };
    let mut sets = [Capabilities { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: both have the layout of version 3 of the call.
    let result: c_long = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    result == 0 && sets[0].effective & (1 << CAP_IPC_LOCK) != 0 && is_first_namespace()
}

/// Kernels without user namespaces have no such file.
fn is_first_namespace() -> bool {
    // SAFETY: a C string; the status is writable, and all zeros are a valid value.
    unsafe {
        let mut about: stat = zeroed();
        libc::stat(c"/proc/self/ns/user".as_ptr(), &raw mut about) != 0 || about.st_ino == FIRST_NAMESPACE
    }
}
