"""Messages between port mapper daemons (UDP port 3935)."""

import collections
import ipaddress
import struct

PORT = 3935
REQUEST, ACCEPT, ACK, REJECT = range(4)
NAMES = "request accept ack reject".split()

# ap: the accepting peer, cp: the connecting peer, each ("address", port). mapped_cp is None in messages
# without that field: in all but requests of 64 bytes.
Packet = collections.namedtuple("Packet", "kind ap cp handle mapped_cp magic reserved size")


def _address(text):
    return ipaddress.ip_address(text).packed.ljust(16, b"\0")


def _text(data, version):
    return str(ipaddress.ip_address(data[:4] if version == 4 else data[:16]))


def build(kind, ap, cp, handle, mapped_cp=None, version=None, top=0):
    """A message; a request has 64 bytes when mapped_cp is given, else 48."""
    version = version or ipaddress.ip_address(ap[0]).version
    magic = top << 6 | kind << 4 | version
    reserved = mapped_cp[1] if mapped_cp else 0
    data = struct.pack(">BBHHHQ", magic, 0, reserved, ap[1], cp[1], handle) + _address(cp[0]) + _address(ap[0])
    return data + (_address(mapped_cp[0]) if mapped_cp else b"")


def parse(data):
    assert len(data) in (48, 64), f"a message of {len(data)} bytes"
    magic, _pmtime, reserved, apport, cpport, handle = struct.unpack_from(">BBHHHQ", data)
    version = magic & 15
    assert magic >> 6 == 0 and version in (4, 6), f"magic {magic:#x}"
    mapped = (_text(data[48:], version), reserved) if len(data) == 64 else None
    return Packet(magic >> 4 & 3, (_text(data[32:], version), apport), (_text(data[16:], version), cpport),
                  handle, mapped, magic, reserved, len(data))


def describe(packet):
    mapped = f" mapped cp {packet.mapped_cp}" if packet.mapped_cp else f" reserved {packet.reserved}"
    return f"{NAMES[packet.kind]} {packet.size} ap {packet.ap} cp {packet.cp}{mapped}"
