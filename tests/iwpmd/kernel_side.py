"""Simulates the kernel's port-map client for a daemon that runs with netlink_shim.c."""

import os
import select
import socket
import struct

import netlink as nl
from basics import TIMEOUT, Failure, expect

NO_BUFFERS = 0xFFFFFFFF


class Kernel:
    """A kernel for one daemon. version: its answer to HELLO; "old": it does not know HELLO."""

    count = 0

    def __init__(self, version=4):
        Kernel.count += 1
        self.version, self.path = version, f"/run/kernel.{Kernel.count}"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen(1)
        self.socket, self.seq, self.sent_first, self.mapinfo_at_start = None, 100, [], []

    def accept(self, daemon):
        """Handles the daemon's start, until it has requested the mappings (or was rejected as too old)."""
        ready, _, _ = select.select([self.listener], [], [], TIMEOUT)
        if not ready:
            raise Failure(f"no netlink socket was created: {daemon.printed()!r} {daemon.log()}")
        self.socket, _ = self.listener.accept()
        hello = self.receive("HELLO")
        expect("the first message", (nl.NAMES[hello.op], hello.client), ("HELLO", nl.IWCM))
        self.sent_first.append(hello)
        if self.version == "old":
            error = struct.pack("=i", -22) + nl.raw(nl.IWCM << 10 | nl.HELLO, hello.seq, b"")
            self.send_raw(nl.raw(nl.ERROR, 0, error, flags=0))
        else:
            self.send(nl.HELLO, nl.u16(1, self.version), seq=1)
        expected = {4: 1, 3: 2, "old": 2}.get(self.version, 0)
        for _ in range(expected):
            self.sent_first.append(self.receive("MAPINFO"))
        if self.mapinfo_at_start:
            self.mapinfo(*self.mapinfo_at_start)

    def send(self, op, payload, seq=None, client=nl.IWCM, sender=0):
        """Sends a message. Returns its sequence number."""
        if seq is None:
            self.seq += 1
            seq = self.seq
        self.send_raw(nl.message(op, seq, payload, client, sender), sender)
        return seq

    def send_raw(self, data, sender=0):
        self.socket.send(struct.pack("=I", sender) + data)

    def lose_messages(self):
        """The daemon's next receive fails with ENOBUFS: the kernel has dropped a message."""
        self.socket.send(struct.pack("=I", NO_BUFFERS))

    def receive(self, what="a message", timeout=TIMEOUT):
        ready, _, _ = select.select([self.socket], [], [], timeout)
        if not ready:
            if timeout == TIMEOUT:
                raise Failure(f"{what}: did not arrive over netlink")
            return None
        data = self.socket.recv(65536)
        if not data:
            raise Failure(f"{what}: the daemon closed its netlink socket")
        messages = nl.parse(data)
        expect("messages in a datagram", len(messages), 1)
        return messages[0]

    def answer(self, op):
        """Returns the next message, which must be of this kind."""
        got = self.receive(nl.NAMES[op])
        if got.op != op or got.client == 0:
            raise Failure(f"{nl.describe(got)} instead of {nl.NAMES[op]}")
        return got

    def error(self):
        """Returns (sequence, code) of the next message, which must be HANDLE_ERR."""
        got = self.answer(nl.HANDLE_ERR)
        return nl.number(got.attrs[1]), nl.number(got.attrs[2])

    def ask_register(self, client=nl.IWCM, name=nl.ULIB, device=b"siw0\0"):
        payload = (nl.u32(1, 1) + nl.attribute(2, b"w0".ljust(16, b"\0")) + nl.attribute(3, device.ljust(32, b"\0"))
                   + nl.attribute(4, name.ljust(32, b"\0")))
        return self.send(nl.REG_PID, payload, client=client)

    def register(self):
        """Registers. Returns the message's sequence number and the answer."""
        return self.ask_register(), self.answer(nl.REG_PID)

    def _flags(self, kind, flags):
        return nl.u32(kind, flags) if self.version == 4 else b""

    def ask_add(self, where, flags=0, client=nl.IWCM):
        payload = nl.u32(1, 1) + nl.attribute(2, nl.sockaddr(where)) + self._flags(3, flags)
        return self.send(nl.ADD, payload, client=client)

    def add(self, where, flags=0):
        """Adds a mapping. Returns the mapped address of the answer, which is checked."""
        seq = self.ask_add(where, flags)
        got = self.answer(nl.ADD)
        expect("the answer's sequence", nl.number(got.attrs[1]), seq)
        expect("the answer's address", nl.endpoint(got.attrs[2]), where)
        expect("the answer's error", nl.number(got.attrs[4]), 0)
        return nl.endpoint(got.attrs[3])

    def added(self):
        """Returns (sequence, address, mapped port) of the next answer, to any request."""
        got = self.answer(nl.ADD)
        expect("the answer's error", nl.number(got.attrs[4]), 0)
        return nl.number(got.attrs[1]), nl.endpoint(got.attrs[2]), nl.endpoint(got.attrs[3])[1]

    def remove(self, where):
        self.send(nl.REMOVE, nl.u32(1, 1) + nl.attribute(2, nl.sockaddr(where)))

    def ask_query(self, local, remote, flags=0, client=nl.IWCM):
        payload = (nl.u32(1, 1) + nl.attribute(2, nl.sockaddr(local)) + nl.attribute(3, nl.sockaddr(remote))
                   + self._flags(4, flags))
        return self.send(nl.QUERY, payload, client=client)

    def mapinfo(self, *mappings):
        """Sends the kernel's mappings, (local, mapped, flags) each, in one datagram, like the kernel."""
        data = b""
        for local, mapped, flags in mappings:
            payload = nl.attribute(1, nl.sockaddr(local)) + nl.attribute(2, nl.sockaddr(mapped)) + self._flags(3, flags)
            data += nl.raw(nl.IWCM << 10 | nl.MAPINFO, 0, payload, flags=nl.MULTI)
        self.send_raw(data + nl.raw(nl.DONE, 0, bytes(4), flags=nl.MULTI))

    def acknowledged(self, sent):
        """Ends a list of mappings. Returns how many the daemon has accepted, after it has processed all messages."""
        self.send(nl.MAPINFO_NUM, nl.u32(1, 1) + nl.u32(2, sent))
        got = self.answer(nl.MAPINFO_NUM)
        expect("SEND_NUM", nl.number(got.attrs[2]), sent)
        return nl.number(got.attrs[3])

    def close(self):
        self.listener.close()
        if self.socket:
            self.socket.close()
        if os.path.exists(self.path):
            os.unlink(self.path)
