//! Gateways in the kernel's routing tables.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Flags of a route (linux/route.h).
const RTF_UP: u32 = 1;
const RTF_GATEWAY: u32 = 2;

/// Returns the gateways of routes by these interfaces, each one once.
pub fn gateways(interfaces: &[String]) -> Vec<(String, IpAddr)> {
    let read = |name: &str| fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
    let mut found: Vec<(String, IpAddr)> = Vec::new();
    for (interface, gateway) in
        read("route").lines().filter_map(ipv4).chain(read("ipv6_route").lines().filter_map(ipv6))
    {
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
/// byte order of the machine.
fn ipv4(line: &str) -> Option<(String, IpAddr)> {
    let mut words = line.split_whitespace();
    let (interface, gateway) = (words.next()?, words.nth(1)?);
    let gateway = u32::from_str_radix(gateway, 16).ok()?;
    is_gateway(words.next()?).then(|| (interface.to_owned(), Ipv4Addr::from(gateway.to_ne_bytes()).into()))
}

/// Parses a line of /proc/net/ipv6_route: destination, length, source, length, gateway, metric,
/// references, uses, flags, interface.
fn ipv6(line: &str) -> Option<(String, IpAddr)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (gateway, flags, interface) = (words.get(4)?, words.get(8)?, words.get(9)?);
    let gateway = u128::from_str_radix(gateway, 16).ok()?;
    is_gateway(flags).then(|| ((*interface).to_owned(), Ipv6Addr::from_bits(gateway).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
