//! The descriptors by which the thread of automatic mode is woken: sockets to which other processes
//! write, too, and an epoll instance with the tokens.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

use libc::{
    AF_UNIX, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLLIN, EPOLLONESHOT, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, epoll_event,
};

use super::shared;
use crate::thread::Lock;
use crate::{errno, next_symbol, own_fd};

/// The sockets, made when they are first needed.
pub struct WakeSockets {
    /// The thread reads from the first one; numbers plus one. The second one is stored last.
    ends: [AtomicI32; 2],
    /// The inode of the second one.
    inode: AtomicU64,
    /// The epoll instance, plus one.
    tokens: AtomicI32,
    /// Held by the thread that makes them: the numbers and the inode of two pairs must not be mixed.
    making: Lock,
}

impl WakeSockets {
    pub const fn new() -> WakeSockets {
        WakeSockets {
            ends: [const { AtomicI32::new(0) }; 2],
            inode: AtomicU64::new(0),
            tokens: AtomicI32::new(0),
            making: Lock::new(),
        }
    }

    /// The socket to which a byte is sent, and its inode. Makes the sockets if there are none. Returns
    /// `None` if that fails, with `errno` set.
    pub fn sender(&self) -> Option<(c_int, u64)> {
        self.made().or_else(|| {
            let _held = self.making.hold();
            self.made().or_else(|| self.make())
        })
    }

    fn made(&self) -> Option<(c_int, u64)> {
        let sender = self.ends[1].load(SeqCst) - 1;
        (sender >= 0).then(|| (sender, self.inode.load(SeqCst)))
    }

    fn make(&self) -> Option<(c_int, u64)> {
        let mut ends = [-1; 2];
        // Not a pipe: a child that writes after this process has ended would get SIGPIPE.
        // SAFETY: room for two numbers.
        if unsafe { libc::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.as_mut_ptr()) } != 0 {
            return None;
        }
        let ends = ends.map(own_fd::relocate);
        let tokens = own_fd::create(|| next_symbol::epoll_create1(EPOLL_CLOEXEC));
        self.tokens.store(tokens + 1, SeqCst);
        self.inode.store(shared::socket_inode(ends[1]).unwrap_or(0), SeqCst);
        self.ends[0].store(ends[0] + 1, SeqCst);
        self.ends[1].store(ends[1] + 1, SeqCst);
        self.made()
    }

    /// Sends an index, if there are sockets.
    pub fn wake(&self, index: u32) {
        if let Some((sender, inode)) = self.made() {
            shared::wake(sender, inode, index);
        }
    }

    /// Makes a token that is connected a member of the epoll instance, which reports one event of it.
    pub fn watch(&self, token: c_int, data: u64) {
        let mut event = epoll_event { events: (EPOLLIN | EPOLLONESHOT) as u32, u64: data };
        // SAFETY: the event is this function's own.
        errno::keeping(|| unsafe { next_symbol::epoll_ctl(self.tokens(), EPOLL_CTL_ADD, token, &raw mut event) });
    }

    /// The epoll instance, -1 for none.
    pub fn tokens(&self) -> c_int {
        self.tokens.load(SeqCst) - 1
    }

    /// The socket from which the thread reads, -1 for none.
    pub fn receiver(&self) -> c_int {
        self.ends[0].load(SeqCst) - 1
    }

    /// In a child of fork(2), which does not have the thread that may be making them. The sender stays
    /// open: the child wakes the parent by it.
    pub fn in_child(&self) {
        self.making.reset();
        self.ends[1].store(0, SeqCst);
        for number in [&self.ends[0], &self.tokens] {
            own_fd::close(number.swap(0, SeqCst) - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    /// Reads what is there. Returns the number of bytes.
    fn read(fd: c_int) -> isize {
        let mut bytes = [0_u8; 8];
        // SAFETY: the array is this long.
        unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) }
    }

    #[test]
    fn threads_that_need_the_sockets_first_get_the_same_ones() {
        const THREADS: usize = 4;
        for _ in 0..500 {
            let (sockets, barrier) = (WakeSockets::new(), Barrier::new(THREADS));
            let get = || {
                barrier.wait();
                sockets.sender().unwrap()
            };
            let got: Vec<_> = thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(get)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(got.iter().all(|&sender| sender == got[0]), "{got:?}");
            assert!(own_fd::has(got[0].0) && own_fd::has(sockets.receiver()));
            shared::wake(got[0].0, got[0].1, 7);
            assert_eq!(read(sockets.receiver()), 4, "a wake-up is lost");
            // SAFETY: the sender, which nobody uses any more.
            unsafe { libc::close(got[0].0) };
            sockets.in_child();
            assert_eq!(sockets.receiver(), -1);
        }
    }
}
