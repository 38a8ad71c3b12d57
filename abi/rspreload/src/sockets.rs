//! IPv4 and IPv6 addresses, and calls on kernel sockets and rsockets that take references in place
//! of pointers.

use core::ffi::{c_int, c_short};
use core::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;

use libc::{
    AF_INET, AF_INET6, epoll_event, iovec, msghdr, nfds_t, pollfd, sockaddr, sockaddr_in, sockaddr_in6,
    sockaddr_storage, socklen_t,
};

use crate::errno;
use crate::memory::{AnyBytes, Plain, plain, zero};
use crate::next_symbol::{self, rsocket_abi};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SockAddr(SocketAddr);

impl SockAddr {
    pub fn new(address: IpAddr, number: u16) -> SockAddr {
        SockAddr(SocketAddr::new(address, number))
    }

    /// Returns the address that a program passes to a call; `None` if it is not IPv4 or IPv6.
    ///
    /// # Safety
    /// `addr` is NULL or readable for `len` bytes.
    pub unsafe fn read(addr: *const sockaddr, len: socklen_t) -> Option<SockAddr> {
        if addr.is_null() || (len as usize) < size_of::<sockaddr_in>() {
            return None;
        }
        // SAFETY: `len` bytes are readable: guaranteed by the caller.
        unsafe {
            match c_int::from((&raw const (*addr).sa_family).read_unaligned()) {
                AF_INET => {
                    let four = addr.cast::<sockaddr_in>().read_unaligned();
                    Some(SockAddr::new(four.sin_addr.s_addr.to_ne_bytes().into(), u16::from_be(four.sin_port)))
                }
                AF_INET6 if len as usize >= size_of::<sockaddr_in6>() => {
                    let six = addr.cast::<sockaddr_in6>().read_unaligned();
                    let (address, number) = (Ipv6Addr::from(six.sin6_addr.s6_addr), u16::from_be(six.sin6_port));
                    Some(SockAddr(SocketAddrV6::new(address, number, six.sin6_flowinfo, six.sin6_scope_id).into()))
                }
                _ => None,
            }
        }
    }

    /// Passes the address as a C structure to `call`. Returns the result of `call`.
    pub fn pass<T>(&self, call: impl FnOnce(*const sockaddr, socklen_t) -> T) -> T {
        match self.0 {
            SocketAddr::V4(four) => {
                let raw = sockaddr_in {
                    sin_family: AF_INET as libc::sa_family_t,
                    sin_port: four.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(four.ip().octets()) },
                    sin_zero: [0; 8],
                };
                call((&raw const raw).cast(), size_of::<sockaddr_in>() as socklen_t)
            }
            SocketAddr::V6(six) => {
                let raw = sockaddr_in6 {
                    sin6_family: AF_INET6 as libc::sa_family_t,
                    sin6_port: six.port().to_be(),
                    sin6_flowinfo: six.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: six.ip().octets() },
                    sin6_scope_id: six.scope_id(),
                };
                call((&raw const raw).cast(), size_of::<sockaddr_in6>() as socklen_t)
            }
        }
    }

    /// Returns the address that `call` stores, in the form of [`SockAddr::of_device`]. Returns
    /// `None` if `call` fails or the address is not IPv4 or IPv6.
    pub fn take(call: impl FnOnce(*mut sockaddr, *mut socklen_t) -> c_int) -> Option<SockAddr> {
        let (mut storage, mut len) = (zero::<sockaddr_storage>(), size_of::<sockaddr_storage>() as socklen_t);
        let result = call((&raw mut storage).cast(), &raw mut len);
        // SAFETY: `storage` is readable, and longer than any address that `read` reads.
        let name = unsafe { SockAddr::read((&raw const storage).cast(), len) };
        name.filter(|_| result == 0).map(|name| name.of_device())
    }

    /// Stores the address as getpeername(2) does.
    ///
    /// # Safety
    /// `addr` is writable for `*len` bytes, and `len` is valid.
    pub unsafe fn write(&self, addr: *mut sockaddr, len: *mut socklen_t) {
        // SAFETY: `from` has `size` bytes; `addr` and `len` are valid: guaranteed by the caller.
        self.pass(|from, size| unsafe { store(from, size, addr, len) });
    }

    pub fn family(&self) -> c_int {
        if self.0.is_ipv4() { AF_INET } else { AF_INET6 }
    }

    /// The IP address; a mapped address (`::ffff:a.b.c.d`) as IPv4.
    pub fn address(&self) -> IpAddr {
        self.0.ip().to_canonical()
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.0.port()
    }

    /// The interface of a link-local IPv6 address, otherwise 0.
    pub fn scope(&self) -> u32 {
        if let SocketAddr::V6(six) = self.0 { six.scope_id() } else { 0 }
    }

    /// Returns the address with another port.
    pub fn with_port(&self, number: u16) -> SockAddr {
        let mut name = *self;
        name.0.set_port(number);
        name
    }

    /// Returns the address for a socket of `family`: IPv4 addresses are mapped for AF_INET6.
    pub fn in_family(&self, family: c_int) -> SockAddr {
        match self.address() {
            IpAddr::V4(address) if family == AF_INET6 => SockAddr::new(address.to_ipv6_mapped().into(), self.port()),
            _ => *self,
        }
    }

    /// Returns the address in the form that RDMA devices use: a mapped address (`::ffff:a.b.c.d`)
    /// as IPv4.
    pub fn of_device(&self) -> SockAddr {
        match self.address() {
            address @ IpAddr::V4(_) => SockAddr::new(address, self.port()),
            IpAddr::V6(_) => *self,
        }
    }

    /// Whether both addresses have the same IP address and port.
    pub fn is_at(&self, other: &SockAddr) -> bool {
        (self.address(), self.port()) == (other.address(), other.port())
    }
}

/// Stores an address of `size` bytes as getpeername(2) does.
///
/// # Safety
/// `from` is readable for `size` bytes, `addr` is writable for `*len` bytes, and `len` is valid.
pub unsafe fn store(from: *const sockaddr, size: socklen_t, addr: *mut sockaddr, len: *mut socklen_t) {
    // SAFETY: at most `size` bytes are read and `*len` bytes written: guaranteed by the caller.
    unsafe {
        core::ptr::copy_nonoverlapping(from.cast::<u8>(), addr.cast::<u8>(), len.read().min(size) as usize);
        len.write(size);
    }
}

/// An `Option<SockAddr>` in atomic words. Zeros are `None`.
pub struct AtomicName([AtomicU64; 4]);

plain! { AtomicName }

impl AtomicName {
    pub fn store(&self, name: &SockAddr) {
        let (address, rest) = match name.0 {
            SocketAddr::V4(four) => (four.ip().to_bits().into(), 0),
            SocketAddr::V6(six) => (six.ip().to_bits(), u64::from(six.flowinfo()) << 32 | u64::from(six.scope_id())),
        };
        let kind = (name.family() as u64) << 16 | u64::from(name.port());
        for (word, value) in self.0.iter().zip([kind, (address >> 64) as u64, address as u64, rest]) {
            word.store(value, SeqCst);
        }
    }

    pub fn load(&self) -> Option<SockAddr> {
        let [kind, high, low, rest] = self.0.each_ref().map(|word| word.load(SeqCst));
        let (number, address) = (kind as u16, u128::from(high) << 64 | u128::from(low));
        match (kind >> 16) as c_int {
            AF_INET => Some(SockAddr::new((low as u32).to_be_bytes().into(), number)),
            AF_INET6 => {
                Some(SockAddr(SocketAddrV6::new(address.into(), number, (rest >> 32) as u32, rest as u32).into()))
            }
            _ => None,
        }
    }

    /// Returns the address, and stores `None`.
    pub fn take(&self) -> Option<SockAddr> {
        let name = self.load();
        self.0.iter().for_each(|word| word.store(0, SeqCst));
        name
    }
}

macro_rules! sockets {
    ($(#[$doc:meta])* $module:ident: $from:ident, $accept:ident($($flags:expr)?), $bind:ident, $connect:ident, $fcntl:ident,
        $getpeername:ident, $getsockname:ident, $getsockopt:ident, $poll:ident, $recv:ident, $send:ident,
        $setsockopt:ident) => {
        $(#[$doc])*
        pub mod $module {
            use super::*;

            /// Accepts a connection. Returns its descriptor, or -1.
            pub fn accept(fd: c_int) -> c_int {
                // SAFETY: NULL pointers are allowed: no address is stored.
                unsafe { $from::$accept(fd, core::ptr::null_mut(), core::ptr::null_mut() $(, $flags)?) }
            }

            pub fn bind(fd: c_int, name: &SockAddr) -> c_int {
                // SAFETY: `addr` is readable for `len` bytes.
                name.pass(|addr, len| unsafe { $from::$bind(fd, addr, len) })
            }

            pub fn connect(fd: c_int, name: &SockAddr) -> c_int {
                // SAFETY: `addr` is readable for `len` bytes.
                name.pass(|addr, len| unsafe { $from::$connect(fd, addr, len) })
            }

            /// fcntl(2) with a command that takes an int or no argument.
            pub fn fcntl(fd: c_int, cmd: c_int, value: c_int) -> c_int {
                debug_assert!(matches!(
                    cmd,
                    libc::F_GETFL | libc::F_SETFL | libc::F_GETFD | libc::F_SETFD | libc::F_DUPFD | libc::F_DUPFD_CLOEXEC
                ));
                // SAFETY: these commands take no pointer.
                unsafe { $from::$fcntl(fd, cmd, value as usize) }
            }

            /// Returns the peer's address, or `None` if the call fails.
            pub fn peer(fd: c_int) -> Option<SockAddr> {
                // SAFETY: `addr` is writable for `*len` bytes.
                SockAddr::take(|addr, len| unsafe { $from::$getpeername(fd, addr, len) })
            }

            /// Returns the local address, or `None` if the call fails.
            pub fn own(fd: c_int) -> Option<SockAddr> {
                // SAFETY: `addr` is writable for `*len` bytes.
                SockAddr::take(|addr, len| unsafe { $from::$getsockname(fd, addr, len) })
            }

            /// Returns the value and the length of an option, or `None` with `errno`.
            pub fn get<T: AnyBytes>(fd: c_int, (level, name): (c_int, c_int)) -> Option<(T, usize)> {
                let (mut value, mut len) = (zero::<T>(), size_of::<T>() as socklen_t);
                // SAFETY: `value` is writable for `len` bytes, and any bytes are valid for `T`.
                let result = unsafe { $from::$getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
                (result == 0).then_some((value, len as usize))
            }

            /// Sets an option. Fails with the errno of setsockopt(2).
            pub fn set<T: Plain>(fd: c_int, option: (c_int, c_int), value: &T) -> Result<(), c_int> {
                set_bytes(fd, option, value, size_of::<T>())
            }

            /// Sets an option to the first `len` bytes of a value. Fails with the errno of
            /// setsockopt(2).
            pub fn set_bytes<T: Plain>(
                fd: c_int, (level, name): (c_int, c_int), value: &T, len: usize
            ) -> Result<(), c_int> {
                let (start, len) = ((&raw const *value).cast(), len.min(size_of::<T>()) as socklen_t);
                errno::keeping(|| {
                    // SAFETY: `start` is readable for `len` bytes.
                    let result = unsafe { $from::$setsockopt(fd, level, name, start, len) };
                    if result == 0 { Ok(()) } else { Err(errno::get()) }
                })
            }

            pub fn poll(list: &mut [pollfd], timeout: c_int) -> c_int {
                // SAFETY: `list` is an array of the length that is passed.
                unsafe { $from::$poll(list.as_mut_ptr(), list.len() as nfds_t, timeout) }
            }

            pub fn receive(fd: c_int, bytes: &mut [u8], flags: c_int) -> Result<usize, c_int> {
                // SAFETY: `bytes` is writable for its length.
                moved(unsafe { $from::$recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) })
            }

            pub fn send(fd: c_int, bytes: &[u8], flags: c_int) -> Result<usize, c_int> {
                // SAFETY: `bytes` is readable for its length.
                moved(unsafe { $from::$send(fd, bytes.as_ptr().cast(), bytes.len(), flags) })
            }
        }
    };
}

sockets! {
    /// Sockets of the kernel.
    kernel: next_symbol, accept4(libc::SOCK_CLOEXEC), bind, connect, fcntl, getpeername, getsockname, getsockopt, poll, recv, send, setsockopt
}

sockets! {
    /// Rsockets.
    rdma: rsocket_abi, raccept(), rbind, rconnect, rfcntl, rgetpeername, rgetsockname, rgetsockopt, rpoll, rrecv, rsend, rsetsockopt
}

/// Returns the number of bytes that a call has moved, or `errno` if the call has failed.
fn moved(result: isize) -> Result<usize, c_int> {
    usize::try_from(result).map_err(|_| errno::get())
}

/// Returns a message that has `count` buffers and nothing else.
pub fn message(list: *const iovec, count: usize) -> msghdr {
    msghdr { msg_iov: list.cast_mut(), msg_iovlen: count as _, ..zero() }
}

/// Whether a kernel descriptor has one of the events, an error or a hang-up.
pub fn is_ready(fd: c_int, events: c_short) -> bool {
    kernel::poll(&mut [pollfd { fd, events, revents: 0 }], 0) > 0
}

/// epoll_ctl(2) of a kernel instance.
pub fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: Option<epoll_event>) -> c_int {
    let event = event.as_ref().map_or(core::ptr::null(), core::ptr::from_ref).cast_mut();
    // SAFETY: `event` is NULL, or points to an event that the kernel only reads.
    unsafe { next_symbol::epoll_ctl(epfd, op, fd, event) }
}

/// epoll_wait(2) of a kernel instance. Returns the events; an empty slice if the call fails.
pub fn epoll_wait(epfd: c_int, events: &mut [epoll_event], timeout: c_int) -> &[epoll_event] {
    // SAFETY: `events` is writable for its length.
    let count = unsafe { next_symbol::epoll_wait(epfd, events.as_mut_ptr(), events.len() as c_int, timeout) };
    events.get(..usize::try_from(count).unwrap_or(0)).unwrap_or_default()
}

/// Opens an existing file, with close-on-exec. Returns its descriptor, or -1.
pub fn open(path: &core::ffi::CStr, flags: c_int) -> c_int {
    // SAFETY: `path` ends with a NUL byte. Without O_CREAT the call has no third argument.
    unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) }
}

/// Reads from a file. Returns the number of bytes, or -1.
pub fn read(fd: c_int, bytes: &mut [u8]) -> isize {
    // SAFETY: `bytes` is writable for its length.
    unsafe { next_symbol::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) }
}

/// Writes to a file. Returns the number of bytes, or -1.
pub fn write(fd: c_int, bytes: &[u8]) -> isize {
    // SAFETY: `bytes` is readable for its length.
    unsafe { next_symbol::write(fd, bytes.as_ptr().cast(), bytes.len()) }
}

pub fn sleep_ms(milliseconds: c_int) {
    errno::keeping(|| kernel::poll(&mut [], milliseconds));
}

#[cfg(test)]
mod tests_of_name {
    use super::*;

    #[test]
    fn mapped_addresses_are_of_ipv4() {
        let mapped = SockAddr::new("::ffff:10.1.2.3".parse().unwrap(), 7471);
        let four = mapped.of_device();
        assert_eq!(
            (four.family(), four.port(), four),
            (AF_INET, 7471, SockAddr::new("10.1.2.3".parse().unwrap(), 7471))
        );
        assert_eq!((four.in_family(AF_INET6), four.in_family(AF_INET)), (mapped, four));
        let six = SockAddr::new("fe80::ffff:10.1.2.3".parse().unwrap(), 7471);
        assert_eq!((six.of_device(), six.in_family(AF_INET6)), (six, six));
    }

    #[test]
    fn names_survive_calls_and_words() {
        let scoped = SockAddr(SocketAddrV6::new("fe80::1".parse().unwrap(), 80, 7, 3).into());
        for name in [scoped, SockAddr::new("10.1.2.3".parse().unwrap(), 7471)] {
            // SAFETY: `addr` is readable for `len` bytes.
            assert_eq!(name.pass(|addr, len| unsafe { SockAddr::read(addr, len) }), Some(name));
            // SAFETY: `addr` is readable for `len` bytes.
            assert_eq!(name.pass(|addr, len| unsafe { SockAddr::read(addr, len - 1) }), None);
            let (mut storage, mut len) = (zero::<sockaddr_storage>(), 4);
            // SAFETY: `storage` is longer than `len` bytes.
            unsafe { name.write((&raw mut storage).cast(), &raw mut len) };
            assert!(c_int::from(storage.ss_family) == name.family() && len > 4);
            let words = zero::<AtomicName>();
            words.store(&name);
            assert_eq!((words.load(), words.take(), words.load()), (Some(name), Some(name), None));
        }
    }
}
