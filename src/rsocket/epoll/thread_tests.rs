//! Tests of repoll with several threads and with fork().

use std::sync::atomic::AtomicUsize;
use std::thread;

use libc::{EPOLL_CTL_MOD, EPOLLET, EPOLLONESHOT};

use super::tests::Fixture;
use super::*;
use crate::rsocket::fake::{Change, Fake};
use crate::sys::event::EventFd;

#[test]
fn close_wakes_waiting_threads() {
    const THREADS: usize = 4;
    let (fixture, fake) = Fixture::with(EPOLLIN);
    let fd = fixture.epoll.fd();
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
    assert!(fd >= 0 && unsafe { libc::fcntl(fixture.epoll.outer.as_raw_fd(), libc::F_GETFD) } >= 0);
}

#[test]
fn the_child_of_a_fork_leaves_the_epoll_alone() {
    let (fixture, fake) = Fixture::with(EPOLLIN);
    // SAFETY: the child closes its copies and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        crate::sys::owner::in_child();
        fake.close();
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

/// Threads that wait while all members are rsockets sleep where an ordinary member is not visible.
#[test]
fn the_first_ordinary_member_wakes_all_who_wait() {
    const THREADS: usize = 3;
    for _ in 0..50 {
        let (fixture, _fake) = Fixture::with(EPOLLIN);
        let event = EventFd::new().unwrap();
        thread::scope(|scope| {
            let all: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| fixture.wait_for(2, -1))).collect();
            while fixture.epoll.inner_waiters.count() < THREADS as u32 {
                thread::yield_now();
            }
            fixture.control_fd(EPOLL_CTL_ADD, event.as_raw_fd(), EPOLLIN, 7).unwrap();
            event.raise();
            all.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), Ok(vec![(7, EPOLLIN)])));
        });
        event.clear();
        assert!(fixture.now().is_empty() && !fixture.is_readable());
    }
}

/// The first threads of a child that use its parent's epoll, at the same time, find it theirs. All are
/// counted, and woken by the first ordinary member.
#[test]
fn the_threads_of_a_child_take_the_epoll_over_together() {
    const THREADS: usize = 3;
    for _ in 0..200 {
        let fixture = Fixture::new(0);
        let event = EventFd::new().unwrap();
        fixture.epoll.owner.belong_to_parent();
        // As after a fork while another thread changes the members.
        let held = fixture.epoll.members();
        // A thread of the parent waits.
        fixture.epoll.inner_waiters.add();
        fixture.epoll.inner_waiters.belong_to_parent();
        let start = std::sync::Barrier::new(THREADS);
        thread::scope(|scope| {
            let all: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        fixture.wait_for(2, -1)
                    })
                })
                .collect();
            while !fixture.epoll.owner.is_this_process() || fixture.epoll.inner_waiters.count() < THREADS as u32 {
                thread::yield_now();
            }
            assert_eq!(fixture.epoll.inner_waiters.count(), THREADS as u32);
            drop(held);
            fixture.control_fd(EPOLL_CTL_ADD, event.as_raw_fd(), EPOLLIN, 7).unwrap();
            event.raise();
            all.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), Ok(vec![(7, EPOLLIN)])));
        });
        assert_eq!(fixture.epoll.inner_waiters.count(), 0);
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
    fixture.epoll.members().values().for_each(|member| member.readable.store(true, Ordering::SeqCst));
    assert_eq!(fixture.now(), [(0, EPOLLIN)]);
    fake.read();
    fake.complete(Change::Data);
    assert!(fixture.is_readable());
    assert_eq!(fixture.now(), [(0, EPOLLIN)]);
}
