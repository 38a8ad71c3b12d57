//! Allocation that fails with `ENOMEM` where the standard library would abort the program.

use std::alloc::{GlobalAlloc, Layout, System, alloc, dealloc};
use std::cell::Cell;
use std::sync::Arc;

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

thread_local! {
    /// Memory that [`try_arc`] got for the allocation that follows.
    static PROMISED: Cell<Option<(*mut u8, Layout)>> = const { Cell::new(None) };
}

/// `Arc::new` that can fail. The standard library has no such call; with [`Allocator`] as the global allocator this gets the
/// memory beforehand and has the allocator hand it out.
pub fn try_arc<T>(value: T) -> Result<Arc<T>> {
    // What Arc allocates: two counts and the value. Were it something else, the promise would not be used, and taken back.
    let counts = Layout::new::<[usize; 2]>();
    let layout = counts.extend(Layout::new::<T>()).map_err(|_| Errno::ENOMEM)?.0.pad_to_align();
    // SAFETY: the layout has a size.
    let memory = unsafe { alloc(layout) };
    if memory.is_null() {
        return Err(Errno::ENOMEM);
    }
    PROMISED.set(Some((memory, layout)));
    let arc = Arc::new(value);
    if let Some((memory, layout)) = PROMISED.take() {
        // SAFETY: from `alloc` with this layout.
        unsafe { dealloc(memory, layout) };
    }
    Ok(arc)
}

/// The system's allocator, which keeps the promises of [`try_arc`].
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

// SAFETY: all memory is the system allocator's; promised memory is handed out once, for the layout it was allocated with.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some((memory, promised)) = PROMISED.get()
            && promised == layout
        {
            PROMISED.set(None);
            return memory;
        }
        // SAFETY: the contract of GlobalAlloc: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the contract of GlobalAlloc: guaranteed by the caller.
        unsafe { System.dealloc(memory, layout) };
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the contract of GlobalAlloc: guaranteed by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the contract of GlobalAlloc: guaranteed by the caller.
        unsafe { System.realloc(memory, layout, size) }
    }
}
