//! The addresses in the route of an id.

use libc::sockaddr_storage;

use super::id::Id;
use crate::sys::sockaddr::overwrite;
use crate::sys::verbs::ibv_gid;

impl Id {
    /// The local address. The family is 0 before the id is bound.
    pub fn source(&self) -> sockaddr_storage {
        // SAFETY: the route is part of the id, and any bytes are a value of sockaddr_storage.
        unsafe { (*self.addr()).src.src_storage }
    }

    /// Sets the first bytes of the local address.
    pub(super) fn write_source(&self, bytes: &[u8]) {
        // SAFETY: the route is part of the id.
        overwrite(unsafe { &mut (*self.addr()).src.src_storage }, bytes);
    }

    /// The remote address. The family is 0 before the id has one.
    pub fn destination(&self) -> sockaddr_storage {
        // SAFETY: the route is part of the id, and any bytes are a value of sockaddr_storage.
        unsafe { (*self.addr()).dst.dst_storage }
    }

    /// Sets the first bytes of the remote address.
    pub(super) fn write_destination(&self, bytes: &[u8]) {
        // SAFETY: the route is part of the id.
        overwrite(unsafe { &mut (*self.addr()).dst.dst_storage }, bytes);
    }

    /// The P_Key, in network byte order.
    pub(super) fn pkey(&self) -> u16 {
        // SAFETY: the route is part of the id, and any bytes are a value of the number.
        unsafe { (*self.addr()).addr.ibaddr.pkey }
    }

    /// Sets the P_Key, in network byte order.
    pub(super) fn set_pkey(&self, pkey: u16) {
        // SAFETY: the route is part of the id.
        unsafe { (*self.addr()).addr.ibaddr.pkey = pkey }
    }

    /// Sets the GIDs of both ends.
    pub(super) fn set_gids(&self, source: [u8; 16], destination: [u8; 16]) {
        // SAFETY: the route is part of the id.
        unsafe {
            let transport = &raw mut (*self.addr()).addr.ibaddr;
            (*transport).sgid = ibv_gid { raw: source };
            (*transport).dgid = ibv_gid { raw: destination };
        }
    }
}
