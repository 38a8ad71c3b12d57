//! The ports that are kept: a socket for each.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::errno::{Errno, Result};
use crate::iwpm::mappings::PortId;
use crate::sys::sockets::KeptPort;

/// All ports that are kept.
#[derive(Default)]
pub struct Ports(HashMap<PortId, KeptPort>);

impl Ports {
    /// Keeps a port for `local`: exactly `port`, or a free one if that is 0. Which one.
    ///
    /// It is kept at all addresses, because devices share them with the host, and may have some that the host has not. When
    /// no port is free at all addresses, one that is free at this one will do.
    pub fn open(&mut self, id: PortId, local: SocketAddr, port: u16) -> Result<u16> {
        let (any, scope) = match local {
            SocketAddr::V4(_) => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            SocketAddr::V6(v6) => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), v6.scope_id()),
        };
        let kept = match KeptPort::new(any, 0, port) {
            Err(error) if error.get() == libc::EADDRINUSE && !local.ip().is_unspecified() => {
                KeptPort::new(local.ip(), scope, port)
                    .map_err(|second| if second == Errno::EADDRNOTAVAIL { error } else { second })
            }
            result => result,
        };
        let (socket, port) = kept?;
        self.0.insert(id, socket);
        Ok(port)
    }

    /// Keeps it no longer.
    pub fn close(&mut self, id: PortId) {
        self.0.remove(&id);
        if self.0.len() < self.0.capacity() / 8 {
            self.0.shrink_to(self.0.len() * 2);
        }
    }
}
