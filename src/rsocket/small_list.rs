//! A list that allocates no memory while it is short.

use smallvec::SmallVec;

use crate::errno::{Errno, Result};

/// Stores up to `N` elements inline, and longer lists on the heap.
pub struct SmallList<T, const N: usize>(SmallVec<[T; N]>);

impl<T, const N: usize> SmallList<T, N> {
    /// Returns an empty list.
    pub fn new() -> SmallList<T, N> {
        SmallList(SmallVec::new())
    }

    /// Appends `value`. Fails with `ENOMEM`, which leaves the list unchanged.
    pub fn push(&mut self, value: T) -> Result<()> {
        self.0.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        self.0.push(value);
        Ok(())
    }

    /// Removes the last element.
    pub fn pop(&mut self) {
        self.0.pop();
    }

    /// Removes all elements and keeps the memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the elements.
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }

    /// Returns the elements.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_and_heap_storage_hold_the_same_elements() {
        let mut list = SmallList::<_, 2>::new();
        for round in 0..2 {
            for n in 0..5 {
                assert_eq!(list.as_slice().len(), n);
                list.push(format!("{round}.{n}")).unwrap();
            }
            list.as_mut_slice()[4].push('!');
            assert_eq!(list.as_slice().join(" "), format!("{round}.0 {round}.1 {round}.2 {round}.3 {round}.4!"));
            list.clear();
        }
        assert!(list.as_slice().is_empty());
    }
}
