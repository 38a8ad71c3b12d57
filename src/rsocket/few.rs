//! A list that needs no memory of its own while it is short.

use smallvec::SmallVec;

use crate::errno::{Errno, Result};

/// Up to `N` elements in place, more of them on the heap.
pub struct Few<T, const N: usize>(SmallVec<[T; N]>);

impl<T, const N: usize> Few<T, N> {
    /// An empty list.
    pub fn new() -> Few<T, N> {
        Few(SmallVec::new())
    }

    /// Appends; `ENOMEM` leaves the list as it was.
    pub fn push(&mut self, value: T) -> Result<()> {
        self.0.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        self.0.push(value);
        Ok(())
    }

    /// Removes the last one.
    pub fn pop(&mut self) {
        self.0.pop();
    }

    /// Removes all; keeps memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The elements.
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }

    /// The elements.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long() {
        let mut list = Few::<_, 2>::new();
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
