"""Messages between the kernel's port-map client and the daemon (uapi header rdma/rdma_netlink.h)."""

import collections
import ipaddress
import socket
import struct

IWCM = 2
REG_PID, ADD, QUERY, REMOVE, REMOTE_INFO, HANDLE_ERR, MAPINFO, MAPINFO_NUM, HELLO = range(9)
NAMES = "REG_PID ADD QUERY REMOVE REMOTE_INFO HANDLE_ERR MAPINFO MAPINFO_NUM HELLO".split()
ERROR, DONE = 2, 3  # NLMSG_ERROR, NLMSG_DONE
REQUEST, MULTI = 1, 2  # NLM_F_REQUEST, NLM_F_MULTI
ULIB = b"iWarpPortMapperUser\0"
NO_PORT_MAP = 1
INVALID_NLMSG, CREATE_MAPPING, DUPLICATE, UNKNOWN_MAPPING, DEV_INFO, LIB_INFO, REJECTED, VERSION = range(10, 18)

Message = collections.namedtuple("Message", "op client seq pid attrs")


def attribute(kind, data):
    padding = -len(data) % 4
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(padding)


def u32(kind, value):
    return attribute(kind, struct.pack("=I", value))


def u16(kind, value):
    return attribute(kind, struct.pack("=H", value))


def message(op, seq, payload, client=IWCM, pid=0):
    """Returns a message in the kernel's format; `payload` has its attributes."""
    return raw(client << 10 | op, seq, payload, pid)


def raw(kind, seq, payload, pid=0, flags=REQUEST):
    return struct.pack("=IHHII", 16 + len(payload), kind, flags, seq, pid) + payload


def parse(data):
    """Returns the messages of a datagram."""
    found = []
    while len(data) >= 16:
        length, kind, _flags, seq, pid = struct.unpack_from("=IHHII", data)
        assert 16 <= length <= len(data), f"netlink length {length} of {len(data)}"
        found.append(Message(kind & 1023, kind >> 10, seq, pid, attributes(data[16:length])))
        data = data[length + -length % 4:]
    assert not data, f"{len(data)} bytes after the last netlink message"
    return found


def attributes(data):
    found = {}
    while data:
        length, kind = struct.unpack_from("=HH", data)
        assert 4 <= length <= len(data), f"attribute length {length} of {len(data)}"
        found[kind] = data[4:length]
        data = data[length + -length % 4:]
    return found


def number(data):
    """Returns a number of two or four bytes."""
    return int.from_bytes(data, "little")


def sockaddr(where):
    """Returns the struct sockaddr_storage of ("address", port)."""
    address, port = where
    ip = ipaddress.ip_address(address)
    if ip.version == 4:
        packed = struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + ip.packed
    else:
        packed = struct.pack("=H", socket.AF_INET6) + struct.pack(">HI", port, 0) + ip.packed
    return packed.ljust(128, b"\0")


def endpoint(data):
    """Returns ("address", port) of a struct sockaddr_storage."""
    assert len(data) == 128, f"an address of {len(data)} bytes"
    family = struct.unpack_from("=H", data)[0]
    port = struct.unpack_from(">H", data, 2)[0]
    if family == socket.AF_INET:
        return str(ipaddress.ip_address(data[4:8])), port
    assert family == socket.AF_INET6, f"an address of family {family}"
    return str(ipaddress.ip_address(data[8:24])), port


def describe(msg):
    name = NAMES[msg.op] if msg.client else {ERROR: "NLMSG_ERROR", DONE: "NLMSG_DONE"}.get(msg.op, msg.op)
    return f"{name} {{{', '.join(f'{k}: {v[:32].hex()}' for k, v in msg.attrs.items())}}}"
