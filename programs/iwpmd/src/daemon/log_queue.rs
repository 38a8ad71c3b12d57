//! The daemon's log. A thread writes it, so that a slow reader of the log does not delay answers to
//! the kernel and the peers.
//!
//! Lines wait in a bounded queue. Appending a line takes no lock while the writer is busy, and
//! waits while the queue is full, so that no line is lost. The lock is parking_lot's, which keeps
//! its waiting threads in memory. The library could not use it, because a child of fork(2) would
//! inherit this memory; the daemon does not fork after the start of the log.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use parking_lot::{Condvar, Mutex};

use crate::proto::engine::Level;

/// Number of lines that may wait. A dump appends fewer lines at once.
pub const CAPACITY: usize = 1024;
/// How long the daemon waits for the remaining lines to be written when it ends.
const LAST_LINES: Duration = Duration::from_secs(2);

/// The queue of lines for the log. Drop waits until they are written, at most for [`LAST_LINES`].
pub struct LogQueue {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

struct Shared {
    lines: ArrayQueue<(Level, String)>,
    /// Whether the writer sleeps or is about to: it sets this before it checks `lines` a last time.
    asleep: AtomicBool,
    /// Whether a thread waits for space or is about to: set before it checks `lines` a last time.
    waiting: AtomicBool,
    stage: Mutex<Stage>,
    /// Signaled when there are lines, or the queue is dropped.
    more: Condvar,
    /// Signaled when there is space, or the writer has ended.
    space: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// The writer ends when there are no lines left.
    Closing,
    Ended,
}

impl LogQueue {
    /// Starts the writer, a thread that calls `write` for each line. The caller must have blocked
    /// the daemon's signals, because the thread inherits its signal mask.
    pub fn start(capacity: usize, write: impl FnMut(Level, &str) + Send + 'static) -> io::Result<LogQueue> {
        let shared = Arc::new(Shared {
            lines: ArrayQueue::new(capacity),
            asleep: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            stage: Mutex::new(Stage::Running),
            more: Condvar::new(),
            space: Condvar::new(),
        });
        let writer = Builder::new().name("log".into()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.write_all(write)
        })?;
        Ok(LogQueue { shared, writer: Some(writer) })
    }

    /// Appends a line; waits while the queue is full. Takes `&mut self` because only one thread may
    /// wait: a second one would not be woken.
    pub fn push(&mut self, level: Level, line: &str) {
        let mut entry = (level, line.to_owned());
        while let Err(rejected) = self.shared.lines.push(entry) {
            entry = rejected;
            self.shared.wait_for_space();
        }
        self.shared.wake(&self.shared.asleep, &self.shared.more);
    }
}

impl Drop for LogQueue {
    fn drop(&mut self) {
        let deadline = Instant::now() + LAST_LINES;
        let mut stage = self.shared.stage.lock();
        *stage = Stage::Closing;
        self.shared.more.notify_one();
        while *stage != Stage::Ended {
            if self.shared.space.wait_until(&mut stage, deadline).timed_out() {
                return;
            }
        }
        drop(stage);
        if let Some(writer) = self.writer.take() {
            // Cannot fail: a panic of the writer would have aborted the process.
            let _ = writer.join();
        }
    }
}

impl Shared {
    /// Wakes the thread that has set `sleeps`, if any, after a line was added or space was made.
    fn wake(&self, sleeps: &AtomicBool, condition: &Condvar) {
        // Either the load below sees the sleeper's store, or the sleeper finds the line or the
        // space.
        fence(Ordering::SeqCst);
        if sleeps.load(Ordering::Relaxed) {
            drop(self.stage.lock());
            condition.notify_one();
        }
    }

    fn wait_for_space(&self) {
        let mut stage = self.stage.lock();
        self.waiting.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.lines.is_full() {
            self.space.wait(&mut stage);
        }
        self.waiting.store(false, Ordering::Relaxed);
    }

    /// Writes the lines, in the writer's thread. Returns when the queue is closed and empty.
    fn write_all(&self, mut write: impl FnMut(Level, &str)) {
        loop {
            while let Some((level, line)) = self.lines.pop() {
                self.wake(&self.waiting, &self.space);
                write(level, &line);
            }
            let mut stage = self.stage.lock();
            self.asleep.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.lines.is_empty() {
                if *stage == Stage::Closing {
                    *stage = Stage::Ended;
                    self.space.notify_all();
                    return;
                }
                self.more.wait(&mut stage);
            }
            self.asleep.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn lines_arrive_in_order_before_it_is_dropped() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let mut log = LogQueue::start(3, {
            let written = Arc::clone(&written);
            move |_, line| written.lock().push(line.to_owned())
        })
        .unwrap();
        let lines: Vec<_> = (0..1000).map(|number| number.to_string()).collect();
        for line in &lines {
            log.push(Level::Info, line);
        }
        drop(log);
        assert_eq!(*written.lock(), lines);
    }

    /// As many lines as the queue holds can be appended even if the log's reader takes none.
    #[test]
    fn a_slow_log_does_not_hold_up_the_daemon() {
        let (go_on, held) = mpsc::channel::<()>();
        let (tell, written) = mpsc::channel();
        let mut log = LogQueue::start(4, move |_, line| {
            let _ = held.recv();
            tell.send(line.to_owned()).unwrap();
        })
        .unwrap();
        for line in ["a", "b", "c", "d"] {
            log.push(Level::Info, line);
        }
        assert!(written.try_recv().is_err());
        drop(go_on);
        drop(log);
        assert_eq!(written.iter().collect::<String>(), "abcd");
    }

    #[test]
    fn a_full_queue_waits_for_space() {
        let (go_on, held) = mpsc::channel::<()>();
        let (tell, written) = mpsc::channel();
        let mut log = LogQueue::start(1, move |_, line| {
            let _ = held.recv();
            tell.send(line.to_owned()).unwrap();
        })
        .unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..5).for_each(|number| log.push(Level::Info, &number.to_string())));
            for number in 0..5 {
                go_on.send(()).unwrap();
                assert_eq!(written.recv().unwrap(), number.to_string());
            }
        });
    }
}
