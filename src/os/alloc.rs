//! Allocation that fails with `ENOMEM` where the standard library would abort the program: on
//! Rust's heap, in lists that allocate only when they are long, and with malloc(3) for memory that
//! the program frees with free(3).

use std::alloc::{GlobalAlloc, Layout, System, alloc, dealloc};
use std::cell::Cell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use smallvec::SmallVec;

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

/// A list that stores up to `N` elements inline, and more on the heap.
pub type SmallList<T, const N: usize> = SmallVec<[T; N]>;

/// Fallible `SmallVec::push`. A failure leaves the list unchanged.
pub fn try_push_small<T, const N: usize>(list: &mut SmallList<T, N>, value: T) -> Result<()> {
    list.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    list.push(value);
    Ok(())
}

thread_local! {
    /// Memory that [`try_arc`] has allocated for the next allocation of this thread.
    static PROMISED: Cell<Option<(*mut u8, Layout)>> = const { Cell::new(None) };
}

/// Fallible `Arc::new`. The standard library has no stable function for this, so `try_arc`
/// allocates the memory beforehand, and [`Allocator`], the global allocator, returns this memory to
/// `Arc::new`.
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
        // SAFETY: `memory` is from `alloc` with this layout, and `Arc::new` has not taken it.
        unsafe { dealloc(memory, layout) };
    }
    Ok(arc)
}

/// The system's allocator. Memory that [`try_arc`] has allocated satisfies the thread's next
/// allocation of the same layout.
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
        // SAFETY: the size of the layout is not 0: guaranteed by the caller (GlobalAlloc).
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` is from this allocator, with this layout: guaranteed by the caller
        // (GlobalAlloc).
        unsafe { System.dealloc(memory, layout) };
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the size of the layout is not 0: guaranteed by the caller (GlobalAlloc).
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: `memory` is from this allocator, with this layout: guaranteed by the caller
        // (GlobalAlloc).
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// A buffer of at least one byte from malloc(3).
#[derive(Debug)]
pub struct CBytes {
    ptr: NonNull<u8>,
    len: usize,
}

impl CBytes {
    /// Copies `bytes`. Returns `None` if `bytes` is empty.
    pub fn copy(bytes: &[u8]) -> Result<Option<CBytes>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        // SAFETY: malloc() takes any size.
        let ptr = NonNull::new(unsafe { libc::malloc(bytes.len()) }.cast::<u8>()).ok_or(Errno::ENOMEM)?;
        // SAFETY: fresh memory of that length.
        unsafe { ptr.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Ok(Some(CBytes { ptr, len: bytes.len() }))
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated and filled by copy().
        unsafe { slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// Returns the address and length of memory that the caller frees with free(3); NULL and 0 for
    /// `None`.
    pub fn into_raw(this: Option<CBytes>) -> (*mut c_void, usize) {
        let bytes = this.map(std::mem::ManuallyDrop::new);
        bytes.map_or((std::ptr::null_mut(), 0), |bytes| (bytes.ptr.as_ptr().cast(), bytes.len))
    }
}

impl Drop for CBytes {
    fn drop(&mut self) {
        // SAFETY: from malloc(), and freed only here: into_raw() prevents the drop.
        unsafe { libc::free(self.ptr.as_ptr().cast()) }
    }
}

// SAFETY: owns plain bytes.
unsafe impl Send for CBytes {}

/// Allocates a C structure with calloc(3); the caller frees it with free(3).
///
/// # Safety
/// All zero bits are a valid `T`.
pub unsafe fn zeroed<T>() -> Result<NonNull<T>> {
    // SAFETY: calloc() takes any size.
    NonNull::new(unsafe { libc::calloc(1, size_of::<T>()) }.cast()).ok_or(Errno::ENOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_and_handed_over() {
        let bytes = CBytes::copy(&[1, 2, 3]).unwrap().unwrap();
        assert_eq!(bytes.as_slice(), [1, 2, 3]);
        let (ptr, len) = CBytes::into_raw(Some(bytes));
        assert_eq!(len, 3);
        // SAFETY: `ptr` was returned by `into_raw` with this length.
        unsafe {
            assert_eq!(*ptr.cast::<[u8; 3]>(), [1, 2, 3]);
            libc::free(ptr);
        }
    }

    #[test]
    fn nothing_is_null() {
        assert!(CBytes::copy(&[]).unwrap().is_none());
        assert_eq!(CBytes::into_raw(None), (std::ptr::null_mut(), 0));
    }

    #[test]
    fn out_of_memory_is_an_error() {
        // `black_box`: the optimizer may otherwise assume that an unused allocation succeeds.
        // SAFETY: the allocation fails, so there is no memory to free.
        let result = std::hint::black_box(unsafe { zeroed::<[u8; 1 << 60]>() });
        assert_eq!(result.err(), Some(Errno::ENOMEM));
    }

    #[test]
    fn inline_and_heap_storage_hold_the_same_elements() {
        let mut list = SmallList::<_, 2>::new();
        for round in 0..2 {
            for n in 0..5 {
                assert_eq!(list.as_slice().len(), n);
                try_push_small(&mut list, format!("{round}.{n}")).unwrap();
            }
            list.as_mut_slice()[4].push('!');
            assert_eq!(list.as_slice().join(" "), format!("{round}.0 {round}.1 {round}.2 {round}.3 {round}.4!"));
            list.clear();
        }
        assert!(list.as_slice().is_empty());
    }
}
