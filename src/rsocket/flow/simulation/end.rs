//! One end of the connection: the state machines with simplified connection code, whose memory and
//! devices are vectors and queues.

mod network;
mod peer;
mod program;

use std::collections::VecDeque;

pub use network::deliver;

use super::super::{Advertisement, Receiver, SendLimits, Sender, Violation};
use super::random::Random;
use crate::rsocket::wire::{Control, Message, Region};

/// Constants of the connection code: send queue entries for control messages, receives for the
/// peer's control messages, length of an iomap entry.
const CONTROL: u32 = 4;
const EXTRA_RECEIVES: u32 = 16;
const MAPPING: u32 = 24;
/// Addresses of the memory of rings, and the key of the first one.
const RINGS: [u64; 3] = [0x10_0000, 0x1000_0000, 0x2000_0000];
/// The memory of the first ring, which is never freed.
const FIRST: usize = 2;
const KEY: u32 = 77;

/// Options of a program.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub ring: u32,
    /// The first ring is a small one, which is advertised as a whole.
    pub small: bool,
    pub queue: u16,
    pub sends: u32,
    pub buffer: u32,
    pub inline: u32,
    pub iwarp: bool,
    /// Whether there are receives for the peer's control messages. rdma-core has none.
    pub extra_receives: bool,
    /// Seed for random buffer replacements. 0: none.
    pub resizes: u64,
}

impl Setup {
    /// Usually small sizes, which are used up quickly.
    pub fn random(random: &mut Random, iwarp: bool) -> Setup {
        Setup {
            ring: random.pick(&[2, 2, 3, 4, 6, 16, 17, 64, 100, 256, 1000, 2048, 4096, 8192, 131_072]),
            small: random.chance(2),
            queue: random.pick(&[16, 16, 17, 18, 32, 64, 100, 384]),
            sends: random.pick(&[16, 16, 17, 18, 32, 64, 384]),
            buffer: random.pick(&[2048, 2048, 2049, 4096, 5000, 131_072]),
            inline: random.pick(&[0, 0, 1, 16, 24, 64, 256]),
            iwarp,
            extra_receives: !iwarp || random.chance(2),
            resizes: random.next() & random.pick(&[0, u64::MAX]),
        }
    }

    /// Bytes that are advertised first.
    fn first_buffer(&self) -> u32 {
        if self.small { self.ring } else { self.ring / 2 }
    }

    fn receiver(&self) -> Receiver {
        if self.small { Receiver::small(self.ring, self.queue) } else { Receiver::new(self.ring, self.queue) }
    }

    fn receives(&self) -> u32 {
        u32::from(self.queue) + if self.extra_receives { EXTRA_RECEIVES } else { 0 }
    }

    /// Number of used receives that are posted together.
    fn repost(&self) -> u32 {
        if self.extra_receives { EXTRA_RECEIVES / 2 } else { 1 }
    }
}

/// The bytes of a write. The device reads them after the call.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// Copied by the call.
    Inline { position: u64 },
    /// In the send buffer. `position` is the expected stream position.
    Buffer { which: usize, offset: u32, position: u64 },
}

/// A part of a ring, with the number of its memory.
#[derive(Clone, Copy, Debug)]
struct Part {
    memory: usize,
    offset: u32,
    len: u32,
}

impl Part {
    fn overlaps(&self, other: &Part) -> bool {
        self.memory == other.memory && self.offset < other.offset + other.len && other.offset < self.offset + self.len
    }
}

/// The effect of a work request on the peer.
#[derive(Clone, Copy, Debug)]
enum Effect {
    Nothing,
    Data {
        addr: u64,
        key: u32,
        len: u32,
        source: Source,
    },
    /// A write outside of the stream.
    Other {
        len: u32,
        source: Source,
    },
    Advertise {
        sgl_entry: usize,
        region: Region,
    },
}

#[derive(Clone, Copy, Debug)]
struct WorkRequest {
    wr_id: u64,
    signaled: bool,
    message: Option<Message>,
    effect: Effect,
}

#[derive(Clone, Copy, Debug)]
enum Completion {
    Send(u64),
    Received(Message),
}

/// One end of the connection.
pub struct End {
    setup: Setup,
    receiver: Receiver,
    sender: Sender,
    /// Memory that the device accesses.
    memory: [Vec<u8>; 3],
    /// The ring whose memory is `memory[FIRST]`. The memory of another ring has the number of the
    /// ring.
    first_ring: Option<usize>,
    sgl: [Region; 2],
    buffers: Vec<Vec<u8>>,
    /// The work request after which the previous send buffer is unused.
    old_buffer_end: Option<u64>,
    resizes: Option<Random>,
    posted: VecDeque<WorkRequest>,
    executed: VecDeque<WorkRequest>,
    completions: VecDeque<Completion>,
    free_sends: u32,
    /// The last work request, and the last one whose entry is free again.
    last_wr_id: u64,
    freed_wr_id: u64,
    receives: u32,
    used_receives: u32,
    /// As in the connection code: the next SGL entry to use, and the number of entries that were
    /// there when the last CREDIT_UPDATE was processed.
    sgl_entry: usize,
    announced: usize,
    /// State of the program.
    total: u64,
    sent: u64,
    taken: u64,
    shutdown: bool,
    ended: bool,
    /// State for checks: the ring parts that the peer may write to, those that it may announce as
    /// written, and those that the program has not read; the last advertised limit, and the number
    /// of messages that used credits.
    writable: VecDeque<Part>,
    unannounced: VecDeque<Part>,
    unread: VecDeque<Part>,
    advertised_limit: u16,
    messages: u16,
    /// Stream position of bytes outside of the stream.
    outside: u64,
    /// The peer's first protocol violation.
    pub violation: Option<Violation>,
    /// Number of state changes.
    pub changes: u64,
}

/// Returns the rkey of a ring's memory.
fn key(memory: usize) -> u32 {
    KEY + (memory + 1) as u32 % 3
}

impl End {
    pub fn new(setup: Setup, peer: &Setup, total: u64) -> End {
        let entries_per_message = if setup.iwarp { 2 } else { 1 };
        let slots = setup.sends - CONTROL;
        let limits = SendLimits {
            sq_entries: slots,
            entries_per_message,
            controls: CONTROL / entries_per_message,
            buffer: setup.buffer,
            window: peer.queue,
        };
        let target = Region { addr: RINGS[FIRST], rkey: KEY, length: peer.first_buffer() };
        let first = Part { memory: FIRST, offset: 0, len: setup.first_buffer() };
        End {
            setup,
            receiver: setup.receiver(),
            sender: Sender::new(limits, target).unwrap(),
            memory: [Vec::new(), Vec::new(), vec![0; setup.ring as usize]],
            first_ring: Some(0),
            sgl: [Region::default(); 2],
            buffers: vec![vec![0; setup.buffer as usize]],
            old_buffer_end: None,
            resizes: (setup.resizes != 0).then(|| Random::new(setup.resizes)),
            posted: VecDeque::new(),
            executed: VecDeque::new(),
            completions: VecDeque::new(),
            free_sends: setup.sends,
            last_wr_id: 0,
            freed_wr_id: 0,
            receives: setup.receives(),
            used_receives: 0,
            sgl_entry: 1,
            announced: 0,
            total,
            sent: 0,
            taken: 0,
            shutdown: false,
            ended: false,
            writable: VecDeque::from([first]),
            unannounced: VecDeque::from([first]),
            unread: VecDeque::from([first]),
            advertised_limit: setup.queue,
            messages: 0,
            outside: 0,
            violation: None,
            changes: 0,
        }
    }

    /// Returns the number of a ring's memory.
    fn place(&self, ring: usize) -> usize {
        if self.first_ring == Some(ring) { FIRST } else { ring }
    }

    fn post(&mut self, wr_id: u64, signaled: bool, message: Option<Message>, effect: Effect) {
        let requests = (wr_id - self.last_wr_id) as u32;
        self.last_wr_id = wr_id;
        assert!(requests <= self.free_sends, "the send queue is overrun");
        self.free_sends -= requests;
        self.posted.push_back(WorkRequest { wr_id, signaled, message, effect });
        self.changes += 1;
    }

    /// Sometimes replaces the send buffer. Overwrites the previous one as soon as it is unused.
    fn replace_buffer(&mut self) {
        if let Some(wr_id) = self.old_buffer_end
            && self.sender.completed_wr_id >= wr_id
        {
            let previous = self.buffers.len() - 2;
            self.buffers[previous].fill(0xee);
            self.old_buffer_end = None;
        }
        let Some(resizes) = self.resizes.as_mut().filter(|_| self.old_buffer_end.is_none()) else { return };
        if !resizes.chance(20) {
            return;
        }
        let size = resizes.pick(&[2048, 2049, 4096, 5000, 16_384]);
        self.old_buffer_end = Some(self.sender.replace_buffer(size));
        self.buffers.push(vec![0; size as usize]);
    }

    /// Usually adds another receive ring if the flow control requests one, and sometimes if it does
    /// not.
    fn add_ring(&mut self) {
        let requested = self.receiver.should_grow(|| 0);
        let Some(resizes) = self.resizes.as_mut().filter(|_| self.receiver.can_add_ring()) else {
            if requested {
                self.receiver.could_not_grow();
            }
            return;
        };
        if requested && resizes.chance(3) {
            self.receiver.could_not_grow();
        } else if requested || resizes.chance(10) {
            let size = resizes.pick(&[2, 3, 4, 16, 17, 64, 1000, 4096, 8192]);
            if self.setup.small && self.first_ring.is_none() && resizes.chance(4) {
                self.first_ring = Some(self.receiver.add_small_ring(self.setup.ring));
                return;
            }
            let small = !self.setup.small && resizes.chance(4);
            let ring = if small { self.receiver.add_small_ring(size) } else { self.receiver.add_ring(size) };
            assert!(self.unread.iter().all(|part| part.memory != ring), "a ring that is in use still");
            self.memory[ring] = vec![0; size as usize];
        }
    }

    fn remove_unread(&mut self, len: u64) {
        let mut left = len;
        while left > 0 {
            left -= u64::from(shorten(&mut self.unread, left));
        }
    }

    fn take(&mut self, len: u64) {
        self.remove_unread(len);
        if let Some(ended) = self.receiver.take(len) {
            let place = self.place(ended);
            assert!(self.unread.iter().all(|part| part.memory != place), "a ring that is in use still");
            match place {
                FIRST => self.first_ring = None,
                _ => self.memory[place].clear(),
            }
        }
        self.send_credit_updates();
    }

    fn control(&mut self, message: Option<Message>, effect: Effect, requests: u32) {
        let wr_id = self.sender.take_control(requests);
        self.post(wr_id, true, message, effect);
    }

    /// Processes completions.
    pub fn poll(&mut self) {
        let any = !self.completions.is_empty();
        while let Some(completion) = self.completions.pop_front() {
            self.changes += 1;
            match completion {
                Completion::Send(wr_id) => self.send_completed(wr_id),
                Completion::Received(message) => {
                    self.used_receives += 1;
                    if let Err(violation) = self.receive(message) {
                        self.violation.get_or_insert(violation);
                    }
                }
            }
        }
        if any {
            if !self.sender.is_busy() {
                self.send_held();
            }
            if self.used_receives >= self.setup.repost() {
                self.post_receives();
            }
            self.use_next_target();
            self.send_credit_updates();
        }
    }

    fn send_completed(&mut self, wr_id: u64) {
        self.free_sends += (wr_id - self.freed_wr_id) as u32;
        self.freed_wr_id = wr_id;
        self.sender.completed(wr_id);
    }

    /// Processes send completions only, for a program that sends and does not wait.
    pub fn reap_sends(&mut self) {
        let completions = std::mem::take(&mut self.completions);
        for completion in completions {
            match completion {
                Completion::Send(wr_id) => {
                    self.changes += 1;
                    self.send_completed(wr_id);
                }
                received => self.completions.push_back(received),
            }
        }
    }

    /// Handles a message of the peer.
    pub fn receive(&mut self, message: Message) -> Result<(), Violation> {
        match message {
            Message::Data(len) => {
                let was_wanted = self.receiver.wants_credit_update();
                if !self.receiver.take_plain(len) {
                    self.receiver.data(len)?;
                }
                let is_wanted = self.receiver.wants_credit_update();
                assert!(was_wanted || is_wanted == self.receiver.wants_update_after_message());
                assert_eq!(shorten(&mut self.unannounced, len.into()), len, "more than a half or than advertised");
                self.count();
            }
            Message::CreditUpdate(limit) => {
                self.sender.credit_update_received(limit)?;
                self.announced = self.written_entries();
            }
            Message::Iomap(_) => {
                self.receiver.message()?;
                self.count();
            }
            Message::Control(Control::Keepalive) => {}
            Message::Control(_) => self.ended = true,
        }
        Ok(())
    }

    /// Counts a message that used a credit.
    fn count(&mut self) {
        self.messages = self.messages.wrapping_add(1);
        assert!(self.advertised_limit.wrapping_sub(self.messages) < self.setup.queue, "a message without credit");
    }

    fn post_receives(&mut self) {
        self.receives += std::mem::take(&mut self.used_receives);
    }

    fn use_next_target(&mut self) {
        if self.announced > 0 && self.sender.needs_target() {
            let entry = self.take_entry();
            self.sender.use_next_target(entry);
        }
    }

    /// Returns the number of entries that the peer has written, from the next one on.
    fn written_entries(&self) -> usize {
        [self.sgl_entry, 1 - self.sgl_entry].iter().take_while(|&&entry| self.sgl[entry].length > 0).count()
    }

    /// Takes the next entry.
    fn take_entry(&mut self) -> Region {
        self.announced -= 1;
        let entry = std::mem::take(&mut self.sgl[self.sgl_entry]);
        self.sgl_entry = 1 - self.sgl_entry;
        entry
    }

    fn send_credit_updates(&mut self) {
        while self.violation.is_none() && self.receiver.wants_credit_update() && self.sender.has_control() {
            self.add_ring();
            // No update is due if a larger ring was refused.
            let Some(update) = self.receiver.next_credit_update() else { return };
            self.post_receives();
            let message = Some(Message::CreditUpdate(update.limit));
            match update.buffer {
                Some(Advertisement { sgl_entry, ring, offset, len }) => {
                    let memory = self.place(ring);
                    let addr = RINGS[memory] + u64::from(offset);
                    let region = Region { addr, rkey: key(memory), length: len };
                    self.control(
                        message,
                        Effect::Advertise { sgl_entry, region },
                        if self.setup.iwarp { 2 } else { 1 },
                    );
                    let part = Part { memory, offset, len };
                    assert!(!self.unread.iter().any(|unread| unread.overlaps(&part)), "over bytes that were not read");
                    self.writable.push_back(part);
                    self.unannounced.push_back(part);
                    self.unread.push_back(part);
                    assert!(self.unannounced.len() <= 2, "more halves than the SGL has entries");
                }
                None => self.control(message, Effect::Nothing, 1),
            }
            self.advertised_limit = update.limit;
            self.receiver.credit_update_sent(&update);
        }
    }

    /// Returns whether the program has sent and received everything, including the shutdown
    /// message.
    pub fn is_finished(&self) -> bool {
        let done = self.sent == self.total && self.shutdown && self.ended && self.receiver.available() == 0;
        done && self.sender.is_idle()
    }

    /// Returns whether there are work requests or completions in progress.
    pub fn is_busy(&self) -> bool {
        !(self.posted.is_empty() && self.executed.is_empty() && self.completions.is_empty())
    }

    /// Checks the final state.
    pub fn check_end(&self, peer: &End) {
        assert_eq!(self.violation, None);
        assert_eq!(self.taken, peer.total, "bytes are missing");
        assert!(self.sender.is_idle(), "something never completes");
        assert_eq!(self.free_sends, self.setup.sends, "send queue entries are lost");
        assert_eq!(self.receives + self.used_receives, self.setup.receives(), "receives are lost");
        assert_eq!(self.sender.credits(), peer.advertised_limit.wrapping_sub(peer.messages), "credits are lost");
        assert!(self.sender.credits() > peer.setup.queue / 2, "credits are kept back");
    }
}

/// Removes up to `len` bytes from the first part. Returns the number of bytes, which is smaller
/// than `len` if the peer's message is wrong.
fn shorten(parts: &mut VecDeque<Part>, len: u64) -> u32 {
    let Some(first) = parts.front_mut() else { return 0 };
    let taken = u64::from(first.len).min(len) as u32;
    (first.offset, first.len) = (first.offset + taken, first.len - taken);
    if first.len == 0 {
        parts.pop_front();
    }
    taken
}
