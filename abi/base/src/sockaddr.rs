//! Socket addresses in the messages of the kernel and in the table of rsockets. No I/O.
#![forbid(unsafe_code)]

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::bytes::{array, u16_at, u32_at};

/// Parses a `sockaddr_in` or `sockaddr_in6`. Returns `None` if it is cut short or has another
/// family.
pub fn parse(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16_at(bytes, 0)?;
    let port = u16::from_be(u16_at(bytes, 2)?);
    match i32::from(family) {
        libc::AF_INET if bytes.len() >= size_of::<libc::sockaddr_in>() => {
            Some(SocketAddrV4::new(Ipv4Addr::from(array::<4>(bytes, 4)?), port).into())
        }
        libc::AF_INET6 => {
            Some(SocketAddrV6::new(Ipv6Addr::from(array::<16>(bytes, 8)?), port, 0, u32_at(bytes, 24)?).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families() {
        let mut bytes = [0; 28];
        bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        bytes[2..8].copy_from_slice(&[0x1b, 0x58, 10, 77, 1, 1]);
        assert_eq!(parse(&bytes[..16]), "10.77.1.1:7000".parse().ok());
        assert_eq!((parse(&bytes[..15]), parse(&[])), (None, None));
        bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        bytes[4..8].fill(0);
        (bytes[8], bytes[9], bytes[23]) = (0xfe, 0x80, 7);
        bytes[24..].copy_from_slice(&5_u32.to_ne_bytes());
        assert_eq!(parse(&bytes), "[fe80::7%5]:7000".parse().ok());
        assert_eq!((parse(&bytes[..27]), parse(&[0; 28])), (None, None));
    }
}
