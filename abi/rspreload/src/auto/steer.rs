//! Leads tokens to this process's listener among those of a port with SO_REUSEPORT.
//!
//! The kernel spreads connections over all sockets of such a group, and the others may be other
//! processes'. A classic BPF program of the group names the socket for tokens, and leaves all other
//! connections to the kernel. The first socket of a group has the index 0 for as long as it listens.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};

use libc::{IPPROTO_IP, IPPROTO_IPV6, SOL_SOCKET, sock_filter, sock_fprog, socklen_t};

use crate::{errno, next_symbol};

/// asm-generic/socket.h.
const ATTACH_CBPF: c_int = 51;
const ATTACH_EBPF: c_int = 52;
const DETACH_BPF: c_int = 68;

/// The hop limit of packets of tokens: no system's default, nor a few less than one.
const HOPS: u32 = 165;

/// The result of the program for the first socket of the group, and for no choice.
const FIRST: u32 = 0;
const NO_CHOICE: u32 = !0;

/// linux/filter.h: an offset from the IP header.
const IP_HEADER: u32 = -0x10_0000_i32 as u32;

// linux/bpf_common.h.
const LOAD_BYTE: u16 = 0x30;
const LOAD_WORD: u16 = 0x20;
const SHIFT_RIGHT: u16 = 0x74;
const COPY_TO_X: u16 = 0x07;
const IF_EQUAL: u16 = 0x15;
const IF_EQUAL_X: u16 = 0x1d;
const RETURN: u16 = 0x06;

const fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// The packets of a token have the hop limit, and this host's address at both ends, of which the
/// last four bytes are compared: the kernel accepts such packets from this host only.
static PROGRAM: [sock_filter; 17] = [
    instruction(LOAD_BYTE, IP_HEADER, 0, 0),
    instruction(SHIFT_RIGHT, 4, 0, 0),
    instruction(IF_EQUAL, 6, 6, 0),
    // IPv4.
    instruction(LOAD_BYTE, IP_HEADER.wrapping_add(8), 0, 0),
    instruction(IF_EQUAL, HOPS, 0, 11),
    instruction(LOAD_WORD, IP_HEADER.wrapping_add(12), 0, 0),
    instruction(COPY_TO_X, 0, 0, 0),
    instruction(LOAD_WORD, IP_HEADER.wrapping_add(16), 0, 0),
    instruction(IF_EQUAL_X, 0, 6, 7),
    // IPv6.
    instruction(LOAD_BYTE, IP_HEADER.wrapping_add(7), 0, 0),
    instruction(IF_EQUAL, HOPS, 0, 5),
    instruction(LOAD_WORD, IP_HEADER.wrapping_add(20), 0, 0),
    instruction(COPY_TO_X, 0, 0, 0),
    instruction(LOAD_WORD, IP_HEADER.wrapping_add(36), 0, 0),
    instruction(IF_EQUAL_X, 0, 0, 1),
    instruction(RETURN, FIRST, 0, 0),
    instruction(RETURN, NO_CHOICE, 0, 0),
];

/// The program has chosen sockets of a group by a BPF program of its own.
static PROGRAM_CHOOSES: AtomicBool = AtomicBool::new(false);

/// Whether an option of setsockopt(2) concerns the BPF program of a group.
#[inline(always)]
pub fn is_choice(level: c_int, name: c_int) -> bool {
    level == SOL_SOCKET && matches!(name, ATTACH_CBPF | ATTACH_EBPF | DETACH_BPF)
}

/// The program uses such an option: from now on groups have no BPF program of this library.
pub fn leave_choice_to_program() {
    PROGRAM_CHOOSES.store(true, SeqCst);
}

/// Has the group of `fd` lead tokens to its first socket. Returns false if the program chooses
/// sockets by itself, or the kernel refuses.
pub fn attach(fd: c_int) -> bool {
    let program = sock_fprog { len: PROGRAM.len() as u16, filter: (&raw const PROGRAM).cast_mut().cast() };
    let len = size_of::<sock_fprog>() as socklen_t;
    // SAFETY: the structure has this length, and the kernel only reads the instructions.
    let attach = || unsafe { next_symbol::setsockopt(fd, SOL_SOCKET, ATTACH_CBPF, (&raw const program).cast(), len) };
    !PROGRAM_CHOOSES.load(SeqCst) && errno::keeping(attach) == 0
}

/// Marks a token for that BPF program.
pub fn mark(token: c_int) {
    let hops = HOPS as c_int;
    // One of the two fails, unless the address is a mapped one.
    for (level, name) in [(IPPROTO_IP, libc::IP_TTL), (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS)] {
        let len = size_of::<c_int>() as socklen_t;
        // SAFETY: a live int of that length.
        errno::keeping(|| unsafe { next_symbol::setsockopt(token, level, name, (&raw const hops).cast(), len) });
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};
    use std::os::fd::{AsRawFd, FromRawFd};

    use super::*;
    use crate::fork::name::Name;

    fn group_member(at: SocketAddr) -> TcpListener {
        let name = Name::new(at.ip(), at.port());
        let on: c_int = 1;
        // SAFETY: live values and their lengths; a new descriptor, which the listener owns.
        unsafe {
            let fd = libc::socket(name.family(), libc::SOCK_STREAM, 0);
            let len = size_of::<c_int>() as socklen_t;
            assert_eq!(libc::setsockopt(fd, SOL_SOCKET, libc::SO_REUSEPORT, (&raw const on).cast(), len), 0);
            assert_eq!(libc::bind(fd, name.as_ptr(), name.len), 0);
            assert_eq!(libc::listen(fd, 64), 0);
            let listener = TcpListener::from_raw_fd(fd);
            listener.set_nonblocking(true).unwrap();
            listener
        }
    }

    fn connect(to: SocketAddr, is_token: bool) -> c_int {
        let name = Name::new(to.ip(), to.port());
        // SAFETY: an address and its length; a new descriptor.
        unsafe {
            let fd = libc::socket(name.family(), libc::SOCK_STREAM, 0);
            if is_token {
                mark(fd);
            }
            assert_eq!(libc::connect(fd, name.as_ptr(), name.len), 0);
            fd
        }
    }

    #[test]
    fn tokens_reach_the_first_socket_of_a_group() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let first = group_member(at.parse().unwrap());
            let to = first.local_addr().unwrap();
            assert!(attach(first.as_raw_fd()));
            let others: Vec<_> = (0..3).map(|_| group_member(to)).collect();
            for is_token in [true, false] {
                let clients: Vec<_> = (0..60).map(|_| connect(to, is_token)).collect();
                let served = core::iter::from_fn(|| first.accept().ok()).count();
                let by_others: usize =
                    others.iter().map(|other| core::iter::from_fn(|| other.accept().ok()).count()).sum();
                assert_eq!(served + by_others, 60, "{at}");
                // All of 60 by chance, or none, is less likely than one in 10^7.
                assert!(if is_token { served == 60 } else { served < 60 && by_others < 60 }, "{at}: {served}");
                // SAFETY: opened above.
                clients.into_iter().for_each(|fd| unsafe { assert_eq!(libc::close(fd), 0) });
            }
        }
    }
}
