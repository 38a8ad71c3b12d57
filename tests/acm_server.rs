//! A small ACM server: answers like ibacm, or misbehaves. It has its own definition of the message
//! formats, independent of the tested client. Used by tests/acm_client.rs and
//! docs/examples/acm-server.rs.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Called with every request.
pub type Watch = Box<dyn Fn(&[u8]) + Send + Sync>;

const HEADER: usize = 16;
const RECORD: usize = 72;

/// How the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Source address and a path between the RoCE GIDs of the request's addresses.
    Good,
    /// A path without a source address.
    PathOnly,
    /// Two paths with the source address between them.
    Split,
    /// Status 3: no data.
    NoData,
    /// Success without records.
    Empty,
    /// A correct answer, byte by byte.
    Trickle,
    /// A correct answer, then the connection is closed.
    Once,
    /// Half an answer, then the connection is closed.
    Short,
    /// Half a header, then the connection is closed.
    ShortHeader,
    /// A correct answer with a length that is not that of whole records.
    OddLength,
    /// A correct answer with the length of 900 records.
    HugeCount,
    /// A correct answer to another request.
    WrongTid,
    /// A correct answer of version 9.
    WrongVersion,
    /// The request, sent back.
    Echo,
    /// A correct header with unknown records.
    GarbageRecords,
    /// Arbitrary bytes.
    Garbage,
    /// A correct answer, followed by more bytes.
    Excess,
    /// Closes the connection without an answer.
    Close,
    /// Reads and never answers.
    Silent,
}

impl Mode {
    /// All modes with their names on the command line.
    pub const ALL: [(&'static str, Mode); 19] = [
        ("good", Mode::Good),
        ("path-only", Mode::PathOnly),
        ("split", Mode::Split),
        ("no-data", Mode::NoData),
        ("empty", Mode::Empty),
        ("trickle", Mode::Trickle),
        ("once", Mode::Once),
        ("short", Mode::Short),
        ("short-header", Mode::ShortHeader),
        ("odd-length", Mode::OddLength),
        ("huge-count", Mode::HugeCount),
        ("wrong-tid", Mode::WrongTid),
        ("wrong-version", Mode::WrongVersion),
        ("echo", Mode::Echo),
        ("garbage-records", Mode::GarbageRecords),
        ("garbage", Mode::Garbage),
        ("excess", Mode::Excess),
        ("close", Mode::Close),
        ("silent", Mode::Silent),
    ];

    /// Returns the mode with that name.
    pub fn named(name: &str) -> Option<Mode> {
        Mode::ALL.iter().find(|(known, _)| *known == name).map(|(_, mode)| *mode)
    }
}

/// What the server has received.
#[derive(Default)]
struct Seen {
    requests: Vec<Vec<u8>>,
    connections: usize,
    closed: usize,
}

struct Shared {
    mode: Mutex<Mode>,
    seen: Mutex<Seen>,
    stop: Mutex<bool>,
    streams: Mutex<Vec<Stream>>,
    watch: Watch,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running server, which is stopped when dropped.
pub struct Server {
    shared: Arc<Shared>,
    wake: Box<dyn Fn() + Send>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on a unix socket.
    pub fn unix(path: &Path, mode: Mode) -> io::Result<Server> {
        Server::unix_watched(path, mode, Box::new(|_| {}))
    }

    /// As [`Server::unix`]; `watch` is called with every request.
    pub fn unix_watched(path: &Path, mode: Mode, watch: Watch) -> io::Result<Server> {
        let listener = UnixListener::bind(path)?;
        let path = path.to_owned();
        let wake = Box::new(move || drop(UnixStream::connect(&path)));
        Ok(Server::start(mode, watch, wake, move || Ok(Stream::Unix(listener.accept()?.0))))
    }

    /// Listens on a TCP port of 127.0.0.1 and writes its number to a file.
    pub fn tcp(port_file: &Path, mode: Mode) -> io::Result<Server> {
        Server::tcp_watched(port_file, mode, Box::new(|_| {}))
    }

    /// As [`Server::tcp`]; `watch` is called with every request.
    pub fn tcp_watched(port_file: &Path, mode: Mode, watch: Watch) -> io::Result<Server> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        std::fs::write(port_file, format!("{}\n", address.port()))?;
        let wake = Box::new(move || drop(TcpStream::connect(address)));
        Ok(Server::start(mode, watch, wake, move || Ok(Stream::Tcp(listener.accept()?.0))))
    }

    fn start(
        mode: Mode,
        watch: Watch,
        wake: Box<dyn Fn() + Send>,
        accept: impl Fn() -> io::Result<Stream> + Send + 'static,
    ) -> Server {
        let shared = Arc::new(Shared {
            mode: Mutex::new(mode),
            seen: Mutex::default(),
            stop: Mutex::new(false),
            streams: Mutex::default(),
            watch,
        });
        let listening = Arc::clone(&shared);
        let thread = thread::spawn(move || accept_loop(&listening, accept));
        Server { shared, wake, thread: Some(thread) }
    }

    /// Changes the mode of the following answers.
    pub fn set_mode(&self, mode: Mode) {
        *lock(&self.shared.mode) = mode;
    }

    /// Returns the requests so far.
    pub fn requests(&self) -> Vec<Vec<u8>> {
        lock(&self.shared.seen).requests.clone()
    }

    /// Returns the number of connections so far.
    pub fn connections(&self) -> usize {
        lock(&self.shared.seen).connections
    }

    /// Closes all connections and waits until their threads have noticed.
    pub fn hang_up(&self) {
        for stream in lock(&self.shared.streams).drain(..) {
            stream.shutdown();
        }
        loop {
            let seen = lock(&self.shared.seen);
            if seen.closed == seen.connections {
                return;
            }
            drop(seen);
            thread::yield_now();
        }
    }

    /// Serves forever.
    pub fn serve(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        *lock(&self.shared.stop) = true;
        (self.wake)();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.hang_up();
    }
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Unix(stream) => Stream::Unix(stream.try_clone()?),
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone()?),
        })
    }

    fn shutdown(&self) {
        let _ = match self {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.read_exact(buffer),
            Stream::Tcp(stream) => stream.read_exact(buffer),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.write_all(bytes),
            Stream::Tcp(stream) => stream.write_all(bytes),
        }
    }
}

fn accept_loop(shared: &Arc<Shared>, accept: impl Fn() -> io::Result<Stream>) {
    while let Ok(mut stream) = accept() {
        if *lock(&shared.stop) {
            return;
        }
        let Ok(handle) = stream.try_clone() else { continue };
        lock(&shared.streams).push(handle);
        lock(&shared.seen).connections += 1;
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            let _ = serve(&shared, &mut stream);
            stream.shutdown();
            lock(&shared.seen).closed += 1;
        });
    }
}

/// Answers requests until the client, or the mode, closes the connection.
fn serve(shared: &Shared, stream: &mut Stream) -> io::Result<()> {
    loop {
        let mut request = vec![0; HEADER];
        stream.fill(&mut request)?;
        let length = usize::from(u16::from_ne_bytes([request[6], request[7]]));
        request.resize(length.max(HEADER), 0);
        stream.fill(&mut request[HEADER..])?;
        (shared.watch)(&request);
        lock(&shared.seen).requests.push(request.clone());
        let mode = *lock(&shared.mode);
        let (bytes, close) = reply(mode, &request);
        if mode == Mode::Trickle {
            bytes.iter().try_for_each(|byte| stream.send(&[*byte]))?;
        } else {
            stream.send(&bytes)?;
        }
        if close {
            return Ok(());
        }
    }
}

/// Returns the bytes to send, and whether to close the connection afterwards.
fn reply(mode: Mode, request: &[u8]) -> (Vec<u8>, bool) {
    let good = || answer(request, &[source(request), path(request)]);
    let half = |mut bytes: Vec<u8>, len| {
        bytes.truncate(len);
        bytes
    };
    match mode {
        Mode::Good | Mode::Trickle => (good(), false),
        Mode::PathOnly => (answer(request, &[path(request)]), false),
        Mode::Split => (answer(request, &[path(request), source(request), path(request)]), false),
        Mode::NoData => (patched(answer(request, &[]), 2, &[3]), false),
        Mode::Empty => (answer(request, &[]), false),
        Mode::Once => (good(), true),
        Mode::Short => (half(good(), 100), true),
        Mode::ShortHeader => (half(good(), 8), true),
        Mode::OddLength => (patched(good(), 6, &100u16.to_ne_bytes()), false),
        Mode::HugeCount => (patched(good(), 6, &(16u16 + 900 * 72).to_ne_bytes()), false),
        Mode::WrongTid => (patched(good(), 8, &[!request[8]]), false),
        Mode::WrongVersion => (patched(good(), 0, &[9]), false),
        Mode::Echo => (request.to_vec(), false),
        Mode::GarbageRecords => {
            (answer(request, &[record(0xFFFF_FFFF, 0xFFFF, &[0xFF; 64]), record(1, 1, b"name")]), false)
        }
        Mode::Garbage => ((0..200u8).map(|i| i.wrapping_mul(151)).collect(), false),
        Mode::Excess => ([good(), vec![1; 40]].concat(), false),
        Mode::Close => (Vec::new(), true),
        Mode::Silent => (Vec::new(), false),
    }
}

fn patched(mut bytes: Vec<u8>, at: usize, with: &[u8]) -> Vec<u8> {
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes
}

fn answer(request: &[u8], records: &[Vec<u8>]) -> Vec<u8> {
    let length = (HEADER + records.len() * RECORD) as u16;
    let mut bytes = vec![1, request[1] | 0x80, 0, 0, 0, 0];
    bytes.extend(length.to_ne_bytes());
    bytes.extend(&request[8..HEADER]);
    bytes.extend(records.concat());
    bytes
}

fn record(flags: u32, kind: u16, info: &[u8]) -> Vec<u8> {
    let mut bytes = flags.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend([0; 2]);
    bytes.extend(info);
    bytes.resize(RECORD, 0);
    bytes
}

/// Returns type and bytes of the request's address with that flag (1 source, 2 destination).
fn address(request: &[u8], flag: u32) -> Option<(u16, Vec<u8>)> {
    request[HEADER..].chunks_exact(RECORD).find_map(|record| {
        let flags = u32::from_ne_bytes([record[0], record[1], record[2], record[3]]);
        let kind = u16::from_ne_bytes([record[4], record[5]]);
        let len = match kind {
            2 => 4,
            3 => 16,
            _ => return None,
        };
        (flags & flag != 0).then(|| (kind, record[8..8 + len].to_vec()))
    })
}

/// Returns the local address: the request's source, otherwise the destination, which is right within one host.
fn local(request: &[u8]) -> (u16, Vec<u8>) {
    address(request, 1).or_else(|| address(request, 2)).unwrap_or((2, vec![127, 0, 0, 1]))
}

fn source(request: &[u8]) -> Vec<u8> {
    let (kind, bytes) = local(request);
    record(1, kind, &bytes)
}

/// Returns the RoCE (version 2) GID of an address.
fn gid((kind, bytes): (u16, Vec<u8>)) -> Vec<u8> {
    if kind == 3 { bytes } else { [&[0; 10][..], &[0xFF, 0xFF], &bytes].concat() }
}

/// Returns a path that the kernel accepts: reversible, MTU 1024, 10 Gbit/s, P_Key 0xFFFF; GMP, primary, bidirectional.
fn path(request: &[u8]) -> Vec<u8> {
    let from = gid(local(request));
    let to = gid(address(request, 2).unwrap_or_else(|| local(request)));
    let flow_and_hops = 64u32.to_be_bytes();
    let rest = [0, 0x81, 0xFF, 0xFF, 0, 0, 0x84, 0x83, 0x92, 0];
    record(0x2B, 0x10, &[&[0; 8][..], &to, &from, &[0; 4], &flow_and_hops, &rest].concat())
}
