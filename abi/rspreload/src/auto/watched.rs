//! The process on whose end the thread of automatic mode waits.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, Ordering::SeqCst};

use crate::thread::Lock;
use crate::{errno, next_symbol, open_fds};

/// A process and its descriptor (pidfd_open(2)).
pub struct Watched {
    /// 0 for none.
    process: AtomicI32,
    /// Plus one; 0 for none.
    fd: AtomicI32,
    /// Held by a thread that changes both.
    changing: Lock,
}

impl Watched {
    pub const fn new() -> Watched {
        Watched { process: AtomicI32::new(0), fd: AtomicI32::new(0), changing: Lock::new() }
    }

    /// Watches a process instead of the one before. Returns false if it is the one before.
    pub fn change(&self, process: c_int) -> bool {
        if self.process.load(SeqCst) == process {
            return false;
        }
        let _held = self.changing.hold();
        if self.process.swap(process, SeqCst) == process {
            return false;
        }
        // SAFETY: numbers only.
        let fd = errno::keeping(|| unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) }) as c_int;
        close(self.fd.swap(open_fds::relocate(fd) + 1, SeqCst) - 1);
        true
    }

    /// The process of the descriptor `fd`, which reports its end, is watched no longer. Returns it,
    /// or `None` if another one is watched by now.
    pub fn take(&self, fd: c_int) -> Option<c_int> {
        let _held = self.changing.hold();
        if !self.has(fd) {
            return None;
        }
        close(self.fd.swap(0, SeqCst) - 1);
        Some(self.process.swap(0, SeqCst))
    }

    /// The descriptor, -1 for none.
    pub fn fd(&self) -> c_int {
        self.fd.load(SeqCst) - 1
    }

    /// Whether `fd`, which is not negative, is the descriptor.
    pub fn has(&self, fd: c_int) -> bool {
        self.fd() == fd
    }

    /// In a child of fork(2), which does not have the thread that may be changing it.
    pub fn in_child(&self) {
        self.changing.reset();
        close(self.fd.swap(0, SeqCst) - 1);
        self.process.store(0, SeqCst);
    }
}

fn close(fd: c_int) {
    if fd >= 0 {
        // SAFETY: a descriptor that only this library knows.
        errno::keeping(|| unsafe { next_symbol::close(fd) });
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::sync::Barrier;

    use super::*;

    fn waiting_process() -> Child {
        Command::new("cat").stdin(Stdio::piped()).spawn().unwrap()
    }

    /// The process of a descriptor.
    fn process_of(fd: c_int) -> Option<c_int> {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
        info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
    }

    #[test]
    fn threads_that_watch_different_processes_leave_one_of_them() {
        let mut children = [waiting_process(), waiting_process()];
        let (watched, barrier) = (Watched::new(), Barrier::new(2));
        for _ in 0..500 {
            std::thread::scope(|scope| {
                for child in &children {
                    let (watched, barrier, process) = (&watched, &barrier, child.id() as c_int);
                    scope.spawn(move || {
                        barrier.wait();
                        watched.change(process);
                    });
                }
            });
            let fd = watched.fd();
            let process = process_of(fd);
            assert!(process.is_some());
            assert_eq!(watched.take(fd + 1), None);
            assert_eq!(watched.take(fd), process);
            assert_eq!((watched.fd(), watched.take(fd)), (-1, None));
        }
        for child in &mut children {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }
}
