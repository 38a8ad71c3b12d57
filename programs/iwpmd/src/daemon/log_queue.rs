//! The daemon's log. A thread writes it, so that a slow reader of the log does not delay answers to
//! the kernel and the peers. Lines wait in a bounded queue. Appending a line waits while the queue
//! is full, so that no line is lost.

use std::io;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use nix::syslog::Severity;
use parking_lot::{Condvar, Mutex};

/// Number of lines that may wait. A dump appends fewer lines at once.
pub const CAPACITY: usize = 1024;
/// How long the daemon waits for the remaining lines to be written when it ends.
const LAST_LINES: Duration = Duration::from_secs(2);

/// The queue of lines for the log. Drop waits until all lines are written, at most for
/// [`LAST_LINES`].
pub struct LogQueue(Arc<Shared>);

struct Shared {
    lines: ArrayQueue<(Severity, String)>,
    stage: Mutex<Stage>,
    /// Notified when `lines` or `stage` has changed.
    changed: Condvar,
}

#[derive(PartialEq, Eq)]
enum Stage {
    Running,
    /// The writer ends when there are no lines left.
    Closing,
    Ended,
}

impl LogQueue {
    /// Starts the writer, a thread that calls `write` for each line. The caller must have blocked
    /// the daemon's signals, because the thread inherits the caller's signal mask.
    pub fn start(capacity: usize, write: impl FnMut(Severity, &str) + Send + 'static) -> io::Result<LogQueue> {
        let (lines, stage) = (ArrayQueue::new(capacity), Mutex::new(Stage::Running));
        let shared = Arc::new(Shared { lines, stage, changed: Condvar::new() });
        let writers = Arc::clone(&shared);
        Builder::new().name("log".into()).spawn(move || writers.write_all(write))?;
        Ok(LogQueue(shared))
    }

    /// Appends a line; waits while the queue is full.
    pub fn push(&self, severity: Severity, line: &str) {
        let mut entry = (severity, line.to_owned());
        while let Err(rejected) = self.0.lines.push(entry) {
            entry = rejected;
            let mut stage = self.0.stage.lock();
            if self.0.lines.is_full() {
                self.0.changed.wait(&mut stage);
            }
        }
        self.0.notify();
    }
}

impl Drop for LogQueue {
    fn drop(&mut self) {
        let deadline = Instant::now() + LAST_LINES;
        let mut stage = self.0.stage.lock();
        *stage = Stage::Closing;
        self.0.changed.notify_all();
        while *stage != Stage::Ended && !self.0.changed.wait_until(&mut stage, deadline).timed_out() {}
    }
}

impl Shared {
    /// Wakes the other thread after `lines` has changed.
    fn notify(&self) {
        // A thread that is about to wait has the lock until it waits.
        drop(self.stage.lock());
        self.changed.notify_all();
    }

    /// Writes the lines, in the writer's thread. Returns when the queue is closed and empty.
    fn write_all(&self, mut write: impl FnMut(Severity, &str)) {
        loop {
            while let Some((severity, line)) = self.lines.pop() {
                self.notify();
                write(severity, &line);
            }
            let mut stage = self.stage.lock();
            if !self.lines.is_empty() {
                continue;
            }
            if *stage == Stage::Closing {
                *stage = Stage::Ended;
                self.changed.notify_all();
                return;
            }
            self.changed.wait(&mut stage);
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
        let log = LogQueue::start(3, {
            let written = Arc::clone(&written);
            move |_, line| written.lock().push(line.to_owned())
        })
        .unwrap();
        let lines: Vec<_> = (0..1000).map(|number| number.to_string()).collect();
        for line in &lines {
            log.push(Severity::LOG_INFO, line);
        }
        drop(log);
        assert_eq!(*written.lock(), lines);
    }

    /// As many lines as the queue holds can be appended even if the log's reader takes none.
    #[test]
    fn a_slow_log_does_not_hold_up_the_daemon() {
        let (go_on, held) = mpsc::channel::<()>();
        let (tell, written) = mpsc::channel();
        let log = LogQueue::start(4, move |_, line| {
            let _ = held.recv();
            tell.send(line.to_owned()).unwrap();
        })
        .unwrap();
        for line in ["a", "b", "c", "d"] {
            log.push(Severity::LOG_INFO, line);
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
        let log = LogQueue::start(1, move |_, line| {
            let _ = held.recv();
            tell.send(line.to_owned()).unwrap();
        })
        .unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || (0..5).for_each(|number| log.push(Severity::LOG_INFO, &number.to_string())));
            for number in 0..5 {
                go_on.send(()).unwrap();
                assert_eq!(written.recv().unwrap(), number.to_string());
            }
        });
    }
}
