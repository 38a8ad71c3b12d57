//! `rdma/rdma_cma.h`: names and services.

use std::ffi::{c_char, c_int};
use std::ptr::NonNull;

use rdmacm_core::cm::{self, AddrInfoList, GaiError};
use rdmacm_core::ffi::{rdma_addrinfo, rdma_cm_id};
use rdmacm_core::{Errno, diag};

use crate::args::{put, string};
use crate::report::{Call, report};
use crate::{args, for_id, free};

/// Looks up addresses, and routes where an ibacm service knows them, for a host and a service.
///
/// node: host name or address; service: service name or port number; hints: as for getaddrinfo(3).
/// At least one of them is not NULL. res: receives a list for rdma_freeaddrinfo(). Returns 0; -1
/// and errno; or an EAI_* code of getaddrinfo(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    // The value that is returned if errno is set.
    let mut failed = -1;
    // SAFETY: the C contract (crate documentation).
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
    // SAFETY: the C contract (crate documentation).
    free("rdma_freeaddrinfo", || unsafe { AddrInfoList::from_c(res) });
}

/// Like rdma_getaddrinfo() in the background: ends in RDMA_CM_EVENT_ADDRINFO_RESOLVED or
/// RDMA_CM_EVENT_ADDRINFO_ERROR.
///
/// hints->ai_flags: RAI_SA asks the subnet administrator for a service, without a node; RAI_DNS, or
/// neither, asks the name service. Returns 0, or -1 and errno: EBUSY until rdma_query_addrinfo()
/// has returned the last result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe {
        for_id("rdma_resolve_addrinfo", id, |id| {
            cm::resolve_addrinfo(id, string(node), string(service), args::hints(hints).as_ref())
        })
    }
}

/// Returns the result of rdma_resolve_addrinfo(), only once.
///
/// info: receives a list for rdma_freeaddrinfo(). Returns 0, or -1 and errno: ENOENT if there is no
/// result, or it was returned before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { for_id("rdma_query_addrinfo", id, |id| put(info, || Ok(cm::query_addrinfo(id)?.into_c()))) }
}
