//! What the library does around fork(2): one registration, one order.
//!
//! It is made when the library is loaded, after librdmacm's own, on which this library depends: the
//! C library then calls [`before`] ahead of librdmacm's handler, and the other two after it. None
//! of the steps makes a system call where there is nothing of fork mode.

use libc::pid_t;

use crate::{auto, errno, fork, open_fds, process, rsocket, table};

/// Registers the handlers. Without memory for them children of fork(2) are taken for those of
/// vfork(2) (what they close stays open in librdmacm until they end) and have no rsockets.
pub fn register() {
    // SAFETY: functions of this library, which is never unloaded (-z nodelete).
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

/// Calls `fork`, which runs no handlers, with what they do.
pub fn around(fork: impl FnOnce() -> pid_t) -> pid_t {
    let of_librdmacm = |step| {
        let _ = rsocket::set_option(-1, rdmacm_private::LEVEL, rdmacm_private::FORK, step);
    };
    let any = table::any();
    if any {
        before();
        of_librdmacm(rdmacm_private::FORK_BEFORE);
    } else {
        auto::before_fork();
    }
    let child = fork();
    match (any, child) {
        (true, 0) => {
            of_librdmacm(rdmacm_private::FORK_IN_CHILD);
            in_child();
        }
        (true, _) => errno::keeping(|| {
            of_librdmacm(rdmacm_private::FORK_IN_PARENT);
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

/// Automatic mode comes first, because it asks which rsockets are the parent's own. The table comes
/// before fork mode, which replaces entries of it.
extern "C" fn in_child() {
    process::own();
    open_fds::in_child();
    auto::in_child();
    table::forked();
    fork::in_child();
}
