//! What the process knows of its kernel, found out once: the device to open, its command set, AF_IB.

use once_cell::race::OnceBox;

use super::forks;
use crate::errno::{Errno, Result};
use crate::ffi::{RDMA_IB_IP_PS_MASK, RDMA_IB_IP_PS_TCP, rdma_port_space};
use crate::sys::alloc::try_box;
use crate::sys::chardev::RdmaCm;
use crate::sys::sockaddr::{AF_IB, SockAddr, SockaddrIb};
use crate::sys::{ucma, verbs};
use std::os::fd::AsRawFd;

/// See the module.
#[derive(Debug)]
pub struct Library {
    /// The character device behind event channels.
    pub node: RdmaCm,
    /// The kernel takes AF_IB addresses, and so the commands that came with them.
    pub af_ib: bool,
}

/// Nobody waits for the thread that finds it out: the child of a fork() may not have that thread, and a signal handler may have
/// interrupted it. Threads that come at the same time find the same, and the first one's stays.
static LIBRARY: OnceBox<Library> = OnceBox::new();

/// Finds out on first use; a failure is not remembered. `ENODEV` without RDMA devices, `EPERM` for a kernel
/// whose command set is unknown here, otherwise what opening the device failed with.
pub fn library() -> Result<&'static Library> {
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    forks::watched()?;
    LIBRARY.get_or_try_init(|| try_box(find_out()?))
}

fn find_out() -> Result<Library> {
    let node = RdmaCm::discover()?;
    if verbs::DeviceList::new()?.devices().is_empty() {
        return Err(Errno::ENODEV);
    }
    let af_ib = probe_af_ib(&node)?;
    Ok(Library { node, af_ib })
}

/// Binds a throw-away id to the wildcard AF_IB address of the TCP port space.
fn probe_af_ib(node: &RdmaCm) -> Result<bool> {
    let channel = node.open()?;
    // Closing the channel destroys the id.
    let id = ucma::create_id(
        channel.as_raw_fd(),
        0,
        rdma_port_space::RDMA_PS_IB as u16,
        verbs::ibv_qp_type::IBV_QPT_RC as u8,
    )?;
    let wildcard = SockaddrIb {
        family: AF_IB as u16,
        sid: RDMA_IB_IP_PS_TCP.to_be(),
        sid_mask: RDMA_IB_IP_PS_MASK.to_be(),
        ..Default::default()
    };
    match ucma::bind(channel.as_raw_fd(), id, &SockAddr::from_ib(&wildcard)) {
        Ok(()) => Ok(true),
        // Says nothing about the kernel, only about this moment.
        Err(error) if error == Errno::ENOMEM || error.get() == libc::EINTR => Err(error),
        Err(_) => Ok(false),
    }
}
