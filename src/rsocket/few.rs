//! A list that needs no memory of its own while it is short.

use std::mem;

use crate::errno::{Errno, Result};

/// Up to `N` elements in place, more of them on the heap.
pub struct Few<T, const N: usize> {
    few: [T; N],
    many: Vec<T>,
    len: usize,
    blank: fn() -> T,
}

impl<T, const N: usize> Few<T, N> {
    /// An empty list. `blank` makes what fills the places that are free.
    pub fn new(blank: fn() -> T) -> Few<T, N> {
        Few { few: std::array::from_fn(|_| blank()), many: Vec::new(), len: 0, blank }
    }

    /// Appends; `ENOMEM` leaves the list as it was.
    pub fn push(&mut self, value: T) -> Result<()> {
        if self.len < N {
            self.few[self.len] = value;
        } else {
            if self.len == N {
                self.many.try_reserve(2 * N + 1).map_err(|_| Errno::ENOMEM)?;
                self.many.clear();
                self.many.extend(self.few.iter_mut().map(|place| mem::replace(place, (self.blank)())));
            }
            self.many.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            self.many.push(value);
        }
        self.len += 1;
        Ok(())
    }

    /// Removes all; keeps memory.
    pub fn clear(&mut self) {
        let used = self.len.min(N);
        self.few[..used].fill_with(self.blank);
        self.many.clear();
        self.len = 0;
    }

    /// The elements.
    pub fn as_slice(&self) -> &[T] {
        if self.len <= N { &self.few[..self.len] } else { &self.many }
    }

    /// The elements.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        if self.len <= N { &mut self.few[..self.len] } else { &mut self.many }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long() {
        let mut list = Few::<_, 2>::new(String::new);
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
