//! Ids: the public structure with its addresses, and the library's private data behind it.
//!
//! An id can be freed once the program has acknowledged all events that the kernel reported, which
//! [`Completed`] counts. The kernel learns the library's `uid` for the id of a connection request
//! when the program accepts. Some kernels report earlier events of this id with the handle only:
//! the table [`HANDLES`] maps the handle to the id.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::hash::BuildHasherDefault;
use std::mem::zeroed;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use base::sleep::{futex_wait, futex_wake};
use libc::sockaddr_storage;
use smallvec::SmallVec;

use super::addrinfo::Pending;
use super::device_registry::{Bound, Limits};
use super::global::GlobalLock;
use super::objects::Qp;
use crate::errno::{Errno, Result};
use crate::ffi::{ibv_sa_path_rec, rdma_addr, rdma_cm_event, rdma_cm_id, rdma_event_channel};
use crate::os::library_fds::OwnFd;
use crate::os::numbered::Numbered;
use crate::os::sockaddr::{SockAddr, overwrite};
use crate::os::sync::{Mutex, MutexGuard};
use crate::os::uapi::rdma_ucm_ece;
use crate::verbs::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_qp_type, ibv_srq,
    ibv_transport_type,
};

/// An id: `struct rdma_cm_id`, which programs read and write, followed by the library's private
/// data.
///
/// The kernel sends the id's address back in events (`uid`), so the id never moves. The public
/// fields have no lock: C programs order their uses of an id themselves (rdma_cm(7)).
#[repr(C)]
pub struct Id {
    public: UnsafeCell<rdma_cm_id>,
    /// The kernel's handle of the id.
    handle: AtomicU32,
    /// Whether the id is synchronous: it owns its channel, and every operation waits for its event.
    sync: AtomicBool,
    /// Held while an event uses the QP, and while the QP is destroyed: one thread may read events
    /// while another destroys the QP.
    qp_use: Mutex<()>,
    /// Counts the events of the id, including those of its multicast groups.
    pub(super) completed: Completed,
    state: Mutex<State>,
}

// SAFETY: programs order their uses of the public part (see above); the rest is locked or atomic.
unsafe impl Sync for Id {}

/// The private part of an id, under its lock. The lock is not held during calls to the kernel or to
/// libibverbs.
#[derive(Default)]
pub(super) struct State {
    /// The device; `None` before the id has a device.
    pub bound: Option<Bound>,
    /// RDMA reads and atomics outstanding to the peer, as negotiated.
    pub initiator_depth: u8,
    /// RDMA reads and atomics outstanding from the peer, as negotiated.
    pub responder_resources: u8,
    /// Whether the library failed to complete the connection after the peer had accepted. Later
    /// REJECTED and DISCONNECTED events are not shown then.
    pub connect_failed: bool,
    /// Whether connection requests of this listener may be shown without an open device.
    /// [`resolve::open_request_device`](super::resolve::open_request_device) opens the device
    /// later.
    pub defers_devices: bool,
    /// Whether this is the id of a connection request (see `defers_devices`) whose device is not
    /// open, or whose addresses and paths were not all queried.
    pub is_incomplete: bool,
    /// Options in the peer's request or reply (enhanced connection establishment).
    pub remote_ece: rdma_ucm_ece,
    /// Options to offer, or negotiated options.
    pub local_ece: rdma_ucm_ece,
    /// The array behind `route.path_rec`: nearly always one record.
    pub paths: SmallVec<[ibv_sa_path_rec; 1]>,
    /// Data that precedes the private data of a connection request (`ai_connect` of an endpoint).
    pub connect_data: Vec<u8>,
    /// The attributes for the QPs of a passive endpoint's connections.
    pub template: Option<ibv_qp_init_attr>,
    /// State of rdma_resolve_addrinfo(3).
    pub search: Pending,
    /// The multicast memberships of the id.
    #[allow(clippy::vec_box, reason = "the kernel identifies a membership by its address")]
    pub groups: Vec<Box<Group>>,
    /// The files from which `channel::move_to_new_file` has moved the id. Each file is kept until
    /// the connection requests that are pending on it are read.
    pub former: Vec<OwnFd>,
}

/// A multicast membership of an id. The membership is boxed, because its address is the `uid` of
/// its events.
pub(super) struct Group {
    pub(super) id: NonNull<Id>,
    /// The kernel's handle of the membership, which the kernel writes here.
    pub(super) handle: AtomicU32,
    /// The program's context for the join.
    pub(super) context: *mut c_void,
    pub(super) addr: SockAddr,
    pub(super) send_only: bool,
    /// Counts the completed events of the membership, which the id counts, too.
    pub(super) completed: Completed,
    /// GID and LID to which the QP is attached; `None` if the QP is not attached.
    pub(super) attached: Mutex<Option<(ibv_gid, u16)>>,
}

// SAFETY: a state's pointers refer to libibverbs objects, which any thread may use.
unsafe impl Send for State {}

/// Defines methods that read and write fields of the public structure.
macro_rules! public_fields {
    ($($field:ident $set:ident: $type:ty;)*) => {
        impl Id {
            $(
                #[doc = concat!("The public field `", stringify!($field), "`.")]
                pub fn $field(&self) -> $type {
                    // SAFETY: a plain field of a live structure, which the program does not write
                    // during the call.
                    unsafe { (*self.public.get()).$field }
                }

                #[doc = concat!("Sets the public field `", stringify!($field), "`.")]
                pub(super) fn $set(&self, value: $type) {
                    // SAFETY: a plain field of a live structure, which the program does not access
                    // during the call.
                    unsafe { (*self.public.get()).$field = value }
                }
            )*
        }
    };
}

public_fields! {
    verbs set_verbs: *mut ibv_context;
    channel set_channel: *mut rdma_event_channel;
    context set_context: *mut c_void;
    qp set_qp: *mut ibv_qp;
    ps set_ps: u32;
    port_num set_port_num: u8;
    event set_event: *mut rdma_cm_event;
    send_cq_channel set_send_cq_channel: *mut ibv_comp_channel;
    send_cq set_send_cq: *mut ibv_cq;
    recv_cq_channel set_recv_cq_channel: *mut ibv_comp_channel;
    recv_cq set_recv_cq: *mut ibv_cq;
    srq set_srq: *mut ibv_srq;
    pd set_pd: *mut ibv_pd;
    qp_type set_qp_type: u32;
}

impl Id {
    /// Returns the id behind a program's pointer.
    ///
    /// # Errors
    /// Fails with `EINVAL` for NULL.
    ///
    /// # Safety
    /// `id` is NULL, or an id of this library that is not destroyed while the reference is used.
    /// The libibverbs objects in its public fields are live, and its QP, SRQ and CQs are used by
    /// nothing but the id and the program.
    pub unsafe fn from_c<'a>(id: *mut rdma_cm_id) -> Result<&'a Id> {
        // SAFETY: ids of this library come from `OwnedId::into_c`: the public structure is the
        // beginning of an `Id`.
        unsafe { id.cast::<Id>().as_ref() }.ok_or(Errno::EINVAL)
    }

    /// Creates an id that the kernel does not know yet.
    #[inline]
    pub(super) fn new(context: *mut c_void, ps: u32, qp_type: u32) -> Id {
        // SAFETY: all zeros are a value of this structure of numbers and pointers.
        let public: rdma_cm_id = unsafe { zeroed() };
        let id = Id {
            public: UnsafeCell::new(public),
            handle: AtomicU32::new(u32::MAX),
            sync: AtomicBool::new(false),
            qp_use: Mutex::new(()),
            completed: Completed::default(),
            state: Mutex::new(State::default()),
        };
        id.set_context(context);
        id.set_ps(ps);
        id.set_qp_type(qp_type);
        id
    }

    /// Returns the pointer by which programs know the id.
    pub fn as_c(&self) -> *mut rdma_cm_id {
        self.public.get()
    }

    /// Returns the number that the kernel puts into the id's events: the id's address.
    pub(super) fn uid(&self) -> u64 {
        ptr::from_ref(self) as usize as u64
    }

    /// Returns the descriptor of the id's channel.
    pub(super) fn fd(&self) -> c_int {
        // SAFETY: an id's channel is open as long as the id: its own channel is destroyed with it,
        // and any other channel outlives it (`EventChannel::from_c`).
        unsafe { (*self.channel()).fd }
    }

    /// Returns the kernel's handle of the id, or `u32::MAX` before the kernel has assigned one.
    pub(super) fn handle(&self) -> u32 {
        self.handle.load(Ordering::Relaxed)
    }

    pub(super) fn set_handle(&self, handle: u32) {
        self.handle.store(handle, Ordering::Relaxed);
    }

    pub(super) fn is_sync(&self) -> bool {
        self.sync.load(Ordering::Relaxed)
    }

    pub(super) fn set_sync(&self, sync: bool) {
        self.sync.store(sync, Ordering::Relaxed);
    }

    /// Returns whether the id is for datagrams. Such an id has no connection, and its events have
    /// `rdma_ud_param` parameters.
    pub(crate) fn is_ud(&self) -> bool {
        self.qp_type() == ibv_qp_type::IBV_QPT_UD
    }

    /// Locks the private part.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the limits of the id's device, or `None` before the id has a device.
    pub fn limits(&self) -> Option<Limits> {
        self.state().bound.map(|bound| bound.limits)
    }

    /// Returns the addresses of the id's route.
    pub fn addr(&self) -> *mut rdma_addr {
        // SAFETY: the address of a field of a live structure.
        unsafe { &raw mut (*self.public.get()).route.addr }
    }

    /// Returns the first path record of the id's route.
    pub fn first_path(&self) -> Option<ibv_sa_path_rec> {
        self.state().paths.first().copied()
    }

    /// Replaces [`State::paths`], and points the public fields at the new path records.
    pub(super) fn set_paths(&self, new: impl ExactSizeIterator<Item = ibv_sa_path_rec>) -> Result<()> {
        let paths = &mut self.state().paths;
        paths.try_reserve(new.len().saturating_sub(paths.len())).map_err(|_| Errno::ENOMEM)?;
        paths.clear();
        paths.extend(new);
        let (records, count) = match paths.as_mut_slice() {
            [] => (ptr::null_mut(), 0),
            paths => (paths.as_mut_ptr(), paths.len() as c_int),
        };
        // SAFETY: plain fields of a live structure, which the program does not access during the
        // call.
        unsafe {
            (*self.public.get()).route.path_rec = records;
            (*self.public.get()).route.num_paths = count;
        }
        Ok(())
    }

    /// Returns the transport of the id's device, or `None` before the id has a device.
    pub fn transport(&self) -> Option<ibv_transport_type> {
        NonNull::new(self.verbs()).map(|verbs| {
            // SAFETY: an open context has a device.
            unsafe { (*(*verbs.as_ptr()).device).transport_type }
        })
    }

    /// Returns the context of the id's device, which the registry keeps open (`State::bound`).
    /// Fails with `EINVAL` before the id has a device.
    pub(super) fn device_context(&self) -> Result<NonNull<ibv_context>> {
        NonNull::new(self.verbs()).ok_or(Errno::EINVAL)
    }

    /// Returns the id's QP, if the id has one.
    pub(super) fn own_qp(&self) -> Option<Qp> {
        // SAFETY: the QP in an id is live (`from_c`): the field is cleared when the QP is
        // destroyed.
        NonNull::new(self.qp()).map(|qp| unsafe { Qp::new(qp) })
    }

    /// Prevents the QP from being destroyed as long as the returned guard exists.
    pub(super) fn keep_qp(&self) -> MutexGuard<'_, ()> {
        self.qp_use.lock()
    }
}

impl Id {
    /// Returns the local address. The family is 0 before the id is bound.
    pub fn source(&self) -> sockaddr_storage {
        // SAFETY: the route is part of the id, and any bytes are a value of sockaddr_storage.
        unsafe { (*self.addr()).src.src_storage }
    }

    /// Sets the first bytes of the local address.
    pub(super) fn write_source(&self, bytes: &[u8]) {
        // SAFETY: the route is part of the id.
        overwrite(unsafe { &mut (*self.addr()).src.src_storage }, bytes);
    }

    /// Returns the remote address. The family is 0 before the id has a destination.
    pub fn destination(&self) -> sockaddr_storage {
        // SAFETY: the route is part of the id, and any bytes are a value of sockaddr_storage.
        unsafe { (*self.addr()).dst.dst_storage }
    }

    /// Sets the first bytes of the remote address.
    pub(super) fn write_destination(&self, bytes: &[u8]) {
        // SAFETY: the route is part of the id.
        overwrite(unsafe { &mut (*self.addr()).dst.dst_storage }, bytes);
    }

    /// Returns the P_Key, in network byte order.
    pub(super) fn pkey(&self) -> u16 {
        // SAFETY: the route is part of the id, and any two bytes are a valid u16.
        unsafe { (*self.addr()).addr.ibaddr.pkey }
    }

    /// Sets the P_Key, in network byte order.
    pub(super) fn set_pkey(&self, pkey: u16) {
        // SAFETY: the route is part of the id.
        unsafe { (*self.addr()).addr.ibaddr.pkey = pkey }
    }

    /// Sets the GIDs of both ends.
    pub(super) fn set_gids(&self, source: [u8; 16], destination: [u8; 16]) {
        // SAFETY: the route is part of the id.
        unsafe {
            let transport = &raw mut (*self.addr()).addr.ibaddr;
            (*transport).sgid = ibv_gid { raw: source };
            (*transport).dgid = ibv_gid { raw: destination };
        }
    }
}

/// Counts the events that were read from the kernel, and the events that are completed:
/// acknowledged by the program, or consumed by the library.
#[derive(Default)]
pub struct Completed {
    /// Events that were read from the kernel.
    read: AtomicU32,
    /// Twice the number of completed events, plus the flag [`AWAITED`].
    completed: AtomicU32,
}

/// Flag: threads may be in `wait_for`. If the flag is clear, completing an event needs no system
/// call.
const AWAITED: u32 = 1;

impl Completed {
    /// Counts an event that was read from the kernel. The event refers to `self` until it is
    /// completed.
    pub fn give(&self) {
        self.read.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether no event refers to `self`.
    pub fn is_done(&self) -> bool {
        let completed = self.completed.load(Ordering::Acquire) & !AWAITED;
        completed == self.read.load(Ordering::Relaxed).wrapping_mul(2)
    }

    /// Counts a completed event. From then on, a thread in `wait_for` may free `self`.
    pub fn complete(&self) {
        let word = self.completed.as_ptr();
        let next = |before: u32| Some((before & !AWAITED).wrapping_add(2));
        let (Ok(before) | Err(before)) = self.completed.fetch_update(Ordering::Release, Ordering::Relaxed, next);
        if before & AWAITED != 0 {
            futex_wake(word, i32::MAX);
        }
    }

    /// Waits until at least `reported` events are completed.
    pub fn wait_for(&self, reported: u32) {
        loop {
            let word = self.completed.load(Ordering::Acquire);
            if reported.wrapping_mul(2).wrapping_sub(word & !AWAITED) as i32 <= 0 {
                return;
            }
            let awaited = word | AWAITED;
            if self.completed.compare_exchange(word, awaited, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                futex_wait(self.completed.as_ptr(), awaited, None);
            }
        }
    }
}

/// The ids of connection requests, by handle. The table is a hash table, because handles are unique
/// among all processes: a process with few ids may have large handles.
pub(super) static HANDLES: GlobalLock<Handles> = GlobalLock::new(Handles::new());

pub(super) struct Handles(Numbered<u32, NonNull<Id>>);

// SAFETY: `Id` is `Sync`, and the table only stores addresses.
unsafe impl Send for Handles {}

impl Handles {
    pub(super) const fn new() -> Handles {
        Handles(Numbered::with_hasher(BuildHasherDefault::new()))
    }
}

/// Adds `id` under its handle.
pub(super) fn insert_handle(handle: u32, id: NonNull<Id>) -> Result<()> {
    let mut table = HANDLES.lock();
    table.0.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    table.0.insert(handle, id);
    Ok(())
}

/// Removes `id` from the table if `handle` refers to it. Another id under `handle` stays: after a
/// fork, the child may get a new id with the handle of an id that it inherited.
pub(super) fn remove_handle(handle: u32, id: NonNull<Id>) {
    let mut table = HANDLES.lock();
    if table.0.get(&handle) == Some(&id) {
        table.0.remove(&handle);
    }
}

/// Returns the id of `handle`, or `None` if the table does not have the handle.
pub(super) fn find_handle(handle: u32) -> Option<NonNull<Id>> {
    HANDLES.lock().0.get(&handle).copied()
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_public_part_comes_first() {
        assert_eq!(offset_of!(Id, public), 0);
        assert_eq!(size_of::<rdma_cm_id>(), 416);
    }

    /// The former path records are freed (scripts/asan would report a leak), and the program sees
    /// the latest.
    #[test]
    fn a_route_is_resolved_twice() {
        let ps = crate::ffi::rdma_port_space::RDMA_PS_TCP as u32;
        let id = Id::new(ptr::null_mut(), ps, ibv_qp_type::IBV_QPT_RC);
        for (round, count) in [1, 3, 0, 2].into_iter().enumerate() {
            // SAFETY: all zeros are a value of this structure.
            let record = ibv_sa_path_rec { mtu: round as u8, ..unsafe { zeroed() } };
            id.set_paths(vec![record; count].into_iter()).unwrap();
            // SAFETY: the id is live, and `path_rec` has `count` records.
            unsafe {
                let route = &(*id.public.get()).route;
                assert_eq!((route.num_paths as usize, route.path_rec.is_null()), (count, count == 0));
                assert!((0..count).all(|place| (*route.path_rec.add(place)).mtu == round as u8));
            }
        }
    }

    #[test]
    fn waits_until_all_reported_events_are_completed() {
        let completed = Arc::new(Completed::default());
        completed.wait_for(0);
        completed.give();
        assert!(!completed.is_done());
        completed.complete();
        assert!(completed.is_done());
        let other = completed.clone();
        let waiter = std::thread::spawn(move || other.wait_for(3));
        // The waiter sleeps, or is about to: one more event does not suffice.
        let await_waiter = || {
            while completed.completed.load(Ordering::Relaxed) & AWAITED == 0 {
                std::thread::yield_now();
            }
        };
        await_waiter();
        completed.complete();
        await_waiter();
        assert!(!waiter.is_finished());
        completed.complete();
        assert!(waiter.join().is_ok());
    }

    #[test]
    fn high_numbers_cost_no_more_than_low_ones() {
        let id = |number: usize| NonNull::new(std::ptr::without_provenance_mut::<Id>(number)).unwrap();
        let handles = [0, 1, 65_536, 1 << 20, u32::MAX];
        for (number, &handle) in handles.iter().enumerate() {
            insert_handle(handle, id(8 * number + 8)).unwrap();
        }
        assert!(HANDLES.lock().0.capacity() < 1000);
        remove_handle(1, id(8));
        for (number, &handle) in handles.iter().enumerate() {
            assert_eq!(find_handle(handle), Some(id(8 * number + 8)));
            remove_handle(handle, id(8 * number + 8));
            assert_eq!(find_handle(handle), None);
        }
    }
}
