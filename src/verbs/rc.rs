//! The data path of a connected QP: completion queues and channel, memory regions, work requests.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of};
use std::ops::Range;
use std::process;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::errno::{Errno, Result};
use crate::os::cancel::disabled;
use crate::os::event::EventFd;
use crate::os::library_fds::{self, OwnFd};
use crate::os::pages::Pages;
use crate::verbs::doorbell;
pub use crate::verbs::ibv_wc;
use crate::verbs::{
    self, ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr_mask as Mask, ibv_recv_wr,
    ibv_send_wr, ibv_sge,
};

/// Flag in the `wr_id` of receives.
pub const RECV_WR_ID_FLAG: u64 = 1 << 63;

/// A completion channel.
#[derive(Debug)]
pub struct CompletionChannel {
    channel: NonNull<ibv_comp_channel>,
    /// Completion vector of the channel's CQs.
    vector: c_int,
}

// SAFETY: a channel is a libibverbs object, which any thread may use.
unsafe impl Send for CompletionChannel {}

/// A CQ whose events go to a channel.
#[derive(Debug)]
pub struct CompletionQueue {
    cq: NonNull<ibv_cq>,
    /// Number of events that were read and are not acknowledged yet. Acknowledging takes a lock in
    /// libibverbs, so it is done for many events at once.
    unacknowledged: u32,
}

// SAFETY: a CQ is a libibverbs object, which any thread may use.
unsafe impl Send for CompletionQueue {}

/// A completion channel in which a thread waits while other threads use the [`CompletionChannel`].
/// The owner destroys the channel only after the waiting thread has returned.
#[derive(Clone, Copy, Debug)]
pub struct ChannelHandle(NonNull<ibv_comp_channel>);

// SAFETY: a channel is a libibverbs object, which any thread may use.
unsafe impl Send for ChannelHandle {}

/// An event that was read from a channel. [`CompletionQueue::note_event`] counts it for its CQ.
#[derive(Debug)]
pub struct CqEvent(*mut ibv_cq);

// SAFETY: the pointer is only compared, never dereferenced.
unsafe impl Send for CqEvent {}

impl CompletionChannel {
    /// Creates a channel without CQs.
    ///
    /// # Safety
    /// The context stays open for as long as the result lives.
    pub unsafe fn new(context: NonNull<ibv_context>) -> Result<CompletionChannel> {
        // Channels use the vectors in turn, which spreads the interrupts of many connections over
        // the CPUs; processes start at different vectors.
        static TURN: AtomicU32 = AtomicU32::new(0);
        // SAFETY: the context is open: guaranteed by the caller.
        let (channel, vectors) =
            unsafe { (verbs::create_comp_channel(context)?, (*context.as_ptr()).num_comp_vectors) };
        let turn = TURN.fetch_add(1, Ordering::Relaxed).wrapping_add(process::id());
        Ok(CompletionChannel { channel, vector: vector_of(vectors, turn) })
    }

    /// Returns the descriptor, which is readable when there is an event.
    pub fn fd(&self) -> c_int {
        // SAFETY: the channel is live as long as `self`.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// Moves the channel to a new descriptor. Returns the old descriptor, which now refers to a
    /// file that never becomes readable: other threads may still be waiting for this descriptor.
    pub fn move_to_new_fd(&mut self) -> Result<OwnFd> {
        let fd = self.fd();
        let moved = OwnFd::duplicate(fd)?;
        library_fds::replace(fd, EventFd::new()?)?;
        // SAFETY: the channel is live, and no other thread uses it (`&mut self`). The channel
        // closes the new descriptor when it is destroyed.
        unsafe { (*self.channel.as_ptr()).fd = moved.into_fd() };
        // SAFETY: the channel no longer closes the old descriptor.
        Ok(unsafe { OwnFd::adopt(fd) })
    }

    /// Returns a handle with which a thread can wait without `self`.
    pub fn handle(&self) -> ChannelHandle {
        ChannelHandle(self.channel)
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: the owner has dropped the channel's CQs, and no thread waits in the channel.
        unsafe { verbs::end_comp_channel(self.channel) };
    }
}

fn vector_of(vectors: c_int, turn: u32) -> c_int {
    // The remainder is less than `vectors`.
    u32::try_from(vectors).ok().and_then(|vectors| turn.checked_rem(vectors)).unwrap_or(0) as c_int
}

impl CompletionQueue {
    /// Creates a CQ for `entries` completions. Fails with `ENOSYS` if the provider has no function
    /// to poll or arm a CQ.
    ///
    /// # Safety
    /// `context` stays open, and `channel` lives, as long as the result.
    pub unsafe fn new(
        context: NonNull<ibv_context>,
        entries: u32,
        channel: &CompletionChannel,
    ) -> Result<CompletionQueue> {
        // SAFETY: the context is open: guaranteed by the caller.
        let ops = unsafe { &(*context.as_ptr()).ops };
        if ops.poll_cq.is_none() || ops.req_notify_cq.is_none() {
            return Err(Errno::ENOSYS);
        }
        // SAFETY: the context is open and the channel live: guaranteed by the caller.
        let cq =
            unsafe { verbs::create_cq(context, entries, ptr::null_mut(), channel.channel.as_ptr(), channel.vector)? };
        Ok(CompletionQueue { cq, unacknowledged: 0 })
    }

    /// Returns the libibverbs object.
    pub fn cq(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    /// Polls completions into `into`, and returns them. Fails with `EIO` if the provider fails.
    #[inline]
    pub fn poll<'a>(&self, into: &'a mut [MaybeUninit<ibv_wc>]) -> Result<&'a [ibv_wc]> {
        // SAFETY: the CQ is live, and its context open. `into` has space for the number of entries
        // passed.
        let count = unsafe {
            // `new` has checked that the function exists.
            let poll = (*(*self.cq.as_ptr()).context).ops.poll_cq.unwrap_unchecked();
            poll(self.cq.as_ptr(), into.len() as c_int, into.as_mut_ptr().cast())
        };
        let count = usize::try_from(count).map_err(|_| Errno::EIO)?;
        let filled = into.get(..count).ok_or(Errno::EIO)?;
        // SAFETY: the provider initialised these entries; fields that a status leaves undefined are
        // not read.
        Ok(unsafe { slice::from_raw_parts(filled.as_ptr().cast(), count) })
    }

    /// Requests an event for the next completion.
    #[inline]
    pub fn arm(&self) -> Result<()> {
        // SAFETY: the CQ is live, and its context is open. `new` has checked that the function
        // exists.
        verbs::check(|| unsafe {
            let arm = (*(*self.cq.as_ptr()).context).ops.req_notify_cq.unwrap_unchecked();
            arm(self.cq.as_ptr(), 0)
        })
    }

    /// Counts an event of this CQ. Returns false if the event belongs to another CQ.
    pub fn note_event(&mut self, event: &CqEvent) -> bool {
        if event.0 != self.cq.as_ptr() {
            return false;
        }
        self.unacknowledged += 1;
        // Acknowledge before the 32-bit counters of libibverbs can wrap.
        if self.unacknowledged == 1 << 16 {
            self.acknowledge();
        }
        true
    }

    fn acknowledge(&mut self) {
        // SAFETY: the CQ is live, and this number of its events was read.
        unsafe { verbs::ibv_ack_cq_events(self.cq.as_ptr(), self.unacknowledged) };
        self.unacknowledged = 0;
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if self.unacknowledged > 0 {
            self.acknowledge();
        }
        // SAFETY: the QP of the CQ was destroyed, and no thread waits for the CQ's events.
        let _ = unsafe { verbs::destroy_cq(self.cq) };
    }
}

/// Wakes the thread that sleeps in a channel, once, whatever the state of the link: the waker has a
/// QP of its own, which is never connected and whose receive completes when the QP moves to the
/// error state.
#[derive(Debug)]
pub struct Waker {
    qp: NonNull<ibv_qp>,
    cq: CompletionQueue,
    /// Whether the waker's event was read.
    is_over: bool,
}

// SAFETY: QP and CQ are libibverbs objects, which any thread may use.
unsafe impl Send for Waker {}

impl Waker {
    /// Creates a waker, and raises its event in `channel`.
    ///
    /// # Safety
    /// `pd` and `channel` outlive the result, and belong to the same device.
    pub unsafe fn new(pd: NonNull<ibv_pd>, channel: &CompletionChannel) -> Result<Waker> {
        // SAFETY: the PD and its open context are live: guaranteed by the caller.
        let context = NonNull::new(unsafe { pd.as_ref() }.context).ok_or(Errno::EIO)?;
        // SAFETY: context and channel outlive the result, and so the CQ.
        let cq = unsafe { CompletionQueue::new(context, 1, channel)? };
        let mut attr = verbs::ibv_qp_init_attr_ex::default();
        [attr.send_cq, attr.recv_cq] = [cq.cq(); 2];
        attr.qp_type = verbs::ibv_qp_type::IBV_QPT_RC;
        (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (1, 1);
        (attr.cap.max_send_wr, attr.cap.max_send_sge) = (1, 1);
        (attr.pd, attr.comp_mask) = (pd.as_ptr(), verbs::IBV_QP_INIT_ATTR_PD);
        // SAFETY: PD and CQ are live; dropping the result destroys the QP before the CQ.
        let waker = Waker { qp: unsafe { verbs::create_qp_ex(context, &mut attr)? }, cq, is_over: false };
        waker.cq.arm()?;
        // Any port will do: the QP sends nothing.
        let qp_state = verbs::ibv_qp_state::IBV_QPS_INIT;
        let mut attr = verbs::ibv_qp_attr { qp_state, port_num: 1, ..Default::default() };
        let mask = Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        // SAFETY: the QP is live; the receive has no memory.
        unsafe {
            verbs::modify_qp(waker.qp, &mut attr, mask.0 as c_int)?;
            post_empty_recv(waker.qp, 1)?;
            verbs::move_to_error(waker.qp)?;
        }
        Ok(waker)
    }

    /// Counts `event` if it is the waker's.
    pub fn note_event(&mut self, event: &CqEvent) {
        self.is_over |= self.cq.note_event(event);
    }

    /// Returns whether the waker's event was read. After that, another wake needs a new waker.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        // SAFETY: the QP is live, and only `self` uses it.
        unsafe { verbs::destroy_qp(self.qp) };
    }
}

impl ChannelHandle {
    /// Waits for an event without reading it. Whether a signal ends the wait depends on SA_RESTART,
    /// as for a blocking [`take`](Self::take). A cancellation point. The buffer is too small for an
    /// event: the kernel's `ib_uverbs_event_read` waits before it checks the buffer's size, and
    /// then leaves the event in the channel.
    ///
    /// # Safety
    /// The channel is live, and its descriptor is not O_NONBLOCK, until this returns.
    pub unsafe fn wait(self) -> Result<()> {
        let mut space = 0u8;
        // SAFETY: the channel is live: guaranteed by the caller. `space` is one writable byte.
        let read = unsafe { libc::read(self.0.as_ref().fd, (&raw mut space).cast(), size_of::<u8>()) };
        match Errno::last() {
            error if read < 0 && error != Errno::EINVAL => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads an event. Waits for one, or fails with `EAGAIN` if the descriptor is O_NONBLOCK.
    ///
    /// # Safety
    /// The channel is live until this returns.
    #[inline]
    pub unsafe fn take(self) -> Result<CqEvent> {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is live: guaranteed by the caller; both pointers are writable.
        match unsafe { verbs::ibv_get_cq_event(self.0.as_ptr(), &raw mut cq, &raw mut context) } {
            0 => Ok(CqEvent(cq)),
            _ => Err(Errno::last()),
        }
    }
}

/// A memory region (MR): memory that a device may access.
#[derive(Debug)]
pub struct MemoryRegion {
    mr: NonNull<ibv_mr>,
    pages: Option<Pages>,
}

// SAFETY: a libibverbs object and plain memory, which any thread may use.
unsafe impl Send for MemoryRegion {}

impl MemoryRegion {
    /// Allocates and registers zeroed memory. The peer may write to it if `remote`.
    ///
    /// # Safety
    /// `pd` is live and outlives the result.
    pub unsafe fn new(pd: NonNull<ibv_pd>, len: usize, remote: bool) -> Result<MemoryRegion> {
        let pages = Pages::new(len)?;
        // SAFETY: the PD is live: guaranteed by the caller; the pages live as long as the region.
        let mut region = unsafe { MemoryRegion::of(pd, pages.start(), len, remote)? };
        region.pages = Some(pages);
        Ok(region)
    }

    /// Registers memory of the program.
    ///
    /// # Safety
    /// `pd` is live and outlives the result. The device may access the memory at any time as long
    /// as the result lives, and no Rust reference to the memory exists meanwhile.
    pub unsafe fn of(pd: NonNull<ibv_pd>, start: NonNull<u8>, len: usize, remote: bool) -> Result<MemoryRegion> {
        let mut access = verbs::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        if remote {
            access |= verbs::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        }
        // SAFETY: the PD is live: guaranteed by the caller; the kernel rejects a bad address.
        let register = || unsafe { verbs::ibv_reg_mr(pd.as_ptr(), start.as_ptr().cast(), len, access as c_int) };
        Ok(MemoryRegion { mr: verbs::pointer(register)?, pages: None })
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        // SAFETY: the MR is live, and NULL cannot be registered.
        unsafe { NonNull::new_unchecked((*self.mr.as_ptr()).addr.cast()) }
    }

    /// Returns an SGE for `len` bytes at `offset`, which must lie in the region.
    #[inline]
    pub fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge { addr: (self.start().as_ptr().expose_provenance() + offset) as u64, len, lkey: self.lkey() }
    }

    /// Returns the lkey, for our own work requests.
    pub fn lkey(&self) -> u32 {
        // SAFETY: the MR is live as long as `self`.
        unsafe { (*self.mr.as_ptr()).lkey }
    }

    /// Returns the rkey, for the peer.
    pub fn rkey(&self) -> u32 {
        // SAFETY: the MR is live as long as `self`.
        unsafe { (*self.mr.as_ptr()).rkey }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: the QP that used the MR was destroyed, or has no outstanding work request for it.
        let failed = disabled(|| unsafe { verbs::ibv_dereg_mr(self.mr.as_ptr()) }) != 0;
        if failed && let Some(pages) = self.pages.take() {
            pages.abandon();
        }
    }
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr {
    /// Identifies the completion of the request.
    pub wr_id: u64,
    /// The operation.
    pub opcode: Opcode,
    /// The remote address; 0 for a SEND and for a request without data.
    pub addr: u64,
    /// The rkey; 0 in the same cases as `addr`.
    pub rkey: u32,
    /// Local memory. The first entry without bytes ends the list.
    pub sg_list: [Sge; 2],
    /// Whether the data is copied before the call returns. Inline data needs no memory region.
    pub inline: bool,
    /// Whether success generates a completion.
    pub signaled: bool,
}

impl SendWr {
    /// Returns whether the request has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.sg_list[0].len == 0
    }
}

/// Opcodes of the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with this immediate data.
    WriteImm(u32),
    /// SEND.
    Send,
    /// RDMA READ of no bytes. It completes after the peer's adapter has received all earlier
    /// requests.
    Read,
}

impl Opcode {
    /// Returns the immediate data, 0 if there is none.
    #[inline]
    pub fn imm(self) -> u32 {
        if let Opcode::WriteImm(imm) = self { imm } else { 0 }
    }
}

/// A scatter/gather element: bytes in local memory. Has the layout of `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sge {
    /// Address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Local key of the memory region.
    pub lkey: u32,
}

const _: () = assert!(size_of::<Sge>() == size_of::<ibv_sge>() && offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));

/// Posts work requests as one chain. After a failure it is unknown how many requests were posted,
/// so the caller must end the connection.
///
/// # Safety
/// `qp` is live. The memory of each request is readable, and registered unless inline.
#[inline]
pub unsafe fn post_send<const N: usize>(qp: NonNull<ibv_qp>, work: &[SendWr; N]) -> Result<()> {
    let mut requests = [const { MaybeUninit::<ibv_send_wr>::uninit() }; N];
    let mut next = ptr::null_mut();
    for (item, request) in work.iter().zip(&mut requests).rev() {
        let count = item.sg_list.iter().take_while(|sge| sge.len > 0).count() as c_int;
        let (opcode, imm, num_sge) = match item.opcode {
            Opcode::Write => (verbs::ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0, count),
            Opcode::WriteImm(imm) => (verbs::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, imm.to_be(), count),
            Opcode::Send => (verbs::ibv_wr_opcode::IBV_WR_SEND, 0, count),
            // Soft-iWARP rejects a read without an element.
            Opcode::Read => (verbs::ibv_wr_opcode::IBV_WR_RDMA_READ, 0, 1),
        };
        let signaled = if item.signaled { verbs::ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        let inline = if item.inline && num_sge > 0 { verbs::ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
        let request = request.as_mut_ptr();
        // Write only the fields that these opcodes use: clearing the rest would take a tenth of the
        // instructions of a message.
        // SAFETY: the request is writable.
        unsafe {
            (&raw mut (*request).wr_id).write(item.wr_id);
            (&raw mut (*request).next).write(next);
            // Providers only read the list.
            (&raw mut (*request).sg_list).write(item.sg_list.as_ptr().cast_mut().cast());
            (&raw mut (*request).num_sge).write(num_sge);
            (&raw mut (*request).opcode).write(opcode);
            (&raw mut (*request).send_flags).write(signaled | inline);
            (&raw mut (*request).__bindgen_anon_1.imm_data).write(imm);
            (&raw mut (*request).wr.rdma.remote_addr).write(item.addr);
            (&raw mut (*request).wr.rdma.rkey).write(item.rkey);
        }
        next = request;
    }
    let mut bad = ptr::null_mut();
    // SAFETY: the QP is live and the memory as described: guaranteed by the caller. The chain lives
    // until the call returns.
    unsafe {
        let post = (*(*qp.as_ptr()).context).ops.post_send.ok_or(Errno::ENOSYS)?;
        let result = doorbell::post(post as usize, || post(qp.as_ptr(), next, &raw mut bad));
        doorbell::posted(qp, result)
    }
}

/// A reusable work request: RDMA WRITE with immediate data, whose bytes go inline. The fields that
/// all messages have in common are written once.
#[derive(Debug)]
pub struct InlineWrite {
    qp: NonNull<ibv_qp>,
    request: MaybeUninit<ibv_send_wr>,
    element: MaybeUninit<ibv_sge>,
}

impl InlineWrite {
    /// Returns the request for a QP.
    ///
    /// # Errors
    /// Fails with `ENOSYS` if the QP's provider lacks `post_send`.
    ///
    /// # Safety
    /// `qp` is live, and its context open.
    pub unsafe fn new(qp: NonNull<ibv_qp>) -> Result<InlineWrite> {
        // SAFETY: the QP is live: guaranteed by the caller.
        unsafe { (*(*qp.as_ptr()).context).ops.post_send.ok_or(Errno::ENOSYS)? };
        let opcode = verbs::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
        let request = ibv_send_wr { num_sge: 1, opcode, ..Default::default() };
        Ok(InlineWrite { qp, request: MaybeUninit::new(request), element: MaybeUninit::zeroed() })
    }

    /// Posts a write of `data` to the peer's memory at `addr`, with `imm`, outside of
    /// [`cancel::in_call`](crate::os::cancel::in_call). After a failure the caller must end the
    /// connection.
    ///
    /// # Safety
    /// The QP is live.
    #[inline(always)] // see rsocket::calls
    pub unsafe fn post(
        &mut self,
        data: &[u8],
        imm: u32,
        (addr, rkey): (u64, u32),
        (wr_id, signaled): (u64, bool),
    ) -> Result<()> {
        let (request, element) = (self.request.as_mut_ptr(), self.element.as_mut_ptr());
        let signaled = if signaled { verbs::ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        // SAFETY: `new` has initialised both structures, which outlive the call, and has checked
        // that the provider has `post_send`. The QP is live: guaranteed by the caller.
        unsafe {
            ((*element).addr, (*element).length) = (data.as_ptr() as usize as u64, data.len() as u32);
            (*request).sg_list = element;
            (*request).wr_id = wr_id;
            (*request).send_flags = verbs::ibv_send_flags::IBV_SEND_INLINE.0 | signaled;
            (*request).__bindgen_anon_1.imm_data = imm.to_be();
            ((*request).wr.rdma.remote_addr, (*request).wr.rdma.rkey) = (addr, rkey);
            let mut bad = MaybeUninit::uninit();
            let post = (*(*self.qp.as_ptr()).context).ops.post_send.unwrap_unchecked();
            let result = doorbell::post_outside(post as usize, || post(self.qp.as_ptr(), request, bad.as_mut_ptr()));
            doorbell::posted(self.qp, result)
        }
    }
}

/// Maximum number of receives posted as one chain.
const BATCH: usize = 64;

/// Posts a receive for each of `slots`, in order, into the memory of `buffer_of(slot)`.
///
/// # Safety
/// `qp` is live. The memory is registered with `lkey`, and nothing else uses it until the
/// completion.
pub unsafe fn post_recv(qp: NonNull<ibv_qp>, slots: Range<u32>, buffer_of: impl Fn(u32) -> Sge) -> Result<()> {
    let mut requests = [const { MaybeUninit::<ibv_recv_wr>::uninit() }; BATCH];
    let mut lists = [const { MaybeUninit::<Sge>::uninit() }; BATCH];
    let mut start = slots.start;
    while start < slots.end {
        let end = slots.end.min(start + BATCH as u32);
        let (mut next, mut slot) = (ptr::null_mut(), end);
        for (request, list) in requests.iter_mut().zip(&mut lists).take((end - start) as usize) {
            slot -= 1;
            let sg_list = ptr::from_mut(list.write(buffer_of(slot))).cast();
            next = request.write(ibv_recv_wr { wr_id: RECV_WR_ID_FLAG | u64::from(slot), next, sg_list, num_sge: 1 });
        }
        // SAFETY: the QP is live and the memory as described: guaranteed by the caller. The chain
        // lives until the call returns.
        unsafe { post_recv_chain(qp, next)? };
        start = end;
    }
    Ok(())
}

/// # Safety
/// `qp` is live, and `first` is the head of a chain of valid work requests.
pub(super) unsafe fn post_recv_chain(qp: NonNull<ibv_qp>, first: *mut ibv_recv_wr) -> Result<()> {
    let mut bad = ptr::null_mut();
    // SAFETY: the QP and the chain are valid: guaranteed by the caller.
    let result = unsafe {
        let post = (*(*qp.as_ptr()).context).ops.post_recv.ok_or(Errno::ENOSYS)?;
        post(qp.as_ptr(), first, &raw mut bad)
    };
    if result == 0 { Ok(()) } else { Err(Errno::new(result)) }
}

/// Length of [`EMPTY_RECEIVES`].
const EMPTY: usize = 16;

/// A chain of receives without memory, for any QP. Each tail of the chain is a shorter chain.
struct EmptyReceives(UnsafeCell<[ibv_recv_wr; EMPTY]>);

// SAFETY: nobody writes to the chain: providers only read work requests.
unsafe impl Sync for EmptyReceives {}

static EMPTY_RECEIVES: EmptyReceives = EmptyReceives(UnsafeCell::new(empty_receives()));

const fn empty_receives() -> [ibv_recv_wr; EMPTY] {
    let first = (&raw const EMPTY_RECEIVES).cast::<ibv_recv_wr>().cast_mut();
    let mut chain =
        [const { ibv_recv_wr { wr_id: RECV_WR_ID_FLAG, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 } };
            EMPTY];
    let mut index = 0;
    while index + 1 < EMPTY {
        chain[index].next = first.wrapping_add(index + 1);
        index += 1;
    }
    chain
}

/// Posts `count` receives without memory.
///
/// # Safety
/// `qp` is live.
pub unsafe fn post_empty_recv(qp: NonNull<ibv_qp>, count: u32) -> Result<()> {
    let mut left = count as usize;
    while left > 0 {
        let length = left.min(EMPTY);
        let first = EMPTY_RECEIVES.0.get().cast::<ibv_recv_wr>().wrapping_add(EMPTY - length);
        // SAFETY: the QP is live: guaranteed by the caller. The chain is static, of this length.
        unsafe { post_recv_chain(qp, first)? };
        left -= length;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_take_turns() {
        let vectors: Vec<c_int> = (u32::MAX - 3..=u32::MAX).map(|turn| vector_of(4, turn)).collect();
        assert_eq!(vectors, [0, 1, 2, 3]);
        assert_eq!((vector_of(1, 7), vector_of(0, 7), vector_of(-1, 7)), (0, 0, 0));
    }
}
