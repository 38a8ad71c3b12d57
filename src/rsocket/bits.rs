//! The bits of poll(2) and epoll(7), which have the same values, as far as rsockets know them.

use std::ffi::c_short;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM};

/// Readable, and writable, in both of poll's words for it.
pub const IN: c_short = POLLIN | POLLRDNORM;
/// See [`IN`].
pub const OUT: c_short = POLLOUT | POLLWRNORM;

/// What a [`Pollable`](super::watch::Pollable) is asked for when a program asks for `events`: POLLIN, POLLOUT,
/// POLLRDHUP. There is no urgent data and there are no bands.
pub fn wanted(events: c_short) -> c_short {
    let mut wanted = events & POLLRDHUP;
    if events & IN != 0 {
        wanted |= POLLIN;
    }
    if events & OUT != 0 {
        wanted |= POLLOUT;
    }
    wanted
}

/// What the program is told of `ready` when it asked for `events`: of a closed rsocket that it is closed.
pub fn told(ready: c_short, events: c_short) -> c_short {
    if ready & POLLNVAL != 0 {
        return POLLNVAL;
    }
    let mut told = ready & (POLLERR | POLLHUP | (events & POLLRDHUP));
    if ready & POLLIN != 0 {
        told |= events & IN;
    }
    if ready & POLLOUT != 0 {
        told |= events & OUT;
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM, POLLPRI, POLLRDBAND};

    #[test]
    fn both_names_of_a_bit() {
        assert_eq!(wanted(POLLRDNORM | POLLWRNORM), POLLIN | POLLOUT);
        assert_eq!(told(POLLIN | POLLOUT, POLLRDNORM | POLLOUT), POLLRDNORM | POLLOUT);
        assert_eq!(told(POLLIN, POLLIN | POLLRDNORM), POLLIN | POLLRDNORM);
        assert_eq!(wanted(POLLPRI | POLLRDBAND), 0);
    }

    #[test]
    fn nothing_that_was_not_asked_for_but_errors() {
        let all = POLLIN | POLLOUT | POLLRDHUP | POLLERR | POLLHUP;
        assert_eq!(told(all, 0), POLLERR | POLLHUP);
        assert_eq!(told(all, POLLPRI), POLLERR | POLLHUP);
    }

    #[test]
    fn a_closed_one_is_nothing_else() {
        assert_eq!(told(POLLNVAL | POLLIN | POLLHUP, POLLIN), POLLNVAL);
    }

    #[test]
    fn epoll_has_the_same_values() {
        let poll = [POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM];
        assert_eq!(poll.map(i32::from), [EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM]);
    }
}
