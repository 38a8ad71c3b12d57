//! Compares repoll with the kernel's epoll: random requests and changes for rsockets and eventfds.

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT, epoll_event};
use proptest::prelude::*;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::tests::Fixture;
use crate::errno::Result;
use crate::os::event::{EventFd, KernelEpoll};
use crate::rsocket::fake::{Change, readable};

const MEMBERS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Add(usize, c_int),
    Modify(usize, c_int),
    Delete(usize),
    /// Data arrives, with a completion if the second field is set.
    Data(usize, bool),
    Read(usize),
    /// Another thread reads the event.
    Steal(usize),
    /// A blocking call begins, or ends if one has begun. It reads the next event if the second
    /// field is set.
    Lead(usize, bool),
    Wait,
    /// An ordinary descriptor becomes readable, or is read.
    Ordinary(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let member = || 0..MEMBERS;
    let mode = prop::sample::select(vec![0, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT]);
    let bits = prop::sample::select(vec![0, EPOLLIN, EPOLLIN, EPOLLIN]);
    let events = (mode, bits).prop_map(|(mode, bits)| mode | bits);
    prop_oneof![
        2 => (member(), events.clone()).prop_map(|(index, events)| Step::Add(index, events)),
        2 => (member(), events).prop_map(|(index, events)| Step::Modify(index, events)),
        1 => member().prop_map(Step::Delete),
        4 => (member(), any::<bool>()).prop_map(|(index, completion)| Step::Data(index, completion)),
        3 => member().prop_map(Step::Read),
        1 => member().prop_map(Step::Steal),
        2 => (member(), any::<bool>()).prop_map(|(index, takes)| Step::Lead(index, takes)),
        6 => Just(Step::Wait),
        1 => any::<bool>().prop_map(Step::Ordinary),
    ]
}

/// The kernel's epoll with eventfds.
struct Kernel {
    epoll: KernelEpoll,
    events: Vec<EventFd>,
}

impl Kernel {
    fn new() -> Kernel {
        let events = (0..MEMBERS).map(|_| EventFd::new().unwrap()).collect();
        Kernel { epoll: KernelEpoll::new(0).unwrap(), events }
    }

    fn control(&self, op: c_int, index: usize, events: c_int) -> Result<()> {
        let event = epoll_event { events: events as u32, u64: index as u64 };
        self.epoll.control(op, self.events[index].as_raw_fd(), Some(event))
    }

    fn now(&self) -> Vec<(u64, c_int)> {
        let mut events = [MaybeUninit::uninit(); 64];
        let count = self.epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
        // SAFETY: the kernel has written this event.
        let event = |event: &MaybeUninit<epoll_event>| unsafe { event.assume_init() };
        let mut now: Vec<_> = events[..count].iter().map(event).map(|e| (e.u64, e.events as c_int)).collect();
        now.sort_unstable();
        now
    }
}

fn run(steps: Vec<Step>) -> std::result::Result<(), TestCaseError> {
    let (ours, kernel) = (Fixture::new(MEMBERS), Kernel::new());
    let ordinary = EventFd::new().unwrap();
    let all = MEMBERS as u64;
    let mut leaders = [None; MEMBERS];
    ours.control_fd(EPOLL_CTL_ADD, ordinary.as_raw_fd(), EPOLLIN, all).unwrap();
    kernel
        .epoll
        .control(EPOLL_CTL_ADD, ordinary.as_raw_fd(), Some(epoll_event { events: EPOLLIN as u32, u64: all }))
        .unwrap();
    for step in steps {
        let both = |op, index, events| (ours.control(op, index, events), kernel.control(op, index, events));
        let (got, expected) = match step {
            Step::Add(index, events) => both(EPOLL_CTL_ADD, index, events),
            Step::Modify(index, events) => both(EPOLL_CTL_MOD, index, events),
            Step::Delete(index) => both(EPOLL_CTL_DEL, index, 0),
            Step::Data(index, completion) => {
                kernel.events[index].raise();
                let fake = &ours.fakes[index];
                if completion {
                    fake.complete(Change::Data)
                } else {
                    fake.change(Change::Data)
                }
                if let Some(takes) = leaders[index].take() {
                    fake.stop_leading(takes);
                }
                (Ok(()), Ok(()))
            }
            Step::Read(index) => {
                kernel.events[index].clear();
                ours.fakes[index].read();
                (Ok(()), Ok(()))
            }
            Step::Steal(index) => {
                ours.fakes[index].steal_event();
                (Ok(()), Ok(()))
            }
            Step::Lead(index, takes) => {
                match leaders[index].take() {
                    Some(_) => ours.fakes[index].stop_leading(false),
                    None => {
                        ours.fakes[index].start_leading();
                        leaders[index] = Some(takes);
                    }
                }
                (Ok(()), Ok(()))
            }
            Step::Ordinary(raise) => {
                if raise {
                    ordinary.raise()
                } else {
                    ordinary.clear()
                }
                (Ok(()), Ok(()))
            }
            Step::Wait => {
                let must = readable(kernel.epoll.as_raw_fd());
                let may = readable(ours.epoll.fd);
                prop_assert!(may || !must, "readable whenever the kernel's is");
                prop_assert_eq!(ours.now(), kernel.now());
                prop_assert_eq!(readable(ours.epoll.fd), readable(kernel.epoll.as_raw_fd()));
                (Ok(()), Ok(()))
            }
        };
        prop_assert_eq!(got, expected);
    }
    prop_assert_eq!(ours.now(), kernel.now());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn matches_the_kernels_epoll(steps in prop::collection::vec(step(), 1..60)) {
        run(steps)?;
    }
}
