//! Unreliable datagrams: address handles, and the work requests of UD QPs.

use std::net::SocketAddr;
use std::ptr::{self, NonNull};

use crate::errno::{Errno, Result};
use crate::ffi::{RDMA_UDP_QKEY, ibv_sa_path_rec};
use crate::verbs::doorbell;
use crate::verbs::gid;
use crate::verbs::rc::{RECV_WR_ID_FLAG, post_recv_chain};
use crate::verbs::{
    self, IBV_LINK_LAYER_ETHERNET, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_pd, ibv_qp, ibv_recv_wr, ibv_send_wr,
    ibv_sge,
};

/// Number of bytes before each received datagram: a global route header (GRH), or unused space.
pub const GRH: usize = 40;

/// Hop limit for a path whose own hop limit is not above 1.
const HOPS: u8 = 64;

/// An address handle (AH): the destination of datagrams.
#[derive(Debug)]
pub struct AddressHandle(NonNull<ibv_ah>);

// SAFETY: an AH is a libibverbs object, which any thread may use.
unsafe impl Send for AddressHandle {}
// SAFETY: an AH is not changed after its creation.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    /// Creates an AH for the destination of `path`. `local` is the address of the local port.
    ///
    /// # Safety
    /// `context` is open, and `pd` is a PD of it that outlives the result.
    pub unsafe fn new(
        context: NonNull<ibv_context>,
        pd: NonNull<ibv_pd>,
        port: u8,
        path: &ibv_sa_path_rec,
        local: &SocketAddr,
    ) -> Result<AddressHandle> {
        // SAFETY: the context is open: guaranteed by the caller.
        let own = unsafe { verbs::query_port(context, port)? };
        let mut attr = ibv_ah_attr {
            port_num: port,
            dlid: u16::from_be(path.dlid),
            sl: path.sl,
            src_path_bits: (u16::from_be(path.slid) & ((1 << u16::from(own.lmc)) - 1)) as u8,
            static_rate: path.rate,
            ..Default::default()
        };
        let ethernet = own.link_layer == IBV_LINK_LAYER_ETHERNET as u8;
        // RoCE always needs a GRH, InfiniBand only for destinations outside the subnet.
        if ethernet || path.hop_limit > 1 {
            attr.is_global = 1;
            // SAFETY: all members of the unions are numbers, and share the 16 bytes.
            let (from, to) = unsafe { (path.sgid.raw, path.dgid.raw) };
            attr.grh.dgid = ibv_gid { raw: to };
            // SAFETY: the context is open: guaranteed by the caller.
            attr.grh.sgid_index = unsafe { gid::index(context, port, own.gid_tbl_len, from, local)? };
            attr.grh.flow_label = u32::from_be(path.flow_label);
            attr.grh.hop_limit = if path.hop_limit > 1 { path.hop_limit } else { HOPS };
            attr.grh.traffic_class = path.traffic_class;
        }
        // SAFETY: the PD is live: guaranteed by the caller; the attributes live until the call
        // returns.
        verbs::pointer(|| unsafe { verbs::ibv_create_ah(pd.as_ptr(), &raw mut attr) }).map(AddressHandle)
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: no outstanding work request uses the AH.
        unsafe { verbs::ibv_destroy_ah(self.0.as_ptr()) };
    }
}

/// Posts a datagram of `len` bytes at `from` to the QP `qpn`. The completion carries `wr_id`.
///
/// # Safety
/// `qp` is a live UD QP. The memory is not changed, and `to` lives, until the completion.
pub unsafe fn post_send(
    qp: NonNull<ibv_qp>,
    wr_id: u64,
    from: NonNull<u8>,
    len: u32,
    lkey: u32,
    to: &AddressHandle,
    qpn: u32,
) -> Result<()> {
    let mut sge = ibv_sge { addr: from.as_ptr() as u64, length: len, lkey };
    let (opcode, send_flags) = (verbs::ibv_wr_opcode::IBV_WR_SEND, verbs::ibv_send_flags::IBV_SEND_SIGNALED.0);
    let mut request =
        ibv_send_wr { wr_id, sg_list: &raw mut sge, num_sge: 1, opcode, send_flags, ..Default::default() };
    request.wr.ud.ah = to.0.as_ptr();
    request.wr.ud.remote_qpn = qpn;
    request.wr.ud.remote_qkey = RDMA_UDP_QKEY;
    let mut bad = ptr::null_mut();
    // SAFETY: the QP and the memory are as described: guaranteed by the caller. The request lives
    // until the call returns.
    let result = unsafe {
        let post = (*(*qp.as_ptr()).context).ops.post_send.ok_or(Errno::ENOSYS)?;
        post(qp.as_ptr(), &raw mut request, &raw mut bad)
    };
    // SAFETY: the QP is live: guaranteed by the caller.
    unsafe { doorbell::posted(qp, result) }
}

/// Posts a receive into two buffers, each with its length. The completion carries `slot` with
/// [`RECV_WR_ID_FLAG`].
///
/// # Safety
/// `qp` is a live UD QP. The memory is registered with `lkey`, and not read or written otherwise
/// until the completion.
pub unsafe fn post_recv(qp: NonNull<ibv_qp>, slot: u32, into: [(NonNull<u8>, u32); 2], lkey: u32) -> Result<()> {
    let mut sges = into.map(|(start, length)| ibv_sge { addr: start.as_ptr() as u64, length, lkey });
    let (wr_id, num_sge) = (RECV_WR_ID_FLAG | u64::from(slot), sges.len() as i32);
    let mut request = ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list: sges.as_mut_ptr(), num_sge };
    // SAFETY: the QP and the memory are as described: guaranteed by the caller. The request lives
    // until the call returns.
    unsafe { post_recv_chain(qp, &raw mut request) }
}
