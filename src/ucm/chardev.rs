//! Finds and opens the `rdma_cm` character device. All allocations are fallible.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::str;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::errno::{Errno, Result};
use crate::os::event;
use crate::os::library_fds::OwnFd;
use crate::os::netlink;
use crate::os::text::FixedString;

/// Name of the client of the kernel's RDMA core whose device is opened; [`NODE`] is the name of the
/// device's node if the kernel does not report the name.
const CLIENT: &CStr = c"rdma_cm";
const NODE: &str = "rdma_cm";
const SYSFS: [&str; 2] = ["/sys/class/misc/rdma_cm", "/sys/class/infiniband_ucma"];
/// Supported versions of the command set (`rdma_user_cm.h`), and the version to assume if the
/// kernel does not report its version.
const ABI: std::ops::RangeInclusive<u64> = 3..=4;
const ABI_UNTOLD: u64 = 4;
/// How long to wait for the node: the query may make the kernel load the module, and udev then
/// needs a moment to create the node.
const NODE_WAIT: Duration = Duration::from_secs(2);
/// Set when udev has not created the node in time: later calls do not wait.
static WAITED: AtomicBool = AtomicBool::new(false);

type Path = FixedString<128>;

/// The device to open for an event channel.
#[derive(Debug)]
pub struct RdmaCm {
    /// Version of the kernel's command set, 3 or 4.
    pub abi: u64,
    /// The device number if the kernel reported it.
    rdev: Option<libc::dev_t>,
    path: Path,
}

impl RdmaCm {
    /// Finds the device through netlink, or else through sysfs.
    ///
    /// # Errors
    /// Fails with `EPERM` if the version of the command set is not supported. Fails with `EMFILE`
    /// or `ENFILE` if no descriptor is available, instead of assuming defaults: the result is kept
    /// for the life of the process.
    pub fn discover() -> Result<RdmaCm> {
        let found = match netlink::char_device(CLIENT) {
            Ok(device) => {
                let name = CStr::from_bytes_until_nul(&device.name).map_err(|_| Errno::EPROTO)?;
                let name = name.to_str().map_err(|_| Errno::EPROTO)?;
                RdmaCm { abi: device.abi, rdev: Some(device.rdev), path: in_folder(name)? }
            }
            Err(error @ (Errno::EMFILE | Errno::ENFILE)) => return Err(error),
            Err(_) => from_sysfs()?,
        };
        if ABI.contains(&found.abi) { Ok(found) } else { Err(Errno::EPERM) }
    }

    /// Opens the device, which creates an event channel. Waits for udev to create the node, unless
    /// an earlier call has timed out.
    pub fn open(&self) -> Result<OwnedFd> {
        match self.try_open() {
            Err(Errno::ENOENT) if self.may_appear() => self.open_when_made(),
            result => result,
        }
    }

    /// Returns whether udev may be about to create the node. Only udev creates /dev/char, which
    /// containers lack. Without the device number there is no sign that a node will be created.
    fn may_appear(&self) -> bool {
        self.rdev.is_some()
            && !WAITED.load(Ordering::Relaxed)
            && fs::metadata("/dev/char").is_ok()
            && fs::metadata(text(&self.path)).is_err()
    }

    fn open_when_made(&self) -> Result<OwnedFd> {
        let deadline = Instant::now() + NODE_WAIT;
        // Watch first, then check again, so that a node that is created in between is not missed.
        let watch = Watch::new()?;
        loop {
            match self.try_open() {
                Err(Errno::ENOENT) => {}
                result => return result,
            }
            let changed = watch.changed_before(deadline)?;
            // /dev/infiniband may have been created only now.
            watch.add_folders()?;
            if !changed {
                WAITED.store(true, Ordering::Relaxed);
                return self.try_open();
            }
        }
    }

    /// Like [`open`](Self::open), but does not wait for the node: for a device that has been open
    /// before.
    ///
    /// If the process lacks the permission to open the node, udev's link in /dev/char decides the
    /// error: EACCES if the link exists, otherwise ENOENT (docs/compatibility.md).
    pub fn try_open(&self) -> Result<OwnedFd> {
        match (open_node(text(&self.path), self.rdev), self.rdev) {
            (Err(Errno::ENOENT), Some(rdev)) => open_by_number(rdev),
            (Err(Errno::EACCES), Some(rdev)) => open_by_link(rdev),
            (result, _) => result,
        }
    }
}

fn text(path: &Path) -> &str {
    path.as_c_str().to_str().unwrap_or_default()
}

fn in_folder(name: &str) -> Result<Path> {
    Path::new(format_args!("/dev/infiniband/{name}"))
}

fn from_sysfs() -> Result<RdmaCm> {
    let mut abi = [0; 32];
    let mut dev = [0; 32];
    Ok(RdmaCm {
        abi: read_sysfs("abi_version", &mut abi).and_then(|text| text.parse().ok()).unwrap_or(ABI_UNTOLD),
        rdev: read_sysfs("dev", &mut dev).and_then(parse_dev),
        path: in_folder(NODE)?,
    })
}

/// Reads a file of the device in sysfs, without the newline.
fn read_sysfs<'a>(file: &str, buffer: &'a mut [u8]) -> Option<&'a str> {
    let mut file = SYSFS.iter().find_map(|class| {
        let path = Path::new(format_args!("{class}/{file}")).ok()?;
        File::open(text(&path)).ok()
    })?;
    let len = file.read(buffer).ok()?;
    str::from_utf8(buffer.get(..len)?).ok().map(str::trim)
}

/// Parses "major:minor" of a sysfs `dev` file.
fn parse_dev(text: &str) -> Option<libc::dev_t> {
    let (major, minor) = text.split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Opens `path` if it is the character device `rdev`, or any character device if `rdev` is `None`.
/// Fails with `ENOENT` if `path` is missing or another file.
fn open_node(path: &str, rdev: Option<libc::dev_t>) -> Result<OwnedFd> {
    let errno = |error: io::Error| Errno::new(error.raw_os_error().unwrap_or_default());
    let file = File::options().read(true).write(true).open(path).map_err(errno)?;
    let status = file.metadata().map_err(errno)?;
    let right = status.file_type().is_char_device() && rdev.is_none_or(|rdev| rdev == status.rdev());
    if right { Ok(file.into()) } else { Err(Errno::ENOENT) }
}

fn open_by_link(rdev: libc::dev_t) -> Result<OwnedFd> {
    let link = Path::new(format_args!("/dev/char/{}:{}", libc::major(rdev), libc::minor(rdev)))?;
    open_node(text(&link), Some(rdev))
}

/// Opens the node of device `rdev` by its device number.
fn open_by_number(rdev: libc::dev_t) -> Result<OwnedFd> {
    match open_by_link(rdev) {
        Err(Errno::ENOENT) => {}
        result => return result,
    }
    // SAFETY: a C string; the result is checked.
    let folder = unsafe { libc::opendir(c"/dev/infiniband".as_ptr()) };
    if folder.is_null() {
        return Err(Errno::last());
    }
    let mut found = Err(Errno::ENOENT);
    // SAFETY: `folder` is an open directory stream.
    while let Some(entry) = unsafe { libc::readdir(folder).as_ref() } {
        // SAFETY: the name of an entry is a C string.
        let name = unsafe { CStr::from_ptr(entry.d_name.as_ptr()) };
        // Opening a device has side effects, so only the node of the right device is opened.
        if let Some(path) = name.to_str().ok().and_then(|name| in_folder(name).ok())
            && has_number(text(&path), rdev)
        {
            found = open_node(text(&path), Some(rdev));
            break;
        }
    }
    // SAFETY: `folder` is an open directory stream, closed once.
    unsafe { libc::closedir(folder) };
    found
}

fn has_number(path: &str, rdev: libc::dev_t) -> bool {
    fs::metadata(path).is_ok_and(|status| status.rdev() == rdev)
}

/// inotify(7) instance: reports new files in /dev/infiniband, and the creation of the folder.
struct Watch(OwnFd);

impl Watch {
    fn new() -> Result<Watch> {
        // SAFETY: plain system call.
        let watch = Watch(OwnFd::new(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) })?);
        watch.add_folders()?;
        Ok(watch)
    }

    /// Watches the folders that exist. May be called again. Fails with `ENOENT` if no folder can be
    /// watched.
    fn add_folders(&self) -> Result<()> {
        let watching = [c"/dev/infiniband", c"/dev"].map(|folder| watch_folder(self.0.as_raw_fd(), folder));
        if watching.contains(&true) { Ok(()) } else { Err(Errno::ENOENT) }
    }

    /// Waits for a change or a signal. Returns false if neither occurs before the deadline.
    fn changed_before(&self, deadline: Instant) -> Result<bool> {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is one pollfd, as the count says.
        let ready = unsafe { libc::poll(&raw mut poll, 1, event::poll_time(Some(deadline))) };
        if ready < 0 && Errno::last() != Errno::EINTR {
            return Err(Errno::last());
        }
        let mut events = [0u8; 4096];
        // SAFETY: `events` is writable for its length. The events are discarded.
        unsafe { libc::read(self.0.as_raw_fd(), events.as_mut_ptr().cast(), events.len()) };
        // After a signal, the caller checks again and waits for the rest of the time.
        Ok(ready != 0)
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
        assert_eq!(parse_dev("10:127"), Some(libc::makedev(10, 127)));
        assert_eq!(parse_dev("10"), None);
        assert_eq!(parse_dev("10:x"), None);
    }

    #[test]
    fn another_file_at_the_path_is_not_opened() {
        let null = libc::makedev(1, 3);
        assert!(open_node("/dev/null", Some(null)).is_ok());
        assert_eq!(open_node("/dev/null", Some(null + 1)).err(), Some(Errno::ENOENT));
        assert_eq!(open_node("/", None).err().map(Errno::get), Some(libc::EISDIR));
        assert!(has_number("/dev/null", null));
        assert!(!has_number("/dev/zero", null));
        assert!(!has_number("/nowhere", null));
    }
}
