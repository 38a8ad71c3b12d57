//! The ports of mappings: each port is bound by a socket.
//!
//! bind(2) can choose a port itself. Once half of the ports are bound, however, bind(2) searches
//! most of them for a free one, which takes milliseconds. The daemon finds a free port faster,
//! because it knows which ports it has bound.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::Result;
use nix::errno::Errno;

use crate::proto::mappings::PortId;
use crate::sys::process::random;
use crate::sys::sockets::bind_port;

/// Minimum time between two reads of the settings in /proc.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);
const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// The ports to choose from, the reserved ports, and the bound ports, for both IPv4 and IPv6: a
/// port bound at the wildcard address of IPv6 is bound for IPv4, too.
#[derive(Default)]
struct Choice {
    range: Option<RangeInclusive<u16>>,
    reserved: HashSet<u16>,
    bound: HashSet<u16>,
    read: Option<Instant>,
}

impl Choice {
    /// Returns a port that is probably free, chosen by a random number. Returns `None` if all ports
    /// are bound or reserved, or the range is unknown: the kernel must choose a port.
    fn next(&mut self, random: u64) -> Option<u16> {
        if self.read.is_none_or(|time| time.elapsed() > RELOAD_INTERVAL) {
            self.read = Some(Instant::now());
            let text = |path| fs::read_to_string(path).unwrap_or_default();
            self.configure(&text(RANGE), &text(RESERVED));
        }
        self.free_port(random)
    }

    fn configure(&mut self, range: &str, reserved: &str) {
        self.range = parse_range(range);
        self.reserved = reserved.trim().split(',').filter_map(parse_ports).flatten().collect();
    }

    fn free_port(&self, random: u64) -> Option<u16> {
        let range = self.range.clone()?;
        let count = u64::from(range.end() - range.start()) + 1;
        let start = range.start() + (random % count) as u16;
        let free = |port: &u16| !self.bound.contains(port) && !self.reserved.contains(port);
        (start..=*range.end()).chain(*range.start()..start).find(free)
    }
}

/// Parses two numbers with blanks between them. Returns `None` unless they are a range of ports.
fn parse_range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let (low, high) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (0 < low && low <= high).then_some(low..=high)
}

/// Parses one number, or two with a dash between them.
fn parse_ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    Some(low.parse().ok()?..=high.parse().ok()?)
}

/// Maximum number of ports to try before the kernel chooses a port: other programs may have bound
/// many ports.
const MAX_TRIES: usize = 32;

/// All bound ports.
#[derive(Default)]
pub struct Ports {
    bound: HashMap<PortId, (OwnedFd, u16)>,
    choice: Choice,
}

impl Ports {
    /// Binds a port for `local`: `port`, or a free port if `port` is 0. Returns the port.
    ///
    /// The port is bound at all addresses: devices share the addresses of the host, may have
    /// addresses that the host lacks, and may take all packets to a port, whatever the address. If
    /// `port` is not free at all addresses, it is bound only at the address of `local`.
    pub fn open(&mut self, id: PortId, mut local: SocketAddr, port: u16) -> Result<u16> {
        let any = if local.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let everywhere = if port == 0 { self.any_port(any) } else { bind_port(SocketAddr::new(any, port)) };
        let (socket, port) = match everywhere {
            Err(error @ Errno::EADDRINUSE) if !local.ip().is_unspecified() => {
                local.set_port(port);
                bind_port(local).map_err(|second| if second == Errno::EADDRNOTAVAIL { error } else { second })
            }
            result => result,
        }?;
        self.choice.bound.insert(port);
        self.bound.insert(id, (socket, port));
        Ok(port)
    }

    fn any_port(&mut self, any: IpAddr) -> Result<(OwnedFd, u16)> {
        for _ in 0..MAX_TRIES {
            let Some(port) = self.choice.next(random()) else { break };
            match bind_port(SocketAddr::new(any, port)) {
                // The port is in use by another program, or below 1024.
                Err(error) if [Errno::EADDRINUSE, Errno::EACCES].contains(&error) => {}
                result => return result,
            }
        }
        bind_port(SocketAddr::new(any, 0))
    }

    /// Releases the port of a mapping.
    pub fn close(&mut self, id: PortId) {
        if let Some((_, port)) = self.bound.remove(&id) {
            self.choice.bound.remove(&port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(range: &str, reserved: &str) -> Choice {
        let mut choice = Choice::default();
        choice.configure(range, reserved);
        choice
    }

    #[test]
    fn all_ports_but_the_reserved_ones_are_found() {
        let mut choice = choice("100\t119\n", "103,105-107,999\n");
        let mut found: Vec<u16> = (0..16)
            .map(|random| {
                let port = choice.free_port(random * 7919).unwrap();
                choice.bound.insert(port);
                port
            })
            .collect();
        found.sort_unstable();
        let all: Vec<u16> = (100..120).filter(|port| ![103, 105, 106, 107].contains(port)).collect();
        assert_eq!((found, choice.free_port(3)), (all, None));
        choice.bound.remove(&111);
        assert_eq!(choice.free_port(u64::MAX), Some(111));
    }

    #[test]
    fn the_widest_range() {
        let mut choice = choice("1 65535", "");
        assert_eq!(
            (choice.free_port(0), choice.free_port(65_534), choice.free_port(65_535)),
            (Some(1), Some(65_535), Some(1))
        );
        choice.bound.insert(65_535);
        assert_eq!(choice.free_port(65_534), Some(1));
    }

    #[test]
    fn unreadable_settings_leave_the_choice_to_the_kernel() {
        for range in ["", "x y", "5", "9 5", "0 5", "1 70000"] {
            assert_eq!(choice(range, "").free_port(1), None, "{range}");
        }
        assert_eq!(choice("7 8", "x,-,9-5,7,").free_port(0), Some(8));
    }

    #[test]
    fn settings_of_this_kernel_are_read() {
        assert!(Choice::default().next(1).is_some());
    }
}
