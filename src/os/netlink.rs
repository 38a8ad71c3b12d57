//! RDMA netlink (`rdma/rdma_netlink.h`): queries the character device of a client of the kernel's
//! RDMA core.

use std::ffi::{CStr, c_int};
use std::os::fd::AsRawFd;

use base::netlink::{self, Attributes, MESSAGE_HEADER, Messages};
use libc::{NLM_F_ACK, NLM_F_REQUEST, NLMSG_ERROR};
use smallvec::{SmallVec, smallvec};

use crate::errno::{Errno, Result};
use crate::os::library_fds::{self, OwnFd};
use crate::os::uapi::{
    RDMA_NL_NLDEV, RDMA_NLDEV_ATTR_CHARDEV, RDMA_NLDEV_ATTR_CHARDEV_ABI, RDMA_NLDEV_ATTR_CHARDEV_NAME,
    RDMA_NLDEV_ATTR_CHARDEV_TYPE, RDMA_NLDEV_CMD_GET_CHARDEV,
};

/// Message type (`RDMA_NL_GET_TYPE`): the client in bits 10 and up, the operation in the bits
/// below.
const GET_CHARDEV: u16 = ((RDMA_NL_NLDEV << 10) + RDMA_NLDEV_CMD_GET_CHARDEV) as u16;
/// Size of the receive buffer: the kernel answers with one message of its default size at most.
const ANSWER: usize = 4096;

/// A character device, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CharDev {
    /// Device number.
    pub rdev: libc::dev_t,
    /// Version of its command set.
    pub abi: u64,
    /// Name of the node in /dev/infiniband, at most 63 bytes.
    pub name: [u8; 64],
}

/// Queries the character device of `client`, such as "rdma_cm".
///
/// # Errors
/// Fails with the kernel's error; kernels before 5.1 do not support the query.
pub fn char_device(client: &CStr) -> Result<CharDev> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    let socket = OwnFd::new(library_fds::socket(libc::AF_NETLINK, kind, libc::NETLINK_RDMA))?;
    let request = request(client);
    // SAFETY: `request` is readable for its length; an unconnected netlink socket sends to the
    // kernel.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), libc::MSG_NOSIGNAL) };
    if sent < 0 {
        return Err(Errno::last());
    }
    let mut answer = [0; ANSWER];
    // The kernel has answered before send(2) returns, so recv(2) does not wait.
    // SAFETY: `answer` is writable for its length.
    let got = unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    let got = usize::try_from(got).map_err(|_| Errno::last())?;
    parse_answer(&answer[..got.min(ANSWER)])
}

fn request(client: &CStr) -> SmallVec<[u8; 64]> {
    let mut request = smallvec![0; MESSAGE_HEADER];
    netlink::push_attribute(&mut request, RDMA_NLDEV_ATTR_CHARDEV_TYPE as u16, client.to_bytes_with_nul());
    netlink::write_header(&mut request, GET_CHARDEV, (NLM_F_REQUEST | NLM_F_ACK) as u16, 1, 0);
    request
}

/// Parses the answer.
///
/// # Errors
/// Fails with the errno in an error message of the kernel, and with `EPROTO` if the answer is
/// invalid.
pub fn parse_answer(answer: &[u8]) -> Result<CharDev> {
    let message = Messages(answer).next().ok_or(Errno::EPROTO)?;
    if c_int::from(message.kind) == NLMSG_ERROR {
        let code = message.payload.first_chunk::<4>().ok_or(Errno::EPROTO)?;
        return Err(Errno::new(i32::from_ne_bytes(*code).wrapping_neg()));
    }
    if message.kind != GET_CHARDEV {
        return Err(Errno::EPROTO);
    }
    let (mut rdev, mut abi, mut name) = (None, None, None);
    for attribute in Attributes(message.payload) {
        let (kind, value) = attribute.map_err(|_| Errno::EPROTO)?;
        match u32::from(kind) {
            RDMA_NLDEV_ATTR_CHARDEV => rdev = Some(number(value)?),
            RDMA_NLDEV_ATTR_CHARDEV_ABI => abi = Some(number(value)?),
            RDMA_NLDEV_ATTR_CHARDEV_NAME => name = Some(string(value)?),
            _ => {}
        }
    }
    match (rdev, abi, name) {
        (Some(rdev), Some(abi), Some(name)) => Ok(CharDev { rdev: decode_dev(rdev), abi, name }),
        _ => Err(Errno::EPROTO),
    }
}

fn number(value: &[u8]) -> Result<u64> {
    value.try_into().map(u64::from_ne_bytes).map_err(|_| Errno::EPROTO)
}

/// Returns a name. Fails with `EPROTO` if it is empty, too long, or not a single path component.
fn string(value: &[u8]) -> Result<[u8; 64]> {
    let text = value.strip_suffix(b"\0").unwrap_or(value);
    let mut name = [0; 64];
    if text.is_empty() || text.len() >= name.len() || text.contains(&0) || text.contains(&b'/') {
        return Err(Errno::EPROTO);
    }
    name[..text.len()].copy_from_slice(text);
    Ok(name)
}

/// Decodes a device number from the kernel's `huge_encode_dev`: 12 bits of the major number from
/// bit 8 on, the minor number in the bits around them.
fn decode_dev(code: u64) -> libc::dev_t {
    let major = (code >> 8) & 0xfff;
    let minor = (code & 0xff) | ((code >> 12) & 0xf_ff00);
    libc::makedev(major as u32, minor as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer of a 6.1 kernel in the lab.
    const ANSWERED: [u8; 60] = [
        60, 0, 0, 0, 0x0f, 0x14, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0x0c, 0, 0x48, 0, 0x7f, 0x0a, 0, 0, 0, 0, 0,
        0, 4, 0, 0, 0, 0x0c, 0, 0x47, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0x0c, 0, 0x46, 0, b'r', b'd', b'm', b'a', b'_', b'c',
        b'm', 0,
    ];

    #[test]
    fn answer_of_a_kernel() {
        let device = parse_answer(&ANSWERED);
        let mut name = [0; 64];
        name[..7].copy_from_slice(b"rdma_cm");
        assert_eq!(device, Ok(CharDev { rdev: libc::makedev(10, 127), abi: 4, name }));
    }

    #[test]
    fn truncated_answers_are_refused() {
        for length in 0..ANSWERED.len() {
            assert_eq!(parse_answer(&ANSWERED[..length]).err(), Some(Errno::EPROTO), "{length} bytes");
        }
    }

    #[test]
    fn name_with_a_path_is_refused() {
        let mut answer = ANSWERED;
        answer[53] = b'/';
        assert_eq!(parse_answer(&answer).err(), Some(Errno::EPROTO));
    }

    #[test]
    fn error_message_becomes_errno() {
        let mut answer = [0; 36];
        answer[0] = 36;
        answer[4] = 2;
        answer[16..20].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
        assert_eq!(parse_answer(&answer).err(), Some(Errno::EPERM));
    }

    #[test]
    fn request_as_the_kernel_reads_it() {
        let request = request(c"rdma_cm");
        assert_eq!(request[..8], [28, 0, 0, 0, 0x0f, 0x14, 5, 0]);
        assert_eq!(request[16..], *b"\x0c\0\x45\0rdma_cm\0");
    }

    #[test]
    fn large_device_numbers() {
        assert_eq!(decode_dev((1 << 20) | (231 << 8) | 0xc1), libc::makedev(231, 0x1c1));
    }
}
