//! Finds the GID table entry with which datagrams are sent. This is the entry that the connection
//! manager uses, but does not report.
//!
//! With RoCE, the table has an entry of an address for each RoCE version. If a VLAN has the
//! link-local address of its parent interface, the table has these entries for both interfaces. The
//! CM uses the entry of the interface on which the address was resolved, with the version that the
//! administrator has set (default_roce_mode in configfs): v2 unless the device does not support v2.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{self, NonNull};

use crate::errno::{Errno, Result};
use crate::os::sockaddr::{SockAddr, inet};
use crate::os::text::FixedString;
use crate::verbs::{self, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, ibv_context, ibv_gid_entry};

/// An entry of the table that has the requested GID.
#[derive(Clone, Copy, Debug)]
struct Entry {
    index: u8,
    kind: u32,
    /// Network interface; 0 if the entry has none, or if the kernel does not report it.
    interface: u32,
}

/// Returns the index of `gid` in the port's table of `entries` entries, for datagrams from `local`.
/// Fails with `EADDRNOTAVAIL` if the table lacks `gid`.
///
/// # Safety
/// `context` is open.
pub unsafe fn index(
    context: NonNull<ibv_context>,
    port: u8,
    entries: i32,
    gid: [u8; 16],
    local: &SocketAddr,
) -> Result<u8> {
    // The index has 8 bits in an address handle.
    let indices = (0..=u8::MAX).take(usize::try_from(entries).unwrap_or(0));
    let found = indices.filter_map(|index| {
        let mut entry = ibv_gid_entry::default();
        let (port, place, size) = (u32::from(port), u32::from(index), size_of::<ibv_gid_entry>());
        // SAFETY: the context is open: guaranteed by the caller. The entry is writable, of the size
        // given.
        let result = unsafe { verbs::_ibv_query_gid_ex(context.as_ptr(), port, place, &raw mut entry, 0, size) };
        // SAFETY: all members of the union are numbers, and share the 16 bytes.
        let is_it = result == 0 && unsafe { entry.gid.raw } == gid;
        is_it.then_some(Entry { index, kind: entry.gid_type, interface: entry.ndev_ifindex })
    });
    // SAFETY: the context is open: guaranteed by the caller, so its device exists; libibverbs
    // terminates the device's name.
    let device = unsafe { CStr::from_ptr((*(*context.as_ptr()).device).name.as_ptr()) };
    let usual = usual_kind("/sys/kernel/config/rdma_cm", device, port);
    choose(found, |interface| has(interface, local), usual).ok_or(Errno::EADDRNOTAVAIL)
}

/// Returns the index of the first entry whose interface is ours (`is_ours`) and whose RoCE version
/// is `usual`, otherwise the index of the best match. `entries` is sorted by index, and is read
/// only up to the first exact match.
fn choose(entries: impl IntoIterator<Item = Entry>, is_ours: impl Fn(u32) -> bool, usual: u32) -> Option<u8> {
    let mut best = None;
    for entry in entries {
        let (foreign, unusual) = (!is_ours(entry.interface), entry.kind != usual);
        if !foreign && !unusual {
            return Some(entry.index);
        }
        let distance = (foreign, unusual, entry.kind != IBV_GID_TYPE_ROCE_V2, entry.index);
        best = Some(best.map_or(distance, |best| distance.min(best)));
    }
    best.map(|(.., index)| index)
}

/// Returns whether the interface has the address. A link-local address names its interface as the
/// scope.
fn has(interface: u32, address: &SocketAddr) -> bool {
    match address {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => interface == v6.scope_id(),
        _ => has_ip(interface, address.ip()),
    }
}

fn has_ip(interface: u32, ip: IpAddr) -> bool {
    let mut list = ptr::null_mut();
    // SAFETY: `list` is writable, and its entries are valid until it is freed. An address has the
    // length of its family's structure.
    unsafe {
        if libc::getifaddrs(&raw mut list) != 0 {
            return false;
        }
        let mut next = list;
        let mut found = false;
        while let Some(entry) = next.as_ref().filter(|_| !found) {
            found = ip_of(entry.ifa_addr) == Some(ip) && libc::if_nametoindex(entry.ifa_name) == interface;
            next = entry.ifa_next;
        }
        libc::freeifaddrs(list);
        found
    }
}

/// # Safety
/// `address` is NULL, or points to a socket address with all the bytes of its family's structure.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: NULL, or complete for its family: guaranteed by the caller.
    let address = unsafe { SockAddr::from_nullable(address) }.ok()??;
    inet(address.storage()).map(|full| full.ip())
}

/// Returns the RoCE version that the connection manager uses on a port, as set in `folder`
/// (configfs); v2 if the setting cannot be read.
fn usual_kind(folder: &str, device: &CStr, port: u8) -> u32 {
    let read = || {
        let device = device.to_str().ok()?;
        let path = FixedString::<256>::new(format_args!("{folder}/{device}/ports/{port}/default_roce_mode")).ok()?;
        let mut text = [0; 32];
        let mut file = File::open(OsStr::from_bytes(path.as_c_str().to_bytes())).ok()?;
        let len = file.read(&mut text).ok()?;
        Some(if text.get(..len)?.trim_ascii().ends_with(b"v1") { IBV_GID_TYPE_ROCE_V1 } else { IBV_GID_TYPE_ROCE_V2 })
    };
    read().unwrap_or(IBV_GID_TYPE_ROCE_V2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: u32 = IBV_GID_TYPE_ROCE_V1;
    const V2: u32 = IBV_GID_TYPE_ROCE_V2;

    fn entry(index: u8, kind: u32, interface: u32) -> Entry {
        Entry { index, kind, interface }
    }

    #[test]
    fn a_vlan_with_the_same_link_local_address() {
        let table = [entry(0, V1, 3), entry(1, V2, 3), entry(6, V1, 9), entry(7, V2, 9)];
        assert_eq!(choose(table, |interface| interface == 3, V2), Some(1));
        assert_eq!(choose(table, |interface| interface == 9, V2), Some(7));
        assert_eq!(choose(table, |interface| interface == 9, V1), Some(6));
    }

    #[test]
    fn the_version_that_is_there() {
        assert_eq!(choose([entry(0, V1, 3)], |_| true, V2), Some(0));
        assert_eq!(choose([entry(4, V2, 3), entry(2, V2, 3)], |_| true, V1), Some(2));
        assert_eq!(choose([], |_| true, V2), None);
    }

    #[test]
    fn the_interface_counts_more_than_the_version() {
        let table = [entry(1, V2, 3), entry(255, V1, 9)];
        assert_eq!(choose(table, |interface| interface == 9, V2), Some(255));
        // The kernel does not report interfaces.
        assert_eq!(choose([entry(0, V1, 0), entry(1, V2, 0)], |_| false, V2), Some(1));
    }

    #[test]
    fn interfaces_and_their_addresses() {
        // SAFETY: a C string.
        let lo = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
        let local = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert!(lo != 0 && has(lo, &local("127.0.0.1:0")) && !has(lo + 1, &local("127.0.0.1:0")));
        assert!(!has(lo, &local("192.0.2.1:0")));
        assert!(has(7, &local("[fe80::1%7]:0")) && !has(8, &local("[fe80::1%7]:0")));
    }

    #[test]
    fn the_administrators_version() {
        let folder = std::env::temp_dir().join(format!("rdmacm-gid-{}", std::process::id()));
        let port = folder.join("dev0/ports/1");
        std::fs::create_dir_all(&port).unwrap();
        let kind = |text: &str| {
            std::fs::write(port.join("default_roce_mode"), text).unwrap();
            usual_kind(folder.to_str().unwrap(), c"dev0", 1)
        };
        assert_eq!((kind("IB/RoCE v1\n"), kind("RoCE v2\n"), kind("")), (V1, V2, V2));
        assert_eq!(usual_kind(folder.to_str().unwrap(), c"dev1", 1), V2);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
