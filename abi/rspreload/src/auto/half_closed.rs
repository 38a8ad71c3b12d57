//! When a forward ends because no process has the program's end any more and the peer does not end:
//! after the times that TCP gives a socket that no process has. Time and facts in, an action out.

const SECOND: i64 = 1_000_000_000;

/// Of a connection whose program has sent its end (TCP: FIN_WAIT2, tcp_fin_timeout).
pub const FIN_TIMEOUT: i64 = 60 * SECOND;

/// Of a connection whose peer does not take the program's last data. TCP probes a closed window up
/// to the longest interval of retransmissions before it gives up such a socket.
pub const UNSENT_TIMEOUT: i64 = 240 * SECOND;

/// What is missing for a forward to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// The program's end, and perhaps the peer's: there is no limit, as for a socket in CLOSE_WAIT.
    Program,
    /// The peer's end.
    Peer,
    /// The program has ended. The peer does not take what it has sent.
    Room,
}

impl Missing {
    fn timeout(self) -> Option<i64> {
        match self {
            Missing::Program => None,
            Missing::Peer => Some(FIN_TIMEOUT),
            Missing::Room => Some(UNSENT_TIMEOUT),
        }
    }
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Wait for events only.
    Wait,
    /// Wait for events, but not longer than until this time.
    WaitUntil(i64),
    /// Find out whether a process has the program's end: one that has shut down its socket may wait
    /// for an answer for any time.
    FindOwner,
    /// End the connection.
    Reset,
}

/// The state of a forward. Times are nanoseconds.
pub struct Idle {
    missing: Missing,
    /// When something was moved, or a process was found, for the last time.
    since: i64,
}

impl Idle {
    pub const fn new() -> Idle {
        Idle { missing: Missing::Program, since: 0 }
    }

    /// The forward has moved data or an end.
    pub fn moved(&mut self, missing: Missing, now: i64) {
        *self = Idle { missing, since: now };
    }

    /// What to do at a time.
    pub fn action(&self, now: i64) -> Action {
        match self.missing.timeout().map(|timeout| self.since + timeout) {
            None => Action::Wait,
            Some(end) if now < end => Action::WaitUntil(end),
            Some(_) => Action::FindOwner,
        }
    }

    /// Whether a process has the program's end, or `None` if the kernel does not tell.
    pub fn found(&mut self, has_owner: Option<bool>, now: i64) -> Action {
        if has_owner == Some(false) {
            return Action::Reset;
        }
        self.since = now;
        self.action(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_has_gone_is_given_up_after_the_time_of_tcp() {
        let mut idle = Idle::new();
        idle.moved(Missing::Peer, 5);
        assert_eq!(idle.action(6), Action::WaitUntil(5 + FIN_TIMEOUT));
        assert_eq!(idle.action(4 + FIN_TIMEOUT), Action::WaitUntil(5 + FIN_TIMEOUT));
        assert_eq!(idle.action(5 + FIN_TIMEOUT), Action::FindOwner);
        assert_eq!(idle.found(Some(false), 5 + FIN_TIMEOUT), Action::Reset);
    }

    #[test]
    fn a_program_that_waits_for_an_answer_is_asked_for_again() {
        for answer in [Some(true), None] {
            let mut idle = Idle::new();
            idle.moved(Missing::Peer, 0);
            for round in 1..10 {
                let now = round * FIN_TIMEOUT;
                assert_eq!(idle.action(now), Action::FindOwner);
                assert_eq!(idle.found(answer, now), Action::WaitUntil(now + FIN_TIMEOUT));
            }
        }
    }

    #[test]
    fn data_begins_the_time_anew() {
        let mut idle = Idle::new();
        idle.moved(Missing::Peer, 0);
        idle.moved(Missing::Peer, FIN_TIMEOUT - 1);
        assert_eq!(idle.action(FIN_TIMEOUT), Action::WaitUntil(2 * FIN_TIMEOUT - 1));
    }

    #[test]
    fn data_that_nobody_takes_has_longer() {
        let mut idle = Idle::new();
        idle.moved(Missing::Room, 0);
        assert_eq!(idle.action(FIN_TIMEOUT), Action::WaitUntil(UNSENT_TIMEOUT));
        assert_eq!(idle.action(UNSENT_TIMEOUT), Action::FindOwner);
        // The peer has taken it: what is missing now is its end.
        idle.moved(Missing::Peer, UNSENT_TIMEOUT);
        assert_eq!(idle.action(UNSENT_TIMEOUT), Action::WaitUntil(UNSENT_TIMEOUT + FIN_TIMEOUT));
    }

    #[test]
    fn a_program_that_has_not_ended_has_no_limit() {
        let mut idle = Idle::new();
        assert_eq!(idle.action(i64::MAX), Action::Wait);
        idle.moved(Missing::Program, 0);
        assert_eq!(idle.action(i64::MAX), Action::Wait);
    }
}
