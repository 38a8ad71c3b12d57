//! Warnings to syslog: for what no program asked about and nobody else would ever learn.

use std::fmt;

use super::text::Text;

/// One line, cut at 200 bytes.
pub fn warning(text: fmt::Arguments<'_>) {
    let line = Text::<200>::cut(format_args!("librdmacm: {text}"));
    // SAFETY: two C strings, the first a format with one %s.
    unsafe { libc::syslog(libc::LOG_USER | libc::LOG_WARNING, c"%s".as_ptr(), line.as_c_str().as_ptr()) };
}
