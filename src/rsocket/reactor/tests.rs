//! Tests with the reactor of this process: services that block, are busy, or change their role.

use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::os::event::EventFd;

/// What the service was called for.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    Service,
    Expired,
    Channel,
}

/// Reports each call, and is busy for the first ones.
struct Reporter {
    event: EventFd,
    channel: EventFd,
    calls: Mutex<Sender<Call>>,
    busy: AtomicUsize,
}

impl Reporter {
    fn new(busy: usize) -> (Arc<Reporter>, Receiver<Call>) {
        let (sender, receiver) = channel();
        let [event, channel] = [(); 2].map(|()| EventFd::new().unwrap());
        (Arc::new(Reporter { event, channel, calls: Mutex::new(sender), busy: AtomicUsize::new(busy) }), receiver)
    }

    fn register(self: &Arc<Self>, role: Role) -> Key {
        register(role, self.event.as_raw_fd(), true, self.clone()).unwrap()
    }

    /// Reports the call unless the service is busy. Returns false if it is busy.
    fn report(&self, call: Call) -> bool {
        let busy = self.busy.load(Ordering::Relaxed);
        if busy != 0 {
            self.busy.store(busy - 1, Ordering::Relaxed);
            return false;
        }
        // Fails if the test, which was waiting, has ended and dropped its receiver.
        let _ = self.calls.lock().unwrap().send(call);
        true
    }
}

impl Service for Reporter {
    fn service(self: Arc<Self>, key: Key) -> bool {
        let is_reported = self.report(Call::Service);
        if is_reported {
            unregister(key);
        }
        is_reported
    }

    fn expired(self: Arc<Self>, _: Key) -> bool {
        self.report(Call::Expired)
    }

    fn on_channel_readable(self: Arc<Self>) -> bool {
        let is_reported = self.report(Call::Channel);
        if is_reported {
            self.channel.clear();
        }
        is_reported
    }
}

#[test]
fn a_busy_service_is_called_for_its_channel_again() {
    let (reporter, calls) = Reporter::new(2);
    let key = reporter.register(Role::Events);
    watch_channel(key, reporter.channel.as_raw_fd()).unwrap();
    reporter.channel.raise();
    assert_eq!(calls.recv(), Ok(Call::Channel));
    unregister(key);
}

/// Blocks the thread that calls it until `may_go_on` receives a message.
struct Blocker {
    event: EventFd,
    entered: Mutex<Sender<()>>,
    may_go_on: Mutex<Receiver<()>>,
}

impl Service for Blocker {
    fn service(self: Arc<Self>, key: Key) -> bool {
        unregister(key);
        self.entered.lock().unwrap().send(()).unwrap();
        self.may_go_on.lock().unwrap().recv().unwrap();
        true
    }
}

/// Runs `test` while the thread of a role is blocked. Tests that need this run one after the other.
fn with_blocked(role: Role, test: impl FnOnce()) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap();
    let ((entered, is_entered), (go_on, may_go_on)) = (channel(), channel());
    let event = EventFd::new().unwrap();
    let blocker = Arc::new(Blocker { event, entered: Mutex::new(entered), may_go_on: Mutex::new(may_go_on) });
    register(role, blocker.event.as_raw_fd(), true, blocker.clone()).unwrap();
    blocker.event.raise();
    is_entered.recv().unwrap();
    test();
    go_on.send(()).unwrap();
}

#[test]
fn a_blocked_thread_delays_no_events() {
    with_blocked(Role::Setup, || {
        let (reporter, calls) = Reporter::new(0);
        let key = reporter.register(Role::Events);
        set_timer(key, Some(Instant::now()));
        assert_eq!(calls.recv(), Ok(Call::Expired));
        reporter.event.raise();
        assert_eq!(calls.recv(), Ok(Call::Service));
    });
}

#[test]
fn events_and_timers_go_to_the_thread_of_the_new_role() {
    with_blocked(Role::Setup, || {
        let (reporter, calls) = Reporter::new(0);
        let key = reporter.register(Role::Setup);
        set_timer(key, Some(Instant::now()));
        set_role(key, Role::Events);
        set_timer(key, Some(Instant::now()));
        assert_eq!(calls.recv(), Ok(Call::Expired));
        assert!(set_role(key, Role::Setup) && !set_role(key, Role::Setup) && set_role(key, Role::Events));
        reporter.event.raise();
        assert_eq!(calls.recv(), Ok(Call::Service));
    });
}

#[test]
fn a_registration_that_is_gone_has_no_role() {
    let (reporter, _calls) = Reporter::new(0);
    let key = reporter.register(Role::Setup);
    unregister(key);
    assert!(!set_role(key, Role::Events));
}

/// Neither an event nor a timer is lost.
#[test]
fn a_busy_service_is_called_again() {
    let (reporter, calls) = Reporter::new(2);
    let key = reporter.register(Role::Events);
    set_timer(key, Some(Instant::now()));
    assert_eq!(calls.recv(), Ok(Call::Expired));
    reporter.busy.store(2, Ordering::Relaxed);
    reporter.event.raise();
    assert_eq!(calls.recv(), Ok(Call::Service));
}

#[test]
fn an_earlier_timer_stays() {
    const LONG: Duration = Duration::from_secs(3600);
    let (reporter, calls) = Reporter::new(0);
    let key = reporter.register(Role::Events);
    set_timer_by(key, Instant::now() + LONG);
    set_timer_by(key, Instant::now() + Duration::from_millis(10));
    set_timer_by(key, Instant::now() + LONG);
    assert_eq!(calls.recv(), Ok(Call::Expired));
    set_timer_by(key, Instant::now());
    assert_eq!(calls.recv(), Ok(Call::Expired));
    unregister(key);
}

/// A descriptor that is always writable, and never readable.
#[test]
fn a_busy_service_is_called_again_for_a_writable_descriptor() {
    let (reporter, calls) = Reporter::new(2);
    let key = reporter.register(Role::Events);
    set_writable_wanted(key, true);
    assert_eq!(calls.recv(), Ok(Call::Service));
}

#[test]
fn a_paused_descriptor_stays_paused_when_writable_is_wanted() {
    const LONG: Duration = Duration::from_secs(3600);
    let (reporter, calls) = Reporter::new(0);
    let key = reporter.register(Role::Events);
    pause(key, LONG);
    set_writable_wanted(key, true);
    set_timer(key, Some(Instant::now()));
    assert_eq!(calls.recv(), Ok(Call::Expired));
    enable(key, Instant::now() + LONG);
    assert_eq!(calls.recv(), Ok(Call::Service));
}

#[test]
fn a_disabled_descriptor_is_enabled_with_the_events_that_are_wanted() {
    const LONG: Duration = Duration::from_secs(3600);
    let (reporter, calls) = Reporter::new(0);
    let key = register(Role::Events, reporter.event.as_raw_fd(), false, reporter.clone()).unwrap();
    set_writable_wanted(key, true);
    enable(key, Instant::now() + LONG);
    assert_eq!(calls.recv(), Ok(Call::Service));
}

#[test]
fn events_have_their_turn_among_many_timers() {
    const MANY: usize = 100;
    let (reporter, calls) = Reporter::new(0);
    let others: Vec<_> = (0..MANY).map(|_| EventFd::new().unwrap()).collect();
    let mut keys = Vec::new();
    with_blocked(Role::Events, || {
        reporter.register(Role::Events);
        for other in &others {
            let key = register(Role::Events, other.as_raw_fd(), true, reporter.clone()).unwrap();
            set_timer(key, Some(Instant::now()));
            keys.push(key);
        }
        reporter.event.raise();
    });
    let order: Vec<_> = calls.iter().take(MANY + 1).collect();
    assert!(order[..MANY].contains(&Call::Service));
    keys.into_iter().for_each(unregister);
}

/// Enabling a paused descriptor again is the action of a timer, too.
#[test]
fn events_have_their_turn_among_many_descriptors_that_resume() {
    const MANY: usize = 100;
    let (reporter, calls) = Reporter::new(0);
    let others: Vec<_> = (0..MANY).map(|_| EventFd::new().unwrap()).collect();
    let mut keys = Vec::new();
    with_blocked(Role::Setup, || {
        for other in &others {
            let key = register(Role::Setup, other.as_raw_fd(), true, reporter.clone()).unwrap();
            pause(key, Duration::ZERO);
            other.raise();
            keys.push(key);
        }
        set_timer(keys[MANY - 1], Some(Instant::now()));
    });
    assert_eq!(calls.recv(), Ok(Call::Service));
    keys.into_iter().for_each(unregister);
}
