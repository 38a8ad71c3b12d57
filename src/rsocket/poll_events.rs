//! The bits of poll(2) and epoll(7) that rsockets support. Both interfaces use the same values.

use std::ffi::c_short;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM};

/// The bits for readable data. poll(2) has two names for the event.
pub const IN: c_short = POLLIN | POLLRDNORM;
/// The bits for space to send. See [`IN`].
pub const OUT: c_short = POLLOUT | POLLWRNORM;

/// Returns the bits to ask a [`Pollable`](super::pollable::Pollable) for when a program requests
/// `events`: POLLIN, POLLOUT and POLLRDHUP. Rsockets have neither urgent data nor priority bands.
#[inline]
pub fn wanted(events: c_short) -> c_short {
    // POLLRDNORM and POLLWRNORM become POLLIN and POLLOUT: rpoll comes here for each descriptor.
    const SHIFT: u32 = POLLRDNORM.trailing_zeros() - POLLIN.trailing_zeros();
    const { assert!(POLLIN << SHIFT == POLLRDNORM && POLLOUT << SHIFT == POLLWRNORM) };
    (events | events >> SHIFT) & (POLLIN | POLLOUT) | events & (POLLRDHUP | base::private::FORWARDER_EVENT)
}

/// Returns the revents of an rsocket with the bits `ready` for a program that requested `events`. A
/// closed rsocket has POLLNVAL only.
pub fn reported(ready: c_short, events: c_short) -> c_short {
    if ready & POLLNVAL != 0 {
        return POLLNVAL;
    }
    let mut reported = ready & (POLLERR | POLLHUP | (events & POLLRDHUP));
    if ready & POLLIN != 0 {
        reported |= events & IN;
    }
    if ready & POLLOUT != 0 {
        reported |= events & OUT;
    }
    reported
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM, POLLPRI, POLLRDBAND};

    #[test]
    fn both_names_of_a_bit_are_reported() {
        assert_eq!(wanted(POLLRDNORM | POLLWRNORM), POLLIN | POLLOUT);
        assert_eq!(wanted(base::private::FORWARDER_EVENT), base::private::FORWARDER_EVENT);
        assert_eq!(reported(POLLIN, base::private::FORWARDER_EVENT | POLLIN), POLLIN);
        assert_eq!(reported(POLLIN | POLLOUT, POLLRDNORM | POLLOUT), POLLRDNORM | POLLOUT);
        assert_eq!(reported(POLLIN, POLLIN | POLLRDNORM), POLLIN | POLLRDNORM);
        assert_eq!(wanted(POLLPRI | POLLRDBAND), 0);
    }

    #[test]
    fn only_requested_bits_and_errors_are_reported() {
        let all = POLLIN | POLLOUT | POLLRDHUP | POLLERR | POLLHUP;
        assert_eq!(reported(all, 0), POLLERR | POLLHUP);
        assert_eq!(reported(all, POLLPRI), POLLERR | POLLHUP);
    }

    #[test]
    fn no_bit_is_reported_that_is_not_asked_for() {
        let always = POLLERR | POLLHUP | POLLNVAL;
        for events in 0..0x4000 {
            for ready in [POLLIN, POLLOUT, POLLRDHUP, POLLERR, POLLHUP, POLLIN | POLLOUT | POLLRDHUP] {
                let revents = reported(ready, events);
                assert_eq!(revents & !(events | always), 0, "ready {ready:#x}, asked {events:#x}");
                let is_asked = wanted(events) & ready != 0 || ready & always != 0;
                assert_eq!(revents != 0, is_asked, "ready {ready:#x}, asked {events:#x}");
            }
        }
    }

    #[test]
    fn a_closed_rsocket_reports_pollnval_only() {
        assert_eq!(reported(POLLNVAL | POLLIN | POLLHUP, POLLIN), POLLNVAL);
    }

    #[test]
    fn epoll_has_the_same_values() {
        let poll = [POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM];
        assert_eq!(poll.map(i32::from), [EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM]);
    }
}
