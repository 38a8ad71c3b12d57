//! The network interfaces of RDMA ports (netlink), and the addresses of interfaces (getifaddrs(3)).

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

const NETLINK_RDMA: libc::c_int = 20;
/// Message type: RDMA_NLDEV_CMD_PORT_GET of the client RDMA_NL_NLDEV (rdma/rdma_netlink.h).
const PORT_GET: u16 = (5 << 10) + 5;
/// Message type: RDMA_NLDEV_CMD_GET.
const GET: u16 = (5 << 10) + 1;
/// Message type: RDMA_NLDEV_CMD_SYS_GET.
const SYS_GET: u16 = (5 << 10) + 6;
/// Attributes: RDMA_NLDEV_ATTR_*.
const DEV_NAME: u16 = 2;
const DEV_INDEX: u16 = 1;
const PORT_INDEX: u16 = 3;
const NDEV_NAME: u16 = 51;
/// Attribute RDMA_NLDEV_SYS_ATTR_NETNS_MODE: a byte, 0 if each device belongs to one network
/// namespace, 1 if all namespaces share all devices.
const NETNS_MODE: u16 = 66;
/// Bytes of a message header.
const HEADER: usize = 16;
/// Bytes of an attribute header.
const ATTRIBUTE: usize = 4;

/// Returns the interface of a port of the device with this index. Returns `None` if the port has
/// none or the kernel does not support the request.
pub fn of_port(device: u32, port: u32) -> Option<String> {
    text(&query(PORT_GET, &[(DEV_INDEX, device), (PORT_INDEX, port)])?, NDEV_NAME)
}

/// Returns whether the kernel, of 4.20 or later, tells the interface of a port.
pub fn tells_interfaces() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (4, 20)
}

/// Returns whether each device is visible only in the network namespace that it belongs to. Kernels
/// before 5.2 and those without RDMA have no such mode.
pub fn is_exclusive() -> bool {
    query(SYS_GET, &[]).is_some_and(|message| shows_exclusive(&message))
}

fn shows_exclusive(message: &[u8]) -> bool {
    let attributes = attributes(message.get(HEADER..).unwrap_or_default());
    attributes.get(&NETNS_MODE).and_then(|value| value.first()) == Some(&0)
}

/// Returns the kernel's index of the device with this name.
pub fn index_of(device: &str) -> Option<u32> {
    let mut index = None;
    for_each(GET, |message| {
        if text(message, DEV_NAME).as_deref() == Some(device) {
            index = number(message, DEV_INDEX);
        }
    });
    index
}

fn number(message: &[u8], attribute: u16) -> Option<u32> {
    let attributes = attributes(message.get(HEADER..)?);
    attributes.get(&attribute)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn text(message: &[u8], attribute: u16) -> Option<String> {
    let attributes = attributes(message.get(HEADER..)?);
    CStr::from_bytes_until_nul(attributes.get(&attribute)?).ok()?.to_str().ok().map(str::to_owned)
}

fn request(command: u16, flags: libc::c_int, values: &[(u16, u32)]) -> Vec<u8> {
    let mut message = Vec::new();
    let length = (HEADER + values.len() * (ATTRIBUTE + 4)) as u32;
    message.extend(length.to_ne_bytes());
    message.extend(command.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
    message.extend([0; 8]);
    for (attribute, value) in values {
        message.extend(((ATTRIBUTE + 4) as u16).to_ne_bytes());
        message.extend(attribute.to_ne_bytes());
        message.extend(value.to_ne_bytes());
    }
    message
}

/// Opens a netlink socket and sends a request.
fn send(request: &[u8]) -> Option<OwnedFd> {
    // SAFETY: the descriptor is new and has no other owner; `request` is readable for its length.
    unsafe {
        let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, NETLINK_RDMA);
        let socket = (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))?;
        (libc::send(fd, request.as_ptr().cast(), request.len(), 0) >= 0).then_some(socket)
    }
}

fn receive(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut reply = vec![0; 32768];
    // SAFETY: `reply` is writable for its length.
    let received = unsafe { libc::recv(socket.as_raw_fd(), reply.as_mut_ptr().cast(), reply.len(), 0) };
    reply.truncate(usize::try_from(received).ok()?);
    Some(reply)
}

/// Sends a request and returns the reply.
fn query(command: u16, values: &[(u16, u32)]) -> Option<Vec<u8>> {
    let reply = receive(&send(&request(command, 0, values))?)?;
    // The kernel replies to PORT_GET with the type of GET; an error has a type of netlink itself.
    (kind(&reply)? >> 10 == command >> 10).then_some(reply)
}

/// Returns the type of a message.
fn kind(message: &[u8]) -> Option<u16> {
    message.get(4..6)?.first_chunk().copied().map(u16::from_ne_bytes)
}

/// Calls `call` with each message of the reply to a dump request.
fn for_each(command: u16, mut call: impl FnMut(&[u8])) {
    let Some(socket) = send(&request(command, libc::NLM_F_DUMP, &[])) else { return };
    while let Some(reply) = receive(&socket) {
        for message in messages(&reply) {
            match kind(message) {
                Some(kind) if kind >> 10 == command >> 10 => call(message),
                // The end of the list, or an error.
                _ => return,
            }
        }
        if reply.is_empty() {
            return;
        }
    }
}

/// Returns the messages of one datagram.
fn messages(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let Some(length) = bytes.first_chunk().map(|length| u32::from_ne_bytes(*length) as usize) {
        let Some(message) = bytes.get(..length).filter(|_| length >= HEADER) else { break };
        found.push(message);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// Returns the attributes of a message by their type.
fn attributes(mut bytes: &[u8]) -> BTreeMap<u16, &[u8]> {
    let mut found = BTreeMap::new();
    while let [a, b, c, d, ..] = *bytes {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let Some(value) = bytes.get(ATTRIBUTE..length) else { break };
        found.insert(u16::from_ne_bytes([c, d]) & 0x3fff, value);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// Returns the addresses of each interface, except for link-local IPv6 addresses, which need a
/// scope to connect to.
pub fn addresses() -> BTreeMap<String, Vec<IpAddr>> {
    let mut found: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    each_address(|entry, name| {
        let addresses = found.entry(name).or_default();
        // SAFETY: the address of a live entry is NULL or of its family.
        unsafe {
            match family(entry.ifa_addr) {
                libc::AF_INET => addresses.push(ipv4(entry.ifa_addr).into()),
                libc::AF_INET6 => {
                    let address = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    let address = Ipv6Addr::from(address.sin6_addr.s6_addr);
                    if !address.is_unicast_link_local() {
                        addresses.push(address.into());
                    }
                }
                _ => {}
            }
        }
    });
    found
}

/// An IPv4 address of an interface, with its subnet.
#[derive(Debug)]
pub struct Network {
    pub interface: String,
    pub address: Ipv4Addr,
    pub mask: u32,
}

/// Returns the IPv4 addresses of the interfaces that are up, except for loopback.
pub fn networks() -> Vec<Network> {
    let mut found = Vec::new();
    each_address(|entry, interface| {
        let flags = entry.ifa_flags as libc::c_int;
        // SAFETY: the addresses of a live entry are NULL or of its family.
        unsafe {
            if family(entry.ifa_addr) == libc::AF_INET
                && !entry.ifa_netmask.is_null()
                && flags & (libc::IFF_UP | libc::IFF_LOOPBACK) == libc::IFF_UP
            {
                let mask = ipv4(entry.ifa_netmask).to_bits();
                found.push(Network { interface, address: ipv4(entry.ifa_addr), mask });
            }
        }
    });
    found
}

/// Calls `call` with each address of each interface, and the interface's name.
fn each_address(mut call: impl FnMut(&libc::ifaddrs, String)) {
    let mut list = ptr::null_mut();
    // SAFETY: `list` is writable; its entries, names and addresses are valid until it is freed.
    unsafe {
        if libc::getifaddrs(&raw mut list) != 0 {
            return;
        }
        let mut next = list;
        while let Some(entry) = next.as_ref() {
            call(entry, CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned());
            next = entry.ifa_next;
        }
        libc::freeifaddrs(list);
    }
}

/// Returns the address family, or 0 without an address.
///
/// # Safety
/// The address is NULL or readable.
unsafe fn family(address: *const libc::sockaddr) -> libc::c_int {
    // SAFETY: NULL or readable: guaranteed by the caller.
    unsafe { address.as_ref() }.map_or(0, |address| address.sa_family.into())
}

/// # Safety
/// The address is a `sockaddr_in`.
unsafe fn ipv4(address: *const libc::sockaddr) -> Ipv4Addr {
    // SAFETY: a `sockaddr_in`: guaranteed by the caller.
    let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
    Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr))
}

/// Returns the socket address of an IP address and a port, and its length.
pub fn socket_address(address: IpAddr, port: u16) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zeros are a valid sockaddr_storage, which is large and aligned enough for both
    // types.
    unsafe {
        let mut storage: libc::sockaddr_storage = zeroed();
        let len = match address {
            IpAddr::V4(ip) => {
                let sin = &mut *(&raw mut storage).cast::<libc::sockaddr_in>();
                sin.sin_family = libc::AF_INET as libc::sa_family_t;
                sin.sin_port = port.to_be();
                sin.sin_addr.s_addr = ip.to_bits().to_be();
                size_of::<libc::sockaddr_in>()
            }
            IpAddr::V6(ip) => {
                let sin6 = &mut *(&raw mut storage).cast::<libc::sockaddr_in6>();
                sin6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                sin6.sin6_port = port.to_be();
                sin6.sin6_addr.s6_addr = ip.octets();
                size_of::<libc::sockaddr_in6>()
            }
        };
        (storage, len as libc::socklen_t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_a_message() {
        let mut bytes = Vec::new();
        for (attribute, value) in [(2_u16, &b"rxe0\0"[..]), (NDEV_NAME, b"v0\0"), (3, &[1, 0, 0, 0])] {
            bytes.extend(((value.len() + ATTRIBUTE) as u16).to_ne_bytes());
            bytes.extend(attribute.to_ne_bytes());
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        let found = attributes(&bytes);
        assert_eq!((found.len(), found[&NDEV_NAME]), (3, &b"v0\0"[..]));
        assert!(attributes(&[255, 0, 1]).is_empty() && attributes(&[255, 0, 1, 0, 7]).is_empty());
    }

    #[test]
    fn mode_of_namespaces() {
        let reply = |attribute: u16, mode: u8| {
            let mut bytes = vec![0; HEADER];
            bytes.extend(5_u16.to_ne_bytes());
            bytes.extend(attribute.to_ne_bytes());
            bytes.extend([mode, 0, 0, 0]);
            bytes
        };
        assert!(shows_exclusive(&reply(NETNS_MODE, 0)));
        assert!(!shows_exclusive(&reply(NETNS_MODE, 1)) && !shows_exclusive(&reply(DEV_NAME, 0)));
        assert!(!shows_exclusive(&[]));
    }

    #[test]
    fn the_loopback_address_is_found() {
        assert!(addresses().values().flatten().any(IpAddr::is_loopback));
    }
}
