//! Connecting, listening, accepting, rejecting, disconnecting.

use std::ffi::c_int;

use super::device_registry::Limits;
use super::event::{OwnedEvent, ack_cm_event, event_result};
use super::id::Id;
use super::owned_id::{OwnedId, destroy_id};
use super::params::{self, ConnParam};
use super::resolve::update_addresses;
use super::{endpoint, qp};
use crate::diag::probes;
use crate::errno::{Errno, Result};
use crate::ffi::{RDMA_MAX_RESP_RES, rdma_cm_event_type, rdma_port_space};
use crate::os::uapi::{rdma_ucm_conn_param, rdma_ucm_ece};
use crate::ucm;
use crate::verbs::{IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP};

/// Reject reasons (IBTA 12.6.7.2): the program rejects the connection, or the ECE offer.
const REASON_CONSUMER: u8 = 0;
const REASON_VENDOR_OPTION: u8 = 35;

/// Implements rdma_connect(3): sends the connection request.
pub fn connect(id: &Id, param: Option<ConnParam<'_>>) -> Result<()> {
    probes::cm_connect(id.as_c());
    decide(id, param, false)?;
    let operation = id.operation();
    ucm::connect(id.fd(), id.handle(), |body| body.ece = fill(&mut body.conn_param, id, param))?;
    operation.complete()
}

/// Sets the id's RDMA read resources. `has_peer_values` is true if the id holds the peer's values.
/// Fails like [`check_resources`] and [`params::check_length`].
fn decide(id: &Id, param: Option<ConnParam<'_>>, has_peer_values: bool) -> Result<()> {
    let mut state = id.state();
    let limits = state.bound.map(|bound| bound.limits);
    check_resources(id, param, limits)?;
    params::check_length(&state.connect_data, param)?;
    let peer = if has_peer_values { (state.initiator_depth, state.responder_resources) } else { (u8::MAX, u8::MAX) };
    (state.initiator_depth, state.responder_resources) = negotiate(peer, param, limits);
    Ok(())
}

/// Returns the program's values. A value that is missing or [`RDMA_MAX_RESP_RES`] becomes the
/// maximum that both the peer and the device support.
fn negotiate(peer: (u8, u8), param: Option<ConnParam<'_>>, limits: Option<Limits>) -> (u8, u8) {
    let choose = |given: Option<u8>, peer: u8, device: Option<u8>| match given {
        Some(number) if u32::from(number) != RDMA_MAX_RESP_RES => number,
        _ => peer.min(device.unwrap_or(u8::MAX)),
    };
    (
        choose(param.map(|param| param.initiator_depth), peer.0, limits.map(|limits| limits.initiator_depth)),
        choose(param.map(|param| param.responder_resources), peer.1, limits.map(|limits| limits.responder_resources)),
    )
}

/// Fills in the kernel's connection parameters. Returns the vendor options (ECE) to offer.
fn fill(kernel: &mut rdma_ucm_conn_param, id: &Id, param: Option<ConnParam<'_>>) -> rdma_ucm_ece {
    let state = id.state();
    kernel.initiator_depth = state.initiator_depth;
    kernel.responder_resources = state.responder_resources;
    params::fill(kernel, id, &state.connect_data, param);
    state.local_ece
}

/// Checks the parameters of an id in RDMA_PS_TCP. Fails with `EINVAL` if the program asks for more
/// than the device supports, or gives no parameters for an id without a QP.
fn check_resources(id: &Id, param: Option<ConnParam<'_>>, limits: Option<Limits>) -> Result<()> {
    if id.ps() != rdma_port_space::RDMA_PS_TCP as u32 {
        return Ok(());
    }
    let Some(param) = param else {
        return if id.qp().is_null() { Err(Errno::EINVAL) } else { Ok(()) };
    };
    let over = |number: u8, maximum: u8| u32::from(number) != RDMA_MAX_RESP_RES && number > maximum;
    let is_over = limits.is_some_and(|limits| {
        over(param.responder_resources, limits.responder_resources)
            || over(param.initiator_depth, limits.initiator_depth)
    });
    if is_over { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Completes a connection on the active side after the peer's reply: moves the QP to RTS, then
/// makes the kernel send the "ready to use" message. Moves the QP to ERR on failure.
pub(super) fn complete_response(id: &Id, reply: rdma_ucm_ece) -> Result<()> {
    let done = params::take_reply(id, reply)
        .and_then(|()| qp::to_rtr(id, None))
        .and_then(|()| qp::to_rts(id, None))
        .and_then(|()| ready_to_use(id));
    if done.is_err() {
        // Report the first failure, not a later one.
        let _ = qp::to_error(id);
    }
    done
}

fn ready_to_use(id: &Id) -> Result<()> {
    ucm::accept(id.fd(), id.handle(), |_| ())
}

/// Implements rdma_establish(3): completes the connection of an id without a QP.
///
/// # Errors
/// Fails with `EINVAL` if the id has a QP.
pub fn establish(id: &Id) -> Result<()> {
    if !id.qp().is_null() {
        return Err(Errno::EINVAL);
    }
    ready_to_use(id)
}

/// Implements rdma_listen(3).
pub fn listen(id: &Id, backlog: c_int) -> Result<()> {
    // Update the addresses first: once the kernel listens, the id belongs to the thread that gets a
    // connection request.
    let is_bound = c_int::from(id.source().ss_family) != libc::AF_UNSPEC;
    if is_bound {
        update_addresses(id)?;
    }
    ucm::listen(id.fd(), id.handle(), backlog as u32)?;
    // An id that was not bound gets its port only by listening: no peer knows the port yet.
    if is_bound { Ok(()) } else { update_addresses(id) }
}

/// Implements rdma_get_request(3): waits for the next connection request on a synchronous listener.
/// Returns the id of the connection.
///
/// # Errors
/// Fails with `EINVAL` if the listener is not synchronous.
pub fn get_request(listen: &Id) -> Result<OwnedId> {
    if !listen.is_sync() {
        return Err(Errno::EINVAL);
    }
    let event = listen.next_event()?;
    let new = match id_of_request(&event) {
        Ok(new) => new,
        Err(error) => {
            listen.set_event(event.into_c());
            return Err(error);
        }
    };
    if let Err(error) = endpoint::attach_qp(listen, &new) {
        ack_cm_event(event);
        // Destroying the id rejects the request. Ignore errors: a synchronous id is freed in any
        // case.
        let _ = destroy_id(new);
        return Err(error);
    }
    new.set_event(event.into_c());
    Ok(new)
}

/// Returns the id of a connection request. Fails with the error that the event reports, and with
/// `EINVAL` if the event is not a connection request.
fn id_of_request(event: &OwnedEvent) -> Result<OwnedId> {
    let event = event.public();
    event_result(event)?;
    if event.event != rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST as u32 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the id of a connection request is new, and the program does not have it yet.
    unsafe { OwnedId::from_c(event.id) }
}

/// Implements rdma_accept(3): moves the QP to RTS, unless the id is for datagrams, and accepts the
/// request.
pub fn accept(id: &Id, param: Option<ConnParam<'_>>) -> Result<()> {
    probes::cm_accept(id.as_c());
    decide(id, param, true)?;
    let datagrams = id.is_ud();
    if !datagrams {
        let (initiator_depth, responder_resources) = {
            let state = id.state();
            (state.initiator_depth, state.responder_resources)
        };
        qp::to_rtr(id, Some(responder_resources))?;
        qp::to_rts(id, Some(initiator_depth))?;
    }
    let operation = id.operation();
    let accepted = ucm::accept(id.fd(), id.handle(), |body| {
        body.uid = id.uid();
        body.ece = fill(&mut body.conn_param, id, param);
    });
    if let Err(error) = accepted {
        // Report the first failure, not a later one.
        let _ = qp::to_error(id);
        return Err(error);
    }
    if datagrams {
        // Accepting ends the exchange of a datagram id: no event follows.
        operation.drop_event();
        return Ok(());
    }
    operation.complete()
}

/// Implements rdma_reject(3): rejects the connection.
pub fn reject(id: &Id, private_data: &[u8]) -> Result<()> {
    ucm::reject(id.fd(), id.handle(), REASON_CONSUMER, private_data)
}

/// Implements rdma_reject_ece(3): rejects the connection, and gives the peer's ECE offer as the
/// reason.
pub fn reject_ece(id: &Id, private_data: &[u8]) -> Result<()> {
    ucm::reject(id.fd(), id.handle(), REASON_VENDOR_OPTION, private_data)
}

/// Implements rdma_notify(3): reports an asynchronous event of the QP to the kernel.
pub fn notify(id: &Id, event: u32) -> Result<()> {
    ucm::notify(id.fd(), id.handle(), event)
}

/// Implements rdma_disconnect(3): stops the QP, then disconnects from the peer.
///
/// # Errors
/// Fails with `EINVAL` if the id has no device.
pub fn disconnect(id: &Id) -> Result<()> {
    match id.transport() {
        Some(IBV_TRANSPORT_IB) => qp::to_error(id)?,
        Some(IBV_TRANSPORT_IWARP) => qp::to_sqd(id)?,
        _ => return Err(Errno::EINVAL),
    }
    let operation = id.operation();
    ucm::disconnect(id.fd(), id.handle())?;
    operation.complete()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { initiator_depth: 16, responder_resources: 8, work_requests: 0, completions: 0 };

    fn id(ps: rdma_port_space) -> Id {
        Id::new(std::ptr::null_mut(), ps as u32, 0)
    }

    fn param(initiator_depth: u8, responder_resources: u8) -> Option<ConnParam<'static>> {
        Some(ConnParam { initiator_depth, responder_resources, ..ConnParam::default() })
    }

    #[test]
    fn more_than_the_device_supports_is_rejected() {
        let tcp = id(rdma_port_space::RDMA_PS_TCP);
        for (depth, resources, result) in [
            (16, 8, Ok(())),
            (17, 8, Err(Errno::EINVAL)),
            (16, 9, Err(Errno::EINVAL)),
            (0xfe, 0, Err(Errno::EINVAL)),
            (0xff, 0xff, Ok(())),
        ] {
            assert_eq!(check_resources(&tcp, param(depth, resources), Some(LIMITS)), result, "{depth} {resources}");
            assert_eq!(check_resources(&tcp, param(depth, resources), None), Ok(()), "no device yet");
            let udp = id(rdma_port_space::RDMA_PS_UDP);
            assert_eq!(check_resources(&udp, param(depth, resources), Some(LIMITS)), Ok(()));
        }
        assert_eq!(check_resources(&tcp, None, Some(LIMITS)), Err(Errno::EINVAL), "no QP, no parameters");
        tcp.set_qp(std::ptr::without_provenance_mut(8));
        assert_eq!(check_resources(&tcp, None, Some(LIMITS)), Ok(()));
    }

    #[test]
    fn resources_that_both_sides_support() {
        for (peer, given, negotiated) in [
            ((20, 20), None, (16, 8)),
            ((3, 2), None, (3, 2)),
            ((20, 2), param(0xff, 0xff), (16, 2)),
            // The program's values are used even if the peer supports less.
            ((3, 2), param(5, 0), (5, 0)),
            // The peer's values are not known.
            ((0xff, 0xff), param(3, 0xff), (3, 8)),
        ] {
            assert_eq!(negotiate(peer, given, Some(LIMITS)), negotiated);
        }
    }
}
