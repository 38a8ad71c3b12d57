//! Tests of rpoll with fake rsockets, eventfds and pipes.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use libc::{POLLERR, POLLHUP, POLLNVAL, POLLOUT, POLLPRI, POLLRDHUP, POLLRDNORM, POLLWRNORM};

use super::*;
use crate::os::event::EventFd;
use crate::rsocket::fake::{Change, FIRST, Fake, Table};

fn fd(fd: c_int, events: c_short) -> pollfd {
    pollfd { fd, events, revents: 0x7FFF }
}

fn revents(fds: &[pollfd]) -> Vec<c_short> {
    fds.iter().map(|fd| fd.revents).collect()
}

/// Calls `change` while a thread sleeps in rpoll on `fds` without time-out. Returns its revents.
fn woken(table: &Table, mut fds: Vec<pollfd>, sleeping: &Fake, change: impl FnOnce()) -> Result<Vec<c_short>> {
    thread::scope(|scope| {
        let sleeper = scope.spawn(move || poll(table, &mut fds, -1).map(|_| revents(&fds)));
        sleeping.await_watchers();
        sleeping.await_armed();
        change();
        sleeper.join().unwrap()
    })
}

#[test]
fn rsockets_ready_on_entry_are_reported_without_arming() {
    let (a, b) = (Fake::new(), Fake::new());
    let table = Table::of(&[&a, &b]);
    a.complete(Change::Data);
    a.complete(Change::Space);
    let mut fds = [fd(FIRST, POLLIN), fd(FIRST + 1, POLLIN | POLLOUT), fd(FIRST, POLLRDNORM | POLLWRNORM | POLLPRI)];
    assert_eq!(poll(&table, &mut fds, -1), Ok(2));
    assert_eq!(revents(&fds), [POLLIN, 0, POLLRDNORM | POLLWRNORM]);
    assert!(!a.is_armed(), "polling is enough");
    b.complete(Change::Error);
    fds[1].events = 0;
    assert_eq!(poll(&table, &mut fds[1..2], -1), Ok(1));
    assert_eq!(fds[1].revents, POLLERR | POLLHUP);
}

#[test]
fn without_time_each_rsocket_is_polled_once() {
    let fake = Fake::new();
    let table = Table::of(&[&fake]);
    let mut fds = [fd(FIRST, POLLIN), fd(-1, POLLIN)];
    assert_eq!(poll(&table, &mut fds, 0), Ok(0));
    assert_eq!((revents(&fds), fake.polls.load(Ordering::Relaxed), fake.is_armed()), (vec![0, 0], 1, false));
}

#[test]
fn rsockets_and_other_descriptors_are_reported_together() {
    let fake = Fake::new();
    let table = Table::of(&[&fake]);
    let event = EventFd::new().unwrap();
    let mut fds = [
        fd(event.as_raw_fd(), POLLIN | POLLOUT),
        fd(-1, POLLIN),
        fd(FIRST, POLLIN),
        fd(FIRST + 9, POLLIN),
        fd(-FIRST, POLLIN),
    ];
    fake.complete(Change::Data);
    assert_eq!(poll(&table, &mut fds, -1), Ok(3));
    assert_eq!(revents(&fds), [POLLOUT, 0, POLLIN, POLLNVAL, 0]);
    event.raise();
    fake.read();
    assert_eq!(poll(&table, &mut fds, -1), Ok(2));
    assert_eq!(revents(&fds), [POLLIN | POLLOUT, 0, 0, POLLNVAL, 0]);
    assert_eq!(poll(&table, &mut fds[..2], 0), Ok(1), "none of them is an rsocket");
    assert_eq!(poll(&table, &mut [], 0), Ok(0));
}

#[test]
fn times_out() {
    let fake = Fake::new();
    let table = Table::of(&[&fake]);
    let event = EventFd::new().unwrap();
    let mut fds = [fd(FIRST, POLLIN), fd(event.as_raw_fd(), POLLIN)];
    for timeout in [0, 1, 20] {
        let start = Instant::now();
        assert_eq!(poll(&table, &mut fds, timeout), Ok(0));
        assert!(start.elapsed() >= Duration::from_millis(timeout as u64));
        assert_eq!(revents(&fds), [0, 0]);
    }
    assert!(fake.watchers().is_empty());
}

#[test]
fn wakes_for_a_completion() {
    let fake = Fake::new();
    let table = Table::of(&[&fake]);
    let got = woken(&table, vec![fd(FIRST, POLLIN), fd(FIRST, POLLOUT)], &fake, || fake.complete(Change::Data));
    assert_eq!(got, Ok(vec![POLLIN, 0]));
    assert!(fake.watchers().is_empty());
}

#[test]
fn sleeps_on_after_an_unwanted_completion() {
    let fake = Fake::new();
    let table = Table::of(&[&fake]);
    let got = woken(&table, vec![fd(FIRST, POLLIN | POLLRDHUP)], &fake, || {
        fake.complete(Change::Space);
        fake.await_armed();
        fake.complete(Change::Eof);
    });
    assert_eq!(got, Ok(vec![POLLIN | POLLRDHUP]));
}

#[test]
fn wakes_for_a_notice() {
    let fake = Fake::new();
    let table = Table::of(&[&fake]);
    let got = woken(&table, vec![fd(FIRST, POLLIN)], &fake, || fake.change(Change::Data));
    assert_eq!(got, Ok(vec![POLLIN]));
}

#[test]
fn wakes_for_another_descriptor() {
    let fake = Fake::new();
    let table = Table::of(&[&fake]);
    let event = EventFd::new().unwrap();
    let fds = vec![fd(FIRST, POLLIN), fd(event.as_raw_fd(), POLLIN)];
    assert_eq!(woken(&table, fds, &fake, || event.raise()), Ok(vec![0, POLLIN]));
}

#[test]
fn polls_descriptors_that_appear_during_the_wait() {
    let fake = Fake::unconnected();
    let table = Table::of(&[&fake]);
    let got = woken(&table, vec![fd(FIRST, POLLIN)], &fake, || {
        fake.connect();
        fake.await_armed();
        fake.complete(Change::Data);
    });
    assert_eq!(got, Ok(vec![POLLIN]));
}

#[test]
fn wakes_for_an_event_that_another_thread_read() {
    let fake = Fake::new();
    let table = Table::of(&[&fake]);
    let got = woken(&table, vec![fd(FIRST, POLLIN)], &fake, || {
        fake.complete(Change::Data);
        fake.steal_event();
    });
    assert_eq!(got, Ok(vec![POLLIN]));
}

#[test]
fn reports_an_rsocket_closed_during_the_wait() {
    let (fake, other) = (Fake::new(), Fake::new());
    let table = Table::of(&[&fake, &other]);
    let got = woken(&table, vec![fd(FIRST, POLLIN), fd(FIRST + 1, POLLIN)], &other, || fake.close());
    assert_eq!(got, Ok(vec![POLLNVAL, 0]));
    assert!(other.watchers().is_empty());
    assert_eq!(poll(&table, &mut [fd(FIRST, POLLIN)], -1), Ok(1));
}

#[test]
fn wakes_all_threads_that_wait_for_an_rsocket() {
    const THREADS: usize = 8;
    let fake = Fake::new();
    let table = Table::of(&[&fake]);
    thread::scope(|scope| {
        let wait = || {
            let mut fds = [fd(FIRST, POLLIN)];
            poll(&table, &mut fds, -1).map(|_| fds[0].revents)
        };
        let all: Vec<_> = (0..THREADS).map(|_| scope.spawn(wait)).collect();
        fake.await_watchers();
        fake.complete(Change::Data);
        for one in all {
            assert_eq!(one.join().unwrap(), Ok(POLLIN), "every thread wakes up");
        }
    });
}

/// Two threads pass a token to and fro over two rsockets. Both also wait for the other thread's
/// rsocket, so that they read its events.
#[test]
fn no_wake_up_is_lost() {
    const ROUNDS: usize = 2000;
    let fakes = [Fake::new(), Fake::new()];
    let table = Table::of(&[&fakes[0], &fakes[1]]);
    let done = AtomicBool::new(false);
    let play = |own: usize| {
        for _ in 0..ROUNDS {
            while !fakes[own].read() {
                let mut fds = [fd(FIRST + own as c_int, POLLIN), fd(FIRST + 1 - own as c_int, POLLOUT)];
                assert_eq!(poll(&table, &mut fds, -1), Ok(1));
                assert_eq!(fds[0].revents, POLLIN);
            }
            fakes[1 - own].complete(Change::Data);
        }
    };
    thread::scope(|scope| {
        let thief = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fakes[0].steal_event();
                thread::yield_now();
            }
        });
        let players = [0, 1].map(|own| scope.spawn(move || play(own)));
        fakes[0].complete(Change::Data);
        players.into_iter().for_each(|player| player.join().unwrap());
        done.store(true, Ordering::Relaxed);
        thief.join().unwrap();
    });
}

extern "C" fn nothing(_: c_int) {}

#[test]
fn a_signal_interrupts_the_wait() {
    let action = libc::sigaction {
        sa_sigaction: nothing as *const () as usize,
        sa_flags: libc::SA_RESTART,
        // SAFETY: plain C data for which zeros are valid.
        ..unsafe { std::mem::zeroed() }
    };
    // SAFETY: the handler does nothing.
    unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) };
    let fake = Fake::new();
    let table = &Table::of(&[&fake]);
    thread::scope(|scope| {
        let (send, id) = std::sync::mpsc::channel();
        let sleeper = scope.spawn(move || {
            // SAFETY: returns the calling thread's id.
            send.send(unsafe { libc::pthread_self() }).unwrap();
            poll(table, &mut [fd(FIRST, POLLIN)], -1)
        });
        let id = id.recv().unwrap();
        // A signal that arrives before the thread sleeps is missed, as with poll(2).
        while !sleeper.is_finished() {
            thread::yield_now();
            // SAFETY: the thread has not been joined yet, so its id is valid.
            unsafe { libc::pthread_kill(id, libc::SIGUSR1) };
        }
        assert_eq!(sleeper.join().unwrap(), Err(Errno::new(libc::EINTR)));
    });
    assert!(fake.watchers().is_empty());
}

#[test]
fn more_descriptors_than_fit_inline() {
    const MANY: usize = 300;
    let fakes: Vec<_> = (0..MANY).map(|_| Fake::new()).collect();
    let table = Table::of(&fakes.iter().collect::<Vec<_>>());
    let fds: Vec<_> = (0..MANY).map(|n| fd(FIRST + n as c_int, POLLIN)).collect();
    let got = woken(&table, fds, &fakes[MANY - 1], || fakes[MANY - 1].complete(Change::Data)).unwrap();
    assert_eq!(got.iter().filter(|&&revents| revents != 0).count(), 1);
    assert_eq!(got[MANY - 1], POLLIN);
}

#[test]
fn more_descriptors_than_the_limit_are_rejected() {
    let fake = Fake::new();
    let table = Table::of(&[&fake]);
    let mut fds = vec![fd(FIRST, POLLIN); event::descriptor_limit().min(1 << 22) + 1];
    assert_eq!(poll(&table, &mut fds, 0), Err(Errno::EINVAL));
}

#[test]
fn waits_for_a_single_rsocket() {
    let fake = Fake::new();
    let rsocket: Arc<dyn Pollable> = fake.clone();
    assert_eq!(wait_one(&rsocket, POLLIN, Deadline::after_ms(1)), Ok(0));
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| wait_one(&rsocket, POLLIN, Deadline::after_ms(-1)));
        fake.await_armed();
        fake.complete(Change::Data);
        assert_eq!(sleeper.join().unwrap(), Ok(POLLIN));
    });
    fake.close();
    assert_eq!(wait_one(&rsocket, POLLIN, Deadline::after_ms(-1)), Ok(POLLNVAL));
}
