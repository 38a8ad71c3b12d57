//! Pieces of structures that are read from bytes, such as messages of the kernel.

/// Returns the `N` bytes at an offset, or `None` if `bytes` is too short.
pub fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

/// Reads a number in the machine's byte order.
pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array(bytes, offset).map(u16::from_ne_bytes)
}

/// Reads a number in the machine's byte order.
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array(bytes, offset).map(u32::from_ne_bytes)
}

/// Reads a number in the machine's byte order.
pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    array(bytes, offset).map(u64::from_ne_bytes)
}
