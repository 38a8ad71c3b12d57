//! What the library does around fork(2): one set of handlers in a fixed order.
//!
//! This library depends on librdmacm, so it is loaded and registers its handlers after librdmacm.
//! The C library therefore calls [`auto::before_fork`] before librdmacm's handler, and the other
//! two handlers after librdmacm's. In a process without rsockets the only system calls of the
//! handlers are getpid(2) and getrlimit(2) in the child.

use libc::pid_t;

use crate::sockets::rdma;
use crate::{auto, epoll, errno, open_fds, process, table, transition};

/// Registers the handlers. If the registration fails for lack of memory, children of fork(2) are
/// treated as children of vfork(2): they have no rsockets, and what they close stays open in
/// librdmacm until they end.
pub fn register() {
    // SAFETY: the handlers are functions of this library, which is never unloaded (-z nodelete).
    unsafe { libc::pthread_atfork(Some(auto::before_fork), Some(auto::in_parent), Some(in_child)) };
}

/// Calls `fork`, a fork that runs no handlers, and does what the handlers would do before and after
/// the fork. Returns the result of `fork`.
pub fn around(fork: impl FnOnce() -> pid_t) -> pid_t {
    let any = table::any();
    let of_librdmacm = |step| {
        if any {
            let _ = rdma::set(-1, (base::private::LEVEL, base::private::FORK), &step);
        }
    };
    auto::before_fork();
    of_librdmacm(base::private::FORK_BEFORE);
    let child = fork();
    if child == 0 {
        of_librdmacm(base::private::FORK_IN_CHILD);
        in_child();
    } else {
        errno::keeping(|| {
            of_librdmacm(base::private::FORK_IN_PARENT);
            auto::in_parent();
        });
    }
    child
}

/// [`auto::in_child`] must run before [`table::forked`]: automatic mode asks which rsockets the
/// parent has created, and [`table::forked`] changes the answer.
extern "C" fn in_child() {
    process::own();
    open_fds::in_child();
    auto::in_child();
    epoll::in_child();
    table::forked();
    transition::Moving::reset();
}
