//! The daemon's log. A thread writes it, so that a slow reader of the log does not delay answers to
//! the kernel and the peers.
//!
//! Lines wait in a bounded queue. Appending takes no lock while the writer is busy; while the queue
//! is full it waits, so that no line is lost. The lock is parking_lot's: this is a process of its
//! own that does not fork any more, so a lock that keeps its waiting threads in memory is no danger
//! here, as it would be in the library.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use parking_lot::{Condvar, Mutex};

use crate::proto::engine::Level;

/// Lines that may wait: those of a list of mappings that is written at once, and more.
pub const CAPACITY: usize = 1024;
/// How long a daemon that ends waits for the lines to be written.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Lines for the log; written before it is dropped, unless that takes too long.
pub struct LogQueue {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

struct Shared {
    lines: ArrayQueue<(Level, String)>,
    /// Whether the writer sleeps, or is about to. Its next look at `lines` comes after it is set.
    asleep: AtomicBool,
    /// Whether a thread waits for space, in the same way.
    waiting: AtomicBool,
    stage: Mutex<Stage>,
    /// There are lines, or the daemon ends.
    more: Condvar,
    /// There is space, or the writer has ended.
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
    /// Starts the thread, which calls `write` for each line. The caller has its signals blocked.
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

    /// Appends a line; waits while the queue is full. By one thread at a time: another one that
    /// waits would not be woken.
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
            // A writer that panicked ended the process.
            let _ = writer.join();
        }
    }
}

impl Shared {
    /// Wakes the thread that has set `sleeps`. The line, or the space, that it is woken for is
    /// there already.
    fn wake(&self, sleeps: &AtomicBool, condition: &Condvar) {
        // Either the sleeper set its mark before this, or it finds the line or the space.
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

    /// The writer's thread.
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

    /// The reader of the log takes nothing: as many lines as the queue holds are appended all the
    /// same.
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
