//! Socket options of a stream, and their values for getsockopt(2) and setsockopt(2).

use std::ffi::c_int;
use std::time::Duration;

use crate::errno::{Errno, Result};
use crate::ffi::{RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA};
use crate::os::alloc::try_copy;
use crate::rsocket::config::{self, MIN_SEND_BUFFER, SMALL_SEND_BUFFER, defaults};
use crate::rsocket::wire;

/// Largest buffer in bytes: half of it has to fit an SGL entry.
const MAX_BUFFER: u32 = 1 << 30;
/// Default of TCP_KEEPIDLE in seconds, as in tcp(7).
const KEEP_IDLE: u32 = 7200;

/// Options of a stream. Connections inherit those of their listener.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub sq: u16,
    pub rq: u16,
    pub inline: u16,
    pub iomap: u16,
    pub send_buffer: u32,
    pub receive_buffer: u32,
    /// Whether the send buffer of a busy stream may grow: until the program sets its size.
    pub send_grows: bool,
    /// Whether the receive buffer of a busy stream may grow: until the program sets its size.
    pub receive_grows: bool,
    pub reuse: bool,
    pub linger: Linger,
    pub keepalive: bool,
    pub keep_idle: u32,
    pub keep_count: u32,
    pub keep_interval: u32,
    pub oob_inline: bool,
    pub nodelay: bool,
    pub tos: u8,
    /// IPV6_V6ONLY, if the program has set it.
    pub v6only: Option<bool>,
    /// Sends after the end of the connection behave as with TCP, as programs under librspreload.so
    /// expect ([`Stream::set_sigpipe`](super::Stream::set_sigpipe)).
    pub sigpipe: bool,
    pub receive_timeout: Option<Duration>,
    pub send_timeout: Option<Duration>,
    /// The program's path records: an array of `struct ibv_path_data`.
    pub route: Vec<u8>,
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

/// SO_LINGER. rclose(3) waits for sent data even without it: the data would be lost otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Linger {
    /// Not set by the program: getsockopt(2) reports it as on, as in rdma-core.
    Default,
    Off(c_int),
    /// Wait at most this number of seconds; as with TCP, 0 ends the connection at once.
    On(c_int),
}

/// What the caller of [`Options::set`] has to do after an option was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// Set the id's option: SO_REUSEADDR.
    Reuse,
    /// Set the id's option: IP_TOS.
    Tos,
    /// Restart or stop the keepalive timer.
    Keepalive,
    /// Send held data, and pass TCP_NODELAY on to the connection.
    Nodelay,
}

impl Options {
    pub fn new() -> Options {
        let defaults = defaults();
        Options {
            sq: defaults.sq,
            rq: defaults.rq,
            inline: defaults.inline,
            iomap: defaults.iomap,
            send_buffer: defaults.send_buffer.min(MAX_BUFFER),
            receive_buffer: defaults.receive_buffer.clamp(2, MAX_BUFFER),
            send_grows: true,
            receive_grows: true,
            reuse: false,
            linger: Linger::Default,
            keepalive: false,
            keep_idle: KEEP_IDLE,
            keep_count: 9,
            keep_interval: 75,
            oob_inline: false,
            nodelay: false,
            tos: 0,
            v6only: None,
            sigpipe: false,
            receive_timeout: None,
            send_timeout: None,
            route: Vec::new(),
        }
    }

    /// setsockopt(2). `fixed`: the connection exists, and its buffer and queue sizes cannot change
    /// any more.
    pub fn set(&mut self, level: c_int, name: c_int, value: &[u8], fixed: bool) -> Result<Effect> {
        match level {
            libc::SOL_SOCKET => self.set_socket(name, value, fixed),
            libc::IPPROTO_TCP => self.set_tcp(name, value),
            libc::IPPROTO_IP if name == libc::IP_TOS => {
                self.tos = number_or_byte(value)? as u8;
                Ok(Effect::Tos)
            }
            libc::IPPROTO_IPV6 if name == libc::IPV6_V6ONLY => {
                // The option is applied to the id when the socket is bound.
                self.v6only = Some(number(value)? != 0);
                Ok(Effect::None)
            }
            level if level == SOL_RDMA as c_int => self.set_rdma(name, value, fixed).map(|()| Effect::None),
            _ => Err(Errno::ENOTSUP),
        }
    }

    fn set_socket(&mut self, name: c_int, value: &[u8], fixed: bool) -> Result<Effect> {
        match name {
            libc::SO_REUSEADDR => {
                self.reuse = number(value)? != 0;
                return Ok(Effect::Reuse);
            }
            libc::SO_SNDBUF | libc::SO_RCVBUF => {
                let size = number(value)?;
                // Doubled, as in socket(7).
                let doubled = u32::try_from(size).unwrap_or(0).saturating_mul(2).min(MAX_BUFFER);
                match name {
                    _ if fixed => {}
                    libc::SO_SNDBUF => {
                        self.send_buffer = if doubled < MIN_SEND_BUFFER { SMALL_SEND_BUFFER } else { doubled };
                        self.send_grows = false;
                    }
                    _ => (self.receive_buffer, self.receive_grows) = (doubled.max(2), false),
                }
            }
            libc::SO_LINGER => {
                let (on, seconds) = (number(value)?, number(value.get(4..).ok_or(Errno::EINVAL)?)?);
                self.linger = if on == 0 { Linger::Off(seconds) } else { Linger::On(seconds.max(0)) };
            }
            libc::SO_KEEPALIVE => {
                self.keepalive = number(value)? != 0;
                return Ok(Effect::Keepalive);
            }
            libc::SO_OOBINLINE => self.oob_inline = number(value)? != 0,
            libc::SO_RCVTIMEO => self.receive_timeout = timeout(value)?,
            libc::SO_SNDTIMEO => self.send_timeout = timeout(value)?,
            _ => return Err(Errno::ENOTSUP),
        }
        Ok(Effect::None)
    }

    fn set_tcp(&mut self, name: c_int, value: &[u8]) -> Result<Effect> {
        let positive = |limit: i32| {
            number(value).and_then(|number| match number {
                1.. if number <= limit => Ok(number as u32),
                _ => Err(Errno::EINVAL),
            })
        };
        match name {
            libc::TCP_NODELAY => {
                self.nodelay = number(value)? != 0;
                return Ok(Effect::Nodelay);
            }
            libc::TCP_MAXSEG => drop(number(value)?),
            libc::TCP_KEEPIDLE => {
                self.keep_idle = positive(i32::MAX)?;
                return Ok(Effect::Keepalive);
            }
            libc::TCP_KEEPINTVL => self.keep_interval = positive(i32::MAX)?,
            libc::TCP_KEEPCNT => self.keep_count = positive(i32::MAX)?,
            libc::TCP_CONGESTION => {}
            _ => return Err(Errno::ENOTSUP),
        }
        Ok(Effect::None)
    }

    fn set_rdma(&mut self, name: c_int, value: &[u8], fixed: bool) -> Result<()> {
        if fixed {
            return Err(Errno::EINVAL);
        }
        let queue = |number: c_int| number.clamp(0, 0xfffe) as u16;
        match name {
            RDMA_SQSIZE => self.sq = queue(number(value)?),
            RDMA_RQSIZE => self.rq = queue(number(value)?),
            RDMA_INLINE => self.inline = queue(number(value)?),
            RDMA_IOMAPSIZE => self.iomap = wire::round_iomap_size(number(value)?.max(0) as u32),
            RDMA_ROUTE => {
                const PATH: usize = size_of::<crate::os::uapi::ibv_path_data>();
                if value.is_empty() || !value.len().is_multiple_of(PATH) {
                    return Err(Errno::EINVAL);
                }
                self.route = try_copy(value)?;
            }
            _ => return Err(Errno::ENOTSUP),
        }
        Ok(())
    }

    /// Returns the value of IPV6_V6ONLY, which is the system's unless the program has set it.
    pub fn is_v6only(&self) -> bool {
        self.v6only.unwrap_or_else(config::v6only)
    }

    /// getsockopt(2) for the options in this structure. Returns the bytes of the value.
    pub fn get(&self, level: c_int, name: c_int) -> Result<Value> {
        let value = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse.into(),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => self.send_buffer as c_int,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => self.receive_buffer as c_int,
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                return Ok(Value::of(&match self.linger {
                    Linger::Default => [1, 0],
                    Linger::Off(seconds) => [0, seconds],
                    Linger::On(seconds) => [1, seconds],
                }));
            }
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.keepalive.into(),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => self.oob_inline.into(),
            (libc::SOL_SOCKET, libc::SO_BROADCAST) => 0,
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => return Ok(Value::time(self.receive_timeout)),
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => return Ok(Value::time(self.send_timeout)),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.nodelay.into(),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => self.keep_idle as c_int,
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => self.keep_interval as c_int,
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => self.keep_count as c_int,
            (libc::IPPROTO_IP, libc::IP_TOS) => self.tos.into(),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.is_v6only().into(),
            (level, name) if level == SOL_RDMA as c_int => match name {
                RDMA_SQSIZE => self.sq.into(),
                RDMA_RQSIZE => self.rq.into(),
                RDMA_INLINE => self.inline.into(),
                RDMA_IOMAPSIZE => self.iomap.into(),
                _ => return Err(Errno::ENOTSUP),
            },
            _ => return Err(Errno::ENOTSUP),
        };
        Ok(Value::of(&[value]))
    }
}

/// For fuzz targets: applies a program's calls, each of which is a level, a name, a value, and
/// whether the socket is connected. Checks after each call that a connection can be made with the
/// options.
#[cfg(fuzzing)]
pub fn after_calls<'a>(calls: impl Iterator<Item = (c_int, c_int, &'a [u8], bool)>) {
    let mut options = Options::new();
    for (level, name, value, fixed) in calls {
        let before = (options.sq, options.rq, options.receive_buffer);
        let changed = options.set(level, name, value, fixed).is_ok();
        assert!(changed && !fixed || before == (options.sq, options.rq, options.receive_buffer));
        assert!(options.sq < u16::MAX && options.rq < u16::MAX && options.iomap <= wire::round_iomap_size(u32::MAX));
        assert!((2..=MAX_BUFFER).contains(&options.receive_buffer));
        assert!((MIN_SEND_BUFFER.min(SMALL_SEND_BUFFER)..=MAX_BUFFER).contains(&options.send_buffer));
        if let Ok(shown) = options.get(level, name) {
            assert!(!shown.as_bytes().is_empty());
        }
    }
}

/// The bytes of an option's value.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    bytes: [u8; Value::MAX_LEN],
    len: usize,
}

impl Value {
    /// Length of the longest value: a struct tcp_info fits.
    const MAX_LEN: usize = 256;

    /// Creates the value of an int option.
    pub fn int(number: c_int) -> Value {
        Value::of(&[number])
    }

    /// Creates a value of several ints.
    pub fn of(numbers: &[c_int]) -> Value {
        let mut value = Value { bytes: [0; Value::MAX_LEN], len: 0 };
        for number in numbers {
            value.bytes[value.len..value.len + 4].copy_from_slice(&number.to_ne_bytes());
            value.len += 4;
        }
        value
    }

    /// Creates a value of bytes.
    pub fn bytes(bytes: &[u8]) -> Value {
        let mut value = Value { bytes: [0; Value::MAX_LEN], len: bytes.len().min(Value::MAX_LEN) };
        value.bytes[..value.len].copy_from_slice(&bytes[..value.len]);
        value
    }

    /// Creates the value of [`base::private::MARKS`].
    pub fn marks(marks: base::private::Marks) -> Value {
        let mut value = Value { bytes: [0; Value::MAX_LEN], len: 16 };
        value.bytes[..8].copy_from_slice(&(marks.words.expose_provenance() as u64).to_ne_bytes());
        value.bytes[8..16].copy_from_slice(&(marks.count as u64).to_ne_bytes());
        value
    }

    fn time(time: Option<Duration>) -> Value {
        let time = time.unwrap_or(Duration::ZERO);
        let mut value = Value { bytes: [0; Value::MAX_LEN], len: 16 };
        value.bytes[..8].copy_from_slice(&time.as_secs().to_ne_bytes());
        value.bytes[8..16].copy_from_slice(&u64::from(time.subsec_micros()).to_ne_bytes());
        value
    }

    /// Returns the bytes for the program.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Parses an int. Fails with `EINVAL` for fewer bytes.
pub fn number(value: &[u8]) -> Result<c_int> {
    value.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL)
}

/// Parses an int or, as ip(7) also allows, a byte.
fn number_or_byte(value: &[u8]) -> Result<c_int> {
    match value {
        [byte] | [byte, _] | [byte, _, _] => Ok((*byte).into()),
        _ => number(value),
    }
}

/// Parses a struct timeval. Returns `None`, for no time-out, if it is zero. As in Linux, negative
/// seconds are a time-out of zero. Fails with `EDOM` for invalid microseconds.
pub fn timeout(value: &[u8]) -> Result<Option<Duration>> {
    let field =
        |at: usize| value.get(at..at + 8).and_then(|bytes| bytes.first_chunk()).map(|bytes| i64::from_ne_bytes(*bytes));
    let (seconds, micros) = field(0).zip(field(8)).ok_or(Errno::EINVAL)?;
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno::EDOM);
    }
    let Ok(seconds) = u64::try_from(seconds) else { return Ok(Some(Duration::ZERO)) };
    let time = Duration::from_secs(seconds) + Duration::from_micros(micros.unsigned_abs());
    Ok((!time.is_zero()).then_some(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_sizes_fit_the_connection_data() {
        let mut options = Options::new();
        for (size, kept) in [(0x1_0000, 0xfffe), (0xffff, 0xfffe), (0xfffe, 0xfffe), (-1, 0)] {
            for name in [RDMA_SQSIZE, RDMA_RQSIZE, RDMA_INLINE] {
                options.set(SOL_RDMA as c_int, name, &c_int::to_ne_bytes(size), false).unwrap();
            }
            assert_eq!((options.sq, options.rq, options.inline), (kept, kept, kept));
        }
    }

    #[test]
    fn a_route_has_whole_path_records() {
        const PATH: usize = size_of::<crate::os::uapi::ibv_path_data>();
        let set = |len| Options::new().set(SOL_RDMA as c_int, RDMA_ROUTE, &[0; 3 * PATH][..len], false);
        assert_eq!((set(PATH), set(2 * PATH)), (Ok(Effect::None), Ok(Effect::None)));
        for len in [0, PATH - 1, PATH + 1] {
            assert_eq!(set(len), Err(Errno::EINVAL));
        }
    }
}
