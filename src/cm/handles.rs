//! Ids by kernel handle, for kernels that report events without the library's `uid` (spec: cm, Ids and events).

use std::ptr::NonNull;

use super::global::GlobalLock;
use super::id::Id;
use crate::errno::{Errno, Result};

/// Indexed by handle: the kernel gives out the lowest free number.
static HANDLES: GlobalLock<Table> = GlobalLock::new(Table(Vec::new()));

/// Handles beyond are not looked up: no kernel old enough to need it has given out so many.
const MOST: usize = 1 << 20;

struct Table(Vec<Option<NonNull<Id>>>);

// SAFETY: ids are shared between threads by design; the table only keeps where they are.
unsafe impl Send for Table {}

/// Remembers `id` under its handle.
pub fn insert(handle: u32, id: NonNull<Id>) -> Result<()> {
    let index = handle as usize;
    if index >= MOST {
        return Ok(());
    }
    let mut table = HANDLES.lock();
    if index >= table.0.len() {
        let more = index + 1 - table.0.len();
        table.0.try_reserve(more).map_err(|_| Errno::ENOMEM)?;
        table.0.resize(index + 1, None);
    }
    table.0[index] = Some(id);
    Ok(())
}

/// Forgets the id of `handle` if it is `id`: after a fork the number may name another one.
pub fn remove(handle: u32, id: NonNull<Id>) {
    if let Some(entry) = HANDLES.lock().0.get_mut(handle as usize)
        && *entry == Some(id)
    {
        *entry = None;
    }
}

/// The id of `handle`.
pub fn find(handle: u32) -> Option<NonNull<Id>> {
    HANDLES.lock().0.get(handle as usize).copied().flatten()
}

/// For forks.rs: takes the lock and keeps it.
pub(super) fn before_fork() {
    HANDLES.hold();
}

/// Releases what [`before_fork`] took.
///
/// # Safety
/// In the thread that called [`before_fork`], or its copy in the child.
pub(super) unsafe fn after_fork() {
    // SAFETY: the caller's word.
    unsafe { HANDLES.let_go(|_| {}) };
}
