//! Interfaces that share a subnet ("ARP flux"): by default Linux answers ARP requests for an address
//! on any interface, with that interface's MAC address. A peer then sends RDMA packets to a port
//! that does not have the address, and they are dropped.

use std::net::Ipv4Addr;

use crate::codes::Warning;
use crate::devices::{Port, read};
use crate::netdev::{self, Network};
use crate::report::Report;

/// Checks whether a port's interface shares a subnet with another interface that may answer for it.
pub fn check(ports: &[Port], report: &mut Report) {
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

/// Returns the pairs of interfaces in one subnet, at least one of them a port's, of which one
/// answers for the other.
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

/// The kernel uses the larger one of the value for all interfaces and that of the interface.
fn arp_ignore(interface: &str) -> u32 {
    let of = |name: &str| read(&format!("/proc/sys/net/ipv4/conf/{name}/arp_ignore"))?.parse::<u32>().ok();
    of("all").unwrap_or(0).max(of(interface).unwrap_or(0))
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
}
