//! Hash tables whose keys are numbers that the kernel or the library assigns, so that no attacker
//! can choose keys that collide.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table with number keys.
pub type Numbered<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Spreads numbers over all bits that a table may use.
#[derive(Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_i32(&mut self, number: i32) {
        self.write_u64(u64::from(number as u32));
    }

    fn write_u64(&mut self, number: u64) {
        // 2 to the 64th power divided by the golden ratio: adjacent numbers get distant hashes.
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
