//! The data path of a connected QP: its CQs and completion channel, memory, work requests.

use std::ffi::c_int;
use std::mem::{MaybeUninit, zeroed};
use std::process;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};

use super::cancel::disabled;
use super::doorbell;
use super::event::EventFd;
use super::own::{self, OwnFd};
use super::pages::Pages;
pub use super::verbs::ibv_wc;
use super::verbs::{
    self, ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge,
};
use crate::errno::{Errno, Result};

/// Marks the work request numbers of receives.
pub const RECEIVE: u64 = 1 << 63;

/// A completion channel.
#[derive(Debug)]
pub struct Channel {
    channel: NonNull<ibv_comp_channel>,
    /// Completion vector of its CQs.
    vector: c_int,
}

// SAFETY: a libibverbs object, which any thread may use.
unsafe impl Send for Channel {}

/// A CQ whose events go to a channel.
#[derive(Debug)]
pub struct Queue {
    cq: NonNull<ibv_cq>,
    /// Events taken that libibverbs has not been told of yet: it takes a lock for that.
    unacknowledged: u32,
}

// SAFETY: as above.
unsafe impl Send for Queue {}

/// A completion channel whose event a thread waits for while the [`Channel`] is used by others. Whoever destroys it waits for that
/// thread.
#[derive(Clone, Copy, Debug)]
pub struct Events(NonNull<ibv_comp_channel>);

// SAFETY: as above.
unsafe impl Send for Events {}

/// An event that was taken: some CQ's, which has to be told ([`Queue::took`]).
#[derive(Debug)]
pub struct Event(*mut ibv_cq);

// SAFETY: no more than a name.
unsafe impl Send for Event {}

impl Channel {
    /// A channel without CQs.
    ///
    /// # Safety
    /// An open context, which stays open for as long as the result lives.
    pub unsafe fn new(context: NonNull<ibv_context>) -> Result<Channel> {
        // SAFETY: the caller's word.
        unsafe { Ok(Channel { channel: verbs::create_comp_channel(context)?, vector: next_vector(context) }) }
    }

    /// Readable when an event waits.
    pub fn fd(&self) -> c_int {
        // SAFETY: a live channel.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// Goes to another number. Under the former one, which others may still wait for, stands a file
    /// that is never readable.
    pub fn leave_number(&mut self) -> Result<OwnFd> {
        let number = self.fd();
        let moved = OwnFd::duplicate(number)?;
        own::replace(number, EventFd::new()?)?;
        // SAFETY: a live channel, in the hands of `&mut self`; its file has the new number too,
        // which it closes at its end.
        unsafe { (*self.channel.as_ptr()).fd = moved.into_number() };
        // SAFETY: the channel closes another one from now on.
        Ok(unsafe { OwnFd::adopt(number) })
    }

    /// For waiting without `self`.
    pub fn events(&self) -> Events {
        Events(self.channel)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its CQs are gone, and nobody waits on it: the owner sees to that.
        unsafe { verbs::end_comp_channel(self.channel) };
    }
}

/// The next channel's completion vector: channels take turns, so that the interrupts of many
/// connections go to all CPUs that the device's go to. Processes start at different ones.
///
/// # Safety
/// An open context.
unsafe fn next_vector(context: NonNull<ibv_context>) -> c_int {
    static TURN: AtomicU32 = AtomicU32::new(0);
    // SAFETY: guaranteed by the caller.
    let vectors = unsafe { (*context.as_ptr()).num_comp_vectors };
    vector_of(vectors, TURN.fetch_add(1, Ordering::Relaxed).wrapping_add(process::id()))
}

fn vector_of(vectors: c_int, turn: u32) -> c_int {
    // The remainder is less than `vectors`.
    u32::try_from(vectors).ok().and_then(|vectors| turn.checked_rem(vectors)).unwrap_or(0) as c_int
}

impl Queue {
    /// For `entries` completions.
    ///
    /// # Safety
    /// An open context, which stays open for as long as the result lives, and so does the channel.
    pub unsafe fn new(context: NonNull<ibv_context>, entries: u32, channel: &Channel) -> Result<Queue> {
        // SAFETY: the caller's word.
        let cq = unsafe { verbs::create_cq(context, entries, ptr::null_mut(), channel.channel, channel.vector)? };
        Ok(Queue { cq, unacknowledged: 0 })
    }

    /// The CQ.
    pub fn cq(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    /// Takes completions: as many as there are and `into` has room for.
    #[inline]
    pub fn poll<'a>(&self, into: &'a mut [MaybeUninit<ibv_wc>]) -> Result<&'a [ibv_wc]> {
        // SAFETY: a live CQ of an open context; there is room for as many as are asked for.
        let count = unsafe {
            let poll = (*(*self.cq.as_ptr()).context).ops.poll_cq.ok_or(Errno::ENOSYS)?;
            poll(self.cq.as_ptr(), into.len() as c_int, into.as_mut_ptr().cast())
        };
        let count = usize::try_from(count).map_err(|_| Errno::EIO)?;
        let filled = into.get(..count).ok_or(Errno::EIO)?;
        // SAFETY: the provider filled these in, as far as their status gives the fields a meaning; others are not read.
        Ok(unsafe { slice::from_raw_parts(filled.as_ptr().cast(), count) })
    }

    /// Asks for an event with the next completion.
    pub fn arm(&self) -> Result<()> {
        // SAFETY: a live CQ of an open context.
        let result = unsafe {
            let arm = (*(*self.cq.as_ptr()).context).ops.req_notify_cq.ok_or(Errno::ENOSYS)?;
            disabled(|| arm(self.cq.as_ptr(), 0))
        };
        if result == 0 { Ok(()) } else { Err(Errno::new(result)) }
    }

    /// Whether an event that was taken is this queue's, which is noted.
    pub fn took(&mut self, event: &Event) -> bool {
        if event.0 != self.cq.as_ptr() {
            return false;
        }
        self.unacknowledged += 1;
        // The counters of libibverbs have 32 bits; they must not wrap within one acknowledgement.
        if self.unacknowledged == 1 << 16 {
            self.acknowledge();
        }
        true
    }

    fn acknowledge(&mut self) {
        // SAFETY: a live CQ, and so many events were taken.
        unsafe { verbs::ibv_ack_cq_events(self.cq.as_ptr(), self.unacknowledged) };
        self.unacknowledged = 0;
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.unacknowledged > 0 {
            self.acknowledge();
        }
        // SAFETY: the QP is gone, and nobody waits for its events.
        let _ = unsafe { verbs::destroy_cq(self.cq) };
    }
}

impl Events {
    /// Takes an event: waits for it, or fails with `EAGAIN`, as the descriptor's flags say.
    ///
    /// # Safety
    /// The channel is live until this returns.
    pub unsafe fn take(self) -> Result<Event> {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the caller's word; both are writable.
        match unsafe { verbs::ibv_get_cq_event(self.0.as_ptr(), &raw mut cq, &raw mut context) } {
            0 => Ok(Event(cq)),
            _ => Err(Errno::last()),
        }
    }
}

/// Memory that a device may use.
#[derive(Debug)]
pub struct Registered {
    mr: NonNull<ibv_mr>,
    pages: Option<Pages>,
}

// SAFETY: a libibverbs object and plain memory.
unsafe impl Send for Registered {}

impl Registered {
    /// New zeroed memory, which the peer may write to if `remote`.
    ///
    /// # Safety
    /// A live PD that outlives the result.
    pub unsafe fn new(pd: NonNull<ibv_pd>, len: usize, remote: bool) -> Result<Registered> {
        let pages = Pages::new(len)?;
        // SAFETY: the caller's word; the pages live as long as the registration.
        let mut registered = unsafe { Registered::of(pd, pages.start(), len, remote)? };
        registered.pages = Some(pages);
        Ok(registered)
    }

    /// Memory of somebody else's.
    ///
    /// # Safety
    /// A live PD that outlives the result. The memory is the caller's care: the device's accesses don't follow Rust's rules.
    pub unsafe fn of(pd: NonNull<ibv_pd>, start: NonNull<u8>, len: usize, remote: bool) -> Result<Registered> {
        let mut access = verbs::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        if remote {
            access |= verbs::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        }
        // SAFETY: the caller's word; a bad address is the kernel's to refuse.
        let mr = disabled(|| unsafe { verbs::ibv_reg_mr(pd.as_ptr(), start.as_ptr().cast(), len, access as c_int) });
        let mr = NonNull::new(mr).ok_or_else(Errno::last)?;
        Ok(Registered { mr, pages: None })
    }

    /// Address of its first byte.
    pub fn start(&self) -> NonNull<u8> {
        // SAFETY: a live registration; a NULL address was never one.
        unsafe { NonNull::new_unchecked((*self.mr.as_ptr()).addr.cast()) }
    }

    /// Key for our own work requests.
    pub fn lkey(&self) -> u32 {
        // SAFETY: a live registration.
        unsafe { (*self.mr.as_ptr()).lkey }
    }

    /// Key for the peer.
    pub fn rkey(&self) -> u32 {
        // SAFETY: a live registration.
        unsafe { (*self.mr.as_ptr()).rkey }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: the QP that used it is gone, or nothing outstanding refers to it.
        disabled(|| unsafe { verbs::ibv_dereg_mr(self.mr.as_ptr()) });
    }
}

/// A work request of a send queue.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Comes back in its completion.
    pub number: u64,
    /// What to do.
    pub kind: Kind,
    /// The peer's address and key, 0 for a SEND and for no bytes.
    pub addr: u64,
    /// See `addr`.
    pub key: u32,
    /// What to write; the second piece may be empty.
    pub pieces: [Piece; 2],
    /// The bytes are copied before the call returns, and need no registration.
    pub inline: bool,
    /// Whether its success is reported.
    pub report: bool,
}

/// Kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with this immediate, network byte order.
    WriteWord(u32),
    /// SEND.
    Send,
}

/// Bytes in local memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Piece {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Key of its registration.
    pub lkey: u32,
}

/// Posts work in one go: all of it, or an error that ends the connection.
///
/// # Safety
/// A live QP; memory readable, and registered unless inline.
#[inline]
pub unsafe fn send<const N: usize>(qp: NonNull<ibv_qp>, work: &[Work; N]) -> Result<()> {
    let mut requests = [const { MaybeUninit::<ibv_send_wr>::uninit() }; N];
    let mut lists = [const { MaybeUninit::<[ibv_sge; 2]>::uninit() }; N];
    let mut next = ptr::null_mut();
    for ((item, request), list) in work.iter().zip(&mut requests).zip(&mut lists).rev() {
        let list =
            list.write(item.pieces.map(|piece| ibv_sge { addr: piece.addr, length: piece.len, lkey: piece.lkey }));
        // SAFETY: all zeros are a value of this structure.
        let request = request.write(unsafe { zeroed() });
        request.wr_id = item.number;
        request.next = next;
        request.sg_list = list.as_mut_ptr();
        request.num_sge = item.pieces.iter().take_while(|piece| piece.len > 0).count() as c_int;
        request.opcode = match item.kind {
            Kind::Write => verbs::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            Kind::WriteWord(word) => {
                request.__bindgen_anon_1.imm_data = word;
                verbs::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
            }
            Kind::Send => verbs::ibv_wr_opcode::IBV_WR_SEND,
        };
        request.wr.rdma.remote_addr = item.addr;
        request.wr.rdma.rkey = item.key;
        if item.report {
            request.send_flags |= verbs::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        if item.inline && request.num_sge > 0 {
            request.send_flags |= verbs::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        next = request;
    }
    let mut bad = ptr::null_mut();
    // SAFETY: the caller's word; the chain lives until the call returns.
    let result = unsafe {
        let post = (*(*qp.as_ptr()).context).ops.post_send.ok_or(Errno::ENOSYS)?;
        doorbell::post(post as usize, || post(qp.as_ptr(), next, &raw mut bad))
    };
    // SAFETY: the caller's word.
    unsafe { doorbell::posted(qp, result) }
}

/// The most receives posted in one go.
const BATCH: usize = 64;

/// Posts a receive for each of `slots`: into the 4 bytes at `place(slot)`, or for none.
///
/// # Safety
/// A live QP; the memory is registered with `lkey` and the device's to write.
pub unsafe fn receive(qp: NonNull<ibv_qp>, slots: &[u32], place: impl Fn(u32) -> Option<Piece>) -> Result<()> {
    let mut requests = [const { MaybeUninit::<ibv_recv_wr>::uninit() }; BATCH];
    let mut lists = [const { MaybeUninit::<ibv_sge>::uninit() }; BATCH];
    for batch in slots.chunks(BATCH) {
        let mut next = ptr::null_mut();
        for ((&slot, request), list) in batch.iter().zip(&mut requests).zip(&mut lists) {
            let (mut sg_list, mut num_sge) = (ptr::null_mut(), 0);
            if let Some(piece) = place(slot) {
                sg_list = list.write(ibv_sge { addr: piece.addr, length: piece.len, lkey: piece.lkey });
                num_sge = 1;
            }
            next = request.write(ibv_recv_wr { wr_id: RECEIVE | u64::from(slot), next, sg_list, num_sge });
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the caller's word; the chain lives until the call returns.
        let result = unsafe {
            let post = (*(*qp.as_ptr()).context).ops.post_recv.ok_or(Errno::ENOSYS)?;
            post(qp.as_ptr(), next, &raw mut bad)
        };
        if result != 0 {
            return Err(Errno::new(result));
        }
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
