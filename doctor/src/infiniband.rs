//! What only InfiniBand needs: a subnet manager that has configured the port, IPoIB interfaces in
//! partitions that the port belongs to, and ibacm, if there is one.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::devices::{CLASS, Port, entries, read};
use crate::report::Report;

const NET: &str = "/sys/class/net";
const SOCKET: &str = "/run/ibacm.sock";
const PORT_FILE: &str = "/run/ibacm.port";
/// Answers come from a cache or after a query on the fabric, which ibacm gives up after six seconds.
const ANSWER_TIME: Duration = Duration::from_secs(7);

/// Checks the InfiniBand ports. A machine without any has no findings.
pub fn check(ports: &[Port], report: &mut Report) {
    let ports: Vec<&Port> = ports.iter().filter(|port| port.is_infiniband()).collect();
    for port in &ports {
        report.about(Some(&port.name));
        check_manager(port, report);
        check_partitions(port, report);
    }
    report.about(None);
    if let Some(port) = ports.first() {
        check_ibacm(port, report);
    }
}

/// A port in the state INIT or ARMED has a link to the switch: only a subnet manager makes it
/// active.
fn check_manager(port: &Port, report: &mut Report) {
    if port.state.ends_with("INIT") || port.state.ends_with("ARMED") {
        report.warning(
            "subnet.no-manager",
            format!(
                "{}: the cable is connected, but no subnet manager has made the port active ({})",
                port.name, port.state
            ),
            "start a subnet manager (opensm, or the one in the switch), or find out why it does not reach this port",
        );
    }
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
            "partitions.not-a-member",
            format!("{}: the port is no member of the partition {key:#06x} of its interface {name}", port.name),
            "have the subnet manager add the port to the partition (opensm: partitions.conf), or remove the interface",
        );
    }
}

/// Asks ibacm for the path of a port to itself.
fn check_ibacm(port: &Port, report: &mut Report) {
    let tcp = fs::read_to_string(PORT_FILE).ok().and_then(|text| text.trim().parse::<u16>().ok());
    let connected = match tcp {
        Some(number) => TcpStream::connect(("127.0.0.1", number)).map(|stream| {
            let _ = stream.set_read_timeout(Some(ANSWER_TIME));
            ask(stream, &gid(port))
        }),
        None => UnixStream::connect(SOCKET).map(|stream| {
            let _ = stream.set_read_timeout(Some(ANSWER_TIME));
            ask(stream, &gid(port))
        }),
    };
    let place = if tcp.is_some() { PORT_FILE } else { SOCKET };
    match connected {
        Ok(Some(0)) => report.ok("ibacm", "is running and answers"),
        Ok(Some(status)) => report.warning(
            "ibacm.no-path",
            format!("ibacm has no path of {} to itself (status {status})", port.name),
            "its configuration may not fit: compare ibacm_addr.cfg with the addresses (ib_acme -A makes a new one), and restart ibacm; until then each connection asks it in vain",
        ),
        Ok(None) => report.warning(
            "ibacm.silent",
            "ibacm does not answer",
            "restart it (systemctl restart ibacm): each connection waits for its answer",
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            report.not_applicable("ibacm", "is not running: the kernel asks the subnet administrator for each path");
        }
        Err(error) => report.warning(
            "ibacm.dead",
            format!("ibacm left {place}, but nobody listens there: {error}"),
            format!("restart it (systemctl restart ibacm), or remove {place}"),
        ),
    }
}

fn gid(port: &Port) -> [u8; 16] {
    let text = read(&format!("{CLASS}/{}/gids/0", port.path())).unwrap_or_default();
    text.parse::<Ipv6Addr>().unwrap_or(Ipv6Addr::UNSPECIFIED).octets()
}

/// Sends a request for a path and returns the status of the answer, `None` if none comes.
fn ask(mut stream: impl Read + Write, gid: &[u8; 16]) -> Option<u8> {
    let mut answer = [0; 16];
    stream.write_all(&request(gid)).ok()?;
    stream.read_exact(&mut answer).ok()?;
    Some(answer[2])
}

/// The request: a header (version 1, opcode 1: resolve, length 88) and a record of type 16, a path
/// record with both GIDs.
fn request(gid: &[u8; 16]) -> [u8; 88] {
    const TYPE_PATH: u16 = 16;
    let mut bytes = [0; 88];
    (bytes[0], bytes[1]) = (1, 1);
    bytes[6..8].copy_from_slice(&88u16.to_ne_bytes());
    bytes[20..22].copy_from_slice(&TYPE_PATH.to_ne_bytes());
    // A path record begins with eight reserved bytes, the destination's and the source's GID.
    bytes[32..48].copy_from_slice(gid);
    bytes[48..64].copy_from_slice(gid);
    bytes
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

    #[test]
    fn request_has_both_gids() {
        let bytes = request(&[7; 16]);
        assert_eq!((bytes[31], bytes[32], bytes[63], bytes[64]), (0, 7, 7, 0));
    }
}
