//! What the library does around fork(2): one set of handlers in a fixed order.
//!
//! The handlers are registered when the library is loaded, after librdmacm's, on which this library
//! depends: the C library then calls [`before`] ahead of librdmacm's handler, and the other two
//! after it. In a process without rsockets the only system call of the handlers is getpid(2) in the
//! child.

use libc::pid_t;

use crate::sockets::rdma;
use crate::{auto, errno, open_fds, process, table, transition};

/// Registers the handlers. If this fails for lack of memory, children of fork(2) are treated as
/// children of vfork(2): they have no rsockets, and what they close stays open in librdmacm until
/// they end.
pub fn register() {
    // SAFETY: the handlers are functions of this library, which is never unloaded (-z nodelete).
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

/// Calls `fork`, a fork that runs no handlers, and does what the handlers would do before and after
/// it. Returns the result of `fork`.
pub fn around(fork: impl FnOnce() -> pid_t) -> pid_t {
    let of_librdmacm = |step| {
        let _ = rdma::set(-1, (base::private::LEVEL, base::private::FORK), &step);
    };
    let any = table::any();
    if any {
        before();
        of_librdmacm(base::private::FORK_BEFORE);
    } else {
        auto::before_fork();
    }
    let child = fork();
    match (any, child) {
        (true, 0) => {
            of_librdmacm(base::private::FORK_IN_CHILD);
            in_child();
        }
        (true, _) => errno::keeping(|| {
            of_librdmacm(base::private::FORK_IN_PARENT);
            in_parent();
        }),
        (false, 0) => process::own(),
        (false, _) => {}
    }
    child
}

extern "C" fn before() {
    auto::before_fork();
}

extern "C" fn in_parent() {
    auto::in_parent();
}

/// Automatic mode comes before the table: it still asks which rsockets the parent has created, and
/// [`table::forked`] changes the answer.
extern "C" fn in_child() {
    process::own();
    open_fds::in_child();
    auto::in_child();
    table::forked();
    transition::Moving::reset();
}
