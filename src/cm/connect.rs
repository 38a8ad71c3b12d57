//! Connecting, listening, accepting, rejecting, disconnecting.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use super::device::Limits;
use super::ece;
use super::endpoint;
use super::event::{ack_cm_event, get_cm_event};
use super::id::{Id, event_result};
use super::params;
use super::qp;
use super::resolve::after_listen;
use crate::diag::probes;
use crate::errno::{Errno, Result};
use crate::ffi::{
    RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param,
    rdma_port_space,
};
use crate::sys::uapi::{rdma_ucm_conn_param, rdma_ucm_ece};
use crate::sys::ucma;
use crate::sys::verbs::{IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP};

/// Reasons of a reject (IBTA 12.6.7.2): by the program, and for an ECE offer that it can't take.
const REASON_CONSUMER: u8 = 0;
const REASON_VENDOR_OPTION: u8 = 35;

/// rdma_connect(3).
///
/// # Safety
/// NULL, or parameters whose private data is readable for its length.
pub unsafe fn connect(id: &Id, param: *const rdma_conn_param) -> Result<()> {
    probes::cm_connect(id.as_c());
    // SAFETY: NULL, or parameters whose private data is readable for its length: guaranteed by the
    // caller.
    let param = unsafe { param.as_ref() };
    let limits = id.state().bound.map(|bound| bound.limits);
    check_resources(id, param, limits)?;
    let (initiator_depth, responder_resources) = {
        let mut state = id.state();
        state.initiator_depth =
            wanted(param.map(|param| param.initiator_depth), limits.map(|limits| limits.initiator_depth));
        state.responder_resources =
            wanted(param.map(|param| param.responder_resources), limits.map(|limits| limits.responder_resources));
        (state.initiator_depth, state.responder_resources)
    };
    let mut kernel = rdma_ucm_conn_param { initiator_depth, responder_resources, ..Default::default() };
    // SAFETY: NULL, or parameters whose private data is readable for its length: guaranteed by the
    // caller.
    unsafe { params::fill(&mut kernel, id, param)? };
    let operation = id.operation();
    ucma::connect(id.fd(), id.handle(), kernel, ece::offer(id))?;
    operation.complete()
}

/// The program's number, or the device's maximum where it asks for that or says nothing.
fn wanted(given: Option<u8>, maximum: Option<u8>) -> u8 {
    match given {
        Some(number) if u32::from(number) != RDMA_MAX_INIT_DEPTH => number,
        _ => maximum.unwrap_or(0),
    }
}

/// `EINVAL` for more than the device can do, and for no parameters where there is no QP to take them from.
fn check_resources(id: &Id, param: Option<&rdma_conn_param>, limits: Option<Limits>) -> Result<()> {
    if id.ps() != rdma_port_space::RDMA_PS_TCP as u32 {
        return Ok(());
    }
    let Some(param) = param else {
        return if id.qp().is_null() { Err(Errno::EINVAL) } else { Ok(()) };
    };
    let over = |number: u8, maximum: u8| u32::from(number) != RDMA_MAX_RESP_RES && number > maximum;
    match limits {
        Some(limits)
            if over(param.responder_resources, limits.responder_resources)
                || over(param.initiator_depth, limits.initiator_depth) =>
        {
            Err(Errno::EINVAL)
        }
        _ => Ok(()),
    }
}

/// The active side's answer to the peer's reply: QP to RTS, then the kernel sends "ready to use".
pub(super) fn complete_response(id: &Id, reply: rdma_ucm_ece) -> Result<()> {
    let done = ece::take_reply(id, reply)
        .and_then(|()| qp::to_rtr(id, None))
        .and_then(|()| qp::to_rts(id, None))
        .and_then(|()| ready_to_use(id));
    if done.is_err() {
        // The failure that counts is the first one.
        let _ = qp::to_error(id);
    }
    done
}

fn ready_to_use(id: &Id) -> Result<()> {
    ucma::accept(id.fd(), id.handle(), 0, rdma_ucm_conn_param::default(), rdma_ucm_ece { vendor_id: 0, attr_mod: 0 })
}

/// rdma_establish(3): completes a connection of an id without a QP. `EINVAL` with one.
pub fn establish(id: &Id) -> Result<()> {
    if !id.qp().is_null() {
        return Err(Errno::EINVAL);
    }
    ready_to_use(id)
}

/// rdma_listen(3).
pub fn listen(id: &Id, backlog: c_int) -> Result<()> {
    ucma::listen(id.fd(), id.handle(), backlog as u32)?;
    after_listen(id)
}

/// rdma_get_request(3): for synchronous listeners, the next connection's id.
///
/// # Safety
/// `id` is writable.
pub unsafe fn get_request(listen: &Id, id: NonNull<*mut rdma_cm_id>) -> Result<()> {
    if !listen.is_sync() {
        return Err(Errno::EINVAL);
    }
    listen.drop_event();
    let channel = NonNull::new(listen.channel()).ok_or(Errno::EINVAL)?;
    let mut event = ptr::null_mut();
    // SAFETY: a synchronous id's channel is its own.
    unsafe { get_cm_event(channel, NonNull::from(&mut event))? };
    // SAFETY: just received; it lives until it is acknowledged.
    let received = unsafe { &*event };
    let request = event_result(received).and_then(|()| {
        if received.event == rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST as u32 {
            // SAFETY: the id of a connection request is new and live.
            unsafe { Id::from_c(received.id) }
        } else {
            Err(Errno::EINVAL)
        }
    });
    let new = match request {
        Ok(new) => new,
        Err(error) => {
            listen.set_event(event);
            return Err(error);
        }
    };
    if let Err(error) = endpoint::equip(listen, new) {
        // SAFETY: the request's id goes with its event; nobody has seen either.
        unsafe { refuse(new, event) };
        return Err(error);
    }
    new.set_event(event);
    // SAFETY: `id` is writable: guaranteed by the caller.
    unsafe { id.write(new.as_c()) };
    Ok(())
}

/// # Safety
/// Nobody has seen the id or the event.
unsafe fn refuse(new: &Id, event: *mut rdma_cm_event) {
    // SAFETY: nobody has seen the id or the event: guaranteed by the caller. A failure to destroy
    // leaves nothing to do: the id is synchronous, and freed.
    unsafe {
        if let Some(event) = NonNull::new(event) {
            let _ = ack_cm_event(event);
        }
        let _ = super::id::destroy_id(new);
    }
}

/// rdma_accept(3).
///
/// # Safety
/// NULL, or parameters whose private data is readable for its length.
pub unsafe fn accept(id: &Id, param: *const rdma_conn_param) -> Result<()> {
    probes::cm_accept(id.as_c());
    // SAFETY: NULL, or parameters whose private data is readable for its length: guaranteed by the
    // caller.
    let param = unsafe { param.as_ref() };
    let limits = id.state().bound.map(|bound| bound.limits);
    check_resources(id, param, limits)?;
    let (initiator_depth, responder_resources) = agree(id, param, limits);
    let mut kernel = rdma_ucm_conn_param { initiator_depth, responder_resources, ..Default::default() };
    // SAFETY: NULL, or parameters whose private data is readable for its length: guaranteed by the
    // caller.
    unsafe { params::fill(&mut kernel, id, param)? };
    let datagrams = id.is_ud();
    if !datagrams {
        qp::to_rtr(id, Some(responder_resources))?;
        qp::to_rts(id, Some(initiator_depth))?;
    }
    let offer = ece::offer(id);
    let operation = id.operation();
    if let Err(error) = ucma::accept(id.fd(), id.handle(), id.uid(), kernel, offer) {
        // The failure that counts is the first one.
        let _ = qp::to_error(id);
        return Err(error);
    }
    if datagrams {
        // Done with its answer: no event follows.
        operation.drop_event();
        return Ok(());
    }
    operation.complete()
}

/// What both ends and the device can do, where the program does not say.
fn agree(id: &Id, param: Option<&rdma_conn_param>, limits: Option<Limits>) -> (u8, u8) {
    let mut state = id.state();
    let least = |peer: u8, device: Option<u8>| device.map_or(peer, |device| peer.min(device));
    state.initiator_depth = match param.map(|param| param.initiator_depth) {
        Some(number) if u32::from(number) != RDMA_MAX_INIT_DEPTH => number,
        _ => least(state.initiator_depth, limits.map(|limits| limits.initiator_depth)),
    };
    state.responder_resources = match param.map(|param| param.responder_resources) {
        Some(number) if u32::from(number) != RDMA_MAX_RESP_RES => number,
        _ => least(state.responder_resources, limits.map(|limits| limits.responder_resources)),
    };
    (state.initiator_depth, state.responder_resources)
}

/// rdma_reject(3).
///
/// # Safety
/// Private data readable for its length.
pub unsafe fn reject(id: &Id, private_data: *const c_void, len: u8) -> Result<()> {
    // SAFETY: private data readable for its length: guaranteed by the caller.
    unsafe { reject_for(id, private_data, len, REASON_CONSUMER) }
}

/// rdma_reject_ece(3): tells the peer that its ECE offer was the reason.
///
/// # Safety
/// Private data readable for its length.
pub unsafe fn reject_ece(id: &Id, private_data: *const c_void, len: u8) -> Result<()> {
    // SAFETY: private data readable for its length: guaranteed by the caller.
    unsafe { reject_for(id, private_data, len, REASON_VENDOR_OPTION) }
}

unsafe fn reject_for(id: &Id, private_data: *const c_void, len: u8, reason: u8) -> Result<()> {
    // SAFETY: private data readable for its length: guaranteed by the caller.
    let data = unsafe { params::private_data(private_data, len) };
    ucma::reject(id.fd(), id.handle(), reason, data)
}

/// rdma_notify(3): of an asynchronous event of the QP.
pub fn notify(id: &Id, event: u32) -> Result<()> {
    ucma::notify(id.fd(), id.handle(), event)
}

/// rdma_disconnect(3): the QP stops, then the peer is told.
pub fn disconnect(id: &Id) -> Result<()> {
    match id.transport() {
        Some(IBV_TRANSPORT_IB) => qp::to_error(id)?,
        Some(IBV_TRANSPORT_IWARP) => qp::to_sqd(id)?,
        _ => return Err(Errno::EINVAL),
    }
    let operation = id.operation();
    ucma::disconnect(id.fd(), id.handle())?;
    operation.complete()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_asked_for() {
        assert_eq!(wanted(Some(3), Some(16)), 3);
        assert_eq!(wanted(Some(0xff), Some(16)), 16);
        assert_eq!(wanted(None, Some(16)), 16);
    }
}
