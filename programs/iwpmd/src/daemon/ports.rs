//! The ports of mappings: each one is bound by a socket.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::choice::Choice;
use crate::proto::mappings::PortId;
use crate::sys::process::random;
use crate::sys::sockets::BoundPort;
use rdmacm_core::{Errno, Result};

/// Ports to try before the kernel chooses one: other programs may have bound many of them.
const MAX_TRIES: usize = 32;

/// All bound ports.
#[derive(Default)]
pub struct Ports {
    bound: HashMap<PortId, (BoundPort, u16)>,
    choice: Choice,
}

impl Ports {
    /// Binds a port for `local`: `port`, or a free one if `port` is 0. Returns the port.
    ///
    /// The port is bound at all addresses: devices share the addresses of the host, can have
    /// addresses that the host lacks, and some take all packets to a port whatever the address.
    /// If `port` is not free at all addresses, it is bound at the address of `local` alone.
    pub fn open(&mut self, id: PortId, local: SocketAddr, port: u16) -> Result<u16> {
        let (any, scope) = match local {
            SocketAddr::V4(_) => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            SocketAddr::V6(v6) => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), v6.scope_id()),
        };
        let everywhere = if port == 0 { self.any_port(any) } else { BoundPort::new(any, 0, port) };
        let (socket, port) = match everywhere {
            Err(error) if error.get() == libc::EADDRINUSE && !local.ip().is_unspecified() => {
                BoundPort::new(local.ip(), scope, port)
                    .map_err(|second| if second == Errno::EADDRNOTAVAIL { error } else { second })
            }
            result => result,
        }?;
        self.choice.note(port, true);
        self.bound.insert(id, (socket, port));
        Ok(port)
    }

    fn any_port(&mut self, any: IpAddr) -> Result<(BoundPort, u16)> {
        for _ in 0..MAX_TRIES {
            let Some(port) = self.choice.next(random()) else { break };
            match BoundPort::new(any, 0, port) {
                // In use by another program, or below 1024.
                Err(error) if [libc::EADDRINUSE, libc::EACCES].contains(&error.get()) => {}
                result => return result,
            }
        }
        BoundPort::new(any, 0, 0)
    }

    /// Releases the port.
    pub fn close(&mut self, id: PortId) {
        if let Some((_, port)) = self.bound.remove(&id) {
            self.choice.note(port, false);
        }
        if self.bound.len() < self.bound.capacity() / 8 {
            self.bound.shrink_to(self.bound.len() * 2);
        }
    }
}
