//! What the library does around fork(2): one registration, one order.
//!
//! It is made when the library is loaded, after librdmacm's own, on which this library depends: the
//! C library then calls [`before`] ahead of librdmacm's handler, and the other two after it. None
//! of the steps makes a system call where there is nothing of fork mode.

use crate::{auto, fork, process, table};

/// Registers the handlers. Without memory for them children of fork(2) are taken for those of
/// vfork(2) (what they close stays open in librdmacm until they end) and have no rsockets.
pub fn register() {
    // SAFETY: functions of this library, which is never unloaded (-z nodelete).
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

extern "C" fn before() {
    auto::before_fork();
    fork::before_fork();
}

extern "C" fn in_parent() {
    fork::in_parent();
    auto::in_parent();
}

/// Automatic mode comes first, because it asks which rsockets are the parent's own. The table comes
/// before fork mode, which replaces entries of it.
extern "C" fn in_child() {
    process::own();
    auto::in_child();
    table::forked();
    fork::in_child();
}
