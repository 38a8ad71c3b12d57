//! What only InfiniBand needs: IPoIB interfaces in partitions that the port belongs to.

use crate::codes::Problem;
use crate::devices::{CLASS, Port, entries, read};
use crate::report::Report;

const NET: &str = "/sys/class/net";

/// Checks the InfiniBand ports. A machine without any has no findings.
pub fn check(ports: &[Port], report: &mut Report) {
    for port in ports.iter().filter(|port| port.is_infiniband()) {
        report.about(Some(&port.name));
        check_partitions(port, report);
    }
    report.about(None);
}

/// Returns the interfaces whose partition is not in the table of P_Keys. Full and limited members
/// have different entries: bit 15 is set for a full member.
fn without_partition(interfaces: &[(String, u16)], table: &[u16]) -> Vec<(String, u16)> {
    let has = |key: u16| table.iter().any(|entry| entry & 0x7fff == key & 0x7fff);
    interfaces.iter().filter(|(_, key)| !has(*key)).cloned().collect()
}

fn number(path: &str) -> Option<u16> {
    u16::from_str_radix(read(path)?.strip_prefix("0x")?, 16).ok()
}

/// Returns the P_Key of an IPoIB interface, which is a part of the group that it broadcasts to
/// (RFC 4391). (Interfaces made by netlink have no file `pkey`.)
fn partition_of(broadcast: &str) -> Option<u16> {
    let mut bytes = broadcast.split(':').skip(8);
    u16::from_str_radix(&format!("{}{}", bytes.next()?, bytes.next()?), 16).ok()
}

fn check_partitions(port: &Port, report: &mut Report) {
    let directory = format!("{CLASS}/{}/pkeys", port.path());
    let table: Vec<u16> =
        entries(&directory).iter().filter_map(|index| number(&format!("{directory}/{index}"))).collect();
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
