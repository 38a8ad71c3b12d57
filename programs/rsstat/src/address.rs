//! Addresses, from the bytes of a sockaddr.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const AF_IB: u16 = 27;

/// An address with its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// None yet, or of an unknown family.
    None,
    /// IPv4 or IPv6.
    Ip(SocketAddr),
    /// A GID, and the port that the service ID contains.
    Gid(Ipv6Addr, u16),
}

impl Address {
    /// Reads `sockaddr_in`, `sockaddr_in6` or `sockaddr_ib`.
    pub fn parse(bytes: &[u8]) -> Address {
        let at = |offset: usize| bytes.get(offset..offset + 2)?.try_into().ok().map(u16::from_be_bytes);
        let ip6 = || Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?));
        let family = bytes.get(..2).and_then(|family| family.try_into().ok()).map_or(0, u16::from_ne_bytes);
        let address = match family {
            AF_INET => (|| {
                let ip = Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(4..8)?).ok()?);
                Some(Address::Ip(SocketAddr::new(ip.into(), at(2)?)))
            })(),
            AF_INET6 => ip6().zip(at(2)).map(|(ip, port)| Address::Ip(SocketAddr::new(ip.into(), port))),
            // The service ID is in network order; it ends with the port.
            AF_IB => ip6().zip(at(30)).map(|(gid, port)| Address::Gid(gid, port)),
            _ => None,
        };
        address.unwrap_or(Address::None)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Address::None => "-".to_owned(),
            Address::Ip(address) if address.port() == 0 && address.ip().is_unspecified() => "*".to_owned(),
            Address::Ip(address) if address.ip().is_unspecified() => format!("*:{}", address.port()),
            Address::Ip(address) => address.to_string(),
            Address::Gid(gid, port) => format!("gid[{gid}]:{port}"),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_each_family() {
        let show = |bytes: &[u8]| Address::parse(bytes).to_string();
        let [low, high] = AF_INET.to_ne_bytes();
        assert_eq!(show(&[low, high, 0x1b, 0x58, 10, 77, 1, 1]), "10.77.1.1:7000");
        assert_eq!(show(&[low, high, 0x1b, 0x58, 0, 0, 0, 0]), "*:7000");
        let mut ip6 = [0; 48];
        ip6[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
        (ip6[3], ip6[23]) = (80, 1);
        assert_eq!(show(&ip6), "[::1]:80");
        let mut ib = [0; 48];
        ib[..2].copy_from_slice(&AF_IB.to_ne_bytes());
        (ib[8], ib[9], ib[23], ib[31]) = (0xfe, 0x80, 7, 9);
        assert_eq!(show(&ib), "gid[fe80::7]:9");
        assert_eq!((show(&[]), show(&[0; 48]), show(&[low, high, 1])), ("-".into(), "-".into(), "-".into()));
    }
}
