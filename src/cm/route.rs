//! Path records: from the subnet administrator's wire format to libibverbs' structure, and from
//! ibacm.

use std::time::Duration;

use crate::errno::Result;
use crate::ffi::{RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, ibv_sa_path_rec};
use crate::sys::uapi::ibv_path_data;

use super::id::Id;
use super::lookup::acm_paths;
use super::option::{OptionValue, set_option};

/// The SA's selector for "exactly" (IBTA 15.2.5.16), which applies to MTU, rate and packet life
/// time of a path record in an answer.
const EXACTLY: u8 = 2;
/// Bits of an MTU, a rate and a packet life time that programs see (docs/compatibility.md).
const VALUE: u8 = 0x1f;

/// Unpacks a record (IBTA 15.2.5.16, PathRecord) of the kernel's answer.
pub(super) fn unpack(data: &ibv_path_data) -> ibv_sa_path_rec {
    let packed = &data.path;
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
        // A record is one path. The number in the same byte is the one requested
        // (docs/compatibility.md).
        numb_path: 1,
        pkey: packed.pkey,
        sl: (u16::from_be(packed.qosclass_sl) & 0xf) as u8,
        mtu_selector: EXACTLY,
        mtu: packed.mtu & VALUE,
        rate_selector: EXACTLY,
        rate: packed.rate & VALUE,
        packet_life_time_selector: EXACTLY,
        packet_life_time: packed.packetlifetime & VALUE,
        // Not a field of the record: the use of the path (docs/compatibility.md).
        preference: data.flags as u8,
    }
}

/// Asks ibacm for the path and gives it to the kernel, which then reports ROUTE_RESOLVED.
pub(super) fn from_acm(id: &Id, timeout: Duration) -> Result<()> {
    let paths = acm_paths(id, timeout)?;
    set_paths(id, paths.as_bytes().into())
}

/// Gives the kernel an array of `struct ibv_path_data`.
pub(super) fn set_paths(id: &Id, paths: OptionValue<'_>) -> Result<()> {
    set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::uapi::ibv_path_record;

    #[test]
    fn packed_fields() {
        let path = ibv_path_record {
            flowlabel_hoplimit: 0x0123_4540_u32.to_be(),
            reversible_numpath: 0x81,
            qosclass_sl: 0x0123_u16.to_be(),
            mtu: 0x65,
            rate: 0x43,
            packetlifetime: 0x92,
            ..Default::default()
        };
        let record = unpack(&ibv_path_data { flags: 0x2b, path, ..Default::default() });
        assert_eq!((u32::from_be(record.flow_label), record.hop_limit), (0x0001_2345, 0x40));
        assert_eq!((record.reversible, record.numb_path, record.sl), (1, 1, 3));
        assert_eq!((record.mtu_selector, record.mtu), (2, 5));
        assert_eq!((record.rate_selector, record.rate), (2, 3));
        assert_eq!((record.packet_life_time_selector, record.packet_life_time), (2, 18));
        assert_eq!(record.preference, 0x2b);
    }
}
