//! Checks the network interfaces of ports: each needs its own subnet, and the port must be a member
//! of the partition of each IPoIB interface.
//!
//! Interfaces that share a subnet cause "ARP flux": by default Linux answers ARP requests for any
//! local address on any interface, with that interface's MAC address. A peer then sends RDMA
//! packets to a port that does not have the address, and the port drops them.

use std::net::Ipv4Addr;

use crate::codes::{Problem, Warning};
use crate::devices::{CLASS, NET, Port, entries, hexadecimal, read};
use crate::netdev::{self, Network};
use crate::report::Report;

/// Checks whether a port's interface shares a subnet with another interface, and one of the two
/// answers ARP requests for the other's address.
pub fn subnets(ports: &[Port], report: &mut Report) {
    let of_ports: Vec<&str> = ports.iter().flat_map(|port| &port.interfaces).map(String::as_str).collect();
    for (one, other) in in_flux(&netdev::networks(), &of_ports, arp_ignore) {
        let network = Ipv4Addr::from_bits(one.address.to_bits() & one.mask);
        report.warning(
            Warning::AddressesArpFlux,
            format!(
                "{} and {} are both in {network}/{}, and answer ARP requests for each other's address: peers may send to the wrong one",
                one.interface,
                other.interface,
                one.mask.leading_ones()
            ),
            format!(
                "sysctl -w net.ipv4.conf.all.arp_ignore=2 net.ipv4.conf.all.arp_announce=1, on both hosts; for connections between two ports of this host also net.ipv4.conf.{}.accept_local=1 and net.ipv4.conf.{}.accept_local=1",
                one.interface, other.interface
            ),
        );
    }
}

/// Returns the pairs of interfaces in one subnet. At least one interface of each pair is a port's,
/// and at least one interface answers ARP requests for the other's address (its `arp_ignore` is 0).
fn in_flux<'a>(
    networks: &'a [Network],
    of_ports: &[&str],
    arp_ignore: impl Fn(&str) -> u32,
) -> Vec<(&'a Network, &'a Network)> {
    let mut found: Vec<(&Network, &Network)> = Vec::new();
    for (index, one) in networks.iter().enumerate() {
        for other in &networks[index + 1..] {
            let names = [&one.interface, &other.interface];
            let share_subnet = one.mask == other.mask
                && (one.address.to_bits() ^ other.address.to_bits()) & one.mask == 0
                && one.mask != u32::MAX
                && names[0] != names[1];
            let is_known = found.iter().any(|(one, other)| [&one.interface, &other.interface] == names);
            if share_subnet
                && !is_known
                && names.iter().any(|name| of_ports.contains(&name.as_str()))
                && names.iter().any(|name| arp_ignore(name) == 0)
            {
                found.push((one, other));
            }
        }
    }
    found
}

/// Returns the `arp_ignore` that the kernel uses: the larger of the interface's value and that of
/// `all`.
fn arp_ignore(interface: &str) -> u32 {
    let of = |name: &str| read(&format!("/proc/sys/net/ipv4/conf/{name}/arp_ignore"))?.parse::<u32>().ok();
    of("all").unwrap_or(0).max(of(interface).unwrap_or(0))
}

/// Checks whether InfiniBand ports are members of the partitions of their IPoIB interfaces.
pub fn partitions(ports: &[Port], report: &mut Report) {
    for port in ports.iter().filter(|port| port.is_infiniband()) {
        report.about(Some(&port.name));
        check_partitions(port, report);
    }
    report.about(None);
}

/// Returns the interfaces whose partition is not in the port's table of P_Keys. Bit 15 is ignored:
/// it only distinguishes full members from limited ones.
fn without_partition(interfaces: &[(String, u16)], table: &[u16]) -> Vec<(String, u16)> {
    let has = |key: u16| table.iter().any(|entry| entry & 0x7fff == key & 0x7fff);
    interfaces.iter().filter(|(_, key)| !has(*key)).cloned().collect()
}

/// Returns the P_Key of an IPoIB interface, which is a part of its broadcast address (RFC 4391).
/// The file `pkey` is of no use: interfaces that were created by netlink do not have it.
fn partition_of(broadcast: &str) -> Option<u16> {
    let mut bytes = broadcast.split(':').skip(8);
    u16::from_str_radix(&format!("{}{}", bytes.next()?, bytes.next()?), 16).ok()
}

fn check_partitions(port: &Port, report: &mut Report) {
    let directory = format!("{CLASS}/{}/pkeys", port.path());
    let key = |index: &String| hexadecimal(&format!("{directory}/{index}")).map(|key| key as u16);
    let table: Vec<u16> = entries(&directory).iter().filter_map(key).collect();
    let key_of = |name: &String| Some((name.clone(), partition_of(&read(&format!("{NET}/{name}/broadcast"))?)?));
    let interfaces: Vec<(String, u16)> = port.interfaces.iter().filter_map(key_of).collect();
    for (name, key) in without_partition(&interfaces, &table) {
        report.problem(
            Problem::PartitionsNotAMember,
            format!("{}: the port is no member of the partition {key:#06x} of its interface {name}", port.name),
            "have the subnet manager add the port to the partition (opensm: partitions.conf), or remove the interface",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(interface: &str, address: &str, prefix: u32) -> Network {
        Network {
            interface: interface.to_owned(),
            address: address.parse().unwrap(),
            mask: !u32::MAX.checked_shr(prefix).unwrap_or(0),
        }
    }

    #[test]
    fn interfaces_in_one_subnet_answer_for_each_other() {
        let networks = [
            network("eth0", "192.0.2.1", 24),
            network("eth1", "192.0.2.2", 24),
            network("eth1", "192.0.2.3", 24),
            network("eth2", "198.51.100.1", 24),
            network("eth3", "192.0.2.4", 25),
        ];
        let pairs = |of_ports: &[&str], ignore: u32| {
            in_flux(&networks, of_ports, |_| ignore)
                .iter()
                .map(|(one, other)| format!("{} {}", one.interface, other.interface))
                .collect::<Vec<_>>()
        };
        assert_eq!(pairs(&["eth1"], 0), ["eth0 eth1"], "each pair once");
        assert_eq!(pairs(&["eth1"], 1), [""; 0], "they do not answer");
        assert_eq!(pairs(&["eth2"], 0), [""; 0], "no port is concerned");
        let points = [network("eth0", "192.0.2.1", 32), network("eth1", "192.0.2.1", 32)];
        assert!(in_flux(&points, &["eth0"], |_| 0).is_empty(), "an address on two links is no subnet");
    }

    #[test]
    fn partitions_of_full_and_limited_members() {
        let interfaces = [("ib0".to_owned(), 0xffff), ("ib0.8001".to_owned(), 0x8001), ("ib0.8002".to_owned(), 0x8002)];
        assert_eq!(without_partition(&interfaces, &[0xffff, 0x0001]), [("ib0.8002".to_owned(), 0x8002)]);
        assert!(without_partition(&interfaces, &[0x7fff, 0x8001, 0x8002]).is_empty());
    }

    #[test]
    fn partition_in_the_broadcast_address() {
        let address = "00:ff:ff:ff:ff:12:40:1b:80:55:00:00:00:00:00:00:ff:ff:ff:ff";
        assert_eq!(partition_of(address), Some(0x8055));
        assert_eq!(partition_of("ff:ff:ff:ff:ff:ff"), None);
    }
}
