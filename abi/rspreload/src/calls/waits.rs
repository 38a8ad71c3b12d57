//! Calls that wait: poll, select and epoll.

use core::ffi::{c_int, c_short, c_ulong};
use core::slice;

use libc::{
    EBADF, EINVAL, EPOLL_CTL_ADD, EPOLL_CTL_DEL, FD_SETSIZE, POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI,
    POLLRDBAND, POLLRDNORM, POLLWRBAND, POLLWRNORM, epoll_event, fd_set, nfds_t, pollfd, timeval,
};

use crate::epoll::members;
use crate::fds::Fd;
use crate::process::{Deadline, milliseconds};
use crate::sockets::{kernel, rdma};
use crate::table::{self, Kind};
use crate::{auto, epoll, errno, fds, fork, memory, next_symbol, transition};

// poll: if the list contains an rsocket, librdmacm's rpoll waits for all descriptors.

exports! {
    /// poll(2).
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        // Pass an invalid list to the kernel, which rejects it.
        if !table::any() || fds.is_null() || count > c_int::MAX as nfds_t {
            return next_symbol::poll(fds, count, timeout);
        }
        // The program guarantees that the list is valid, and not used by others meanwhile.
        poll_list(slice::from_raw_parts_mut(fds, count as usize), timeout)
    }
}

/// poll(2) on a slice. Returns the number of ready descriptors, or -1.
pub fn poll_list(list: &mut [pollfd], timeout: c_int) -> c_int {
    if are_concerned(list.iter().map(|fd| fd.fd)) {
        let result = memory::with::<pollfd, _>(list.len(), |polled| poll_both(list, polled, timeout));
        return result.unwrap_or_else(errno::fail);
    }
    kernel::poll(list, timeout)
}

/// Whether one of the descriptors is or may become an rsocket. Reports the use of forwarded
/// connections to the process that forwards the data.
fn are_concerned(fds: impl Iterator<Item = c_int>) -> bool {
    fds.fold(false, |any, fd| match Fd::of(fd) {
        Fd::Rsocket(_) | Fd::Pending(_) | Fd::Connecting(_) => true,
        Fd::Tracked(entry) => {
            auto::before_wait(entry);
            any
        }
        Fd::Kernel | Fd::Epoll => any,
    })
}

/// Returns the descriptor and events that librdmacm has to poll for `fd`. Decides what a pending
/// socket becomes, if this is possible without waiting.
fn asked(fd: &pollfd) -> pollfd {
    let polled_fd = loop {
        break match Fd::of(fd.fd) {
            Fd::Rsocket(entry) => entry.handle,
            Fd::Pending(entry) => fork::resolve_for_poll(fd.fd, entry).unwrap_or(fd.fd),
            Fd::Connecting(entry) => match auto::connect::done(entry) {
                // The entry is out of date, because its attempt has ended: read the entry again.
                -1 => continue,
                done => return pollfd { fd: done, events: POLLIN, revents: 0 },
            },
            Fd::Kernel | Fd::Epoll | Fd::Tracked(_) => fd.fd,
        };
    };
    pollfd { fd: polled_fd, events: fd.events, revents: 0 }
}

/// Whether `fd` has become another kind of socket since `polled_fd` was polled for it. `revents`
/// are the events of `polled_fd`.
fn has_changed(fd: c_int, polled_fd: c_int, revents: c_short) -> bool {
    match Fd::of(fd) {
        Fd::Rsocket(entry) => polled_fd != entry.handle,
        // `polled_fd` was an rsocket whose data is now forwarded.
        Fd::Kernel | Fd::Tracked(_) => polled_fd != fd,
        Fd::Connecting(_) => true,
        Fd::Pending(_) => fork::after_poll(fd, revents),
        Fd::Epoll => false,
    }
}

/// Polls the descriptors in `list` with librdmacm. `polled` is as long as `list`, and is filled
/// with the descriptors and events that librdmacm has to poll ([`asked`]). Returns the number of
/// ready descriptors, or -1.
fn poll_both(list: &mut [pollfd], polled: &mut [pollfd], timeout: c_int) -> c_int {
    let deadline = Deadline::after(timeout);
    let mut left = timeout;
    loop {
        for (polled, fd) in polled.iter_mut().zip(&*list) {
            *polled = asked(fd);
        }
        let result = rdma::poll(polled, left);
        if result < 0 {
            return result;
        }
        let ready = list.iter().zip(&*polled).filter(|(_, polled)| polled.revents != 0);
        if !ready.fold(false, |any, (fd, polled)| has_changed(fd.fd, polled.fd, polled.revents) || any) {
            for (fd, polled) in list.iter_mut().zip(&*polled) {
                fd.revents = polled.revents;
            }
            return result;
        }
        left = deadline.left();
    }
}

// select: if the sets contain an rsocket, poll(2) with the events that the kernel uses for each set
// (fs/select.c).

/// Sets of descriptors are arrays of these words (`__fd_mask` of sys/select.h).
type Word = c_ulong;
const BITS: usize = Word::BITS as usize;

exports! {
    /// select(2). With rsockets, the time-out is rounded up to milliseconds.
    fn select(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int {
        let count = programs_limit(count);
        let Some(mut sets) = Sets::with_rsockets(count, [read, write, except]) else {
            return next_symbol::select(count, read, write, except, timeout);
        };
        let asked = match timeout.as_ref() {
            None => -1,
            Some(time) if time.tv_sec < 0 || time.tv_usec < 0 => return errno::fail(EINVAL),
            Some(time) => milliseconds(time.tv_sec, time.tv_usec.saturating_mul(1_000)),
        };
        let end = Deadline::after(asked);
        let result = sets.wait(|list| poll_list(list, end.left()));
        let left = end.left();
        if let Some(time) = timeout.as_mut()
            && left < asked
        {
            *time = timeval { tv_sec: (left / 1_000).into(), tv_usec: (left % 1_000 * 1_000).into() };
        }
        result
    }
}

/// Returns the count for select(2). Limits a count above FD_SETSIZE to the program's descriptors.
pub fn programs_limit(count: c_int) -> c_int {
    if count > FD_SETSIZE as c_int && table::any() { fds::programs_count(count) } else { count }
}

/// The sets of select(2), for reading, writing and urgent data.
pub struct Sets<'a> {
    count: usize,
    sets: [&'a mut [Word]; 3],
}

/// For each set: the events to poll for, the events that make a descriptor ready, and the bit of
/// the set in [`ready_sets`].
const KINDS: [(c_short, c_short, c_short); 3] = [
    (POLLIN | POLLRDNORM | POLLRDBAND, POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR, 1),
    (POLLOUT | POLLWRNORM | POLLWRBAND, POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR, 2),
    (POLLPRI, POLLPRI, 4),
];

impl<'a> Sets<'a> {
    /// Returns the sets if they contain a descriptor that is or may become an rsocket. Returns
    /// `None` if the call goes to the kernel, as with a negative count.
    ///
    /// # Safety
    /// The sets are NULL or have `count` bits, which nothing else uses during `'a`.
    pub unsafe fn with_rsockets(count: c_int, sets: [*mut fd_set; 3]) -> Option<Sets<'a>> {
        let count = usize::try_from(count).ok().filter(|_| table::any())?;
        let words = |set: *mut fd_set| match set.is_null() {
            true => &mut [][..],
            // SAFETY: the set has `count` bits, which nothing else uses: guaranteed by the caller.
            false => unsafe { slice::from_raw_parts_mut(set.cast(), count.div_ceil(BITS)) },
        };
        let sets = Sets { count, sets: sets.map(words) };
        are_concerned(sets.members().map(|fd| fd.fd)).then_some(sets)
    }

    /// Returns the descriptors in the sets, with the events to poll for.
    fn members(&self) -> impl Iterator<Item = pollfd> {
        let words = move |at: usize| self.sets.each_ref().map(|set| set.get(at).copied().unwrap_or(0));
        let bits = move |at| if words(at) == [0; 3] { 0..0 } else { at * BITS..(at + 1) * BITS };
        let fds = (0..self.count.div_ceil(BITS)).flat_map(bits).take_while(|&fd| fd < self.count);
        fds.filter_map(move |fd| {
            let asked = words(fd / BITS).map(|word| word >> (fd % BITS) & 1 != 0);
            let events = asked.iter().zip(KINDS).map(|(&is_asked, kind)| if is_asked { kind.0 } else { 0 });
            let events = events.fold(0, |all, events| all | events);
            // `fd` fits an int, because it is below `count`.
            (events != 0).then_some(pollfd { fd: fd as c_int, events, revents: 0 })
        })
    }

    /// Waits with `poll` until a descriptor is ready for one of its sets, or `poll` returns 0 or
    /// -1. Leaves the ready descriptors in the sets. Returns the number of bits set, or -1 with
    /// `errno`.
    pub fn wait(&mut self, mut poll: impl FnMut(&mut [pollfd]) -> c_int) -> c_int {
        let members = self.members().count();
        let waited = memory::with::<pollfd, _>(members, |list| {
            list.iter_mut().zip(self.members()).for_each(|(entry, member)| *entry = member);
            loop {
                let result = poll(list);
                if result < 0 {
                    return result;
                }
                let mut ready = 0;
                for fd in list.iter_mut().filter(|fd| fd.revents != 0) {
                    if fd.revents & POLLNVAL != 0 {
                        return errno::fail(EBADF);
                    }
                    fd.revents = ready_sets(fd);
                    ready += fd.revents.count_ones();
                    if fd.revents == 0 {
                        // No set of the descriptor counts these events. Poll the descriptor no
                        // more: poll(2) would report the events again.
                        fd.fd = !fd.fd;
                    }
                }
                if ready > 0 || result == 0 {
                    self.store(list);
                    return ready as c_int;
                }
            }
        });
        waited.unwrap_or_else(errno::fail)
    }

    fn store(&mut self, list: &[pollfd]) {
        for (set, (_, _, bit)) in self.sets.iter_mut().zip(KINDS) {
            set.fill(0);
            for fd in list.iter().filter(|fd| fd.revents & bit != 0) {
                set[fd.fd as usize / BITS] |= 1 << (fd.fd as usize % BITS);
            }
        }
    }
}

/// Returns the bits of the sets for which a descriptor is ready.
fn ready_sets(fd: &pollfd) -> c_short {
    // An rsocket without a peer is writable: a send fails at once.
    let hung_up = fd.revents & POLLHUP != 0 && matches!(Fd::of(fd.fd), Fd::Rsocket(_));
    let revents = fd.revents | if hung_up { POLLOUT } else { 0 };
    let counts = |&(asked, counts, _): &(c_short, c_short, c_short)| fd.events & asked != 0 && revents & counts != 0;
    KINDS.iter().filter(|kind| counts(kind)).fold(0, |all, kind| all | kind.2)
}

exports! {
    /// epoll_create(2).
    safe fn epoll_create(size: c_int) -> c_int {
        fds::on_new_fd(next_symbol::epoll_create(size))
    }

    /// epoll_create1(2).
    safe fn epoll_create1(flags: c_int) -> c_int {
        fds::on_new_fd(next_symbol::epoll_create1(flags))
    }

    /// epoll_ctl(2).
    fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let event = Event::new(event);
        if table::any() { control(epfd, op, fd, event) } else { event.control_kernel(epfd, op, fd) }
    }

    /// epoll_wait(2). Also waits for rsockets that another thread adds meanwhile.
    fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
        epoll::wait_by(|left| next_symbol::epoll_wait(epfd, events, max, left), events, max, timeout)
    }
}

/// The event that a program passes to epoll_ctl(2).
#[derive(Clone, Copy)]
pub struct Event(*mut epoll_event);

impl Event {
    /// # Safety
    /// `event` is NULL, or readable while the value is used.
    pub unsafe fn new(event: *mut epoll_event) -> Event {
        Event(event)
    }

    fn get(self) -> Option<epoll_event> {
        // SAFETY: `event` is readable: guaranteed by the caller of `new`.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// epoll_ctl(2) on a kernel descriptor.
    fn control_kernel(self, epfd: c_int, op: c_int, fd: c_int) -> c_int {
        // SAFETY: the pointer is NULL or readable: guaranteed by the caller of `new`.
        let result = unsafe { next_symbol::epoll_ctl(epfd, op, fd, self.0) };
        if result == 0 {
            members::note(epfd, op, fd, || self.get());
        }
        result
    }
}

/// epoll_ctl(2) for a process in which [`table::any`] is true.
pub fn control(epfd: c_int, op: c_int, fd: c_int, event: Event) -> c_int {
    let mut kind = Fd::of(fd);
    // Wait after `kind` was read: `kind` is current, unless the wait has noticed a change.
    if transition::wait_for_move(fd) {
        kind = Fd::of(fd);
    }
    match kind {
        Fd::Connecting(entry) => {
            let result = auto::connect::control(epfd, op, fd, entry, event.get());
            result.unwrap_or_else(|| control(epfd, op, fd, event))
        }
        // The pending socket has become an rsocket: start again.
        Fd::Pending(entry) if op != EPOLL_CTL_DEL && fork::resolve_for_poll(fd, entry).is_some() => {
            control(epfd, op, fd, event)
        }
        Fd::Rsocket(entry) => {
            let result = epoll::control_rsocket(epfd, op, fd, entry, event.get());
            let is_forwarded = table::get(fd).is_some_and(|entry| entry.kind == Kind::Forwarded);
            if result == 0 && op == EPOLL_CTL_DEL || !is_forwarded {
                return result;
            }
            // The library's thread has started to forward the connection meanwhile.
            if result == 0 && op == EPOLL_CTL_ADD {
                epoll::hand_over_to_kernel(fd, entry);
                return result;
            }
            control(epfd, op, fd, event)
        }
        Fd::Tracked(entry) => {
            auto::before_wait(entry);
            event.control_kernel(epfd, op, fd)
        }
        Fd::Kernel | Fd::Epoll | Fd::Pending(_) => event.control_kernel(epfd, op, fd),
    }
}

#[cfg(test)]
mod tests_of_select {
    use super::*;

    #[test]
    fn descriptors_in_the_sets() {
        let mut words = [1 | 1 << 5 | 1 << 63, 1 | 1 << 63, !0];
        for (count, expected) in [(128, &[0, 5, 63, 64, 127][..]), (127, &[0, 5, 63, 64]), (6, &[0, 5]), (0, &[])] {
            let sets = Sets { count, sets: [&mut words, &mut [], &mut []] };
            assert_eq!(sets.members().map(|fd| fd.fd).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn what_counts_for_no_set_does_not_end_the_wait() {
        let mut except = [1 << 7 | 1 << 9];
        let mut sets = Sets { count: 10, sets: [&mut [], &mut [], &mut except] };
        let mut polls = 0;
        let result = sets.wait(|list| {
            polls += 1;
            assert_eq!(list.iter().map(|fd| fd.fd).collect::<Vec<_>>(), [if polls == 1 { 7 } else { !7 }, 9]);
            list[0].revents = if polls == 1 { POLLHUP } else { 0 };
            list[1].revents = if polls == 2 { POLLPRI | POLLHUP } else { 0 };
            1
        });
        assert_eq!((result, polls, except), (1, 2, [1 << 9]));
    }
}
