"""Network namespaces of the guest, scripted peers in them, and packets on their links."""

import ctypes
import os
import select
import socket
import struct
import subprocess

import wire
from basics import TIMEOUT, Failure

CLONE_NEWNET = 0x40000000
SO_RCVBUFFORCE = 33
libc = ctypes.CDLL(None, use_errno=True)


class Net:
    """A network namespace on the common bridge. Number 0 is the guest's own."""

    def __init__(self, name, number):
        self.name, self.v4, self.v6 = name, f"10.88.0.{number}", f"fd00:88::{number:x}"
        run = ["ip", "-batch", "-"]
        commands = f"""netns add {name}
link add b-{name} type veth peer name eth netns {name}
link set b-{name} master hub up"""
        subprocess.run(run, input=commands.encode(), check=True)
        with self:
            for conf in "default", "eth":
                with open(f"/proc/sys/net/ipv6/conf/{conf}/accept_dad", "w") as file:
                    file.write("0")
        inner = f"""link set lo up
addr add {self.v4}/24 dev eth
addr add {self.v6}/64 dev eth nodad
link set eth up"""
        subprocess.run(["ip", "-n", name, "-batch", "-"], input=inner.encode(), check=True)

    def __enter__(self):
        self.before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        entered = libc.setns(there, CLONE_NEWNET)
        os.close(there)
        if entered != 0:
            raise OSError(ctypes.get_errno(), "setns")

    def __exit__(self, *_):
        libc.setns(self.before, CLONE_NEWNET)
        os.close(self.before)

    def address(self, version):
        return self.v4 if version == 4 else self.v6

    def udp(self, version=4, port=0, address=None):
        with self:
            return Udp(version, port, address or self.address(version))

    def quality(self, *netem):
        """Sets how the link treats packets from this namespace (netem)."""
        subprocess.run(["tc", "-n", self.name, "qdisc", "del", "dev", "eth", "root"], stderr=subprocess.DEVNULL)
        if netem:
            subprocess.run(["tc", "-n", self.name, "qdisc", "add", "dev", "eth", "root", "netem", *netem], check=True)

    def neighbours(self, *others):
        """Sets permanent neighbours, so that lost ARP packets do not affect the cases."""
        for other in others:
            link = subprocess.run(["ip", "-n", other.name, "-br", "link", "show", "eth"], capture_output=True, check=True)
            mac = link.stdout.split()[2].decode()
            for address in other.v4, other.v6:
                subprocess.run(["ip", "-n", self.name, "neigh", "replace", address, "lladdr", mac, "dev", "eth",
                                "nud", "permanent"], check=True)


class Udp:
    """A scripted peer's socket."""

    def __init__(self, version, port, address):
        self.family = socket.AF_INET if version == 4 else socket.AF_INET6
        self.socket = socket.socket(self.family, socket.SOCK_DGRAM)
        if self.family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        self.socket.bind((address, port))
        self.where = self.socket.getsockname()[:2]

    def send(self, data, address, port=wire.PORT):
        self.socket.sendto(data, (address, port))

    def receive(self, what="an answer", timeout=TIMEOUT):
        """Returns (packet, (address, port)), or None on a timeout given by the caller."""
        ready, _, _ = select.select([self.socket], [], [], timeout)
        if not ready:
            if timeout == TIMEOUT:
                raise Failure(f"{what}: did not arrive")
            return None
        data, where = self.socket.recvfrom(4096)
        return wire.parse(data), where[:2]

    def close(self):
        self.socket.close()


class Wire:
    """Captures all messages of port mappers on a namespace's link with AF_PACKET: (from, to, data)."""

    def __init__(self, net):
        with net:
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
            # Larger than net.core.rmem_max allows: the capture must not lose packets.
            self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 23)
            self.socket.bind(("eth", 3))
        self.seen = []

    def messages(self):
        """Returns the messages until now."""
        while select.select([self.socket], [], [], 0)[0]:
            found = self._udp(*self.socket.recvfrom(65536))
            if found:
                self.seen.append(found)
        return self.seen

    @staticmethod
    def _udp(data, info):
        if info[1] == 0x0800 and data[9] == 17:
            header, source, target = (data[0] & 15) * 4, data[12:16], data[16:20]
            family = socket.AF_INET
        elif info[1] == 0x86DD and data[6] == 17:
            header, source, target = 40, data[8:24], data[24:40]
            family = socket.AF_INET6
        else:
            return None
        ports = struct.unpack_from(">HHH", data, header)
        payload = data[header + 8:header + ports[2]]
        return (socket.inet_ntop(family, source), ports[0]), (socket.inet_ntop(family, target), ports[1]), payload

    def close(self):
        self.socket.close()
