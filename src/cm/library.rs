//! What the process knows of its kernel, found out once: the device to open, its command set, AF_IB.

use once_cell::race::{OnceBool, OnceBox};

use super::{device, forks};
use crate::errno::{Errno, Result};
use crate::ffi::{RDMA_IB_IP_PS_MASK, RDMA_IB_IP_PS_TCP, rdma_port_space};
use crate::sys::alloc::try_box;
use crate::sys::chardev::RdmaCm;
use crate::sys::sockaddr::{AF_IB, SockAddr, SockaddrIb};
use crate::sys::{ucma, verbs};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Debug)]
pub struct Library {
    /// The character device behind event channels.
    pub node: RdmaCm,
    /// See [`Library::af_ib`]; found out with the first channel.
    af_ib: OnceBool,
}

impl Library {
    /// Whether the kernel takes AF_IB addresses, and so the commands that came with them. Where the
    /// device cannot be opened it does not matter: no.
    pub fn af_ib(&self) -> Result<bool> {
        if let Some(known) = self.af_ib.get() {
            return Ok(known);
        }
        match self.node.try_open() {
            Ok(channel) => self.find_af_ib(channel.as_raw_fd()),
            Err(_) => Ok(false),
        }
    }

    /// Finds out on the first channel that comes along.
    pub fn find_af_ib(&self, channel: RawFd) -> Result<bool> {
        self.af_ib.get_or_try_init(|| probe_af_ib(channel))
    }
}

/// Nobody waits for the thread that finds it out: the child of a fork() may not have that thread,
/// and a signal handler may have interrupted it. Threads that come at the same time find the same,
/// and the first one's stays.
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
    need_devices()?;
    Ok(Library { node, af_ib: OnceBool::new() })
}

/// Fails with `ENODEV` without RDMA devices. It needs libibverbs only: the node of the connection
/// manager may be out of reach. Asked once; the list of devices is kept for the first one that is
/// opened.
pub fn need_devices() -> Result<()> {
    static FOUND: AtomicBool = AtomicBool::new(false);
    if FOUND.load(Ordering::Relaxed) {
        return Ok(());
    }
    forks::watched()?;
    let list = verbs::DeviceList::new()?;
    if list.devices().is_empty() {
        return Err(Errno::ENODEV);
    }
    device::keep(list);
    FOUND.store(true, Ordering::Relaxed);
    Ok(())
}

/// Binds a throw-away id to the wildcard AF_IB address of the TCP port space.
fn probe_af_ib(channel: RawFd) -> Result<bool> {
    let id = ucma::create_id(channel, 0, rdma_port_space::RDMA_PS_IB as u16, verbs::ibv_qp_type::IBV_QPT_RC as u8)?;
    let wildcard = SockaddrIb {
        family: AF_IB as u16,
        sid: RDMA_IB_IP_PS_TCP.to_be(),
        sid_mask: RDMA_IB_IP_PS_MASK.to_be(),
        ..Default::default()
    };
    let bound = ucma::bind(channel, id, &SockAddr::from_ib(&wildcard));
    ucma::destroy_id(channel, id)?;
    match bound {
        Ok(()) => Ok(true),
        // Says nothing about the kernel, only about this moment.
        Err(error) if error == Errno::ENOMEM || error.get() == libc::EINTR => Err(error),
        Err(_) => Ok(false),
    }
}
