"""The guest's side of the tests: syslog, network namespaces, daemons, packets. See README.md."""

import ctypes
import os
import re
import select
import signal
import socket
import struct
import subprocess
import threading
import time

import wire

# Seconds until something that must happen counts as missing. Only a hang reaches it.
PATIENCE = 60
CLONE_NEWNET = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)


class Failure(Exception):
    """What a case found wrong."""


class Skip(Exception):
    """Why a case makes no sense here."""


def expect(what, got, wanted):
    if got != wanted:
        raise Failure(f"{what}: {got!r} instead of {wanted!r}")


def until(condition, what):
    """Waits for something that has no event of its own."""
    end = time.monotonic() + PATIENCE
    while True:
        got = condition()
        if got:
            return got
        if time.monotonic() > end:
            raise Failure(f"{what}: was not reached")
        time.sleep(0.02)


class Syslog(threading.Thread):
    """/dev/log of the guest."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("/dev/log")
        os.chmod("/dev/log", 0o666)
        self.lines, self.news = [], threading.Condition()
        self.start()

    def run(self):
        while True:
            line = self.socket.recv(65536).decode(errors="replace").rstrip("\0\n")
            with self.news:
                self.lines.append(line)
                self.news.notify_all()

    def of(self, pid, begin=0):
        with self.news:
            return [line for line in self.lines[begin:] if f"[{pid}]" in line]

    def wait(self, pid, pattern, begin=0):
        """The first line of a process, from line number `begin`, that matches."""
        found = []

        def matches():
            found[:] = [line for line in self.lines[begin:] if f"[{pid}]" in line and re.search(pattern, line)]
            return found

        with self.news:
            if not self.news.wait_for(matches, PATIENCE):
                raise Failure(f"no line in the log matches {pattern!r}")
        return found[0]

    def await_line(self, condition, patience):
        """Waits until new lines make the condition true, or for so many seconds."""
        with self.news:
            return self.news.wait_for(condition, patience)


class Net:
    """A network namespace on the bridge of all of them. Number 0 is the guest's own."""

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
        """What the link does to packets sent by this namespace."""
        subprocess.run(["tc", "-n", self.name, "qdisc", "del", "dev", "eth", "root"], stderr=subprocess.DEVNULL)
        if netem:
            subprocess.run(["tc", "-n", self.name, "qdisc", "add", "dev", "eth", "root", "netem", *netem], check=True)

    def neighbours(self, *others):
        """Fixed neighbours: a lost question for one is no part of a case."""
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

    def receive(self, what="an answer", patience=PATIENCE):
        """(packet, (address, port)); None when nothing came, with a patience of one's own."""
        ready, _, _ = select.select([self.socket], [], [], patience)
        if not ready:
            if patience == PATIENCE:
                raise Failure(f"{what}: did not arrive")
            return None
        data, where = self.socket.recvfrom(4096)
        return wire.parse(data), where[:2]

    def close(self):
        self.socket.close()


class Wire:
    """All messages of port mappers that pass a namespace's link, from AF_PACKET: (from, to, data)."""

    def __init__(self, net):
        with net:
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)
            self.socket.bind(("eth", 3))
        self.seen = []

    def messages(self):
        """What has passed until now."""
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


class Daemon:
    """A daemon in the foreground (-s), ready when this returns."""

    def __init__(self, world, path, net=None, kernel=None, env=None, config=None, prepare=None):
        self.world, self.kernel, self.stays = world, kernel, True
        self.log_begin = len(world.syslog.lines)
        with open("/etc/iwpmd.conf", "w") as file:
            file.write(config or "nl_sock_rbuf_size=4194304\n")
        if prepare:
            prepare()
        notify = world.notify_socket()
        env = {**os.environ, **(env or {}), "NOTIFY_SOCKET": notify.getsockname()}
        env.pop("LD_LIBRARY_PATH", None)
        if kernel:
            env.update(LD_PRELOAD=world.shim, IWPMD_KERNEL=kernel.path)
        argv = [path, "-s"]
        if net:
            argv = ["ip", "netns", "exec", net.name, *argv]
        self.output = open(f"/run/daemon.{len(world.daemons)}", "w+b")
        self.process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=self.output,
                                        stderr=self.output, cwd="/")
        world.daemons.append(self)
        if kernel:
            kernel.accept(self)
        ready, _, _ = select.select([notify], [], [], PATIENCE)
        self.told = notify.recv(4096).decode() if ready else ""
        notify.close()
        os.unlink(env["NOTIFY_SOCKET"])
        if "READY=1" not in self.told:
            raise Failure(f"the daemon did not become ready: {self.printed()!r}, {self.log()}")

    @property
    def pid(self):
        return self.process.pid

    def printed(self):
        self.output.seek(0)
        return self.output.read().decode(errors="replace")

    def log(self):
        return self.world.syslog.of(self.pid, self.log_begin)

    def alive(self):
        if self.process.poll() is not None:
            raise Failure(f"the daemon ended with {self.process.returncode}: {self.printed()} {self.log()[-3:]}")

    def rss(self):
        with open(f"/proc/{self.pid}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def end(self, sig=signal.SIGTERM):
        """The exit status, as subprocess has it."""
        self.stays = False
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failure(f"{signal.Signals(sig).name} did not end the daemon") from None


class World:
    """What all cases share."""

    def __init__(self, tested, other, shim, module):
        self.kind, self.path = tested
        self.other_kind, self.other_path = other
        self.shim, self.module, self.daemons, self.nets, self.count, self.slow = shim, module, [], {}, 0, 0
        self.syslog = Syslog()

    def by_kind(self, ours, reference):
        """What is expected where the reference is known to do something else than the specification."""
        return reference if self.kind == "reference" else ours

    def reference_pause(self):
        """The reference writes to the log in its signal handler, and hangs for ever if the signal comes while it
        writes to the log anyway. It has no sign that it is quiet."""
        if self.kind == "reference":
            time.sleep(1)

    def notify_socket(self):
        self.count += 1
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.bind(f"/run/notify.{self.count}")
        return sock

    def net(self, name):
        """Namespaces a, b, c, made at first use."""
        if not self.nets:
            subprocess.run(["ip", "-batch", "-"], input=b"link add hub type bridge\nlink set hub up", check=True)
            for number, one in enumerate("abc", 1):
                self.nets[one] = Net(one, number)
            for one in self.nets.values():
                one.neighbours(*(other for other in self.nets.values() if other is not one))
        return self.nets[name]

    def tidy(self):
        """After a case."""
        for daemon in self.daemons:
            if daemon.process.poll() is None:
                daemon.process.kill()
                daemon.process.wait()
            daemon.output.close()
            if daemon.kernel:
                daemon.kernel.close()
        self.daemons.clear()
        for net in self.nets.values():
            net.quality()
