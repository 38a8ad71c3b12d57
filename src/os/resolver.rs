//! getaddrinfo(3), of which the first result is used.

use std::ffi::{CStr, c_int};
use std::ptr::{self, NonNull};
use std::slice;

use libc::addrinfo;

use crate::os::cancel;

/// The hints of getaddrinfo(3); 0 stands for any value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// AI_* flags.
    pub flags: c_int,
    /// Address family.
    pub family: c_int,
    /// SOCK_* type.
    pub socktype: c_int,
    /// IPPROTO_* protocol.
    pub protocol: c_int,
}

/// The results of getaddrinfo(3), at least one; freed when dropped.
pub struct Found(NonNull<addrinfo>);

/// The first result.
#[derive(Clone, Copy, Debug)]
pub struct First<'a> {
    /// SOCK_* type.
    pub socktype: c_int,
    /// IPPROTO_* protocol.
    pub protocol: c_int,
    /// The address, a `sockaddr`.
    pub addr: &'a [u8],
    /// Canonical name, if requested.
    pub canonname: Option<&'a CStr>,
}

/// Calls getaddrinfo(3). The error is its EAI_* code; `errno` is what it set.
///
/// Without hints getaddrinfo(3) uses AI_V4MAPPED and AI_ADDRCONFIG, so that a host without IPv6
/// addresses gets none.
pub fn resolve(node: Option<&CStr>, service: Option<&CStr>, question: Option<Question>) -> Result<Found, c_int> {
    let hints = question.map(|question| {
        // SAFETY: all zeros are a valid addrinfo.
        let mut hints: addrinfo = unsafe { std::mem::zeroed() };
        hints.ai_flags = question.flags;
        hints.ai_family = question.family;
        hints.ai_socktype = question.socktype;
        hints.ai_protocol = question.protocol;
        hints
    });
    let hints = hints.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mut list = ptr::null_mut();
    let name = |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: C strings or NULL; hints with the fields set that getaddrinfo() reads, or NULL;
    // `list` is writable.
    let ask = || unsafe { libc::getaddrinfo(name(node), name(service), hints, &raw mut list) };
    // May wait for servers; no lock is held.
    match cancel::sleep(ask) {
        0 => NonNull::new(list).map(Found).ok_or(libc::EAI_NONAME),
        code => Err(code),
    }
}

impl Found {
    /// Returns the first result.
    pub fn first(&self) -> First<'_> {
        // SAFETY: getaddrinfo()'s list lives until drop, its addresses are `ai_addrlen` bytes, its
        // names C strings.
        unsafe {
            let info = self.0.as_ref();
            let addr = match NonNull::new(info.ai_addr) {
                Some(addr) => slice::from_raw_parts(addr.as_ptr().cast(), info.ai_addrlen as usize),
                None => &[],
            };
            let canonname = NonNull::new(info.ai_canonname).map(|name| CStr::from_ptr(name.as_ptr()));
            First { socktype: info.ai_socktype, protocol: info.ai_protocol, addr, canonname }
        }
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: from getaddrinfo(), freed once.
        unsafe { libc::freeaddrinfo(self.0.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMERIC: Question = Question { flags: libc::AI_NUMERICHOST, family: 0, socktype: 0, protocol: 0 };

    #[test]
    fn first_of_several() {
        let question = Question { socktype: libc::SOCK_STREAM, ..NUMERIC };
        let found = resolve(Some(c"127.0.0.1"), Some(c"7174"), Some(question)).ok().unwrap();
        let first = found.first();
        assert_eq!((first.socktype, first.protocol), (libc::SOCK_STREAM, libc::IPPROTO_TCP));
        assert_eq!(first.addr, [2, 0, 0x1C, 6, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(first.canonname.is_none());
    }

    #[test]
    fn canonical_name_when_asked_for() {
        let question = Question { flags: libc::AI_NUMERICHOST | libc::AI_CANONNAME, ..NUMERIC };
        let found = resolve(Some(c"127.0.0.1"), None, Some(question)).ok().unwrap();
        assert_eq!(found.first().canonname, Some(c"127.0.0.1"));
    }

    #[test]
    fn codes_as_they_are() {
        assert_eq!(resolve(None, None, Some(NUMERIC)).err(), Some(libc::EAI_NONAME));
        assert_eq!(resolve(Some(c"localhost"), None, Some(NUMERIC)).err(), Some(libc::EAI_NONAME));
        assert_eq!(
            resolve(Some(c"1.1.1.1"), None, Some(Question { family: 77, ..NUMERIC })).err(),
            Some(libc::EAI_FAMILY)
        );
    }
}
