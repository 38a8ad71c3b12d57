//! The calls of the connection manager: one function for each `rdma_*` function of C, without the
//! prefix.
//!
//! The functions take values that the C entry points have checked: references, and handles such as
//! [`OwnedId`], [`EventChannel`] and [`Pd`], whose `from_c` states the contract of the C pointer.

mod addrinfo;
mod channel;
mod connect;
mod device_registry;
mod endpoint;
mod event;
mod global;
mod id;
mod library;
pub mod log;
mod lookup;
mod multicast;
mod objects;
mod option;
mod owned_id;
mod params;
mod qp;
mod resolve;

pub use addrinfo::{GaiError, Hints, list::List as AddrInfoList};
pub use channel::{
    EventChannel, OwnedChannel, create_another_channel, create_event_channel, forget_former, migrate_id,
    move_to_new_file,
};
pub use connect::{accept, connect, disconnect, establish, get_request, listen, notify, reject, reject_ece};
pub use device_registry::{DeviceContexts, Limits, get_devices};
pub use endpoint::{EndpointInfo, create_ep, destroy_ep};
pub use event::{OwnedEvent, ack_cm_event, decode as decode_event, event_str, get_cm_event, write_cm_event};
pub use global::{GlobalLock, register as register_fork_handlers};
pub use id::Id;
pub use lookup::{getaddrinfo, query_addrinfo, resolve_addrinfo};
pub use multicast::{JoinAttr, join_multicast, join_multicast_ex, leave_multicast};
pub use objects::{InitAttr, Pd};
pub use option::{get_dst_port, get_src_port, set_option};
pub use owned_id::{OwnedId, create_id, destroy_id, free_id};
pub use params::{ConnParam, get_remote_ece, set_local_ece};
pub use qp::{Domain, create_qp, create_qp_ex, create_srq, create_srq_ex, destroy_qp, destroy_srq, init_qp_attr};
pub use resolve::{bind_addr, defer_devices, open_request_device, resolve_addr, resolve_route};
