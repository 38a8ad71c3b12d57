//! One end: the state machines with what the link adds to them, but memory and devices are vectors and queues.

mod network;
mod peer;
mod program;

use std::collections::VecDeque;

pub use network::deliver;

use super::super::{Advertisement, Receiver, SendLimits, Sender, Violation, Wish};
use super::random::Random;
use crate::rsocket::wire::{Control, Message, Region};

/// As the link has them: entries for control messages, receives for the peer's and when they are posted again, bytes of a
/// mapping.
const CONTROL: u32 = 4;
const EXTRA_RECEIVES: u32 = 16;
const REPOST: u32 = EXTRA_RECEIVES / 2;
const MAPPING: u32 = 24;
/// Where the rings are, for the peer, and the key of the first one.
const RINGS: [u64; 2] = [0x10_0000, 0x1000_0000];
const KEY: u32 = 77;

/// What a program chose.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub ring: u32,
    pub queue: u16,
    pub sends: u32,
    pub buffer: u32,
    pub inline: u32,
    pub iwarp: bool,
    /// Seed of its whims: buffers of other sizes. 0 for none.
    pub whims: u64,
}

impl Setup {
    /// Mostly small, where things run out at once.
    pub fn random(random: &mut Random, iwarp: bool) -> Setup {
        Setup {
            ring: random.pick(&[2, 2, 3, 4, 6, 16, 17, 64, 100, 256, 1000, 2048, 4096, 8192, 131_072]),
            queue: random.pick(&[16, 16, 17, 18, 32, 64, 100, 384]),
            sends: random.pick(&[16, 16, 17, 18, 32, 64, 384]),
            buffer: random.pick(&[2048, 2048, 2049, 4096, 5000, 131_072]),
            inline: random.pick(&[0, 0, 1, 16, 24, 64, 256]),
            iwarp,
            whims: random.next() & random.pick(&[0, u64::MAX]),
        }
    }

    fn half(&self) -> u32 {
        self.ring / 2
    }

    fn receives(&self) -> u32 {
        u32::from(self.queue) + EXTRA_RECEIVES
    }
}

/// Bytes that are read when the write is carried out: the device does that after the call.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// Taken along at once.
    Inline { position: u64 },
    /// In the send buffer; `position` is what should be there.
    Buffer { which: usize, offset: u32, position: u64 },
}

/// A part of a ring.
#[derive(Clone, Copy, Debug)]
struct Part {
    ring: usize,
    offset: u32,
    len: u32,
}

impl Part {
    fn overlaps(&self, other: &Part) -> bool {
        self.ring == other.ring && self.offset < other.offset + other.len && other.offset < self.offset + self.len
    }
}

/// What a work request does at the peer.
#[derive(Clone, Copy, Debug)]
enum Effect {
    Nothing,
    Data {
        addr: u64,
        key: u32,
        len: u32,
        source: Source,
    },
    /// A write that is no part of the stream.
    Other {
        len: u32,
        source: Source,
    },
    Announce {
        slot: usize,
        region: Region,
    },
}

#[derive(Clone, Copy, Debug)]
struct Work {
    number: u64,
    report: bool,
    message: Option<Message>,
    effect: Effect,
}

#[derive(Clone, Copy, Debug)]
enum Completion {
    Own(u64),
    Received(Message),
}

/// See the module.
pub struct End {
    setup: Setup,
    receiver: Receiver,
    sender: Sender,
    /// What the device sees.
    rings: [Vec<u8>; 2],
    sgl: [Region; 2],
    buffers: Vec<Vec<u8>>,
    /// Work request after which the buffer before the last is not needed.
    before: Option<u64>,
    whims: Option<Random>,
    posted: VecDeque<Work>,
    carried: VecDeque<Work>,
    completions: VecDeque<Completion>,
    free_sends: u32,
    /// Numbers of the last request, and of the last one whose entry is free again.
    last: u64,
    freed: u64,
    receives: u32,
    idle: u32,
    /// As the link: which entry is filled next, and whether the peer wrote.
    slot: usize,
    news: bool,
    /// The program's side.
    total: u64,
    sent: u64,
    taken: u64,
    shut: bool,
    ended: bool,
    /// For the checks: what the peer may write, may say it wrote, and what the program has not read; the last grant and the
    /// messages that used credits.
    open: VecDeque<Part>,
    unheard: VecDeque<Part>,
    unread: VecDeque<Part>,
    told: u16,
    messages: u16,
    /// Position of bytes that are no part of the stream.
    other: u64,
    /// Whether the peer keeps to the rules.
    pub violation: Option<Violation>,
    /// How often something happened.
    pub changes: u64,
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
        let target = Region { addr: RINGS[0], rkey: KEY, length: peer.half() };
        let first = Part { ring: 0, offset: 0, len: setup.half() };
        End {
            setup,
            receiver: Receiver::new(setup.ring, setup.queue),
            sender: Sender::new(limits, target).unwrap(),
            rings: [vec![0; setup.ring as usize], Vec::new()],
            sgl: [Region::default(); 2],
            buffers: vec![vec![0; setup.buffer as usize]],
            before: None,
            whims: (setup.whims != 0).then(|| Random::new(setup.whims)),
            posted: VecDeque::new(),
            carried: VecDeque::new(),
            completions: VecDeque::new(),
            free_sends: setup.sends,
            last: 0,
            freed: 0,
            receives: setup.receives(),
            idle: 0,
            slot: 1,
            news: false,
            total,
            sent: 0,
            taken: 0,
            shut: false,
            ended: false,
            open: VecDeque::from([first]),
            unheard: VecDeque::from([first]),
            unread: VecDeque::from([first]),
            told: setup.queue,
            messages: 0,
            other: 0,
            violation: None,
            changes: 0,
        }
    }

    fn post(&mut self, number: u64, report: bool, message: Option<Message>, effect: Effect) {
        let requests = (number - self.last) as u32;
        self.last = number;
        assert!(requests <= self.free_sends, "the send queue is overrun");
        self.free_sends -= requests;
        self.posted.push_back(Work { number, report, message, effect });
        self.changes += 1;
    }

    /// Another send buffer. The one before is spoiled as soon as it may be.
    fn replace_buffer(&mut self) {
        if let Some(number) = self.before
            && self.sender.is_complete(number)
        {
            let before = self.buffers.len() - 2;
            self.buffers[before].fill(0xee);
            self.before = None;
        }
        let Some(whims) = self.whims.as_mut().filter(|_| self.before.is_none()) else { return };
        if !whims.chance(20) {
            return;
        }
        let size = whims.pick(&[2048, 2049, 4096, 5000, 16_384]);
        self.before = Some(self.sender.replace_buffer(size));
        self.buffers.push(vec![0; size as usize]);
    }

    /// Another receive buffer follows.
    fn follow(&mut self) {
        let wish = self.receiver.wish(|| 0);
        let Some(whims) = self.whims.as_mut().filter(|_| self.receiver.may_follow()) else { return };
        if whims.chance(10) || wish == Wish::Grow {
            let size = whims.pick(&[2, 3, 4, 16, 17, 64, 1000, 4096, 8192]);
            let ring = self.receiver.follow(size, None);
            assert!(self.unread.iter().all(|part| part.ring != ring), "a ring that is in use still");
            self.rings[ring] = vec![0; size as usize];
        }
    }

    fn forget(&mut self, len: u64) {
        let mut left = len;
        while left > 0 {
            left -= u64::from(shorten(&mut self.unread, left));
        }
    }

    fn take(&mut self, len: u64) {
        self.forget(len);
        if let Some(ended) = self.receiver.take(len) {
            assert!(self.unread.iter().all(|part| part.ring != ended), "a ring that is in use still");
            self.rings[ended].clear();
        }
        self.grant();
    }

    fn control(&mut self, message: Option<Message>, effect: Effect, requests: u32) {
        let number = self.sender.take_control(requests);
        self.post(number, true, message, effect);
    }

    /// Looks at what completed.
    pub fn poll(&mut self) {
        let any = !self.completions.is_empty();
        while let Some(completion) = self.completions.pop_front() {
            self.changes += 1;
            match completion {
                Completion::Own(number) => {
                    self.free_sends += (number - self.freed) as u32;
                    self.freed = number;
                    self.sender.completed(number);
                }
                Completion::Received(message) => {
                    self.idle += 1;
                    if let Err(violation) = self.receive(message) {
                        self.violation.get_or_insert(violation);
                    }
                }
            }
        }
        if any {
            if self.idle >= REPOST {
                self.post_receives();
            }
            self.retarget();
            self.grant();
        }
    }

    /// A message of the peer's.
    pub fn receive(&mut self, message: Message) -> Result<(), Violation> {
        match message {
            Message::Data(len) => {
                self.receiver.data(len)?;
                assert_eq!(shorten(&mut self.unheard, len.into()), len, "more than a half, or than was announced");
                self.count();
            }
            Message::CreditUpdate(number) => {
                self.sender.credit_update_received(number)?;
                self.news = true;
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

    /// A message that used a credit.
    fn count(&mut self) {
        self.messages = self.messages.wrapping_add(1);
        assert!(self.told.wrapping_sub(self.messages) < self.setup.queue, "a message without credit");
    }

    fn post_receives(&mut self) {
        self.receives += std::mem::take(&mut self.idle);
    }

    fn retarget(&mut self) {
        if !self.news || !self.sender.needs_target() {
            return;
        }
        self.news = false;
        let entry = std::mem::take(&mut self.sgl[self.slot]);
        if entry.length == 0 {
            return;
        }
        self.sender.use_next_target(entry);
        self.slot = 1 - self.slot;
        self.news = true;
    }

    fn grant(&mut self) {
        while self.violation.is_none() && self.receiver.wants_credit_update() && self.sender.has_control() {
            self.follow();
            let update = self.receiver.next_credit_update().expect("is due");
            self.post_receives();
            let message = Some(Message::CreditUpdate(update.limit));
            match update.buffer {
                Some(Advertisement { sgl_entry: slot, ring, offset, len }) => {
                    let region = Region { addr: RINGS[ring] + u64::from(offset), rkey: KEY + ring as u32, length: len };
                    self.control(message, Effect::Announce { slot, region }, if self.setup.iwarp { 2 } else { 1 });
                    let part = Part { ring, offset, len };
                    assert!(!self.unread.iter().any(|unread| unread.overlaps(&part)), "over bytes that were not read");
                    self.open.push_back(part);
                    self.unheard.push_back(part);
                    self.unread.push_back(part);
                    assert!(self.unheard.len() <= 2, "more halves than the SGL has entries");
                }
                None => self.control(message, Effect::Nothing, 1),
            }
            self.told = update.limit;
            self.receiver.credit_update_sent(&update);
        }
    }

    /// The program has sent and received everything, and heard of the end.
    pub fn is_finished(&self) -> bool {
        let done = self.sent == self.total && self.shut && self.ended && self.receiver.available() == 0;
        done && self.sender.is_idle()
    }

    /// Something is under way.
    pub fn is_busy(&self) -> bool {
        !(self.posted.is_empty() && self.carried.is_empty() && self.completions.is_empty())
    }

    /// What holds when everything is over.
    pub fn check_end(&self, peer: &End) {
        assert_eq!(self.violation, None);
        assert_eq!(self.taken, peer.total, "bytes are missing");
        assert!(self.sender.is_idle(), "something never completes");
        assert_eq!(self.free_sends, self.setup.sends, "send queue entries are lost");
        assert_eq!(self.receives + self.idle, self.setup.receives(), "receives are lost");
        assert_eq!(self.sender.credits(), peer.told.wrapping_sub(peer.messages), "credits are lost");
        assert!(self.sender.credits() > peer.setup.queue / 2, "credits are kept back");
    }
}

/// Takes `len` bytes off the first part, or as many as it has: how many. The peer's claims may be wrong.
fn shorten(parts: &mut VecDeque<Part>, len: u64) -> u32 {
    let Some(first) = parts.front_mut() else { return 0 };
    let taken = u64::from(first.len).min(len) as u32;
    (first.offset, first.len) = (first.offset + taken, first.len - taken);
    if first.len == 0 {
        parts.pop_front();
    }
    taken
}
