//! Facts that are collected after a call has failed: the endpoints, and the state of the machine.

use std::ffi::{CStr, c_int, c_long};
use std::mem::MaybeUninit;

use libc::sockaddr_storage;

use super::reason;
use crate::errno::Errno;
use crate::os::pages::memlock;
use crate::os::sockaddr::{SockAddr, inet, zeroed};
use crate::os::text::FixedString;

/// Maximum length of a device name, with its NUL (IBV_SYSFS_NAME_MAX).
const MAX_NAME: usize = 64;

/// Addresses and device of an id, or of an rsocket's id.
#[derive(Clone, Copy)]
pub struct Endpoints {
    /// The local address; the family is 0 if it is unknown.
    pub src: sockaddr_storage,
    /// The peer's address; the family is 0 if it is unknown.
    pub dst: sockaddr_storage,
    device: [u8; MAX_NAME],
    /// Port of the device.
    pub port: u8,
}

impl Endpoints {
    /// Creates endpoints from both addresses, the device's name, and its port.
    pub fn new(src: sockaddr_storage, dst: sockaddr_storage, device: &[u8], port: u8) -> Endpoints {
        let mut name = [0; MAX_NAME];
        let len = device.len().min(MAX_NAME - 1);
        name[..len].copy_from_slice(&device[..len]);
        Endpoints { src, dst, device: name, port }
    }

    /// Unknown addresses and device.
    pub const NONE: Endpoints = Endpoints { src: zeroed(), dst: zeroed(), device: [0; MAX_NAME], port: 0 };

    /// Sets the local address if `local` is set, otherwise the peer's address. An address that is
    /// known already is kept.
    pub fn add(&mut self, address: &sockaddr_storage, local: bool) {
        let side = if local { &mut self.src } else { &mut self.dst };
        if is_unspecified(side) {
            *side = *address;
        }
    }

    /// Returns the device's name, if it is known.
    pub fn device(&self) -> Option<&str> {
        let name = CStr::from_bytes_until_nul(&self.device).ok()?.to_str().ok()?;
        (!name.is_empty()).then_some(name)
    }
}

/// Returns whether the family is 0, or all bytes after the family are 0, as for a listener's peer.
pub(super) fn is_unspecified(address: &sockaddr_storage) -> bool {
    let bytes = std::ptr::from_ref(address).cast::<[u8; size_of::<sockaddr_storage>()]>();
    let family = size_of::<libc::sa_family_t>();
    // SAFETY: the array has the length of the structure. Each of these structures was zeroed before
    // it was written, so all bytes are initialised.
    address.ss_family == 0 || unsafe { (&*bytes)[family..].iter().all(|&byte| byte == 0) }
}

fn is_loopback(address: &sockaddr_storage) -> bool {
    inet(address).is_some_and(|address| address.ip().to_canonical().is_loopback())
}

/// Returns whether a kernel socket can be bound to the address: the address is an address of this
/// machine, or a wildcard.
fn is_local(address: &sockaddr_storage) -> bool {
    let Some(mut address) = inet(address) else { return false };
    address.set_port(0);
    let name = SockAddr::from_inet(&address);
    // SAFETY: `name` is readable for its length, and the descriptor was opened here.
    unsafe {
        let fd = libc::syscall(libc::SYS_socket, name.family(), libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        let bound = fd >= 0 && libc::syscall(libc::SYS_bind, fd, name.bytes().as_ptr(), c_long::from(name.len())) == 0;
        if fd >= 0 {
            libc::syscall(libc::SYS_close, fd);
        }
        bound
    }
}

/// The facts from which [`reason`] derives the likely reason, in addition to call and errno.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Why the process cannot use RDMA devices; `None` if it can, or if this was not checked.
    pub access: Option<&'static str>,
    /// The limit of locked memory in bytes, if any.
    pub memlock: Option<u64>,
    /// Whether the device is known.
    pub device: bool,
    /// Whether the id is NULL.
    pub null: bool,
    /// Whether one of the addresses is a loopback address.
    pub loopback: bool,
    /// Whether the local address is an address of this machine, or a wildcard. Determined only
    /// after a bind failed with EADDRNOTAVAIL; otherwise false.
    pub local: bool,
}

impl Facts {
    /// Collects the facts that matter for a failed call.
    pub fn gather(name: &str, error: Errno, endpoints: Option<&Endpoints>) -> Facts {
        let mut facts = Facts::of_endpoints(endpoints);
        if reason::depends_on_access(name, error) {
            facts.access = access();
        }
        if reason::depends_on_address(name, error) {
            facts.local = endpoints.is_some_and(|endpoints| is_local(&endpoints.src));
        }
        facts
    }

    /// Collects the facts that need no check of device nodes or of this machine's addresses.
    pub fn of_endpoints(endpoints: Option<&Endpoints>) -> Facts {
        Facts {
            memlock: memlock(),
            device: endpoints.is_some_and(|endpoints| endpoints.device().is_some()),
            loopback: endpoints.is_some_and(|endpoints| [endpoints.src, endpoints.dst].iter().any(is_loopback)),
            ..Facts::default()
        }
    }
}

fn access() -> Option<&'static str> {
    if is_empty(c"/sys/class/infiniband") {
        return Some(reason::NO_DEVICES);
    }
    match faccess(c"/dev/infiniband/rdma_cm") {
        0 => verbs_access(),
        libc::EACCES | libc::EPERM => Some(reason::FORBIDDEN),
        _ if faccessat(c"/sys/class/misc/rdma_cm", libc::F_OK) == 0 => Some(reason::NO_NODE),
        _ => Some(reason::NO_MODULE),
    }
}

fn verbs_access() -> Option<&'static str> {
    /// Number of devices that are checked.
    const DEVICES: u32 = 32;
    let mut result = Some(reason::NO_VERBS_NODE);
    for number in 0..DEVICES {
        let path = |folder: &str| FixedString::<64>::cut(format_args!("{folder}/uverbs{number}"));
        if faccessat(path("/sys/class/infiniband_verbs").as_c_str(), libc::F_OK) != 0 {
            continue;
        }
        match faccess(path("/dev/infiniband").as_c_str()) {
            0 => return None,
            libc::EACCES | libc::EPERM => result = Some(reason::VERBS_FORBIDDEN),
            _ => {}
        }
    }
    result
}

/// Returns 0 if the process may read and write the file with its effective credentials, otherwise
/// the errno.
fn faccess(path: &CStr) -> c_int {
    faccessat(path, libc::R_OK | libc::W_OK)
}

fn faccessat(path: &CStr, mode: c_int) -> c_int {
    let (at, flags) = (libc::AT_FDCWD, libc::AT_EACCESS);
    // SAFETY: `path` is a C string. faccessat2(2), because faccessat(2) checks the real user only.
    match unsafe { libc::syscall(libc::SYS_faccessat2, at, path.as_ptr(), mode, flags) } {
        0 => 0,
        _ => Errno::last().get(),
    }
}

/// Returns whether a directory is missing or unreadable, or has no entries except `.` and `..`.
fn is_empty(directory: &CStr) -> bool {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let mut entries = MaybeUninit::<[u64; 128]>::uninit();
    // SAFETY: `directory` is a C string, `entries` is writable for its size, and the descriptor was
    // opened here.
    unsafe {
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, directory.as_ptr(), flags);
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
    fn addresses_of_this_machine() {
        let is_local = |ip: &str| {
            let port = 65535;
            is_local(SockAddr::from_inet(&(ip.parse::<std::net::IpAddr>().unwrap(), port).into()).storage())
        };
        assert!(is_local("0.0.0.0") && is_local("127.0.0.1") && !is_local("192.0.2.1") && !is_local("2001:db8::1"));
        assert!(!super::is_local(&Endpoints::NONE.src), "no address");
    }

    #[test]
    fn directories_and_files() {
        assert!(is_empty(c"/nowhere"));
        assert!(!is_empty(c"/proc"));
        assert_eq!(faccess(c"/dev/null"), 0);
        assert_eq!(faccess(c"/nowhere"), libc::ENOENT);
    }
}
