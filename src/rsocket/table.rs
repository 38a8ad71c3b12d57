//! Which object a descriptor number stands for: a table without locks and without a limit but that of the numbers.
//!
//! [`Table::get`] runs at the start of most calls, also within signal handlers: it neither waits nor allocates. It pins
//! the slot while it takes its share of the object; who takes an object out of a slot waits until nobody has it pinned,
//! and then knows that every reader has either got a share or seen the slot empty. [`Table::pin`] is for calls that are over
//! so soon that the pin may last as long as they do: it saves counting the share.
//!
//! The hand-over is model-checked, by the crate in `models/` (`scripts/check loom`).
//! Unsafe code: pointers between `Arc::into_raw` and `from_raw`, and slots in chunks that are never freed.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_int;
use std::ptr::{self, NonNull};

use crate::errno::{Errno, Result};

#[cfg(not(all(test, loom)))]
use std::sync::{
    Arc,
    atomic::{AtomicPtr, AtomicUsize, Ordering},
};

#[cfg(all(test, loom))]
use loom::sync::{
    Arc,
    atomic::{AtomicPtr, AtomicUsize, Ordering},
};

#[cfg(not(all(test, loom)))]
use std::thread::yield_now;

#[cfg(all(test, loom))]
use loom::thread::yield_now;

/// Slots of the first chunk; every further one has twice as many as the one before. Few where each one is modelled.
const FIRST: usize = if cfg!(all(test, loom)) { 2 } else { 64 };
/// Enough for every number that is a descriptor's.
const CHUNKS: usize = 26;

/// One number's place.
struct Slot<T> {
    /// Readers that may have seen `object` and have no share of it yet.
    pins: AtomicUsize,
    /// From `Arc::into_raw`, or null. The slot owns one share.
    object: AtomicPtr<T>,
}

impl<T> Slot<T> {
    fn get(&self) -> Option<Arc<T>> {
        // Ordered before the load by AcqRel: either `wait` sees this pin, or the load sees what came before `wait`.
        self.pins.fetch_add(1, Ordering::AcqRel);
        let object = self.object.load(Ordering::Acquire);
        let share = NonNull::new(object).map(|object| {
            // SAFETY: the slot's share was there after the pin was set, and is not given up while it is.
            unsafe {
                Arc::increment_strong_count(object.as_ptr());
                Arc::from_raw(object.as_ptr())
            }
        });
        self.pins.fetch_sub(1, Ordering::Release);
        share
    }

    #[inline]
    fn pin(&self) -> Option<Pinned<'_, T>> {
        // As in `get`.
        self.pins.fetch_add(1, Ordering::AcqRel);
        match NonNull::new(self.object.load(Ordering::Acquire)) {
            Some(object) => Some(Pinned { slot: self, object }),
            None => {
                self.pins.fetch_sub(1, Ordering::Release);
                None
            }
        }
    }

    /// Puts `new` (from `Arc::into_raw`, or null) in, and gives what was there.
    fn swap(&self, new: *mut T) -> Option<Arc<T>> {
        let old = self.object.swap(new, Ordering::AcqRel);
        // SAFETY: just taken out of the slot.
        unsafe { self.taken(old) }
    }

    /// Empties the slot if `expected` is in it.
    fn take(&self, expected: *const T) -> Option<Arc<T>> {
        let old =
            self.object.compare_exchange(expected.cast_mut(), ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
        // SAFETY: just taken out of the slot.
        old.ok().and_then(|old| unsafe { self.taken(old) })
    }

    /// The slot's former share.
    ///
    /// # Safety
    /// `old` is what was taken out of this slot, once.
    unsafe fn taken(&self, old: *mut T) -> Option<Arc<T>> {
        let old = NonNull::new(old)?;
        self.wait();
        // SAFETY: the slot's share, which nobody else takes.
        Some(unsafe { Arc::from_raw(old.as_ptr()) })
    }

    /// Returns when no reader can come to see any more what was taken out.
    fn wait(&self) {
        // A read-modify-write sees the latest value, where a load might see an older one.
        let mut turns = 0;
        while self.pins.fetch_add(0, Ordering::AcqRel) != 0 {
            turns += 1;
            give_way(turns);
        }
    }
}

/// Lets a thread with a pin run, also one that has the only processor to itself but for this one, of a higher priority.
fn give_way(turns: usize) {
    #[cfg(not(all(test, loom)))]
    if turns > 64 {
        std::thread::sleep(std::time::Duration::from_micros(50));
        return;
    }
    let _ = turns;
    yield_now();
}

/// An object that stays in its slot for so long, whatever happens to the number.
pub struct Pinned<'a, T> {
    slot: &'a Slot<T>,
    object: NonNull<T>,
}

impl<T> std::ops::Deref for Pinned<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the slot's share was there after the pin was set, and is not given up while it is.
        unsafe { self.object.as_ref() }
    }
}

impl<T> Drop for Pinned<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.slot.pins.fetch_sub(1, Ordering::Release);
    }
}

/// Objects by descriptor number. Made for statics: chunks stay until the process ends.
pub struct Table<T> {
    chunks: [AtomicPtr<Slot<T>>; CHUNKS],
}

impl<T: Send + Sync> Table<T> {
    /// An empty table.
    #[cfg(not(all(test, loom)))]
    pub const fn new() -> Table<T> {
        Table { chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS] }
    }

    /// Makes `object` the one of `fd`, and gives the one that was it before: its descriptor was closed behind our back.
    pub fn insert(&self, fd: c_int, object: Arc<T>) -> Result<Option<Arc<T>>> {
        let (chunk, index) = place(fd).ok_or(Errno::EBADF)?;
        let slots = match self.chunk(chunk) {
            Some(slots) => slots,
            None => self.grow(chunk)?,
        };
        let slot = slots.get(index).ok_or(Errno::EBADF)?;
        Ok(slot.swap(Arc::into_raw(object).cast_mut()))
    }

    /// The object of `fd`.
    pub fn get(&self, fd: c_int) -> Option<Arc<T>> {
        self.slot(fd)?.get()
    }

    /// The object of `fd`, for a moment: whoever takes it out waits meanwhile.
    #[inline]
    pub fn pin(&self, fd: c_int) -> Option<Pinned<'_, T>> {
        self.slot(fd)?.pin()
    }

    /// Takes the object of `fd` out, if there is one; if `expected` is given, only that one.
    pub fn remove(&self, fd: c_int, expected: Option<&Arc<T>>) -> Option<Arc<T>> {
        let slot = self.slot(fd)?;
        match expected {
            Some(expected) => slot.take(Arc::as_ptr(expected)),
            None => slot.swap(ptr::null_mut()),
        }
    }

    /// Calls `each` with every object, in the order of the numbers.
    pub fn for_each(&self, mut each: impl FnMut(c_int, Arc<T>)) {
        for chunk in 0..CHUNKS {
            for (index, slot) in self.chunk(chunk).unwrap_or_default().iter().enumerate() {
                if let (Ok(fd), Some(object)) = (c_int::try_from(start(chunk) + index), slot.get()) {
                    each(fd, object);
                }
            }
        }
    }

    /// In the child of a fork(): forgets the pins of threads that are not there, for whom [`remove`](Self::remove) would
    /// wait without end.
    ///
    /// # Safety
    /// The process has no other thread, and this one is not within a call of this table.
    pub unsafe fn after_fork(&self) {
        for chunk in 0..CHUNKS {
            for slot in self.chunk(chunk).unwrap_or_default() {
                // Only what is wrong is written: the pages are shared with the parent.
                if slot.pins.load(Ordering::Relaxed) != 0 {
                    slot.pins.store(0, Ordering::Relaxed);
                }
            }
        }
    }

    fn slot(&self, fd: c_int) -> Option<&Slot<T>> {
        let (chunk, index) = place(fd)?;
        self.chunk(chunk)?.get(index)
    }

    fn chunk(&self, chunk: usize) -> Option<&[Slot<T>]> {
        let slots = NonNull::new(self.chunks.get(chunk)?.load(Ordering::Acquire))?;
        // SAFETY: published by `grow` with so many slots, never freed.
        Some(unsafe { std::slice::from_raw_parts(slots.as_ptr(), FIRST << chunk) })
    }

    /// Allocates a chunk, unless another thread does so first.
    fn grow(&self, chunk: usize) -> Result<&[Slot<T>]> {
        let layout = Layout::array::<Slot<T>>(FIRST << chunk).map_err(|_| Errno::ENOMEM)?;
        let place = self.chunks.get(chunk).ok_or(Errno::EBADF)?;
        let fresh = allocate(layout, FIRST << chunk)?;
        let published =
            place.compare_exchange(ptr::null_mut(), fresh.as_ptr(), Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if !published {
            // SAFETY: allocated above with this layout, and nobody else has seen it.
            unsafe { dealloc(fresh.as_ptr().cast(), layout) };
        }
        self.chunk(chunk).ok_or(Errno::ENOMEM)
    }
}

#[cfg(not(all(test, loom)))]
impl<T: Send + Sync> Default for Table<T> {
    fn default() -> Table<T> {
        Table::new()
    }
}

/// Empty slots.
#[cfg(not(all(test, loom)))]
fn allocate<T>(layout: Layout, _count: usize) -> Result<NonNull<Slot<T>>> {
    // SAFETY: slots have a size, and all zeros are an empty one: an integer and a pointer, in their own representation.
    NonNull::new(unsafe { alloc_zeroed(layout) }.cast()).ok_or(Errno::ENOMEM)
}

/// The chunk of a number and its index there.
fn place(fd: c_int) -> Option<(usize, usize)> {
    let fd = usize::try_from(fd).ok()?;
    let chunk = (fd / FIRST + 1).ilog2() as usize;
    Some((chunk, fd - start(chunk)))
}

/// The number of a chunk's first slot.
fn start(chunk: usize) -> usize {
    FIRST * ((1 << chunk) - 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn every_number_has_a_place() {
        for (fd, chunk, index) in [(0, 0, 0), (63, 0, 63), (64, 1, 0), (191, 1, 127), (192, 2, 0)] {
            assert_eq!(place(fd), Some((chunk, index)));
        }
        assert_eq!(place(c_int::MAX).map(|(chunk, _)| chunk), Some(CHUNKS - 1));
        assert_eq!(place(-1), None);
        for fd in 0..100_000 {
            let (chunk, index) = place(fd).unwrap();
            assert!(index < FIRST << chunk);
            assert_eq!(start(chunk) + index, fd as usize);
        }
    }

    #[test]
    fn in_and_out() {
        let table = Table::new();
        assert!(table.get(3).is_none() && table.get(-1).is_none() && table.get(c_int::MAX).is_none());
        assert!(table.insert(3, Arc::new(30)).unwrap().is_none());
        assert!(table.insert(70_000, Arc::new(31)).unwrap().is_none());
        assert_eq!(table.insert(-1, Arc::new(0)).err(), Some(Errno::EBADF));
        assert_eq!((table.get(3).as_deref(), table.get(4).as_deref()), (Some(&30), None));
        let mut all = Vec::new();
        table.for_each(|fd, object| all.push((fd, *object)));
        assert_eq!(all, [(3, 30), (70_000, 31)]);
        assert_eq!(table.remove(3, None).as_deref(), Some(&30));
        assert!(table.remove(3, None).is_none());
    }

    #[test]
    fn removes_only_what_is_expected() {
        let table = Table::new();
        let (old, new) = (Arc::new(1), Arc::new(2));
        table.insert(5, Arc::clone(&old)).unwrap();
        let replaced = table.insert(5, Arc::clone(&new)).unwrap();
        assert!(replaced.is_some_and(|replaced| Arc::ptr_eq(&replaced, &old)));
        assert!(table.remove(5, Some(&old)).is_none());
        assert_eq!(Arc::strong_count(&old), 1);
        assert!(table.remove(5, Some(&new)).is_some_and(|removed| Arc::ptr_eq(&removed, &new)));
        assert_eq!(Arc::strong_count(&new), 1);
    }

    #[test]
    fn a_child_does_not_wait_for_the_parents_threads() {
        let table = Table::new();
        table.insert(9, Arc::new(1)).unwrap();
        table.slot(9).unwrap().pins.store(2, Ordering::Relaxed);
        // SAFETY: no other thread knows this table.
        unsafe { table.after_fork() };
        assert_eq!(table.remove(9, None).as_deref(), Some(&1));
    }

    /// Readers find either the object of a number or nothing, while others come and go there.
    #[test]
    fn readers_and_writers() {
        const ROUNDS: usize = 20_000;
        let (table, start) = (Table::<c_int>::new(), Barrier::new(4));
        thread::scope(|scope| {
            for writer in 0..2 {
                let (table, start) = (&table, &start);
                scope.spawn(move || {
                    start.wait();
                    for round in 0..ROUNDS {
                        let fd = (round % 3) as c_int * 100;
                        drop(table.insert(fd, Arc::new(fd)).unwrap());
                        if round % 2 == writer {
                            drop(table.remove(fd, None));
                        }
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    start.wait();
                    for round in 0..ROUNDS {
                        let fd = (round % 3) as c_int * 100;
                        assert!(table.get(fd).is_none_or(|object| *object == fd));
                        assert!(table.pin(fd).is_none_or(|object| *object == fd));
                    }
                });
            }
        });
    }
}

#[cfg(all(test, loom))]
fn allocate<T>(layout: Layout, count: usize) -> Result<NonNull<Slot<T>>> {
    // SAFETY: slots have a size; there is room for `count` of them.
    unsafe {
        let slots = NonNull::new(alloc_zeroed(layout).cast::<Slot<T>>()).ok_or(Errno::ENOMEM)?;
        for index in 0..count {
            slots
                .as_ptr()
                .add(index)
                .write(Slot { pins: AtomicUsize::new(0), object: AtomicPtr::new(ptr::null_mut()) });
        }
        Ok(slots)
    }
}

/// loom counts the shares of each object: one that is used after its last share went, or is never freed, fails.
#[cfg(all(test, loom))]
mod models {
    use loom::thread;

    use super::*;

    fn table() -> Arc<Table<u32>> {
        let chunks = std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut()));
        Arc::new(Table { chunks })
    }

    /// Runs `first` and `second` beside each other on a table that holds 1 as number 0, and empties it.
    fn beside(first: fn(&Table<u32>), second: fn(&Table<u32>)) {
        loom::model(move || {
            let table = table();
            assert!(table.insert(0, Arc::new(1)).is_ok_and(|before| before.is_none()));
            let other = {
                let table = Arc::clone(&table);
                thread::spawn(move || first(&table))
            };
            second(&table);
            assert!(other.join().is_ok());
            drop(table.remove(0, None));
        });
    }

    #[test]
    fn get_and_remove() {
        beside(
            |table| assert!(table.get(0).is_none_or(|object| *object == 1)),
            |table| assert!(table.remove(0, None).is_some_and(|object| *object == 1)),
        );
    }

    #[test]
    fn pin_and_remove() {
        beside(
            |table| assert!(table.pin(0).is_none_or(|object| *object == 1)),
            |table| assert!(table.remove(0, None).is_some_and(|object| *object == 1)),
        );
    }

    #[test]
    fn get_and_replace() {
        beside(
            |table| assert!(table.get(0).is_some_and(|object| *object == 1 || *object == 2)),
            |table| assert!(table.insert(0, Arc::new(2)).is_ok_and(|old| old.is_some_and(|old| *old == 1))),
        );
    }

    #[test]
    fn two_gets_and_remove() {
        beside(
            |table| {
                let first = table.get(0);
                let second = table.get(0);
                assert!(first.is_some() || second.is_none(), "what was gone came back");
            },
            |table| drop(table.remove(0, None)),
        );
    }

    #[test]
    fn only_one_removes() {
        loom::model(|| {
            let table = table();
            assert!(table.insert(0, Arc::new(1)).is_ok());
            let other = {
                let table = Arc::clone(&table);
                thread::spawn(move || {
                    let object = table.get(0)?;
                    table.remove(0, Some(&object)).map(|_| ())
                })
            };
            let here = table.remove(0, None).map(|_| ());
            let there = other.join().ok().flatten();
            assert_eq!(here.is_some() as u32 + there.is_some() as u32, 1);
        });
    }

    #[test]
    fn two_insert_into_a_new_chunk() {
        loom::model(|| {
            let table = table();
            let other = {
                let table = Arc::clone(&table);
                thread::spawn(move || assert!(table.insert(0, Arc::new(1)).is_ok_and(|before| before.is_none())))
            };
            assert!(table.insert(1, Arc::new(2)).is_ok_and(|before| before.is_none()));
            assert!(other.join().is_ok());
            assert_eq!((table.remove(0, None).map(|o| *o), table.remove(1, None).map(|o| *o)), (Some(1), Some(2)));
        });
    }
}
