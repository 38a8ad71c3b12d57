"""The guest's side of the tests: syslog and daemons. See README.md."""

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time

from basics import TIMEOUT, Failure
from net import Net


class Syslog(threading.Thread):
    """/dev/log of the guest."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("/dev/log")
        os.chmod("/dev/log", 0o666)
        self.lines, self.news = [], threading.Condition()
        self.reading = threading.Event()
        self.reading.set()
        self.start()

    def run(self):
        while self.reading.wait():
            line = self.socket.recv(65536).decode(errors="replace").rstrip("\0\n")
            with self.news:
                self.lines.append(line)
                self.news.notify_all()

    @contextlib.contextmanager
    def paused(self):
        """Reads no lines, except one for which a read is in progress."""
        self.reading.clear()
        try:
            yield
        finally:
            self.reading.set()

    def is_full(self):
        """Returns whether a writer would block."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as writer:
            writer.connect("/dev/log")
            return not select.select([], [writer], [], 0)[1]

    def of(self, pid, begin=0):
        with self.news:
            return [line for line in self.lines[begin:] if f"[{pid}]" in line]

    def wait(self, pid, pattern, begin=0):
        """Waits for the first line of a process, from line number `begin`, that matches."""
        found = []

        def matches():
            found[:] = [line for line in self.lines[begin:] if f"[{pid}]" in line and re.search(pattern, line)]
            return found

        with self.news:
            if not self.news.wait_for(matches, TIMEOUT):
                raise Failure(f"no line in the log matches {pattern!r}")
        return found[0]

    def await_line(self, condition, timeout):
        """Waits until new lines make the condition true, or until the timeout in seconds."""
        with self.news:
            return self.news.wait_for(condition, timeout)


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
        ready, _, _ = select.select([notify], [], [], TIMEOUT)
        self.notified = notify.recv(4096).decode() if ready else ""
        notify.close()
        os.unlink(env["NOTIFY_SOCKET"])
        if "READY=1" not in self.notified:
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

    def wakeups(self):
        """Returns how often the daemon has slept."""
        with open(f"/proc/{self.pid}/status") as file:
            return int(re.search(r"\nvoluntary_ctxt_switches:\s+(\d+)", file.read()).group(1))

    def end(self, sig=signal.SIGTERM):
        """Ends the daemon. Returns the exit status of subprocess."""
        self.stays = False
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failure(f"{signal.Signals(sig).name} did not end the daemon") from None


class World:
    """State that all cases share."""

    def __init__(self, tested, other, shim, module):
        self.kind, self.path = tested
        self.other_kind, self.other_path = other
        self.shim, self.module, self.daemons, self.nets, self.count, self.slow = shim, module, [], {}, 0, 0
        self.syslog = Syslog()

    def by_kind(self, ours, reference):
        """Returns the expected value, for results in which the reference is known to deviate from the specification."""
        return reference if self.kind == "reference" else ours

    def reference_pause(self):
        """The reference writes to the log in its signal handler, and hangs if the signal arrives while it already
        writes to the log. Nothing shows when it is idle."""
        if self.kind == "reference":
            time.sleep(1)

    def notify_socket(self):
        self.count += 1
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.bind(f"/run/notify.{self.count}")
        return sock

    def net(self, name):
        """Returns namespace a, b or c, which is created when it is first used."""
        if not self.nets:
            subprocess.run(["ip", "-batch", "-"], input=b"link add hub type bridge\nlink set hub up", check=True)
            for number, one in enumerate("abc", 1):
                self.nets[one] = Net(one, number)
            for one in self.nets.values():
                one.neighbours(*(other for other in self.nets.values() if other is not one))
        return self.nets[name]

    def tidy(self):
        """Cleans up after a case."""
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
