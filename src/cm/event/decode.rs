//! Converts the kernel's event structure to `struct rdma_cm_event`, without I/O.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::ffi::{rdma_cm_event_param, rdma_cm_event_type, rdma_conn_param, rdma_ud_param};
use crate::os::uapi::{RDMA_MAX_PRIVATE_DATA, rdma_ucm_conn_param, rdma_ucm_event_resp, rdma_ucm_ud_param};
use crate::verbs::fill_ah_attr;

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

/// Sets the parameters of `raw` in `param`, all bytes of which are zero. They point to the private
/// data in `raw`.
pub fn decode(raw: &rdma_ucm_event_resp, kind: Kind, param: &mut rdma_cm_event_param) {
    // SAFETY: zeros are a value of `param`, whose members are numbers and pointers, and any bytes
    // are one of `raw.param`, whose members are numbers.
    unsafe {
        match kind {
            Kind::Connected => connected(&raw.param.conn, &mut param.conn),
            Kind::Datagram => datagram(&raw.param.ud, &mut param.ud),
            Kind::Word => param.arg = (&raw const raw.param).cast::<u64>().read_unaligned(),
        }
    }
}

/// The event's status: the kernel's number is signed.
pub fn status(raw: &rdma_ucm_event_resp) -> c_int {
    raw.status as c_int
}

fn connected(kernel: &rdma_ucm_conn_param, param: &mut rdma_conn_param) {
    param.private_data = private_data(&kernel.private_data, kernel.private_data_len);
    param.private_data_len = kernel.private_data_len;
    param.responder_resources = kernel.responder_resources;
    param.initiator_depth = kernel.initiator_depth;
    param.flow_control = kernel.flow_control;
    param.retry_count = kernel.retry_count;
    param.rnr_retry_count = kernel.rnr_retry_count;
    param.srq = kernel.srq;
    param.qp_num = kernel.qp_num;
}

fn datagram(kernel: &rdma_ucm_ud_param, param: &mut rdma_ud_param) {
    param.private_data = private_data(&kernel.private_data, kernel.private_data_len);
    param.private_data_len = kernel.private_data_len;
    fill_ah_attr(&mut param.ah_attr, &kernel.ah_attr);
    param.qp_num = kernel.qp_num;
    param.qkey = kernel.qkey;
}

/// The address of private data; NULL if there is none. Its length has eight bits, and fits.
fn private_data(data: &[u8; RDMA_MAX_PRIVATE_DATA as usize], len: u8) -> *const c_void {
    if len == 0 { ptr::null() } else { data.as_ptr().cast() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(event: u32) -> rdma_ucm_event_resp {
        rdma_ucm_event_resp { event, status: (-libc::ETIMEDOUT) as u32, ..Default::default() }
    }

    fn parameters(raw: &rdma_ucm_event_resp, kind: Kind) -> rdma_cm_event_param {
        // SAFETY: zeros are a value of the union.
        let mut param = unsafe { std::mem::zeroed() };
        decode(raw, kind, &mut param);
        param
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
        let param = parameters(&event, Kind::of(4, false));
        // SAFETY: a connected id's parameters.
        let conn = unsafe { param.conn };
        assert_eq!((conn.private_data_len, conn.responder_resources, conn.initiator_depth, conn.qp_num), (3, 2, 5, 17));
        // SAFETY: as above.
        assert_eq!(conn.private_data, unsafe { event.param.conn.private_data.as_ptr() }.cast());
        assert_eq!(status(&event), -libc::ETIMEDOUT);
    }

    #[test]
    fn no_private_data_is_null() {
        // SAFETY: a connected id's parameters.
        assert!(unsafe { parameters(&raw(9), Kind::Connected).conn }.private_data.is_null());
    }

    #[test]
    fn longest_private_data() {
        let mut event = raw(9);
        event.param.ud = rdma_ucm_ud_param { private_data: [7; 256], private_data_len: 255, ..Default::default() };
        // SAFETY: a datagram id's parameters, which point to as many bytes.
        unsafe {
            let ud = parameters(&event, Kind::of(9, true)).ud;
            assert_eq!(std::slice::from_raw_parts(ud.private_data.cast::<u8>(), ud.private_data_len.into()), [7; 255]);
        }
    }

    #[test]
    fn word_of_a_user_event() {
        let mut event = raw(18);
        // SAFETY: the parameters are at least a word long.
        unsafe { (&raw mut event.param).cast::<u64>().write_unaligned(0x0123_4567_89ab_cdef) };
        let param = parameters(&event, Kind::of(18, true));
        // SAFETY: a user event's parameters.
        assert_eq!(unsafe { param.arg }, 0x0123_4567_89ab_cdef);
    }
}
