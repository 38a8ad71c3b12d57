"""Hostile peers: one daemon in namespace a, queried by c; the hostile socket is in b."""

import os
import random
import select
import signal
import struct

import netlink as nl
import wire
from basics import Failure, expect
from net import Wire
from setup import LOCAL, Setup, answer


def _hostile(s, port=0):
    return s.world.net("b").udp(s.version, port)


def _traffic(packets, address):
    """Returns the bytes of the messages to and from the daemon."""
    seen = packets.messages()
    return (sum(len(data) for _, to, data in seen if to[0] == address),
            sum(len(data) for where, _, data in seen if where[0] == address))


def _still_works(s, handle=0x99):
    """A request is accepted. Like other daemons, repeats it if the socket's buffer was full."""
    for _ in range(20):
        s.request(handle=handle)
        while got := s.peer.receive(timeout=1):
            if got[0].handle == handle:
                expect("the answer's kind", got[0].kind, wire.ACCEPT)
                s.reply(wire.ACK, got[0])
                return True
    if s.world.kind == "ours":
        raise Failure("requests are no longer answered")
    return False


def case_wrong_sizes(world):
    """Messages of other sizes than 48 and 64 bytes are dropped without an answer."""
    s = Setup(world)
    s.kernel.add(s.local)
    hostile = _hostile(s)
    good = wire.build(wire.REQUEST, s.local, s.remote, 5, s.mapped_cp)
    for size in [*range(0, 48), *range(49, 64), 65, 128, 1400, 9000]:
        hostile.send((good * 200)[:size], s.host)
    hostile.send(wire.build(wire.REQUEST, (s.host, 1), s.remote, 6, s.mapped_cp), s.host)
    first, _ = hostile.receive("the reject of the only valid message", 5) or (None, None)
    if first is None:  # see Setup.receive
        hostile.send(wire.build(wire.REQUEST, (s.host, 1), s.remote, 6, s.mapped_cp), s.host)
        first, _ = hostile.receive()
    longer = first.handle == 5
    expect("handle of the first answer", first.handle, world.by_kind(6, first.handle))
    s.daemon.alive()
    s.close()
    return "the reference accepts longer messages as 64 bytes" if longer else None


def case_wrong_fields(world):
    """Versions, types and IP versions that do not exist; a request of the other family."""
    s = Setup(world)
    s.kernel.add(s.local)
    hostile = _hostile(s)
    good = wire.build(wire.REQUEST, s.local, s.remote, 5, s.mapped_cp)
    for magic in range(256):
        if magic >> 6 or magic & 15 not in (4, 6):
            hostile.send(bytes([magic]) + good[1:], s.host)
    hostile.send(wire.build(wire.REQUEST, ("::1", LOCAL), ("::2", 1), 7, ("::2", 2)), s.host)
    s.request(LOCAL + 1, handle=8)
    s.receive(wire.REJECT)
    answers = []
    while select.select([hostile.socket], [], [], 0.5)[0]:
        answers.append(hostile.socket.recv(4096)[0])
    s.close()
    kinds = {f"{wire.NAMES[magic >> 4 & 3]} {magic:#x}" for magic in answers}
    if world.kind == "ours" and answers:
        raise Failure(f"{len(answers)} answers: {kinds}")
    return f"{len(answers)} answers{': ' if answers else ''}{', '.join(sorted(kinds))}"


def _forged(world, kind):
    """An answer with the right handle from a host that was not queried."""
    s = Setup(world)
    hostile = _hostile(s)
    seq, packet, where = s.query()
    for target in where, (s.host, wire.PORT):
        s.reply(kind, packet, (s.world.net("b").v4, 666), sender=hostile, where=target)
    if world.kind == "reference":
        _, remote, error = answer(s.kernel, seq, s.local, s.remote)
        s.close()
        return f"the reference accepts it: {remote}, error {error}"
    s.reply(wire.ACCEPT, packet, (s.far, 45000), where=where)
    _, remote, error = answer(s.kernel, seq, s.local, s.remote)
    s.close()
    expect("mapped", (remote, error), ((s.far, 45000), 0))


def case_forged_accept(world):
    return _forged(world, wire.ACCEPT)


def case_forged_reject(world):
    return _forged(world, wire.REJECT)


def case_guessed_handles(world):
    """Accepts and rejects with other handles have no effect and are not answered."""
    s = Setup(world)
    seq, packet, where = s.query()
    packets = Wire(world.net("a"))
    for n in range(500):
        for kind in wire.ACCEPT, wire.REJECT, wire.ACK:
            s.reply(kind, packet, (s.far, 666), handle=(packet.handle + n + 1) % (1 << 64), where=where)

    def sent():
        return {wire.NAMES[wire.parse(data).kind] for origin, _, data in packets.messages() if origin[0] == s.host}
    # The daemon's socket buffer may have been full: send the accept again, as for repeated requests.
    for _ in range(8):
        s.reply(wire.ACCEPT, packet, (s.far, 45000), where=where)
        s.peer.receive(timeout=1)
        if "ack" in sent():
            break
    _, remote, error = answer(s.kernel, seq, s.local, s.remote)
    expect("mapped", (remote, error), ((s.far, 45000), 0))
    expect("sent by the daemon", sent() - {"request"}, {"ack"})
    packets.close()
    s.close()


def case_replayed_accept(world):
    """An accept that was acknowledged before: at most one ack for each, and no message to the kernel."""
    s = Setup(world)
    seq, packet, where = s.query()
    packets = Wire(world.net("a"))
    for _ in range(200):
        s.reply(wire.ACCEPT, packet, (s.far, 45000), where=where)
    answer(s.kernel, seq, s.local, s.remote)
    expect("messages to the kernel", s.kernel.acknowledged(0), 0)
    s.kernel.remove(s.local)
    s.kernel.acknowledged(0)
    for _ in range(200):
        s.reply(wire.ACCEPT, packet, (s.far, 45000), where=where)
    s.kernel.acknowledged(0)
    incoming, outgoing = _traffic(packets, s.host)
    packets.close()
    s.close()
    if outgoing > incoming:
        raise Failure(f"{outgoing} bytes for {incoming}")
    return f"{incoming} bytes in, {outgoing} bytes out"


def _flood(world, port, facts):
    """Requests with new handles from a peer that never acknowledges."""
    s = Setup(world)
    s.kernel.add(s.local)
    hostile = _hostile(s)
    packets = Wire(world.net("a"))
    before, descriptors = s.daemon.rss(), s.daemon.descriptors()
    made = random.Random(1)
    for n in range(4000):
        hostile.send(wire.build(wire.REQUEST, (s.host, port), (world.net("b").v4, n % 60000 + 1),
                                made.getrandbits(64), (world.net("b").v4, 7)), s.host)
        if n % 50 == 0:
            packets.messages()
            while s.kernel.receive(timeout=0):
                pass
    if not _still_works(s):
        facts += "the reference answers no requests for twenty seconds: "
    incoming, outgoing = _traffic(packets, s.host)
    after = s.daemon.rss()
    packets.close()
    hostile.close()
    s.close()
    expect("descriptors", s.daemon.descriptors(), descriptors)
    s.daemon.alive()
    text = f"{incoming} bytes in, {outgoing} bytes out, {before} kB before, {after} kB after"
    if world.kind == "ours" and outgoing > incoming:
        raise Failure(f"amplifies: {text}")
    if world.kind == "ours" and after - before > 4096:
        raise Failure(f"memory: {text}")
    return facts + text


def case_flood_of_requests(world):
    return _flood(world, LOCAL, "accepted requests: ")


def case_flood_of_unknown_ports(world):
    return _flood(world, LOCAL + 1, "rejected requests: ")


def case_flood_of_noise(world):
    """Random bytes in messages of the right sizes."""
    s = Setup(world)
    s.kernel.add(s.local)
    hostile = _hostile(s)
    made = random.Random(2)
    for n in range(4000):
        hostile.send(made.randbytes(48 if n % 2 else 64), s.host)
    _still_works(s)
    hostile.close()
    s.close()


def case_netlink_noise(world):
    """Messages that the kernel never sends: the daemon survives and processes the next message."""
    s = Setup(world)
    whole = nl.u32(1, 1) + nl.attribute(2, nl.sockaddr(s.local)) + nl.u32(3, 0)
    for op in range(12):
        for size in 0, 2, 4, 6, 8, 12, 40, 139, len(whole) - 1:
            s.kernel.send_raw(nl.message(op, 1, whole[:size]))
        for family in 0, 1, 16, 0xFFFF:
            address = struct.pack("=H", family) + nl.sockaddr(s.local)[2:]
            s.kernel.send(op, nl.u32(1, 1) + nl.attribute(2, address) + nl.attribute(3, address) + nl.u32(4, 0))
        s.kernel.send(op, nl.u32(1, 1) + nl.attribute(2, b"x" * 200) + nl.attribute(3, b"y" * 300) + nl.attribute(4, b"z" * 64))
    made = random.Random(3)
    for _ in range(300):
        s.kernel.send_raw(made.randbytes(made.randrange(1, 400)))
    s.kernel.send_raw(struct.pack("=IHHII", 0xFFFFFFFF, nl.IWCM << 10, 1, 1, 0))
    while s.kernel.receive(timeout=1):
        pass
    s.daemon.alive()
    s.kernel.add((s.host, 5999))
    s.close()


def case_signals_in_traffic(world):
    """SIGUSR1 a hundred times while requests arrive."""
    s = Setup(world)
    s.kernel.add(s.local)
    for n in range(100):
        s.peer.send(wire.build(wire.REQUEST, (s.host, LOCAL + 1), s.remote, n + 1, s.mapped_cp), s.host)
        os.kill(s.daemon.pid, signal.SIGUSR1)
    if world.kind == "reference":
        s.kernel.send(nl.MAPINFO_NUM, nl.u32(1, 1) + nl.u32(2, 0))
        alive = s.kernel.receive(timeout=5)
        s.close()
        return f"the reference {'survives' if alive else 'hangs'}"
    s.kernel.acknowledged(0)
    s.close()
