//! The rules of `/etc/rdma/rsocket/preload_config`: `program domain type protocol`, one per line.
//! Read by librspreload, and checked by rdmacm-doctor.

use core::ffi::c_int;

use libc::{AF_IB, AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP, SOCK_DGRAM, SOCK_STREAM};

/// The arguments of socket(2).
pub struct Socket {
    /// Address family.
    pub domain: c_int,
    /// Type without flags.
    pub kind: c_int,
    /// Protocol; 0 for the default protocol of the type.
    pub protocol: c_int,
}

const DOMAINS: &[(&str, c_int)] = &[
    ("INET", AF_INET),
    ("AF_INET", AF_INET),
    ("PF_INET", AF_INET),
    ("INET6", AF_INET6),
    ("AF_INET6", AF_INET6),
    ("PF_INET6", AF_INET6),
    ("IB", AF_IB),
    ("AF_IB", AF_IB),
    ("PF_IB", AF_IB),
];
const KINDS: &[(&str, c_int)] =
    &[("STREAM", SOCK_STREAM), ("SOCK_STREAM", SOCK_STREAM), ("DGRAM", SOCK_DGRAM), ("SOCK_DGRAM", SOCK_DGRAM)];
const PROTOCOLS: &[(&str, c_int)] =
    &[("TCP", IPPROTO_TCP), ("IPPROTO_TCP", IPPROTO_TCP), ("UDP", IPPROTO_UDP), ("IPPROTO_UDP", IPPROTO_UDP)];

/// Returns whether the rules in `text` allow `program` to create `socket` as an rsocket. Without
/// any rule, every program may create every socket as an rsocket.
pub fn allow(text: &[u8], program: &[u8], socket: &Socket) -> bool {
    let mut rules = rules(text).peekable();
    rules.peek().is_none() || rules.any(|rule| rule.matches(program, socket))
}

/// Returns whether a rule in `text` that matches `program` and `socket` names the socket's type,
/// instead of `*`.
pub fn ask_for(text: &[u8], program: &[u8], socket: &Socket) -> bool {
    rules(text).any(|rule| rule.kind.is_some() && rule.matches(program, socket))
}

fn rules(text: &[u8]) -> impl Iterator<Item = Rule<'_>> {
    text.split(|&byte| byte == b'\n').filter_map(|line| Rule::parse(line).ok().flatten())
}

/// Why a line has no effect, as a text.
pub type Problem = &'static str;

const MISSING: Problem = "a rule has four words: program, domain, type, protocol";
const DOMAIN: Problem = "the domain must be INET, INET6, IB or *";
const TYPE: Problem = "the type must be STREAM, DGRAM or *";
const PROTOCOL: Problem = "the protocol must be TCP, UDP or *";

/// Returns the number, counted from 1, and the problem of each line of `text` that is no valid
/// rule, comment or empty line.
pub fn problems(text: &[u8]) -> impl Iterator<Item = (usize, Problem)> {
    let lines = text.split(|&byte| byte == b'\n').zip(1..);
    lines.filter_map(|(line, number)| Rule::parse(line).err().map(|problem| (number, problem)))
}

/// A rule, on a line of its own. `None` stands for `*`.
struct Rule<'a> {
    program: &'a [u8],
    domain: Option<c_int>,
    kind: Option<c_int>,
    protocol: Option<c_int>,
}

impl<'a> Rule<'a> {
    /// Parses a line. Returns `Ok(None)` for empty lines and comments.
    fn parse(line: &'a [u8]) -> Result<Option<Self>, Problem> {
        let mut words = words(line);
        let Some(program) = words.next() else { return Ok(None) };
        let mut next = |names, problem| value(words.next().ok_or(MISSING)?, names).ok_or(problem);
        let (domain, kind, protocol) = (next(DOMAINS, DOMAIN)?, next(KINDS, TYPE)?, next(PROTOCOLS, PROTOCOL)?);
        Ok(Some(Rule { program, domain, kind, protocol }))
    }

    fn matches(&self, program: &[u8], socket: &Socket) -> bool {
        let fits = |rule: Option<c_int>, value| rule.is_none_or(|rule| rule == value);
        let protocol = match (socket.protocol, socket.kind) {
            (0, SOCK_STREAM) => IPPROTO_TCP,
            (0, _) => IPPROTO_UDP,
            (protocol, _) => protocol,
        };
        names(self.program, program)
            && fits(self.domain, socket.domain)
            && fits(self.kind, socket.kind)
            && fits(self.protocol, protocol)
    }
}

/// Returns the words of a line, without its comment.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let line = line.split(|&byte| byte == b'#').next().unwrap_or_default();
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// Returns whether a rule for `named` applies to `program`: `named` is `*`, or the beginning of the
/// program's name in any case. "nc" matches nc.openbsd, too.
pub(crate) fn names(named: &[u8], program: &[u8]) -> bool {
    named == b"*" || program.get(..named.len()).is_some_and(|start| start.eq_ignore_ascii_case(named))
}

/// Returns the value of a word in `names`, `Some(None)` for `*`, `None` for an unknown word.
fn value(word: &[u8], names: &[(&str, c_int)]) -> Option<Option<c_int>> {
    if word == b"*" {
        return Some(None);
    }
    let known = names.iter().find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(word));
    known.map(|&(_, value)| Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: Socket = Socket { domain: AF_INET, kind: SOCK_STREAM, protocol: 0 };
    const STREAM6: Socket = Socket { domain: AF_INET6, kind: SOCK_STREAM, protocol: IPPROTO_TCP };
    const DGRAM: Socket = Socket { domain: AF_INET, kind: SOCK_DGRAM, protocol: IPPROTO_UDP };

    /// Returns for which of the three sockets above the rules in `text` allow an rsocket.
    fn allowed(text: &str, program: &str) -> [bool; 3] {
        [STREAM, STREAM6, DGRAM].map(|socket| allow(text.as_bytes(), program.as_bytes(), &socket))
    }

    #[test]
    fn without_rules_everything_is_intercepted() {
        for text in ["", "\n\n", "# nothing\n  # more\n"] {
            assert_eq!(allowed(text, "nc"), [true; 3]);
        }
    }

    #[test]
    fn each_word_counts() {
        assert_eq!(allowed("* * * *", "nc"), [true; 3]);
        assert_eq!(allowed("nc * * *", "nc"), [true; 3]);
        assert_eq!(allowed("ftp * * *", "nc"), [false; 3]);
        assert_eq!(allowed("nc INET * *", "nc"), [true, false, true]);
        assert_eq!(allowed("nc AF_INET6 * *", "nc"), [false, true, false]);
        assert_eq!(allowed("nc PF_IB * *", "nc"), [false; 3]);
        assert_eq!(allowed("nc * SOCK_STREAM *", "nc"), [true, true, false]);
        assert_eq!(allowed("nc * DGRAM *", "nc"), [false, false, true]);
        // The first socket has protocol 0, which stands for TCP.
        assert_eq!(allowed("nc * * IPPROTO_TCP", "nc"), [true, true, false]);
        assert_eq!(allowed("nc * * udp", "nc"), [false, false, true]);
        let any_datagram = Socket { protocol: 0, ..DGRAM };
        assert!(allow(b"nc * * udp", b"nc", &any_datagram) && !allow(b"nc * * tcp", b"nc", &any_datagram));
    }

    #[test]
    fn any_rule_may_match() {
        let text = "# programs\nftp * * *\n\tnc  INET6\tSTREAM *  # comment\nnc INET DGRAM *\n";
        assert_eq!(allowed(text, "nc"), [false, true, true]);
        assert_eq!(allowed(text, "ftp"), [true; 3]);
        assert_eq!(allowed(text, "sh"), [false; 3]);
    }

    #[test]
    fn a_program_is_a_prefix_in_any_case() {
        assert_eq!(allowed("NC INET STREAM *", "nc.openbsd"), [true, false, false]);
        assert_eq!(allowed("nc.openbsd INET STREAM *", "nc"), [false; 3]);
    }

    #[test]
    fn a_type_must_be_named_to_be_asked_for() {
        let asked = |text: &str| ask_for(text.as_bytes(), b"nc", &DGRAM);
        assert!(!asked("") && !asked("* * * *") && !asked("* * * UDP") && !asked("* * STREAM *"));
        assert!(asked("* * * *\n* INET DGRAM *") && !asked("* INET6 DGRAM *") && !asked("sh * DGRAM *"));
    }

    #[test]
    fn ignored_lines_are_reported() {
        let text = b"# all\n\nnc * * *\nnc INET\nnc INTE STREAM *\nnc * STREM *\nnc * * SCTP # no\nnc\n";
        let expected = [(4, MISSING), (5, DOMAIN), (6, TYPE), (7, PROTOCOL), (8, MISSING)];
        assert!(problems(text).eq(expected));
    }

    #[test]
    fn no_text_does_harm() {
        assert_eq!(allowed("nc\nnc INET\nnc INET STREAM\n", "nc"), [true; 3]);
        assert!(allow(b"\xff\x00 \x80 * *\n* * * *", b"nc", &STREAM));
        assert!(!allow(b"x * * *", b"", &STREAM));
    }
}
