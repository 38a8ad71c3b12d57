//! Ids by kernel handle, for kernels that report events without the library's `uid`.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::NonNull;

use super::global::GlobalLock;
use super::id::Id;
use crate::errno::{Errno, Result};

/// The kernel counts the ids of all processes together: the numbers of one that has few ids may be
/// high.
static HANDLES: GlobalLock<Table> = GlobalLock::new(Table::new());

struct Table(HashMap<u32, NonNull<Id>, BuildHasherDefault<Spread>>);

// SAFETY: ids are shared between threads by design; the table only keeps where they are.
unsafe impl Send for Table {}

impl Table {
    const fn new() -> Table {
        Table(HashMap::with_hasher(BuildHasherDefault::new()))
    }
}

/// Hashes handles, which the kernel chooses: they need no more than to be spread over all the bits
/// that a table may look at.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    fn write_u32(&mut self, number: u32) {
        // 2 to the 64th divided by the golden ratio: neighbours end up far from each other.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Remembers `id` under its handle.
pub fn insert(handle: u32, id: NonNull<Id>) -> Result<()> {
    let mut table = HANDLES.lock();
    table.0.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    table.0.insert(handle, id);
    Ok(())
}

/// Forgets the id of `handle` if it is `id`: after a fork the number may name another one.
pub fn remove(handle: u32, id: NonNull<Id>) {
    let mut table = HANDLES.lock();
    if table.0.get(&handle) == Some(&id) {
        table.0.remove(&handle);
    }
}

/// The id of `handle`.
pub fn find(handle: u32) -> Option<NonNull<Id>> {
    HANDLES.lock().0.get(&handle).copied()
}

/// For forks.rs: takes the lock and keeps it.
pub(super) fn before_fork() {
    HANDLES.before_fork();
}

/// Releases what [`before_fork`] took.
///
/// # Safety
/// In the thread that called [`before_fork`], or its copy in the child.
pub(super) unsafe fn after_fork(in_child: bool) {
    // SAFETY: as the caller promises.
    unsafe { HANDLES.after_fork(in_child, Table::new) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn high_numbers_cost_no_more_than_low_ones() {
        let id = |number: usize| NonNull::new(std::ptr::without_provenance_mut::<Id>(number)).unwrap();
        let handles = [0, 1, 65_536, 1 << 20, u32::MAX];
        for (number, &handle) in handles.iter().enumerate() {
            insert(handle, id(8 * number + 8)).unwrap();
        }
        assert!(HANDLES.lock().0.capacity() < 1000);
        remove(1, id(8));
        for (number, &handle) in handles.iter().enumerate() {
            assert_eq!(find(handle), Some(id(8 * number + 8)));
            remove(handle, id(8 * number + 8));
            assert_eq!(find(handle), None);
        }
    }
}
