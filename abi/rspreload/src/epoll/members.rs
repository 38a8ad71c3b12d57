//! A record of each TCP socket that may become an rsocket: the program's epoll instances of which
//! the socket is a member, noted when epoll_ctl(2) succeeds. A record ends when its descriptor is
//! closed, even if a copy keeps the socket open and thus in its instances.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};

use crate::memory::plain;
use crate::table::Growing;
use crate::{process, sockets};

/// Maximum number of instances of which a socket can be a member while it becomes an rsocket.
pub const MAX_INSTANCES: usize = 8;

/// The membership of a socket in an epoll instance, with the event that the program requested.
struct Member {
    /// Descriptor of the instance plus one; 0 if the entry is unused.
    epoll: AtomicI32,
    /// `Record::instance` of the instance's descriptor when the socket was added.
    instance: AtomicU32,
    events: AtomicU32,
    data: AtomicU64,
}

/// What is known about a descriptor; all zeros if nothing is known.
struct Record {
    /// Value of [`GENERATION`] when the record began ([`begin`]); 0 if there is no record.
    made: AtomicU32,
    /// 1 if the socket is or was a member of more than [`MAX_INSTANCES`] instances.
    more: AtomicU32,
    members: [Member; MAX_INSTANCES],
    /// Odd if the descriptor is an epoll instance to which a recorded socket was added. Changes
    /// when such a descriptor is closed or reused.
    instance: AtomicU32,
}

plain! { Record }

/// The records, by descriptor.
static RECORDS: Growing<Record> = Growing::new();

/// 1 plus the number of fork(2) calls of this process and, before it was forked, of its ancestors.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// Returns `Record::instance` of an epoll instance, or 0 without a record.
fn instance(epfd: c_int) -> u32 {
    RECORDS.get(epfd).map_or(0, |record| record.instance.load(SeqCst))
}

/// Called before fork(2): the child will share all sockets that exist at the fork.
pub fn begin_generation() {
    GENERATION.fetch_add(1, SeqCst);
}

fn record(fd: c_int) -> Option<&'static Record> {
    RECORDS.get(fd).filter(|record| record.made.load(SeqCst) != 0)
}

/// Begins a record: socket(2) or accept4(2) has returned `fd`, or connect(2) with AF_UNSPEC has
/// reset its socket. Returns `fd`.
pub fn begin(fd: c_int) -> c_int {
    if let Ok(record) = RECORDS.get_or_grow(fd) {
        if record.made.load(SeqCst) != 0 {
            record.clear();
        }
        record.made.store(GENERATION.load(SeqCst), SeqCst);
    }
    fd
}

/// Ends the record of a descriptor that is being closed or that has become a new file.
#[inline(always)]
pub fn forget(fd: c_int) {
    if let Some(record) = RECORDS.get(fd)
        && (record.made.load(SeqCst) != 0 || record.instance.load(SeqCst) & 1 != 0)
    {
        record.forget();
    }
}

/// Whether there is a record of the instances of which the socket is a member.
pub fn are_known(fd: c_int) -> bool {
    record(fd).is_some()
}

/// Whether no other process has the socket: this process has created it and has not forked since.
pub fn is_own(fd: c_int) -> bool {
    record(fd).is_some_and(|record| record.made.load(SeqCst) == GENERATION.load(SeqCst))
}

/// Whether the socket may be a member of more instances than the record has space for.
pub fn are_too_many(fd: c_int) -> bool {
    record(fd).is_some_and(|record| record.more.load(SeqCst) != 0)
}

impl Record {
    /// Ends the record. Does nothing in a child of vfork(2), which has its own descriptors but its
    /// parent's records.
    #[cold]
    fn forget(&self) {
        if !process::is_guest() {
            self.clear();
            self.instance.fetch_add(self.instance.load(SeqCst) & 1, SeqCst);
        }
    }

    fn clear(&self) {
        self.made.store(0, SeqCst);
        self.more.store(0, SeqCst);
        self.members.iter().for_each(|member| member.epoll.store(0, SeqCst));
    }

    /// Returns the entry for the epoll descriptor `epfd`. The entry may be stale.
    fn member(&self, epfd: c_int) -> Option<&Member> {
        self.members.iter().find(|member| member.epoll.load(SeqCst) == epfd + 1)
    }

    fn control(&self, epfd: c_int, op: c_int, event: Option<epoll_event>) -> Result<(), c_int> {
        let claim = |member: &&Member| member.epoll.compare_exchange(0, epfd + 1, SeqCst, SeqCst).is_ok();
        match event.filter(|_| op != EPOLL_CTL_DEL) {
            None => {
                if let Some(member) = self.member(epfd) {
                    member.epoll.store(0, SeqCst);
                }
            }
            Some(event) => {
                let Some(member) = self.member(epfd).or_else(|| self.members.iter().find(claim)) else {
                    self.more.store(1, SeqCst);
                    return Err(libc::E2BIG);
                };
                let instance = RECORDS.get_or_grow(epfd).map_or(0, |record| record.instance.fetch_or(1, SeqCst) | 1);
                member.instance.store(instance, SeqCst);
                member.events.store(event.events, SeqCst);
                member.data.store(event.u64, SeqCst);
            }
        }
        Ok(())
    }
}

/// Records an epoll_ctl(2) that has succeeded on a kernel descriptor.
#[inline(always)]
pub fn note(epfd: c_int, op: c_int, fd: c_int, event: impl FnOnce() -> Option<epoll_event>) {
    if let Some(record) = record(fd) {
        let _ = record.control(epfd, op, event());
    }
}

/// epoll_ctl(2) on a socket that has left its instances ([`leave`]): only changes the record. Fails
/// with the kernel's errors, and with `E2BIG` if the socket has no record or would be a member of
/// more than [`MAX_INSTANCES`] instances.
pub fn control(epfd: c_int, op: c_int, fd: c_int, event: Option<epoll_event>) -> Result<(), c_int> {
    let record = record(fd).ok_or(libc::E2BIG)?;
    let is_current = |member: &&Member| member.instance.load(SeqCst) == instance(epfd);
    match (op, record.member(epfd).filter(is_current)) {
        (EPOLL_CTL_ADD, Some(_)) => Err(libc::EEXIST),
        (EPOLL_CTL_MOD | EPOLL_CTL_DEL, None) => Err(libc::ENOENT),
        (EPOLL_CTL_ADD | EPOLL_CTL_MOD, _) if event.is_none() => Err(libc::EFAULT),
        (EPOLL_CTL_ADD | EPOLL_CTL_MOD | EPOLL_CTL_DEL, _) => record.control(epfd, op, event),
        _ => Err(libc::EINVAL),
    }
}

/// Removes a socket from the kernel's epoll instances of which it is a member. The record keeps the
/// instances for [`join`].
pub fn leave(fd: c_int) {
    for member in record(fd).iter().flat_map(|record| &record.members) {
        let epfd = member.epoll.load(SeqCst) - 1;
        if epfd >= 0 && sockets::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, None) != 0 {
            // The instance was closed, and its descriptor may be in use again.
            member.epoll.store(0, SeqCst);
        }
    }
}

/// Makes the descriptor, which may be an rsocket's now, a member of the recorded instances again.
/// Skips an instance that was closed meanwhile, because its descriptor may be in use again.
pub fn join(fd: c_int) {
    for member in record(fd).iter().flat_map(|record| &record.members) {
        let epfd = member.epoll.load(SeqCst) - 1;
        if epfd >= 0 && instance(epfd) == member.instance.load(SeqCst) {
            super::add(epfd, fd, epoll_event { events: member.events.load(SeqCst), u64: member.data.load(SeqCst) });
        }
    }
}

#[cfg(test)]
mod tests_of_records {
    use super::*;

    /// Descriptors that no test opens.
    const SOCKET: c_int = 60_000;
    const EPOLL: c_int = 60_001;

    #[test]
    fn a_record_ends_with_what_it_records() {
        let event = || Some(epoll_event { events: 1, u64: 2 });
        assert!(!are_known(begin(-1)) && !are_known(SOCKET));
        assert_eq!(control(EPOLL, EPOLL_CTL_ADD, SOCKET, event()), Err(libc::E2BIG));
        begin(SOCKET);
        assert_eq!(control(EPOLL, EPOLL_CTL_ADD, SOCKET, event()), Ok(()));
        assert_eq!(control(EPOLL, EPOLL_CTL_ADD, SOCKET, event()), Err(libc::EEXIST));
        // The kernel ignores the event.
        assert_eq!(control(EPOLL, EPOLL_CTL_DEL, SOCKET, event()), Ok(()));
        assert_eq!(control(EPOLL, EPOLL_CTL_MOD, SOCKET, event()), Err(libc::ENOENT));
        // Simulate a fork(2) since the socket was made: the record is of another generation.
        assert!(is_own(SOCKET));
        record(SOCKET).unwrap().made.fetch_add(1, SeqCst);
        assert!(are_known(SOCKET) && !is_own(SOCKET));
        forget(SOCKET);
        assert!(!are_known(SOCKET));
    }
}
