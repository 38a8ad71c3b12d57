//! From the kernel's event structure to `struct rdma_cm_event`; no I/O, no pointers followed.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;

use crate::ffi::{rdma_cm_event_param, rdma_cm_event_type, rdma_conn_param, rdma_ud_param};
use crate::sys::uapi::{RDMA_MAX_PRIVATE_DATA, rdma_ucm_conn_param, rdma_ucm_event_resp, rdma_ucm_ud_param};
use crate::sys::verbs::ah_attr_from_kernel;

/// Room for private data in the kernel's structures, in bytes; its length has eight bits.
pub const PRIVATE_DATA: usize = RDMA_MAX_PRIVATE_DATA as usize;

/// What the parameters of an event are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of a connected id.
    Connected,
    /// Of a datagram id, or about a multicast group.
    Datagram,
    /// A word: user and internal events.
    Word,
}

impl Kind {
    /// By the event's number and its id's kind.
    pub fn of(event: u32, datagrams: bool) -> Kind {
        const USER: u32 = rdma_cm_event_type::RDMA_CM_EVENT_USER as u32;
        const INTERNAL: u32 = rdma_cm_event_type::RDMA_CM_EVENT_INTERNAL as u32;
        match event {
            USER | INTERNAL => Kind::Word,
            _ if datagrams => Kind::Datagram,
            _ => Kind::Connected,
        }
    }
}

/// The parameters of `raw`; private data is copied to `private_data`, which the result then points at.
pub fn decode(raw: &rdma_ucm_event_resp, kind: Kind, private_data: &mut [u8; PRIVATE_DATA]) -> rdma_cm_event_param {
    // SAFETY: the union's members are plain numbers of which the kernel filled one; any bytes are a value of each.
    unsafe {
        match kind {
            Kind::Connected => rdma_cm_event_param { conn: connected(&raw.param.conn, private_data) },
            Kind::Datagram => rdma_cm_event_param { ud: datagram(&raw.param.ud, private_data) },
            Kind::Word => {
                // All bytes of the parameters are set, so that programs never read what was there before.
                let mut param: rdma_cm_event_param = zeroed();
                param.arg = (&raw const raw.param).cast::<u64>().read_unaligned();
                param
            }
        }
    }
}

/// The event's status: the kernel's word is signed.
pub fn status(raw: &rdma_ucm_event_resp) -> c_int {
    raw.status as c_int
}

fn connected(kernel: &rdma_ucm_conn_param, room: &mut [u8; PRIVATE_DATA]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private_data(&kernel.private_data, kernel.private_data_len, room),
        private_data_len: kernel.private_data_len,
        responder_resources: kernel.responder_resources,
        initiator_depth: kernel.initiator_depth,
        flow_control: kernel.flow_control,
        retry_count: kernel.retry_count,
        rnr_retry_count: kernel.rnr_retry_count,
        srq: kernel.srq,
        qp_num: kernel.qp_num,
    }
}

fn datagram(kernel: &rdma_ucm_ud_param, room: &mut [u8; PRIVATE_DATA]) -> rdma_ud_param {
    rdma_ud_param {
        private_data: private_data(&kernel.private_data, kernel.private_data_len, room),
        private_data_len: kernel.private_data_len,
        ah_attr: ah_attr_from_kernel(&kernel.ah_attr),
        qp_num: kernel.qp_num,
        qkey: kernel.qkey,
    }
}

/// NULL where there is none.
fn private_data(data: &[u8; PRIVATE_DATA], len: u8, room: &mut [u8; PRIVATE_DATA]) -> *const std::ffi::c_void {
    let len = usize::from(len);
    if len == 0 {
        return ptr::null();
    }
    room[..len].copy_from_slice(&data[..len]);
    room.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(event: u32) -> rdma_ucm_event_resp {
        rdma_ucm_event_resp { event, status: (-libc::ETIMEDOUT) as u32, ..Default::default() }
    }

    #[test]
    fn connection_parameters_with_private_data() {
        let mut event = raw(4);
        event.param.conn = rdma_ucm_conn_param {
            private_data_len: 3,
            responder_resources: 2,
            initiator_depth: 5,
            qp_num: 17,
            ..Default::default()
        };
        // SAFETY: the member that was just set.
        unsafe { event.param.conn.private_data[..4].copy_from_slice(b"abcd") };
        let mut room = [0; PRIVATE_DATA];
        let param = decode(&event, Kind::of(4, false), &mut room);
        // SAFETY: a connected id's parameters.
        let conn = unsafe { param.conn };
        assert_eq!((conn.private_data_len, conn.responder_resources, conn.initiator_depth, conn.qp_num), (3, 2, 5, 17));
        assert_eq!(conn.private_data, room.as_ptr().cast());
        assert_eq!(room[..4], *b"abc\0");
        assert_eq!(status(&event), -libc::ETIMEDOUT);
    }

    #[test]
    fn no_private_data_is_null() {
        let mut room = [1; PRIVATE_DATA];
        // SAFETY: a connected id's parameters.
        let conn = unsafe { decode(&raw(9), Kind::Connected, &mut room).conn };
        assert!(conn.private_data.is_null());
        assert_eq!(room, [1; PRIVATE_DATA]);
    }

    #[test]
    fn longest_private_data() {
        let mut event = raw(9);
        event.param.ud =
            rdma_ucm_ud_param { private_data: [7; PRIVATE_DATA], private_data_len: 255, ..Default::default() };
        let mut room = [0; PRIVATE_DATA];
        // SAFETY: a datagram id's parameters.
        let ud = unsafe { decode(&event, Kind::of(9, true), &mut room).ud };
        assert_eq!(ud.private_data_len, 255);
        assert_eq!((room[254], room[255]), (7, 0));
    }

    #[test]
    fn word_of_a_user_event() {
        let mut event = raw(18);
        // SAFETY: the parameters are at least a word long.
        unsafe { (&raw mut event.param).cast::<u64>().write_unaligned(0x0123_4567_89ab_cdef) };
        let mut room = [0; PRIVATE_DATA];
        let param = decode(&event, Kind::of(18, true), &mut room);
        // SAFETY: a user event's parameters.
        assert_eq!(unsafe { param.arg }, 0x0123_4567_89ab_cdef);
    }
}
