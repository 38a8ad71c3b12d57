//! The C entry points of librdmacm.so.1.
//!
//! Each exported function is a shim: it checks the pointers that must not be NULL, calls the core,
//! and reports the outcome the C way (-1 or NULL, and `errno`). C programmers read the comments of
//! the exported functions, because cbindgen generates `include/rdma/*.h` from these files. The
//! exports are listed in `symbols.map`.
//!
//! # Safety
//!
//! The caller of every exported function guarantees the following, which the `SAFETY` comments call
//! the C contract: a pointer is NULL or points to a live object of its type; an id, channel, event
//! or list came from this library and was not given back yet, and one that is given back is not
//! used by other calls; a string ends in a NUL; a buffer, or an address of a family, is as long as
//! its length argument says, and only this call uses it. NULL where a pointer is required is an
//! error (`EINVAL`), not undefined behaviour.

mod args;
mod cma;
mod report;
mod rsocket;
mod verbs;

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};

use rdmacm_core::Result;
use rdmacm_core::cm::Id;
use rdmacm_core::ffi::rdma_cm_id;
use rdmacm_core::rsocket::process;
use report::{Call, report, report_quick};

/// Runs a call. Returns 0, or -1 with `errno` set.
fn status(call: Call, run: impl FnOnce() -> Result<()>) -> c_int {
    report(call, -1, || run().map(|()| 0))
}

/// Like [`status`], but with [`report_quick`]: for the calls that each connection needs.
fn quick_status(call: Call, run: impl FnOnce() -> Result<()>) -> c_int {
    report_quick(call, -1, || run().map(|()| 0))
}

/// Runs a call that takes an object back from the program, and drops the object.
fn free<T>(name: &'static str, take: impl FnOnce() -> T) {
    report(Call::new(name), (), || {
        drop(take());
        Ok(())
    });
}

/// Runs a call for an id, like [`status`].
///
/// # Safety
/// `id` is as [`Id::from_c`] requires it.
unsafe fn for_id(name: &'static str, id: *mut rdma_cm_id, run: impl FnOnce(&Id) -> Result<()>) -> c_int {
    // SAFETY: `id` is as `from_c` requires it: guaranteed by the caller.
    status(Call::id(name, id), || run(unsafe { Id::from_c(id)? }))
}

/// Runs a call for an id, like [`quick_status`].
///
/// # Safety
/// `id` is as [`Id::from_c`] requires it.
unsafe fn quick_for_id(name: &'static str, id: *mut rdma_cm_id, run: impl FnOnce(&Id) -> Result<()>) -> c_int {
    // SAFETY: `id` is as `from_c` requires it: guaranteed by the caller.
    quick_status(Call::id(name, id), || run(unsafe { Id::from_c(id)? }))
}

/// Runs a call. Returns its pointer, or NULL with `errno` set.
fn pointer<T>(call: Call, run: impl FnOnce() -> Result<NonNull<T>>) -> *mut T {
    report(call, null_mut(), || run().map(NonNull::as_ptr))
}

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = process::on_load;

#[used]
#[unsafe(link_section = ".fini_array")]
static ON_EXIT: extern "C" fn() = process::on_exit;

/// The global allocator, which `os::alloc::try_arc` requires.
#[global_allocator]
static ALLOCATOR: rdmacm_core::os::alloc::Allocator = rdmacm_core::os::alloc::Allocator;
