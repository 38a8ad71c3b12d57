//! Replaces eventfds, completion channels, poll(2) and epoll(7) in the models: descriptors with a
//! count, and threads that sleep until a count is not 0. One lock replaces the kernel. Every
//! timeout expires at once; the order of the threads decides what happens before a timeout.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use libc::{POLLIN, pollfd};
use loom::sync::{Condvar, Mutex, MutexGuard};

use crate::errno::{Errno, Result};

#[derive(Clone, Copy, Default)]
struct Count {
    now: u32,
    /// Whether the descriptor was raised since the last wake-up of the edge-triggered watcher.
    edge: bool,
}

#[derive(Default)]
struct Kernel {
    counts: Mutex<Vec<Count>>,
    changed: Condvar,
}

loom::lazy_static! {
    static ref KERNEL: Kernel = Kernel::default();
}

type Counts = MutexGuard<'static, Vec<Count>>;

fn enter() -> Counts {
    KERNEL.counts.lock().unwrap()
}

fn sleep(counts: Counts) -> Counts {
    KERNEL.changed.wait(counts).unwrap()
}

#[derive(Debug)]
pub struct EventFd(RawFd);

impl EventFd {
    pub fn new() -> Result<EventFd> {
        let mut counts = enter();
        counts.push(Count::default());
        Ok(EventFd(counts.len() as RawFd - 1))
    }

    pub fn raise(&self) {
        let mut counts = enter();
        let count = &mut counts[self.0 as usize];
        count.now += 1;
        count.edge = true;
        drop(counts);
        KERNEL.changed.notify_all();
    }

    pub fn clear(&self) {
        enter()[self.0 as usize].now = 0;
    }

    /// Takes an event, like ibv_get_cq_event(3).
    pub fn take(&self, wait: bool) -> Result<()> {
        let mut counts = enter();
        while counts[self.0 as usize].now == 0 {
            if !wait {
                return Err(Errno::EAGAIN);
            }
            counts = sleep(counts);
        }
        counts[self.0 as usize].now -= 1;
        Ok(())
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

pub fn poll(fds: &mut [pollfd], timeout: Option<Duration>) -> Result<usize> {
    let mut counts = enter();
    loop {
        let mut ready = 0;
        for fd in &mut *fds {
            fd.revents = if counts[fd.fd as usize].now > 0 { POLLIN } else { 0 };
            ready += usize::from(fd.revents != 0);
        }
        if ready > 0 || timeout.is_some() {
            return Ok(ready);
        }
        counts = sleep(counts);
    }
}

/// epoll_wait(2) for one descriptor with EPOLLET: returns when the descriptor was raised again and
/// is still readable. An event that stays unread does not wake the caller a second time.
pub fn wait_for_edge(fd: RawFd) {
    let mut counts = enter();
    loop {
        let count = &mut counts[fd as usize];
        if count.edge && count.now > 0 {
            count.edge = false;
            return;
        }
        counts = sleep(counts);
    }
}

/// A deadline that never passes, or passes as soon as a thread sleeps.
#[derive(Clone, Copy)]
pub struct Deadline(Option<Duration>);

impl Deadline {
    pub fn after(time: Option<Duration>) -> Deadline {
        Deadline(time)
    }

    pub fn after_ms(timeout: c_int) -> Deadline {
        Deadline(u64::try_from(timeout).ok().map(Duration::from_millis))
    }

    pub fn left(&self) -> Option<Duration> {
        self.0
    }

    pub fn instant(&self) -> Option<Instant> {
        self.0.map(|left| Instant::now() + left)
    }

    pub fn passed(&self) -> bool {
        false
    }
}

pub fn cpus() -> c_int {
    1
}

pub fn spin() {
    loom::hint::spin_loop();
}

pub fn descriptor_limit() -> usize {
    1024
}
