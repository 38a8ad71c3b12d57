//! Allocation that fails with `ENOMEM` where the standard library would abort the program.

use std::alloc::{GlobalAlloc, Layout, System, alloc, dealloc};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::Arc;

use crate::errno::{Errno, Result};

/// Fallible `Box::new`.
pub fn try_box<T>(value: T) -> Result<Box<T>> {
    Ok(Box::write(try_uninit()?, value))
}

/// Fallible `Box::new_uninit`.
#[inline]
pub fn try_uninit<T>() -> Result<Box<MaybeUninit<T>>> {
    let layout = Layout::new::<T>();
    if layout.size() == 0 {
        return Ok(Box::new_uninit());
    }
    // SAFETY: the size of the layout is not 0.
    let memory = unsafe { System.alloc(layout) }.cast::<MaybeUninit<T>>();
    if memory.is_null() {
        return Err(Errno::ENOMEM);
    }
    // SAFETY: fresh memory of T's layout from the system's allocator, with which both the standard
    // library and [`Allocator`] free a Box.
    Ok(unsafe { Box::from_raw(memory) })
}

/// Returns a copy of `data` on the heap.
pub fn try_copy<T: Copy>(data: &[T]) -> Result<Vec<T>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(data.len()).map_err(|_| Errno::ENOMEM)?;
    copy.extend_from_slice(data);
    Ok(copy)
}

/// Fallible `Vec::push`.
pub fn try_push<T>(list: &mut Vec<T>, value: T) -> Result<()> {
    list.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    list.push(value);
    Ok(())
}

thread_local! {
    /// Memory that [`try_arc`] has allocated for the next allocation of this thread.
    static PROMISED: Cell<Option<(*mut u8, Layout)>> = const { Cell::new(None) };
}

/// Fallible `Arc::new`. The standard library has no stable function for it: this allocates the
/// memory beforehand, and [`Allocator`], the global allocator, returns it to `Arc::new`.
pub fn try_arc<T>(value: T) -> Result<Arc<T>> {
    // Arc allocates two counters and the value. If the standard library changes this, the
    // layouts differ, and the memory is freed below.
    let counts = Layout::new::<[usize; 2]>();
    let layout = counts.extend(Layout::new::<T>()).map_err(|_| Errno::ENOMEM)?.0.pad_to_align();
    // SAFETY: the size of the layout is not 0.
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

/// The system's allocator, which first returns the memory that [`try_arc`] has allocated.
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

// SAFETY: all memory is from the system's allocator. Memory from `try_arc` is returned once, for
// the layout it was allocated with.
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
