//! Warnings to syslog: for what no program asked about and nobody else would ever learn.

use std::ffi::CStr;
use std::fmt::{self, Write};

/// One line, cut at 200 bytes; nothing is allocated.
pub fn warning(text: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 208], used: 0 };
    // A line that is too long is cut, not lost.
    let _ = write!(line, "librdmacm: {text}");
    let Ok(line) = CStr::from_bytes_until_nul(&line.bytes) else { return };
    // SAFETY: two C strings, the first a format with one %s.
    unsafe { libc::syslog(libc::LOG_USER | libc::LOG_WARNING, c"%s".as_ptr(), line.as_ptr()) };
}

struct Line {
    bytes: [u8; 208],
    used: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - 1 - self.used;
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
    fn long_lines_are_cut() {
        let mut line = Line { bytes: [0; 208], used: 0 };
        assert!(write!(line, "{:300}", 1).is_err());
        assert_eq!((line.used, line.bytes[207]), (207, 0));
    }
}
