//! Tests of repoll with several threads, and with fork().

use std::thread;

use libc::{EPOLL_CTL_MOD, EPOLLET, EPOLLONESHOT};

use super::tests::Fixture;
use super::*;
use crate::rsocket::fake::{Change, Fake};
use crate::sys::event::EventFd;

#[test]
fn closed_while_threads_wait() {
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
    // SAFETY: asks about a number.
    assert!(fd >= 0 && unsafe { libc::fcntl(fixture.epoll.outer.as_raw_fd(), libc::F_GETFD) } >= 0);
}

#[test]
fn the_child_of_a_fork_leaves_the_epoll_alone() {
    let (fixture, fake) = Fixture::with(EPOLLIN);
    // SAFETY: the child closes its copies, and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        crate::rsocket::owner::in_child();
        fake.close();
        fixture.epoll.close();
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(7) }
    }
    let mut status = 0;
    // SAFETY: our child.
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
        (0..READERS).for_each(|place| fixture.control(EPOLL_CTL_ADD, place, EPOLLIN | mode).unwrap());
        let taken: Vec<_> = (0..READERS).map(|_| AtomicUsize::new(0)).collect();
        let read = || {
            while let Ok(events) = fixture.wait_for(2, -1) {
                for (place, _) in events {
                    let place = place as usize;
                    if fixture.fakes[place].read() {
                        taken[place].fetch_add(1, Ordering::SeqCst);
                    }
                    if mode & EPOLLONESHOT != 0 {
                        fixture.control(EPOLL_CTL_MOD, place, EPOLLIN | mode).unwrap();
                    }
                }
            }
        };
        let write = |place: usize| {
            for round in 1..=ROUNDS {
                let change = if round % 3 == 0 { Fake::change } else { Fake::complete };
                change(&fixture.fakes[place], Change::Data);
                if round % 5 == 0 {
                    fixture.fakes[place].steal_event();
                }
                while taken[place].load(Ordering::SeqCst) < round {
                    thread::yield_now();
                }
            }
        };
        thread::scope(|scope| {
            (0..READERS).for_each(|_| drop(scope.spawn(read)));
            let write = &write;
            let writers: Vec<_> = (0..READERS).map(|place| scope.spawn(move || write(place))).collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            fixture.epoll.close();
        });
    }
}

/// Those who wait while all members are rsockets sleep where an ordinary one does not show.
#[test]
fn the_first_ordinary_member_wakes_all_who_wait() {
    const THREADS: usize = 3;
    for _ in 0..50 {
        let (fixture, _fake) = Fixture::with(EPOLLIN);
        let event = EventFd::new().unwrap();
        thread::scope(|scope| {
            let all: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| fixture.wait_for(2, -1))).collect();
            while fixture.epoll.direct.load(Ordering::SeqCst) < THREADS {
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

/// One thread saw the descriptor raised and left the member to the queue, then another one took the event.
#[test]
fn raised_no_longer_when_its_turn_comes() {
    let fixture = Fixture::new(1);
    let fake = &fixture.fakes[0];
    fixture.control(EPOLL_CTL_ADD, 0, EPOLLIN).unwrap();
    fake.complete(Change::Data);
    fake.steal_event();
    fixture.epoll.members().values().for_each(|member| member.raised.store(true, Ordering::SeqCst));
    assert_eq!(fixture.now(), [(0, EPOLLIN)]);
    fake.read();
    fake.complete(Change::Data);
    assert!(fixture.is_readable());
    assert_eq!(fixture.now(), [(0, EPOLLIN)]);
}
