//! The likely reason for a failure, as text. The text depends only on the errno or status, and on
//! [`Facts`].

use std::ffi::c_int;
use std::fmt;

use super::facts::Facts;
use crate::errno::Errno;
use crate::ffi::rdma_cm_event_type::{self, *};

/// The text of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    text: &'static str,
    /// The limit of locked memory in bytes, if it may be the reason.
    memlock: Option<u64>,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)?;
        match self.memlock {
            Some(limit) => write!(f, "; or the limit of locked memory, {} kB, is too low (ulimit -l)", limit / 1024),
            None => Ok(()),
        }
    }
}

impl From<&'static str> for Reason {
    fn from(text: &'static str) -> Reason {
        Reason { text, memlock: None }
    }
}

/// Returns whether the reason depends on [`Facts::access`]: the call opens an event channel or a
/// device.
pub fn depends_on_access(name: &str, error: Errno) -> bool {
    let opens_device = matches!(
        name,
        "rdma_create_event_channel"
            | "rdma_create_id"
            | "rdma_create_ep"
            | "rdma_migrate_id"
            | "rdma_get_devices"
            | "rdma_getaddrinfo"
            | "rdma_bind_addr"
            | "rdma_resolve_addr"
            | "rsocket"
            | "rbind"
            | "rconnect"
    );
    opens_device
        && matches!(
            error.get(),
            libc::ENODEV | libc::ENOENT | libc::EACCES | libc::EPERM | libc::ENOMEM | libc::ENXIO | libc::EADDRNOTAVAIL
        )
}

const LOOPBACK: &str =
    "loopback has no RDMA: use the address of an RDMA interface, for connections of the machine with itself too";

/// Returns the reason for the failure of a call.
pub fn of_call(name: &str, error: Errno, facts: &Facts) -> Reason {
    if let Some(text) = facts.access {
        return text.into();
    }
    if facts.loopback && matches!(error.get(), libc::ENODEV | libc::EADDRNOTAVAIL) {
        return LOOPBACK.into();
    }
    if facts.null && error == Errno::EINVAL {
        return "the id is NULL".into();
    }
    let special = match name {
        "rdma_bind_addr" | "rbind" => of_bind(error, facts),
        "rdma_resolve_addr" => of_address(error),
        "rdma_resolve_route" => of_route(error),
        "rdma_connect" | "rdma_create_ep" => of_connect(error).or(of_address(error)),
        "rconnect" if error == Errno::ECONNREFUSED => Some(
            "rejected by the peer: nobody listens at that address and port, or the listener refused or is no rsocket",
        ),
        "rconnect" if facts.device => of_connect(error),
        "rconnect" => of_datagram(error).or(of_address(error)),
        "rsend" | "rwrite" | "rsendto" | "rsendmsg" | "rsendv" | "rwritev" => of_datagram(error).or(of_address(error)),
        "rrecv" | "rread" | "rrecvfrom" | "rrecvmsg" | "rrecvv" | "rreadv" => of_datagram(error),
        "rdma_listen" | "rlisten" => of_listen(error),
        "rdma_get_request" => (error == Errno::ECONNREFUSED).then_some("the connection ended before it was accepted"),
        _ => None,
    };
    special.map_or_else(|| general(name, error, facts), Reason::from)
}

// Why the process cannot use RDMA devices (`Facts::access`).

/// The kernel has no RDMA device.
pub const NO_DEVICES: &str = "this machine has no RDMA device: its driver is not loaded (lspci -k, rdma link show), or no software device was added; or each device belongs to one network namespace, and none to this one (rdma system show)";
/// The kernel has no connection manager for programs.
pub const NO_MODULE: &str =
    "there is no /dev/infiniband/rdma_cm: the kernel's module rdma_ucm is not loaded (modprobe rdma_ucm)";
/// The kernel has a connection manager, but /dev/infiniband/rdma_cm does not exist.
pub const NO_NODE: &str = "there is no /dev/infiniband/rdma_cm, although the kernel has it: was a container given the device files (docker: --device=/dev/infiniband)? Is udev running?";
/// The process has no permission to open /dev/infiniband/rdma_cm.
pub const FORBIDDEN: &str = "no permission for /dev/infiniband/rdma_cm: it must be readable and writable for this user";
/// No device has a file /dev/infiniband/uverbs*.
pub const NO_VERBS_NODE: &str = "there is no /dev/infiniband/uverbs*: the kernel's module ib_uverbs is not loaded (modprobe ib_uverbs), or a container did not get the device files";
/// The process has no permission to open any /dev/infiniband/uverbs*.
pub const VERBS_FORBIDDEN: &str =
    "no permission for /dev/infiniband/uverbs*: the device's file must be readable and writable for this user";

/// Returns whether the reason depends on [`Facts::local`].
pub fn depends_on_address(name: &str, error: Errno) -> bool {
    matches!(name, "rdma_bind_addr" | "rbind") && error == Errno::EADDRNOTAVAIL
}

fn of_bind(error: Errno, facts: &Facts) -> Option<&'static str> {
    Some(match error.get() {
        libc::EADDRNOTAVAIL if facts.local => {
            "another id or rsocket uses that port, and one of the two addresses is a wildcard"
        }
        libc::ENODEV | libc::EADDRNOTAVAIL => {
            "no RDMA interface of this machine has that address: is it set, and the link up (ip addr, rdma link show)?"
        }
        libc::EADDRINUSE => "another id or rsocket already uses that port",
        libc::EACCES => "ports below 1024 are reserved for root (CAP_NET_BIND_SERVICE)",
        libc::EINVAL => "it is bound already, or the address is invalid",
        _ => return None,
    })
}

fn of_address(error: Errno) -> Option<&'static str> {
    Some(match error.get() {
        libc::ENODEV | libc::EADDRNOTAVAIL => {
            "the route to that address uses no RDMA interface of this machine (ip route get, rdma link show)"
        }
        libc::ENETUNREACH | libc::EHOSTUNREACH => {
            "there is no route to that address, or its neighbour did not answer ARP or neighbour discovery (ip route get, ip neigh)"
        }
        libc::ETIMEDOUT => {
            "the neighbour is unresolved: nobody answered ARP or neighbour discovery in time (ip neigh); on InfiniBand, are both ports members of the interface's partition?"
        }
        libc::ENETDOWN => "the interface of the route to that address is down (ip link)",
        _ => return None,
    })
}

fn of_route(error: Errno) -> Option<&'static str> {
    Some(match error.get() {
        libc::ETIMEDOUT => "no path was resolved in time: on InfiniBand, is the subnet manager running?",
        libc::EINVAL => {
            "no path to that address: on InfiniBand, is the peer's port active and in the same partition, one of both as a full member, and is the subnet manager running? Or the id's address is not resolved"
        }
        libc::ENODEV | libc::EADDRNOTAVAIL => {
            "the port has no GID for the local address yet, or the device is gone (rdma link show)"
        }
        _ => return None,
    })
}

fn of_connect(error: Errno) -> Option<&'static str> {
    Some(match error.get() {
        libc::ECONNREFUSED => {
            "rejected by the peer: nobody listens at that address and port, or the program there refused"
        }
        libc::ETIMEDOUT | libc::EHOSTUNREACH => {
            "the peer did not answer: is the host up, and does a firewall let RDMA through (RoCE: UDP port 4791; iWARP: the TCP port)?"
        }
        libc::ECONNRESET => "the peer ended the connection while it was being established",
        libc::EPROTO => "the peer violated the transport's protocol",
        _ => return None,
    })
}

/// Returns the reason for an error of a datagram rsocket. ECONNREFUSED may also come from a stream,
/// if a call after rconnect() reports it.
fn of_datagram(error: Errno) -> Option<&'static str> {
    Some(match error.get() {
        libc::ECONNREFUSED => {
            "nobody listens at the address and port that it is connected to, or that an earlier datagram was sent to"
        }
        libc::EDESTADDRREQ => "no address was given, and the rsocket is not connected",
        libc::EPROTONOSUPPORT => "the device does not support datagrams: iWARP",
        libc::EMSGSIZE => "a datagram may have 2048 bytes, including its header of 8 (IPv4) or 24 (IPv6) bytes",
        _ => return None,
    })
}

fn of_listen(error: Errno) -> Option<&'static str> {
    Some(match error.get() {
        libc::EADDRINUSE => "another listener uses that address and port",
        libc::EINVAL => "it listens already, is connected, or is not bound",
        _ => return None,
    })
}

/// Returns whether a call registers memory or creates queues.
fn takes_memory(name: &str) -> bool {
    name.starts_with("rdma_create_")
        || name.starts_with("rio")
        || matches!(name, "rconnect" | "raccept" | "rsend" | "rsocket")
}

/// Returns the reason for an errno that has the same meaning for all calls.
fn general(name: &str, error: Errno, facts: &Facts) -> Reason {
    let rsocket = !name.starts_with("rdma_");
    let text = match error.get() {
        libc::ENOMEM if takes_memory(name) => {
            return Reason {
                text: "out of memory, or more queue entries than the device supports",
                memlock: facts.memlock,
            };
        }
        libc::ENOMEM => "out of memory",
        libc::EMFILE => "the process has reached its limit of open descriptors (ulimit -n)",
        libc::ENFILE => "the system has reached its limit of open files",
        libc::EBADF if rsocket => {
            "no rsocket of this process has that number (after fork(), is it the parent's?), or it does not support the call"
        }
        libc::EBADF => "the channel is closed, or belongs to another process",
        libc::EFAULT => "a pointer is NULL or invalid",
        libc::EINVAL if rsocket => "an argument is invalid, or the rsocket's state does not allow it",
        libc::EINVAL => "an argument is NULL or invalid, or the id's state does not allow it",
        libc::ENODEV => "no device: it was removed, or the id has none yet",
        libc::ENETDOWN => "the RDMA device was removed, or the interface is down",
        libc::ENOTCONN => "it is not connected",
        libc::EISCONN => "it is connected already",
        libc::EPIPE | libc::ECONNRESET => "the connection is over: the peer closed it or is gone",
        libc::ECONNABORTED => "the connection was ended because the peer violated the rsocket protocol",
        libc::ETIMEDOUT => "the peer stopped answering",
        libc::EPERM => "the kernel refused: an unknown command set, or no permission",
        libc::EACCES => "the kernel refused: no permission",
        libc::ENOSYS | libc::ENOTSUP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT => "not supported here",
        libc::ENOPROTOOPT => "there is no such option",
        libc::EMSGSIZE => "the message is too long",
        libc::ENOSPC => "the device is out of resources",
        libc::EIO => "the kernel or the device failed",
        libc::EAGAIN => "the call would have to wait",
        libc::EINPROGRESS | libc::EALREADY => "the operation continues in the background",
        libc::EINTR => "interrupted by a signal",
        _ => "the reason is unknown",
    };
    text.into()
}

/// Returns the name and the meaning of an error code of getaddrinfo(3).
pub fn of_eai(code: c_int) -> (&'static str, &'static str) {
    match code {
        libc::EAI_NONAME => ("EAI_NONAME", "the host name or the service is unknown"),
        libc::EAI_AGAIN => ("EAI_AGAIN", "the name servers do not answer"),
        libc::EAI_FAIL => ("EAI_FAIL", "the name servers refused"),
        libc::EAI_SERVICE => ("EAI_SERVICE", "the service is unknown"),
        libc::EAI_FAMILY => ("EAI_FAMILY", "the address family is not supported"),
        libc::EAI_MEMORY => ("EAI_MEMORY", "out of memory"),
        libc::EAI_BADFLAGS => ("EAI_BADFLAGS", "the hints' flags are invalid"),
        _ => ("EAI_*", "see gai_strerror(3)"),
    }
}

/// Returns the reason for an event that reports a failure or the removal of the device.
pub fn of_event(event: u32, status: c_int, iwarp: bool, facts: &Facts) -> Reason {
    let error = Errno::new(status.saturating_abs());
    if facts.loopback && error == Errno::ENODEV {
        return LOOPBACK.into();
    }
    let text = match rdma_cm_event_type::from_number(event) {
        Some(RDMA_CM_EVENT_ADDR_ERROR) => of_address(error),
        Some(RDMA_CM_EVENT_ROUTE_ERROR) => of_route(error),
        Some(RDMA_CM_EVENT_REJECTED) if status > 0 && !iwarp => return of_reject(status).into(),
        Some(RDMA_CM_EVENT_REJECTED) if error == Errno::ECONNRESET => {
            Some("rejected by the peer: the program there refused")
        }
        Some(RDMA_CM_EVENT_REJECTED) => of_connect(error).or(Some("rejected by the peer")),
        Some(RDMA_CM_EVENT_UNREACHABLE) if status == 0 => of_connect(Errno::ETIMEDOUT),
        Some(RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_CONNECT_ERROR) => of_connect(error),
        Some(RDMA_CM_EVENT_DEVICE_REMOVAL) => Some("the RDMA device is being removed"),
        Some(RDMA_CM_EVENT_MULTICAST_ERROR) => Some("the multicast group could not be joined, or was lost"),
        Some(RDMA_CM_EVENT_ADDRINFO_ERROR) => Some("the service was not found"),
        _ => None,
    };
    text.map_or_else(|| general("rdma_create_qp", error, facts), Reason::from)
}

/// Returns the meaning of a reject reason of InfiniBand and RoCE (IBTA volume 1, 12.6.7.2).
fn of_reject(reason: c_int) -> &'static str {
    match reason {
        1 => "rejected by the peer: it has no QP left",
        3 => "rejected by the peer: it lacks resources",
        4 => "rejected by the peer: it timed out",
        6 | 7 => "rejected by the peer: it does not know the connection",
        8 => "rejected by the peer: nobody listens there (no such service id)",
        9 => "rejected by the peer: it uses another transport",
        10 => "rejected by the peer: it already has a connection with that id or QP",
        12..=18 => "rejected by the peer: it does not accept the addresses or the path",
        24 | 25 => "rejected by the peer: it requires another port or path",
        26 => "rejected by the peer: it does not support that many RDMA reads",
        28 => "rejected by the peer: the program there refused",
        30 | 31 => "rejected by the peer: it uses another version of the connection manager",
        35 => "rejected by the peer: it does not accept the enhanced connection options",
        _ => "rejected by the peer",
    }
}

/// Returns the name and the meaning of a work completion's status (`enum ibv_wc_status`).
pub fn of_completion(status: u32) -> (&'static str, &'static str) {
    match status {
        1 => ("LOC_LEN_ERR", "a message was longer than its buffer"),
        2 => ("LOC_QP_OP_ERR", "the device could not execute the request"),
        4 => ("LOC_PROT_ERR", "the device may not access that memory"),
        5 => ("WR_FLUSH_ERR", "the connection is over"),
        8 => ("LOC_ACCESS_ERR", "the peer may not access that memory"),
        9 => ("REM_INV_REQ_ERR", "the peer's device refused the request"),
        10 => ("REM_ACCESS_ERR", "the peer has deregistered its memory, or violated the rsocket protocol"),
        11 => ("REM_OP_ERR", "the peer's device failed"),
        12 => (
            "RETRY_EXC_ERR",
            "the peer stopped answering: are its host and the link up, and does a firewall let RDMA through?",
        ),
        13 => ("RNR_RETRY_EXC_ERR", "the peer posted no receives"),
        21 => ("GENERAL_ERR", "the device failed"),
        _ => ("another status", "see enum ibv_wc_status"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_FACTS: Facts =
        Facts { access: None, memlock: None, device: false, null: false, loopback: false, local: false };

    fn call(name: &str, errno: c_int, facts: Facts) -> String {
        of_call(name, Errno::new(errno), &facts).to_string()
    }

    #[test]
    fn channels() {
        let with = |access| Facts { access: Some(access), ..NO_FACTS };
        for name in ["rdma_create_event_channel", "rsocket"] {
            assert!(call(name, libc::ENODEV, with(NO_DEVICES)).contains("no RDMA device"));
            assert!(call(name, libc::ENODEV, with(NO_DEVICES)).contains("rdma system show"));
            assert!(call(name, libc::ENOENT, with(NO_MODULE)).contains("modprobe rdma_ucm"));
            assert!(call(name, libc::ENOENT, with(NO_NODE)).contains("container"));
            assert!(call(name, libc::EACCES, with(FORBIDDEN)).contains("no permission for /dev/infiniband/rdma_cm"));
        }
        // If rdma_create_id() fails for a synchronous id, errno is always ENOMEM.
        assert!(call("rdma_create_id", libc::ENOMEM, with(FORBIDDEN)).contains("no permission"));
        assert!(call("rdma_create_id", libc::ENOMEM, NO_FACTS).contains("memory"));
        assert!(!depends_on_access("rdma_listen", Errno::ENODEV));
        let forbidden = with(VERBS_FORBIDDEN);
        assert!(call("rdma_bind_addr", libc::ENODEV, forbidden).contains("no permission for /dev/infiniband/uverbs"));
        assert!(call("rdma_getaddrinfo", libc::ENODEV, with(NO_DEVICES)).contains("no RDMA device"));
    }

    #[test]
    fn addresses() {
        assert!(call("rbind", libc::EADDRNOTAVAIL, NO_FACTS).starts_with("no RDMA interface"));
        let local = Facts { local: true, ..NO_FACTS };
        assert!(call("rbind", libc::EADDRNOTAVAIL, local).starts_with("another id or rsocket uses that port"));
        assert!(call("rdma_bind_addr", libc::ENODEV, local).starts_with("no RDMA interface"));
        let loopback = Facts { loopback: true, ..NO_FACTS };
        assert!(call("rdma_resolve_addr", libc::ENODEV, loopback).starts_with("loopback has no RDMA"));
        assert!(call("rdma_resolve_addr", libc::ETIMEDOUT, NO_FACTS).starts_with("the neighbour is unresolved"));
        assert!(call("rconnect", libc::ETIMEDOUT, NO_FACTS).starts_with("the neighbour is unresolved"));
        let device = Facts { device: true, ..NO_FACTS };
        assert!(call("rconnect", libc::ETIMEDOUT, device).starts_with("the peer did not answer"));
        assert!(call("rconnect", libc::ECONNREFUSED, device).contains("nobody listens"));
        assert!(call("rconnect", libc::ECONNREFUSED, NO_FACTS).contains("nobody listens"));
        assert!(call("rrecvfrom", libc::ECONNREFUSED, NO_FACTS).starts_with("nobody listens"));
        assert!(call("rsendto", libc::ENETUNREACH, NO_FACTS).starts_with("there is no route"));
        assert!(call("rconnect", libc::EPROTONOSUPPORT, NO_FACTS).contains("iWARP"));
    }

    #[test]
    fn locked_memory() {
        let facts = Facts { memlock: Some(65536), ..NO_FACTS };
        assert!(call("rdma_create_qp", libc::ENOMEM, facts).contains("limit of locked memory, 64 kB"));
        assert!(!call("rdma_create_qp", libc::ENOMEM, NO_FACTS).contains("locked memory"));
        assert!(!call("rdma_get_cm_event", libc::ENOMEM, facts).contains("locked memory"));
    }

    #[test]
    fn events() {
        let event =
            |kind: rdma_cm_event_type, status, iwarp| of_event(kind as u32, status, iwarp, &NO_FACTS).to_string();
        assert!(event(RDMA_CM_EVENT_REJECTED, 8, false).contains("nobody listens"));
        assert!(event(RDMA_CM_EVENT_REJECTED, 28, false).contains("refused"));
        assert!(event(RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED, true).contains("nobody listens"));
        assert!(event(RDMA_CM_EVENT_REJECTED, -libc::ECONNRESET, true).contains("refused"));
        assert_eq!(event(RDMA_CM_EVENT_REJECTED, 99, false), "rejected by the peer");
        assert!(event(RDMA_CM_EVENT_ADDR_ERROR, -libc::ETIMEDOUT, false).contains("neighbour"));
        assert!(event(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT, false).contains("firewall"));
        assert!(event(RDMA_CM_EVENT_DEVICE_REMOVAL, 0, false).contains("removed"));
    }

    #[test]
    fn every_errno_has_a_text() {
        for name in ["rdma_connect", "rsend", "rdma_create_qp"] {
            assert!((1..134).all(|errno| !call(name, errno, NO_FACTS).is_empty()));
        }
    }
}
