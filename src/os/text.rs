//! Text of bounded length without allocation: paths, lines of logs, warnings to syslog.

use std::ffi::CStr;
use std::fmt::{self, Write};

use crate::errno::{Errno, Result};

/// A string of at most `N` - 1 bytes, and a NUL.
#[derive(Clone, Copy, Debug)]
pub struct FixedString<const N: usize> {
    bytes: [u8; N],
    used: usize,
}

impl<const N: usize> FixedString<N> {
    /// Formats `text`. Fails with `ENAMETOOLONG` if it does not fit.
    pub fn new(text: fmt::Arguments<'_>) -> Result<FixedString<N>> {
        let mut out = FixedString::empty();
        out.write_fmt(text).map_err(|_| Errno::ENAMETOOLONG)?;
        Ok(out)
    }

    /// Formats `text`, truncated if it does not fit.
    pub fn cut(text: fmt::Arguments<'_>) -> FixedString<N> {
        let mut out = FixedString::empty();
        // The error means that the text was truncated.
        let _ = out.write_fmt(text);
        out
    }

    /// Returns an empty string.
    pub fn empty() -> FixedString<N> {
        FixedString { bytes: [0; N], used: 0 }
    }

    /// Returns the bytes with the terminating NUL.
    pub fn bytes_with_nul_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..=self.used]
    }

    /// Returns the C string, which ends at the first NUL.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl<const N: usize> Write for FixedString<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = N.saturating_sub(1 + self.used);
        let taken = text.len().min(room);
        self.bytes[self.used..self.used + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.used += taken;
        if taken < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fits_or_not() {
        assert_eq!(
            FixedString::<6>::new(format_args!("{}:{}", 10, 27)).map(|text| text.as_c_str().to_owned()).as_deref(),
            Ok(c"10:27")
        );
        assert_eq!(FixedString::<5>::new(format_args!("10:27")).err().map(Errno::get), Some(libc::ENAMETOOLONG));
        assert_eq!(FixedString::<5>::cut(format_args!("10:27")).as_c_str(), c"10:2");
    }
}
