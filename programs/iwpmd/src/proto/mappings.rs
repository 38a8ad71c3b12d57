//! Tables of the port mapper: the mappings of local addresses to ports, and the registered clients
//! of RDMA netlink (drivers in the kernel) with their devices. No lookup searches a list, because a
//! host can have tens of thousands of connections, each with a mapping.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::netlink::ErrorCode;
use super::wire::Peer;

/// Identifies a mapping and the port bound for it. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u64);

/// A local address and the address it is mapped to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The address that programs use.
    pub local: SocketAddr,
    /// The address that the device uses.
    pub mapped: SocketAddr,
    /// The client that requested the mapping.
    pub owner: u8,
    /// ID of the mapping.
    pub id: PortId,
    /// Whether a socket is bound to the port.
    pub bound: bool,
    /// Number of connections and listeners that use the mapping.
    pub references: u32,
    /// Number of removals to ignore: the kernel also removes mappings that were refused.
    pub surplus_removals: u32,
    /// Number of removals received.
    pub removals: u32,
    /// When the mapping was created or last requested again, in milliseconds.
    pub last_used: u64,
    /// Number of the kernel's last list that contained the mapping, and how many times the list
    /// contained it. A new mapping starts with the number of the current list.
    pub listed: (u32, u32),
}

impl Mapping {
    /// Returns whether the mapping is for the wildcard address.
    pub fn is_wildcard(&self) -> bool {
        self.local.ip().is_unspecified()
    }

    /// Returns the mapped address for a peer that asked for `asked`. If the mapping is for the
    /// wildcard address, the answer is `asked` with the mapped port.
    pub fn answer(&self, asked: Peer) -> Peer {
        let ip = if self.is_wildcard() { asked.ip } else { self.mapped.ip() };
        Peer { ip, port: self.mapped.port() }
    }
}

/// Returns an address without its scope, which peers cannot know.
pub fn key(address: &SocketAddr) -> Peer {
    Peer { ip: address.ip(), port: address.port() }
}

fn wildcard(v6: bool, port: u16) -> Peer {
    let ip = if v6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
    Peer { ip, port }
}

/// All mappings, at most one for each address.
#[derive(Default)]
pub struct Mappings(BTreeMap<Peer, Mapping>);

impl Mappings {
    /// Returns the number of mappings.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the mapping of this very address.
    pub fn get(&self, address: Peer) -> Option<&Mapping> {
        self.0.get(&address)
    }

    /// Returns the mapping of this very address, to change it.
    pub fn get_mut(&mut self, address: Peer) -> Option<&mut Mapping> {
        self.0.get_mut(&address)
    }

    /// Returns a mapping that conflicts with a new mapping of `address`: a mapping of the same
    /// address, or of the same family and port if either address is the wildcard.
    pub fn overlapping(&self, address: Peer) -> Option<&Mapping> {
        let v6 = address.ip.is_ipv6();
        let wildcard = wildcard(v6, address.port);
        if address != wildcard {
            return self.get(address).or_else(|| self.get(wildcard));
        }
        // The wildcard address comes before all other addresses of its port and family.
        let (first, mapping) = self.0.range(wildcard..).next()?;
        (first.port == address.port && first.ip.is_ipv6() == v6).then_some(mapping)
    }

    /// Returns the mapping of an address that a peer asks for. IPv4 connections also reach
    /// listeners at the wildcard address of IPv6.
    pub fn for_peer(&self, asked: Peer) -> Option<&Mapping> {
        let other_family = || if asked.ip.is_ipv4() { self.get(wildcard(true, asked.port)) } else { None };
        self.overlapping(asked).or_else(other_family)
    }

    /// Adds a mapping. It replaces a mapping of the same address.
    pub fn insert(&mut self, mapping: Mapping) {
        self.0.insert(key(&mapping.local), mapping);
    }

    /// Removes a mapping, and returns it.
    pub fn remove(&mut self, address: Peer) -> Option<Mapping> {
        self.0.remove(&address)
    }

    /// Returns all mappings, ordered by port and address.
    pub fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.0.values()
    }

    /// Returns all mappings, ordered by port and address.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Mapping> {
        self.0.values_mut()
    }
}

/// Maximum number of devices remembered for a client; further devices are ignored.
const MAX_DEVICES: usize = 256;

/// A registered client.
#[derive(Clone, Debug, Default)]
struct Client {
    library: Vec<u8>,
    /// RDMA devices and their network interfaces, in the order of registration.
    devices: Vec<(Vec<u8>, Vec<u8>)>,
}

/// All registered clients: at most 64, because client numbers have 6 bits.
#[derive(Default)]
pub struct Clients(HashMap<u8, Client>);

impl Clients {
    /// Registers a device. Fails with `UserLibrary` if the client has registered for another
    /// library.
    pub fn register(&mut self, client: u8, library: &[u8], device: &[u8], interface: &[u8]) -> Result<(), ErrorCode> {
        let known = self.0.entry(client).or_insert_with(|| Client { library: library.to_vec(), devices: Vec::new() });
        if known.library != library {
            return Err(ErrorCode::UserLibrary);
        }
        known.devices.retain(|(name, _)| name != device);
        if known.devices.len() < MAX_DEVICES {
            known.devices.push((device.to_vec(), interface.to_vec()));
        }
        Ok(())
    }

    /// Returns whether the client has registered.
    pub fn knows(&self, client: u8) -> bool {
        self.0.contains_key(&client)
    }

    /// Returns the lines of a dump.
    pub fn dump(&self) -> impl Iterator<Item = String> {
        let devices = self.0.iter().flat_map(|(client, known)| known.devices.iter().map(move |names| (client, names)));
        devices.map(|(client, (device, interface))| {
            format!("client {client}: device {}, interface {}", device.escape_ascii(), interface.escape_ascii())
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mapping(local: &str) -> Mapping {
        let local: SocketAddr = local.parse().unwrap();
        let mapped = SocketAddr::new(local.ip(), 40_000);
        Mapping {
            local,
            mapped,
            owner: 2,
            id: PortId(1),
            bound: false,
            references: 1,
            surplus_removals: 0,
            removals: 0,
            last_used: 0,
            listed: (0, 0),
        }
    }

    fn peer(text: &str) -> Peer {
        key(&text.parse().unwrap())
    }

    fn with(locals: &[&str]) -> Mappings {
        let mut all = Mappings::default();
        for local in locals {
            all.insert(mapping(local));
        }
        all
    }

    #[test]
    fn wildcards_overlap_their_family() {
        let all = with(&["10.0.0.1:1", "0.0.0.0:2", "[::]:3", "[fe80::1%3]:4"]);
        let found = |text| all.overlapping(peer(text)).map(|mapping| mapping.local.to_string());
        assert_eq!(found("10.0.0.1:1").as_deref(), Some("10.0.0.1:1"));
        assert_eq!(found("0.0.0.0:1").as_deref(), Some("10.0.0.1:1"));
        assert_eq!(found("10.9.9.9:2").as_deref(), Some("0.0.0.0:2"));
        assert_eq!(found("[fe80::1]:4").as_deref(), Some("[fe80::1%3]:4"));
        for none in ["10.0.0.2:1", "[::]:1", "[::1]:2", "10.0.0.1:3", "0.0.0.0:9"] {
            assert_eq!(found(none), None, "{none}");
        }
    }

    #[test]
    fn peers_reach_wildcards_of_both_families() {
        let all = with(&["0.0.0.0:2", "[::]:3"]);
        let answer = |text| all.for_peer(peer(text)).map(|mapping| mapping.answer(peer(text)));
        assert_eq!(answer("10.0.0.1:2"), Some(peer("10.0.0.1:40000")));
        assert_eq!(answer("10.0.0.1:3"), Some(peer("10.0.0.1:40000")));
        assert_eq!(answer("[fd00::1]:3"), Some(peer("[fd00::1]:40000")));
        assert_eq!(answer("[fd00::1]:2"), None);
    }

    proptest! {
        /// Behaves like a list that is searched linearly.
        #[test]
        fn as_a_plain_list(steps in proptest::collection::vec((0u8..4, 0u8..4, 0u16..3), 1..200)) {
            let (mut all, mut list) = (Mappings::default(), Vec::<Peer>::new());
            for (kind, host, port) in steps {
                let ip = Ipv4Addr::new(if host == 0 { 0 } else { 10 }, 0, 0, host);
                let local = Peer { ip: ip.into(), port };
                let known = list.iter().position(|&other| other == local);
                if kind > 0 {
                    all.insert(mapping(&format!("{ip}:{port}")));
                    if known.is_none() {
                        list.push(local);
                    }
                } else {
                    prop_assert_eq!(all.remove(local).is_some(), known.is_some());
                    known.map(|at| list.remove(at));
                }
                let overlap = |a: &Peer, b: &Peer| a.port == b.port
                    && (a.ip == b.ip || a.ip.is_unspecified() || b.ip.is_unspecified());
                prop_assert_eq!(all.len(), list.len());
                for asked in list.iter().chain([&local]) {
                    let found = all.overlapping(*asked).map(|mapping| key(&mapping.local));
                    prop_assert_eq!(found.is_some(), list.iter().any(|other| overlap(other, asked)));
                    prop_assert!(found.is_none_or(|found| overlap(&found, asked)));
                }
            }
            for local in list {
                all.remove(local);
            }
            prop_assert_eq!(all.len(), 0);
        }
    }

    #[test]
    fn a_client_stays_with_its_library() {
        let mut clients = Clients::default();
        assert!(!clients.knows(2));
        assert_eq!(clients.register(2, b"lib", b"siw0", b"eth0"), Ok(()));
        assert_eq!(clients.register(2, b"lib", b"siw1", b"eth1"), Ok(()));
        assert_eq!(clients.register(2, b"lib", b"siw0", b"eth2"), Ok(()));
        assert_eq!(clients.register(2, b"other", b"siw0", b"eth0"), Err(ErrorCode::UserLibrary));
        assert_eq!(clients.register(3, b"other", b"c\n", b"eth0"), Ok(()));
        assert!(clients.knows(2) && clients.knows(3) && !clients.knows(4));
        let mut lines: Vec<_> = clients.dump().collect();
        lines.sort();
        assert_eq!(lines[1], "client 2: device siw1, interface eth1");
        assert_eq!(lines[2], "client 3: device c\\n, interface eth0");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn devices_are_bounded() {
        let mut clients = Clients::default();
        for number in 0..2 * MAX_DEVICES {
            assert_eq!(clients.register(2, b"lib", number.to_string().as_bytes(), b"eth0"), Ok(()));
        }
        assert_eq!(clients.dump().count(), MAX_DEVICES);
    }
}
