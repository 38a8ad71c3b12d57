//! A question to ibacm: the path of a port to itself.

use std::fs;
use std::io::{Read, Result, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

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

/// Asks for the path of a port to itself. Returns the status of the answer, `None` if none comes.
pub fn path_status(stream: &mut dyn Stream, port: &Port) -> Option<u8> {
    let mut answer = [0; 16];
    stream.write_all(&request(&gid(port))).ok()?;
    stream.read_exact(&mut answer).ok()?;
    let rest = usize::from(u16::from_ne_bytes([answer[6], answer[7]])).saturating_sub(answer.len());
    stream.read_exact(&mut vec![0; rest]).ok()?;
    Some(answer[2])
}

fn gid(port: &Port) -> [u8; 16] {
    let text = fs::read_to_string(format!("{CLASS}/{}/gids/0", port.path())).unwrap_or_default();
    text.trim().parse::<Ipv6Addr>().unwrap_or(Ipv6Addr::UNSPECIFIED).octets()
}

/// The request: a header (version 1, opcode 1: resolve, length 88) and a record of type 16, a path
/// record with both GIDs.
fn request(gid: &[u8; 16]) -> [u8; 88] {
    const TYPE_PATH: u16 = 16;
    let mut bytes = [0; 88];
    (bytes[0], bytes[1]) = (1, 1);
    bytes[6..8].copy_from_slice(&88u16.to_ne_bytes());
    bytes[20..22].copy_from_slice(&TYPE_PATH.to_ne_bytes());
    // A path record begins with eight reserved bytes, the destination's and the source's GID.
    bytes[32..48].copy_from_slice(gid);
    bytes[48..64].copy_from_slice(gid);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_has_both_gids() {
        let bytes = request(&[7; 16]);
        assert_eq!((bytes[31], bytes[32], bytes[63], bytes[64]), (0, 7, 7, 0));
    }
}
