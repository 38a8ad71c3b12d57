//! Tests of repoll with several threads and with fork().

use std::fs;
use std::sync::atomic::{AtomicI32, AtomicUsize};
use std::thread::{self, Scope, ScopedJoinHandle};

use libc::{EPOLL_CTL_MOD, EPOLLET, EPOLLEXCLUSIVE, EPOLLONESHOT};

use super::tests::Fixture;
use super::*;
use crate::os::event::EventFd;
use crate::rsocket::fake::{Change, Fake, Table};

#[test]
fn close_wakes_waiting_threads() {
    const THREADS: usize = 4;
    let (fixture, fake) = Fixture::with(EPOLLIN);
    let fd = fixture.epoll.fd;
    let (entered, wait) = (AtomicUsize::new(0), || fixture.wait_for(1, -1));
    thread::scope(|scope| {
        let all: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    entered.fetch_add(1, Ordering::Relaxed);
                    wait()
                })
            })
            .collect();
        while entered.load(Ordering::Relaxed) < THREADS {
            thread::yield_now();
        }
        fixture.epoll.close();
        for one in all {
            assert_eq!(one.join().unwrap(), Err(Errno::EBADF));
        }
    });
    assert_eq!(fixture.control(EPOLL_CTL_ADD, 0, EPOLLIN), Err(Errno::EBADF));
    assert!(fake.watchers_are_gone());
    // SAFETY: fcntl() only reads the flags of a descriptor.
    assert!(fd >= 0 && unsafe { libc::fcntl(fixture.epoll.main.as_raw_fd(), libc::F_GETFD) } >= 0);
}

#[test]
fn the_child_of_a_fork_leaves_the_epoll_alone() {
    let (fixture, fake) = Fixture::with(EPOLLIN);
    // SAFETY: the child closes its copies and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        crate::os::fork::in_child();
        fixture.epoll.close();
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(7) }
    }
    let mut status = 0;
    // SAFETY: waits for the child of this test.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(libc::WEXITSTATUS(status), 7);
    assert!(!fixture.is_readable());
    fake.complete(Change::Data);
    assert_eq!(fixture.now(), [(0, EPOLLIN)]);
}

#[test]
fn no_wake_up_is_lost() {
    const READERS: usize = 3;
    const ROUNDS: usize = 3000;
    for mode in [0, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT] {
        let fixture = Fixture::new(READERS);
        (0..READERS).for_each(|index| fixture.control(EPOLL_CTL_ADD, index, EPOLLIN | mode).unwrap());
        let taken: Vec<_> = (0..READERS).map(|_| AtomicUsize::new(0)).collect();
        let read = || {
            while let Ok(events) = fixture.wait_for(2, -1) {
                for (index, _) in events {
                    let index = index as usize;
                    if fixture.fakes[index].read() {
                        taken[index].fetch_add(1, Ordering::SeqCst);
                    }
                    if mode & EPOLLONESHOT != 0 {
                        fixture.control(EPOLL_CTL_MOD, index, EPOLLIN | mode).unwrap();
                    }
                }
            }
        };
        let write = |index: usize| {
            for round in 1..=ROUNDS {
                let change = if round % 3 == 0 { Fake::change } else { Fake::complete };
                change(&fixture.fakes[index], Change::Data);
                if round % 5 == 0 {
                    fixture.fakes[index].steal_event();
                }
                while taken[index].load(Ordering::SeqCst) < round {
                    thread::yield_now();
                }
            }
        };
        thread::scope(|scope| {
            (0..READERS).for_each(|_| drop(scope.spawn(read)));
            let write = &write;
            let writers: Vec<_> = (0..READERS).map(|index| scope.spawn(move || write(index))).collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            fixture.epoll.close();
        });
    }
}

/// One thread found the descriptor readable and left the member to the queue, then another thread
/// read the event.
#[test]
fn the_event_is_read_before_the_queued_member_is_polled() {
    let fixture = Fixture::new(1);
    let fake = &fixture.fakes[0];
    fixture.control(EPOLL_CTL_ADD, 0, EPOLLIN).unwrap();
    fake.complete(Change::Data);
    fake.steal_event();
    fixture.epoll.members.lock().values().for_each(|member| member.readable.store(true, Ordering::SeqCst));
    assert_eq!(fixture.now(), [(0, EPOLLIN)]);
    fake.read();
    fake.complete(Change::Data);
    assert!(fixture.is_readable());
    assert_eq!(fixture.now(), [(0, EPOLLIN)]);
}

/// A thread in wait().
struct Sleeper<'a> {
    thread: ScopedJoinHandle<'a, Result<Vec<(u64, c_int)>>>,
    id: Arc<AtomicI32>,
}

impl<'a> Sleeper<'a> {
    fn start<'b>(scope: &'a Scope<'a, 'b>, fixture: &'a Fixture) -> Sleeper<'a> {
        let id = Arc::new(AtomicI32::new(0));
        let to = Arc::clone(&id);
        let thread = scope.spawn(move || {
            // SAFETY: plain system call.
            to.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            fixture.wait_for(1, -1)
        });
        Sleeper { thread, id }
    }

    fn is_asleep(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/self/task/{}/stat", self.id.load(Ordering::SeqCst)));
        stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S")))
    }
}

/// Waits until at least `returned` threads have returned and all others are asleep, at many checks
/// in a row. Returns the number of threads that have returned.
fn settle(sleepers: &[Sleeper<'_>], returned: usize) -> usize {
    let mut settled = 0;
    loop {
        let now = sleepers.iter().filter(|sleeper| sleeper.thread.is_finished()).count();
        let is_still = now >= returned && sleepers.iter().all(|each| each.thread.is_finished() || each.is_asleep());
        settled = if is_still { settled + 1 } else { 0 };
        if settled == 50 {
            return now;
        }
        thread::yield_now();
    }
}

/// Starts `threads` threads, each of which waits for the next of the epolls in turn. Calls `each`,
/// then closes the epolls.
fn with_sleepers(fixtures: &[Fixture], threads: usize, each: impl FnOnce(&[Sleeper<'_>])) {
    thread::scope(|scope| {
        let sleepers: Vec<_> =
            (0..threads).map(|index| Sleeper::start(scope, &fixtures[index % fixtures.len()])).collect();
        assert_eq!(settle(&sleepers, 0), 0);
        each(&sleepers);
        fixtures.iter().for_each(|fixture| fixture.epoll.close());
    });
}

#[test]
fn an_event_wakes_one_thread_of_an_epoll() {
    for mode in [EPOLLET, EPOLLONESHOT] {
        for change in [Fake::complete, Fake::change] {
            let fixtures = [Fixture::new(2)];
            (0..2).for_each(|index| fixtures[0].control(EPOLL_CTL_ADD, index, EPOLLIN | mode).unwrap());
            with_sleepers(&fixtures, 3, |sleepers| {
                for (index, fake) in fixtures[0].fakes.iter().enumerate() {
                    change(fake, Change::Data);
                    assert_eq!(settle(sleepers, index + 1), index + 1);
                }
            });
        }
    }
}

/// With and without EPOLLEXCLUSIVE.
#[test]
fn an_event_wakes_all_epolls() {
    for mode in [0, EPOLLET, EPOLLEXCLUSIVE, EPOLLEXCLUSIVE | EPOLLET] {
        for change in [Fake::complete, Fake::change] {
            let fake = Fake::new();
            let fixtures = [(); 3].map(|()| {
                let (epoll, table) = (Epoll::create(0).unwrap(), Table::of(&[&fake]));
                let fixture = Fixture { epoll, table, fakes: vec![fake.clone()] };
                fixture.control(EPOLL_CTL_ADD, 0, EPOLLIN | mode).unwrap();
                fixture
            });
            with_sleepers(&fixtures, 3, |sleepers| {
                change(&fake, Change::Data);
                assert_eq!(settle(sleepers, 3), 3);
            });
        }
    }
}

/// An ordinary member that is added to an epoll of rsockets is seen by the threads that wait.
#[test]
fn an_ordinary_member_wakes_a_thread_that_waits() {
    let (fixture, _fake) = Fixture::with(EPOLLIN);
    let event = EventFd::new().unwrap();
    with_sleepers(std::slice::from_ref(&fixture), 3, |sleepers| {
        fixture.control_fd(EPOLL_CTL_ADD, event.as_raw_fd(), EPOLLIN | EPOLLET, 7).unwrap();
        event.raise();
        assert_eq!(settle(sleepers, 1), 1);
    });
}

/// Several threads of a child may use the parent's epoll at once: it becomes the child's epoll, and
/// no call fails.
#[test]
fn the_threads_of_a_child_take_the_epoll_over_together() {
    for _ in 0..200 {
        let fixture = Fixture::new(0);
        let event = EventFd::new().unwrap();
        fixture.epoll.owner.belong_to_parent();
        let start = std::sync::Barrier::new(3);
        thread::scope(|scope| {
            let all = [(); 3].map(|()| {
                scope.spawn(|| {
                    start.wait();
                    fixture.wait_for(2, -1)
                })
            });
            while !fixture.epoll.owner.is_this_process() {
                thread::yield_now();
            }
            fixture.control_fd(EPOLL_CTL_ADD, event.as_raw_fd(), EPOLLIN, 7).unwrap();
            event.raise();
            all.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), Ok(vec![(7, EPOLLIN)])));
        });
    }
}
