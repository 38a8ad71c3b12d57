//! Defaults of new rsockets: one number per file in `/etc/rdma/rsocket` (rsocket(7)), read once per
//! process.
//!
//! As in rdma-core, the number is at the beginning of the file, after white space, and the rest of
//! the file is ignored. Where rdma-core lets a number wrap around, the nearest valid number is
//! used. A negative number is ignored.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use once_cell::race::OnceBox;

use super::wire;
use crate::os::alloc::try_box;
use crate::os::text::FixedString;

/// The initial options of a new socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// Time that a blocking call polls for completions before it sleeps, in microseconds.
    pub polling_time_us: u32,
    /// Maximum number of bytes that are sent inline.
    pub inline: u16,
    /// Number of send queue entries.
    pub sq: u16,
    /// Number of receive queue entries.
    pub rq: u16,
    /// Size of the receive buffer in bytes.
    pub receive_buffer: u32,
    /// Size of the send buffer in bytes.
    pub send_buffer: u32,
    /// Number of iomap entries.
    pub iomap: u16,
    /// Budget for growing stream buffers of the process, in bytes.
    pub grow_limit: u32,
    /// Whether the header of a datagram may name a QP at another address than the packet's source.
    pub dgram_any_address: bool,
    /// Time in seconds after which a used path for datagrams is resolved again.
    pub dgram_path_lifetime: u32,
}

/// Maximum number of queue entries, and of bytes sent inline.
pub const MAX_ENTRIES: u16 = 0xFFFE;
/// Minimum size of a send buffer: it has room for the largest datagram.
pub const MIN_SEND_BUFFER: u32 = 2048;
/// Size of the send buffer if one below [`MIN_SEND_BUFFER`] is requested.
pub const SMALL_SEND_BUFFER: u32 = 4096;

/// The largest number in a file: numbers are C ints.
const MAX_NUMBER: u32 = i32::MAX as u32;

const DIRECTORY: &str = "/etc/rdma/rsocket";

/// Returns the defaults of this machine: the built-in ones if there is no memory for those of the
/// files.
#[inline]
pub fn defaults() -> &'static Defaults {
    // Concurrent first calls all read the files. No call waits for another one, whose thread may
    // not exist in the child of a fork().
    static DEFAULTS: OnceBox<Defaults> = OnceBox::new();
    DEFAULTS.get().unwrap_or_else(|| read_files(&DEFAULTS))
}

#[cold]
fn read_files(cell: &'static OnceBox<Defaults>) -> &'static Defaults {
    static BUILT_IN: Defaults = Defaults::built_in();
    cell.get_or_try_init(|| try_box(Defaults::from_files(|name| read(DIRECTORY, name)))).unwrap_or(&BUILT_IN)
}

impl Defaults {
    /// Returns the defaults of a machine without files.
    const fn built_in() -> Defaults {
        Defaults {
            polling_time_us: 10,
            inline: 64,
            sq: 384,
            rq: 384,
            receive_buffer: 1 << 17,
            send_buffer: 1 << 17,
            iomap: 0,
            grow_limit: 1 << 26,
            dgram_any_address: false,
            dgram_path_lifetime: 30,
        }
    }

    /// Returns the defaults of the files, where `number` returns the number in the file with the
    /// given name. The file `wake_up_interval` is ignored, because waiting calls are woken by
    /// events.
    fn from_files(number: impl Fn(&str) -> Option<u32>) -> Defaults {
        let built_in = Defaults::built_in();
        let entries = |name, built_in| number(name).map_or(built_in, |n| n.min(MAX_ENTRIES.into()) as u16);
        Defaults {
            polling_time_us: number("polling_time").unwrap_or(built_in.polling_time_us),
            inline: entries("inline_default", built_in.inline),
            sq: entries("sqsize_default", built_in.sq),
            rq: entries("rqsize_default", built_in.rq),
            receive_buffer: number("mem_default").map_or(built_in.receive_buffer, |bytes| bytes.max(1)),
            send_buffer: number("wmem_default").map_or(built_in.send_buffer, at_least_one_datagram),
            iomap: number("iomap_size").map_or(built_in.iomap, wire::round_iomap_size),
            grow_limit: number("grow_limit").unwrap_or(built_in.grow_limit),
            dgram_any_address: number("dgram_any_address").map_or(built_in.dgram_any_address, |number| number != 0),
            dgram_path_lifetime: number("dgram_path_lifetime").map_or(built_in.dgram_path_lifetime, |time| time.max(1)),
        }
    }
}

/// Returns the default of IPV6_V6ONLY: net.ipv6.bindv6only, which the kernel's connection manager
/// uses, too.
pub fn v6only() -> bool {
    read("/proc/sys/net/ipv6", "bindv6only").is_some_and(|number| number != 0)
}

/// Returns the size of a send buffer for a requested size. The buffer has room for a datagram.
pub fn at_least_one_datagram(bytes: u32) -> u32 {
    if bytes < MIN_SEND_BUFFER { SMALL_SEND_BUFFER } else { bytes }
}

/// Returns the number at the beginning of a file, or `None` if the file has no number or cannot be
/// read.
fn read(directory: &str, name: &str) -> Option<u32> {
    let path = FixedString::<128>::new(format_args!("{directory}/{name}")).ok()?;
    let mut text = [0; 64];
    let mut file = File::open(OsStr::from_bytes(path.as_c_str().to_bytes())).ok()?;
    // One call returns all of a small file.
    let len = file.read(&mut text).ok()?;
    parse(text.get(..len)?)
}

/// Returns the number at the beginning of `text`, or `None` if there is no number or a negative
/// one.
pub fn parse(text: &[u8]) -> Option<u32> {
    let text = text.trim_ascii_start();
    let digits = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    let number = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .map(|byte| u32::from(byte - b'0'))
        .reduce(|number, digit| number.saturating_mul(10).saturating_add(digit).min(MAX_NUMBER))?;
    (number == 0 || !text.starts_with(b"-")).then_some(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with(file: &'static str, text: &'static [u8]) -> Defaults {
        Defaults::from_files(|name| if name == file { parse(text) } else { None })
    }

    /// Each content of a file, with the result of rdma-core's rgetsockopt(RDMA_SQSIZE).
    #[test]
    fn numbers_are_parsed_like_the_reference() {
        for (text, sq) in [
            (&b""[..], 384),
            (b"0", 0),
            (b"100", 100),
            (b" 100", 100),
            (b"\n100\n", 100),
            (b"100 200", 100),
            (b"100x", 100),
            (b"x100", 384),
            (b"0x100", 0),
            (b"010", 10),
            (b"+7", 7),
            (b"100.5", 100),
            (b"2047", 2047),
        ] {
            assert_eq!(with("sqsize_default", text).sq, sq, "{text:?}");
        }
    }

    #[test]
    fn numbers_do_not_wrap_around() {
        let huge = b"99999999999999999999";
        assert_eq!(with("sqsize_default", huge).sq, MAX_ENTRIES);
        assert_eq!(with("rqsize_default", b"65536").rq, MAX_ENTRIES);
        assert_eq!(with("inline_default", b"70000").inline, MAX_ENTRIES);
        assert_eq!(with("mem_default", b"3000000000").receive_buffer, MAX_NUMBER);
        assert_eq!(with("iomap_size", huge).iomap, wire::MAX_IOMAP_ENTRIES);
        assert_eq!(with("polling_time", b"-1"), Defaults::built_in());
        assert_eq!(with("mem_default", b"-5"), Defaults::built_in());
        assert_eq!(parse(b"-0"), Some(0));
        assert_eq!((parse(b"-"), parse(b"+"), parse(b"- 1"), parse(b"\xFF")), (None, None, None, None));
    }

    #[test]
    fn numbers_are_limited() {
        assert_eq!(with("mem_default", b"0").receive_buffer, 1);
        assert_eq!(with("wmem_default", b"2047").send_buffer, 4096);
        assert_eq!(with("wmem_default", b"2048").send_buffer, 2048);
        assert_eq!(with("iomap_size", b"1000").iomap, 768);
        assert_eq!(with("polling_time", b"0").polling_time_us, 0);
        assert_eq!(with("wake_up_interval", b"7"), Defaults::built_in());
        assert!(with("dgram_any_address", b"1").dgram_any_address);
        assert!(!with("dgram_any_address", b"0").dgram_any_address);
        assert_eq!(with("dgram_path_lifetime", b"0").dgram_path_lifetime, 1);
    }

    #[test]
    fn files_are_read_from_a_directory() {
        let directory = std::env::temp_dir().join(format!("rsocket-config-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("iomap_size")).unwrap();
        std::fs::write(directory.join("sqsize_default"), "77\n").unwrap();
        std::fs::write(directory.join("rqsize_default"), [b'9'; 1 << 16]).unwrap();
        let defaults = Defaults::from_files(|name| read(directory.to_str().unwrap(), name));
        std::fs::remove_dir_all(&directory).unwrap();
        let expected = Defaults { sq: 77, rq: MAX_ENTRIES, ..Defaults::built_in() };
        assert_eq!(defaults, expected, "a directory and a missing file are ignored");
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_parsed(text: Vec<u8>) {
            let _ = parse(&text);
        }

        #[test]
        fn numbers_round_trip(number in 0..=MAX_NUMBER) {
            prop_assert_eq!(parse(number.to_string().as_bytes()), Some(number));
        }
    }
}
