//! What the program's descriptors stand for.
//!
//! Two tables of atomic words. One has the [`Entry`] of each descriptor of the program. The other
//! has, for each rsocket descriptor, the number of the program's descriptors that stand for it
//! (dup), and the [indices](index_of) of these descriptors. The tables contain no pointers, and
//! nothing is freed that a reader could still use: a look-up is an atomic load, safe in signal
//! handlers and in threads that race with a close. A call that loses such a race finds an rsocket
//! descriptor that is closed, and fails with `EBADF` in librdmacm.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use libc::{EBADF, ENOMEM};

use crate::memory::{Mapping, Plain};

/// What is behind a descriptor of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An rsocket. `handle` is its descriptor in librdmacm; the program's descriptor is a
    /// placeholder.
    Socket = 1,
    /// A kernel socket that may still become an rsocket (fork mode).
    Pending,
    /// A kernel epoll instance to which an rsocket was added. `handle` is its first side
    /// ([`crate::epoll`]).
    Epoll,
    /// A kernel socket for which an rsocket connects (automatic mode). `handle` is a ticket of
    /// `auto::connect`.
    Connecting,
    /// A kernel listener at whose port rsockets listen (automatic mode). `handle` is its index in
    /// `auto::listeners`.
    Listener,
    /// A kernel socket whose data this or another process forwards over RDMA (automatic mode).
    /// `handle` is its index in `auto::shared`.
    Forwarded,
}

/// The table's entry for a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// What is behind the descriptor.
    pub kind: Kind,
    /// 24 bits for the module that serves the kind. For an rsocket, from the most significant bits
    /// down: 8 bits for the [index](Entry::index), 8 that identify the
    /// [process](Entry::is_inherited) that created the rsocket, 4 for the number of remaining
    /// [first calls](Entry::looked), and 4 for automatic mode.
    pub flags: u32,
    /// A descriptor, a ticket or an index, depending on the [`Kind`]; -1 if the kind has no handle.
    pub handle: c_int,
}

const INDEX_SHIFT: u32 = 16;
const PROCESS_SHIFT: u32 = 8;
const PROCESS: u32 = 0xff << PROCESS_SHIFT;
const LOOK: u32 = 1 << 4;
const LOOKS: u32 = 0xf * LOOK;

/// Number of forks between the process that loaded the library and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Called in the child of fork(2). Makes every call that moves data on an inherited rsocket check
/// the placeholder, which a child may have closed without an intercepted call.
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for (_, slot) in ENTRIES.all() {
        if let Some(entry @ Entry { kind: Kind::Socket, .. }) = Entry::unpack(slot.load(Ordering::Relaxed)) {
            slot.store(Entry::pack(Some(Entry { flags: entry.flags | LOOKS, ..entry })), Ordering::Relaxed);
        }
    }
}

fn process() -> u32 {
    FORKS.load(Ordering::Relaxed) << PROCESS_SHIFT & PROCESS
}

impl Entry {
    /// Returns the entry of a new rsocket of this process. `flags` are bits for automatic mode.
    pub fn rsocket(rsocket: c_int, flags: u32) -> Entry {
        /// Number of calls that read the placeholder's flags: enough for programs that set
        /// O_NONBLOCK after a handshake.
        const FIRST_CALLS: u32 = 8;
        Entry { kind: Kind::Socket, flags: flags | (FIRST_CALLS * LOOK) | process(), handle: rsocket }
    }

    /// Whether a call needs only the rsocket descriptor: the entry is an rsocket's, and no first
    /// calls remain.
    #[inline(always)]
    pub fn is_settled(self) -> bool {
        self.kind == Kind::Socket && self.flags & LOOKS == 0
    }

    /// Returns the entry with one first call fewer: a call has read the flags of the placeholder.
    pub fn looked(self) -> Entry {
        Entry { flags: self.flags - LOOK, ..self }
    }

    /// Whether the rsocket was created by an ancestor of this process.
    pub fn is_inherited(self) -> bool {
        self.flags & PROCESS != process()
    }

    /// The index of the descriptor among the program's descriptors for its rsocket.
    pub fn index(self) -> u32 {
        self.flags >> INDEX_SHIFT
    }

    /// Returns the entry for another descriptor of this rsocket.
    pub fn with_index(self, index: u32) -> Entry {
        Entry { flags: self.flags & ((1 << INDEX_SHIFT) - 1) | index << INDEX_SHIFT, ..self }
    }

    /// Packs an entry into a word: kind, flags and handle, from the most significant bits down. 0
    /// means no entry.
    fn pack(entry: Option<Entry>) -> u64 {
        let Some(entry) = entry else { return 0 };
        (entry.kind as u64) << 56 | u64::from(entry.flags & 0xff_ffff) << 32 | u64::from(entry.handle as u32)
    }

    #[inline(always)]
    fn unpack(word: u64) -> Option<Entry> {
        let kind = match word >> 56 {
            0 => return None,
            1 => Kind::Socket,
            2 => Kind::Pending,
            3 => Kind::Epoll,
            4 => Kind::Connecting,
            5 => Kind::Listener,
            _ => Kind::Forwarded,
        };
        Some(Entry { kind, flags: (word >> 32) as u32 & 0xff_ffff, handle: word as u32 as c_int })
    }
}

/// The `handle` of a socket that is being closed. It is never an open descriptor, so calls on the
/// socket fail with `EBADF`.
pub const CLOSING: c_int = c_int::MAX;

/// Length of the first chunk, which has the lowest descriptors. Each further chunk is as long as
/// all chunks before it together.
const FIRST: usize = 1024;
const CHUNKS: usize = 32 - FIRST.trailing_zeros() as usize;

/// An array of atomic integers, or of structures of them, that is indexed by descriptor and starts
/// out as zeros. The array grows on demand, in chunks that never move.
pub struct Growing<T> {
    chunks: [AtomicPtr<T>; CHUNKS],
}

impl<T: Plain> Growing<T> {
    /// Creates an array without memory.
    pub const fn new() -> Self {
        Growing { chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS] }
    }

    /// Returns the chunk, the index in the chunk, and the chunk's length; `None` for a negative
    /// `fd`.
    #[inline(always)]
    fn index(fd: c_int) -> Option<(usize, usize, usize)> {
        let fd = usize::try_from(fd).ok()?;
        if fd < FIRST {
            return Some((0, fd, FIRST));
        }
        let top = fd.ilog2() as usize;
        Some((top + 1 - FIRST.trailing_zeros() as usize, fd - (1 << top), 1 << top))
    }

    /// Returns the element of a descriptor, or `None` if its chunk has no memory yet
    /// ([`Growing::get_or_grow`] allocates the memory).
    #[inline(always)]
    pub fn get(&self, fd: c_int) -> Option<&T> {
        let (chunk, index, _) = Self::index(fd)?;
        // Acquire pairs with the store of the chunk's address, so the chunk's zeros are visible.
        let start = self.chunks.get(chunk)?.load(Ordering::Acquire);
        // SAFETY: `index` is within the chunk: a stored chunk has the length that
        // [`Growing::index`] says, and is never freed.
        (!start.is_null()).then(|| unsafe { &*start.add(index) })
    }

    /// All elements that have memory, with their descriptors.
    pub fn all(&self) -> impl Iterator<Item = (c_int, &T)> {
        let chunks = self.chunks.iter().enumerate();
        chunks.flat_map(|(chunk, start)| {
            let len = FIRST << chunk.saturating_sub(1);
            let first = if chunk == 0 { 0 } else { len };
            let start = start.load(Ordering::Acquire);
            // SAFETY: `index` is below `len`, the length of this chunk, which is never freed.
            let word = move |index| ((first + index) as c_int, unsafe { &*start.add(index) });
            (0..if start.is_null() { 0 } else { len }).map(word)
        })
    }

    /// Returns the element of a descriptor, and allocates its chunk if needed. Fails with `ENOMEM`,
    /// or with `EBADF` if `fd` is negative.
    pub fn get_or_grow(&self, fd: c_int) -> Result<&T, c_int> {
        let (chunk, _, len) = Self::index(fd).ok_or(EBADF)?;
        let chunk = self.chunks.get(chunk).ok_or(EBADF)?;
        if chunk.load(Ordering::Acquire).is_null() {
            let mut new = Mapping::<T>::new(len).ok_or(ENOMEM)?;
            let start = new.values().as_mut_ptr();
            if chunk.compare_exchange(ptr::null_mut(), start, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                new.leak();
            }
        }
        self.get(fd).ok_or(ENOMEM)
    }
}

static ANY: AtomicBool = AtomicBool::new(false);
static ENTRIES: Growing<AtomicU64> = Growing::new();
static REFERENCES: Growing<AtomicU64> = Growing::new();

/// Whether the process has ever had a table entry or a descriptor of librdmacm. While this is
/// false, an intercepted call only costs this load.
///
/// Relaxed is enough: a thread that gets a descriptor from another thread synchronizes with the
/// other thread, which has stored the entry before.
#[inline(always)]
pub fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Makes [`any`] return true from now on: the process has descriptors of librdmacm, which the
/// program's calls must not close.
pub fn expect_library_fds() {
    ANY.store(true, Ordering::Relaxed);
}

/// Returns the entry of `fd`, or `None` for a descriptor that belongs to the kernel alone.
#[inline(always)]
pub fn get(fd: c_int) -> Option<Entry> {
    if !any() {
        return None;
    }
    Entry::unpack(ENTRIES.get(fd)?.load(Ordering::Acquire))
}

/// Calls `call` with each descriptor that has an entry.
pub fn each(mut call: impl FnMut(c_int, Entry)) {
    for (fd, slot) in ENTRIES.all() {
        if let Some(entry) = Entry::unpack(slot.load(Ordering::Acquire)) {
            call(fd, entry);
        }
    }
}

/// Allocates the memory for the entry of `fd`, which [`swap`] and [`replace`] need. Fails with
/// `ENOMEM`, or with `EBADF` if `fd` is negative.
pub fn prepare(fd: c_int) -> Result<(), c_int> {
    ENTRIES.get_or_grow(fd).map(|_| ())
}

/// Stores the entry `new` for `fd`. Returns the previous entry.
pub fn swap(fd: c_int, new: Option<Entry>) -> Option<Entry> {
    if new.is_some() {
        ANY.store(true, Ordering::Relaxed);
    }
    let slot = ENTRIES.get(fd);
    debug_assert!(slot.is_some() || new.is_none());
    Entry::unpack(slot?.swap(Entry::pack(new), Ordering::AcqRel))
}

/// Stores the entry `new` for `fd` if the current entry is `old`. Returns true if `new` was stored:
/// of several threads that try, one succeeds.
pub fn replace(fd: c_int, old: Option<Entry>, new: Option<Entry>) -> bool {
    if new.is_some() {
        ANY.store(true, Ordering::Relaxed);
    }
    let Some(slot) = ENTRIES.get(fd) else { return old.is_none() && new.is_none() };
    slot.compare_exchange(Entry::pack(old), Entry::pack(new), Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Number of bits in the upper half of a word in `REFERENCES`: a bit is set for each index in use.
/// The lower half counts the references to the rsocket descriptor.
const INDEX_BITS: u32 = 32;

/// Number of different indices of the program's descriptors for one rsocket.
pub const INDICES: usize = INDEX_BITS as usize;

/// The index that all further descriptors of an rsocket share once the lower indices are taken.
const LAST_INDEX: u32 = 63 - INDEX_BITS;

/// Sets the reference count of `rsocket` to one: librdmacm has just returned this descriptor, or
/// has failed to close `rsocket`. `index` is the index of the program's descriptor that refers to
/// `rsocket`. Fails with `ENOMEM`.
pub fn first(rsocket: c_int, index: u32) -> Result<(), c_int> {
    REFERENCES.get_or_grow(rsocket)?.store(1 | 1 << (INDEX_BITS + index), Ordering::Release);
    Ok(())
}

/// Adds a reference to `rsocket`. Returns false if the last reference is gone, or if there are too
/// many references. Returns true for -1: entries without a handle need no references.
pub fn hold(rsocket: c_int) -> bool {
    let Some(count) = REFERENCES.get(rsocket) else { return rsocket < 0 };
    let more = |now: u64| match now as u32 {
        0 | u32::MAX => None,
        _ => Some(now + 1),
    };
    count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
}

/// Drops a reference. Returns true if it was the last reference: the caller must then close
/// `rsocket`.
pub fn drop(rsocket: c_int) -> bool {
    let Some(count) = REFERENCES.get(rsocket) else { return false };
    let less = |now: u64| if now as u32 == 0 { None } else { Some(now - 1) };
    count.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok_and(|before| before as u32 == 1)
}

/// Takes and returns the lowest free index, for another descriptor of `rsocket`. Epoll instances
/// use the index to distinguish the descriptors of one rsocket, as the kernel distinguishes the
/// descriptors of one file.
pub fn index_of(rsocket: c_int) -> u32 {
    let Some(word) = REFERENCES.get(rsocket) else { return 0 };
    let lowest = |now: u64| (now >> INDEX_BITS).trailing_ones().min(LAST_INDEX);
    let take = |now: u64| Some(now | 1 << (INDEX_BITS + lowest(now)));
    word.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).map_or(0, lowest)
}

/// Frees the index of a descriptor that no longer stands for `rsocket`, except the shared
/// `LAST_INDEX`.
pub fn leave_index(rsocket: c_int, index: u32) {
    if let (Some(word), 0..LAST_INDEX) = (REFERENCES.get(rsocket), index) {
        word.fetch_and(!(1 << (INDEX_BITS + index)), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(rsocket: c_int) -> Option<Entry> {
        Some(Entry { kind: Kind::Socket, flags: 0, handle: rsocket })
    }

    // Descriptors that no test opens: all tests of this program share one table.
    const FAR: c_int = 3_000_000;

    #[test]
    fn words_keep_what_entries_say() {
        for kind in [Kind::Socket, Kind::Pending, Kind::Epoll, Kind::Connecting, Kind::Listener, Kind::Forwarded] {
            for flags in [0, 1, 0xff_ffff] {
                for rsocket in [-1, 0, 5, c_int::MAX] {
                    let entry = Some(Entry { kind, flags, handle: rsocket });
                    assert_eq!(Entry::unpack(Entry::pack(entry)), entry);
                }
            }
        }
        assert_eq!(Entry::unpack(Entry::pack(None)), None);
    }

    #[test]
    fn every_descriptor_has_a_place_of_its_own() {
        let index = Growing::<AtomicU64>::index;
        assert_eq!(index(-1), None);
        assert_eq!(index(0), Some((0, 0, FIRST)));
        assert_eq!(index(1023), Some((0, 1023, FIRST)));
        assert_eq!(index(1024), Some((1, 0, 1024)));
        assert_eq!(index(2047), Some((1, 1023, 1024)));
        assert_eq!(index(2048), Some((2, 0, 2048)));
        let (chunk, at, len) = index(c_int::MAX).unwrap();
        assert_eq!((chunk, at), (CHUNKS - 1, len - 1));
    }

    #[test]
    fn entries_come_and_go() {
        let fd = FAR + 1;
        assert_eq!(get(fd), None);
        assert_eq!(swap(fd, None), None);
        prepare(fd).unwrap();
        assert_eq!(swap(fd, socket(7)), None);
        assert_eq!(get(fd), socket(7));
        assert!(!replace(fd, socket(8), None));
        assert!(replace(fd, socket(7), socket(9)));
        assert_eq!(swap(fd, None), socket(9));
        assert_eq!(get(fd), None);
        assert_eq!(get(-1), None);
        assert_eq!(prepare(-1), Err(EBADF));
    }

    #[test]
    fn of_many_closers_one_wins() {
        let fd = FAR + 2;
        prepare(fd).unwrap();
        for _ in 0..200 {
            swap(fd, socket(7));
            let winners: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| replace(fd, socket(7), None))).collect();
                threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum()
            });
            assert_eq!(winners, 1);
        }
    }

    #[test]
    fn the_last_reference_is_the_last() {
        let rsocket = FAR + 3;
        assert!(!hold(rsocket));
        assert!(!drop(rsocket));
        first(rsocket, 0).unwrap();
        assert!(hold(rsocket));
        assert!(!drop(rsocket));
        assert!(drop(rsocket));
        assert!(!drop(rsocket));
        assert!(!hold(rsocket));
        assert!(hold(-1));
        assert!(!drop(-1));
    }

    #[test]
    fn each_descriptor_of_an_rsocket_has_an_index() {
        let rsocket = FAR + 4;
        first(rsocket, 0).unwrap();
        assert_eq!((index_of(rsocket), index_of(rsocket), index_of(rsocket)), (1, 2, 3));
        leave_index(rsocket, 2);
        leave_index(rsocket, 0);
        assert_eq!((index_of(rsocket), index_of(rsocket), index_of(rsocket)), (0, 2, 4));
        for index in 5..LAST_INDEX {
            assert_eq!(index_of(rsocket), index);
        }
        assert_eq!((index_of(rsocket), index_of(rsocket)), (LAST_INDEX, LAST_INDEX));
        leave_index(rsocket, LAST_INDEX);
        assert_eq!(index_of(rsocket), LAST_INDEX);
        let entry = Entry { kind: Kind::Socket, flags: 0xffff, handle: rsocket }.with_index(LAST_INDEX);
        assert_eq!((entry.index(), entry.flags & 0xffff), (LAST_INDEX, 0xffff));
        assert_eq!(Entry::unpack(Entry::pack(Some(entry))), Some(entry));
        assert_eq!(entry.with_index(0).index(), 0);
        // Indices do not count as references.
        assert!(drop(rsocket));
        assert_eq!(index_of(CLOSING), 0);
    }
}
