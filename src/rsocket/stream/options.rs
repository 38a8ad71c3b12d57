//! Socket options of a stream, and their values for getsockopt(2) and setsockopt(2).

use std::ffi::c_int;
use std::time::Duration;

use crate::errno::{Errno, Result};
use crate::ffi::{RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA};
use crate::os::alloc::try_copy;
use crate::rsocket::config::{self, MAX_ENTRIES, at_least_one_datagram, defaults};
use crate::rsocket::wire;

/// The level of the options of rsockets.
const RDMA: c_int = SOL_RDMA as c_int;
/// Largest buffer in bytes: half of it has to fit an SGL entry.
const MAX_BUFFER: u32 = 1 << 30;

/// Options of a stream. Connections inherit those of their listener.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of send queue entries.
    pub sq: u16,
    /// Number of receive queue entries.
    pub rq: u16,
    /// Maximum number of bytes sent inline.
    pub inline: u16,
    /// Number of iomap entries.
    pub iomap: u16,
    /// Size of the send buffer in bytes.
    pub send_buffer: u32,
    /// Size of the receive buffer in bytes.
    pub receive_buffer: u32,
    /// The send buffer of a busy stream may grow, because the program has not set the buffer's
    /// size.
    pub send_grows: bool,
    /// The receive buffer of a busy stream may grow, because the program has not set the buffer's
    /// size.
    pub receive_grows: bool,
    /// SO_REUSEADDR.
    pub reuse: bool,
    /// SO_LINGER.
    pub linger: Linger,
    /// SO_KEEPALIVE.
    pub keepalive: bool,
    /// TCP_KEEPIDLE, in seconds.
    pub keep_idle: u32,
    /// TCP_KEEPCNT, which has no effect.
    pub keep_count: u32,
    /// TCP_KEEPINTVL, in seconds, which has no effect.
    pub keep_interval: u32,
    /// SO_OOBINLINE, which has no effect.
    pub oob_inline: bool,
    /// TCP_NODELAY.
    pub nodelay: bool,
    /// IP_TOS.
    pub tos: u8,
    /// IPV6_V6ONLY, if the program has set it.
    pub v6only: Option<bool>,
    /// Sends after the end of the connection behave as with TCP, as programs under librspreload.so
    /// expect ([`Stream::set_sigpipe`](super::Stream::set_sigpipe)).
    pub sigpipe: bool,
    /// SO_RCVTIMEO; `None` without a time-out.
    pub receive_timeout: Option<Duration>,
    /// SO_SNDTIMEO; `None` without a time-out.
    pub send_timeout: Option<Duration>,
    /// The program's path records: an array of `struct ibv_path_data`.
    pub route: Vec<u8>,
}

/// SO_LINGER. rclose(3) waits for sent data even without SO_LINGER: the data would be lost
/// otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linger {
    /// Not set by the program: getsockopt(2) reports it as on, as in rdma-core.
    Default,
    Off(c_int),
    /// Wait at most this number of seconds; as with TCP, 0 ends the connection at once.
    On(c_int),
}

impl Default for Options {
    fn default() -> Options {
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
            // The defaults of tcp(7).
            keep_idle: 7200,
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
}

impl Options {
    /// setsockopt(2). `fixed`: the connection exists, and its buffer and queue sizes cannot change
    /// any more.
    pub fn set(&mut self, level: c_int, name: c_int, value: &[u8], fixed: bool) -> Result<()> {
        if level == RDMA && fixed {
            return Err(Errno::EINVAL);
        }
        let is_on = || number(value).map(|number| number != 0);
        let positive = || u32::try_from(number(value)?).ok().filter(|&number| number > 0).ok_or(Errno::EINVAL);
        let entries = || number(value).map(|number| number.clamp(0, MAX_ENTRIES.into()) as u16);
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse = is_on()?,
            (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_RCVBUF) => {
                // Doubled, as in socket(7).
                let size = u32::try_from(number(value)?).unwrap_or(0).saturating_mul(2).min(MAX_BUFFER);
                match name {
                    _ if fixed => {}
                    libc::SO_SNDBUF => (self.send_buffer, self.send_grows) = (at_least_one_datagram(size), false),
                    _ => (self.receive_buffer, self.receive_grows) = (size.max(2), false),
                }
            }
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let (on, seconds) = (is_on()?, number(value.get(4..).unwrap_or_default())?);
                self.linger = if on { Linger::On(seconds.max(0)) } else { Linger::Off(seconds) };
            }
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.keepalive = is_on()?,
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => self.oob_inline = is_on()?,
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => self.receive_timeout = timeout(value)?,
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => self.send_timeout = timeout(value)?,
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.nodelay = is_on()?,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => drop(number(value)?),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => self.keep_idle = positive()?,
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => self.keep_interval = positive()?,
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => self.keep_count = positive()?,
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {}
            (libc::IPPROTO_IP, libc::IP_TOS) => self.tos = number_or_byte(value)? as u8,
            // The id gets this option when the socket is bound.
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.v6only = Some(is_on()?),
            (RDMA, RDMA_SQSIZE) => self.sq = entries()?,
            (RDMA, RDMA_RQSIZE) => self.rq = entries()?,
            (RDMA, RDMA_INLINE) => self.inline = entries()?,
            (RDMA, RDMA_IOMAPSIZE) => self.iomap = wire::round_iomap_size(number(value)?.max(0) as u32),
            (RDMA, RDMA_ROUTE) => {
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

    /// Returns the value of IPV6_V6ONLY: the system's default unless the program has set the
    /// option.
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
                let linger = match self.linger {
                    Linger::Default => [1, 0],
                    Linger::Off(seconds) => [0, seconds],
                    Linger::On(seconds) => [1, seconds],
                };
                return Ok(Value::bytes(linger.map(c_int::to_ne_bytes).as_flattened()));
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
            (RDMA, RDMA_SQSIZE) => self.sq.into(),
            (RDMA, RDMA_RQSIZE) => self.rq.into(),
            (RDMA, RDMA_INLINE) => self.inline.into(),
            (RDMA, RDMA_IOMAPSIZE) => self.iomap.into(),
            _ => return Err(Errno::ENOTSUP),
        };
        Ok(Value::int(value))
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
        Value::bytes(&number.to_ne_bytes())
    }

    /// Creates a value of bytes.
    pub fn bytes(bytes: &[u8]) -> Value {
        let mut value = Value { bytes: [0; Value::MAX_LEN], len: bytes.len().min(Value::MAX_LEN) };
        value.bytes[..value.len].copy_from_slice(&bytes[..value.len]);
        value
    }

    /// Creates the value of [`base::private::MARKS`].
    pub fn marks(marks: base::private::Marks) -> Value {
        Value::numbers([marks.words.expose_provenance(), marks.count, marks.used.expose_provenance()].map(|n| n as u64))
    }

    /// Creates a struct timeval.
    fn time(time: Option<Duration>) -> Value {
        let time = time.unwrap_or_default();
        Value::numbers([time.as_secs(), time.subsec_micros().into()])
    }

    fn numbers<const COUNT: usize>(numbers: [u64; COUNT]) -> Value {
        Value::bytes(numbers.map(u64::to_ne_bytes).as_flattened())
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
    number(value).or_else(|error| value.first().map(|byte| (*byte).into()).ok_or(error))
}

/// Parses a struct timeval. Returns `None`, for no time-out, if the value is zero. As in Linux,
/// negative seconds are a time-out of zero. Fails with `EINVAL` for fewer bytes, and with `EDOM`
/// for invalid microseconds.
pub fn timeout(value: &[u8]) -> Result<Option<Duration>> {
    let ([seconds, micros, ..], _) = value.as_chunks() else { return Err(Errno::EINVAL) };
    let (seconds, micros) = (i64::from_ne_bytes(*seconds), i64::from_ne_bytes(*micros));
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
        let mut options = Options::default();
        for (size, kept) in [(0x1_0000, 0xfffe), (0xffff, 0xfffe), (0xfffe, 0xfffe), (-1, 0)] {
            for name in [RDMA_SQSIZE, RDMA_RQSIZE, RDMA_INLINE] {
                options.set(RDMA, name, &c_int::to_ne_bytes(size), false).unwrap();
            }
            assert_eq!((options.sq, options.rq, options.inline), (kept, kept, kept));
        }
    }

    #[test]
    fn a_route_has_whole_path_records() {
        const PATH: usize = size_of::<crate::os::uapi::ibv_path_data>();
        let set = |len| Options::default().set(RDMA, RDMA_ROUTE, &[0; 3 * PATH][..len], false);
        assert_eq!((set(PATH), set(2 * PATH)), (Ok(()), Ok(())));
        for len in [0, PATH - 1, PATH + 1] {
            assert_eq!(set(len), Err(Errno::EINVAL));
        }
    }
}
