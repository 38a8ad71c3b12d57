//! Allocation that fails with `ENOMEM` where the standard library would abort the program.

use std::alloc::{Layout, alloc};

use crate::errno::{Errno, Result};

/// `Box::new` that can fail.
pub fn try_box<T>(value: T) -> Result<Box<T>> {
    let layout = Layout::new::<T>();
    if layout.size() == 0 {
        return Ok(Box::new(value));
    }
    // SAFETY: the layout has a size.
    let memory = unsafe { alloc(layout) }.cast::<T>();
    if memory.is_null() {
        return Err(Errno::ENOMEM);
    }
    // SAFETY: fresh memory of T's layout from the global allocator, which is where Box frees it.
    unsafe {
        memory.write(value);
        Ok(Box::from_raw(memory))
    }
}

/// A copy of `data` on the heap.
pub fn try_copy<T: Copy>(data: &[T]) -> Result<Vec<T>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(data.len()).map_err(|_| Errno::ENOMEM)?;
    copy.extend_from_slice(data);
    Ok(copy)
}

/// `Vec::push` that can fail.
pub fn try_push<T>(list: &mut Vec<T>, value: T) -> Result<()> {
    list.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    list.push(value);
    Ok(())
}
