//! Options of a stream: what they are, and how getsockopt(2) and setsockopt(2) show them.

use std::ffi::c_int;
use std::time::Duration;

use crate::errno::{Errno, Result};
use crate::ffi::{RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA};
use crate::rsocket::config::{LEAST_SEND_BUFFER, SMALL_SEND_BUFFER, defaults};
use crate::rsocket::wire;
use crate::sys::alloc::try_copy;

/// The largest buffer, bytes: half of it has to fit an SGL entry.
const LARGEST: u32 = 1 << 30;
/// Seconds without traffic after which keepalive starts, as in tcp(7).
const KEEP_IDLE: u32 = 7200;

/// Options of a stream; a listener's go to its connections.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub sq: u16,
    pub rq: u16,
    pub inline: u16,
    pub iomap: u16,
    pub send_buffer: u32,
    pub receive_buffer: u32,
    /// Whether a busy stream's buffers may grow: those whose size the program did not choose.
    pub send_grows: bool,
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
    pub v6only: bool,
    /// A call that fails with `EPIPE` raises SIGPIPE: for the programs of librspreload.so, which
    /// expect it of their sockets.
    pub sigpipe: bool,
    pub receive_timeout: Option<Duration>,
    pub send_timeout: Option<Duration>,
    /// `struct ibv_path_data`, as the program gave them.
    pub route: Vec<u8>,
}

/// SO_LINGER. Without it, and without being asked for it, closing waits for what was sent, too: nothing of it would arrive
/// otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Linger {
    /// Nobody said anything: reads as on, as with the reference.
    Default,
    Off(c_int),
    /// At most so many seconds; 0, as for TCP, ends the connection at once.
    On(c_int),
}

/// What has to happen besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// Tell the id: SO_REUSEADDR, IP_TOS, IPV6_V6ONLY.
    Reuse,
    Tos,
    V6Only,
    /// Keepalive began, ended, or has another time.
    Keepalive,
}

impl Options {
    pub fn new() -> Options {
        let defaults = defaults();
        Options {
            sq: defaults.sq,
            rq: defaults.rq,
            inline: defaults.inline,
            iomap: defaults.iomap,
            send_buffer: defaults.send_buffer.min(LARGEST),
            receive_buffer: defaults.receive_buffer.clamp(2, LARGEST),
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
            v6only: false,
            sigpipe: false,
            receive_timeout: None,
            send_timeout: None,
            route: Vec::new(),
        }
    }

    /// setsockopt(2). `fixed`: the connection or listener is made, and what it was made with can't change any more.
    pub fn set(&mut self, level: c_int, name: c_int, value: &[u8], fixed: bool) -> Result<Effect> {
        match level {
            libc::SOL_SOCKET => self.set_socket(name, value, fixed),
            libc::IPPROTO_TCP => self.set_tcp(name, value),
            libc::IPPROTO_IP if name == libc::IP_TOS => {
                self.tos = number_or_byte(value)? as u8;
                Ok(Effect::Tos)
            }
            libc::IPPROTO_IPV6 if name == libc::IPV6_V6ONLY => {
                self.v6only = number(value)? != 0;
                Ok(Effect::V6Only)
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
                let wanted = number(value)?;
                // Doubled as in socket(7).
                let doubled = u32::try_from(wanted).unwrap_or(0).saturating_mul(2).min(LARGEST);
                match name {
                    _ if fixed => {}
                    libc::SO_SNDBUF => {
                        self.send_buffer = if doubled < LEAST_SEND_BUFFER { SMALL_SEND_BUFFER } else { doubled };
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
            libc::TCP_NODELAY => self.nodelay = number(value)? != 0,
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
            RDMA_IOMAPSIZE => self.iomap = wire::iomap_round(number(value)?.max(0) as u32),
            RDMA_ROUTE => {
                const PATH: usize = size_of::<crate::sys::uapi::ibv_path_data>();
                if value.is_empty() || !value.len().is_multiple_of(PATH) {
                    return Err(Errno::EINVAL);
                }
                self.route = try_copy(value)?;
            }
            _ => return Err(Errno::ENOTSUP),
        }
        Ok(())
    }

    /// getsockopt(2) of what is kept here: the bytes of the value.
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
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.v6only.into(),
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

/// For fuzz targets: a socket's options after a program's calls, each of them a level, a name, a value and whether the socket is
/// connected. They are never such that a connection could not be made with them.
#[cfg(fuzzing)]
pub fn after_calls<'a>(calls: impl Iterator<Item = (c_int, c_int, &'a [u8], bool)>) {
    let mut options = Options::new();
    for (level, name, value, fixed) in calls {
        let before = (options.sq, options.rq, options.receive_buffer);
        let changed = options.set(level, name, value, fixed).is_ok();
        assert!(changed && !fixed || before == (options.sq, options.rq, options.receive_buffer));
        assert!(options.sq < u16::MAX && options.rq < u16::MAX && options.iomap <= wire::iomap_round(u32::MAX));
        assert!((2..=LARGEST).contains(&options.receive_buffer));
        assert!((LEAST_SEND_BUFFER.min(SMALL_SEND_BUFFER)..=LARGEST).contains(&options.send_buffer));
        if let Ok(shown) = options.get(level, name) {
            assert!(!shown.as_bytes().is_empty());
        }
    }
}

/// The bytes of an option's value.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    bytes: [u8; Value::MOST],
    len: usize,
}

impl Value {
    /// As long as a struct tcp_info, the longest one.
    const MOST: usize = 256;

    /// The value of an int option.
    pub fn int(number: c_int) -> Value {
        Value::of(&[number])
    }

    /// A value of ints.
    pub fn of(numbers: &[c_int]) -> Value {
        let mut value = Value { bytes: [0; Value::MOST], len: 0 };
        for number in numbers {
            value.bytes[value.len..value.len + 4].copy_from_slice(&number.to_ne_bytes());
            value.len += 4;
        }
        value
    }

    /// A value of bytes.
    pub fn bytes(bytes: &[u8]) -> Value {
        let mut value = Value { bytes: [0; Value::MOST], len: bytes.len().min(Value::MOST) };
        value.bytes[..value.len].copy_from_slice(&bytes[..value.len]);
        value
    }

    fn time(time: Option<Duration>) -> Value {
        let time = time.unwrap_or(Duration::ZERO);
        let mut value = Value { bytes: [0; Value::MOST], len: 16 };
        value.bytes[..8].copy_from_slice(&time.as_secs().to_ne_bytes());
        value.bytes[8..16].copy_from_slice(&u64::from(time.subsec_micros()).to_ne_bytes());
        value
    }

    /// What to give the program.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// An int; `EINVAL` for fewer bytes.
pub(in crate::rsocket) fn number(value: &[u8]) -> Result<c_int> {
    value.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL)
}

/// An int or, as ip(7) takes it too, a byte.
fn number_or_byte(value: &[u8]) -> Result<c_int> {
    match value {
        [byte] | [byte, _] | [byte, _, _] => Ok((*byte).into()),
        _ => number(value),
    }
}

/// A struct timeval; zero is no time-out.
pub(in crate::rsocket) fn timeout(value: &[u8]) -> Result<Option<Duration>> {
    let part =
        |at: usize| value.get(at..at + 8).and_then(|bytes| bytes.first_chunk()).map(|bytes| i64::from_ne_bytes(*bytes));
    let (seconds, micros) = part(0).zip(part(8)).ok_or(Errno::EINVAL)?;
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno::EDOM);
    }
    // As socket(7): a negative time is no wait at all.
    let seconds = u64::try_from(seconds).unwrap_or(0);
    let time = Duration::from_secs(seconds) + Duration::from_micros(micros.unsigned_abs());
    Ok((!time.is_zero()).then_some(time))
}
