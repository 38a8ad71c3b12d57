//! The daemon's log. A thread writes it, so that a slow reader of the log does not delay answers to
//! the kernel and the peers. Lines wait in a bounded queue. Appending a line waits while the queue
//! is full, so that no line is lost.

use std::io;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::Builder;
use std::time::Duration;

use nix::syslog::Severity;

/// Number of lines that may wait. A dump appends fewer lines at once.
pub const CAPACITY: usize = 1024;
/// How long the daemon waits for the remaining lines to be written when it ends.
const LAST_LINES: Duration = Duration::from_secs(2);

/// The queue of lines for the log. Drop waits until they are written, at most for [`LAST_LINES`].
pub struct LogQueue {
    /// `None` when the queue is closed: then the writer ends after the last line.
    lines: Option<SyncSender<(Severity, String)>>,
    /// Nothing is ever sent: the writer closes the channel when it ends.
    ended: Receiver<()>,
}

impl LogQueue {
    /// Starts the writer, a thread that calls `write` for each line. The caller must have blocked
    /// the daemon's signals, because the thread inherits its signal mask.
    pub fn start(capacity: usize, mut write: impl FnMut(Severity, &str) + Send + 'static) -> io::Result<LogQueue> {
        let (lines, queue) = mpsc::sync_channel::<(Severity, String)>(capacity);
        let (running, ended) = mpsc::channel();
        Builder::new().name("log".into()).spawn(move || {
            let _running = running;
            queue.into_iter().for_each(|(severity, line)| write(severity, &line));
        })?;
        Ok(LogQueue { lines: Some(lines), ended })
    }

    /// Appends a line; waits while the queue is full.
    pub fn push(&self, severity: Severity, line: &str) {
        if let Some(lines) = &self.lines {
            // Cannot fail: a panic of the writer would have aborted the process.
            let _ = lines.send((severity, line.to_owned()));
        }
    }
}

impl Drop for LogQueue {
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.ended.recv_timeout(LAST_LINES);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn lines_arrive_in_order_before_it_is_dropped() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let log = LogQueue::start(3, {
            let written = Arc::clone(&written);
            move |_, line| written.lock().unwrap().push(line.to_owned())
        })
        .unwrap();
        let lines: Vec<_> = (0..1000).map(|number| number.to_string()).collect();
        for line in &lines {
            log.push(Severity::LOG_INFO, line);
        }
        drop(log);
        assert_eq!(*written.lock().unwrap(), lines);
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
