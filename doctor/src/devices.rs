//! RDMA devices, their ports, and the addresses that programs reach them by.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use crate::netdev;
use crate::report::Report;

/// A port of a device.
#[derive(Debug)]
pub struct Port {
    /// DEVICE/PORT.
    pub name: String,
    pub device: String,
    active: bool,
    state: String,
    link: String,
    gids: usize,
    interface: Option<String>,
    up: bool,
    pub addresses: Vec<IpAddr>,
}

/// The names in a folder, in order; none where there is no such folder.
pub fn entries(folder: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// All ports of all devices.
pub fn all() -> Vec<Port> {
    const CLASS: &str = "/sys/class/infiniband";
    let addresses = netdev::addresses();
    let mut found = Vec::new();
    for device in entries(CLASS) {
        for number in entries(&format!("{CLASS}/{device}/ports")) {
            let folder = format!("{CLASS}/{device}/ports/{number}");
            let state = read(&format!("{folder}/state")).unwrap_or_default();
            let interface = interface(&device, &number, &folder);
            let of_interface = interface.as_ref().and_then(|name| addresses.get(name));
            found.push(Port {
                name: format!("{device}/{number}"),
                active: state.ends_with("ACTIVE"),
                state,
                link: read(&format!("{folder}/link_layer")).unwrap_or_default(),
                gids: gids(&folder),
                up: interface.as_ref().is_some_and(|name| is_up(name)),
                addresses: of_interface.cloned().unwrap_or_default(),
                interface,
                device: device.clone(),
            });
        }
    }
    found
}

/// The network interface of a port: by netlink, by its GIDs, or the one of the device's bus address.
fn interface(device: &str, number: &str, folder: &str) -> Option<String> {
    let index = (0..1024).find(|index| index_is(device, *index));
    index
        .zip(number.parse().ok())
        .and_then(|(index, port)| netdev::of_port(index, port))
        .or_else(|| read(&format!("{folder}/gid_attrs/ndevs/0")).filter(|name| !name.is_empty()))
        .or_else(|| entries(&format!("/sys/class/infiniband/{device}/device/net")).into_iter().next())
}

/// Whether the kernel knows the device by this index: asked of its first port, by which an interface would show.
fn index_is(device: &str, index: u32) -> bool {
    netdev::name_of(index).as_deref() == Some(device)
}

fn gids(folder: &str) -> usize {
    entries(&format!("{folder}/gids"))
        .into_iter()
        .filter(|entry| {
            read(&format!("{folder}/gids/{entry}")).is_some_and(|gid| gid.bytes().any(|byte| !b"0:".contains(&byte)))
        })
        .count()
}

fn is_up(interface: &str) -> bool {
    let flags = read(&format!("/sys/class/net/{interface}/flags")).unwrap_or_default();
    flags.strip_prefix("0x").and_then(|hex| u32::from_str_radix(hex, 16).ok()).is_some_and(|flags| flags & 1 == 1)
}

/// What there is, and whether it can be used.
pub fn check(ports: &[Port], report: &mut Report) {
    if ports.is_empty() {
        report.problem(
            "devices",
            "this machine has no RDMA device",
            "load the adapter's driver (lspci -k shows which), or make a software device: rdma link add rxe0 type rxe netdev INTERFACE",
        );
        return;
    }
    for port in ports {
        state(port, report);
        addresses(port, report);
    }
    if !Path::new("/etc/libibverbs.d").is_dir() && entries("/usr/share/libibverbs.d").is_empty() {
        report.warning(
            "devices",
            "there are no /etc/libibverbs.d/*.driver files: libibverbs may find no driver for the devices",
            "install the package with libibverbs' drivers (Debian: ibverbs-providers)",
        );
    }
}

fn state(port: &Port, report: &mut Report) {
    if port.active {
        report.ok("ports", format!("{} ({}) is active, with {} GIDs", port.name, port.link, port.gids));
    } else {
        let advice = match port.link.as_str() {
            "InfiniBand" => "is the cable in, and does a subnet manager run (opensm, or in the switch)?",
            _ => "is the cable in, and the network interface up (ip link set INTERFACE up)?",
        };
        report.problem("ports", format!("{} ({}) is not active: {}", port.name, port.link, port.state), advice);
    }
    if port.active && port.gids == 0 {
        report.problem("ports", format!("{} has no GID", port.name), "set an IP address on its network interface");
    }
}

fn addresses(port: &Port, report: &mut Report) {
    let Some(interface) = &port.interface else {
        let advice =
            "for InfiniBand load ib_ipoib and set an address; programs that use IP addresses cannot reach it otherwise";
        return report.warning("addresses", format!("{} has no network interface", port.name), advice);
    };
    if !port.up {
        let advice = format!("ip link set {interface} up");
        report.problem("addresses", format!("{}: its network interface {interface} is down", port.name), advice);
    } else if port.addresses.is_empty() {
        report.problem(
            "addresses",
            format!("{}: its network interface {interface} has no IP address", port.name),
            format!("ip addr add ADDRESS/LENGTH dev {interface}"),
        );
    } else {
        let list: Vec<String> = port.addresses.iter().map(IpAddr::to_string).collect();
        report.ok("addresses", format!("{} is {interface}: {}", port.name, list.join(", ")));
    }
}
