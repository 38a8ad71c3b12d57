//! fork(): a child starts without a reactor, and may close its copies of sockets without harming the parent's.

use super::{calls, growth_budget, owner, reactor, stream};
use crate::sys::atfork::watch_forks;

watch_forks!(before, in_parent, in_child);

extern "C" fn before() {
    reactor::before_fork();
}

extern "C" fn in_parent() {
    // SAFETY: after `before`, in the same thread.
    unsafe { reactor::after_fork(false) };
}

extern "C" fn in_child() {
    owner::in_child();
    growth_budget::in_child();
    stream::in_child();
    // SAFETY: after `before`, in the copy of the same thread, which is the only one.
    unsafe {
        calls::after_fork();
        reactor::after_fork(true);
    }
}
