//! Tests of rpoll, with fake rsockets, eventfds and pipes.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use libc::{POLLERR, POLLHUP, POLLNVAL, POLLOUT, POLLPRI, POLLRDHUP, POLLRDNORM, POLLWRNORM};

use super::*;
use crate::rsocket::fake::{Change, FIRST, Fake, Table};
use crate::sys::event::EventFd;

fn fd(fd: c_int, events: c_short) -> pollfd {
    pollfd { fd, events, revents: 0x7FFF }
}

fn revents(fds: &[pollfd]) -> Vec<c_short> {
    fds.iter().map(|fd| fd.revents).collect()
}

/// Runs `change` when a thread sleeps in rpoll on `fds` without end; returns what it got.
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
fn what_is_ready_at_once() {
    let (a, b) = (Fake::new(), Fake::new());
    let table = Table::of(&[&a, &b]);
    a.complete(Change::Data);
    a.complete(Change::Space);
    let mut fds = [fd(FIRST, POLLIN), fd(FIRST + 1, POLLIN | POLLOUT), fd(FIRST, POLLRDNORM | POLLWRNORM | POLLPRI)];
    assert_eq!(poll(&table, &mut fds, -1), Ok(2));
    assert_eq!(revents(&fds), [POLLIN, 0, POLLRDNORM | POLLWRNORM]);
    assert!(!a.is_armed(), "looking is enough");
    b.complete(Change::Error);
    fds[1].events = 0;
    assert_eq!(poll(&table, &mut fds[1..2], -1), Ok(1));
    assert_eq!(fds[1].revents, POLLERR | POLLHUP);
}

#[test]
fn other_descriptors_beside() {
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
    assert_eq!(poll(&table, &mut fds[..2], 0), Ok(1), "none of them an rsocket");
    assert_eq!(poll(&table, &mut [], 0), Ok(0));
}

#[test]
fn time_runs_out() {
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
fn woken_by_a_completion() {
    let fake = Fake::new();
    let table = Table::of(&[&fake]);
    let got = woken(&table, vec![fd(FIRST, POLLIN), fd(FIRST, POLLOUT)], &fake, || fake.complete(Change::Data));
    assert_eq!(got, Ok(vec![POLLIN, 0]));
    assert!(fake.watchers().is_empty());
}

#[test]
fn a_completion_that_is_not_waited_for() {
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
fn woken_by_a_notice() {
    let fake = Fake::new();
    let table = Table::of(&[&fake]);
    let got = woken(&table, vec![fd(FIRST, POLLIN)], &fake, || fake.change(Change::Data));
    assert_eq!(got, Ok(vec![POLLIN]));
}

#[test]
fn woken_by_another_descriptor() {
    let fake = Fake::new();
    let table = Table::of(&[&fake]);
    let event = EventFd::new().unwrap();
    let fds = vec![fd(FIRST, POLLIN), fd(event.as_raw_fd(), POLLIN)];
    assert_eq!(woken(&table, fds, &fake, || event.raise()), Ok(vec![0, POLLIN]));
}

#[test]
fn descriptors_that_come_while_waiting() {
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
fn an_event_that_another_thread_took() {
    let fake = Fake::new();
    let table = Table::of(&[&fake]);
    let got = woken(&table, vec![fd(FIRST, POLLIN)], &fake, || {
        fake.complete(Change::Data);
        fake.steal_event();
    });
    assert_eq!(got, Ok(vec![POLLIN]));
}

#[test]
fn closed_while_waiting() {
    let (fake, other) = (Fake::new(), Fake::new());
    let table = Table::of(&[&fake, &other]);
    let got = woken(&table, vec![fd(FIRST, POLLIN), fd(FIRST + 1, POLLIN)], &other, || fake.close());
    assert_eq!(got, Ok(vec![POLLNVAL, 0]));
    assert!(other.watchers().is_empty());
    assert_eq!(poll(&table, &mut [fd(FIRST, POLLIN)], -1), Ok(1));
}

#[test]
fn many_threads_on_one_rsocket() {
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
            assert_eq!(one.join().unwrap(), Ok(POLLIN), "every one of them is told");
        }
    });
}

/// Two threads hand a token to and fro over two rsockets; both also wait for the other one's rsocket, to steal events.
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
fn a_signal_ends_it() {
    let action = libc::sigaction {
        sa_sigaction: nothing as *const () as usize,
        sa_flags: libc::SA_RESTART,
        // SAFETY: plain C data of which zeros are a value.
        ..unsafe { std::mem::zeroed() }
    };
    // SAFETY: a handler that does nothing.
    unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) };
    let fake = Fake::new();
    let table = &Table::of(&[&fake]);
    thread::scope(|scope| {
        let (send, id) = std::sync::mpsc::channel();
        let sleeper = scope.spawn(move || {
            // SAFETY: the calling thread's id.
            send.send(unsafe { libc::pthread_self() }).unwrap();
            poll(table, &mut [fd(FIRST, POLLIN)], -1)
        });
        let id = id.recv().unwrap();
        // A signal that comes before the thread sleeps is missed, as with poll(2).
        while !sleeper.is_finished() {
            thread::yield_now();
            // SAFETY: the scope has not joined the thread yet.
            unsafe { libc::pthread_kill(id, libc::SIGUSR1) };
        }
        assert_eq!(sleeper.join().unwrap(), Err(Errno::new(libc::EINTR)));
    });
    assert!(fake.watchers().is_empty());
}

#[test]
fn more_than_few() {
    const MANY: usize = 300;
    let fakes: Vec<_> = (0..MANY).map(|_| Fake::new()).collect();
    let table = Table::of(&fakes.iter().collect::<Vec<_>>());
    let fds: Vec<_> = (0..MANY).map(|n| fd(FIRST + n as c_int, POLLIN)).collect();
    let got = woken(&table, fds, &fakes[MANY - 1], || fakes[MANY - 1].complete(Change::Data)).unwrap();
    assert_eq!(got.iter().filter(|&&revents| revents != 0).count(), 1);
    assert_eq!(got[MANY - 1], POLLIN);
}

#[test]
fn more_than_the_process_may_have() {
    let fake = Fake::new();
    let table = Table::of(&[&fake]);
    let mut fds = vec![fd(FIRST, POLLIN); event::descriptor_limit().min(1 << 22) + 1];
    assert_eq!(poll(&table, &mut fds, 0), Err(Errno::EINVAL));
}

#[test]
fn one_alone() {
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
