//! A question to ibacm: the path of a port to itself.

use std::fs;
use std::io::{Read, Result, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ibacm_messages::{HEADER_LEN, Header, PATH_DGID, PATH_RECORD_LEN, PATH_SGID, Request, TYPE_PATH};

use crate::devices::{CLASS, Port};

/// Answers come from a cache or after a query on the fabric, which ibacm gives up after six seconds.
const ANSWER_TIME: Duration = Duration::from_secs(8);

/// A connection to ibacm.
pub trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// Connects to ibacm's TCP port, or to its socket.
pub fn connect(number: Option<u16>, socket: &str) -> Result<Box<dyn Stream>> {
    if let Some(number) = number {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, number))?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        return Ok(Box::new(stream));
    }
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_TIME))?;
    Ok(Box::new(stream))
}

/// Asks for the path of a port to itself. Returns the status of the answer, `None` if none comes or
/// the library would reject it.
pub fn path_status(stream: &mut dyn Stream, port: &Port) -> Option<u8> {
    let mut head = [0; HEADER_LEN];
    stream.write_all(request(&gid(port)).as_bytes()).ok()?;
    stream.read_exact(&mut head).ok()?;
    let header = Header::parse(&head).ok()?;
    stream.read_exact(&mut vec![0; header.body_len]).ok()?;
    Some(header.status)
}

fn gid(port: &Port) -> [u8; 16] {
    let text = fs::read_to_string(format!("{CLASS}/{}/gids/0", port.path())).unwrap_or_default();
    text.trim().parse::<Ipv6Addr>().unwrap_or(Ipv6Addr::UNSPECIFIED).octets()
}

/// A request with a path record that has the GID at both ends.
fn request(gid: &[u8; 16]) -> Request {
    let mut path = [0; PATH_RECORD_LEN];
    path[PATH_DGID..PATH_DGID + 16].copy_from_slice(gid);
    path[PATH_SGID..PATH_SGID + 16].copy_from_slice(gid);
    let mut request = Request::new(0);
    request.push(0, TYPE_PATH, &path);
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_has_both_gids() {
        let request = request(&[7; 16]);
        let bytes = request.as_bytes();
        assert_eq!((bytes.len(), bytes[0], bytes[1]), (88, 1, 1));
        assert_eq!((bytes[31], bytes[32], bytes[63], bytes[64]), (0, 7, 7, 0));
    }
}
