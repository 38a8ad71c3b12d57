"""A daemon between a scripted kernel and a scripted peer."""

import netlink as nl
import wire
from basics import Failure, expect
from kernel_side import Kernel
from world import Daemon

LOCAL, REMOTE = 5000, 6000
# A request or accept is sent immediately and then every second for ten seconds.
MOST_SENDINGS = 11


class Setup:
    """A daemon and a peer at port 3935 of namespace c."""

    def __init__(self, world, version=4):
        self.world, self.version, self.kernel = world, version, Kernel()
        self.daemon = Daemon(world, world.path, net=world.net("a"), kernel=self.kernel)
        self.kernel.register()
        self.host, self.far = (world.net(name).address(version) for name in "ac")
        self.peer = world.net("c").udp(version, wire.PORT)
        self.local, self.remote = (self.host, LOCAL), (self.far, REMOTE)
        self.mapped_cp = self.far, 44000
        self.handle, self.asked = 0x1122334455667788, None

    def request(self, port=LOCAL, handle=None, old=False, sender=None):
        """Sends the request of a connecting peer for a local port; the peer's port 6000 is mapped to 44000."""
        data = wire.build(wire.REQUEST, (self.host, port), self.remote, handle or self.handle,
                          None if old else self.mapped_cp)
        (sender or self.peer).send(data, self.host)
        self.asked = data

    def reply(self, kind, to, ap=None, sender=None, handle=None, where=None):
        """Answers a message of the daemon."""
        data = wire.build(kind, ap or to.ap, to.cp, handle or to.handle)
        (sender or self.peer).send(data, *(where or (self.host, wire.PORT)))

    def receive(self, kind, what=None, after=None):
        """Returns the next message to the peer. The reference's sending thread sometimes misses a message until
        there is another one, so the request is repeated, as other daemons do. It may also repeat the previous
        message, `after`."""
        while True:
            packet, where = self._asked_again() or self.peer.receive(what or "an answer" if kind is None else wire.NAMES[kind])
            if self.world.kind != "reference" or packet != after:
                break
        if kind is not None and packet.kind != kind:
            raise Failure(f"{wire.describe(packet)} instead of {wire.NAMES[kind]}")
        return packet, where

    def _asked_again(self):
        for _ in range(9 if self.world.kind == "reference" and self.asked else 0):
            got = self.peer.receive(timeout=2)
            if got:
                return got
            self.world.slow += 1
            self.peer.send(self.asked, self.host)
        return None

    def query(self):
        """The kernel queries the peer's port. Returns the message's sequence number and the daemon's request."""
        seq = self.kernel.ask_query(self.local, self.remote)
        return seq, *self.receive(wire.REQUEST)

    def close(self):
        self.peer.close()


def answer(kernel, seq, local, remote):
    """Returns (mapped local, mapped remote, error) of the answer to QUERY_MAPPING."""
    got = kernel.answer(nl.QUERY)
    expect("SEQ", nl.number(got.attrs[1]), seq)
    expect("addresses", (nl.endpoint(got.attrs[2]), nl.endpoint(got.attrs[3])), (local, remote))
    return nl.endpoint(got.attrs[4]), nl.endpoint(got.attrs[5]), nl.number(got.attrs[6])
