//! The likely reason of a failure, in words. Pure: what it depends on is in [`Facts`].

use std::ffi::c_int;
use std::fmt;

use super::facts::{Access, Facts};
use crate::errno::Errno;
use crate::ffi::rdma_cm_event_type::{self, *};

/// Words, and a number that some of them need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    words: &'static str,
    /// The limit of locked memory, bytes.
    memlock: Option<u64>,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words)?;
        match self.memlock {
            Some(limit) => write!(f, "; or the limit of locked memory, {} kB, is too low (ulimit -l)", limit / 1024),
            None => Ok(()),
        }
    }
}

impl From<&'static str> for Reason {
    fn from(words: &'static str) -> Reason {
        Reason { words, memlock: None }
    }
}

/// Calls that open a channel: what is wrong with it may be the reason.
fn opens_channel(name: &str) -> bool {
    matches!(
        name,
        "rdma_create_event_channel"
            | "rdma_create_id"
            | "rdma_create_ep"
            | "rdma_migrate_id"
            | "rdma_get_devices"
            | "rsocket"
    )
}

/// Whether [`Facts::access`] matters.
pub fn asks_for_access(name: &str, error: Errno) -> bool {
    opens_channel(name)
        && matches!(error.get(), libc::ENODEV | libc::ENOENT | libc::EACCES | libc::EPERM | libc::ENOMEM | libc::ENXIO)
}

/// Why a call failed.
pub fn of_call(name: &str, error: Errno, facts: &Facts) -> Reason {
    if asks_for_access(name, error)
        && let Some(words) = of_access(facts.access)
    {
        return words.into();
    }
    if facts.null && error == Errno::EINVAL {
        return "the id is NULL".into();
    }
    let special = match name {
        "rdma_bind_addr" | "rbind" => of_bind(error),
        "rdma_resolve_addr" => of_address(error),
        "rdma_resolve_route" => of_route(error),
        "rdma_connect" | "rdma_create_ep" => of_connect(error).or(of_address(error)),
        "rconnect" if error == Errno::ECONNREFUSED => Some(
            "the peer rejected: nobody listens at that address and port, or who does refused or speaks no rsockets",
        ),
        "rconnect" if facts.device => of_connect(error),
        "rconnect" => of_datagram(error).or(of_address(error)),
        "rsend" | "rwrite" | "rsendto" | "rsendmsg" | "rsendv" | "rwritev" => of_datagram(error).or(of_address(error)),
        "rrecv" | "rread" | "rrecvfrom" | "rrecvmsg" | "rrecvv" | "rreadv" => of_datagram(error),
        "rdma_listen" | "rlisten" => of_listen(error),
        "rdma_get_request" => (error == Errno::ECONNREFUSED).then_some("the connection ended before it was accepted"),
        _ => None,
    };
    match special {
        Some(words) => words.into(),
        None => general(name, error, facts),
    }
}

fn of_access(access: Access) -> Option<&'static str> {
    match access {
        Access::Fine => None,
        Access::NoDevices => Some(
            "this machine has no RDMA device: its driver is not loaded (lspci -k, rdma link show), or no software device was made",
        ),
        Access::NoNode => {
            Some("there is no /dev/infiniband/rdma_cm: the kernel's module rdma_ucm is not loaded (modprobe rdma_ucm)")
        }
        Access::Forbidden => {
            Some("no permission for /dev/infiniband/rdma_cm: it must be readable and writable for this user")
        }
    }
}

fn of_bind(error: Errno) -> Option<&'static str> {
    Some(match error.get() {
        libc::ENODEV | libc::EADDRNOTAVAIL => {
            "no RDMA interface of this machine has that address: is it set, and the link up (ip addr, rdma link show)?"
        }
        libc::EADDRINUSE => "another id or rsocket has that port already",
        libc::EACCES => "ports below 1024 are for root (CAP_NET_BIND_SERVICE)",
        libc::EINVAL => "it is bound already, or the address is not a valid one",
        _ => return None,
    })
}

fn of_address(error: Errno) -> Option<&'static str> {
    Some(match error.get() {
        libc::ENODEV | libc::EADDRNOTAVAIL => {
            "the way to that address leads over no RDMA interface of this machine (ip route get, rdma link show)"
        }
        libc::ENETUNREACH | libc::EHOSTUNREACH => {
            "there is no route to that address, or its neighbour did not answer ARP or neighbour discovery (ip route get, ip neigh)"
        }
        libc::ETIMEDOUT => "the neighbour is unresolved: nobody answered ARP or neighbour discovery in time (ip neigh)",
        libc::ENETDOWN => "the interface on the way to that address is down (ip link)",
        _ => return None,
    })
}

fn of_route(error: Errno) -> Option<&'static str> {
    Some(match error.get() {
        libc::ETIMEDOUT => "no path in time: on InfiniBand, does the subnet manager run?",
        libc::ENODEV | libc::EADDRNOTAVAIL => {
            "the port has no GID for the local address yet, or the device is gone (rdma link show)"
        }
        _ => return None,
    })
}

fn of_connect(error: Errno) -> Option<&'static str> {
    Some(match error.get() {
        libc::ECONNREFUSED => {
            "the peer rejected: nobody listens at that address and port, or the program there refused"
        }
        libc::ETIMEDOUT | libc::EHOSTUNREACH => {
            "the peer did not answer: is the host up, and does a firewall let RDMA through (RoCE: UDP port 4791; iWARP: the TCP port)?"
        }
        libc::ECONNRESET => "the peer ended the connection while it was being made",
        libc::EPROTO => "the peer does not speak the transport's protocol as expected",
        _ => return None,
    })
}

/// Errors of datagram rsockets; of streams the first, when it is a call after rconnect() that reports it.
fn of_datagram(error: Errno) -> Option<&'static str> {
    Some(match error.get() {
        libc::ECONNREFUSED => {
            "nobody listens at the address and port that it was connected to, or that a datagram before was sent to"
        }
        libc::EDESTADDRREQ => "neither an address was given nor is the rsocket connected",
        libc::EPROTONOSUPPORT => "that device has no datagrams: iWARP",
        libc::EMSGSIZE => "a datagram may have 2048 bytes, less its header of 8 (IPv4) or 24",
        _ => return None,
    })
}

fn of_listen(error: Errno) -> Option<&'static str> {
    Some(match error.get() {
        libc::EADDRINUSE => "somebody else listens on that address and port",
        libc::EINVAL => "it listens already, is connected, or is not bound",
        _ => return None,
    })
}

fn takes_memory(name: &str) -> bool {
    name.starts_with("rdma_create_")
        || name.starts_with("rio")
        || matches!(name, "rconnect" | "raccept" | "rsend" | "rsocket")
}

fn general(name: &str, error: Errno, facts: &Facts) -> Reason {
    let rsocket = !name.starts_with("rdma_");
    let words = match error.get() {
        libc::ENOMEM if takes_memory(name) => {
            return Reason {
                words: "memory, or queue entries beyond what the device can, ran out",
                memlock: facts.memlock,
            };
        }
        libc::ENOMEM => "memory ran out",
        libc::EMFILE => "the process has as many descriptors as it may (ulimit -n)",
        libc::ENFILE => "the machine has as many open files as it may",
        libc::EBADF if rsocket => {
            "no rsocket of this process has that number, or it does not do this (a socket of the parent's after fork()?)"
        }
        libc::EBADF => "the channel is closed, or not this process's",
        libc::EFAULT => "a pointer is NULL or leads nowhere",
        libc::EINVAL if rsocket => "an argument is invalid, or the rsocket's state does not allow it",
        libc::EINVAL => "an argument is NULL or invalid, or the id's state does not allow it",
        libc::ENODEV => "no device: it was removed, or the id has none yet",
        libc::ENETDOWN => "the RDMA device was removed, or the interface is down",
        libc::ENOTCONN => "it is not connected",
        libc::EISCONN => "it is connected already",
        libc::EPIPE | libc::ECONNRESET => "the connection is over: the peer closed it or is gone",
        libc::ECONNABORTED => "the connection was ended because the peer broke the rules of rsockets",
        libc::ETIMEDOUT => "the peer stopped answering",
        libc::EPERM => "the kernel refuses: a command set that is not known here, or no permission",
        libc::EACCES => "the kernel refuses: no permission",
        libc::ENOSYS | libc::ENOTSUP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT => "not supported here",
        libc::ENOPROTOOPT => "there is no such option",
        libc::EMSGSIZE => "the message is too long",
        libc::ENOSPC => "the device has no room for more",
        libc::EIO => "the kernel or the device failed",
        libc::EAGAIN => "it would have to wait",
        libc::EINPROGRESS | libc::EALREADY => "it goes on in the background",
        libc::EINTR => "a signal came",
        _ => "no more is known",
    };
    words.into()
}

/// Name and meaning of what getaddrinfo(3) returns.
pub fn of_name(code: c_int) -> (&'static str, &'static str) {
    match code {
        libc::EAI_NONAME => ("EAI_NONAME", "neither the host's name nor the service is known"),
        libc::EAI_AGAIN => ("EAI_AGAIN", "the name servers do not answer"),
        libc::EAI_FAIL => ("EAI_FAIL", "the name servers refuse"),
        libc::EAI_SERVICE => ("EAI_SERVICE", "the service is not known"),
        libc::EAI_FAMILY => ("EAI_FAMILY", "the address family is not supported"),
        libc::EAI_MEMORY => ("EAI_MEMORY", "memory ran out"),
        libc::EAI_BADFLAGS => ("EAI_BADFLAGS", "the hints' flags are invalid"),
        _ => ("EAI_*", "see gai_strerror(3)"),
    }
}

/// What an event means whose status is not 0, or that is bad news by itself.
pub fn of_event(event: u32, status: c_int, iwarp: bool, facts: &Facts) -> Reason {
    let error = Errno::new(status.saturating_abs());
    let words = match rdma_cm_event_type::from_number(event) {
        Some(RDMA_CM_EVENT_ADDR_ERROR) => of_address(error),
        Some(RDMA_CM_EVENT_ROUTE_ERROR) => of_route(error),
        Some(RDMA_CM_EVENT_REJECTED) if status > 0 && !iwarp => return of_reject(status).into(),
        Some(RDMA_CM_EVENT_REJECTED) if error == Errno::ECONNRESET => {
            Some("the peer rejected: the program there refused")
        }
        Some(RDMA_CM_EVENT_REJECTED) => of_connect(error).or(Some("the peer rejected")),
        Some(RDMA_CM_EVENT_UNREACHABLE) if status == 0 => of_connect(Errno::ETIMEDOUT),
        Some(RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_CONNECT_ERROR) => of_connect(error),
        Some(RDMA_CM_EVENT_DEVICE_REMOVAL) => Some("the RDMA device is being removed"),
        Some(RDMA_CM_EVENT_MULTICAST_ERROR) => Some("the multicast group could not be joined, or was lost"),
        Some(RDMA_CM_EVENT_ADDRINFO_ERROR) => Some("the service was not found"),
        _ => None,
    };
    match words {
        Some(words) => words.into(),
        None => general("rdma_create_qp", error, facts),
    }
}

/// Reasons of a reject of InfiniBand and RoCE (IBTA volume 1, 12.6.7.2).
fn of_reject(reason: c_int) -> &'static str {
    match reason {
        1 => "the peer rejected: it has no QP left",
        3 => "the peer rejected: it lacks resources",
        4 => "the peer rejected: it gave up waiting",
        6 | 7 => "the peer rejected: the connection is not known there",
        8 => "the peer rejected: nobody listens there (no such service id)",
        9 => "the peer rejected: its transport is another one",
        10 => "the peer rejected: it already has a connection with that id or QP",
        12..=18 => "the peer rejected: the addresses or the path do not fit there",
        24 | 25 => "the peer rejected: it is to be reached at another port or path",
        26 => "the peer rejected: it does not do so many RDMA reads",
        28 => "the peer rejected: the program there refused",
        30 | 31 => "the peer rejected: its version of the connection manager is another one",
        35 => "the peer rejected: the enhanced connection options do not fit",
        _ => "the peer rejected",
    }
}

/// Name and meaning of a work completion's status (`enum ibv_wc_status`).
pub fn of_completion(status: u32) -> (&'static str, &'static str) {
    match status {
        1 => ("LOC_LEN_ERR", "a message was longer than its buffer"),
        2 => ("LOC_QP_OP_ERR", "the device could not do it"),
        4 => ("LOC_PROT_ERR", "the device may not use that memory"),
        5 => ("WR_FLUSH_ERR", "the connection is over"),
        8 => ("LOC_ACCESS_ERR", "the peer may not use that memory"),
        9 => ("REM_INV_REQ_ERR", "the peer's device refused the request"),
        10 => ("REM_ACCESS_ERR", "the peer has taken its memory back, or broke the rules of rsockets"),
        11 => ("REM_OP_ERR", "the peer's device failed"),
        12 => (
            "RETRY_EXC_ERR",
            "the peer stopped answering: is its host up, the link, and does a firewall let RDMA through?",
        ),
        13 => ("RNR_RETRY_EXC_ERR", "the peer posted no receives"),
        21 => ("GENERAL_ERR", "the device failed"),
        _ => ("another status", "see enum ibv_wc_status"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Facts = Facts { access: Access::Fine, memlock: None, device: false, null: false };

    fn call(name: &str, errno: c_int, facts: Facts) -> String {
        of_call(name, Errno::new(errno), &facts).to_string()
    }

    #[test]
    fn channels() {
        let with = |access| Facts { access, ..ALONE };
        for name in ["rdma_create_event_channel", "rsocket"] {
            assert!(call(name, libc::ENODEV, with(Access::NoDevices)).contains("no RDMA device"));
            assert!(call(name, libc::ENOENT, with(Access::NoNode)).contains("modprobe rdma_ucm"));
            assert!(
                call(name, libc::EACCES, with(Access::Forbidden)).contains("no permission for /dev/infiniband/rdma_cm")
            );
        }
        // A synchronous id has no other errno for it.
        assert!(call("rdma_create_id", libc::ENOMEM, with(Access::Forbidden)).contains("no permission"));
        assert!(call("rdma_create_id", libc::ENOMEM, ALONE).contains("memory"));
        assert!(!asks_for_access("rdma_bind_addr", Errno::ENODEV));
    }

    #[test]
    fn addresses() {
        assert!(call("rbind", libc::EADDRNOTAVAIL, ALONE).starts_with("no RDMA interface"));
        assert!(call("rdma_resolve_addr", libc::ETIMEDOUT, ALONE).starts_with("the neighbour is unresolved"));
        assert!(call("rconnect", libc::ETIMEDOUT, ALONE).starts_with("the neighbour is unresolved"));
        let device = Facts { device: true, ..ALONE };
        assert!(call("rconnect", libc::ETIMEDOUT, device).starts_with("the peer did not answer"));
        assert!(call("rconnect", libc::ECONNREFUSED, device).contains("nobody listens"));
        assert!(call("rconnect", libc::ECONNREFUSED, ALONE).contains("nobody listens"));
        assert!(call("rrecvfrom", libc::ECONNREFUSED, ALONE).starts_with("nobody listens"));
        assert!(call("rsendto", libc::ENETUNREACH, ALONE).starts_with("there is no route"));
        assert!(call("rconnect", libc::EPROTONOSUPPORT, ALONE).contains("iWARP"));
    }

    #[test]
    fn locked_memory() {
        let facts = Facts { memlock: Some(65536), ..ALONE };
        assert!(call("rdma_create_qp", libc::ENOMEM, facts).contains("limit of locked memory, 64 kB"));
        assert!(!call("rdma_create_qp", libc::ENOMEM, ALONE).contains("locked memory"));
        assert!(!call("rdma_get_cm_event", libc::ENOMEM, facts).contains("locked memory"));
    }

    #[test]
    fn events() {
        let event = |kind: rdma_cm_event_type, status, iwarp| of_event(kind as u32, status, iwarp, &ALONE).to_string();
        assert!(event(RDMA_CM_EVENT_REJECTED, 8, false).contains("nobody listens"));
        assert!(event(RDMA_CM_EVENT_REJECTED, 28, false).contains("refused"));
        assert!(event(RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED, true).contains("nobody listens"));
        assert!(event(RDMA_CM_EVENT_REJECTED, -libc::ECONNRESET, true).contains("refused"));
        assert_eq!(event(RDMA_CM_EVENT_REJECTED, 99, false), "the peer rejected");
        assert!(event(RDMA_CM_EVENT_ADDR_ERROR, -libc::ETIMEDOUT, false).contains("neighbour"));
        assert!(event(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT, false).contains("firewall"));
        assert!(event(RDMA_CM_EVENT_DEVICE_REMOVAL, 0, false).contains("removed"));
    }

    #[test]
    fn every_errno_has_words() {
        for name in ["rdma_connect", "rsend", "rdma_create_qp"] {
            assert!((1..134).all(|errno| !call(name, errno, ALONE).is_empty()));
        }
    }
}
