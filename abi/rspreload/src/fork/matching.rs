//! Which accepted connection an rsocket belongs to.
//!
//! Our other end connects its rsocket from the TCP connection's own address and port. The
//! reference's has any port, and so has ours if that port is taken: then the two are matched by the
//! host, and by the end of the TCP connection, which the other end shuts down once its rsocket is
//! connected.

/// A connection of the rsocket's host whose peer was told to connect, and has no rsocket yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The rsocket comes from the port of the TCP connection.
    pub same_port: bool,
    /// The TCP connection has been ended by the peer.
    pub ended: bool,
}

/// What to do with an rsocket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It belongs to this candidate.
    Belongs(usize),
    /// Not known yet.
    Wait,
    /// A stranger's, or ambiguous: data must not reach the wrong end.
    Refuse,
}

/// Chooses among the connections of the rsocket's host. `rivals`: the host has other unmatched
/// rsockets. `settled`: the rsocket has waited long enough for the end of its TCP connection to
/// show.
pub fn choose(candidates: impl Iterator<Item = (usize, Candidate)>, rivals: bool, settled: bool) -> Verdict {
    let (mut count, mut ended, mut last_ended) = (0, 0, 0);
    for (index, candidate) in candidates {
        if candidate.same_port {
            return Verdict::Belongs(index);
        }
        count += 1;
        if candidate.ended {
            ended += 1;
            last_ended = index;
        }
    }
    match (count, ended) {
        (0, _) => Verdict::Refuse,
        (1, 1) => Verdict::Belongs(last_ended),
        (1, _) => Verdict::Wait,
        _ if !settled => Verdict::Wait,
        (_, 1) if !rivals => Verdict::Belongs(last_ended),
        (_, 0) if !rivals => Verdict::Wait,
        _ => Verdict::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::Verdict::{Belongs, Refuse, Wait};
    use super::*;

    const SILENT: Candidate = Candidate { same_port: false, ended: false };
    const ENDED: Candidate = Candidate { same_port: false, ended: true };
    const OURS: Candidate = Candidate { same_port: true, ended: false };

    fn of(candidates: &[Candidate], rivals: bool, settled: bool) -> Verdict {
        choose(candidates.iter().copied().enumerate(), rivals, settled)
    }

    #[test]
    fn the_port_tells() {
        assert_eq!(of(&[SILENT, ENDED, OURS], true, false), Belongs(2));
    }

    #[test]
    fn a_host_with_one_connection_is_known_by_its_end() {
        assert_eq!(of(&[], false, false), Refuse);
        assert_eq!(of(&[SILENT], false, true), Wait);
        assert_eq!(of(&[ENDED], false, false), Belongs(0));
    }

    #[test]
    fn silent_connections_of_the_host_are_passed_over() {
        assert_eq!(of(&[SILENT, SILENT, ENDED], false, false), Wait);
        assert_eq!(of(&[SILENT, SILENT, ENDED], false, true), Belongs(2));
        assert_eq!(of(&[SILENT, SILENT], false, true), Wait);
    }

    #[test]
    fn nobody_gets_what_may_be_anothers() {
        assert_eq!(of(&[ENDED, ENDED], false, true), Refuse);
        assert_eq!(of(&[ENDED, SILENT], true, true), Refuse);
        assert_eq!(of(&[ENDED, ENDED], true, false), Wait);
    }
}
