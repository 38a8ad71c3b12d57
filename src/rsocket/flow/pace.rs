//! The size of a stream's receive buffer.
//!
//! Advertising a half costs both ends a message, and each end often waits for the other's. A stream
//! that fills its buffer many times a second is faster with a larger one, and keeps it.

/// A stream is busy if it fills this number of halves within [`BUSY_TIME`] milliseconds.
const BUSY_HALVES: u32 = 16;
const BUSY_TIME: u64 = 250;

/// A request to resize the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// Keep the size.
    Keep,
    /// Use a larger buffer.
    Grow,
}

/// Times at which halves were advertised.
#[derive(Debug, Default)]
pub struct Pace {
    /// Number of halves since `start`.
    halves: u32,
    start: u64,
    /// Number of failed requests to grow.
    failed: u32,
}

impl Pace {
    /// Returns the request before another half is advertised.
    pub fn resize_request(&mut self, now: impl Fn() -> u64) -> Resize {
        if self.halves == 0 {
            self.start = now();
        }
        self.halves += 1;
        if self.halves < BUSY_HALVES << self.failed {
            return Resize::Keep;
        }
        self.halves = 0;
        if now().saturating_sub(self.start) <= BUSY_TIME << self.failed { Resize::Grow } else { Resize::Keep }
    }

    /// The buffer has another size.
    pub fn resized(&mut self) {
        *self = Pace::default();
    }

    /// The buffer could not grow: requests are less frequent from now on.
    pub fn resize_failed(&mut self) {
        self.failed = (self.failed + 1).min(12);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the request after `halves` halves at intervals of `step` milliseconds.
    fn requests_after(pace: &mut Pace, halves: u32, now: &mut u64, step: u64) -> Resize {
        (0..halves).fold(Resize::Keep, |resize_request, _| {
            assert_eq!(resize_request, Resize::Keep);
            *now += step;
            pace.resize_request(|| *now)
        })
    }

    #[test]
    fn busy_streams_grow() {
        let (mut pace, mut now) = (Pace::default(), 1);
        assert_eq!(requests_after(&mut pace, 15, &mut now, 1), Resize::Keep);
        assert_eq!(requests_after(&mut pace, 1, &mut now, 1), Resize::Grow);
        pace.resized();
        assert_eq!(requests_after(&mut pace, 16, &mut now, 10), Resize::Grow);
    }

    #[test]
    fn slow_streams_do_not_grow() {
        let (mut pace, mut now) = (Pace::default(), 1);
        assert_eq!(requests_after(&mut pace, 160, &mut now, 20), Resize::Keep);
    }

    #[test]
    fn refusals_make_requests_less_frequent() {
        let (mut pace, mut now) = (Pace::default(), 1);
        assert_eq!(requests_after(&mut pace, 16, &mut now, 1), Resize::Grow);
        pace.resize_failed();
        assert_eq!(requests_after(&mut pace, 31, &mut now, 1), Resize::Keep);
        assert_eq!(requests_after(&mut pace, 1, &mut now, 1), Resize::Grow);
    }
}
