//! Converts the kernel's event structure to `struct rdma_cm_event`, without I/O.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use crate::ffi::{rdma_cm_event_param, rdma_cm_event_type, rdma_conn_param, rdma_ud_param};
use crate::sys::uapi::{RDMA_MAX_PRIVATE_DATA, rdma_ucm_conn_param, rdma_ucm_event_resp, rdma_ucm_ud_param};
use crate::sys::verbs::fill_ah_attr;

/// Size of the private data in the kernel's structures, in bytes; its length has eight bits.
pub const PRIVATE_DATA: usize = RDMA_MAX_PRIVATE_DATA as usize;

/// The type of an event's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of a connection.
    Connected,
    /// Of a datagram id, or about a multicast group.
    Datagram,
    /// A number: user and internal events.
    Word,
}

impl Kind {
    /// By the event's number, and whether its id is for datagrams.
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

/// Writes the parameters of `raw` to every byte of `param`. Private data is copied to `room`, to
/// which they then point.
pub fn decode(
    raw: &rdma_ucm_event_resp,
    kind: Kind,
    room: &mut [u8; PRIVATE_DATA],
    param: &mut MaybeUninit<rdma_cm_event_param>,
) {
    // There is padding between the fields: the program must not see what was in our memory before.
    *param = MaybeUninit::zeroed();
    // SAFETY: zeros are a value of `param`, whose members are numbers and pointers, and any bytes
    // are one of `raw.param`, whose members are numbers.
    unsafe {
        let param = param.assume_init_mut();
        match kind {
            Kind::Connected => connected(&raw.param.conn, room, &mut param.conn),
            Kind::Datagram => datagram(&raw.param.ud, room, &mut param.ud),
            Kind::Word => param.arg = (&raw const raw.param).cast::<u64>().read_unaligned(),
        }
    }
}

/// The event's status: the kernel's number is signed.
pub fn status(raw: &rdma_ucm_event_resp) -> c_int {
    raw.status as c_int
}

fn connected(kernel: &rdma_ucm_conn_param, room: &mut [u8; PRIVATE_DATA], param: &mut rdma_conn_param) {
    param.private_data = private_data(&kernel.private_data, kernel.private_data_len, room);
    param.private_data_len = kernel.private_data_len;
    param.responder_resources = kernel.responder_resources;
    param.initiator_depth = kernel.initiator_depth;
    param.flow_control = kernel.flow_control;
    param.retry_count = kernel.retry_count;
    param.rnr_retry_count = kernel.rnr_retry_count;
    param.srq = kernel.srq;
    param.qp_num = kernel.qp_num;
}

fn datagram(kernel: &rdma_ucm_ud_param, room: &mut [u8; PRIVATE_DATA], param: &mut rdma_ud_param) {
    param.private_data = private_data(&kernel.private_data, kernel.private_data_len, room);
    param.private_data_len = kernel.private_data_len;
    fill_ah_attr(&mut param.ah_attr, &kernel.ah_attr);
    param.qp_num = kernel.qp_num;
    param.qkey = kernel.qkey;
}

/// Copies private data to `room`; NULL if there is none.
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

    /// The parameters, over memory that is not zero.
    fn parameters(raw: &rdma_ucm_event_resp, kind: Kind, room: &mut [u8; PRIVATE_DATA]) -> rdma_cm_event_param {
        let mut param = MaybeUninit::<rdma_cm_event_param>::uninit();
        // SAFETY: room for as many bytes; any bytes are a value of the union.
        unsafe {
            param.as_mut_ptr().write_bytes(0xaa, 1);
            decode(raw, kind, room, &mut param);
            param.assume_init()
        }
    }

    #[test]
    fn every_byte_is_written() {
        let mut room = [0; PRIVATE_DATA];
        for kind in [Kind::Connected, Kind::Datagram, Kind::Word] {
            let param = parameters(&raw(9), kind, &mut room);
            let start = (&raw const param).cast::<u8>();
            // SAFETY: the parameters, every byte of which was set before they were written.
            let bytes = unsafe { std::slice::from_raw_parts(start, size_of_val(&param)) };
            assert!(!bytes.contains(&0xaa));
        }
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
        let param = parameters(&event, Kind::of(4, false), &mut room);
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
        let conn = unsafe { parameters(&raw(9), Kind::Connected, &mut room).conn };
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
        let ud = unsafe { parameters(&event, Kind::of(9, true), &mut room).ud };
        assert_eq!(ud.private_data_len, 255);
        assert_eq!((room[254], room[255]), (7, 0));
    }

    #[test]
    fn word_of_a_user_event() {
        let mut event = raw(18);
        // SAFETY: the parameters are at least a word long.
        unsafe { (&raw mut event.param).cast::<u64>().write_unaligned(0x0123_4567_89ab_cdef) };
        let mut room = [0; PRIVATE_DATA];
        let param = parameters(&event, Kind::of(18, true), &mut room);
        // SAFETY: a user event's parameters.
        assert_eq!(unsafe { param.arg }, 0x0123_4567_89ab_cdef);
    }
}
