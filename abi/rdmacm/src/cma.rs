//! `rdma/rdma_cma.h`, in the order of the header.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use libc::{size_t, sockaddr};
use rdmacm_core::acm::ANSWER_TIMEOUT;
use rdmacm_core::cm::{
    self, AddrInfoList, DeviceContexts, EventChannel, GaiError, Id, InitAttr, OwnedChannel, OwnedEvent, OwnedId, Pd,
};
use rdmacm_core::ffi::{
    __be16, ibv_context, ibv_ece, ibv_event_type_t, ibv_pd, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    rdma_addrinfo, rdma_cm_event, rdma_cm_event_type_t, rdma_cm_id, rdma_cm_join_mc_attr_ex, rdma_conn_param,
    rdma_event_channel, rdma_port_space_t,
};
use rdmacm_core::os::sockaddr::SockAddr;
use rdmacm_core::{Errno, diag};

use crate::args::{self, bytes, inout, put, string};
use crate::report::{Call, WHOLE, report};
use crate::{for_id, free, pointer, quick_for_id, quick_status, status};

// Event channels and events, devices.

/// Creates an event channel, which reports the events of the ids created with it.
///
/// Returns NULL and errno on failure: ENODEV without RDMA devices, EPERM if the library does not
/// support the kernel's interface version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(Call::new("rdma_create_event_channel"), || Ok(cm::create_event_channel()?.into_c()))
}

/// Destroys an event channel. Its ids must have been destroyed or migrated, and its events
/// acknowledged. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: `channel` is NULL, or live and used by no id or call any more (crate documentation).
    free("rdma_destroy_event_channel", || unsafe { OwnedChannel::from_c(channel) });
}

/// Returns the next event of a channel. Waits for one, or fails with EAGAIN if the channel's
/// descriptor is O_NONBLOCK.
///
/// Every event must be acknowledged with rdma_ack_cm_event(). Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int {
    // SAFETY: `channel` is NULL or live, and `event` is NULL or writable (crate documentation).
    quick_status(Call::new("rdma_get_cm_event"), || unsafe {
        let channel = EventChannel::from_c(channel).ok_or(Errno::EINVAL)?;
        put(event, || Ok(cm::get_cm_event(channel)?.into_c()))
    })
}

/// Acknowledges and frees an event with its private data.
///
/// rdma_destroy_id(), rdma_leave_multicast() and rdma_migrate_id() wait until the events of the id
/// are acknowledged. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    quick_status(Call::new("rdma_ack_cm_event"), || {
        // SAFETY: `event` is NULL, or live and not used after this call (crate documentation).
        unsafe { OwnedEvent::from_c(event) }.map(cm::ack_cm_event)
    })
}

/// Returns the name of an event, such as "RDMA_CM_EVENT_ESTABLISHED", or "UNKNOWN EVENT".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_event_str(event: rdma_cm_event_type_t) -> *const c_char {
    cm::event_str(event).as_ptr()
}

/// Opens the RDMA devices. Returns a NULL-terminated array of their contexts.
///
/// The devices stay open until rdma_free_devices() is called. num_devices, unless NULL, receives
/// the number of contexts. Returns NULL and errno on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    pointer(Call::new("rdma_get_devices"), || {
        let devices = cm::get_devices();
        if let Some(count) = NonNull::new(num_devices) {
            // SAFETY: `num_devices` is not NULL here, so it is writable (crate documentation).
            unsafe { count.write(devices.as_ref().map_or(0, DeviceContexts::count) as c_int) };
        }
        Ok(devices?.into_c())
    })
}

/// Frees an array that rdma_get_devices() returned. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: `list` is NULL, or live and not used after this call (crate documentation).
    free("rdma_free_devices", || unsafe { DeviceContexts::from_c(list) });
}

// Ids and endpoints, their options and attributes.

/// Creates an id, the counterpart of a socket.
///
/// channel: reports the events of the id. NULL makes the id synchronous: each call waits until its
/// operation is done. context: stored in id->context. ps: RDMA_PS_*. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space_t,
) -> c_int {
    // SAFETY: `channel` is NULL or live, and `id` is NULL or writable (crate documentation).
    // `context` is only stored.
    quick_status(Call::new("rdma_create_id"), || unsafe {
        put(id, || Ok(cm::create_id(EventChannel::from_c(channel), context, ps)?.into_c()))
    })
}

/// Creates a synchronous id from a result of rdma_getaddrinfo(): bound (RAI_PASSIVE), or with
/// address and route resolved.
///
/// pd, qp_init_attr: NULL, or PD and attributes of the QP. This call creates the QP of an active
/// id; rdma_get_request() creates the QPs of the ids that a passive id receives. Returns 0, or -1
/// and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: `id` is NULL or writable. `res`, `pd` and `qp_init_attr` are NULL, or live with
    // everything that they point to (crate documentation).
    status(Call::new("rdma_create_ep"), || unsafe {
        let (info, pd, attr) = (args::endpoint_info(res)?, Pd::from_c(pd), InitAttr::from_c(qp_init_attr).ok());
        put(id, || Ok(cm::create_ep(&info, pd, attr)?.into_c()))
    })
}

/// Destroys an id with its QP and SRQ.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: `id` is NULL, or live and not used after this call (crate documentation).
    report(Call::gone("rdma_destroy_ep", id), (), || unsafe {
        cm::destroy_ep(OwnedId::from_c(id)?);
        Ok(())
    });
}

/// Destroys an id. Its QP must have been destroyed. Waits until all its events are acknowledged.
///
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: `id` is NULL, or live and not used after its destruction (crate documentation).
    quick_status(Call::gone("rdma_destroy_id", id), || cm::destroy_id(unsafe { OwnedId::from_c(id) }?))
}

/// Moves an id with its unread events to another channel. A NULL channel makes the id synchronous.
///
/// Waits until all events of the id are acknowledged. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: `id` and `channel` are NULL or live (crate documentation).
    unsafe { for_id("rdma_migrate_id", id, |id| cm::migrate_id(id, EventChannel::from_c(channel))) }
}

/// Sets an option of an id.
///
/// level: RDMA_OPTION_ID or RDMA_OPTION_IB; optname: an option of this level; optval: the value, of
/// optlen bytes. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: size_t,
) -> c_int {
    let value = ptr::slice_from_raw_parts(optval.cast(), optlen);
    // SAFETY: `id` is NULL or live (crate documentation). Only the kernel reads `optval`.
    unsafe { quick_for_id("rdma_set_option", id, |id| cm::set_option(id, level, optname, value)) }
}

/// Returns the local port number of an id in network byte order; 0 if it is not bound.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: `id` is NULL or live (crate documentation).
    report(Call::id("rdma_get_src_port", id), 0, || Ok(cm::get_src_port(unsafe { Id::from_c(id) }?)))
}

/// Returns the remote port number of an id in network byte order; 0 if it has no peer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: `id` is NULL or live (crate documentation).
    report(Call::id("rdma_get_dst_port", id), 0, || Ok(cm::get_dst_port(unsafe { Id::from_c(id) }?)))
}

/// Returns the attributes for the transition of the QP of an id to the state qp_attr->qp_state, for
/// programs that create QPs themselves.
///
/// qp_attr and qp_attr_mask: arguments for ibv_modify_qp(). Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    // SAFETY: `id` is NULL or live, `qp_attr` is NULL or a structure that nothing else uses, and
    // `qp_attr_mask` is NULL or writable (crate documentation).
    unsafe {
        quick_for_id("rdma_init_qp_attr", id, |id| {
            let attr = inout(qp_attr)?;
            put(qp_attr_mask, || cm::init_qp_attr(id, attr))
        })
    }
}

/// Reports an asynchronous event of the id's QP, usually IBV_EVENT_COMM_EST, to the connection
/// manager.
///
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type_t) -> c_int {
    // SAFETY: `id` is NULL or live (crate documentation).
    unsafe { quick_for_id("rdma_notify", id, |id| cm::notify(id, event)) }
}

/// Sets the enhanced connection establishment options to send to the peer, for programs that create
/// QPs themselves.
///
/// Returns 0, or -1 and errno: EINVAL if the id has a QP, the vendor id is 0, or comp_mask is not
/// 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: `id` is NULL or live, `ece` NULL or used by nothing else (crate documentation).
    unsafe { for_id("rdma_set_local_ece", id, |id| cm::set_local_ece(id, inout(ece)?)) }
}

/// Returns the enhanced connection establishment options that the peer has sent, for programs that
/// create QPs themselves.
///
/// Returns 0, or -1 and errno: EINVAL if the id has a QP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: `id` is NULL or live, and `ece` is NULL or writable (crate documentation).
    unsafe { for_id("rdma_get_remote_ece", id, |id| put(ece, || cm::get_remote_ece(id))) }
}

/// Queues an event of the program on the id's channel.
///
/// event: RDMA_CM_EVENT_USER; status and arg: the event's status and param.arg. Returns 0, or -1
/// and errno; EINVAL for other events and on kernels without user events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type_t,
    status: c_int,
    arg: u64,
) -> c_int {
    // SAFETY: `id` is NULL or live (crate documentation).
    unsafe { for_id("rdma_write_cm_event", id, |id| cm::write_cm_event(id, event, status, arg)) }
}

// Addresses, routes, connections.

/// Binds an id to a local address, and to the address's device unless the address is a wildcard.
///
/// Port 0 stands for any free port. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: `id` is NULL or live, `addr` NULL or complete for its family (crate documentation).
    unsafe {
        let call = Call::id("rdma_bind_addr", id).with(addr, WHOLE);
        quick_status(call, || cm::bind_addr(Id::from_c(id)?, &args::address(addr)?))
    }
}

/// Resolves a remote address: finds the device, and the transport's addresses of both ends.
///
/// src_addr: local address to use, or NULL. timeout_ms: in milliseconds. Ends in
/// RDMA_CM_EVENT_ADDR_RESOLVED or RDMA_CM_EVENT_ADDR_ERROR. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: `dst_addr` is NULL or complete for its family (crate documentation).
    quick_status(unsafe { Call::id("rdma_resolve_addr", id).with(dst_addr, WHOLE) }, || {
        // SAFETY: `id` is NULL or live, and `src_addr` and `dst_addr` are NULL or complete for
        // their families (crate documentation).
        let (id, src, dst) = unsafe { (Id::from_c(id)?, SockAddr::from_nullable(src_addr)?, args::address(dst_addr)?) };
        cm::resolve_addr(id, src.as_ref(), &dst, timeout_ms)
    })
}

/// Resolves the route to the address that rdma_resolve_addr() has resolved.
///
/// timeout_ms: in milliseconds. Ends in RDMA_CM_EVENT_ROUTE_RESOLVED or RDMA_CM_EVENT_ROUTE_ERROR.
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    // SAFETY: `id` is NULL or live (crate documentation).
    unsafe { quick_for_id("rdma_resolve_route", id, |id| cm::resolve_route(id, timeout_ms, ANSWER_TIMEOUT)) }
}

/// Requests a connection, or for datagrams the number and Q_Key of the peer's QP. The route must be
/// resolved.
///
/// conn_param: NULL stands for the device's maximum of RDMA reads and 7 retries; an RDMA_PS_TCP id
/// then needs a QP. Ends in RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED,
/// RDMA_CM_EVENT_UNREACHABLE or RDMA_CM_EVENT_CONNECT_ERROR; without a QP on the id,
/// RDMA_CM_EVENT_CONNECT_RESPONSE comes first. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    // SAFETY: `id` is NULL or live, and `conn_param` is NULL or a structure whose private data is
    // readable for its length (crate documentation).
    unsafe { quick_for_id("rdma_connect", id, |id| cm::connect(id, args::conn_param(conn_param))) }
}

/// Completes a connection after RDMA_CM_EVENT_CONNECT_RESPONSE, for programs that create QPs
/// themselves. The QP must be in the state RTS. Returns 0, or -1 and errno: EINVAL when the id has
/// a QP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: `id` is NULL or live (crate documentation).
    unsafe { quick_for_id("rdma_establish", id, cm::establish) }
}

/// Listens for connection requests on the address to which the id is bound.
///
/// backlog: maximum number of pending requests. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: `id` is NULL or live (crate documentation).
    unsafe { quick_for_id("rdma_listen", id, |id| cm::listen(id, backlog)) }
}

/// Waits for the next connection request on a synchronous listening id.
///
/// id: receives a new synchronous id, to be accepted or rejected. It has a QP if the listener was
/// created by rdma_create_ep() with QP attributes. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: `listen` is NULL or live, and `id` is NULL or writable (crate documentation).
    unsafe { for_id("rdma_get_request", listen, |listen| put(id, || Ok(cm::get_request(listen)?.into_c()))) }
}

/// Accepts a connection request.
///
/// id: the id of the request, not the listener. conn_param: NULL stands for the maximum values that
/// both sides support. Ends in RDMA_CM_EVENT_ESTABLISHED or an error event; for datagrams, no event
/// follows. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    // SAFETY: `id` is NULL or live, and `conn_param` is NULL or a structure whose private data is
    // readable for its length (crate documentation).
    unsafe { for_id("rdma_accept", id, |id| cm::accept(id, args::conn_param(conn_param))) }
}

/// Rejects a connection request. The peer gets RDMA_CM_EVENT_REJECTED with private_data_len bytes
/// of private_data.
///
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int {
    // SAFETY: `id` is NULL or live, and `private_data` is NULL or readable for `private_data_len`
    // bytes (crate documentation).
    unsafe { quick_for_id("rdma_reject", id, |id| cm::reject(id, bytes(private_data, private_data_len.into()))) }
}

/// Like rdma_reject(), with the reason that the enhanced connection establishment options are not
/// acceptable.
///
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: `id` is NULL or live, and `private_data` is NULL or readable for `private_data_len`
    // bytes (crate documentation).
    unsafe {
        quick_for_id("rdma_reject_ece", id, |id| cm::reject_ece(id, bytes(private_data, private_data_len.into())))
    }
}

/// Ends a connection: the QP moves to the error state, posted work requests are flushed, and both
/// sides get RDMA_CM_EVENT_DISCONNECTED.
///
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: `id` is NULL or live (crate documentation).
    unsafe { quick_for_id("rdma_disconnect", id, cm::disconnect) }
}

// Queue pairs, and multicast groups to which queue pairs are attached.

/// Creates the QP of an id that is bound to a device. A connected QP is in the state INIT, so that
/// receives can be posted; rdma_connect() and rdma_accept() change the state. A UD QP is in RTS.
///
/// pd: NULL for the library's PD, which the ids of the device share. CQs that qp_init_attr lacks
/// are created with completion channels, and stored in the id. qp_init_attr->cap receives the
/// actual capabilities. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: `id` and `pd` are NULL or live, and `qp_init_attr` is NULL or a structure that
    // nothing else uses and whose objects are live (crate documentation).
    unsafe {
        for_id("rdma_create_qp", id, |id| cm::create_qp(id, Pd::from_c(pd), &mut InitAttr::from_c(qp_init_attr)?))
    }
}

/// Like rdma_create_qp(), with the extended attributes of ibv_create_qp_ex(). Returns 0, or -1 and
/// errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> c_int {
    // SAFETY: `id` is NULL or live, and `qp_init_attr` is NULL or a structure that nothing else
    // uses and whose objects are live (crate documentation).
    unsafe { for_id("rdma_create_qp_ex", id, |id| cm::create_qp_ex(id, &mut InitAttr::from_c(qp_init_attr)?)) }
}

/// Destroys the QP of an id, and the CQs and completion channels that the library created for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    report(Call::id("rdma_destroy_qp", id), (), || {
        // SAFETY: `id` is NULL or live (crate documentation).
        cm::destroy_qp(unsafe { Id::from_c(id) }?);
        Ok(())
    });
}

/// Joins a multicast group to send and receive, and attaches the id's QP, if any, to it.
///
/// context: param.ud.private_data of the group's events. Ends in
/// RDMA_CM_EVENT_MULTICAST_JOIN or RDMA_CM_EVENT_MULTICAST_ERROR. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int {
    // SAFETY: `id` is NULL or live, `addr` NULL or complete for its family (crate documentation).
    unsafe { for_id("rdma_join_multicast", id, |id| cm::join_multicast(id, &args::address(addr)?, context)) }
}

/// Leaves a multicast group; waits until the events of the membership are acknowledged.
///
/// Returns 0, or -1 and errno: EADDRNOTAVAIL when the id is not a member.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: `id` is NULL or live, `addr` NULL or complete for its family (crate documentation).
    unsafe { for_id("rdma_leave_multicast", id, |id| cm::leave_multicast(id, &args::address(addr)?)) }
}

/// Like rdma_join_multicast(), with a choice of membership: mc_join_attr->join_flags,
/// RDMA_MC_JOIN_FLAG_*.
///
/// Returns 0, or -1 and errno: ENOTSUP for unknown bits of comp_mask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    // SAFETY: `id` is NULL or live, and `mc_join_attr` is NULL or a structure whose address, if
    // set, is complete for its family (crate documentation).
    unsafe {
        for_id("rdma_join_multicast_ex", id, |id| cm::join_multicast_ex(id, args::join_attr(mc_join_attr)?, context))
    }
}

// Names and services.

/// Looks up addresses, and routes where an ibacm service knows them, for a host and a service.
///
/// node: host name or address; service: service name or port number; hints: as for getaddrinfo(3).
/// At least one of these three is not NULL. res: receives a list for rdma_freeaddrinfo(). Returns
/// 0; -1 and errno; or an EAI_* code of getaddrinfo(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    // The value to return if the call fails with errno set.
    let mut failed = -1;
    // SAFETY: `node` and `service` are NULL or C strings, `hints` is NULL or live with what it
    // points to, and `res` is NULL or writable (crate documentation).
    let result = report(Call::new("rdma_getaddrinfo"), None, || unsafe {
        let res = NonNull::new(res).ok_or(Errno::EINVAL)?;
        match cm::getaddrinfo(string(node), string(service), args::hints(hints).as_ref()) {
            Ok(list) => {
                res.write(list.into_c());
                Ok(Some(0))
            }
            Err(GaiError::Gai(libc::EAI_SYSTEM)) => {
                failed = libc::EAI_SYSTEM;
                Err(Errno::last())
            }
            Err(GaiError::Gai(code)) => {
                diag::not_found("rdma_getaddrinfo", code);
                Ok(Some(code))
            }
            Err(GaiError::Errno(errno)) => Err(errno),
        }
    });
    result.unwrap_or(failed)
}

/// Frees a list that rdma_getaddrinfo() or rdma_query_addrinfo() returned. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    // SAFETY: `res` is NULL, or live and not used after this call (crate documentation).
    free("rdma_freeaddrinfo", || unsafe { AddrInfoList::from_c(res) });
}

/// Like rdma_getaddrinfo(), but in the background. Ends in RDMA_CM_EVENT_ADDRINFO_RESOLVED or
/// RDMA_CM_EVENT_ADDRINFO_ERROR.
///
/// hints->ai_flags: RAI_SA queries the subnet administrator for a service, and needs a NULL node;
/// without RAI_SA, the name service is queried. Returns 0, or -1 and errno: EBUSY until
/// rdma_query_addrinfo() has returned the last result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: `id` is NULL or live, `node` and `service` are NULL or C strings, and `hints` is NULL
    // or live with what it points to (crate documentation).
    unsafe {
        for_id("rdma_resolve_addrinfo", id, |id| {
            cm::resolve_addrinfo(id, string(node), string(service), args::hints(hints).as_ref())
        })
    }
}

/// Returns the result of rdma_resolve_addrinfo(). Each result is returned only once.
///
/// info: receives a list for rdma_freeaddrinfo(). Returns 0, or -1 and errno: ENOENT if there is no
/// result, or if the result was returned before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    // SAFETY: `id` is NULL or live, and `info` is NULL or writable (crate documentation).
    unsafe { for_id("rdma_query_addrinfo", id, |id| put(info, || Ok(cm::query_addrinfo(id)?.into_c()))) }
}
