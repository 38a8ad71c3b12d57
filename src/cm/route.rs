//! Path records: from the wire form of the subnet administrator to libibverbs' structure, and out of ibacm.

use std::time::Duration;

use crate::errno::Result;
use crate::ffi::ibv_sa_path_rec;
use crate::sys::uapi::{RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, ibv_path_record};
use crate::sys::ucma;

use super::id::Id;
use super::lookup::acm_paths;

/// Unpacks a record (IBTA 15.2.5.16, PathRecord). Selectors and values share bytes there: 2 bits and 6.
pub(super) fn unpack(packed: &ibv_path_record) -> ibv_sa_path_rec {
    let flow_and_hops = u32::from_be(packed.flowlabel_hoplimit);
    ibv_sa_path_rec {
        dgid: packed.dgid,
        sgid: packed.sgid,
        dlid: packed.dlid,
        slid: packed.slid,
        raw_traffic: 0,
        flow_label: (flow_and_hops >> 8).to_be(),
        hop_limit: flow_and_hops as u8,
        traffic_class: packed.tclass,
        reversible: i32::from(packed.reversible_numpath >> 7),
        // A record is one path, whatever the number asked for that shares its byte (docs/quirks.md).
        numb_path: 1,
        pkey: packed.pkey,
        sl: (u16::from_be(packed.qosclass_sl) & 0xf) as u8,
        mtu_selector: packed.mtu >> 6,
        mtu: packed.mtu & 0x3f,
        rate_selector: packed.rate >> 6,
        rate: packed.rate & 0x3f,
        packet_life_time_selector: packed.packetlifetime >> 6,
        packet_life_time: packed.packetlifetime & 0x3f,
        preference: packed.preference,
    }
}

/// Asks ibacm for the path and gives it to the kernel, which then reports ROUTE_RESOLVED.
pub(super) fn from_acm(id: &Id, patience: Duration) -> Result<()> {
    let paths = acm_paths(id, patience)?;
    let records = paths.as_bytes();
    let (level, name) = (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH);
    // SAFETY: the records are readable for their size.
    unsafe { ucma::set_option(id.fd(), id.handle(), level, name, records.as_ptr().cast(), records.len() as u32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_fields() {
        let packed = ibv_path_record {
            flowlabel_hoplimit: 0x0123_4540_u32.to_be(),
            reversible_numpath: 0x81,
            qosclass_sl: 0x0123_u16.to_be(),
            mtu: 0x85,
            rate: 0x43,
            packetlifetime: 0x92,
            ..Default::default()
        };
        let record = unpack(&packed);
        assert_eq!((u32::from_be(record.flow_label), record.hop_limit), (0x0001_2345, 0x40));
        assert_eq!((record.reversible, record.numb_path, record.sl), (1, 1, 3));
        assert_eq!((record.mtu_selector, record.mtu), (2, 5));
        assert_eq!((record.rate_selector, record.rate), (1, 3));
        assert_eq!((record.packet_life_time_selector, record.packet_life_time), (2, 18));
    }
}
