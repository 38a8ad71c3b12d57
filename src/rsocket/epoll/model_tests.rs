//! repoll against the kernel's epoll: the same requests and changes, at random, for rsockets and for eventfds.

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT, epoll_event};
use proptest::prelude::*;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::tests::Fixture;
use crate::errno::Result;
use crate::rsocket::fake::{Change, readable};
use crate::sys::event::{EventFd, KernelEpoll};

const MEMBERS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Add(usize, c_int),
    Modify(usize, c_int),
    Delete(usize),
    /// Data comes; as a completion, or as a change without one.
    Data(usize, bool),
    Read(usize),
    /// Another thread takes the event.
    Steal(usize),
    /// A blocking call begins, which takes the event when data comes, or does not; one that has begun ends.
    Lead(usize, bool),
    Wait,
    /// An ordinary descriptor is raised, or read.
    Ordinary(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let member = || 0..MEMBERS;
    let mode = prop::sample::select(vec![0, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT]);
    let bits = prop::sample::select(vec![0, EPOLLIN, EPOLLIN, EPOLLIN]);
    let events = (mode, bits).prop_map(|(mode, bits)| mode | bits);
    prop_oneof![
        2 => (member(), events.clone()).prop_map(|(place, events)| Step::Add(place, events)),
        2 => (member(), events).prop_map(|(place, events)| Step::Modify(place, events)),
        1 => member().prop_map(Step::Delete),
        4 => (member(), any::<bool>()).prop_map(|(place, completion)| Step::Data(place, completion)),
        3 => member().prop_map(Step::Read),
        1 => member().prop_map(Step::Steal),
        2 => (member(), any::<bool>()).prop_map(|(place, takes)| Step::Lead(place, takes)),
        6 => Just(Step::Wait),
        1 => any::<bool>().prop_map(Step::Ordinary),
    ]
}

/// The kernel's side.
struct Kernel {
    epoll: KernelEpoll,
    events: Vec<EventFd>,
}

impl Kernel {
    fn new() -> Kernel {
        let events = (0..MEMBERS).map(|_| EventFd::new().unwrap()).collect();
        Kernel { epoll: KernelEpoll::new(0).unwrap(), events }
    }

    fn control(&self, op: c_int, place: usize, events: c_int) -> Result<()> {
        let event = epoll_event { events: events as u32, u64: place as u64 };
        self.epoll.control(op, self.events[place].as_raw_fd(), Some(event))
    }

    fn now(&self) -> Vec<(u64, c_int)> {
        let mut events = [MaybeUninit::uninit(); 64];
        let count = self.epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
        // SAFETY: written by the kernel.
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
        let both = |op, place, events| (ours.control(op, place, events), kernel.control(op, place, events));
        let (got, expected) = match step {
            Step::Add(place, events) => both(EPOLL_CTL_ADD, place, events),
            Step::Modify(place, events) => both(EPOLL_CTL_MOD, place, events),
            Step::Delete(place) => both(EPOLL_CTL_DEL, place, 0),
            Step::Data(place, completion) => {
                kernel.events[place].raise();
                let fake = &ours.fakes[place];
                if completion {
                    fake.complete(Change::Data)
                } else {
                    fake.change(Change::Data)
                }
                if let Some(takes) = leaders[place].take() {
                    fake.end_lead(takes);
                }
                (Ok(()), Ok(()))
            }
            Step::Read(place) => {
                kernel.events[place].clear();
                ours.fakes[place].read();
                (Ok(()), Ok(()))
            }
            Step::Steal(place) => {
                ours.fakes[place].steal_event();
                (Ok(()), Ok(()))
            }
            Step::Lead(place, takes) => {
                match leaders[place].take() {
                    Some(_) => ours.fakes[place].end_lead(false),
                    None => {
                        ours.fakes[place].lead();
                        leaders[place] = Some(takes);
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
                let may = readable(ours.epoll.fd());
                prop_assert!(may || !must, "readable whenever the kernel's is");
                prop_assert_eq!(ours.now(), kernel.now());
                prop_assert_eq!(readable(ours.epoll.fd()), readable(kernel.epoll.as_raw_fd()));
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
    fn as_the_kernel_does_it(steps in prop::collection::vec(step(), 1..60)) {
        run(steps)?;
    }
}
