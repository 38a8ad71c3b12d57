//! RDMA devices, their ports, and the IP addresses of the ports.

use std::collections::VecDeque;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use crate::codes::{Check, Problem, Warning};
use crate::netdev;
use crate::report::{Report, count};

pub const CLASS: &str = "/sys/class/infiniband";

/// A port of an RDMA device.
#[derive(Debug)]
pub struct Port {
    /// The name in the form DEVICE/PORT.
    pub name: String,
    pub device: String,
    pub active: bool,
    /// The state as sysfs shows it, such as "2: INIT".
    pub state: String,
    link: String,
    /// Whether the device is an iWARP adapter.
    iwarp: bool,
    gids: usize,
    /// The port's network interface, and its upper interfaces: VLANs, bonds, IPoIB children.
    pub interfaces: Vec<String>,
    /// The port's network interface, if it is in another network namespace.
    elsewhere: Option<String>,
    /// Whether the first interface, or any interface with an address, is up.
    up: bool,
    pub addresses: Vec<IpAddr>,
    /// Whether the port is meant to be used: it has an interface, and somebody has set an address,
    /// connected a cable, or added the software device.
    configured: bool,
}

/// What prevents connections through a port.
struct Defect {
    /// The code of the problem that is reported if no port works. `None` if programs that use no IP
    /// addresses can still use the port: such a defect is only a warning.
    code: Option<Problem>,
    text: String,
    advice: String,
}

impl Port {
    /// Returns whether the port is active and uses RoCE.
    pub fn is_roce(&self) -> bool {
        self.active && self.link == "Ethernet" && !self.iwarp
    }

    /// Returns whether the port is an InfiniBand port, active or not.
    pub fn is_infiniband(&self) -> bool {
        self.link == "InfiniBand" && !self.iwarp
    }

    /// Returns the port's path relative to [`CLASS`] and to rdma_cm's configfs directory.
    pub fn path(&self) -> String {
        self.name.replace('/', "/ports/")
    }

    /// Returns whether programs can connect through the port.
    pub fn is_usable(&self) -> bool {
        self.defect().is_none()
    }

    fn defect(&self) -> Option<Defect> {
        let found =
            |code, text: String, advice: &str| Some(Defect { code: Some(code), text, advice: advice.to_owned() });
        let name = &self.name;
        if let Some(interface) = &self.elsewhere {
            return found(
                Problem::AddressesOtherNamespace,
                format!("{name}: its network interface {interface} is in another network namespace"),
                "connections fail with ADDR_ERROR, ENODEV: run the program where the interface is, or move it here (ip link set INTERFACE netns PID); in Kubernetes, give the pod the interface by a CNI plug-in (SR-IOV, macvlan, host-device) or hostNetwork",
            );
        }
        let interface = self.interfaces.first();
        // A RoCE or iWARP port, unlike an InfiniBand port, is inactive while its interface is down.
        if let Some(interface) = interface.filter(|_| !self.up && (self.active || !self.is_infiniband())) {
            return found(
                Problem::AddressesInterfaceDown,
                format!("{name}: its network interface {interface} is down"),
                &format!("ip link set {interface} up"),
            );
        }
        if !self.active {
            let advice = match (self.is_infiniband(), self.state.ends_with("DOWN")) {
                (true, true) => "is the cable connected, and is a subnet manager running (opensm, or in the switch)?",
                (true, false) => {
                    "the cable is connected: start a subnet manager (opensm, or the one in the switch), or find out why it does not reach this port"
                }
                (false, _) => "is the cable connected?",
            };
            return found(
                Problem::PortsInactive,
                format!("{name} ({}) is not active: {}", self.link, self.state),
                advice,
            );
        }
        let Some(interface) = interface else {
            let advice = if self.is_infiniband() {
                "load ib_ipoib and set an address; without one, programs that use IP addresses cannot connect"
            } else {
                "is it in another network namespace?"
            };
            let text = format!("{name} has no network interface");
            return Some(Defect { code: None, text, advice: advice.to_owned() });
        };
        if self.addresses.is_empty() {
            return found(
                Problem::AddressesNone,
                format!("{name}: its network interface {interface} has no IP address"),
                &format!("ip addr add ADDRESS/LENGTH dev {interface}"),
            );
        }
        if self.gids == 0 {
            let advice = format!("set {interface} down and up again, and see dmesg");
            return found(Problem::PortsNoGid, format!("{name} has no GID"), &advice);
        }
        None
    }
}

/// Returns the names in a directory, sorted. The list is empty if the directory cannot be read.
pub fn entries(directory: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Returns a file's text without surrounding white space; `None` if it cannot be read.
pub fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Returns the hexadecimal number in a file, such as 0x8001; `None` if the file has no such number.
pub fn hexadecimal(path: &str) -> Option<u32> {
    u32::from_str_radix(read(path)?.strip_prefix("0x")?, 16).ok()
}

/// Returns all ports of all devices.
pub fn all() -> Vec<Port> {
    let addresses = netdev::addresses();
    let mut found = Vec::new();
    for device in entries(CLASS) {
        for number in entries(&format!("{CLASS}/{device}/ports")) {
            let directory = format!("{CLASS}/{device}/ports/{number}");
            let state = read(&format!("{directory}/state")).unwrap_or_default();
            let of_port = netdev::index_of(&device)
                .zip(number.parse().ok())
                .and_then(|(index, port)| netdev::of_port(index, port));
            let elsewhere = elsewhere(&directory, of_port.as_deref());
            let interfaces =
                if elsewhere.is_some() { Vec::new() } else { interfaces(NET, &device, &directory, of_port) };
            let addresses_of = |name: &String| addresses.get(name).cloned().unwrap_or_default();
            let with_address: Vec<&String> = interfaces.iter().filter(|name| !addresses_of(name).is_empty()).collect();
            let is_software = !Path::new(&format!("{CLASS}/{device}/device")).exists();
            let configured = !with_address.is_empty() || !state.ends_with("DOWN") || is_software;
            let with_address: Vec<&String> = with_address.into_iter().filter(|name| is_up(name)).collect();
            found.push(Port {
                name: format!("{device}/{number}"),
                active: state.ends_with("ACTIVE"),
                state,
                link: read(&format!("{directory}/link_layer")).unwrap_or_default(),
                iwarp: read(&format!("{CLASS}/{device}/node_type")).is_some_and(|kind| kind.contains("RNIC")),
                gids: gids(&directory),
                up: !with_address.is_empty() || interfaces.first().is_some_and(|name| is_up(name)),
                addresses: with_address.into_iter().flat_map(addresses_of).collect(),
                configured: configured && !interfaces.is_empty(),
                interfaces,
                elsewhere,
                device: device.clone(),
            });
        }
    }
    found
}

/// Returns the names of the devices.
pub fn names(ports: &[Port]) -> Vec<&str> {
    let mut names: Vec<&str> = ports.iter().map(|port| port.device.as_str()).collect();
    names.dedup();
    names
}

pub const NET: &str = "/sys/class/net";

/// Returns the name of a port's interface in another network namespace, if the port's GIDs name
/// such an interface. `of_port` is the interface that netlink reports, which is always in this
/// namespace. On kernels that do not report interfaces, a name that exists in this namespace is
/// taken to be the port's interface.
fn elsewhere(directory: &str, of_port: Option<&str>) -> Option<String> {
    if of_port.is_some() {
        return None;
    }
    let may_be_here = |name: &String| !netdev::tells_interfaces() && Path::new(NET).join(name).exists();
    of_gids(directory).into_iter().find(|name| !may_be_here(name))
}

/// Returns the interfaces that a port's GIDs name.
fn of_gids(directory: &str) -> Vec<String> {
    let ndevs = format!("{directory}/gid_attrs/ndevs");
    let names = entries(&ndevs).into_iter().filter_map(|index| read(&format!("{ndevs}/{index}")));
    names.filter(|name| !name.is_empty()).collect()
}

/// Returns the IPoIB interfaces of a port, except for child interfaces. Their hardware addresses
/// end with the port's GUID, which is taken from the port's first GID.
fn of_guid(net: &str, directory: &str) -> Vec<String> {
    const ARPHRD_INFINIBAND: &str = "32";
    let gid = read(&format!("{directory}/gids/0")).unwrap_or_default().replace(':', "");
    let Some(guid) = gid.get(16..).filter(|guid| !guid.is_empty()) else { return Vec::new() };
    let is_of_port = |name: &String| {
        let attribute = |of: &str| read(&format!("{net}/{name}/{of}")).unwrap_or_default();
        attribute("type") == ARPHRD_INFINIBAND
            && attribute("parent").is_empty()
            && attribute("address").replace(':', "").ends_with(guid)
    };
    entries(net).into_iter().filter(is_of_port).collect()
}

/// Returns the network interfaces of a port, followed by their upper interfaces. The port's
/// interfaces are `of_port` (from netlink) and those that its GIDs name; if there are no such
/// interfaces, its IPoIB interfaces; if it has no IPoIB interfaces, the first interface of the
/// device.
fn interfaces(net: &str, device: &str, directory: &str, of_port: Option<String>) -> Vec<String> {
    let mut found: Vec<String> = of_port.into_iter().collect();
    found.extend(of_gids(directory));
    if found.is_empty() {
        found.extend(of_guid(net, directory));
    }
    if found.is_empty() {
        found.extend(entries(&format!("{CLASS}/{device}/device/net")).into_iter().next());
    }
    with_upper_interfaces(net, found)
}

/// Returns `lower` and its upper interfaces: VLANs, bonds, bridges (links `upper_NAME`), and IPoIB
/// children (file `parent`).
fn with_upper_interfaces(net: &str, lower: Vec<String>) -> Vec<String> {
    let all = entries(net);
    let mut found: Vec<String> = Vec::new();
    let mut next: VecDeque<String> = lower.into();
    while let Some(name) = next.pop_front() {
        if found.contains(&name) {
            continue;
        }
        let attributes = entries(&format!("{net}/{name}"));
        next.extend(attributes.iter().filter_map(|entry| entry.strip_prefix("upper_")).map(str::to_owned));
        let is_child = |other: &&String| read(&format!("{net}/{other}/parent")).as_ref() == Some(&name);
        next.extend(all.iter().filter(is_child).cloned());
        found.push(name);
    }
    found
}

/// Returns the number of GIDs that are set.
fn gids(directory: &str) -> usize {
    entries(&format!("{directory}/gids"))
        .into_iter()
        .filter(|entry| read(&format!("{directory}/gids/{entry}")).is_some_and(|gid| !is_zero(&gid)))
        .count()
}

/// Returns whether a GID or GUID is unset: all zeros.
pub fn is_zero(identifier: &str) -> bool {
    identifier.bytes().all(|byte| b"0:".contains(&byte))
}

fn is_up(interface: &str) -> bool {
    hexadecimal(&format!("{NET}/{interface}/flags")).is_some_and(|flags| flags & 1 == 1)
}

/// Checks whether there are devices, and whether their ports can be used.
pub fn check(ports: &[Port], report: &mut Report) {
    if ports.is_empty() {
        // If ib_core is missing, `machine::modules` has reported it, and `is_exclusive` would load
        // it by opening a netlink socket.
        if Path::new(CLASS).is_dir() {
            report.problem(
                Problem::DevicesNone,
                "this machine has no RDMA device",
                advice_without_devices(netdev::is_exclusive()),
            );
        }
        return;
    }
    let one_works = ports.iter().any(Port::is_usable);
    for port in ports {
        report.about(Some(&port.name));
        match port.defect() {
            None => report_working(port, report),
            Some(Defect { text, .. }) if one_works && !port.configured => {
                report.not_applicable(Check::Ports, format!("{text}; another port works"));
            }
            Some(Defect { text, advice, .. }) if one_works => report.warning(Warning::PortsUnusable, text, advice),
            Some(Defect { code: Some(code), text, advice }) => report.problem(code, text, advice),
            Some(Defect { text, advice, .. }) => report.warning(Warning::AddressesNoInterface, text, advice),
        }
    }
    report.about(None);
    if !Path::new("/etc/libibverbs.d").is_dir() && entries("/usr/share/libibverbs.d").is_empty() {
        report.warning(
            Warning::DevicesNoDrivers,
            "there are no /etc/libibverbs.d/*.driver files: libibverbs may find no driver for the devices",
            "install the package with libibverbs' drivers (Debian: ibverbs-providers)",
        );
    }
}

/// Advice on adding a device.
pub const ADD: &str = "load the adapter's driver (lspci -k shows which), or add a software device: rdma link add rxe0 type rxe netdev INTERFACE";

/// Returns the advice for a machine without devices. If `exclusive`, /sys shows only the devices of
/// the current network namespace.
fn advice_without_devices(exclusive: bool) -> String {
    if !exclusive {
        return ADD.to_owned();
    }
    format!(
        "{ADD}. Each device belongs to one network namespace here (rdma system show: netns exclusive): in a container, have the host move one into it: rdma dev set NAME netns NAMESPACE"
    )
}

fn report_working(port: &Port, report: &mut Report) {
    let gids = count(port.gids, "GID");
    report.ok(Check::Ports, format!("{} ({}) is active, with {gids}", port.name, port.link));
    let list: Vec<String> = port.addresses.iter().map(IpAddr::to_string).collect();
    report.ok(Check::Addresses, format!("{} is {}: {}", port.name, port.interfaces.join(", "), list.join(", ")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::State;

    fn port(name: &str) -> Port {
        Port {
            name: name.to_owned(),
            device: "mlx5_0".to_owned(),
            active: true,
            state: "4: ACTIVE".to_owned(),
            link: "Ethernet".to_owned(),
            iwarp: false,
            gids: 2,
            interfaces: vec!["eth0".to_owned()],
            elsewhere: None,
            up: true,
            addresses: vec!["192.0.2.1".parse().unwrap()],
            configured: true,
        }
    }

    fn worst(ports: &[Port]) -> State {
        let mut report = Report::default();
        check(ports, &mut report);
        report.worst_of("ports").max(report.worst_of("addresses"))
    }

    fn broken() -> [Port; 4] {
        [
            Port { active: false, state: "1: DOWN".to_owned(), ..port("mlx5_0/2") },
            Port { addresses: Vec::new(), ..port("mlx5_1/1") },
            Port { addresses: Vec::new(), up: false, ..port("mlx5_2/1") },
            Port { addresses: Vec::new(), interfaces: Vec::new(), ..port("mlx5_3/1") },
        ]
    }

    #[test]
    fn a_port_that_cannot_be_used_counts_if_it_is_configured_or_no_other_one_works() {
        assert_eq!(worst(&[port("mlx5_0/1")]), State::Ok);
        for other in broken() {
            assert_eq!(worst(&[port("mlx5_0/1"), other]), State::Warning);
        }
        for other in broken().map(|other| Port { configured: false, ..other }) {
            assert!(worst(&[port("mlx5_0/1"), other]) <= State::Ok);
        }
        for [one, two] in broken().into_iter().zip(broken()).map(|(one, two)| [one, two]) {
            assert!(worst(&[one, two]) >= State::Warning);
        }
    }

    #[test]
    fn only_infiniband_needs_ipoib() {
        let advice = |link: &str| {
            let port = Port { interfaces: Vec::new(), link: link.to_owned(), ..port("mlx5_0/1") };
            port.defect().unwrap().advice
        };
        assert!(advice("InfiniBand").contains("ib_ipoib") && !advice("Ethernet").contains("ib_ipoib"));
    }

    #[test]
    fn an_interface_in_another_namespace_is_a_problem() {
        let elsewhere = Port {
            interfaces: Vec::new(),
            addresses: Vec::new(),
            up: false,
            elsewhere: Some("eth0".to_owned()),
            ..port("mlx5_0/1")
        };
        assert_eq!(worst(&[elsewhere]), State::Problem);
    }

    #[test]
    fn without_devices_the_mode_of_namespaces_counts() {
        assert!(advice_without_devices(true).contains("rdma dev set NAME netns"));
        assert!(!advice_without_devices(false).contains("netns"));
    }

    #[test]
    fn guids_of_zeros() {
        assert!(is_zero("0000:0000:0000:0000") && !is_zero("0000:0000:0000:0001"));
    }

    #[test]
    fn unset_gids_do_not_count() {
        let port = std::env::temp_dir().join(format!("rdmacm-doctor-gids-{}", std::process::id()));
        fs::create_dir_all(port.join("gids")).unwrap();
        for (index, gid) in ["fe80::1", "0000:0000:0000:0000:0000:0000:0000:0000", "::ffff:10.0.0.1"].iter().enumerate()
        {
            fs::write(port.join(format!("gids/{index}")), gid).unwrap();
        }
        let set = gids(port.to_str().unwrap());
        fs::remove_dir_all(&port).unwrap();
        assert_eq!(set, 2);
    }

    #[test]
    fn devices_are_named_once() {
        let other = Port { device: "mlx5_1".to_owned(), ..port("mlx5_1/1") };
        assert_eq!(names(&[port("mlx5_0/1"), port("mlx5_0/2"), other]), ["mlx5_0", "mlx5_1"]);
    }

    #[test]
    fn upper_interfaces_are_found() {
        let net = std::env::temp_dir().join(format!("rdmacm-doctor-{}", std::process::id()));
        for path in ["eth0/upper_bond0", "eth1/upper_bond0", "bond0/upper_bond0.5", "bond0.5", "ib0", "ib0.8001", "lo"]
        {
            fs::create_dir_all(net.join(path)).unwrap();
        }
        fs::write(net.join("ib0.8001/parent"), "ib0\n").unwrap();
        let with_upper = |name: &str| with_upper_interfaces(net.to_str().unwrap(), vec![name.to_owned()]);
        assert_eq!(with_upper("eth0"), ["eth0", "bond0", "bond0.5"]);
        assert_eq!(with_upper("ib0"), ["ib0", "ib0.8001"]);
        assert_eq!(with_upper("lo"), ["lo"]);
        fs::remove_dir_all(&net).unwrap();
    }
}
