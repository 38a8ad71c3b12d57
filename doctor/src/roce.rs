//! RoCE: versions of a port's GIDs, and which one the connection manager uses. RoCE v1 packets are
//! not routed, and both ends of a connection must use the same version.

use std::net::IpAddr;

use crate::codes::Warning;
use crate::devices::{CLASS, Port, entries, is_zero, names, read};
use crate::report::Report;

const CONFIGURED: &str = "/sys/kernel/config/rdma_cm";

/// Checks the GIDs of RoCE ports.
pub fn check(ports: &[Port], report: &mut Report) {
    for port in ports.iter().filter(|port| port.is_roce()) {
        report.about(Some(&port.name));
        for address in without_v2(&gids(&format!("{CLASS}/{}", port.path())), &port.addresses) {
            report.warning(
                Warning::PortsNoRoceV2,
                format!("{} has no RoCE v2 GID for {address}", port.name),
                "peers that use RoCE v2, the default, cannot connect: is RoCE v2 enabled in the adapter (firmware, or module parameters of its driver)?",
            );
        }
        let mode_file = format!("{CONFIGURED}/{}/default_roce_mode", port.path());
        if read(&mode_file).is_some_and(|mode| mode.contains("v1")) {
            report.warning(
                Warning::PortsRoceV1,
                format!("connections by {} use RoCE v1, which is not routed", port.name),
                format!("peers must use it, too; for RoCE v2: echo \"RoCE v2\" > {mode_file}"),
            );
        }
    }
    report.about(None);
}

/// Checks the node GUIDs.
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

/// Returns the set GIDs of a port with their types.
fn gids(directory: &str) -> Vec<(String, String)> {
    let indexes = entries(&format!("{directory}/gid_attrs/types"));
    let pairs = indexes.into_iter().filter_map(|index| {
        // Reading the type of an unset GID fails.
        let kind = read(&format!("{directory}/gid_attrs/types/{index}"))?;
        Some((read(&format!("{directory}/gids/{index}"))?, kind))
    });
    pairs.collect()
}

/// Returns the addresses without a GID of RoCE v2. None if the kernel tells no types.
fn without_v2(gids: &[(String, String)], addresses: &[IpAddr]) -> Vec<IpAddr> {
    if gids.is_empty() {
        return Vec::new();
    }
    let has_v2 = |address: &&IpAddr| {
        let gid = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => *address,
        };
        let text = gid.segments().map(|word| format!("{word:04x}")).join(":");
        gids.iter().any(|(gid, kind)| *gid == text && kind.contains("v2"))
    };
    addresses.iter().filter(|address| !has_v2(address)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_without_a_gid_of_version_2() {
        let gid = |gid: &str, kind: &str| (gid.to_owned(), kind.to_owned());
        let gids = [
            gid("fe80:0000:0000:0000:0200:00ff:fe00:0001", "RoCE v2"),
            gid("0000:0000:0000:0000:0000:ffff:c000:0201", "IB/RoCE v1"),
            gid("0000:0000:0000:0000:0000:ffff:c000:0201", "RoCE v2"),
            gid("2001:0db8:0000:0000:0000:0000:0000:0001", "IB/RoCE v1"),
        ];
        let [v4, v6]: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        assert_eq!(without_v2(&gids, &[v4, v6]), [v6]);
        assert_eq!(without_v2(&[], &[v4]), [] as [IpAddr; 0], "an old kernel");
    }
}
