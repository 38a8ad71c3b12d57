//! The RDMA devices that the process has open, with the PD and XRC domain that the ids on a device
//! share.
//!
//! A device is opened when the first id is bound to it and stays open until the process ends:
//! programs use `id->verbs`, and objects created on it, after the id is destroyed, and threads that
//! use them may run until the process ends. A device that was removed from the machine is the only
//! exception: it is closed when it has no more uses.
//!
//! [`get_devices`] lists all devices of the machine.

use std::ffi::c_int;
use std::mem::{ManuallyDrop, size_of};
use std::ptr::{self, NonNull};

use super::global::{self, GlobalLock};
use crate::errno::{Errno, Result};
use crate::os::alloc::try_push;
use crate::os::cancel::in_call;
use crate::os::event::EventFd;
use crate::os::fork::Owner;
use crate::verbs::{self, DeviceList, ibv_context, ibv_cq, ibv_device, ibv_pd, ibv_xrcd};

/// Lock order: only locks of rsockets and an id's `qp_use` may be held when this lock is taken
/// (docs/concurrency.md).
pub(super) static REGISTRY: GlobalLock<Registry> = GlobalLock::new(Registry::new());

/// The open devices.
pub struct Registry {
    slots: Vec<Option<Open>>,
    /// The latest device list from [`cache_list`] or [`acquire`].
    listed: Option<DeviceList>,
}

struct Open {
    identity: Identity,
    context: NonNull<ibv_context>,
    limits: Limits,
    /// For each port number, whether the port's link layer is InfiniBand; `None` before the query.
    infiniband: [Option<bool>; 256],
    /// See [`occupy_bad_offset`].
    filler: Option<NonNull<ibv_cq>>,
    pd: Option<NonNull<ibv_pd>>,
    xrcd: Option<NonNull<ibv_xrcd>>,
    /// Number of uses: ids bound to the device, PDs of connections on the device, and lists from
    /// [`hold_all`] that contain the device. The PD and the XRC domain are kept while `uses` is not
    /// 0.
    uses: usize,
    /// Whether the device was removed from the machine.
    gone: bool,
    /// The process that opened the device. The kernel does not let child processes use the device.
    owner: Owner,
}

// SAFETY: the pointers are libibverbs objects, which any thread may use.
unsafe impl Send for Open {}

/// The limits of a device for a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// RDMA reads and atomics outstanding to the peer.
    pub initiator_depth: u8,
    /// RDMA reads and atomics outstanding from the peer.
    pub responder_resources: u8,
    /// Work requests in the send or the receive queue of a QP.
    pub work_requests: u32,
    /// Entries of a CQ.
    pub completions: u32,
}

/// A use of a device, by an id or by a connection's PD. [`release`] ends the use.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    slot: usize,
    /// The open device.
    pub context: NonNull<ibv_context>,
    /// The PD that all ids on the device share.
    pub pd: NonNull<ibv_pd>,
    /// The limits of the device.
    pub limits: Limits,
}

// SAFETY: the pointers are libibverbs objects, which any thread may use.
unsafe impl Send for Bound {}

/// Keeps `list` for the first device that is opened. Drops `list` if a thread holds the lock,
/// because the caller must not wait (library.rs).
pub fn cache_list(list: DeviceList) {
    if let Some(mut registry) = REGISTRY.try_lock() {
        registry.listed = Some(list);
    }
}

/// Binds an id to the device that the kernel named by node GUID (network byte order) and index.
/// Opens the device if necessary.
pub fn acquire(guid: u64, index: Option<u32>) -> Result<Bound> {
    let mut registry = REGISTRY.lock();
    let slot = match registry.find(guid, index) {
        Some(slot) => slot,
        None => in_call(|| registry.open_named(guid, index).map_err(|error| lack().unwrap_or(unavailable(error))))?,
    };
    let device = registry.device(slot)?;
    let pd = match device.pd {
        Some(pd) => pd,
        // SAFETY: the context of a registered device is open.
        None => *device.pd.insert(unsafe { verbs::alloc_pd(device.context)? }),
    };
    device.uses += 1;
    Ok(Bound { slot, context: device.context, pd, limits: device.limits })
}

/// Adds another use of a device to which an id is bound. [`release`] ends this use, too.
pub fn share(bound: &Bound) -> Result<Bound> {
    let mut registry = REGISTRY.lock();
    registry.device(bound.slot)?.uses += 1;
    Ok(*bound)
}

/// Ends a use of the device. Frees the PD and the XRC domain if there are no more uses.
pub fn release(bound: Bound) {
    REGISTRY.lock().end_use(bound.slot);
}

/// Returns the XRC domain that all ids on the device share. Opens the domain if necessary.
pub fn xrcd(bound: &Bound) -> Result<NonNull<ibv_xrcd>> {
    let mut registry = REGISTRY.lock();
    let device = registry.device(bound.slot)?;
    match device.xrcd {
        Some(xrcd) => Ok(xrcd),
        // SAFETY: the context of a registered device is open.
        None => Ok(*device.xrcd.insert(unsafe { verbs::open_xrcd(device.context)? })),
    }
}

/// Returns whether the link layer of a port is InfiniBand. The result of the query is kept. The
/// query is made without the lock, because it may wait for the device's firmware; the caller's id
/// keeps the device open meanwhile.
pub fn is_infiniband(bound: &Bound, port: u8) -> Result<bool> {
    let index = usize::from(port);
    if let Some(known) = REGISTRY.lock().device(bound.slot)?.infiniband[index] {
        return Ok(known);
    }
    // SAFETY: the device of an id that is bound to it is open.
    let attr = unsafe { verbs::query_port(bound.context, port)? };
    let infiniband = u32::from(attr.link_layer) == verbs::IBV_LINK_LAYER_INFINIBAND;
    REGISTRY.lock().device(bound.slot)?.infiniband[index] = Some(infiniband);
    Ok(infiniband)
}

/// Opens all devices of the machine and keeps them open until [`release_held`]. A device that
/// cannot be opened is left out; but if `ends` returns true for the error, the call fails with this
/// error. Fails with `ENODEV` if there are no devices.
pub fn hold_all(ends: impl Fn(Errno) -> bool) -> Result<Vec<NonNull<ibv_context>>> {
    let mut registry = REGISTRY.lock();
    let list = DeviceList::new().map_err(|error| lack().filter(|&lack| ends(lack)).unwrap_or(error))?;
    if list.devices().is_empty() {
        return Err(Errno::ENODEV);
    }
    registry.forget_missing(list.devices());
    let mut contexts = Vec::new();
    contexts.try_reserve_exact(list.devices().len()).map_err(|_| Errno::ENOMEM)?;
    for &device in list.devices() {
        // SAFETY: `list` exists.
        let slot = unsafe {
            let identity = Identity::of(device);
            registry.find(identity.guid, identity.index).map_or_else(|| registry.open(device), Ok)
        };
        match slot.and_then(|slot| registry.device(slot)) {
            Ok(open) => {
                contexts.push(open.context);
                open.uses += 1;
            }
            Err(error) if ends(error) => {
                drop(registry);
                contexts.into_iter().for_each(release_held);
                return Err(error);
            }
            // Leave this device out.
            Err(_) => {}
        }
    }
    Ok(contexts)
}

/// Ends the use of a context from [`hold_all`].
pub fn release_held(context: NonNull<ibv_context>) {
    let mut registry = REGISTRY.lock();
    let held = |slot: &Option<Open>| slot.as_ref().is_some_and(|open| open.context == context && open.uses > 0);
    if let Some(slot) = registry.slots.iter().position(held) {
        registry.end_use(slot);
    }
}

impl Registry {
    pub(super) const fn new() -> Registry {
        Registry { slots: Vec::new(), listed: None }
    }

    /// Returns the open device in a slot. Fails with `ENODEV` if the slot is empty.
    fn device(&mut self, slot: usize) -> Result<&mut Open> {
        self.slots.get_mut(slot).and_then(Option::as_mut).ok_or(Errno::ENODEV)
    }

    fn end_use(&mut self, slot: usize) {
        if let Ok(device) = self.device(slot) {
            device.uses -= 1;
            self.free_unused(slot);
        }
    }

    /// Returns the slot of the named device if this process has opened it and the device is not
    /// gone.
    fn find(&self, guid: u64, index: Option<u32>) -> Option<usize> {
        let is_it = |open: &Open| !open.gone && open.owner.is_this_process() && open.identity.matches(guid, index);
        self.slots.iter().position(|slot| slot.as_ref().is_some_and(is_it))
    }

    /// Opens the named device from the cached list and returns its slot. If the list lacks the
    /// device, or the device does not open, tries a new list, unless the error does not concern the
    /// device ([`may_pass`]).
    fn open_named(&mut self, guid: u64, index: Option<u32>) -> Result<usize> {
        let listed = self.listed.as_ref().and_then(|list| named(list, guid, index));
        // SAFETY: the cached list, which has the device, exists.
        let tried = listed.map(|device| unsafe { self.open(device) });
        match tried {
            Some(Ok(slot)) => return Ok(slot),
            Some(Err(error)) if may_pass(error) => return Err(error),
            _ => {}
        }
        let list = DeviceList::new()?;
        self.forget_missing(list.devices());
        let device = named(&list, guid, index).ok_or(Errno::ENODEV);
        let opened = match (device?, tried) {
            // The same device failed to open above: libibverbs keeps the structure of a device as
            // long as a list contains the device.
            (device, Some(failed)) if Some(device) == listed => failed,
            // SAFETY: `list` exists.
            (device, _) => unsafe { self.open(device) },
        };
        self.listed = Some(list);
        opened
    }

    /// Opens a device and returns its slot.
    ///
    /// # Safety
    /// The device is in a list that is not freed yet.
    unsafe fn open(&mut self, device: *mut ibv_device) -> Result<usize> {
        let slot = match self.slots.iter().position(Option::is_none) {
            Some(slot) => slot,
            None => {
                try_push(&mut self.slots, None)?;
                self.slots.len() - 1
            }
        };
        // SAFETY: libibverbs frees no device of a list that exists.
        let (identity, context) = unsafe { (Identity::of(device), verbs::open(device)?) };
        // SAFETY: the context was opened above.
        let attr = unsafe { verbs::query_device(context) }.inspect_err(|_| {
            // SAFETY: opened above, and used by nothing yet.
            unsafe { verbs::close(context) }
        })?;
        let limits = Limits {
            initiator_depth: clamp(attr.max_qp_init_rd_atom),
            responder_resources: clamp(attr.max_qp_rd_atom),
            work_requests: u32::try_from(attr.max_qp_wr).unwrap_or(0),
            completions: u32::try_from(attr.max_cqe).unwrap_or(0),
        };
        self.slots[slot] = Some(Open {
            identity,
            context,
            limits,
            infiniband: [None; 256],
            // SAFETY: the context was opened above.
            filler: (attr.vendor_id == SOFT_IWARP).then(|| unsafe { occupy_bad_offset(context) }).flatten(),
            owner: Owner::this_process(),
            pd: None,
            xrcd: None,
            uses: 0,
            gone: false,
        });
        Ok(slot)
    }

    /// Marks the devices that were removed from the machine as gone, and closes those that are not
    /// in use.
    fn forget_missing(&mut self, present: &[*mut ibv_device]) {
        for slot in 0..self.slots.len() {
            let Ok(open) = self.device(slot) else { continue };
            // SAFETY: `own` is the device of an open context, and the list that `present` borrows
            // from exists.
            open.gone = unsafe {
                let own = verbs::device_of(open.context);
                let listed = present.iter().map(|&device| Identity::of(device));
                is_gone(&open.identity, listed, || verbs::is_in_sysfs(own))
            };
            self.free_unused(slot);
        }
    }

    /// Frees the PD and the XRC domain of a device without uses, and closes it if it was removed
    /// from the machine. Does nothing for a device that a parent process opened.
    fn free_unused(&mut self, slot: usize) {
        let is_unused = |open: &&mut Open| open.uses == 0 && open.owner.is_this_process();
        let Some(open) = self.device(slot).ok().filter(is_unused) else { return };
        // SAFETY: nothing in the library uses the PD, the XRC domain or the context any more, and a
        // program destroys its objects on them before its last id and its last list.
        in_call(|| unsafe {
            if let Some(xrcd) = open.xrcd.take() {
                verbs::close_xrcd(open.context, xrcd);
            }
            if let Some(pd) = open.pd.take() {
                verbs::dealloc_pd(pd);
            }
            if open.gone {
                open.filler.take().into_iter().for_each(|filler| _ = verbs::destroy_cq(filler));
                verbs::close(open.context);
            }
        });
        if open.gone {
            self.slots[slot] = None;
        }
    }
}

/// The vendor id of soft-iWARP.
const SOFT_IWARP: u32 = 0x0062_6d74;

/// Returns a CQ of soft-iWARP that nobody uses. Its provider takes a CQ or QP whose memory the kernel
/// maps at offset 0x90000 of the device file for one without memory, and fails without an errno. The
/// kernel assigns the lowest free offset, so this CQ of 17 pages, created above another one of 129
/// pages, keeps that offset from all others. Without memory there is none.
///
/// # Safety
/// The context is open, and has no objects.
unsafe fn occupy_bad_offset(context: NonNull<ibv_context>) -> Option<NonNull<ibv_cq>> {
    // SAFETY: the context is open: guaranteed by the caller. The CQ below is destroyed once.
    unsafe {
        let create = |entries| verbs::create_cq(context, entries, ptr::null_mut(), ptr::null_mut(), 0);
        let below = create(1 << 14).ok()?;
        let filler = create(1 << 11);
        let _ = verbs::destroy_cq(below);
        filler.ok()
    }
}

/// Identifies a device.
#[derive(Clone, Copy)]
struct Identity {
    guid: u64,
    index: Option<u32>,
    name: verbs::DeviceName,
}

impl Identity {
    /// # Safety
    /// `device` is live.
    unsafe fn of(device: *mut ibv_device) -> Identity {
        // SAFETY: `device` is live: guaranteed by the caller.
        unsafe { Identity { guid: verbs::guid(device), index: verbs::index(device), name: verbs::name(device) } }
    }

    /// Returns whether the device has this GUID and this index. An unknown index matches any index.
    fn matches(&self, guid: u64, index: Option<u32>) -> bool {
        self.guid == guid && (self.index.is_none() || index.is_none() || self.index == index)
    }
}

/// Returns whether a device was removed from the machine. A device that is not listed may still
/// exist: libibverbs silently leaves devices out of a list if descriptors run out. So the device
/// counts as removed only if, in addition, the list has another device with the same name, or sysfs
/// has no device with this name.
fn is_gone(
    device: &Identity,
    mut listed: impl Iterator<Item = Identity> + Clone,
    is_in_sysfs: impl FnOnce() -> bool,
) -> bool {
    let is_listed = listed.clone().any(|other| other.matches(device.guid, device.index));
    !is_listed && (listed.any(|other| other.name == device.name) || !is_in_sysfs())
}

/// Tries to open a descriptor, because libibverbs does not report a lack of descriptors. Returns
/// the error, or `None` if a descriptor was opened.
fn lack() -> Option<Errno> {
    EventFd::new().err()
}

/// Returns the error to report for a device that does not open: `ENODEV`, unless memory or
/// descriptors ran out or a signal interrupted the call.
fn unavailable(error: Errno) -> Errno {
    if may_pass(error) { error } else { Errno::ENODEV }
}

/// Returns whether `error` does not concern the device: memory or descriptors ran out, or a signal
/// interrupted the call.
pub(super) fn may_pass(error: Errno) -> bool {
    matches!(error, Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE | Errno::EINTR)
}

fn named(list: &DeviceList, guid: u64, index: Option<u32>) -> Option<*mut ibv_device> {
    list.devices().iter().copied().find(|&device| {
        // SAFETY: `list` exists.
        unsafe { Identity::of(device) }.matches(guid, index)
    })
}

/// Limits a maximum from libibverbs to the eight bits of connection parameters.
fn clamp(maximum: c_int) -> u8 {
    maximum.clamp(0, c_int::from(u8::MAX)) as u8
}

/// A NULL-terminated array of device contexts. Dropping the value releases the contexts and frees
/// the array: rdma_free_devices(3).
#[derive(Debug)]
pub struct DeviceContexts(NonNull<*mut ibv_context>);

impl DeviceContexts {
    /// Takes back an array from [`into_c`](Self::into_c). Returns `None` for NULL.
    ///
    /// # Safety
    /// `array` is NULL or from `into_c`. From now on, nothing uses the array, or a context that has
    /// no other use.
    pub unsafe fn from_c(array: *mut *mut ibv_context) -> Option<DeviceContexts> {
        NonNull::new(array).map(DeviceContexts)
    }

    /// Hands the array over to the program.
    pub fn into_c(self) -> NonNull<*mut ibv_context> {
        ManuallyDrop::new(self).0
    }

    fn contexts(&self) -> impl Iterator<Item = NonNull<ibv_context>> {
        // SAFETY: `new` made the array and put a NULL after the last context.
        (0..).map_while(|index| NonNull::new(unsafe { self.0.add(index).read() }))
    }

    /// Returns the number of devices.
    pub fn count(&self) -> usize {
        self.contexts().count()
    }

    /// Takes over the contexts from [`hold_all`]. Releases them on failure.
    fn new(contexts: &[NonNull<ibv_context>]) -> Result<DeviceContexts> {
        // SAFETY: calloc() takes any size.
        let memory = unsafe { libc::calloc(contexts.len() + 1, size_of::<*mut ibv_context>()) };
        let Some(array) = NonNull::new(memory.cast::<*mut ibv_context>()) else {
            contexts.iter().for_each(|&context| release_held(context));
            return Err(Errno::ENOMEM);
        };
        for (index, context) in contexts.iter().enumerate() {
            // SAFETY: the array has one element more than there are contexts.
            unsafe { array.add(index).write(context.as_ptr()) };
        }
        Ok(DeviceContexts(array))
    }
}

impl Drop for DeviceContexts {
    fn drop(&mut self) {
        self.contexts().for_each(release_held);
        // SAFETY: from calloc() in `new`.
        unsafe { libc::free(self.0.as_ptr().cast()) };
    }
}

/// Implements rdma_get_devices(3). The array is empty if no device can be opened.
///
/// # Errors
/// Fails with `ENODEV` if there are no RDMA devices.
pub fn get_devices() -> Result<DeviceContexts> {
    global::register()?;
    DeviceContexts::new(&hold_all(|_| false)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_index_matches_any() {
        let is_it = |index, guid, given| Identity { guid: 1, index, name: [0; 64] }.matches(guid, given);
        assert!(is_it(Some(0), 1, Some(0)));
        assert!(!is_it(Some(0), 1, Some(1)));
        assert!(is_it(None, 1, Some(1)));
        assert!(is_it(Some(3), 1, None));
        assert!(!is_it(None, 2, None));
    }

    /// A device is gone if its name now belongs to another device, or to no device.
    #[test]
    fn an_incomplete_list_removes_no_device() {
        let identity = |guid, name| Identity { guid, index: Some(1), name: [name; 64] };
        let device = identity(1, 1);
        let gone = |listed: &[Identity], exists| is_gone(&device, listed.iter().copied(), || exists);
        assert!(!gone(&[identity(2, 2), device], false));
        assert!(!gone(&[], true));
        assert!(!gone(&[identity(2, 2)], true));
        assert!(gone(&[identity(2, 1)], true));
        assert!(gone(&[identity(2, 2)], false));
        assert!(gone(&[], false));
    }

    /// A device that this process has opened and no id uses.
    fn unused_device(guid: u64) -> Open {
        Open {
            identity: Identity { guid, index: Some(1), name: [0; 64] },
            context: NonNull::dangling(),
            limits: Limits { initiator_depth: 1, responder_resources: 1, work_requests: 1, completions: 1 },
            infiniband: [None; 256],
            filler: None,
            pd: None,
            xrcd: None,
            uses: 0,
            gone: false,
            owner: Owner::this_process(),
        }
    }

    #[test]
    fn a_device_that_is_gone_or_of_another_process_is_opened_anew() {
        let mut registry = Registry::new();
        registry.slots.push(Some(unused_device(7)));
        assert_eq!(registry.find(7, Some(1)), Some(0));
        registry.device(0).unwrap().gone = true;
        assert_eq!(registry.find(7, Some(1)), None);
        registry.device(0).unwrap().gone = false;
        registry.device(0).unwrap().owner = Owner::NO_PROCESS;
        assert_eq!(registry.find(7, Some(1)), None);
    }

    #[test]
    fn the_last_use_leaves_a_device_unused() {
        let slot = {
            let mut registry = REGISTRY.lock();
            registry.slots.push(Some(Open { uses: 1, owner: Owner::NO_PROCESS, ..unused_device(8) }));
            registry.slots.len() - 1
        };
        let limits = REGISTRY.lock().device(slot).unwrap().limits;
        let bound = Bound { slot, context: NonNull::dangling(), pd: NonNull::dangling(), limits };
        let shared = share(&bound).unwrap();
        for left in [1, 0] {
            release(shared);
            assert_eq!(REGISTRY.lock().device(slot).unwrap().uses, left);
        }
        REGISTRY.lock().slots[slot] = None;
    }

    #[test]
    fn device_maxima_fit_eight_bits() {
        assert_eq!((clamp(-1), clamp(128), clamp(1000)), (0, 128, 255));
    }
}
