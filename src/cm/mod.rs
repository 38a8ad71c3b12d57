//! The calls of the connection manager: one function for each `rdma_*` function of C, without the prefix.
//!
//! They take what the C entry points have checked: ids by reference, pointers that may not be NULL as `NonNull`.

mod addrinfo;
mod channel;
mod completed;
mod connect;
mod cq;
mod device;
mod devices;
mod domain;
mod ece;
mod endpoint;
mod event;
mod forks;
mod global;
mod handles;
mod id;
mod library;
pub mod log;
mod lookup;
mod migrate;
mod multicast;
mod option;
mod params;
mod qp;
mod resolve;
mod route;
mod srq;

pub use addrinfo::{GaiError, freeaddrinfo};
pub use channel::{create_another_channel, create_event_channel, destroy_event_channel};
pub use connect::{accept, connect, disconnect, establish, get_request, listen, notify, reject, reject_ece};
pub use device::Limits;
pub use devices::{free_devices, get_devices};
pub use domain::Domain;
pub use ece::{get_remote_ece, set_local_ece};
pub use endpoint::{create_ep, destroy_ep};
pub use event::{Kind as EventKind, ack_cm_event, decode as decode_event, event_str, get_cm_event, write_cm_event};
pub use global::GlobalLock;
pub use id::{Id, create_id, destroy_id, free_id};
pub use lookup::{getaddrinfo, query_addrinfo, resolve_addrinfo};
pub use migrate::{forget_former, migrate_id, move_to_new_file};
pub use multicast::{join_multicast, join_multicast_ex, leave_multicast};
pub use option::{get_dst_port, get_src_port, set_option};
pub use qp::{create_qp, create_qp_ex, destroy_qp, init_qp_attr};
pub use resolve::{bind_addr, resolve_addr, resolve_route, resolve_route_soon};
pub use srq::{create_srq, create_srq_ex, destroy_srq};
