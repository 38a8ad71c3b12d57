//! The doorbell of software devices: write(2), which is a cancellation point and fails in a process
//! that has changed its credentials.
//!
//! rxe and siw are notified of new work requests by write(2) to the device's file. The call fails
//! with EACCES if the credentials of the process have changed since it opened the file, that is,
//! after setuid(2), setgid(2) or setgroups(2), which daemons such as rsync call when they know
//! their client. The work requests are already in the queue, so the same command is issued by
//! ioctl(2), which does not check credentials.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::errno::{Errno, Result};
use crate::os::cancel;
use crate::os::uapi::{
    IB_USER_VERBS_CMD_POST_SEND, RDMA_DRIVER_RXE, RDMA_DRIVER_SIW, UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT,
    UVERBS_ATTR_F_MANDATORY, UVERBS_ATTR_WRITE_CMD, UVERBS_METHOD_INVOKE_WRITE, UVERBS_OBJECT_DEVICE, ib_uverbs_attr,
    ib_uverbs_ioctl_hdr, ib_uverbs_post_send, ib_uverbs_send_wr, rdma_driver_id,
};
use crate::verbs::{ibv_context, ibv_qp};

/// `struct ib_uverbs_ioctl_hdr` with three attributes.
#[repr(C)]
struct Call {
    header: ib_uverbs_ioctl_hdr,
    attributes: [ib_uverbs_attr; 3],
}

/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, …)` with a structure of 24 bytes.
const RDMA_VERBS_IOCTL: libc::Ioctl = 0xC018_1B01_u32 as libc::Ioctl;
/// The drivers whose doorbell is write(2). The kernel requires the driver's id in the call.
const DRIVERS: [rdma_driver_id; 2] = [RDMA_DRIVER_RXE, RDMA_DRIVER_SIW];

/// Providers that notify their devices through memory, without a system call.
const SILENT: &str = "mlx5 mlx4 bnxt_re cxgb4 efa erdma hns irdma mana mthca ocrdma qedr vmw_pvrdma";

/// The `post_send` function of the device opened last whose provider is in [`SILENT`]; 0 for none.
/// Most processes use one provider.
static SILENT_POST: AtomicUsize = AtomicUsize::new(0);

/// Stores the `post_send` function of a device in `SILENT_POST` if its provider is in `SILENT`.
///
/// # Safety
/// `context` is open.
pub unsafe fn opened(context: NonNull<ibv_context>) {
    // SAFETY: `context` is open: guaranteed by the caller.
    let Some(post) = (unsafe { (*context.as_ptr()).ops.post_send }) else { return };
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `found` is writable, and all zeros are a valid value. A name that is not NULL is a C
    // string.
    let file = unsafe {
        libc::dladdr(post as *const c_void, found.as_mut_ptr());
        let name = found.assume_init().dli_fname;
        if name.is_null() { c"" } else { CStr::from_ptr(name) }
    };
    if is_silent(file.to_bytes()) {
        SILENT_POST.store(post as *const () as usize, Ordering::Relaxed);
    }
}

/// Returns whether the provider with this file is in [`SILENT`]: libmlx5.so.1, libsiw-rdmav34.so.
fn is_silent(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let name = name.strip_prefix(b"lib").unwrap_or(name);
    SILENT.split(' ').any(|provider| {
        let rest = name.strip_prefix(provider.as_bytes());
        rest.is_some_and(|rest| rest.starts_with(b".so") || rest.starts_with(b"-rdma"))
    })
}

/// Runs `call`, which posts through the function at the address `post`. Disables cancellation
/// meanwhile, unless the function makes no system call.
#[inline]
pub fn post<T>(post: usize, call: impl FnOnce() -> T) -> T {
    if is_silent_post(post) { call() } else { cancel::disabled(call) }
}

/// Like [`post`], for a call that is not within [`cancel::in_call`].
#[inline(always)] // see rsocket::calls
pub fn post_outside<T>(post: usize, call: impl FnOnce() -> T) -> T {
    if is_silent_post(post) { call() } else { cancel::disabled_outside(call) }
}

#[inline]
fn is_silent_post(post: usize) -> bool {
    post == SILENT_POST.load(Ordering::Relaxed)
}

/// Converts the result of posting to `qp`. If only the doorbell failed, rings it by ioctl(2).
///
/// # Safety
/// `qp` is live.
#[inline]
pub unsafe fn posted(qp: NonNull<ibv_qp>, result: c_int) -> Result<()> {
    match result {
        0 => Ok(()),
        // SAFETY: `qp` is live: guaranteed by the caller.
        failed if is_refused(failed) => unsafe { ring(qp) },
        failed => Err(Errno::new(failed)),
    }
}

/// Returns whether the doorbell failed with EACCES. rxe's provider returns the error of write(2).
/// siw's provider returns -1 and leaves the error in errno.
#[cold]
fn is_refused(result: c_int) -> bool {
    result == libc::EACCES || (result == -1 && Errno::last() == Errno::EACCES)
}

/// Rings the doorbell of `qp` by ioctl(2). Fails with `EACCES` if no driver accepts the call.
///
/// # Safety
/// `qp` is live.
#[cold]
unsafe fn ring(qp: NonNull<ibv_qp>) -> Result<()> {
    // SAFETY: `qp` is live: guaranteed by the caller.
    let (file, handle) = unsafe { ((*(*qp.as_ptr()).context).cmd_fd, (*qp.as_ptr()).handle) };
    // The command has no work requests, which are in the queue already. The kernel still checks the
    // size of a work request.
    let wqe_size = size_of::<ib_uverbs_send_wr>() as u32;
    let command = ib_uverbs_post_send { qp_handle: handle, wqe_size, ..Default::default() };
    let mut first_bad = 0_u32;
    let attributes = [
        (UVERBS_ATTR_CORE_IN, size_of_val(&command), (&raw const command) as u64),
        (UVERBS_ATTR_CORE_OUT, size_of::<u32>(), (&raw mut first_bad) as u64),
        // This attribute contains the value itself instead of an address.
        (UVERBS_ATTR_WRITE_CMD, size_of::<u64>(), IB_USER_VERBS_CMD_POST_SEND.into()),
    ];
    let attributes = attributes.map(|(id, len, data)| {
        let (attr_id, len, flags) = (id as u16, len as u16, UVERBS_ATTR_F_MANDATORY as u16);
        let mut attribute = ib_uverbs_attr { attr_id, len, flags, ..Default::default() };
        attribute.__bindgen_anon_1.data = data;
        attribute
    });
    let header = ib_uverbs_ioctl_hdr {
        length: size_of::<Call>() as u16,
        object_id: UVERBS_OBJECT_DEVICE as u16,
        method_id: UVERBS_METHOD_INVOKE_WRITE as u16,
        num_attrs: attributes.len() as u16,
        ..Default::default()
    };
    let mut call = Call { header, attributes };
    for driver in DRIVERS {
        call.header.driver_id = driver;
        // SAFETY: the file is open as long as its context; the structures have the lengths that
        // they state.
        if unsafe { libc::ioctl(file, RDMA_VERBS_IOCTL, &raw mut call) } == 0 {
            return Ok(());
        }
    }
    Err(Errno::EACCES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_by_their_files() {
        for silent in ["/usr/lib/x86_64-linux-gnu/libmlx5.so.1.24.44.0", "libefa.so.1", "/x/libirdma-rdmav34.so"] {
            assert!(is_silent(silent.as_bytes()), "{silent}");
        }
        for other in
            ["/x/librxe-rdmav34.so", "libsiw-rdmav34.so", "libhfi1verbs-rdmav34.so", "", "/mlx5/program", "mlx5x"]
        {
            assert!(!is_silent(other.as_bytes()), "{other}");
        }
    }
}
