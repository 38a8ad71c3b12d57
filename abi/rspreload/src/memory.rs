//! Memory from mmap(2). malloc(3) is not used: it is not async-signal-safe, and not allowed in the
//! child of a multi-threaded process's fork(2).

use core::ptr::{self, NonNull};
use core::slice;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use libc::{ENOMEM, c_int, iovec, pollfd};

use crate::errno;
use crate::thread::with_cleanup;

/// Types for which all-zero bytes are a valid value.
///
/// # Safety
/// All-zero bytes are a valid value of the type.
pub unsafe trait Plain: Sized {}

/// Returns the value whose bytes are all zero.
pub const fn zero<T: Plain>() -> T {
    // SAFETY: all-zero bytes are a valid value: guaranteed by the implementation of `Plain`.
    unsafe { core::mem::zeroed() }
}

/// Types for which all byte patterns are valid values.
///
/// # Safety
/// All byte patterns are valid values of the type.
pub unsafe trait AnyBytes: Plain {}

/// Implements [`Plain`] for integers and bool (atomic or not), for pointers that are not read
/// before they are set, and for structures of these types.
macro_rules! plain {
    ($($type:ty),* $(,)?) => {$(
        // SAFETY: the type consists of integers, bool and pointers, for which all-zero bytes are
        // valid values.
        unsafe impl $crate::memory::Plain for $type {}
    )*};
}
pub(crate) use plain;

/// Implements [`AnyBytes`] for integers, raw pointers, and structures of these types.
macro_rules! any_bytes {
    ($($type:ty),* $(,)?) => {
        $crate::memory::plain! { $($type),* }
        $(
            // SAFETY: the type consists of integers and raw pointers, for which all byte patterns
            // are valid values.
            unsafe impl $crate::memory::AnyBytes for $type {}
        )*
    };
}

plain! { AtomicI32, AtomicU32, AtomicU64, libc::sigset_t, libc::sigaction, libc::stat }

any_bytes! {
    u8, c_int, u64, pollfd, iovec, libc::timeval, libc::linger, libc::msghdr, libc::sockaddr_storage,
    base::private::Marks, base::private::Handover,
}

// SAFETY: an array consists of its elements only, for which all-zero bytes are valid.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
// SAFETY: an array consists of its elements only, for which all byte patterns are valid.
unsafe impl<T: AnyBytes, const N: usize> AnyBytes for [T; N] {}

/// Values in a mapping of their own, zeros at first. Pages that are never touched take no memory.
pub struct Mapping<T> {
    start: NonNull<T>,
    count: usize,
}

impl<T: Plain> Mapping<T> {
    /// Maps `count` private values. Returns `None` if there is no memory.
    pub fn new(count: usize) -> Option<Mapping<T>> {
        Mapping::of_kind(count, libc::MAP_PRIVATE)
    }

    /// Maps `count` values. `kind` is MAP_PRIVATE, or MAP_SHARED to share the values with children
    /// of fork(2). Returns `None` if there is no memory.
    pub fn of_kind(count: usize, kind: c_int) -> Option<Mapping<T>> {
        let size = count.checked_mul(size_of::<T>())?;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, kind | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: a new mapping at an address that the kernel chooses changes no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), size, access, kind, -1, 0) };
        NonNull::new(start).filter(|_| start != libc::MAP_FAILED).map(|start| Mapping { start: start.cast(), count })
    }

    pub fn values(&mut self) -> &mut [T] {
        // SAFETY: the mapping has `count` valid values, and the reference borrows `self`
        // exclusively.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }

    /// Keeps the mapping for ever and returns its values.
    pub fn leak<'a>(mut self) -> &'a mut [T] {
        let mut values = NonNull::from(self.values());
        core::mem::forget(self);
        // SAFETY: the mapping is never unmapped, and its values have no other references.
        unsafe { values.as_mut() }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: `self` owns the mapping, and no reference to its values is left.
        errno::keeping(|| unsafe { libc::munmap(self.start.as_ptr().cast(), self.count * size_of::<T>()) });
    }
}

/// A value that is mapped when it is first needed, and is never freed.
pub struct Once<T>(AtomicPtr<T>);

impl<T: Plain> Once<T> {
    pub const fn new() -> Once<T> {
        Once(AtomicPtr::new(ptr::null_mut()))
    }

    #[inline(always)]
    pub fn exists(&self) -> bool {
        !self.0.load(Ordering::Relaxed).is_null()
    }

    pub fn get(&self) -> Option<&T> {
        // SAFETY: the pointer is NULL, or a value that was complete before its address was stored
        // and is never freed.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the value. The first call maps the value (`kind` as in [`Mapping::of_kind`]) and
    /// initializes it with `fill`. If several threads create it at once, one of the values is kept.
    /// Returns `None` if there is no memory.
    pub fn get_or_make(&self, kind: c_int, fill: impl FnOnce(&mut T)) -> Option<&T> {
        if !self.exists() {
            let mut new = Mapping::<T>::of_kind(1, kind)?;
            new.values().iter_mut().next().map(fill);
            let start = new.start.as_ptr();
            if self.0.compare_exchange(ptr::null_mut(), start, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                new.leak();
            }
        }
        self.get()
    }
}

/// A set of numbers below 64 times `WORDS`.
pub struct Bits<const WORDS: usize>([AtomicU64; WORDS]);

// SAFETY: the fields are atomic integers. Zeros are an empty set.
unsafe impl<const WORDS: usize> Plain for Bits<WORDS> {}

impl<const WORDS: usize> Bits<WORDS> {
    /// Adds a number.
    pub fn set(&self, index: usize) {
        if let Some(word) = self.0.get(index / 64) {
            word.fetch_or(1 << (index % 64), Ordering::SeqCst);
        }
    }

    /// Removes a number. Returns whether the set contained the number.
    pub fn clear(&self, index: usize) -> bool {
        self.0
            .get(index / 64)
            .is_some_and(|word| word.fetch_and(!(1 << (index % 64)), Ordering::SeqCst) >> (index % 64) & 1 != 0)
    }

    pub fn clear_all(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::SeqCst));
    }

    pub fn has(&self, index: usize) -> bool {
        self.0.get(index / 64).is_some_and(|word| word.load(Ordering::SeqCst) >> (index % 64) & 1 != 0)
    }

    pub fn any(&self) -> bool {
        self.0.iter().any(|word| word.load(Ordering::SeqCst) != 0)
    }

    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.load(Ordering::SeqCst).count_ones() as usize).sum()
    }

    /// Returns the numbers in the set, in ascending order.
    pub fn each(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(word, bits)| {
            let mut left = bits.load(Ordering::SeqCst);
            core::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(word * 64 + bit)
            })
        })
    }
}

// Temporary lists of a call.

const ON_STACK: usize = 48;

/// Calls `call` with a slice of `len` zeros, which is on the stack if it is short. Returns the
/// result of `call`, or fails with `ENOMEM`.
pub fn with<T: Plain, R>(len: usize, call: impl FnOnce(&mut [T]) -> R) -> Result<R, c_int> {
    let mut stack = zero::<[T; ON_STACK]>();
    if let Some(stack) = stack.get_mut(..len) {
        return Ok(call(stack));
    }
    let mut mapping = Some(Mapping::<T>::new(len).ok_or(ENOMEM)?);
    let list: *mut [T] = mapping.as_mut().map(Mapping::values).unwrap_or_default();
    // SAFETY: the mapping is unmapped only after `call` has returned, or when the thread is
    // cancelled in it.
    let result = with_cleanup(|| drop(mapping.take()), || call(unsafe { &mut *list }));
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_lists_are_zeros() {
        for len in [0, 1, ON_STACK, ON_STACK + 1, 100_000] {
            let zeros = with::<u64, _>(len, |list| {
                let zeros = list.iter().filter(|&&word| word == 0).count();
                list.fill(1);
                zeros
            });
            assert_eq!(zeros, Ok(len));
        }
        assert_eq!(with::<u64, _>(usize::MAX, |_| ()), Err(ENOMEM));
        assert_eq!(with::<u64, _>(usize::MAX / 8, |_| ()), Err(ENOMEM));
    }

    #[test]
    fn of_threads_that_make_a_value_one_wins() {
        static VALUE: Once<u64> = Once::new();
        assert!(!VALUE.exists() && VALUE.get().is_none());
        std::thread::scope(|scope| {
            let make = |number| VALUE.get_or_make(libc::MAP_PRIVATE, |value| *value = number).copied();
            let threads: Vec<_> = (1..5).map(|number| scope.spawn(move || make(number))).collect();
            assert!(threads.into_iter().all(|thread| thread.join().unwrap() == VALUE.get().copied()));
        });
    }
}
