//! Sizes of a connection's queues and inline data: as the program requests, within the limits of
//! the device.

use crate::cm::Limits;
use crate::errno::Errno;
use crate::rsocket::stream::options::Options;

/// Smallest number of queue entries.
const MIN_ENTRIES: u32 = 16;
/// Largest number of queue entries: it has to fit the connection data.
const MAX_ENTRIES: u32 = 0xfffe;
/// Number of inline bytes to try if the device rejects more: enough for control messages.
const SMALL_INLINE: u32 = 32;

/// Number of send queue entries, and of receives for messages that take credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub sends: u32,
    pub credits: u32,
}

impl Sizes {
    /// Each queue has a CQ of the same size: when the QP fails, all work requests complete at once.
    pub fn new(options: &Options, limits: &Limits) -> Sizes {
        let max = limits.work_requests.min(limits.completions).clamp(MIN_ENTRIES, MAX_ENTRIES);
        Sizes {
            sends: u32::from(options.sq).clamp(MIN_ENTRIES, max),
            credits: u32::from(options.rq)
                .clamp(MIN_ENTRIES, max.saturating_sub(super::EXTRA_RECEIVES).max(MIN_ENTRIES)),
        }
    }
}

/// Returns the next smaller number of inline bytes to try, at least `min`, after creating a QP with
/// `inline` bytes failed with `error`. Returns `None` if the error has another cause, or no smaller
/// number is left.
pub(super) fn less_inline(error: Errno, inline: u32, min: u32) -> Option<u32> {
    let rejected = matches!(error, Errno::EINVAL | Errno::ENOMEM);
    [SMALL_INLINE, min].into_iter().find(|&next| rejected && next < inline && next >= min)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(sq: u16, rq: u16, work_requests: u32, completions: u32) -> (u32, u32) {
        let options = Options { sq, rq, ..Options::new() };
        let limits = Limits { initiator_depth: 1, responder_resources: 1, work_requests, completions };
        let Sizes { sends, credits } = Sizes::new(&options, &limits);
        (sends, credits)
    }

    #[test]
    fn sizes_as_the_program_requests() {
        assert_eq!(sizes(384, 400, 16384, 1 << 20), (384, 400));
        assert_eq!(sizes(0, 1, 16384, 1 << 20), (16, 16));
    }

    #[test]
    fn sizes_within_the_limits_of_the_device() {
        assert_eq!(sizes(384, 384, 100, 1000), (100, 84));
        assert_eq!(sizes(384, 384, 1000, 100), (100, 84));
        assert_eq!(sizes(0xfffe, 0xfffe, u32::MAX, u32::MAX), (0xfffe, 0xffee));
        assert_eq!(sizes(384, 384, 0, 0), (16, 16), "the kernel rejects these");
    }

    #[test]
    fn inline_bytes_decrease_step_by_step() {
        let less = |inline, min| less_inline(Errno::EINVAL, inline, min);
        assert_eq!((less(64, 0), less(32, 0), less(0, 0)), (Some(32), Some(0), None));
        assert_eq!((less(64, 4), less(32, 4), less(16, 4), less(4, 4)), (Some(32), Some(4), Some(4), None));
        assert_eq!(less(20, 0), Some(0));
        assert_eq!(less_inline(Errno::ENOMEM, 64, 0), Some(32));
        assert_eq!(less_inline(Errno::EIO, 64, 0), None);
    }
}
