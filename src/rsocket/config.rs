//! Defaults of new rsockets: one number per file in `/etc/rdma/rsocket` (rsocket(7)), read once a process.
//!
//! As the reference, the number is what the file begins with, behind white space; what follows it is passed over. Where
//! the reference lets a number wrap around, it counts here as the nearest one possible, and one below zero as none.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use once_cell::race::OnceBox;

use super::wire;
use crate::sys::alloc::try_box;

/// What a new socket starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// Microseconds that a blocking call looks for completions before it sleeps.
    pub polling_time_us: u32,
    /// Bytes that are sent inline.
    pub inline: u16,
    /// Entries of the send queue.
    pub sq: u16,
    /// Entries of the receive queue.
    pub rq: u16,
    /// Bytes of the receive buffer.
    pub receive_buffer: u32,
    /// Bytes of the send buffer.
    pub send_buffer: u32,
    /// Entries of the iomap.
    pub iomap: u16,
    /// Bytes that buffers of a process's streams may grow by in all.
    pub grow_limit: u32,
    /// Whether the QP of a datagram's sender may be at another address than the packet came from.
    pub dgram_any_address: bool,
    /// Seconds after which a path of datagrams in use is resolved again.
    pub dgram_path_lifetime: u32,
}

/// Most entries of a queue, and bytes of inline data.
pub const MOST_ENTRIES: u16 = 0xFFFE;
/// A send buffer has at least room for the largest datagram; a smaller one becomes [`SMALL_SEND_BUFFER`].
pub const LEAST_SEND_BUFFER: u32 = 2048;
/// See [`LEAST_SEND_BUFFER`].
pub const SMALL_SEND_BUFFER: u32 = 4096;

/// Numbers are C ints.
const MOST: u32 = i32::MAX as u32;

const FOLDER: &str = "/etc/rdma/rsocket";

/// The defaults of this machine; those without files while there is no memory to keep others.
#[inline]
pub fn defaults() -> &'static Defaults {
    // Threads that come at the same time read the same; nobody waits for another one, which a child
    // of fork() may not have.
    static DEFAULTS: OnceBox<Defaults> = OnceBox::new();
    DEFAULTS.get().unwrap_or_else(|| read_files(&DEFAULTS))
}

#[cold]
fn read_files(kept: &'static OnceBox<Defaults>) -> &'static Defaults {
    static WITHOUT_FILES: Defaults = Defaults::usual();
    kept.get_or_try_init(|| try_box(Defaults::from_files(|name| read(Path::new(FOLDER), name))))
        .unwrap_or(&WITHOUT_FILES)
}

impl Defaults {
    /// Those of a machine without files.
    const fn usual() -> Defaults {
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

    /// `number` gives the number in the file of that name. (A file `wake_up_interval` is of no use here: sleeping calls
    /// are woken by what they wait for.)
    fn from_files(number: impl Fn(&str) -> Option<u32>) -> Defaults {
        let usual = Defaults::usual();
        let entries = |name, usual| number(name).map_or(usual, |n| n.min(MOST_ENTRIES.into()) as u16);
        Defaults {
            polling_time_us: number("polling_time").unwrap_or(usual.polling_time_us),
            inline: entries("inline_default", usual.inline),
            sq: entries("sqsize_default", usual.sq),
            rq: entries("rqsize_default", usual.rq),
            receive_buffer: number("mem_default").map_or(usual.receive_buffer, |bytes| bytes.max(1)),
            send_buffer: number("wmem_default").map_or(usual.send_buffer, at_least_a_datagram),
            iomap: number("iomap_size").map_or(usual.iomap, wire::iomap_round),
            grow_limit: number("grow_limit").unwrap_or(usual.grow_limit),
            dgram_any_address: number("dgram_any_address").map_or(usual.dgram_any_address, |number| number != 0),
            dgram_path_lifetime: number("dgram_path_lifetime").map_or(usual.dgram_path_lifetime, |time| time.max(1)),
        }
    }
}

fn at_least_a_datagram(bytes: u32) -> u32 {
    if bytes < LEAST_SEND_BUFFER { SMALL_SEND_BUFFER } else { bytes }
}

/// The number in a file, as far as it stands in the first bytes.
fn read(folder: &Path, name: &str) -> Option<u32> {
    const ROOM: usize = 64;
    let mut path = [0; 128];
    let mut text = [0; ROOM];
    let mut len = 0;
    let path = join(&mut path, folder.as_os_str().as_bytes(), name.as_bytes())?;
    let mut file = File::open(Path::new(OsStr::from_bytes(path))).ok()?;
    while len < ROOM {
        match file.read(text.get_mut(len..)?) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    parse(text.get(..len)?)
}

/// `folder/name`, without allocation.
fn join<'a>(room: &'a mut [u8], folder: &[u8], name: &[u8]) -> Option<&'a [u8]> {
    let len = folder.len() + 1 + name.len();
    let path = room.get_mut(..len)?;
    path.get_mut(..folder.len())?.copy_from_slice(folder);
    *path.get_mut(folder.len())? = b'/';
    path.get_mut(folder.len() + 1..)?.copy_from_slice(name);
    Some(path)
}

/// The number at the beginning of `text`; `None` if there is none, or one below zero.
pub fn parse(text: &[u8]) -> Option<u32> {
    let text = text.trim_ascii_start();
    let (negative, digits) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, text),
    };
    let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 {
        return None;
    }
    let number = digits
        .iter()
        .take(count)
        .fold(0_u32, |number, byte| number.saturating_mul(10).saturating_add(u32::from(byte - b'0')).min(MOST));
    if negative && number > 0 { None } else { Some(number) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with(file: &'static str, text: &'static [u8]) -> Defaults {
        Defaults::from_files(|name| if name == file { parse(text) } else { None })
    }

    /// Each text and what the reference's rgetsockopt(RDMA_SQSIZE) said of it.
    #[test]
    fn numbers_as_the_reference_reads_them() {
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
    fn nothing_wraps_around() {
        let huge = b"99999999999999999999";
        assert_eq!(with("sqsize_default", huge).sq, MOST_ENTRIES);
        assert_eq!(with("rqsize_default", b"65536").rq, MOST_ENTRIES);
        assert_eq!(with("inline_default", b"70000").inline, MOST_ENTRIES);
        assert_eq!(with("mem_default", b"3000000000").receive_buffer, MOST);
        assert_eq!(with("iomap_size", huge).iomap, wire::IOMAP_MOST);
        assert_eq!(with("polling_time", b"-1"), Defaults::usual());
        assert_eq!(with("mem_default", b"-5"), Defaults::usual());
        assert_eq!(parse(b"-0"), Some(0));
        assert_eq!((parse(b"-"), parse(b"+"), parse(b"- 1"), parse(b"\xFF")), (None, None, None, None));
    }

    #[test]
    fn limits_of_each() {
        assert_eq!(with("mem_default", b"0").receive_buffer, 1);
        assert_eq!(with("wmem_default", b"2047").send_buffer, 4096);
        assert_eq!(with("wmem_default", b"2048").send_buffer, 2048);
        assert_eq!(with("iomap_size", b"1000").iomap, 768);
        assert_eq!(with("polling_time", b"0").polling_time_us, 0);
        assert_eq!(with("wake_up_interval", b"7"), Defaults::usual());
        assert!(with("dgram_any_address", b"1").dgram_any_address);
        assert!(!with("dgram_any_address", b"0").dgram_any_address);
        assert_eq!(with("dgram_path_lifetime", b"0").dgram_path_lifetime, 1);
    }

    #[test]
    fn files_are_read_from_a_folder() {
        let folder = std::env::temp_dir().join(format!("rsocket-config-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("iomap_size")).unwrap();
        std::fs::write(folder.join("sqsize_default"), "77\n").unwrap();
        std::fs::write(folder.join("rqsize_default"), [b'9'; 1 << 16]).unwrap();
        let defaults = Defaults::from_files(|name| read(&folder, name));
        std::fs::remove_dir_all(&folder).unwrap();
        let expected = Defaults { sq: 77, rq: MOST_ENTRIES, ..Defaults::usual() };
        assert_eq!(defaults, expected, "a folder in place of a file, and no file, count as none");
    }

    proptest! {
        #[test]
        fn any_text(text: Vec<u8>) {
            let _ = parse(&text);
        }

        #[test]
        fn any_number(number in 0..=MOST) {
            prop_assert_eq!(parse(number.to_string().as_bytes()), Some(number));
        }
    }
}
