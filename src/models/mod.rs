//! Models of code that waits and wakes threads. loom runs them, and reports a lost wake-up as a
//! deadlock.

mod blocking;
pub mod cancel;
mod changes;
pub mod config;
pub mod event;
mod lock;
mod pollers;
mod polling;

use loom::model::Builder;
use loom::thread;

/// Runs the threads concurrently with a new `T`, in every order that has at most `preemptions`
/// preemptions.
fn explore<T: Send + Sync + 'static, const N: usize>(
    preemptions: usize,
    make: fn() -> T,
    threads: [fn(&T); N],
    after: impl Fn(&T) + Send + Sync + 'static,
) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(move || {
        let shared = std::sync::Arc::new(make());
        let others: Vec<_> = threads[1..]
            .iter()
            .map(|&each| {
                let shared = shared.clone();
                thread::spawn(move || each(&shared))
            })
            .collect();
        threads[0](&shared);
        for other in others {
            other.join().unwrap();
        }
        after(&shared);
    });
}
