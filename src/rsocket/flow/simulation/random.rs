//! Reproducible random numbers.

/// A xorshift generator.
pub struct Random(u64);

impl Random {
    /// Returns the sequence of `seed`.
    pub fn new(seed: u64) -> Random {
        // Adjacent seeds must not give similar sequences, and a state of 0 must not occur.
        let mut mixed = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^= mixed >> 29;
        Random(mixed.wrapping_mul(0xBF58_476D_1CE4_E5B9) | 1)
    }

    /// Returns any number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `end`, 0 if there is none.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end.max(1)
    }

    /// Returns true with a probability of 1 in `n`.
    pub fn chance(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of the values.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
