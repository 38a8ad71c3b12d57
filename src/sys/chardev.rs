//! Finding and opening the `rdma_cm` character device.

use std::ffi::{CStr, c_int};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::netlink;
use crate::errno::{Errno, Result};

const DIRECTORY: &str = "/dev/infiniband";
const NODE: &str = "rdma_cm";
const SYSFS: [&str; 2] = ["/sys/class/misc/rdma_cm", "/sys/class/infiniband_ucma"];
/// Command set versions this library speaks (`rdma_user_cm.h`), and the one to assume when the kernel does not tell.
const ABI: std::ops::RangeInclusive<u64> = 3..=4;
const ABI_UNTOLD: u64 = 4;
/// After the kernel has loaded the module for our question, udev may need a moment to make the node.
const NODE_WAIT: Duration = Duration::from_secs(2);

/// The device to open for an event channel.
#[derive(Debug)]
pub struct RdmaCm {
    /// Version of the kernel's command set, 3 or 4.
    pub abi: u64,
    /// What the kernel said; `None` when it did not.
    rdev: Option<libc::dev_t>,
    path: PathBuf,
}

impl RdmaCm {
    /// Asks netlink, then sysfs (spec: cm, Kernel channel). `EPERM` for a command set this library does not speak.
    pub fn discover() -> Result<RdmaCm> {
        let found = match netlink::char_device(NODE) {
            Ok(device) => {
                let name = CStr::from_bytes_until_nul(&device.name).map_err(|_| Errno::EPROTO)?;
                let path = Path::new(DIRECTORY).join(std::ffi::OsStr::from_bytes(name.to_bytes()));
                RdmaCm { abi: device.abi, rdev: Some(device.rdev), path }
            }
            Err(_) => from_sysfs(),
        };
        if ABI.contains(&found.abi) { Ok(found) } else { Err(Errno::EPERM) }
    }

    /// Opens the device: a new, empty event channel.
    pub fn open(&self) -> Result<OwnedFd> {
        let deadline = Instant::now() + NODE_WAIT;
        let mut watch = None;
        loop {
            match self.try_open() {
                // A node that udev has not made yet; without netlink we cannot know that one is to come.
                Err(Errno::ENOENT) if self.rdev.is_some() => {}
                result => return result,
            }
            // Watch first, then look once more: a node made in between is not missed.
            match &watch {
                None => watch = Some(Watch::new()?),
                Some(watch) => {
                    if !watch.changed_before(deadline)? {
                        return Err(Errno::ENOENT);
                    }
                }
            }
        }
    }

    fn try_open(&self) -> Result<OwnedFd> {
        match open_node(&self.path, self.rdev) {
            Err(Errno::ENOENT) => {}
            result => return result,
        }
        let rdev = self.rdev.ok_or(Errno::ENOENT)?;
        open_node(&find_node(rdev).ok_or(Errno::ENOENT)?, Some(rdev))
    }
}

fn from_sysfs() -> RdmaCm {
    let read = |file: &str| SYSFS.iter().find_map(|class| fs::read_to_string(Path::new(class).join(file)).ok());
    RdmaCm {
        abi: read("abi_version").and_then(|text| text.trim().parse().ok()).unwrap_or(ABI_UNTOLD),
        rdev: read("dev").and_then(|text| parse_dev(&text)),
        path: Path::new(DIRECTORY).join(NODE),
    }
}

/// "major:minor" of a sysfs `dev` file.
fn parse_dev(text: &str) -> Option<libc::dev_t> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Opens `path` if it is the announced character device; `ENOENT` if it is missing or another file.
fn open_node(path: &Path, rdev: Option<libc::dev_t>) -> Result<OwnedFd> {
    let mut name = [0u8; 256];
    let bytes = path.as_os_str().as_bytes();
    name.get_mut(..bytes.len()).ok_or(Errno::ENOENT)?.copy_from_slice(bytes);
    let name = CStr::from_bytes_until_nul(&name).map_err(|_| Errno::ENOENT)?;
    // SAFETY: a C string; the result is checked.
    let fd = unsafe { libc::open(name.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `status` is writable; all zeros are a valid stat.
    let status = unsafe {
        if libc::fstat(fd.as_raw_fd(), status.as_mut_ptr()) != 0 {
            return Err(Errno::last());
        }
        status.assume_init()
    };
    let right = status.st_mode & libc::S_IFMT == libc::S_IFCHR && rdev.is_none_or(|rdev| rdev == status.st_rdev);
    if right { Ok(fd) } else { Err(Errno::ENOENT) }
}

/// The node of device `rdev`, whatever it is called.
fn find_node(rdev: libc::dev_t) -> Option<PathBuf> {
    let by_number = PathBuf::from(format!("/dev/char/{}:{}", libc::major(rdev), libc::minor(rdev)));
    if by_number.exists() {
        return Some(by_number);
    }
    fs::read_dir(DIRECTORY).ok()?.flatten().map(|entry| entry.path()).find(|path| {
        fs::metadata(path).is_ok_and(|data| data.rdev() == rdev)
    })
}

/// Tells when something appears in /dev/infiniband, or the folder itself.
struct Watch(OwnedFd);

impl Watch {
    fn new() -> Result<Watch> {
        // SAFETY: plain system call.
        let fd = unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) };
        if fd < 0 {
            return Err(Errno::last());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let watching = [c"/dev/infiniband", c"/dev"].map(|folder| watch_folder(fd.as_raw_fd(), folder));
        if watching.contains(&true) { Ok(Watch(fd)) } else { Err(Errno::ENOENT) }
    }

    /// Waits for a change until `deadline`; false when there was none.
    fn changed_before(&self, deadline: Instant) -> Result<bool> {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd.
        let ready = unsafe { libc::poll(&raw mut poll, 1, left.as_millis() as c_int) };
        if ready < 0 {
            return Err(Errno::last());
        }
        let mut events = [0u8; 4096];
        // SAFETY: `events` is writable; what it says does not matter, only that it is gone from the queue.
        unsafe { libc::read(self.0.as_raw_fd(), events.as_mut_ptr().cast(), events.len()) };
        Ok(ready > 0)
    }
}

fn watch_folder(fd: RawFd, folder: &CStr) -> bool {
    // SAFETY: a C string and an inotify descriptor.
    unsafe { libc::inotify_add_watch(fd, folder.as_ptr(), libc::IN_CREATE | libc::IN_MOVED_TO | libc::IN_ATTRIB) >= 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_of_sysfs() {
        assert_eq!(parse_dev("10:127\n"), Some(libc::makedev(10, 127)));
        assert_eq!(parse_dev("10"), None);
        assert_eq!(parse_dev("10:x"), None);
    }

    #[test]
    fn another_file_at_the_path_is_not_opened() {
        let null = libc::makedev(1, 3);
        assert!(open_node(Path::new("/dev/null"), Some(null)).is_ok());
        assert_eq!(open_node(Path::new("/dev/null"), Some(null + 1)).err(), Some(Errno::ENOENT));
        assert_eq!(open_node(Path::new("/"), None).err().map(Errno::get), Some(libc::EISDIR));
    }
}
