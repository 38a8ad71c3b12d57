//! Which port to take next.
//!
//! bind(2) would choose one, too. But once half of the ports are kept it searches most of them for a free one, which takes
//! milliseconds for each; and it is us who keep them, so that we know better.

use std::fs;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// How often the administrator's wishes are read at most.
const AGAIN: Duration = Duration::from_secs(1);
const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// A bit for each port.
struct Set(Vec<u64>);

impl Set {
    fn new() -> Set {
        Set(vec![0; 1 << 10])
    }

    fn has(&self, port: u16) -> bool {
        self.0[usize::from(port) / 64] >> (port % 64) & 1 != 0
    }

    fn put(&mut self, port: u16, there: bool) {
        let (word, bit) = (&mut self.0[usize::from(port) / 64], 1 << (port % 64));
        if there { *word |= bit } else { *word &= !bit }
    }
}

/// Ports to choose from, and those that are kept. IPv4 and IPv6 share them: who has one at all addresses of IPv6 has it at
/// those of IPv4, too.
pub struct Choice {
    range: Option<RangeInclusive<u16>>,
    reserved: Set,
    kept: Set,
    read: Option<Instant>,
}

impl Default for Choice {
    fn default() -> Choice {
        Choice { range: None, reserved: Set::new(), kept: Set::new(), read: None }
    }
}

impl Choice {
    /// Notes that a port is kept, or no longer.
    pub fn note(&mut self, port: u16, kept: bool) {
        self.kept.put(port, kept);
    }

    /// A port that may be free, by a random number; `None`: none is, or the kernel must say.
    pub fn next(&mut self, random: u64) -> Option<u16> {
        if self.read.is_none_or(|time| time.elapsed() > AGAIN) {
            self.read = Some(Instant::now());
            let text = |path| fs::read_to_string(path).unwrap_or_default();
            self.configure(&text(RANGE), &text(RESERVED));
        }
        self.from(random)
    }

    fn configure(&mut self, range: &str, reserved: &str) {
        self.range = parse_range(range);
        self.reserved = Set::new();
        for port in reserved.trim().split(',').filter_map(parse_ports).flatten() {
            self.reserved.put(port, true);
        }
    }

    fn from(&self, random: u64) -> Option<u16> {
        let range = self.range.clone()?;
        let count = u64::from(range.end() - range.start()) + 1;
        let start = range.start() + (random % count) as u16;
        let free = |port: &u16| !self.kept.has(*port) && !self.reserved.has(*port);
        (start..=*range.end()).chain(*range.start()..start).find(free)
    }
}

/// Two numbers with blanks between them.
fn parse_range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let (low, high) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (0 < low && low <= high).then_some(low..=high)
}

/// One number, or two with a dash.
fn parse_ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    Some(low.parse().ok()?..=high.parse().ok()?)
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
                let port = choice.from(random * 7919).unwrap();
                choice.note(port, true);
                port
            })
            .collect();
        found.sort_unstable();
        let all: Vec<u16> = (100..120).filter(|port| ![103, 105, 106, 107].contains(port)).collect();
        assert_eq!((found, choice.from(3)), (all, None));
        choice.note(111, false);
        assert_eq!(choice.from(u64::MAX), Some(111));
    }

    #[test]
    fn the_widest_range() {
        let mut choice = choice("1 65535", "");
        assert_eq!((choice.from(0), choice.from(65_534), choice.from(65_535)), (Some(1), Some(65_535), Some(1)));
        choice.note(65_535, true);
        assert_eq!(choice.from(65_534), Some(1));
    }

    #[test]
    fn what_cannot_be_read_leaves_it_to_the_kernel() {
        for range in ["", "x y", "5", "9 5", "0 5", "1 70000"] {
            assert_eq!(choice(range, "").from(1), None, "{range}");
        }
        assert_eq!(choice("7 8", "x,-,9-5,7,").from(0), Some(8));
    }

    #[test]
    fn this_kernel_says_something() {
        assert!(Choice::default().next(1).is_some());
    }
}
