//! Socket addresses in the messages of the kernel and in the table of rsockets. No I/O.
#![forbid(unsafe_code)]

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Parses a `sockaddr_in` or `sockaddr_in6`. Returns `None` if it is cut short or has another
/// family.
pub fn parse(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    match i32::from(family) {
        libc::AF_INET if bytes.len() >= size_of::<libc::sockaddr_in>() => {
            let ip: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
            Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
            let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into())
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
