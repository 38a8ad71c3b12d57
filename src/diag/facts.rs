//! What is looked up when something has failed: where it happened, and what the machine is like.

use std::ffi::{CStr, c_int, c_long};
use std::mem::MaybeUninit;

use libc::sockaddr_storage;

use super::reason;
use crate::errno::Errno;

/// Bytes of a device's name that are shown (IBV_SYSFS_NAME_MAX).
const NAME: usize = 64;

/// Addresses and device of an id, or of an rsocket's.
#[derive(Clone, Copy)]
pub struct Place {
    /// Local address; family 0 where there is none.
    pub src: sockaddr_storage,
    /// The peer's.
    pub dst: sockaddr_storage,
    device: [u8; NAME],
    /// Port of the device.
    pub port: u8,
}

impl Place {
    /// Addresses, the device's name and its port.
    pub fn new(src: sockaddr_storage, dst: sockaddr_storage, device: &[u8], port: u8) -> Place {
        let mut name = [0; NAME];
        let len = device.len().min(NAME - 1);
        name[..len].copy_from_slice(&device[..len]);
        Place { src, dst, device: name, port }
    }

    /// Nothing is known.
    pub const NONE: Place = Place {
        // SAFETY: all zeros are a value of these addresses.
        src: unsafe { std::mem::zeroed() },
        // SAFETY: as above.
        dst: unsafe { std::mem::zeroed() },
        device: [0; NAME],
        port: 0,
    };

    /// Fills in one side, if it is not known.
    pub fn add(&mut self, address: &sockaddr_storage, local: bool) {
        let side = if local { &mut self.src } else { &mut self.dst };
        if is_nowhere(side) {
            *side = *address;
        }
    }

    /// The device's name, once it is known.
    pub fn device(&self) -> Option<&str> {
        let name = CStr::from_bytes_until_nul(&self.device).ok()?.to_str().ok()?;
        (!name.is_empty()).then_some(name)
    }
}

/// No address, or that of a listener's peer: all zeros.
pub(super) fn is_nowhere(address: &sockaddr_storage) -> bool {
    let bytes = std::ptr::from_ref(address).cast::<[u8; size_of::<sockaddr_storage>()]>();
    let family = size_of::<libc::sa_family_t>();
    // SAFETY: as long as the structure, all of whose bytes are initialised: it was made of zeros.
    address.ss_family == 0 || unsafe { (&*bytes)[family..].iter().all(|&byte| byte == 0) }
}

/// What stands in the way of a channel, if anything does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Not looked at, or nothing does.
    #[default]
    Fine,
    /// The kernel has no RDMA device.
    NoDevices,
    /// There is no /dev/infiniband/rdma_cm.
    NoNode,
    /// It may not be opened.
    Forbidden,
}

/// What [`reason`] chooses the words by, beside call and errno.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub access: Access,
    /// The limit of locked memory in bytes, where there is one.
    pub memlock: Option<u64>,
    /// The device is known.
    pub device: bool,
    /// The id is NULL.
    pub null: bool,
}

impl Facts {
    /// What matters for a failed call.
    pub fn gather(name: &str, error: Errno, place: Option<&Place>) -> Facts {
        let mut facts = Facts::of_place(place);
        if reason::asks_for_access(name, error) {
            facts.access = access();
        }
        facts
    }

    /// What a place tells, and the limit of locked memory.
    pub fn of_place(place: Option<&Place>) -> Facts {
        Facts {
            access: Access::Fine,
            memlock: memlock(),
            device: place.is_some_and(|place| place.device().is_some()),
            null: false,
        }
    }
}

fn memlock() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

fn access() -> Access {
    if is_empty(c"/sys/class/infiniband") {
        return Access::NoDevices;
    }
    match faccess(c"/dev/infiniband/rdma_cm") {
        0 => Access::Fine,
        libc::EACCES | libc::EPERM => Access::Forbidden,
        _ => Access::NoNode,
    }
}

/// The errno of what the process, with the rights that it has now, may not do; 0 when it may read and write.
fn faccess(path: &CStr) -> c_int {
    let (at, mode, flags) = (libc::AT_FDCWD, libc::R_OK | libc::W_OK, libc::AT_EACCESS);
    // SAFETY: a C string. faccessat2(2): the older call knows the real user only.
    match unsafe { libc::syscall(libc::SYS_faccessat2, at, path.as_ptr(), mode, flags) } {
        0 => 0,
        _ => Errno::last().get(),
    }
}

/// Whether a folder is missing, or has no entries beside `.` and `..`.
fn is_empty(folder: &CStr) -> bool {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let mut entries = MaybeUninit::<[u64; 128]>::uninit();
    // SAFETY: a C string, a fresh descriptor, and writable memory of the length that is said.
    unsafe {
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, folder.as_ptr(), flags);
        if fd < 0 {
            return true;
        }
        let got = libc::syscall(libc::SYS_getdents64, fd, entries.as_mut_ptr(), size_of_val(&entries));
        libc::syscall(libc::SYS_close, fd);
        // `.` and `..` take 24 bytes each.
        got <= c_long::from(48_u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_and_files() {
        assert!(is_empty(c"/nowhere"));
        assert!(!is_empty(c"/proc"));
        assert_eq!(faccess(c"/dev/null"), 0);
        assert_eq!(faccess(c"/nowhere"), libc::ENOENT);
    }
}
