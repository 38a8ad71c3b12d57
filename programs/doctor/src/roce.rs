//! Checks RoCE ports: the versions of their GIDs, and which GID the connection manager uses for
//! each address. Both ends of a connection must use the same version. RoCE v1 packets are not
//! routed, so hosts behind a gateway cannot be reached with RoCE v1.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::codes::{Check, Warning};
use crate::devices::{CLASS, NET, Port, entries, is_zero, names, read};
use crate::report::Report;

const CONFIGURED: &str = "/sys/kernel/config/rdma_cm";

/// A GID that is set.
#[derive(Debug)]
struct Gid {
    index: u32,
    gid: Ipv6Addr,
    /// Whether the GID is for RoCE v2; otherwise it is for RoCE v1.
    is_v2: bool,
    interface: String,
}

/// Checks the GIDs of RoCE ports.
pub fn check(ports: &[Port], report: &mut Report) {
    for port in ports.iter().filter(|port| port.is_roce()) {
        report.about(Some(&port.name));
        let gids = gids(&format!("{CLASS}/{}", port.path()));
        let mode_file = format!("{CONFIGURED}/{}/default_roce_mode", port.path());
        let mode = read(&mode_file);
        let is_v1 = mode.as_ref().is_some_and(|mode| mode.contains("v1"));
        report_used(port, &gids, mode.as_deref(), report);
        for address in without_v2(&gids, &port.addresses) {
            report.warning(
                Warning::PortsNoRoceV2,
                format!("{} has no RoCE v2 GID for {address}", port.name),
                "peers that use RoCE v2, the default, cannot connect: is RoCE v2 enabled in the adapter (firmware, or module parameters of its driver)?",
            );
        }
        if is_v1 {
            report.warning(
                Warning::PortsRoceV1,
                format!("connections by {} use RoCE v1, which is not routed", port.name),
                format!("peers must use it, too (there: rdmacm-doctor --no-connection | grep RoCE); for RoCE v2: echo \"RoCE v2\" > {mode_file}"),
            );
        }
        if is_v1 || lacks_v2(&gids) {
            check_gateways(port, report);
        }
    }
    report.about(None);
}

/// Reports the RoCE version, the GID and the MTU that connections from each address use: the user
/// compares them with those of the other host.
fn report_used(port: &Port, gids: &[Gid], mode: Option<&str>, report: &mut Report) {
    let is_v2 = mode.map_or(!lacks_v2(gids), |mode| mode.contains("v2"));
    let version = if is_v2 { "v2" } else { "v1" };
    let origin = if mode.is_some() { "default_roce_mode" } else { "the kernel's default" };
    for address in &port.addresses {
        if let Some(used) = used_by(gids, *address, is_v2) {
            let mtu = read(&format!("{NET}/{}/mtu", used.interface)).unwrap_or_else(|| "unknown".to_owned());
            report.ok(
                Check::Ports,
                format!(
                    "{}: connections from {address} use RoCE {version} ({origin}), GID {} of {}, with MTU {mtu}",
                    port.name, used.index, used.interface
                ),
            );
        }
    }
}

/// Reports the gateways of a port that uses RoCE v1: the port cannot reach hosts behind a gateway.
fn check_gateways(port: &Port, report: &mut Report) {
    for (interface, gateway) in gateways(&port.interfaces) {
        report.warning(
            Warning::PortsRoceV1Routed,
            format!(
                "{} uses RoCE v1, and {interface} has a route through {gateway}: hosts behind it cannot be reached",
                port.name
            ),
            "use RoCE v2 on both hosts, or addresses in one subnet",
        );
    }
}

/// Warns of devices whose node GUID is 0.
pub fn check_guids(ports: &[Port], report: &mut Report) {
    for device in names(ports) {
        report.about(Some(device));
        if read(&format!("{CLASS}/{device}/node_guid")).is_some_and(|guid| is_zero(&guid)) {
            report.warning(
                Warning::DevicesNoGuid,
                format!("{device} has the node GUID 0"),
                "the kernel names a connection's device by its GUID: with several such devices, or on kernels before 5.12, connections may fail with ENODEV; create software devices on an interface that has a MAC address",
            );
        }
    }
    report.about(None);
}

/// Returns those GIDs of a port that are set, ordered by index. The list is empty if the kernel
/// does not report the types of GIDs.
fn gids(directory: &str) -> Vec<Gid> {
    let attributes = format!("{directory}/gid_attrs");
    let mut found: Vec<Gid> = entries(&format!("{attributes}/types"))
        .iter()
        .filter_map(|index| {
            // Reading the type of an unset GID fails.
            let kind = read(&format!("{attributes}/types/{index}"))?;
            let gid = read(&format!("{directory}/gids/{index}"))?.parse().ok()?;
            let interface = read(&format!("{attributes}/ndevs/{index}")).unwrap_or_default();
            Some(Gid { index: index.parse().ok()?, gid, is_v2: kind.contains("v2"), interface })
        })
        .collect();
    found.sort_by_key(|gid| gid.index);
    found
}

/// Returns whether the port has GIDs, but none for RoCE v2: the kernel uses RoCE v1 for such a
/// port.
fn lacks_v2(gids: &[Gid]) -> bool {
    !gids.is_empty() && !gids.iter().any(|gid| gid.is_v2)
}

/// Returns the GID that the connection manager uses for an address and a RoCE version.
fn used_by(gids: &[Gid], address: IpAddr, is_v2: bool) -> Option<&Gid> {
    let wanted = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    gids.iter().find(|gid| gid.gid == wanted && gid.is_v2 == is_v2)
}

/// Returns the addresses without a RoCE v2 GID. The list is empty if `gids` is empty, because the
/// kernel may not report the types of GIDs.
fn without_v2(gids: &[Gid], addresses: &[IpAddr]) -> Vec<IpAddr> {
    let lacks = |address: &&IpAddr| !gids.is_empty() && used_by(gids, **address, true).is_none();
    addresses.iter().filter(lacks).copied().collect()
}

/// Flags of a route (linux/route.h).
const RTF_UP: u32 = 1;
const RTF_GATEWAY: u32 = 2;

/// Returns the gateways of the routes through these interfaces: pairs of interface and gateway
/// without duplicates.
fn gateways(interfaces: &[String]) -> Vec<(String, IpAddr)> {
    let (v4, v6) = (read("/proc/net/route").unwrap_or_default(), read("/proc/net/ipv6_route").unwrap_or_default());
    let mut found: Vec<(String, IpAddr)> = Vec::new();
    for (interface, gateway) in v4.lines().filter_map(ipv4).chain(v6.lines().filter_map(ipv6)) {
        if interfaces.contains(&interface) && !found.contains(&(interface.clone(), gateway)) {
            found.push((interface, gateway));
        }
    }
    found
}

fn is_gateway(flags: &str) -> bool {
    let wanted = RTF_UP | RTF_GATEWAY;
    u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & wanted == wanted)
}

/// Parses a line of /proc/net/route: interface, destination, gateway, flags. The gateway is in the
/// byte order of the machine. Returns `None` for a route without a gateway.
fn ipv4(line: &str) -> Option<(String, IpAddr)> {
    let mut words = line.split_whitespace();
    let (interface, gateway) = (words.next()?, words.nth(1)?);
    let gateway = u32::from_str_radix(gateway, 16).ok()?;
    is_gateway(words.next()?).then(|| (interface.to_owned(), Ipv4Addr::from(gateway.to_ne_bytes()).into()))
}

/// Parses a line of /proc/net/ipv6_route: destination, length, source, length, gateway, metric,
/// references, uses, flags, interface. Returns `None` for a route without a gateway.
fn ipv6(line: &str) -> Option<(String, IpAddr)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (gateway, flags, interface) = (words.get(4)?, words.get(8)?, words.get(9)?);
    let gateway = u128::from_str_radix(gateway, 16).ok()?;
    is_gateway(flags).then(|| ((*interface).to_owned(), Ipv6Addr::from_bits(gateway).into()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the GIDs of a table with these types and GIDs by index; an unset GID has no type.
    fn table(name: &str, rows: &[(&str, &str)]) -> Vec<Gid> {
        let directory = std::env::temp_dir().join(format!("rdmacm-doctor-{name}-{}", std::process::id()));
        for folder in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
            fs::create_dir_all(directory.join(folder)).unwrap();
        }
        for (index, (kind, gid)) in rows.iter().enumerate() {
            fs::write(directory.join(format!("gids/{index}")), format!("{gid}\n")).unwrap();
            if !kind.is_empty() {
                fs::write(directory.join(format!("gid_attrs/types/{index}")), format!("{kind}\n")).unwrap();
                fs::write(directory.join(format!("gid_attrs/ndevs/{index}")), "eth0\n").unwrap();
            }
        }
        let found = gids(directory.to_str().unwrap());
        fs::remove_dir_all(&directory).unwrap();
        found
    }

    const UNSET: (&str, &str) = ("", "0000:0000:0000:0000:0000:0000:0000:0000");
    const V4: &str = "0000:0000:0000:0000:0000:ffff:c000:0201";
    const V6: &str = "2001:0db8:0000:0000:0000:0000:0000:0001";

    fn addresses() -> [IpAddr; 2] {
        ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]
    }

    #[test]
    fn gid_of_an_address_and_version() {
        let mut rows = vec![UNSET; 9];
        rows.extend([("IB/RoCE v1", V6), ("IB/RoCE v1", V4), ("RoCE v2", V4), ("RoCE v2", V4)]);
        let gids = table("used", &rows);
        let [v4, v6] = addresses();
        let index = |address, is_v2| used_by(&gids, address, is_v2).map(|gid| gid.index);
        assert_eq!((index(v4, false), index(v4, true)), (Some(10), Some(11)), "the first one, by number");
        assert_eq!((index(v6, false), index(v6, true)), (Some(9), None));
        assert_eq!(gids[0].interface, "eth0");
        assert!(!lacks_v2(&gids) && !lacks_v2(&[]) && lacks_v2(&table("v1", &[("IB/RoCE v1", V4)])));
    }

    #[test]
    fn addresses_without_a_gid_of_version_2() {
        let rows = [("IB/RoCE v1", V4), ("RoCE v2", V4), ("IB/RoCE v1", V6)];
        let [v4, v6] = addresses();
        assert_eq!(without_v2(&table("without", &rows), &[v4, v6]), [v6]);
        assert_eq!(without_v2(&[], &[v4]), [] as [IpAddr; 0], "an old kernel");
    }

    #[test]
    fn lines_of_the_tables() {
        assert_eq!(ipv4("Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\tMTU"), None);
        assert_eq!(ipv4("eth0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0"), None, "no gateway");
        let gateway = format!("{:08X}", u32::from_ne_bytes([10, 0, 0, 254]));
        let found = ipv4(&format!("eth0\t00000000\t{gateway}\t0003\t0\t0\t0\t00000000\t0"));
        assert_eq!(found, Some(("eth0".to_owned(), "10.0.0.254".parse().unwrap())));
        let zeros = "0".repeat(32);
        let line = |flags| {
            format!("{zeros} 00 {zeros} 00 fe800000000000000000000000000001 00000400 00000001 00000000 {flags} eth0")
        };
        assert_eq!(ipv6(&line("00000003")), Some(("eth0".to_owned(), "fe80::1".parse().unwrap())));
        assert_eq!(ipv6(&line("00000001")), None);
        assert_eq!(ipv6(""), None);
    }
}
