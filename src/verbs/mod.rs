//! The functions of libibverbs that the connection manager calls, with errno values as errors.
//!
//! Most bindings are those of `ibverbs-sys`. This module adds the functions that libibverbs defines
//! inline in its header, or exports without declaring them. An unsafe function without a
//! description is a thin wrapper of the libibverbs function or field of the same name.

pub mod doorbell;
pub mod gid;
pub mod rc;
pub mod ud;

use std::ffi::{c_char, c_int};
use std::mem::{offset_of, size_of};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};

pub use ibverbs_sys::*;

use crate::errno::{Errno, Result};
use crate::os::cancel::disabled;
use crate::os::event::EventFd;
use crate::os::library_fds;
use crate::os::uapi::{ib_user_path_rec, ib_uverbs_ah_attr, ib_uverbs_qp_attr, ibv_sa_path_rec, verbs_context};

unsafe extern "C" {
    // Exported for librdmacm since IBVERBS_1.0 and 1.1, declared in no installed header.
    fn ibv_copy_qp_attr_from_kern(dst: *mut ibv_qp_attr, src: *const ib_uverbs_qp_attr);
    fn ibv_copy_ah_attr_from_kern(dst: *mut ibv_ah_attr, src: *const ib_uverbs_ah_attr);
    fn ibv_copy_path_rec_from_kern(dst: *mut ibv_sa_path_rec, src: *const ib_user_path_rec);
}

/// Evaluates to an operation of the extended context. Fails with `EOPNOTSUPP` if the library that
/// created the context, or the device, does not have the operation.
///
/// Safety: `$context` is open.
macro_rules! operation {
    ($context:expr, $name:ident) => {
        extension($context, offset_of!(verbs_context, $name))
            // `extension` found the member present.
            .and_then(|extended| (*extended.as_ptr()).$name)
            .ok_or(Errno::EOPNOTSUPP)
    };
}

/// Makes a call that returns 0 or an errno value, with cancellation disabled: providers may have
/// cancellation points.
#[inline]
fn check(call: impl FnOnce() -> c_int) -> Result<()> {
    let result = disabled(call);
    if result == 0 { Ok(()) } else { Err(Errno::new(result)) }
}

/// Makes a call that returns a pointer, or NULL with errno set. Soft-iWARP may not set errno
/// (docs/compatibility.md): the call then fails with `ENOMEM`, not with the errno of an earlier
/// call.
fn pointer<T>(call: impl FnOnce() -> *mut T) -> Result<NonNull<T>> {
    let (result, error) = base::errno::keeping(|| {
        base::errno::set(0);
        (disabled(call), base::errno::get())
    });
    NonNull::new(result).ok_or(if error == 0 { Errno::ENOMEM } else { Errno::new(error) })
}

/// A list of the machine's devices.
pub struct DeviceList {
    list: NonNull<*mut ibv_device>,
    len: usize,
}

// SAFETY: libibverbs counts the references to its devices under a lock of its own; any thread may
// use or free the list.
unsafe impl Send for DeviceList {}

impl DeviceList {
    /// Calls ibv_get_device_list(3).
    ///
    /// # Errors
    /// Fails with `ENOMEM`, and for the first list with `EMFILE` or `ENFILE`. Any other error
    /// becomes `ENODEV`: without RDMA support in the kernel libibverbs fails with `ENOSYS`, which
    /// programs do not expect here.
    pub fn new() -> Result<DeviceList> {
        static INITIALIZED: AtomicBool = AtomicBool::new(false);
        if !INITIALIZED.load(Ordering::Relaxed) {
            // libibverbs initializes itself while it makes the first list, once in a process: if
            // the initialization fails, or a driver cannot be loaded, libibverbs never finds the
            // devices in this process. So check that two descriptors are available: libibverbs of
            // rdma-core 44.0 and 65.0 has at most two open at a time, for a directory and for a
            // file or library in it.
            let _spare = [EventFd::new()?, EventFd::new()?];
            INITIALIZED.store(true, Ordering::Relaxed);
        }
        let mut len = 0;
        // SAFETY: `len` is writable.
        let list = pointer(|| unsafe { ibv_get_device_list(&raw mut len) });
        let list = list.map_err(|error| if error == Errno::ENOMEM { error } else { Errno::ENODEV })?;
        Ok(DeviceList { list, len: usize::try_from(len).unwrap_or(0) })
    }

    /// Returns the devices. A device is valid while the list lives or a context of the device is
    /// open.
    pub fn devices(&self) -> &[*mut ibv_device] {
        // SAFETY: libibverbs returned `len` pointers, which are valid as long as the list.
        unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.len) }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list is from ibv_get_device_list, and is freed once.
        unsafe { ibv_free_device_list(self.list.as_ptr()) };
    }
}

/// Returns the node GUID, in network byte order.
///
/// # Safety
/// `device` is live.
pub unsafe fn guid(device: *mut ibv_device) -> u64 {
    // SAFETY: `device` is live: guaranteed by the caller.
    unsafe { ibv_get_device_guid(device) }
}

/// Returns the kernel's index of the device; `None` if libibverbs does not know it.
///
/// # Safety
/// `device` is live.
pub unsafe fn index(device: *mut ibv_device) -> Option<u32> {
    // SAFETY: `device` is live: guaranteed by the caller.
    u32::try_from(unsafe { ibv_get_device_index(device) }).ok()
}

/// The name of a device, padded with zeros.
pub type DeviceName = [c_char; 64];

/// # Safety
/// `device` is live.
pub unsafe fn name(device: *mut ibv_device) -> DeviceName {
    // SAFETY: `device` is live: guaranteed by the caller.
    unsafe { (*device).name }
}

/// Returns false if sysfs has no directory of this device, otherwise true. Opens no descriptor.
///
/// # Safety
/// `device` is live.
pub unsafe fn is_in_sysfs(device: *mut ibv_device) -> bool {
    // SAFETY: `device` is live: guaranteed by the caller. libibverbs ends the path with a zero.
    let found = unsafe { libc::access((&raw const (*device).ibdev_path).cast(), libc::F_OK) };
    found == 0 || Errno::last() != Errno::ENOENT
}

/// Returns the device of a context. The device lives as long as the context is open.
///
/// # Safety
/// `context` is open.
pub unsafe fn device_of(context: NonNull<ibv_context>) -> *mut ibv_device {
    // SAFETY: `context` is open: guaranteed by the caller.
    unsafe { (*context.as_ptr()).device }
}

/// Opens a device. The context's descriptors are marked as the library's ([`library_fds`]).
///
/// # Safety
/// `device` is live.
pub unsafe fn open(device: *mut ibv_device) -> Result<NonNull<ibv_context>> {
    // SAFETY: `device` is live: guaranteed by the caller.
    let context = pointer(|| unsafe { ibv_open_device(device) })?;
    // SAFETY: the context is open, and libibverbs uses the descriptors in these fields.
    unsafe {
        library_fds::relocate_fd_in(&raw mut (*context.as_ptr()).cmd_fd);
        library_fds::relocate_fd_in(&raw mut (*context.as_ptr()).async_fd);
        doorbell::opened(context);
    }
    Ok(context)
}

/// # Safety
/// `context` is open, and is not used any more.
pub unsafe fn close(context: NonNull<ibv_context>) {
    // SAFETY: `context` is not used any more: guaranteed by the caller. An error cannot be handled.
    unsafe {
        library_fds::unmark((*context.as_ptr()).cmd_fd);
        library_fds::unmark((*context.as_ptr()).async_fd);
        ibv_close_device(context.as_ptr())
    };
}

/// # Safety
/// `context` is open.
pub unsafe fn query_device(context: NonNull<ibv_context>) -> Result<ibv_device_attr> {
    let mut attr = ibv_device_attr::default();
    // SAFETY: `context` is open: guaranteed by the caller. `attr` is writable.
    check(|| unsafe { ibv_query_device(context.as_ptr(), &raw mut attr) })?;
    Ok(attr)
}

/// # Safety
/// `context` is open.
pub unsafe fn query_port(context: NonNull<ibv_context>, port: u8) -> Result<ibv_port_attr> {
    let mut attr = ibv_port_attr::default();
    // SAFETY: the exported function fills only the part of `attr` that its first version had.
    check(|| unsafe { ibv_query_port(context.as_ptr(), port, (&raw mut attr).cast()) })?;
    Ok(attr)
}

/// # Safety
/// `context` is open.
pub unsafe fn query_gid(context: NonNull<ibv_context>, port: u8, index: c_int) -> Result<ibv_gid> {
    let mut gid = ibv_gid::default();
    // SAFETY: `context` is open: guaranteed by the caller. Unlike similar functions, ibv_query_gid
    // returns -1 with errno set.
    match unsafe { ibv_query_gid(context.as_ptr(), port, index, &raw mut gid) } {
        0 => Ok(gid),
        _ => Err(Errno::last()),
    }
}

/// Returns the index of a P_Key (network byte order) in the port's table.
///
/// # Safety
/// `context` is open.
pub unsafe fn pkey_index(context: NonNull<ibv_context>, port: u8, pkey: u16) -> Result<u16> {
    // SAFETY: `context` is open: guaranteed by the caller.
    let index = unsafe { ibv_get_pkey_index(context.as_ptr(), port, pkey) };
    u16::try_from(index).map_err(|_| Errno::last())
}

/// # Safety
/// `context` is open.
pub unsafe fn alloc_pd(context: NonNull<ibv_context>) -> Result<NonNull<ibv_pd>> {
    // SAFETY: `context` is open: guaranteed by the caller.
    pointer(|| unsafe { ibv_alloc_pd(context.as_ptr()) })
}

/// # Safety
/// `pd` is live, and has no objects of this library.
pub unsafe fn dealloc_pd(pd: NonNull<ibv_pd>) {
    // SAFETY: `pd` has no objects of the library: guaranteed by the caller. Objects of the program
    // keep the PD in the kernel until the context is closed.
    disabled(|| unsafe { ibv_dealloc_pd(pd.as_ptr()) });
}

/// # Safety
/// `context` is open.
pub unsafe fn create_comp_channel(context: NonNull<ibv_context>) -> Result<NonNull<ibv_comp_channel>> {
    // SAFETY: `context` is open: guaranteed by the caller.
    let channel = pointer(|| unsafe { ibv_create_comp_channel(context.as_ptr()) })?;
    // SAFETY: the channel is live, and libibverbs uses the descriptor in this field.
    unsafe { library_fds::relocate_fd_in(&raw mut (*channel.as_ptr()).fd) };
    Ok(channel)
}

/// Destroys a completion channel.
///
/// # Errors
/// Fails with `EBUSY` while the channel has CQs.
///
/// # Safety
/// `channel` is live.
pub unsafe fn destroy_comp_channel(channel: NonNull<ibv_comp_channel>) -> Result<()> {
    // SAFETY: `channel` is live: guaranteed by the caller.
    let fd = unsafe { (*channel.as_ptr()).fd };
    library_fds::unmark(fd);
    // SAFETY: `channel` is live: guaranteed by the caller.
    check(|| unsafe { ibv_destroy_comp_channel(channel.as_ptr()) }).inspect_err(|_| library_fds::mark(fd))
}

/// Destroys a channel, or at least closes its descriptor: a CQ whose device was removed keeps the
/// channel in use forever, and an open descriptor keeps the device in the kernel.
///
/// # Safety
/// `channel` is live, and is not used any more.
pub unsafe fn end_comp_channel(channel: NonNull<ibv_comp_channel>) {
    // SAFETY: `channel` is live and not used any more: guaranteed by the caller.
    unsafe {
        let fd = (*channel.as_ptr()).fd;
        if destroy_comp_channel(channel).is_err() {
            library_fds::close(fd);
        }
    }
}

/// # Safety
/// `context` is open, `channel` is NULL or one of its channels, and `vector` one of its completion
/// vectors.
pub unsafe fn create_cq(
    context: NonNull<ibv_context>,
    entries: u32,
    cq_context: *mut std::ffi::c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> Result<NonNull<ibv_cq>> {
    let entries = c_int::try_from(entries).map_err(|_| Errno::EINVAL)?;
    // SAFETY: `context`, `channel` and `vector` fit each other: guaranteed by the caller.
    pointer(|| unsafe { ibv_create_cq(context.as_ptr(), entries, cq_context, channel, vector) })
}

/// Destroys a CQ.
///
/// # Errors
/// Fails with `EBUSY` while a QP uses it.
///
/// # Safety
/// `cq` is live.
pub unsafe fn destroy_cq(cq: NonNull<ibv_cq>) -> Result<()> {
    // SAFETY: `cq` is live: guaranteed by the caller.
    check(|| unsafe { ibv_destroy_cq(cq.as_ptr()) })
}

/// # Safety
/// `context` is open. `attr` is valid for ibv_create_qp_ex(3), and has a PD.
pub unsafe fn create_qp_ex(context: NonNull<ibv_context>, attr: &mut ibv_qp_init_attr_ex) -> Result<NonNull<ibv_qp>> {
    if attr.comp_mask == IBV_QP_INIT_ATTR_PD {
        // SAFETY: struct ibv_qp_init_attr is the beginning of the extended one
        // (infiniband/verbs.h).
        return pointer(|| unsafe { ibv_create_qp(attr.pd, ptr::from_mut(attr).cast()) });
    }
    // SAFETY: `context` is open: guaranteed by the caller.
    let create = unsafe { operation!(context, create_qp_ex) }?;
    // SAFETY: `create` is a function of the provider that created `context`, and `attr` is live.
    // The casts convert between types of `ibverbs_sys` and of `os::uapi` for the same structures.
    pointer(|| unsafe { create(context.as_ptr().cast(), ptr::from_mut(attr).cast()) }.cast())
}

/// # Safety
/// `qp` is live.
pub unsafe fn destroy_qp(qp: NonNull<ibv_qp>) {
    // SAFETY: `qp` is live: guaranteed by the caller.
    disabled(|| unsafe { ibv_destroy_qp(qp.as_ptr()) });
}

/// # Safety
/// `qp` is live.
pub unsafe fn modify_qp(qp: NonNull<ibv_qp>, attr: &mut ibv_qp_attr, mask: c_int) -> Result<()> {
    // SAFETY: `qp` is live: guaranteed by the caller. ibv_modify_qp takes its mask as a C int.
    check(|| unsafe { ibv_modify_qp(qp.as_ptr(), attr, mask) })
}

/// Moves a QP to the error state, in which every work request completes with an error.
///
/// # Safety
/// `qp` is live.
pub unsafe fn move_to_error(qp: NonNull<ibv_qp>) -> Result<()> {
    let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
    // SAFETY: `qp` is live: guaranteed by the caller.
    unsafe { modify_qp(qp, &mut attr, ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int) }
}

/// # Safety
/// `context` is open. `attr` is valid for ibv_create_srq_ex(3).
pub unsafe fn create_srq_ex(
    context: NonNull<ibv_context>,
    attr: &mut ibv_srq_init_attr_ex,
) -> Result<NonNull<ibv_srq>> {
    let basic = attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || attr.srq_type == IBV_SRQT_BASIC;
    let beyond = attr.comp_mask & !(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD);
    if basic && beyond == 0 && attr.comp_mask & IBV_SRQ_INIT_ATTR_PD != 0 {
        // SAFETY: struct ibv_srq_init_attr is the beginning of the extended one
        // (infiniband/verbs.h).
        return pointer(|| unsafe { ibv_create_srq(attr.pd, ptr::from_mut(attr).cast()) });
    }
    // SAFETY: `context` is open: guaranteed by the caller.
    let create = unsafe { operation!(context, create_srq_ex) }?;
    // SAFETY: `create` is a function of the provider that created `context`, and `attr` is live.
    // The casts convert between types of `ibverbs_sys` and of `os::uapi` for the same structures.
    pointer(|| unsafe { create(context.as_ptr().cast(), ptr::from_mut(attr).cast()) }.cast())
}

/// # Safety
/// `srq` is live.
pub unsafe fn destroy_srq(srq: NonNull<ibv_srq>) {
    // SAFETY: `srq` is live: guaranteed by the caller.
    unsafe { ibv_destroy_srq(srq.as_ptr()) };
}

/// Opens a new XRC domain that is not shared through a file.
///
/// # Safety
/// `context` is open.
pub unsafe fn open_xrcd(context: NonNull<ibv_context>) -> Result<NonNull<ibv_xrcd>> {
    // SAFETY: `context` is open: guaranteed by the caller.
    let open = unsafe { operation!(context, open_xrcd) }?;
    let mut attr = ibv_xrcd_init_attr {
        comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
        fd: -1,
        oflags: libc::O_CREAT,
    };
    // SAFETY: `create` is a function of the provider that created `context`, and `attr` is live.
    // The casts convert between types of `ibverbs_sys` and of `os::uapi` for the same structures.
    pointer(|| unsafe { open(context.as_ptr().cast(), (&raw mut attr).cast()) }.cast())
}

/// # Safety
/// `context` is open, and `xrcd` is one of its XRC domains, without objects.
pub unsafe fn close_xrcd(context: NonNull<ibv_context>, xrcd: NonNull<ibv_xrcd>) {
    // SAFETY: `context` is open: guaranteed by the caller.
    if let Ok(close) = unsafe { operation!(context, close_xrcd) } {
        // SAFETY: the provider's function with its own object, which nothing uses any more.
        unsafe { close(xrcd.as_ptr().cast()) };
    }
}

/// # Safety
/// `qp` is live.
pub unsafe fn query_ece(qp: NonNull<ibv_qp>) -> Result<ibv_ece> {
    let mut ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
    // SAFETY: `qp` is live: guaranteed by the caller.
    check(|| unsafe { ibv_query_ece(qp.as_ptr(), &raw mut ece) })?;
    Ok(ece)
}

/// # Safety
/// `qp` is live, and is not connected yet.
pub unsafe fn set_ece(qp: NonNull<ibv_qp>, mut ece: ibv_ece) -> Result<()> {
    // SAFETY: `qp` is live and not connected yet: guaranteed by the caller.
    check(|| unsafe { ibv_set_ece(qp.as_ptr(), &raw mut ece) })
}

/// # Safety
/// `qp` is a live UD QP.
pub unsafe fn attach_mcast(qp: NonNull<ibv_qp>, gid: &ibv_gid, lid: u16) -> Result<()> {
    // SAFETY: `qp` is a live UD QP: guaranteed by the caller.
    check(|| unsafe { ibv_attach_mcast(qp.as_ptr(), gid, lid) })
}

/// # Safety
/// `qp` is a live UD QP.
pub unsafe fn detach_mcast(qp: NonNull<ibv_qp>, gid: &ibv_gid, lid: u16) -> Result<()> {
    // SAFETY: `qp` is a live UD QP: guaranteed by the caller.
    check(|| unsafe { ibv_detach_mcast(qp.as_ptr(), gid, lid) })
}

/// Copies QP attributes that the kernel has written. Returns the mask of the attributes that are
/// set (`enum ibv_qp_attr_mask`). Attributes that the kernel leaves to the caller, such as
/// `qp_state`, are not changed.
pub fn qp_attr_from_kernel(kernel: &ib_uverbs_qp_attr, attr: &mut ibv_qp_attr) -> c_int {
    // SAFETY: libibverbs reads `kernel` and writes fields of `attr`.
    unsafe { ibv_copy_qp_attr_from_kern(attr, kernel) };
    kernel.qp_attr_mask as c_int
}

/// Copies address handle attributes from the kernel's structure. Padding is not changed.
pub fn fill_ah_attr(attr: &mut ibv_ah_attr, kernel: &ib_uverbs_ah_attr) {
    // SAFETY: libibverbs reads `kernel` and writes fields of `attr`.
    unsafe { ibv_copy_ah_attr_from_kern(attr, kernel) };
}

/// Converts a path record of QUERY_ROUTE to libibverbs' structure.
pub fn path_rec_from_kernel(kernel: &ib_user_path_rec) -> ibv_sa_path_rec {
    let mut record = ibv_sa_path_rec::default();
    // SAFETY: libibverbs reads `kernel` and fills `record`.
    unsafe { ibv_copy_path_rec_from_kern(&raw mut record, kernel) };
    record
}

/// Returns the extended context that contains `context`; `None` if the library that created the
/// context is too old to have the member at `offset` (`verbs_get_ctx_op` of infiniband/verbs.h:
/// members are added at the front, and `sz` is the size of the structure).
///
/// # Safety
/// `context` is open.
unsafe fn extension(context: NonNull<ibv_context>, offset: usize) -> Option<NonNull<verbs_context>> {
    const EXTENDED: usize = usize::MAX;
    // SAFETY: `context` is open: guaranteed by the caller.
    if unsafe { (*context.as_ptr()).abi_compat } as usize != EXTENDED {
        return None;
    }
    // SAFETY: `abi_compat` shows that the context is the last member of a verbs_context.
    let extended = unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>() };
    // SAFETY: the verbs_context is live, and `sz` is next to the context in every version.
    let size = unsafe { (*extended.as_ptr()).sz };
    (size >= size_of::<verbs_context>() - offset).then_some(extended)
}
