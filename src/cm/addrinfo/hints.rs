//! The hints of a program for rdma_getaddrinfo().

use crate::acm::wire::{PATH_RECORD_LEN, Query};
use crate::errno::Result;

/// What rdma_getaddrinfo() uses of a `struct rdma_addrinfo` with hints.
#[derive(Clone, Copy, Debug)]
pub struct Hints<'a> {
    /// RAI_* flags.
    pub flags: u32,
    /// Address family.
    pub family: i32,
    /// QP type, 0 for any.
    pub qp_type: i32,
    /// Port space, 0 for any.
    pub port_space: i32,
    /// Local address, empty if there is none. An invalid one is an error only where it is used.
    pub src: Result<&'a [u8]>,
    /// Remote address, as `src`.
    pub dst: Result<&'a [u8]>,
    /// A path, empty if there is none.
    pub route: &'a [u8],
}

impl Default for Hints<'_> {
    fn default() -> Self {
        Hints { flags: 0, family: 0, qp_type: 0, port_space: 0, src: Ok(&[]), dst: Ok(&[]), route: &[] }
    }
}

impl Hints<'_> {
    /// Whether all of `flags` are set.
    pub fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }

    /// The requested properties of the path. A route that is neither one `struct ibv_path_record`
    /// nor one `struct ibv_path_data` counts as an empty record, as in the reference: it asks for
    /// any path.
    pub fn path(&self) -> Option<[u8; PATH_RECORD_LEN]> {
        if self.route.is_empty() {
            return None;
        }
        Some(Query::path_hint(self.route).unwrap_or([0; PATH_RECORD_LEN]))
    }
}
