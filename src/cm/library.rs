//! Properties of the kernel that are determined once per process: device node, command set version,
//! AF_IB support.

use once_cell::race::{OnceBool, OnceBox};

use super::{device_registry, global};
use crate::acm::addr::{ib, with_port};
use crate::errno::{Errno, Result};
use crate::ffi::rdma_port_space;
use crate::os::alloc::try_box;
use crate::os::cancel::in_call;
use crate::os::sockaddr::SockAddr;
use crate::ucm::chardev::RdmaCm;
use crate::{ucm, verbs};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The kernel's connection manager, as determined once per process.
#[derive(Debug)]
pub struct Library {
    /// The character device behind event channels.
    pub node: RdmaCm,
    /// The result of [`Library::af_ib`], determined with the first channel.
    af_ib: OnceBool,
}

impl Library {
    /// Returns whether the kernel supports AF_IB addresses, and thus the commands that were added
    /// with them. Returns false if the device cannot be opened: no command can be sent then.
    #[inline]
    pub fn af_ib(&self) -> Result<bool> {
        self.af_ib.get().map_or_else(|| self.open_and_find_af_ib(), Ok)
    }

    #[cold]
    fn open_and_find_af_ib(&self) -> Result<bool> {
        in_call(|| match self.node.try_open() {
            Ok(channel) => self.find_af_ib(channel.as_raw_fd()),
            Err(_) => Ok(false),
        })
    }

    /// Like [`af_ib`](Self::af_ib), but uses an open channel for the test.
    pub fn find_af_ib(&self, channel: RawFd) -> Result<bool> {
        self.af_ib.get_or_try_init(|| probe_af_ib(channel))
    }
}

/// No thread waits for another thread to initialize the library: the other thread may not exist in
/// the child of a fork(), or a signal handler may have interrupted it. Concurrent threads determine
/// the same value, and the first one is kept.
static LIBRARY: OnceBox<Library> = OnceBox::new();

/// Returns the library, which the first successful call initializes. Fails with `ENODEV` if there
/// are no RDMA devices, with `EPERM` if the kernel's command set version is not supported,
/// otherwise with the error of finding the device node or the devices.
#[inline]
pub fn library() -> Result<&'static Library> {
    LIBRARY.get().map_or_else(find, Ok)
}

#[cold]
fn find() -> Result<&'static Library> {
    global::register()?;
    in_call(|| LIBRARY.get_or_try_init(|| try_box(discover()?)))
}

fn discover() -> Result<Library> {
    let node = RdmaCm::discover()?;
    need_devices()?;
    Ok(Library { node, af_ib: OnceBool::new() })
}

/// Fails with `ENODEV` if there are no RDMA devices. Needs libibverbs only: the node of the
/// connection manager may be inaccessible. Success is remembered, and the list of devices is cached
/// for the first device that is opened.
pub fn need_devices() -> Result<()> {
    static FOUND: AtomicBool = AtomicBool::new(false);
    if FOUND.load(Ordering::Relaxed) {
        return Ok(());
    }
    global::register()?;
    let list = verbs::DeviceList::new()?;
    if list.devices().is_empty() {
        return Err(Errno::ENODEV);
    }
    device_registry::cache_list(list);
    FOUND.store(true, Ordering::Relaxed);
    Ok(())
}

/// Tests AF_IB: binds a temporary id to the wildcard AF_IB address of the TCP port space.
fn probe_af_ib(channel: RawFd) -> Result<bool> {
    let id = ucm::create_id(channel, 0, rdma_port_space::RDMA_PS_IB as u16, verbs::ibv_qp_type::IBV_QPT_RC as u8)?;
    let wildcard = with_port(ib([0; 16], 0), rdma_port_space::RDMA_PS_TCP as u16, 0);
    let bound = ucm::bind(channel, id, &SockAddr::from_ib(&wildcard));
    ucm::destroy_id(channel, id)?;
    match bound {
        Ok(()) => Ok(true),
        // A transient error says nothing about the kernel.
        Err(error @ (Errno::ENOMEM | Errno::EINTR)) => Err(error),
        Err(_) => Ok(false),
    }
}
