//! Warnings to syslog, for problems that no return value reports.

use std::fmt;

use crate::os::fixed_string::FixedString;

/// Logs one line, truncated to 200 bytes.
pub fn warning(text: fmt::Arguments<'_>) {
    let line = FixedString::<200>::cut(format_args!("librdmacm: {text}"));
    // SAFETY: two C strings, the first a format with one %s.
    unsafe { libc::syslog(libc::LOG_USER | libc::LOG_WARNING, c"%s".as_ptr(), line.as_c_str().as_ptr()) };
}
