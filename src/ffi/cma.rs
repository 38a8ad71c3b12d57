//! `rdma/rdma_cma.h`.

use std::ffi::{c_char, c_int, c_void};

use ibverbs_sys::{ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_srq};
use libc::{size_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

pub use crate::os::uapi::ibv_sa_path_rec;

/// Type of an event.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum rdma_cm_event_type {
    /// rdma_resolve_addr() found the device and address.
    RDMA_CM_EVENT_ADDR_RESOLVED,
    /// rdma_resolve_addr() failed.
    RDMA_CM_EVENT_ADDR_ERROR,
    /// rdma_resolve_route() found a route.
    RDMA_CM_EVENT_ROUTE_RESOLVED,
    /// rdma_resolve_route() failed.
    RDMA_CM_EVENT_ROUTE_ERROR,
    /// A peer requests a connection; `id` is new, `listen_id` is the listener.
    RDMA_CM_EVENT_CONNECT_REQUEST,
    /// The peer has accepted, and the id has no QP: rdma_establish() completes the connection.
    RDMA_CM_EVENT_CONNECT_RESPONSE,
    /// Connecting or accepting failed.
    RDMA_CM_EVENT_CONNECT_ERROR,
    /// The peer is unreachable or does not answer.
    RDMA_CM_EVENT_UNREACHABLE,
    /// The peer has rejected the connection.
    RDMA_CM_EVENT_REJECTED,
    /// The connection is established.
    RDMA_CM_EVENT_ESTABLISHED,
    /// The connection is closed.
    RDMA_CM_EVENT_DISCONNECTED,
    /// The device is being removed: the program has to destroy the id.
    RDMA_CM_EVENT_DEVICE_REMOVAL,
    /// rdma_join_multicast() succeeded.
    RDMA_CM_EVENT_MULTICAST_JOIN,
    /// Joining failed, or the group was lost.
    RDMA_CM_EVENT_MULTICAST_ERROR,
    /// The network device of the address changed.
    RDMA_CM_EVENT_ADDR_CHANGE,
    /// The QP of a closed connection may be used again.
    RDMA_CM_EVENT_TIMEWAIT_EXIT,
    /// rdma_resolve_addrinfo() has finished.
    RDMA_CM_EVENT_ADDRINFO_RESOLVED,
    /// rdma_resolve_addrinfo() failed.
    RDMA_CM_EVENT_ADDRINFO_ERROR,
    /// Written by rdma_write_cm_event().
    RDMA_CM_EVENT_USER,
    /// Never reported to a program.
    RDMA_CM_EVENT_INTERNAL,
}

impl rdma_cm_event_type {
    /// Returns the enumerator of a number that the kernel has sent.
    pub(crate) fn from_number(number: u32) -> Option<rdma_cm_event_type> {
        let is_enumerator = number <= rdma_cm_event_type::RDMA_CM_EVENT_INTERNAL as u32;
        // SAFETY: the enumerators are the numbers from 0 to that of RDMA_CM_EVENT_INTERNAL.
        is_enumerator.then(|| unsafe { std::mem::transmute::<u32, rdma_cm_event_type>(number) })
    }
}

/// Port spaces: which service ids (IBTA annex A11) an id uses.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum rdma_port_space {
    /// Datagrams on the multicast groups of IP over InfiniBand.
    RDMA_PS_IPOIB = 0x0002,
    /// Connections with TCP's port numbers.
    RDMA_PS_TCP = 0x0106,
    /// Datagrams with UDP's port numbers.
    RDMA_PS_UDP = 0x0111,
    /// Any service id of InfiniBand.
    RDMA_PS_IB = 0x013F,
}

/// The kernel's type of 16 bit integers in network byte order.
pub type __be16 = u16;

/// A value of [`rdma_cm_event_type`] as C programs pass it.
pub type rdma_cm_event_type_t = u32;
/// A value of [`rdma_port_space`] as C programs pass it.
pub type rdma_port_space_t = u32;
/// A value of libibverbs' `enum ibv_qp_type`.
pub type ibv_qp_type_t = u32;
/// A value of libibverbs' `enum ibv_event_type`.
pub type ibv_event_type_t = u32;

/// Service id mask of the port space.
pub const RDMA_IB_IP_PS_MASK: u64 = 0xFFFF_FFFF_FFFF_0000_u64;
/// Service id mask of the port.
pub const RDMA_IB_IP_PORT_MASK: u64 = 0x0000_0000_0000_FFFF_u64;
/// Service id prefix of RDMA_PS_TCP.
pub const RDMA_IB_IP_PS_TCP: u64 = 0x0000_0000_0106_0000_u64;
/// Service id prefix of RDMA_PS_UDP.
pub const RDMA_IB_IP_PS_UDP: u64 = 0x0000_0000_0111_0000_u64;
/// Service id prefix of RDMA_PS_IB.
pub const RDMA_IB_PS_IB: u64 = 0x0000_0000_013F_0000_u64;

/// The Q_Key of every RDMA_PS_UDP QP.
pub const RDMA_UDP_QKEY: u32 = 0x0123_4567;

/// InfiniBand addresses of a route.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_ib_addr {
    /// Source GID.
    pub sgid: ibv_gid,
    /// Destination GID.
    pub dgid: ibv_gid,
    /// Partition key, network byte order.
    pub pkey: __be16,
}

/// Local address of a route; an anonymous union in C.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_addr_src {
    /// Any family.
    pub src_addr: sockaddr,
    /// AF_INET.
    pub src_sin: sockaddr_in,
    /// AF_INET6.
    pub src_sin6: sockaddr_in6,
    /// The whole space.
    pub src_storage: sockaddr_storage,
}

/// Remote address of a route; an anonymous union in C.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_addr_dst {
    /// Any family.
    pub dst_addr: sockaddr,
    /// AF_INET.
    pub dst_sin: sockaddr_in,
    /// AF_INET6.
    pub dst_sin6: sockaddr_in6,
    /// The whole space.
    pub dst_storage: sockaddr_storage,
}

/// Transport addresses of a route.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_addr_transport {
    /// InfiniBand and RoCE.
    pub ibaddr: rdma_ib_addr,
}

/// Addresses of both ends.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_addr {
    /// The local end.
    pub src: rdma_addr_src,
    /// The remote end.
    pub dst: rdma_addr_dst,
    /// The transport's addresses.
    pub addr: rdma_addr_transport,
}

/// Addresses and path records of an id.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_route {
    /// Addresses.
    pub addr: rdma_addr,
    /// Path records, or NULL if there are none.
    pub path_rec: *mut ibv_sa_path_rec,
    /// Number of path records.
    pub num_paths: c_int,
}

/// A channel that reports events.
#[repr(C)]
pub struct rdma_event_channel {
    /// File descriptor, which is readable when an event is pending.
    pub fd: c_int,
}

/// An RDMA communication identifier: what a socket is to TCP.
#[repr(C)]
pub struct rdma_cm_id {
    /// The device; NULL until the id is bound to one.
    pub verbs: *mut ibv_context,
    /// The event channel.
    pub channel: *mut rdma_event_channel,
    /// Context of the program.
    pub context: *mut c_void,
    /// The QP, if rdma_create_qp() has created one.
    pub qp: *mut ibv_qp,
    /// Addresses and paths.
    pub route: rdma_route,
    /// Port space.
    pub ps: rdma_port_space_t,
    /// Port of the device.
    pub port_num: u8,
    /// Synchronous ids: the event that ended the last call.
    pub event: *mut rdma_cm_event,
    /// Completion channel of send_cq.
    pub send_cq_channel: *mut ibv_comp_channel,
    /// Send CQ, if rdma_create_qp() has created one.
    pub send_cq: *mut ibv_cq,
    /// Completion channel of recv_cq.
    pub recv_cq_channel: *mut ibv_comp_channel,
    /// Receive CQ, if rdma_create_qp() has created one.
    pub recv_cq: *mut ibv_cq,
    /// SRQ, if rdma_create_srq() has created one.
    pub srq: *mut ibv_srq,
    /// Protection domain.
    pub pd: *mut ibv_pd,
    /// QP type of the port space.
    pub qp_type: ibv_qp_type_t,
}

/// Value of responder_resources: the maximum of the device.
pub const RDMA_MAX_RESP_RES: u32 = 0xFF;
/// Value of initiator_depth: the maximum of the device.
pub const RDMA_MAX_INIT_DEPTH: u32 = 0xFF;

/// Parameters of a connection.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_conn_param {
    /// Data for the peer's program.
    pub private_data: *const c_void,
    /// Length of private_data in bytes.
    pub private_data_len: u8,
    /// RDMA reads and atomics that may be outstanding from the peer.
    pub responder_resources: u8,
    /// RDMA reads and atomics that may be outstanding to the peer.
    pub initiator_depth: u8,
    /// Whether hardware flow control is available.
    pub flow_control: u8,
    /// Retransmissions after an error, 0 to 7.
    pub retry_count: u8,
    /// Retransmissions if the peer has posted no receive, 0 to 7; 7 means no limit.
    pub rnr_retry_count: u8,
    /// Whether the QP uses an SRQ; ignored if the id has a QP.
    pub srq: u8,
    /// Number of the QP, 24 bits; ignored if the id has a QP.
    pub qp_num: u32,
}

/// Parameters of a datagram exchange.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_ud_param {
    /// Data from the peer's program.
    pub private_data: *const c_void,
    /// Length of private_data in bytes.
    pub private_data_len: u8,
    /// Address handle attributes of the peer, for ibv_create_ah().
    pub ah_attr: ibv_ah_attr,
    /// The peer's QP number.
    pub qp_num: u32,
    /// The Q_Key to send with.
    pub qkey: u32,
}

/// Parameters of an event, depending on the type of the id or event.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_cm_event_param {
    /// Connected ids.
    pub conn: rdma_conn_param,
    /// Datagram ids and multicast events.
    pub ud: rdma_ud_param,
    /// RDMA_CM_EVENT_USER: the argument of rdma_write_cm_event().
    pub arg: u64,
}

/// An event; rdma_ack_cm_event() frees it.
#[repr(C)]
pub struct rdma_cm_event {
    /// The id of the event.
    pub id: *mut rdma_cm_id,
    /// Connection requests: the listening id; otherwise NULL.
    pub listen_id: *mut rdma_cm_id,
    /// Type of the event.
    pub event: rdma_cm_event_type_t,
    /// 0, a negative errno, or a positive reject reason of the transport.
    pub status: c_int,
    /// Parameters of the event.
    pub param: rdma_cm_event_param,
}

/// The address is for binding and listening.
pub const RAI_PASSIVE: u32 = 0x0000_0001;
/// The node is a numeric address: no name lookup.
pub const RAI_NUMERICHOST: u32 = 0x0000_0002;
/// Do not resolve the route.
pub const RAI_NOROUTE: u32 = 0x0000_0004;
/// ai_family is the address family of the node.
pub const RAI_FAMILY: u32 = 0x0000_0008;
/// Query the subnet administrator.
pub const RAI_SA: u32 = 0x0000_0010;
/// Query the name service.
pub const RAI_DNS: u32 = 0x0000_0020;

/// A result of rdma_getaddrinfo().
#[repr(C)]
pub struct rdma_addrinfo {
    /// RAI_* flags.
    pub ai_flags: c_int,
    /// Address family.
    pub ai_family: c_int,
    /// QP type.
    pub ai_qp_type: c_int,
    /// Port space.
    pub ai_port_space: c_int,
    /// Length of ai_src_addr in bytes.
    pub ai_src_len: socklen_t,
    /// Length of ai_dst_addr in bytes.
    pub ai_dst_len: socklen_t,
    /// Local address.
    pub ai_src_addr: *mut sockaddr,
    /// Remote address.
    pub ai_dst_addr: *mut sockaddr,
    /// Canonical name of the local address.
    pub ai_src_canonname: *mut c_char,
    /// Canonical name of the remote address.
    pub ai_dst_canonname: *mut c_char,
    /// Length of ai_route in bytes.
    pub ai_route_len: size_t,
    /// Route data: an array of struct ibv_path_data.
    pub ai_route: *mut c_void,
    /// Length of ai_connect in bytes.
    pub ai_connect_len: size_t,
    /// Data that precedes the private data when connecting.
    pub ai_connect: *mut c_void,
    /// The next result, or NULL.
    pub ai_next: *mut rdma_addrinfo,
}

/// Which fields of struct rdma_cm_join_mc_attr_ex are set.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum rdma_cm_join_mc_attr_mask {
    /// `addr` is set.
    RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1 << 0,
    /// `join_flags` is set.
    RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 1 << 1,
    /// The first undefined bit.
    RDMA_CM_JOIN_MC_ATTR_RESERVED = 1 << 2,
}

/// Type of membership in a multicast group.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum rdma_cm_mc_join_flags {
    /// The member sends and receives.
    RDMA_MC_JOIN_FLAG_FULLMEMBER,
    /// The member only sends.
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
    /// The first undefined value.
    RDMA_MC_JOIN_FLAG_RESERVED,
}

/// Arguments of rdma_join_multicast_ex().
#[repr(C)]
pub struct rdma_cm_join_mc_attr_ex {
    /// Mask of RDMA_CM_JOIN_MC_ATTR_* for the fields that are set.
    pub comp_mask: u32,
    /// A value of RDMA_MC_JOIN_FLAG_*.
    pub join_flags: u32,
    /// Group address.
    pub addr: *mut sockaddr,
}

/// Option level: the id.
pub const RDMA_OPTION_ID: c_int = 0;
/// Option level: InfiniBand.
pub const RDMA_OPTION_IB: c_int = 1;
/// Type of service (traffic class), uint8_t.
pub const RDMA_OPTION_ID_TOS: c_int = 0;
/// Share the port, int.
pub const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
/// Listen on IPv6 only, int.
pub const RDMA_OPTION_ID_AFONLY: c_int = 2;
/// Local ACK timeout of the QP, uint8_t: 4.096 us * 2^value.
pub const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;
/// Path records, an array of struct ibv_path_data.
pub const RDMA_OPTION_IB_PATH: c_int = 1;
