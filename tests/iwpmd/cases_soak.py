"""Very many mappings, without a time limit."""

import os
import random
import time

from basics import Failure, expect
from kernel_side import Kernel
from world import Daemon

COUNT = 50000
# The reference looks things up in lists, and leaves the search for a free port to the kernel.
REFERENCE_COUNT = 20000
# Requests that the scripted kernel sends before it reads the answers.
AT_ONCE = 50
# Addresses need not be local: the daemon binds ports on the wildcard address.
ADDRESSES = [f"10.88.1.{n}" for n in range(1, 6)]


def _where(index):
    return ADDRESSES[index % len(ADDRESSES)], 1000 + index // len(ADDRESSES)


def _add(kernel, indexes):
    """{index: mapped port}"""
    mapped = {}
    for first in range(0, len(indexes), AT_ONCE):
        part = indexes[first:first + AT_ONCE]
        asked = {kernel.ask_add(_where(index)): index for index in part}
        for _ in part:
            seq, where, port = kernel.added()
            index = asked.pop(seq)
            expect("the address", where, _where(index))
            mapped[index] = port
    return mapped


def _remove(kernel, indexes):
    for index, where in enumerate(map(_where, indexes)):
        kernel.remove(where)
        if index % AT_ONCE == 0:
            kernel.acknowledged(0)
    kernel.acknowledged(0)


def _seconds(daemon):
    with open(f"/proc/{daemon.pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Soak:
    """A daemon, and its figures at the start."""

    def __init__(self, world):
        self.count = world.by_kind(COUNT, REFERENCE_COUNT)
        net = world.net("a")
        with net, open("/proc/sys/net/ipv4/ip_local_port_range", "w") as file:
            file.write("1024 65535")
        self.kernel = Kernel()
        self.daemon = Daemon(world, world.path, net=net, kernel=self.kernel)
        self.kernel.register()
        self.made, self.order = random.Random(4), list(range(self.count))
        self.descriptors, self.kilobytes = self.daemon.descriptors(), self.daemon.rss()

    def timed(self, what, function, *arguments):
        """Returns (the function's result, a text with the time, and the daemon's share in brackets)."""
        begin, busy = time.monotonic(), _seconds(self.daemon)
        result = function(self.kernel, *arguments)
        return result, f"{what} {time.monotonic() - begin:.1f} s ({_seconds(self.daemon) - busy:.1f} s)"

    def turn(self):
        """Returns (memory with all mappings, a text)."""
        self.made.shuffle(self.order)
        mapped, most = self.timed(f"{self.count - 1000} made in", _add, self.order[:-1000])
        more, last = self.timed("1000 more in", _add, self.order[-1000:])
        mapped.update(more)
        expect("descriptors", self.daemon.descriptors(), self.descriptors + self.count)
        full = self.daemon.rss()
        self.made.shuffle(self.order)
        for index in self.order[:1000]:  # each removed mapping is replaced by another one
            _remove(self.kernel, [index])
            mapped.update(_add(self.kernel, [index]))
        expect("different ports", len(set(mapped.values())), self.count)
        self.made.shuffle(self.order)
        _, removed = self.timed("removed in", _remove, self.order)
        expect("descriptors after all", self.daemon.descriptors(), self.descriptors)
        return full, f"{most}, {last}, {full} kB, {removed}, {self.daemon.rss()} kB"


def case_mappings(world):
    """Adds and removes 50,000 mappings in random order, and replaces some while all exist: memory and descriptors
    return to their initial values, and each address has its own port."""
    soak = Soak(world)
    turns = [soak.turn() for _ in range(2)]
    facts = f"{soak.kilobytes} kB before; " + "; again: ".join(words for _, words in turns)
    if turns[1][0] > turns[0][0] * 1.1:
        raise Failure(f"memory grows: {facts}")
    return facts
