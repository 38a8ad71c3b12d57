//! The ports that are kept: a socket for each.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::choice::Choice;
use crate::errno::{Errno, Result};
use crate::iwpm::mappings::PortId;
use crate::sys::process::random;
use crate::sys::sockets::KeptPort;

/// Ports that are tried before the kernel is left to choose: others than we may have many, too.
const TRIES: usize = 32;

/// All ports that are kept.
#[derive(Default)]
pub struct Ports {
    kept: HashMap<PortId, (KeptPort, u16)>,
    choice: Choice,
}

impl Ports {
    /// Keeps a port for `local`: exactly `port`, or a free one if that is 0. Which one.
    ///
    /// It is kept at all addresses, because devices share them with the host, may have some that the host has not, and some
    /// take all packets to a port as theirs whichever the address. When a port is not free at all addresses, and it must be
    /// this one, being free at this address will do.
    pub fn open(&mut self, id: PortId, local: SocketAddr, port: u16) -> Result<u16> {
        let (any, scope) = match local {
            SocketAddr::V4(_) => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            SocketAddr::V6(v6) => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), v6.scope_id()),
        };
        let everywhere = if port == 0 { self.any_port(any) } else { KeptPort::new(any, 0, port) };
        let (socket, port) = match everywhere {
            Err(error) if error.get() == libc::EADDRINUSE && !local.ip().is_unspecified() => {
                KeptPort::new(local.ip(), scope, port)
                    .map_err(|second| if second == Errno::EADDRNOTAVAIL { error } else { second })
            }
            result => result,
        }?;
        self.choice.note(port, true);
        self.kept.insert(id, (socket, port));
        Ok(port)
    }

    fn any_port(&mut self, any: IpAddr) -> Result<(KeptPort, u16)> {
        for _ in 0..TRIES {
            let Some(port) = self.choice.next(random()) else { break };
            match KeptPort::new(any, 0, port) {
                // Somebody else's, or below 1024.
                Err(error) if [libc::EADDRINUSE, libc::EACCES].contains(&error.get()) => {}
                result => return result,
            }
        }
        KeptPort::new(any, 0, 0)
    }

    /// Keeps it no longer.
    pub fn close(&mut self, id: PortId) {
        if let Some((_, port)) = self.kept.remove(&id) {
            self.choice.note(port, false);
        }
        if self.kept.len() < self.kept.capacity() / 8 {
            self.kept.shrink_to(self.kept.len() * 2);
        }
    }
}
