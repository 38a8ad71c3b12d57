//! The libibverbs objects of ids: QPs with their state changes, shared receive queues (SRQs), the
//! CQs and completion channels that the library creates if the program provides none, and the PDs
//! of connections.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::{self, NonNull};

use super::device_registry::{self, Bound, Limits};
use super::id::Id;
use super::library::library;
use super::objects::{InitAttr, Pd, Qp};
use super::{log, multicast, params};
use crate::diag::Cause;
use crate::errno::{Errno, Result};
use crate::ffi::{RDMA_MAX_RESP_RES, RDMA_UDP_QKEY};
use crate::ucm;
use crate::verbs::{
    self, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD, IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD,
    IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_BASIC, IBV_SRQT_XRC, ibv_comp_channel, ibv_context,
    ibv_cq, ibv_pd, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_state, ibv_qp_type,
    ibv_srq_init_attr, ibv_srq_init_attr_ex,
};

/// Bits 21 to 24 of the attribute mask, which have no meaning in the kernel's answer for InfiniBand
/// ports.
const STRAY_BITS: c_int = 0xf << 21;

/// Implements rdma_create_qp(3). Writes the capacities that the device granted, and the QP's CQs
/// and SRQ, back to `attr`.
pub fn create_qp(id: &Id, pd: Option<Pd>, attr: &mut InitAttr<'_, ibv_qp_init_attr>) -> Result<()> {
    let given = attr.get();
    // SAFETY: all zeros are a value of this structure.
    let mut extended: ibv_qp_init_attr_ex = unsafe { zeroed() };
    extended.qp_context = given.qp_context;
    extended.send_cq = given.send_cq;
    extended.recv_cq = given.recv_cq;
    extended.srq = given.srq;
    extended.cap = given.cap;
    extended.qp_type = given.qp_type;
    extended.sq_sig_all = given.sq_sig_all;
    extended.comp_mask = IBV_QP_INIT_ATTR_PD;
    extended.pd = pd.map_or(id.pd(), Pd::as_c);
    // SAFETY: the PD is live, and the CQs and the SRQ are from an `InitAttr`.
    create_qp_ex(id, &mut unsafe { InitAttr::new(&mut extended) })?;
    given.send_cq = extended.send_cq;
    given.recv_cq = extended.recv_cq;
    given.srq = extended.srq;
    given.cap = extended.cap;
    Ok(())
}

/// Implements rdma_create_qp_ex(3).
///
/// # Errors
/// Fails with `EINVAL` if the id has a QP or no device, or if the program's objects do not fit the
/// id.
pub fn create_qp_ex(id: &Id, attributes: &mut InitAttr<'_, ibv_qp_init_attr_ex>) -> Result<()> {
    let attr = attributes.get();
    if !id.qp().is_null() {
        return Err(Errno::EINVAL);
    }
    id.device_context()?;
    // SAFETY: the PD in an `InitAttr` is live.
    let given =
        unsafe { Pd::from_c(if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 { ptr::null_mut() } else { attr.pd }) };
    if !fits(id, given, attr) {
        return Err(Errno::EINVAL);
    }
    if given.is_none() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = id.pd();
    }
    if attr.qp_type == ibv_qp_type::IBV_QPT_XRC_RECV
        && (attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null())
    {
        let bound = id.state().bound.ok_or(Errno::EINVAL)?;
        attr.xrcd = device_registry::xrcd(&bound).map_err(|_| Errno::EINVAL)?.as_ptr();
        attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
    }
    create_with_cqs(id, attributes)
}

/// Returns whether the program's PD, if any, is on the id's device, and no CQ of the program
/// differs from a CQ that the id already has.
fn fits(id: &Id, pd: Option<Pd>, attr: &ibv_qp_init_attr_ex) -> bool {
    let differs =
        |own: *mut verbs::ibv_cq, given: *mut verbs::ibv_cq| !own.is_null() && !given.is_null() && own != given;
    pd.is_none_or(|pd| pd.context() == id.verbs())
        && !differs(id.send_cq(), attr.send_cq)
        && !differs(id.recv_cq(), attr.recv_cq)
}

/// Completes [`create_qp_ex`] once `attributes` has a PD and an XRC domain: adds the CQs and the
/// SRQ, and creates the QP.
fn create_with_cqs(id: &Id, attributes: &mut InitAttr<'_, ibv_qp_init_attr_ex>) -> Result<()> {
    let attr = attributes.get();
    let given = (attr.send_cq, attr.recv_cq, attr.srq);
    let send = if attr.send_cq.is_null() { attr.cap.max_send_wr } else { 0 };
    let recv = if attr.recv_cq.is_null() { attr.cap.max_recv_wr } else { 0 };
    let created = create_missing_cqs(id, send, recv)?;
    if attr.send_cq.is_null() {
        attr.send_cq = id.send_cq();
    }
    if attr.recv_cq.is_null() {
        attr.recv_cq = id.recv_cq();
    }
    if attr.srq.is_null() {
        attr.srq = id.srq();
    }
    // libibverbs would dereference the NULL of a missing CQ.
    let qp = if lacks_cq(attr) { Err(Errno::EINVAL) } else { create_started(id, attributes) };
    let qp = qp.inspect_err(|_| {
        destroy_cqs(id, created);
        // Restore the program's structure: it must not refer to the destroyed CQs.
        let attr = attributes.get();
        (attr.send_cq, attr.recv_cq, attr.srq) = given;
    })?;
    id.set_pd(qp.pd());
    id.set_qp(qp.as_c());
    Ok(())
}

/// Creates a QP and moves it to its first state ([`start`]).
fn create_started(id: &Id, attributes: &mut InitAttr<'_, ibv_qp_init_attr_ex>) -> Result<Qp> {
    // SAFETY: the registry keeps the device of an id open, and the objects in an `InitAttr` are
    // live.
    let qp = unsafe { Qp::new(verbs::create_qp_ex(id.device_context()?, attributes.get())?) };
    if let Err(error) = start(id, &qp) {
        qp.destroy();
        return Err(error);
    }
    Ok(qp)
}

/// Returns whether a CQ that the QP's type needs is missing. XRC senders do not receive, and the
/// completions of XRC receivers go to the CQs of SRQs.
fn lacks_cq(attr: &ibv_qp_init_attr_ex) -> bool {
    let receives = attr.qp_type != ibv_qp_type::IBV_QPT_XRC_SEND && attr.qp_type != ibv_qp_type::IBV_QPT_XRC_RECV;
    let sends = attr.qp_type != ibv_qp_type::IBV_QPT_XRC_RECV;
    (sends && attr.send_cq.is_null()) || (receives && attr.recv_cq.is_null())
}

/// Negotiates the ECE options of a new QP, and moves the QP to INIT, or to RTS for datagrams.
fn start(id: &Id, qp: &Qp) -> Result<()> {
    params::of_new_qp(id, qp)?;
    if id.is_ud() { start_datagrams(id, qp) } else { to_first_state(id, qp, ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS) }
}

/// Moves the QP to INIT. `extra` is passed to [`init_attributes`].
fn to_first_state(id: &Id, qp: &Qp, extra: ibv_qp_attr_mask) -> Result<()> {
    // With ABI 3, the kernel provides no attributes for INIT before a connection is in progress.
    if library()?.node.abi != 3 {
        return to_init(id, qp);
    }
    // SAFETY: the registry keeps the device of an id open.
    let pkey_index = unsafe { verbs::pkey_index(id.device_context()?, id.port_num(), id.pkey()) };
    let (mut attr, mask) = init_attributes(id.port_num(), pkey_index.map_err(|_| Errno::EINVAL)?, extra);
    qp.modify(&mut attr, mask)
}

fn to_init(id: &Id, qp: &Qp) -> Result<()> {
    let mut attr = state_only(ibv_qp_state::IBV_QPS_INIT);
    let mask = init_qp_attr(id, &mut attr)?;
    qp.modify(&mut attr, mask)
}

fn start_datagrams(id: &Id, qp: &Qp) -> Result<()> {
    to_first_state(id, qp, ibv_qp_attr_mask::IBV_QP_QKEY)?;
    for (state, mask) in after_init_of_datagrams() {
        qp.modify(&mut state_only(state), mask.0 as c_int)?;
    }
    Ok(())
}

/// Returns the states of a datagram QP after INIT, with the attribute masks of the transitions.
fn after_init_of_datagrams() -> [(u32, ibv_qp_attr_mask); 2] {
    let state = ibv_qp_attr_mask::IBV_QP_STATE;
    [(ibv_qp_state::IBV_QPS_RTR, state), (ibv_qp_state::IBV_QPS_RTS, state | ibv_qp_attr_mask::IBV_QP_SQ_PSN)]
}

/// Returns the attributes for INIT, for kernels that do not provide them. `extra` is the attribute
/// that depends on the QP type.
fn init_attributes(port_num: u8, pkey_index: u16, extra: ibv_qp_attr_mask) -> (ibv_qp_attr, c_int) {
    let attr = ibv_qp_attr { pkey_index, port_num, qkey: RDMA_UDP_QKEY, ..state_only(ibv_qp_state::IBV_QPS_INIT) };
    let mask =
        ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX | ibv_qp_attr_mask::IBV_QP_PORT | extra;
    (attr, mask.0 as c_int)
}

/// Moves the QP, if there is one, to RTR. `responder_resources` replaces the kernel's value, unless
/// `responder_resources` is `None` or [`RDMA_MAX_RESP_RES`].
pub(super) fn to_rtr(id: &Id, responder_resources: Option<u8>) -> Result<()> {
    let Some(qp) = id.own_qp() else { return Ok(()) };
    // Repeat the transition to INIT: the kernel's attributes for INIT may have changed since the QP
    // was created.
    to_init(id, &qp)?;
    let mut attr = state_only(ibv_qp_state::IBV_QPS_RTR);
    let mut mask = init_qp_attr(id, &mut attr)?;
    let bound = id.state().bound.ok_or(Errno::EINVAL)?;
    if device_registry::is_infiniband(&bound, id.port_num())? {
        mask &= !STRAY_BITS;
    }
    if let Some(number) = definite(responder_resources) {
        attr.max_dest_rd_atomic = number;
    }
    qp.modify(&mut attr, mask)
}

/// Moves the QP, if there is one, to RTS. `initiator_depth` replaces the kernel's value under the
/// conditions of [`to_rtr`].
pub(super) fn to_rts(id: &Id, initiator_depth: Option<u8>) -> Result<()> {
    let Some(qp) = id.own_qp() else { return Ok(()) };
    let mut attr = state_only(ibv_qp_state::IBV_QPS_RTS);
    let mask = init_qp_attr(id, &mut attr)?;
    if let Some(number) = definite(initiator_depth) {
        attr.max_rd_atomic = number;
    }
    qp.modify(&mut attr, mask)
}

fn definite(number: Option<u8>) -> Option<u8> {
    number.filter(|&number| u32::from(number) != RDMA_MAX_RESP_RES)
}

/// Moves the QP, if there is one, to ERR: all queued work requests complete with an error.
pub(super) fn to_error(id: &Id) -> Result<()> {
    to_bare_state(id, ibv_qp_state::IBV_QPS_ERR)
}

/// Moves the QP, if there is one, to SQD. An iWARP QP then drains its send queue before it is
/// closed.
pub(super) fn to_sqd(id: &Id) -> Result<()> {
    to_bare_state(id, ibv_qp_state::IBV_QPS_SQD)
}

fn to_bare_state(id: &Id, state: u32) -> Result<()> {
    let Some(qp) = id.own_qp() else { return Ok(()) };
    let mut attr = state_only(state);
    qp.modify(&mut attr, ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int)
}

fn state_only(state: u32) -> ibv_qp_attr {
    // SAFETY: all zeros are a value of this structure.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = state;
    attr
}

/// Implements rdma_init_qp_attr(3): sets the attributes that the kernel requires of a QP in
/// `attr.qp_state`. Returns the attribute mask.
pub fn init_qp_attr(id: &Id, attr: &mut ibv_qp_attr) -> Result<c_int> {
    let mut kernel = Default::default();
    ucm::init_qp_attr(id.fd(), id.handle(), attr.qp_state, &mut kernel)?;
    Ok(verbs::qp_attr_from_kernel(&kernel, attr))
}

/// Implements rdma_destroy_qp(3). Destroys the QP and the id's CQs. Detaches the QP from its
/// multicast groups first, because the kernel does not destroy an attached QP.
pub fn destroy_qp(id: &Id) {
    let qp_use = id.keep_qp();
    let Some(qp) = id.own_qp() else { return };
    multicast::detach_all(id);
    // The CQs of an XRC receiver belong to its SRQ.
    let keep_cqs = qp.qp_type() == ibv_qp_type::IBV_QPT_XRC_RECV && !id.srq().is_null();
    qp.destroy();
    id.set_qp(ptr::null_mut());
    drop(qp_use);
    if !keep_cqs {
        destroy_cqs(id, CreatedCqs::ALL);
    }
}

/// Which of an id's CQs the library created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CreatedCqs {
    send: bool,
    recv: bool,
}

impl CreatedCqs {
    /// Both CQs.
    const ALL: CreatedCqs = CreatedCqs { send: true, recv: true };
}

/// Creates a send CQ with `send` entries and a receive CQ with `recv` entries, each with a channel.
/// Skips a CQ with 0 entries, and a CQ that the id already has. Returns which CQs were created.
fn create_missing_cqs(id: &Id, send: u32, recv: u32) -> Result<CreatedCqs> {
    let mut created = CreatedCqs::default();
    if recv > 0 && id.recv_cq().is_null() {
        let pair = create_cq(id, recv)?;
        id.set_recv_cq_channel(pair.channel);
        id.set_recv_cq(pair.cq);
        created.recv = true;
    }
    if send > 0 && id.send_cq().is_null() {
        let pair = create_cq(id, send).inspect_err(|_| destroy_cqs(id, created))?;
        id.set_send_cq_channel(pair.channel);
        id.set_send_cq(pair.cq);
        created.send = true;
    }
    Ok(created)
}

fn create_cq(id: &Id, entries: u32) -> Result<Pair> {
    let context = id.device_context()?;
    // SAFETY: the context is open. The channel is new, and no longer used if creating the CQ fails.
    unsafe {
        let channel = verbs::create_comp_channel(context)?;
        let cq = verbs::create_cq(context, entries, id.as_c().cast(), channel.as_ptr(), 0)
            .inspect_err(|_| verbs::end_comp_channel(channel))?;
        Ok(Pair { cq: cq.as_ptr(), channel: channel.as_ptr() })
    }
}

/// Destroys the CQs of the id that `which` selects, with their channels. A program may have put the
/// same CQ, or the same channel, into both fields: such an object is destroyed once, and a shared
/// channel after both CQs.
fn destroy_cqs(id: &Id, which: CreatedCqs) {
    let recv = if which.recv { take_recv(id) } else { Pair::NONE };
    let mut send = if which.send { take_send(id) } else { Pair::NONE };
    if send.cq == recv.cq {
        send.cq = ptr::null_mut();
    }
    let (recv_gone, mut send_gone) = (recv.destroy_cq(), send.destroy_cq());
    if send.channel == recv.channel {
        send_gone |= recv_gone;
    } else {
        recv.destroy_channel(recv_gone);
    }
    send.destroy_channel(send_gone);
}

/// Takes the receive CQ and its channel out of the id.
fn take_recv(id: &Id) -> Pair {
    let pair = Pair { cq: id.recv_cq(), channel: id.recv_cq_channel() };
    id.set_recv_cq(ptr::null_mut());
    id.set_recv_cq_channel(ptr::null_mut());
    pair
}

/// Takes the send CQ and its channel out of the id.
fn take_send(id: &Id) -> Pair {
    let pair = Pair { cq: id.send_cq(), channel: id.send_cq_channel() };
    id.set_send_cq(ptr::null_mut());
    id.set_send_cq_channel(ptr::null_mut());
    pair
}

/// A CQ of an id and its channel, each NULL or live. An object that the program also uses elsewhere
/// is not destroyed: a CQ of a second QP, or a channel of another CQ.
struct Pair {
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
}

impl Pair {
    const NONE: Pair = Pair { cq: ptr::null_mut(), channel: ptr::null_mut() };

    /// Destroys the CQ. Returns true if destroying the CQ fails because the device is gone (`EIO`):
    /// then the caller closes the channel's descriptor. After any other error the descriptor stays
    /// open: the program may have closed the library's descriptors (closefrom(3)) and reused them
    /// for its own files.
    fn destroy_cq(&self) -> bool {
        // SAFETY: an id's CQ is live until it leaves its field; `destroy_cqs` has taken it once.
        NonNull::new(self.cq).is_some_and(|cq| unsafe { verbs::destroy_cq(cq) }.is_err_and(|error| error == Errno::EIO))
    }

    /// Destroys the channel. If the channel cannot be destroyed and the device is `gone`, closes
    /// the channel's descriptor.
    fn destroy_channel(&self, gone: bool) {
        let Some(channel) = NonNull::new(self.channel) else { return };
        // SAFETY: an id's channel is live until it leaves its field, and `destroy_cqs` has taken it
        // once.
        unsafe {
            if gone {
                verbs::end_comp_channel(channel);
            } else {
                // Fails with EBUSY for a channel that other CQs use.
                let _ = verbs::destroy_comp_channel(channel);
            }
        }
    }
}

/// Implements rdma_create_srq(3). Writes the sizes that the device granted back to `attr`.
pub fn create_srq(id: &Id, pd: Option<Pd>, attr: &mut InitAttr<'_, ibv_srq_init_attr>) -> Result<()> {
    let given = attr.get();
    // SAFETY: all zeros are a value of this structure.
    let mut extended: ibv_srq_init_attr_ex = unsafe { zeroed() };
    extended.srq_context = given.srq_context;
    extended.attr = given.attr;
    extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    extended.srq_type = IBV_SRQT_BASIC;
    extended.pd = pd.map_or(ptr::null_mut(), Pd::as_c);
    // SAFETY: the PD is live, and the attributes have no other objects.
    create_srq_ex(id, &mut unsafe { InitAttr::new(&mut extended) })?;
    given.attr = extended.attr;
    Ok(())
}

/// Implements rdma_create_srq_ex(3).
///
/// # Errors
/// Fails with `EINVAL` if the attributes have no SRQ type, or if the id has no device.
pub fn create_srq_ex(id: &Id, attributes: &mut InitAttr<'_, ibv_srq_init_attr_ex>) -> Result<()> {
    let attr = attributes.get();
    // If the id already has an SRQ, the new one replaces it, and the program has to destroy the old
    // one (docs/compatibility.md).
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
        return Err(Errno::EINVAL);
    }
    let context = id.device_context()?;
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.pd = id.pd();
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    let given = (attr.cq, attr.comp_mask);
    let created = if attr.srq_type == IBV_SRQT_XRC { add_xrc_objects(id, attr)? } else { CreatedCqs::default() };
    // SAFETY: the registry keeps the device of an id open, and the objects in an `InitAttr` are
    // live.
    let srq = unsafe { verbs::create_srq_ex(context, attributes.get()) }.inspect_err(|_| {
        destroy_cqs(id, created);
        // Restore the program's structure: it must not refer to a destroyed CQ.
        let attr = attributes.get();
        (attr.cq, attr.comp_mask) = given;
    })?;
    if id.pd().is_null() {
        id.set_pd(attributes.get().pd);
    }
    id.set_srq(srq.as_ptr());
    Ok(())
}

/// Adds the XRC domain and the CQ that an XRC SRQ needs, unless the program provides them.
fn add_xrc_objects(id: &Id, attr: &mut ibv_srq_init_attr_ex) -> Result<CreatedCqs> {
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
        let bound = id.state().bound.ok_or(Errno::EINVAL)?;
        attr.xrcd = device_registry::xrcd(&bound)?.as_ptr();
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
    }
    let mut created = CreatedCqs::default();
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
        created = create_missing_cqs(id, 0, attr.attr.max_wr)?;
        attr.cq = NonNull::new(id.recv_cq()).ok_or(Errno::EINVAL)?.as_ptr();
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
    }
    Ok(created)
}

/// Implements rdma_destroy_srq(3). Destroys the SRQ. Also destroys the id's CQs, unless the id has
/// a QP, which still uses them.
pub fn destroy_srq(id: &Id) {
    let Some(srq) = NonNull::new(id.srq()) else { return };
    // SAFETY: an SRQ in an id is live (`Id::from_c`). The id's field is cleared below, so nothing
    // uses the SRQ afterwards.
    unsafe { verbs::destroy_srq(srq) };
    id.set_srq(ptr::null_mut());
    if id.qp().is_null() {
        destroy_cqs(id, CreatedCqs::ALL);
    }
}

/// The PD of a connection, on the device of its id. Keeps the device open.
///
/// The PD isolates connections from each other. A memory key is valid for every QP of its PD: if
/// connections shared a PD, the peer of one could access the memory of the others.
#[derive(Debug)]
pub struct Domain {
    bound: Bound,
    /// The connection's own PD; `None` if the connection uses the PD that the ids on the device
    /// share.
    own: Option<NonNull<ibv_pd>>,
}

// SAFETY: any thread may use the libibverbs objects that a `Domain` points at.
unsafe impl Send for Domain {}

impl Domain {
    /// Allocates a PD for a connection of `id`. If the device has no more PDs, the connection uses
    /// the PD that the ids on the device share, without isolation from other such connections.
    ///
    /// # Errors
    /// Fails with `ENODEV` before the id has a device.
    pub fn new(id: &Id) -> Result<Domain> {
        let bound = id.state().bound.ok_or(Errno::ENODEV)?;
        let bound = device_registry::share(&bound)?;
        let mut domain = Domain { bound, own: None };
        // SAFETY: `share` keeps the context open.
        match unsafe { verbs::alloc_pd(domain.bound.context) } {
            Ok(pd) => domain.own = Some(pd),
            Err(error) if is_exhaustion(error) => log::background(id, error, Cause::SharedDomain),
            Err(error) => return Err(error),
        }
        Ok(domain)
    }

    /// Returns the PD, which is valid as long as `self`.
    pub fn pd(&self) -> NonNull<ibv_pd> {
        self.own.unwrap_or(self.bound.pd)
    }

    /// Returns the device's context, which is open as long as `self` lives.
    pub fn context(&self) -> NonNull<ibv_context> {
        self.bound.context
    }

    /// Returns the limits of the device.
    pub fn limits(&self) -> &Limits {
        &self.bound.limits
    }

    /// Returns whether the PD is on the device of `id`.
    pub fn is_of(&self, id: &Id) -> bool {
        id.verbs() == self.bound.context.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if let Some(pd) = self.own {
            // SAFETY: the owner of the `Domain` has destroyed the QPs and memory regions in the PD,
            // and the device is open until `release`.
            unsafe { verbs::dealloc_pd(pd) };
        }
        device_registry::release(self.bound);
    }
}

/// Returns whether an error of ibv_alloc_pd(3) means that the device or the control group allows no
/// more PDs. Drivers return different errors: rxe and cxgb4 fail with `EINVAL`.
fn is_exhaustion(error: Errno) -> bool {
    matches!(
        error.get(),
        libc::ENOMEM | libc::ENOSPC | libc::EAGAIN | libc::EBUSY | libc::EOVERFLOW | libc::EDQUOT | libc::EINVAL
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dangling<T>(address: usize) -> *mut T {
        ptr::without_provenance_mut(address)
    }

    fn attributes_of_new_qp() -> ibv_qp_init_attr_ex {
        // SAFETY: all zeros are a value of this structure.
        unsafe { zeroed() }
    }

    /// The attributes that ibv_modify_qp(3) requires.
    #[test]
    fn transitions_have_the_attributes_that_they_need() {
        use ibv_qp_attr_mask as bits;
        let common = bits::IBV_QP_STATE | bits::IBV_QP_PKEY_INDEX | bits::IBV_QP_PORT;
        for extra in [bits::IBV_QP_ACCESS_FLAGS, bits::IBV_QP_QKEY] {
            let (attr, mask) = init_attributes(2, 5, extra);
            assert_eq!(mask, (common | extra).0 as c_int);
            assert_eq!((attr.qp_state, attr.port_num, attr.pkey_index), (ibv_qp_state::IBV_QPS_INIT, 2, 5));
            assert_eq!((attr.qkey, attr.qp_access_flags), (RDMA_UDP_QKEY, 0));
        }
        let needed = [
            (ibv_qp_state::IBV_QPS_RTR, bits::IBV_QP_STATE.0),
            (ibv_qp_state::IBV_QPS_RTS, (bits::IBV_QP_STATE | bits::IBV_QP_SQ_PSN).0),
        ];
        assert_eq!(after_init_of_datagrams().map(|(state, mask)| (state, mask.0)), needed);
    }

    #[test]
    fn numbers_of_the_program_replace_those_of_the_kernel() {
        for (given, used) in [(None, None), (Some(0), Some(0)), (Some(254), Some(254)), (Some(255), None)] {
            assert_eq!(definite(given), used);
        }
    }

    #[test]
    fn cqs_that_each_type_needs() {
        use ibv_qp_type::*;
        let types = [(IBV_QPT_RC, 0b11), (IBV_QPT_UD, 0b11), (IBV_QPT_XRC_SEND, 0b10), (IBV_QPT_XRC_RECV, 0)];
        for (qp_type, needed) in types {
            for given in 0..4 {
                let mut attr = attributes_of_new_qp();
                (attr.qp_type, attr.send_cq, attr.recv_cq) = (qp_type, dangling(given & 2), dangling(given & 1));
                assert_eq!(lacks_cq(&attr), needed & !given != 0, "type {qp_type}, CQs {given:#b}");
            }
        }
    }

    #[test]
    fn objects_of_the_program_fit_the_id() {
        let id = Id::new(ptr::null_mut(), 0, 0);
        id.set_verbs(dangling(64));
        let mut attr = attributes_of_new_qp();
        let pd = |device: usize| verbs::ibv_pd { context: dangling(device), handle: 0 };
        let (mut own, mut other) = (pd(64), pd(128));
        // SAFETY: both are live; no object is created in them.
        let (own, other) = unsafe { (Pd::from_c(&raw mut own), Pd::from_c(&raw mut other)) };
        assert!(fits(&id, None, &attr) && fits(&id, own, &attr) && !fits(&id, other, &attr));
        for set in [Id::set_send_cq, Id::set_recv_cq] {
            set(&id, dangling(24));
            for (given, fit) in [(0, true), (24, true), (16, false)] {
                (attr.send_cq, attr.recv_cq) = (dangling(given), dangling(given));
                assert_eq!(fits(&id, own, &attr), fit);
            }
            set(&id, ptr::null_mut());
        }
    }
}
