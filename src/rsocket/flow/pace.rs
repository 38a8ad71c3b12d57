//! How large a stream's receive buffer should be.
//!
//! Each half of it that is announced costs both ends a message, and each end often waits for the other's. A stream that goes
//! through its buffer many times a second does better with a larger one. One that has grown should shrink when its
//! halves took long to fill.

/// Milliseconds for so many halves of a buffer that has grown: it is too large for a stream that needs longer. Looking at the
/// clock for each of them would cost a system call where the kernel shows it by nothing else.
const LONG: u64 = 1000;
const LOOKS: u32 = 4;
/// Halves within so many milliseconds make a busy stream.
const MANY: u32 = 16;
const SHORT: u64 = 250;

/// What should become of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// As it is.
    Stay,
    /// It should grow.
    Grow,
    /// It should be what it was at first.
    Shrink,
}

/// When halves were announced.
#[derive(Debug, Default)]
pub struct Pace {
    /// Halves since then.
    halves: u32,
    start: u64,
    /// How often growing was in vain.
    refused: u32,
    /// When the clock was last looked at, for a buffer that has grown.
    last: Option<u64>,
}

impl Pace {
    /// Asked before each half is announced.
    pub fn wish(&mut self, now: impl Fn() -> u64) -> Wish {
        if let Some(last) = self.last
            && (self.halves + 1).is_multiple_of(LOOKS)
        {
            let now = now();
            self.last = Some(now);
            if now.saturating_sub(last) > LONG {
                return Wish::Shrink;
            }
        }
        if self.halves == 0 {
            self.start = now();
        }
        self.halves += 1;
        if self.halves < MANY << self.refused {
            return Wish::Stay;
        }
        self.halves = 0;
        if now().saturating_sub(self.start) <= SHORT << self.refused { Wish::Grow } else { Wish::Stay }
    }

    /// The wish is granted: the buffer has grown, at that time, or has its first size again.
    pub fn granted(&mut self, since: Option<u64>) {
        *self = Pace { last: since, ..Pace::default() };
    }

    /// There was no memory for it, or it is as large as it may be: asked less often from now on.
    pub fn refused(&mut self) {
        self.refused = (self.refused + 1).min(12);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What it wishes for after so many halves, one each `step` milliseconds.
    fn after(pace: &mut Pace, halves: u32, now: &mut u64, step: u64) -> Wish {
        (0..halves).fold(Wish::Stay, |wish, _| {
            assert_eq!(wish, Wish::Stay);
            *now += step;
            pace.wish(|| *now)
        })
    }

    #[test]
    fn grows_when_busy() {
        let (mut pace, mut now) = (Pace::default(), 1);
        assert_eq!(after(&mut pace, 15, &mut now, 1), Wish::Stay);
        assert_eq!(after(&mut pace, 1, &mut now, 1), Wish::Grow);
        pace.granted(Some(now));
        assert_eq!(after(&mut pace, 16, &mut now, 10), Wish::Grow);
    }

    #[test]
    fn stays_when_slow() {
        let (mut pace, mut now) = (Pace::default(), 1);
        assert_eq!(after(&mut pace, 160, &mut now, 20), Wish::Stay);
    }

    #[test]
    fn shrinks_when_slow() {
        let (mut pace, mut now) = (Pace::default(), 1);
        pace.granted(Some(now));
        assert_eq!(after(&mut pace, 11, &mut now, 250), Wish::Stay);
        assert_eq!(after(&mut pace, 1, &mut now, 251), Wish::Shrink);
        pace.granted(None);
        assert_eq!(after(&mut pace, 1, &mut now, 100_000), Wish::Stay);
    }

    #[test]
    fn asks_less_often_after_a_refusal() {
        let (mut pace, mut now) = (Pace::default(), 1);
        assert_eq!(after(&mut pace, 16, &mut now, 1), Wish::Grow);
        pace.refused();
        assert_eq!(after(&mut pace, 31, &mut now, 1), Wish::Stay);
        assert_eq!(after(&mut pace, 1, &mut now, 1), Wish::Grow);
    }
}
