//! The objects of the library by descriptor: a lock-free table for all possible descriptors.
//!
//! [`Table::get`] runs at the start of most calls, also in signal handlers: it neither waits nor
//! allocates. It pins the slot while it takes a reference to the object. A thread that takes an
//! object out of a slot waits until the slot is not pinned; afterwards every reader has either
//! taken a reference or found the slot empty. [`Table::pin`] is for short calls: the pin lasts as
//! long as the call, which saves counting the reference.
//!
//! The crate in `tests/models` (`scripts/check loom`) checks this protocol. Unsafe code: pointers
//! between `Arc::into_raw` and `from_raw`, and slots in chunks that are never freed.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_int;
use std::hint::assert_unchecked;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::thread;
use std::time::Duration;

use crate::errno::{Errno, Result};
use crate::os::sync::{
    Arc,
    atomic::{AtomicPtr, AtomicUsize, Ordering},
    yield_now,
};

/// Number of slots in the first chunk. Each further chunk has twice as many slots as the previous
/// one. The number is small under loom, which models each slot.
const FIRST: usize = if cfg!(all(test, loom)) { 2 } else { 64 };
/// Number of words that fill a slot up to the size of a cache line.
const REST_OF_LINE: usize = 64 / size_of::<usize>() - 2;
/// Number of chunks. 26 are sufficient for all descriptors; 32 cover every result of `ilog2` in
/// [`chunk_of`], so that an index needs no check.
const CHUNKS: usize = 32;

/// The slot of a descriptor. It is as large as a cache line, so that threads that use other
/// descriptors write to other cache lines.
struct Slot<T> {
    /// Number of readers that may have loaded `object` without having taken a reference yet.
    pins: AtomicUsize,
    /// From `Arc::into_raw`, or null. The slot owns one reference.
    object: AtomicPtr<T>,
    /// Padding replaces an alignment attribute: with an alignment, the allocator would clear the
    /// whole chunk, although most of the chunk is never used.
    _rest_of_line: [usize; REST_OF_LINE],
}

impl<T> Slot<T> {
    #[inline]
    fn get(&self) -> Option<Arc<T>> {
        let pinned = self.pin()?;
        // SAFETY: the object is from `Arc::into_raw`, and the slot keeps its reference while
        // pinned.
        unsafe {
            Arc::increment_strong_count(pinned.object.as_ptr());
            Some(Arc::from_raw(pinned.object.as_ptr()))
        }
    }

    #[inline]
    fn pin(&self) -> Option<Pinned<'_, T>> {
        // AcqRel orders the increment before the load: either `wait_for_pins` sees this pin, or the
        // load sees the change made before `wait_for_pins`.
        self.pins.fetch_add(1, Ordering::AcqRel);
        match NonNull::new(self.object.load(Ordering::Acquire)) {
            Some(object) => Some(Pinned { slot: self, object }),
            None => {
                self.unpin();
                None
            }
        }
    }

    /// Undoes a pin.
    #[inline]
    fn unpin(&self) {
        self.pins.fetch_sub(1, Ordering::Release);
    }

    /// Stores `new` (from `Arc::into_raw`, or null). Waits for readers of the previous object, and
    /// returns that object.
    fn swap(&self, new: *mut T) -> Option<Arc<T>> {
        let old = NonNull::new(self.object.swap(new, Ordering::AcqRel))?;
        self.wait_for_pins();
        // SAFETY: `old` was just taken out of the slot, with the slot's reference, which no other
        // thread takes.
        Some(unsafe { Arc::from_raw(old.as_ptr()) })
    }

    /// Waits until no reader can still take a reference to the object that was removed.
    fn wait_for_pins(&self) {
        const YIELDS: u32 = if cfg!(all(test, loom)) { u32::MAX } else { 64 };
        let mut yields = 0;
        // A read-modify-write operation sees the latest value, whereas a load may see an older one.
        while self.pins.fetch_add(0, Ordering::AcqRel) != 0 {
            if yields < YIELDS {
                yields += 1;
                yield_now();
            } else {
                // Let a reader run that has a lower priority and shares this CPU.
                thread::sleep(Duration::from_micros(50));
            }
        }
    }
}

/// A guard that keeps the object of a slot alive until the guard is dropped.
pub struct Pinned<'a, T> {
    slot: &'a Slot<T>,
    object: NonNull<T>,
}

impl<T> std::ops::Deref for Pinned<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the slot owned its reference after the pin was set, and keeps it while pinned.
        unsafe { self.object.as_ref() }
    }
}

impl<T> Drop for Pinned<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.slot.unpin();
    }
}

/// Objects by descriptor. Intended for statics: chunks are never freed.
pub struct Table<T> {
    /// For each chunk, the address that slot 0 would have if all slots were contiguous with the
    /// chunk, so that a descriptor is the index of its slot; null if the chunk is not allocated.
    origins: [AtomicPtr<Slot<T>>; CHUNKS],
    /// The chunks, for leak checkers: an origin is not in its chunk.
    chunks: [AtomicPtr<()>; CHUNKS],
}

impl<T: Send + Sync> Table<T> {
    /// Returns an empty table.
    #[cfg(not(all(test, loom)))]
    pub const fn new() -> Table<T> {
        let origins = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
        Table { origins, chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS] }
    }

    /// Makes `object` the object of `fd`. Returns the previous object, if there is one: the program
    /// closed its descriptor without the library. Fails with `EBADF` for a negative descriptor, or
    /// with `ENOMEM`.
    pub fn insert(&self, fd: c_int, object: Arc<T>) -> Result<Option<Arc<T>>> {
        let index = u32::try_from(fd).map_err(|_| Errno::EBADF)?;
        if self.slot(fd).is_none() {
            self.grow(chunk_of(index))?;
        }
        let slot = self.slot(fd).ok_or(Errno::ENOMEM)?;
        Ok(slot.swap(Arc::into_raw(object).cast_mut()))
    }

    /// Returns the object of `fd`.
    #[inline]
    pub fn get(&self, fd: c_int) -> Option<Arc<T>> {
        self.slot(fd)?.get()
    }

    /// Pins the object of `fd`. A thread that removes the object waits until the object is
    /// unpinned.
    #[inline]
    pub fn pin(&self, fd: c_int) -> Option<Pinned<'_, T>> {
        self.slot(fd)?.pin()
    }

    /// Removes and returns the object of `fd`.
    pub fn remove(&self, fd: c_int) -> Option<Arc<T>> {
        self.slot(fd)?.swap(ptr::null_mut())
    }

    /// Calls `each` with every object, in ascending order of the descriptors.
    pub fn for_each(&self, mut each: impl FnMut(Arc<T>)) {
        for slot in (0..CHUNKS).flat_map(|chunk| self.chunk(chunk)) {
            // Pinning an empty slot would write to its page, which may use no memory yet.
            if !slot.object.load(Ordering::Relaxed).is_null() {
                slot.get().into_iter().for_each(&mut each);
            }
        }
    }

    /// Clears the pins of the parent's threads, which do not exist in the child of a fork(), and
    /// leaks the pinned objects. If the pins remained, [`remove`](Self::remove) would wait in vain.
    ///
    /// # Safety
    /// The process has no other thread.
    pub unsafe fn after_fork(&self) {
        for slot in (0..CHUNKS).flat_map(|chunk| self.chunk(chunk)) {
            // Write only where necessary: the child shares unchanged pages with the parent.
            if slot.pins.load(Ordering::Relaxed) != 0 {
                // Leak the reference that `get` takes.
                let _ = ManuallyDrop::new(slot.get());
                slot.pins.store(0, Ordering::Relaxed);
            }
        }
    }

    #[inline]
    fn slot(&self, fd: c_int) -> Option<&Slot<T>> {
        let index = u32::try_from(fd).ok()?;
        let origin = NonNull::new(self.origins[chunk_of(index)].load(Ordering::Acquire))?;
        let slot = origin.as_ptr().wrapping_add(index as usize);
        // SAFETY: `grow` has published the slots of the chunk, which are never freed, and the slot
        // of `fd` is among them.
        unsafe {
            // The compiler does not know that the slot is not null, and would test it.
            assert_unchecked(!slot.is_null());
            Some(&*slot)
        }
    }

    fn chunk(&self, chunk: usize) -> &[Slot<T>] {
        let origin = self.origins[chunk].load(Ordering::Acquire);
        if origin.is_null() {
            return &[];
        }
        // SAFETY: `grow` has published `FIRST << chunk` slots from index `start(chunk)` on, which
        // are never freed.
        unsafe { std::slice::from_raw_parts(origin.wrapping_add(start(chunk)), FIRST << chunk) }
    }

    /// Allocates a chunk, unless another thread is faster.
    fn grow(&self, chunk: usize) -> Result<()> {
        let layout = Layout::array::<Slot<T>>(FIRST << chunk).map_err(|_| Errno::ENOMEM)?;
        let fresh = allocate(layout, FIRST << chunk)?;
        // Not null: a small chunk is at a higher address than its distance from slot 0, and large
        // ones are mapped at high addresses.
        let origin = fresh.as_ptr().wrapping_sub(start(chunk));
        let published = &self.origins[chunk];
        if published.compare_exchange(ptr::null_mut(), origin, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: allocated above with this layout, and not visible to other threads.
            unsafe { dealloc(fresh.as_ptr().cast(), layout) };
            return Ok(());
        }
        self.chunks[chunk].store(fresh.as_ptr().cast(), Ordering::Relaxed);
        Ok(())
    }
}

/// Allocates empty slots.
#[cfg(not(all(test, loom)))]
fn allocate<T>(layout: Layout, _count: usize) -> Result<NonNull<Slot<T>>> {
    // SAFETY: the layout's size is not 0, and all zeros are an empty slot: an integer and a null
    // pointer.
    NonNull::new(unsafe { alloc_zeroed(layout) }.cast()).ok_or(Errno::ENOMEM)
}

/// Returns the chunk of the slot with this index, which is the descriptor.
#[inline]
fn chunk_of(index: u32) -> usize {
    (index / FIRST as u32 + 1).ilog2() as usize
}

/// Returns the index of the first slot of a chunk.
fn start(chunk: usize) -> usize {
    FIRST * ((1 << chunk) - 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn every_descriptor_has_a_slot() {
        for (index, chunk) in [(0, 0), (63, 0), (64, 1), (191, 1), (192, 2)] {
            assert_eq!(chunk_of(index), chunk);
        }
        assert_eq!(chunk_of(c_int::MAX as u32), 25);
        for index in 0..100_000 {
            let chunk = chunk_of(index);
            assert!((start(chunk)..start(chunk) + (FIRST << chunk)).contains(&(index as usize)));
        }
    }

    #[test]
    fn insert_get_and_remove() {
        let table = Table::new();
        assert!(table.get(3).is_none() && table.get(-1).is_none() && table.get(c_int::MAX).is_none());
        assert!(table.insert(3, Arc::new(30)).unwrap().is_none());
        assert!(table.insert(70_000, Arc::new(31)).unwrap().is_none());
        assert_eq!(table.insert(-1, Arc::new(0)).err(), Some(Errno::EBADF));
        assert_eq!((table.get(3).as_deref(), table.get(4).as_deref()), (Some(&30), None));
        let mut all = Vec::new();
        table.for_each(|object| all.push(*object));
        assert_eq!(all, [30, 31]);
        assert_eq!(table.insert(3, Arc::new(32)).unwrap().as_deref(), Some(&30));
        assert_eq!(table.remove(3).as_deref(), Some(&32));
        assert!(table.remove(3).is_none());
    }

    /// The pin belongs to a thread of the parent.
    #[test]
    fn a_child_has_no_pins_of_its_parent() {
        let table = Table::new();
        table.insert(9, Arc::new(1)).unwrap();
        let slot = table.slot(9).unwrap();
        slot.pins.store(1, Ordering::Relaxed);
        // SAFETY: the child allocates nothing, takes no lock, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the child has one thread.
            unsafe { table.after_fork() };
            let removed = table.remove(9);
            let is_kept = removed.is_some_and(|removed| Arc::strong_count(&removed) == 2);
            let has_none = slot.pins.load(Ordering::Relaxed) == 0;
            // SAFETY: ends the child.
            unsafe { libc::_exit(c_int::from(!(is_kept && has_none))) };
        }
        let mut status = -1;
        // SAFETY: waits for the child above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    /// Returns the memory of the mapping that `address` is in, in kB.
    fn anonymous_kb(address: usize) -> Option<usize> {
        let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let is_its = |line: &&str| {
            let bounds = line.split(' ').next().and_then(|range| range.split_once('-'));
            bounds.and_then(|(start, end)| Some((number(start)?..number(end)?).contains(&address))) == Some(true)
        };
        let mut lines = maps.lines().skip_while(|line| !is_its(line));
        lines.find_map(|line| line.strip_prefix("Anonymous:")?.trim().strip_suffix(" kB")?.parse().ok())
    }

    #[test]
    fn for_each_takes_no_memory() {
        let table = Table::<c_int>::new();
        // The chunk with the slot of this descriptor has 2 MB.
        let fd = 40_000;
        drop(table.insert(fd, Arc::new(1)).unwrap());
        let slot = ptr::from_ref(table.slot(fd).unwrap()).addr();
        let before = anonymous_kb(slot).unwrap();
        let mut found = Vec::new();
        table.for_each(|object| found.push(*object));
        assert_eq!(found, [1]);
        assert!(anonymous_kb(slot).unwrap() < before + 1000, "{before} kB before");
    }

    /// Readers find either the object of a descriptor or nothing while other threads insert and
    /// remove objects.
    #[test]
    fn concurrent_readers_and_writers() {
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
                            drop(table.remove(fd));
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
    // SAFETY: the layout's size is not 0, and it has room for `count` slots.
    unsafe {
        let slots = NonNull::new(alloc_zeroed(layout).cast::<Slot<T>>()).ok_or(Errno::ENOMEM)?;
        for index in 0..count {
            slots.as_ptr().add(index).write(Slot {
                pins: AtomicUsize::new(0),
                object: AtomicPtr::new(ptr::null_mut()),
                _rest_of_line: [0; REST_OF_LINE],
            });
        }
        Ok(slots)
    }
}

/// loom counts the references to each object: using it after the last one was dropped is an error,
/// and so is a leak.
#[cfg(all(test, loom))]
mod models {
    use loom::thread;

    use super::*;

    fn table() -> Arc<Table<u32>> {
        let origins = std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut()));
        Arc::new(Table { origins, chunks: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())) })
    }

    /// Runs `first` and `second` concurrently on a table with 1 as object of descriptor 0, then
    /// empties the table.
    fn run_concurrently(first: fn(&Table<u32>), second: fn(&Table<u32>)) {
        loom::model(move || {
            let table = table();
            assert!(table.insert(0, Arc::new(1)).is_ok_and(|before| before.is_none()));
            let other = {
                let table = Arc::clone(&table);
                thread::spawn(move || first(&table))
            };
            second(&table);
            assert!(other.join().is_ok());
            drop(table.remove(0));
        });
    }

    #[test]
    fn get_and_remove() {
        run_concurrently(
            |table| assert!(table.get(0).is_none_or(|object| *object == 1)),
            |table| assert!(table.remove(0).is_some_and(|object| *object == 1)),
        );
    }

    #[test]
    fn pin_and_remove() {
        run_concurrently(
            |table| assert!(table.pin(0).is_none_or(|object| *object == 1)),
            |table| assert!(table.remove(0).is_some_and(|object| *object == 1)),
        );
    }

    #[test]
    fn get_and_replace() {
        run_concurrently(
            |table| assert!(table.get(0).is_some_and(|object| *object == 1 || *object == 2)),
            |table| assert!(table.insert(0, Arc::new(2)).is_ok_and(|old| old.is_some_and(|old| *old == 1))),
        );
    }

    #[test]
    fn two_gets_and_remove() {
        run_concurrently(
            |table| {
                let first = table.get(0);
                let second = table.get(0);
                assert!(first.is_some() || second.is_none(), "a removed object came back");
            },
            |table| drop(table.remove(0)),
        );
    }

    #[test]
    fn only_one_removes() {
        loom::model(|| {
            let table = table();
            assert!(table.insert(0, Arc::new(1)).is_ok());
            let other = {
                let table = Arc::clone(&table);
                thread::spawn(move || table.remove(0).map(|_| ()))
            };
            let here = table.remove(0).map(|_| ());
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
            assert_eq!((table.remove(0).map(|o| *o), table.remove(1).map(|o| *o)), (Some(1), Some(2)));
        });
    }
}
