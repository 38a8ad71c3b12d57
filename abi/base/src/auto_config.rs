//! `/etc/rdma/rsocket/auto_config`: which sockets of which programs use RDMA or TCP. Read by
//! librspreload, and checked by rdmacm-doctor.

use core::net::IpAddr;

use crate::preload_rules::{names, words};

/// Path of the file.
pub const FILE: &core::ffi::CStr = c"/etc/rdma/rsocket/auto_config";

/// Programs that use TCP for every connection to which no rule applies. Each of them executes
/// programs that trust the peer's address but would not see it, or exits while a child continues
/// the connection, or executes the program that accepts the connection, or limits its address space
/// (vsftpd, to less than the library's threads reserve).
const BY_TCP: [&[u8]; 7] =
    [b"ssh", b"sshd", b"sshd-session", b"inetd", b"xinetd", b"systemd-socket-activate", b"vsftpd"];

/// Which sockets use RDMA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Sockets are rsockets, as with rdma-core.
    Rdma,
    /// RDMA or TCP is chosen for each connection.
    Auto,
    /// Sockets are kernel sockets.
    Tcp,
}

impl Mode {
    /// Returns the mode with this name, or `None` if there is no such mode.
    pub fn named(name: &[u8]) -> Option<Mode> {
        [(&b"rdma"[..], Mode::Rdma), (b"auto", Mode::Auto), (b"tcp", Mode::Tcp)]
            .into_iter()
            .find_map(|(known, mode)| (known == name).then_some(mode))
    }
}

/// Why a line has no effect, as a text.
pub type Problem = &'static str;

const KEYWORD: Problem = "the first word must be mode, timeout, remember, auto, rdma or tcp";
const MISSING: Problem = "a word is missing";
const EXTRA: Problem = "there are too many words";
const NUMBER: Problem = "this is not a number, or it is too large";
const MODE: Problem = "the mode must be rdma, auto or tcp";
const NETWORK: Problem = "the network must be an address, an address with a prefix length, or *";
const PROGRAM: Problem = "rdma applies to whole programs: the network must be * without a port";

/// A network: addresses that have the first `bits` bits in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    fn parse(word: &[u8]) -> Option<Network> {
        let word = core::str::from_utf8(word).ok()?;
        let (address, bits) = word.split_once('/').map_or((word, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(most), |bits| bits.parse().ok())?;
        (bits <= most).then_some(Network { address, bits })
    }

    fn has(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(one), IpAddr::V4(other)) => equal(one.to_bits().into(), other.to_bits().into(), 32, self.bits),
            (IpAddr::V6(one), IpAddr::V6(other)) => equal(one.to_bits(), other.to_bits(), 128, self.bits),
            _ => false,
        }
    }
}

/// Returns whether the first `bits` of `width` bits are equal.
fn equal(one: u128, other: u128, width: u32, bits: u32) -> bool {
    bits == 0 || (one ^ other) >> (width - bits) == 0
}

/// A rule. `None` stands for `*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rule<'a> {
    mode: Mode,
    program: &'a [u8],
    network: Option<Network>,
    port: Option<u16>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line<'a> {
    Mode(Mode),
    Timeout(u32),
    Remember(u32),
    Rule(Rule<'a>),
}

impl<'a> Line<'a> {
    /// Parses a line. Returns `Ok(None)` for a line without words.
    fn parse(line: &'a [u8]) -> Result<Option<Line<'a>>, Problem> {
        let mut words = words(line);
        let Some(keyword) = words.next() else { return Ok(None) };
        let mut next = || words.next().ok_or(MISSING);
        let line = match keyword {
            b"mode" => Line::Mode(Mode::named(next()?).ok_or(MODE)?),
            b"timeout" => Line::Timeout(number(next()?)?),
            b"remember" => Line::Remember(number(next()?)?),
            _ => {
                let mode = Mode::named(keyword).ok_or(KEYWORD)?;
                let (program, network) = (next()?, next()?);
                let network = if network == b"*" { None } else { Some(Network::parse(network).ok_or(NETWORK)?) };
                let port = words.next().filter(|&word| word != b"*").map(number).transpose()?;
                let port = port.map(u16::try_from).transpose().map_err(|_| NUMBER)?;
                if mode == Mode::Rdma && (network.is_some() || port.is_some()) {
                    return Err(PROGRAM);
                }
                Line::Rule(Rule { mode, program, network, port })
            }
        };
        if words.next().is_some() { Err(EXTRA) } else { Ok(Some(line)) }
    }
}

fn number(word: &[u8]) -> Result<u32, Problem> {
    let number = core::str::from_utf8(word).ok().and_then(|word| word.parse().ok());
    number.filter(|&number| number <= i32::MAX as u32).ok_or(NUMBER)
}

/// The text of the file.
#[derive(Clone, Copy)]
pub struct Config<'a>(pub &'a [u8]);

impl<'a> Config<'a> {
    fn lines(self) -> impl Iterator<Item = Line<'a>> {
        self.0.split(|&byte| byte == b'\n').filter_map(|line| Line::parse(line).ok().flatten())
    }

    /// Returns the number of each line that has no effect, counted from 1, with the reason.
    pub fn problems(self) -> impl Iterator<Item = (usize, Problem)> {
        let lines = self.0.split(|&byte| byte == b'\n').zip(1..);
        lines.filter_map(|(line, number)| Line::parse(line).err().map(|problem| (number, problem)))
    }

    /// Returns the mode of a program: the mode of its first rule that has neither network nor port,
    /// otherwise the mode of the last line `mode`; `None` if the file has neither.
    pub fn mode(self, program: &[u8]) -> Option<Mode> {
        let of_program = self.lines().find_map(|line| match line {
            Line::Rule(rule @ Rule { network: None, port: None, .. }) if names(rule.program, program) => {
                Some(rule.mode)
            }
            _ => None,
        });
        of_program.or_else(|| self.last(|line| if let Line::Mode(mode) = line { Some(mode) } else { None }))
    }

    /// Returns whether a connection may use RDMA: the first rule for the program, address and port
    /// is not `tcp`. Without a rule, all programs except those in `BY_TCP` may use RDMA.
    pub fn is_automatic(self, program: &[u8], address: IpAddr, port: u16) -> bool {
        let rule = self.lines().find_map(|line| match line {
            Line::Rule(rule) if names(rule.program, program) => {
                let fits = rule.network.is_none_or(|network| network.has(address))
                    && rule.port.is_none_or(|number| number == port);
                fits.then_some(rule.mode)
            }
            _ => None,
        });
        rule.map_or(!BY_TCP.contains(&program), |mode| mode != Mode::Tcp)
    }

    /// Returns how long a host may take to answer over RDMA, in milliseconds; `None` if no line
    /// sets it.
    pub fn timeout(self) -> Option<u32> {
        self.last(|line| if let Line::Timeout(time) = line { Some(time) } else { None })
    }

    /// Returns how long the outcome of an attempt is remembered, in seconds; `None` if no line sets
    /// it.
    pub fn remember(self) -> Option<u32> {
        self.last(|line| if let Line::Remember(time) = line { Some(time) } else { None })
    }

    fn last<T>(self, is_it: impl Fn(Line<'a>) -> Option<T>) -> Option<T> {
        self.lines().filter_map(is_it).last()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    const EXAMPLE: &[u8] = include_bytes!("../../../docs/examples/auto_config");

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_example_is_correct() {
        assert_eq!(Config(EXAMPLE).problems().count(), 0);
    }

    #[test]
    fn programs_that_execute_others_use_tcp_unless_a_rule_says_otherwise() {
        let at = address("10.0.0.1");
        let is_automatic = |text: &'static [u8], program| Config(text).is_automatic(program, at, 22);
        assert!(!is_automatic(b"", b"sshd") && !is_automatic(b"", b"systemd-socket-activate"));
        assert!(!is_automatic(b"auto ssh 10.9.0.0/16", b"ssh"));
        assert!(is_automatic(b"", b"sshpass") && is_automatic(b"auto ssh *", b"sshd"));
    }

    #[test]
    fn lines_without_effect_have_numbers() {
        let text =
            b"mode auto\nmod rdma\n\n# comment\nmode\ntimeout x\ntcp * 10.0.0.0/33\ntcp * * * *\nrdma * 10.0.0.1\n\
            mode slow\ntcp nc\nremember 99999999999\ntcp * * 65536\n";
        let problems: Vec<_> = Config(text).problems().collect();
        let expected = [
            (2, KEYWORD),
            (5, MISSING),
            (6, NUMBER),
            (7, NETWORK),
            (8, EXTRA),
            (9, PROGRAM),
            (10, MODE),
            (11, MISSING),
            (12, NUMBER),
            (13, NUMBER),
        ];
        assert_eq!(problems, expected);
    }

    #[test]
    fn a_programs_rule_comes_before_the_line_mode() {
        let config = Config(b"mode auto\ntcp nc 10.0.0.0/8\nrdma nc *\ntcp * *");
        assert_eq!(config.mode(b"nc.openbsd"), Some(Mode::Rdma));
        assert_eq!(config.mode(b"sh"), Some(Mode::Tcp));
        assert_eq!(Config(b"mode auto\nmode tcp").mode(b"sh"), Some(Mode::Tcp));
        assert_eq!(Config(b"").mode(b"sh"), None);
    }

    #[test]
    fn the_first_rule_for_an_address_counts() {
        let config = Config(b"auto nc 10.1.2.3\ntcp nc 10.1.0.0/16 80\ntcp * fd00::/8\ntcp * 0.0.0.0/0 22");
        let is = |program: &str, to: &str, port| config.is_automatic(program.as_bytes(), address(to), port);
        assert!(is("nc", "10.1.2.3", 80));
        assert!(!is("nc", "10.1.2.4", 80));
        assert!(!is("nc", "::ffff:10.1.2.4", 80));
        assert!(is("nc", "10.1.2.4", 81));
        assert!(is("nc", "10.2.2.4", 80));
        assert!(is("sh", "10.1.2.4", 80));
        assert!(!is("sh", "fd00::1", 80));
        assert!(is("sh", "fe80::1", 22));
        assert!(!is("sh", "192.0.2.1", 22));
    }

    #[test]
    fn the_last_number_counts() {
        let config = Config(b"timeout 10\ntimeout 20 # more\nremember 0");
        assert_eq!((config.timeout(), config.remember()), (Some(20), Some(0)));
        assert_eq!((Config(b"").timeout(), Config(b"").remember()), (None, None));
    }

    #[test]
    fn no_text_does_harm() {
        for text in [&b"\xff\x00 \x80 * *\n"[..], b"tcp \xff \xff", b"/", b"tcp * /", b"tcp * 1/"] {
            assert_eq!(Config(text).problems().count(), 1, "{text:?}");
        }
    }
}
