//! How a call of the program takes a socket's lock.

use crate::errno::{Errno, Result};
use crate::os::fork::Owner;
use crate::os::sync::{Guard, Lock};

/// Locks a socket's state for a call of the program. Fails with `EBADF` for a socket of the parent
/// process.
#[inline]
pub fn enter<T>(owner: Owner, state: &Lock<T>) -> Result<Guard<'_, T>> {
    if owner.is_this_process() { Ok(state.lock()) } else { Err(Errno::EBADF) }
}
