//! The network interfaces of RDMA ports (netlink), and the addresses of interfaces (getifaddrs(3)).

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use base::netlink::{self, MESSAGE_HEADER, Message, Messages};
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

use crate::devices::read;

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

/// File with the kernel's version.
pub const RELEASE: &str = "/proc/sys/kernel/osrelease";

/// Returns the interface of a port of the device with this index. Returns `None` if the port has no
/// interface or the kernel does not support the request.
pub fn of_port(device: u32, port: u32) -> Option<String> {
    let reply = receive(&request(PORT_GET, 0, &[(DEV_INDEX, device), (PORT_INDEX, port)])?)?;
    text(&answer(&reply)?, NDEV_NAME)
}

/// Returns whether the kernel is 4.20 or later, and so reports the interface of a port.
pub fn tells_interfaces() -> bool {
    let release = read(RELEASE).unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (4, 20)
}

/// Returns whether each device is visible only in the network namespace that it belongs to. Returns
/// false on kernels before 5.2 and kernels without RDMA, which do not report the mode.
pub fn is_exclusive() -> bool {
    request(SYS_GET, 0, &[]).and_then(|socket| receive(&socket)).is_some_and(|reply| shows_exclusive(&reply))
}

fn shows_exclusive(reply: &[u8]) -> bool {
    answer(reply).and_then(|answer| answer.attribute(NETNS_MODE)?.first().copied()) == Some(0)
}

/// Returns the kernel's index of the device with this name; `None` if there is no such device.
pub fn index_of(device: &str) -> Option<u32> {
    let socket = request(GET, libc::NLM_F_DUMP, &[])?;
    let mut index = None;
    while let Some(reply) = receive(&socket).filter(|reply| !reply.is_empty()) {
        for message in Messages(&reply) {
            if !is_of_nldev(&message) {
                return index;
            }
            if text(&message, DEV_NAME).as_deref() == Some(device) {
                index = message.attribute(DEV_INDEX).and_then(|value| value.try_into().ok()).map(u32::from_ne_bytes);
            }
        }
    }
    index
}

fn text(message: &Message<'_>, attribute: u16) -> Option<String> {
    CStr::from_bytes_until_nul(message.attribute(attribute)?).ok()?.to_str().ok().map(str::to_owned)
}

/// Opens a netlink socket and sends a request. Returns the socket, or `None` if a call fails.
fn request(command: u16, flags: libc::c_int, values: &[(u16, u32)]) -> Option<OwnedFd> {
    let mut message = vec![0; MESSAGE_HEADER];
    for (attribute, value) in values {
        netlink::push_attribute(&mut message, *attribute, &value.to_ne_bytes());
    }
    netlink::write_header(&mut message, command, (libc::NLM_F_REQUEST | flags) as u16, 0, 0);
    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRDMA).ok()?;
    send(socket.as_raw_fd(), &message, MsgFlags::empty()).ok().map(|_| socket)
}

fn receive(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut reply = vec![0; 32768];
    let length = recv(socket.as_raw_fd(), &mut reply, MsgFlags::empty()).ok()?;
    reply.truncate(length);
    Some(reply)
}

/// Returns the first message of a reply, or `None` if the first message is an error.
fn answer(reply: &[u8]) -> Option<Message<'_>> {
    Messages(reply).next().filter(is_of_nldev)
}

/// Returns whether the message is of RDMA_NL_NLDEV, and not netlink's error or end of a list. Does
/// not compare the command: the answer to PORT_GET has the type of GET.
fn is_of_nldev(message: &Message<'_>) -> bool {
    message.kind >> 10 == GET >> 10
}

/// Returns the addresses of each interface, except for link-local IPv6 addresses, which need a
/// scope to connect to.
pub fn addresses() -> BTreeMap<String, Vec<IpAddr>> {
    let mut found: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for entry in interfaces() {
        let addresses = found.entry(entry.interface_name).or_default();
        let Some(address) = entry.address else { continue };
        if let Some(v4) = address.as_sockaddr_in() {
            addresses.push(v4.ip().into());
        } else if let Some(v6) = address.as_sockaddr_in6().filter(|v6| !v6.ip().is_unicast_link_local()) {
            addresses.push(v6.ip().into());
        }
    }
    found
}

fn interfaces() -> impl Iterator<Item = InterfaceAddress> {
    getifaddrs().into_iter().flatten()
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
    let network = |entry: InterfaceAddress| {
        let (address, mask) = (entry.address?.as_sockaddr_in()?.ip(), entry.netmask?.as_sockaddr_in()?.ip());
        let is_up = entry.flags.contains(InterfaceFlags::IFF_UP) && !entry.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        is_up.then_some(Network { interface: entry.interface_name, address, mask: mask.to_bits() })
    };
    interfaces().filter_map(network).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(attribute: u16, value: &[u8]) -> Vec<u8> {
        let mut message = vec![0; MESSAGE_HEADER];
        netlink::push_attribute(&mut message, 3, &[1, 0, 0, 0]);
        netlink::push_attribute(&mut message, attribute, value);
        netlink::write_header(&mut message, GET, 0, 0, 0);
        message
    }

    #[test]
    fn name_of_an_interface() {
        let mut reply = reply(NDEV_NAME, b"v0\0");
        assert_eq!(text(&answer(&reply).unwrap(), NDEV_NAME).as_deref(), Some("v0"));
        assert_eq!(text(&answer(&reply).unwrap(), DEV_NAME), None);
        reply[4..6].copy_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
        assert_eq!((answer(&reply), answer(&[])), (None, None));
    }

    #[test]
    fn mode_of_namespaces() {
        assert!(shows_exclusive(&reply(NETNS_MODE, &[0])));
        assert!(!shows_exclusive(&reply(NETNS_MODE, &[1])) && !shows_exclusive(&reply(DEV_NAME, &[0])));
        assert!(!shows_exclusive(&[]));
    }

    #[test]
    fn the_loopback_address_is_found() {
        assert!(addresses().values().flatten().any(IpAddr::is_loopback));
    }
}
