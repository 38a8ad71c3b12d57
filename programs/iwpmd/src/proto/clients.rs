//! The clients of RDMA netlink that have registered: drivers in the kernel, with their devices.

use std::collections::HashMap;

use super::netlink::ErrorCode;

/// Maximum number of devices remembered for a client; further ones are ignored.
const MAX_DEVICES: usize = 256;

/// A registered client.
#[derive(Clone, Debug, Default)]
struct Client {
    library: Vec<u8>,
    /// RDMA devices and their network interfaces, in the order of registration.
    devices: Vec<(Vec<u8>, Vec<u8>)>,
}

/// All clients: at most 64, the range of their numbers.
#[derive(Default)]
pub struct Clients(HashMap<u8, Client>);

impl Clients {
    /// Registers a device. Fails if the client has registered for another library before.
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
    pub fn dump(&self) -> Vec<String> {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let line = |client: &u8, device: &[u8], interface: &[u8]| {
            format!("client {client}: device {}, interface {}", text(device), text(interface))
        };
        let of = |(client, known): (&u8, &Client)| {
            known.devices.iter().map(|(device, interface)| line(client, device, interface)).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut lines = clients.dump();
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
        assert_eq!(clients.dump().len(), MAX_DEVICES);
    }
}
