//! The bytes of a message, in one or several buffers of the program.

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::slice;

use libc::iovec;

/// Messages of several buffers up to this size, in bytes, are collected on the stack when the
/// device takes them inline.
pub const MAX_COLLECTED: usize = 256;

/// The bytes that a program sends.
pub trait Source: Copy {
    /// Returns the number of bytes.
    fn size(self) -> usize;
    /// Returns the first `at` bytes and the rest. There are at least `at` bytes.
    fn split(self, at: usize) -> (Self, Self);
    /// Returns the bytes if they lie in one buffer.
    fn in_one_piece(&self) -> Option<&[u8]>;
    /// Copies all bytes to `into`.
    ///
    /// # Safety
    /// `into` is writable for [`size`](Self::size) bytes, and not memory of the program.
    unsafe fn copy_to(self, into: NonNull<u8>);
}

impl Source for &[u8] {
    #[inline]
    fn size(self) -> usize {
        self.len()
    }

    #[inline]
    fn split(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }

    #[inline]
    fn in_one_piece(&self) -> Option<&[u8]> {
        Some(self)
    }

    #[inline]
    unsafe fn copy_to(self, into: NonNull<u8>) {
        // SAFETY: `into` is writable for the length and does not overlap `self`: guaranteed by the
        // caller.
        unsafe { ptr::copy_nonoverlapping(self.as_ptr(), into.as_ptr(), self.len()) };
    }
}

/// The bytes of several buffers, in order.
#[derive(Clone, Copy)]
pub struct Gather<'a> {
    buffers: &'a [iovec],
    /// Number of bytes to skip at the beginning.
    skip: usize,
    /// Number of bytes after the skipped ones.
    len: usize,
}

impl<'a> Gather<'a> {
    /// Creates a source of `len` bytes of `buffers`, after the first `skip` ones.
    ///
    /// # Safety
    /// The buffers hold `skip` plus `len` bytes, and are readable as long as the result lives.
    pub unsafe fn new(buffers: &'a [iovec], skip: usize, len: usize) -> Gather<'a> {
        Gather { buffers, skip, len }
    }

    /// Returns the bytes of each buffer.
    fn pieces(&self) -> impl Iterator<Item = &'a [u8]> {
        let mut left = self.len;
        parts(self.buffers, self.skip).map_while(move |(start, len)| {
            let len = len.min(left);
            left -= len;
            // SAFETY: the buffers are readable as long as `self` lives: guaranteed by the caller of
            // `new`.
            (len > 0).then(|| unsafe { slice::from_raw_parts(start, len) })
        })
    }

    /// Copies the bytes to the beginning of `space` and returns them, if they fit.
    pub fn collect<const LEN: usize>(self, space: &mut [MaybeUninit<u8>; LEN]) -> Option<&[u8]> {
        if self.len > LEN {
            return None;
        }
        let start = NonNull::from(space).cast();
        // SAFETY: the bytes fit into `space`, and `copy_to` initialises all of them.
        unsafe {
            self.copy_to(start);
            Some(slice::from_raw_parts(start.as_ptr(), self.len))
        }
    }
}

impl Source for Gather<'_> {
    fn size(self) -> usize {
        self.len
    }

    fn split(self, at: usize) -> (Self, Self) {
        (Gather { len: at, ..self }, Gather { skip: self.skip + at, len: self.len - at, ..self })
    }

    fn in_one_piece(&self) -> Option<&[u8]> {
        self.pieces().next().filter(|piece| piece.len() == self.len)
    }

    unsafe fn copy_to(self, into: NonNull<u8>) {
        let mut done = 0;
        for piece in self.pieces() {
            // SAFETY: the pieces have `size` bytes in total, and `into` is writable for them:
            // guaranteed by the caller.
            unsafe { piece.copy_to(into.add(done)) };
            done += piece.len();
        }
    }
}

/// Returns the address and length of each non-empty part of the buffers after the first `skip`
/// bytes.
pub fn parts(buffers: &[iovec], mut skip: usize) -> impl Iterator<Item = (*mut u8, usize)> {
    buffers.iter().filter_map(move |buffer| {
        let skipped = skip.min(buffer.iov_len);
        skip -= skipped;
        let start = buffer.iov_base.cast::<u8>().wrapping_add(skipped);
        (skipped < buffer.iov_len).then_some((start, buffer.iov_len - skipped))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers(texts: &[&'static [u8]]) -> Vec<iovec> {
        texts
            .iter()
            .map(|text| iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() })
            .chain([iovec { iov_base: ptr::null_mut(), iov_len: 0 }])
            .collect()
    }

    fn text(source: Gather<'_>) -> Vec<u8> {
        let mut space = [const { MaybeUninit::uninit() }; 16];
        source.collect(&mut space).unwrap().to_vec()
    }

    #[test]
    fn bytes_of_several_buffers() {
        let buffers = buffers(&[b"ab", b"", b"cde", b"f"]);
        for skip in 0..=6 {
            for len in 0..=6 - skip {
                // SAFETY: the buffers hold six static bytes.
                let all = unsafe { Gather::new(&buffers, skip, len) };
                assert_eq!(text(all), &b"abcdef"[skip..skip + len]);
                for at in 0..=len {
                    let (first, rest) = all.split(at);
                    assert_eq!((first.size(), rest.size()), (at, len - at));
                    assert_eq!([text(first), text(rest)].concat(), text(all));
                }
            }
        }
    }

    #[test]
    fn one_piece_or_several() {
        let buffers = buffers(&[b"ab", b"", b"cde"]);
        // SAFETY: the buffers hold five static bytes.
        let of = |skip, len| unsafe { Gather::new(&buffers, skip, len) };
        assert_eq!(of(0, 2).in_one_piece(), Some(&b"ab"[..]));
        assert_eq!(of(2, 3).in_one_piece(), Some(&b"cde"[..]));
        assert_eq!(of(3, 1).in_one_piece(), Some(&b"d"[..]));
        assert_eq!(of(1, 2).in_one_piece(), None);
        assert_eq!(of(0, 5).collect(&mut [const { MaybeUninit::uninit() }; 4]), None);
    }
}
