//! Notifications to systemd: sd_notify(3), which sends one datagram.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `state` to the service manager. Does nothing if the daemon was started without
/// `NOTIFY_SOCKET`.
pub fn notify(state: &str) -> io::Result<()> {
    match env::var_os("NOTIFY_SOCKET") {
        Some(path) if !path.is_empty() => send(&path, state),
        _ => Ok(()),
    }
}

fn send(path: &OsStr, state: &str) -> io::Result<()> {
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_arrives_by_path_and_by_name() {
        let name = format!("iwpmd-test-{}", std::process::id());
        let path = env::temp_dir().join(&name);
        for (socket, to) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
                format!("@{name}").into(),
            ),
        ] {
            send(&to, "READY=1").unwrap();
            let mut buffer = [0; 20];
            let got = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..got], b"READY=1");
        }
        std::fs::remove_file(path).unwrap();
    }
}
