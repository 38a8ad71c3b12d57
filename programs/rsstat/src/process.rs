//! The processes of the machine, as far as this user may inspect them.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::socket_table::{Entry, Header, NAME};

use crate::socket::{Socket, parse_header};

#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    pub command: String,
    /// The process's folder in /proc.
    pub folder: PathBuf,
}

/// Returns the processes with the PIDs in `wanted`, or all processes if `wanted` is empty, ordered
/// by PID.
pub fn all(wanted: &[u32]) -> io::Result<Vec<Process>> {
    let mut pids: Vec<u32> = fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| wanted.is_empty() || wanted.contains(pid))
        .collect();
    pids.sort_unstable();
    Ok(pids.into_iter().map(Process::new).collect())
}

impl Process {
    fn new(pid: u32) -> Process {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let command = fs::read_to_string(folder.join("comm")).unwrap_or_default();
        // A process can give itself any name, which must not control the terminal.
        let command = command.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        Process { pid, command, folder }
    }

    /// Returns the descriptors with the files that they refer to. The list is empty if the process
    /// has ended or is another user's.
    pub fn descriptors(&self) -> Vec<(i32, PathBuf)> {
        let Ok(entries) = fs::read_dir(self.folder.join("fd")) else { return Vec::new() };
        entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                Some((entry.file_name().to_str()?.parse().ok()?, fs::read_link(entry.path()).ok()?))
            })
            .collect()
    }

    /// Adds the process's rsockets to `sockets`.
    pub fn add_rsockets(&self, descriptors: &[(i32, PathBuf)], sockets: &mut Vec<Socket>) {
        let name = format!("/memfd:{} (deleted)", NAME.to_string_lossy());
        for (fd, file) in descriptors {
            if file == Path::new(&name) {
                // A process that has ended meanwhile has no rsockets.
                let _ = self.add_table(*fd, sockets);
            }
        }
    }

    fn add_table(&self, fd: i32, sockets: &mut Vec<Socket>) -> io::Result<()> {
        // The descriptor may refer to another file by now: opening a FIFO must not wait for a
        // writer, and a terminal must not become this program's controlling terminal.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.folder.join(format!("fd/{fd}")))?;
        let mut header = [0; size_of::<Header>()];
        file.read_exact_at(&mut header, 0)?;
        // A child of fork(2) inherits its parent's table until it executes another program.
        let Some((_, entries)) = parse_header(&header).filter(|(pid, _)| self.own_pid() == Some(*pid)) else {
            return Ok(());
        };
        let mut bytes = vec![0; entries * size_of::<Entry>()];
        file.read_exact_at(&mut bytes, size_of::<Header>() as u64)?;
        let entries = bytes.chunks_exact(size_of::<Entry>());
        sockets.extend(entries.filter_map(|entry| Socket::parse(entry, self.pid, &self.command)));
        Ok(())
    }

    /// Returns the PID that the process has in its own PID namespace.
    fn own_pid(&self) -> Option<u32> {
        let status = fs::read_to_string(self.folder.join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        match line {
            Some(pids) => pids.split_whitespace().next_back()?.parse().ok(),
            // A kernel without PID namespaces.
            None => Some(self.pid),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_fifo_behind_a_reused_descriptor_does_not_block() {
        let folder = std::env::temp_dir().join(format!("rsstat-fifo.{}", std::process::id()));
        fs::create_dir_all(folder.join("fd")).unwrap();
        let path = CString::new(folder.join("fd/5").as_os_str().as_bytes()).unwrap();
        // SAFETY: `path` is a C string.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        let process = Process { pid: 1, command: String::new(), folder: folder.clone() };
        let (done, ended) = mpsc::channel();
        thread::spawn(move || done.send(process.add_table(5, &mut Vec::new()).is_err()));
        let result = ended.recv_timeout(Duration::from_secs(10));
        fs::remove_dir_all(folder).unwrap();
        assert_eq!(result, Ok(true));
    }
}
