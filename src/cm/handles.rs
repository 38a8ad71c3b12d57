//! Ids of connection requests by kernel handle, for kernels that report events of such ids without
//! the library's `uid`, which they learn when the program accepts.

use std::hash::BuildHasherDefault;
use std::ptr::NonNull;

use super::global::GlobalLock;
use super::id::Id;
use crate::errno::{Errno, Result};
use crate::os::numbered::Numbered;

/// A hash table, because the kernel numbers the ids of all processes together: a process with few
/// ids may have high numbers.
pub(super) static HANDLES: GlobalLock<Table> = GlobalLock::new(Table::new());

pub(super) struct Table(Numbered<u32, NonNull<Id>>);

// SAFETY: `Id` is `Sync`, and the table only stores addresses.
unsafe impl Send for Table {}

impl Table {
    pub(super) const fn new() -> Table {
        Table(Numbered::with_hasher(BuildHasherDefault::new()))
    }
}

/// Adds `id` under its handle.
pub fn insert(handle: u32, id: NonNull<Id>) -> Result<()> {
    let mut table = HANDLES.lock();
    table.0.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    table.0.insert(handle, id);
    Ok(())
}

/// Removes `id`. Another id of the same handle stays: after a fork both processes may use the
/// number.
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
