"""Messages between daemons: one daemon in namespace a, its kernel and its peer are scripted."""

import subprocess

import netlink as nl
import wire
from kernel_side import Kernel
from world import PATIENCE, Daemon, Failure, Wire, expect

LOCAL, REMOTE = 5000, 6000
# A request or accept is sent at once and then every second for ten seconds.
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
        """Asks the daemon for a local port, as a connecting peer at port 6000 mapped to 44000 does."""
        data = wire.build(wire.REQUEST, (self.host, port), self.remote, handle or self.handle,
                          None if old else self.mapped_cp)
        (sender or self.peer).send(data, self.host)
        self.asked = data

    def reply(self, kind, to, ap=None, sender=None, handle=None, where=None):
        """Answers a message of the daemon."""
        data = wire.build(kind, ap or to.ap, to.cp, handle or to.handle)
        (sender or self.peer).send(data, *(where or (self.host, wire.PORT)))

    def receive(self, kind, what=None):
        """The next message to the peer. The reference's sending thread now and then misses that there is
        something to send, until there is more: it is asked again, as other daemons do."""
        got = None
        if self.world.kind == "reference" and self.asked:
            for _ in range(9):
                got = self.peer.receive(patience=2)
                if got:
                    break
                self.world.slow += 1
                self.peer.send(self.asked, self.host)
        packet, where = got or self.peer.receive(what or "an answer" if kind is None else wire.NAMES[kind])
        if kind is not None and packet.kind != kind:
            raise Failure(f"{wire.describe(packet)} instead of {wire.NAMES[kind]}")
        return packet, where

    def query(self):
        """The kernel asks for the peer's port: the message's sequence number and the request of the daemon."""
        seq = self.kernel.ask_query(self.local, self.remote)
        return seq, *self.receive(wire.REQUEST)

    def close(self):
        self.peer.close()


def _answer(kernel, seq, local, remote):
    got = kernel.answer(nl.QUERY)
    expect("SEQ", nl.number(got.attrs[1]), seq)
    expect("addresses", (nl.endpoint(got.attrs[2]), nl.endpoint(got.attrs[3])), (local, remote))
    return nl.endpoint(got.attrs[4]), nl.endpoint(got.attrs[5]), nl.number(got.attrs[6])


def _accepts(world, version, old=False):
    s = Setup(world, version)
    mapped = s.kernel.add(s.local)
    s.request(old=old)
    packet, where = s.receive(wire.ACCEPT)
    expect("the accept", (packet.ap, packet.cp, packet.handle, packet.size, packet.reserved),
           (mapped, s.remote, s.handle, 48, 0))
    expect("from", where, (s.host, wire.PORT))
    info = s.kernel.answer(nl.REMOTE_INFO)
    told = [nl.endpoint(info.attrs[kind]) for kind in (2, 3, 4, 5)]
    s.reply(wire.ACK, packet)
    s.close()
    if not old:
        expect("REMOTE_INFO", told, [s.local, s.remote, mapped, s.mapped_cp])
        expect("REMOTE_INFO's error", nl.number(info.attrs.get(6, b"\0\0")), 0)
    return f"told to the kernel: mapped remote {told[3]}, attributes {sorted(info.attrs)}"


def case_accept_ipv4(world):
    return _accepts(world, 4)


def case_accept_ipv6(world):
    return _accepts(world, 6)


def case_accept_request_of_48_bytes(world):
    """Peers of before the mapped address was added."""
    return _accepts(world, 4, old=True)


def _accept_wildcard(world, version, anyone):
    s = Setup(world, version)
    mapped = s.kernel.add((anyone, LOCAL))
    s.request()
    packet, _ = s.receive(wire.ACCEPT)
    expect("the mapped port", packet.ap[1], mapped[1])
    s.reply(wire.ACK, packet)
    s.close()
    info = s.kernel.answer(nl.REMOTE_INFO)
    return f"address in the accept {packet.ap[0]}, in REMOTE_INFO {[nl.endpoint(info.attrs[k])[0] for k in (2, 4)]}"


def case_accept_wildcard_ipv4(world):
    return _accept_wildcard(world, 4, "0.0.0.0")


def case_accept_wildcard_ipv6(world):
    return _accept_wildcard(world, 6, "::")


def case_reject(world):
    """No such mapping: no port, or the port of another address."""
    s = Setup(world)
    s.kernel.add(("10.88.0.77", LOCAL))
    for port, handle in (LOCAL + 1, 1), (LOCAL, 2):
        s.request(port, handle)
        packet, _ = s.receive(wire.REJECT, f"reject for port {port}")
        expect("the reject", (packet.ap, packet.cp, packet.handle, packet.size), ((s.host, port), s.remote, handle, 48))
    s.close()


def case_reject_again(world):
    """A request that is sent again, for the reject was lost."""
    s = Setup(world)
    s.request()
    first, _ = s.receive(wire.REJECT)
    s.request()
    again = s.peer.receive(patience=3 if world.kind == "reference" else PATIENCE)
    s.close()
    if again is None:
        return "the reference is silent: only the first request with a handle is answered"
    expect("the second answer", again[0], first)


def case_reject_after_removal(world):
    s = Setup(world)
    s.kernel.add(s.local)
    s.kernel.remove(s.local)
    s.kernel.acknowledged(0)
    s.request()
    s.receive(wire.REJECT)
    s.close()


def case_accept_is_repeated(world):
    """The reference repeats it until it is acknowledged. Ours repeats it when the request is repeated (FIX 3)."""
    s = Setup(world)
    s.kernel.add(s.local)
    s.request()
    first, _ = s.receive(wire.ACCEPT)
    for _ in range(2):
        if world.kind == "ours":
            s.request()
        expect("repetition", s.receive(wire.ACCEPT)[0], first)
    s.reply(wire.ACK, first)
    s.kernel.answer(nl.REMOTE_INFO)
    s.request(handle=7)
    while (packet := s.receive(wire.ACCEPT)[0]).handle != 7:
        pass  # one may have been under way
    s.reply(wire.ACK, packet)
    s.kernel.answer(nl.REMOTE_INFO)
    s.close()


def case_request_again(world):
    """A request that is sent again, for the accept was lost, makes one connection only."""
    s = Setup(world)
    s.kernel.add(s.local)
    s.request()
    first, _ = s.receive(wire.ACCEPT)
    s.request()
    s.reply(wire.ACK, first)
    s.request(LOCAL + 1, handle=3)
    answers = []
    while (packet := s.receive(None)[0]).kind != wire.REJECT:
        answers.append(packet)
    s.kernel.answer(nl.REMOTE_INFO)
    seq = s.kernel.ask_add((s.host, 5050))
    expect("one REMOTE_INFO, then", nl.number(s.kernel.answer(nl.ADD).attrs[1]), seq)
    s.close()
    return f"{len(answers)} further accepts before the ack"


def case_accept_without_ack(world):
    """How many accepts one request brings that is never acknowledged: no more than it costs (FIX 3)."""
    s = Setup(world)
    s.kernel.add(s.local)
    s.request()
    sent = 0
    while s.peer.receive(patience=4):
        sent += 1
    s.close()
    if world.kind == "ours" and sent != 1 or sent > MOST_SENDINGS:
        raise Failure(f"{sent} accepts for one request")
    return f"{sent} accepts, {48 * sent} bytes for 64"


def _query(world, version):
    s = Setup(world, version)
    seq, packet, where = s.query()
    expect("the request", (packet.ap, packet.cp, packet.size), (s.remote, s.local, 64))
    expect("its mapped address", packet.mapped_cp[0], s.host)
    if where[1] == wire.PORT:
        raise Failure("a request from port 3935 itself")
    s.reply(wire.ACCEPT, packet, (s.far, 45000), where=where)
    local, remote, error = _answer(s.kernel, seq, s.local, s.remote)
    expect("mapped", (local, remote, error), (packet.mapped_cp, (s.far, 45000), 0))
    ack, ack_from = s.receive(wire.ACK)
    expect("the ack", (ack.handle, ack.cp, ack.size), (packet.handle, s.local, 48))
    s.reply(wire.ACCEPT, packet, (s.far, 45000), where=where)
    again, _ = s.receive(wire.ACK, "an ack of the second accept")
    expect("the second ack", again, ack)
    s.close()
    return f"the ack comes from {'the same socket' if ack_from == where else ack_from}, with ap {ack.ap}"


def case_query_ipv4(world):
    return _query(world, 4)


def case_query_ipv6(world):
    return _query(world, 6)


def case_query_answered_to_port_3935(world):
    """An accept to the daemon's port instead of the socket that asked: the reference takes it."""
    s = Setup(world)
    seq, packet, where = s.query()
    s.reply(wire.ACCEPT, packet, (s.far, 45001 if world.kind == "ours" else 45000))
    if world.kind == "ours":
        expect("what is told to the kernel", s.kernel.acknowledged(0), 0)
        s.reply(wire.ACCEPT, packet, (s.far, 45000), where=where)
    _, remote, error = _answer(s.kernel, seq, s.local, s.remote)
    expect("mapped", (remote, error), ((s.far, 45000), 0))
    s.receive(wire.ACK)
    s.close()


def case_query_accepted_with_wildcard(world):
    """The kernel itself puts the remote address in."""
    s = Setup(world)
    seq, packet, where = s.query()
    s.reply(wire.ACCEPT, packet, ("0.0.0.0", 45000), where=where)
    _, remote, error = _answer(s.kernel, seq, s.local, s.remote)
    expect("the mapped port", (remote[1], error), (45000, 0))
    s.close()
    return f"told to the kernel: {remote}"


def case_query_rejected(world):
    s = Setup(world)
    seq, packet, where = s.query()
    s.reply(wire.REJECT, packet, where=where)
    local, remote, error = _answer(s.kernel, seq, s.local, s.remote)
    expect("mapped", (local, remote, error), (packet.mapped_cp, s.remote, nl.REJECTED))
    s.close()


def case_query_is_repeated(world):
    s = Setup(world)
    seq, packet, where = s.query()
    second, third = (s.receive(wire.REQUEST)[0] for _ in range(2))
    expect("repetitions", (second, third), (packet, packet))
    s.reply(wire.ACCEPT, packet, (s.far, 45000), where=where)
    expect("error", _answer(s.kernel, seq, s.local, s.remote)[2], 0)
    s.close()


def case_query_is_given_up(world):
    """FIX 5: the kernel is told, and the mapping's reference is released."""
    s = Setup(world)
    before = s.daemon.descriptors()
    seq, _, _ = s.query()
    sent = 1
    while s.peer.receive(patience=4):
        sent += 1
    if not 9 <= sent <= MOST_SENDINGS:
        raise Failure(f"{sent} requests for one query")
    told = s.kernel.receive(patience=0)
    s.close()
    if world.kind == "reference":
        expect("the reference tells the kernel, descriptors", (told, s.daemon.descriptors()), (None, before + 1))
        return f"{sent} requests; the kernel is not told, the port stays held"
    if not told or told.op not in (nl.QUERY, nl.HANDLE_ERR):
        raise Failure("the kernel is not told")
    expect("SEQ", nl.number(told.attrs[1]), seq)
    error = nl.number(told.attrs[6 if told.op == nl.QUERY else 2])
    if error == 0:
        raise Failure("an answer without an error")
    expect("descriptors", s.daemon.descriptors(), before)
    return f"{sent} requests; error {error} in {nl.NAMES[told.op]}"


def case_query_twice_from_one_address(world):
    """Two connections of one local address share its mapping."""
    s = Setup(world)
    before = s.daemon.descriptors()
    handles = set()
    for port in REMOTE, REMOTE + 1:
        seq = s.kernel.ask_query(s.local, (s.far, port))
        packet, where = s.receive(wire.REQUEST)
        handles.add(packet.handle)
        s.reply(wire.ACCEPT, packet, (s.far, 45000), where=where)
        _answer(s.kernel, seq, s.local, (s.far, port))
        s.receive(wire.ACK)
    expect("handles, descriptors", (len(handles), s.daemon.descriptors()), (2, before + 1))
    s.kernel.remove(s.local)
    s.kernel.acknowledged(0)
    expect("descriptors after one removal", s.daemon.descriptors(), before + 1)
    s.kernel.remove(s.local)
    s.kernel.acknowledged(0)
    expect("descriptors after both", s.daemon.descriptors(), before)
    s.close()


def case_query_of_a_wildcard(world):
    s = Setup(world)
    seq = s.kernel.ask_query(("0.0.0.0", LOCAL), s.remote)
    expect("the error", s.kernel.error()[0], seq)
    s.close()


def case_query_without_mapping(world):
    """NO_PORT_MAP: the peer is asked all the same, with the local address as the mapped one."""
    s = Setup(world)
    before = s.daemon.descriptors()
    seq = s.kernel.ask_query(s.local, s.remote, nl.NO_PORT_MAP)
    packet, where = s.receive(wire.REQUEST)
    expect("the mapped address", packet.mapped_cp, s.local)
    s.reply(wire.ACCEPT, packet, s.remote, where=where)
    expect("mapped", _answer(s.kernel, seq, s.local, s.remote), (s.local, s.remote, 0))
    expect("descriptors", s.daemon.descriptors(), before)
    s.close()


def case_answers_come_from_the_address_asked(world):
    """A host with two addresses: its peer knows the one that it asked, and ours takes answers from there only."""
    s = Setup(world)
    second = "10.88.0.51"
    subprocess.run(["ip", "-n", "a", "addr", "replace", f"{second}/24", "dev", "eth"], check=True)
    s.kernel.add((second, LOCAL))
    s.asked = wire.build(wire.REQUEST, (second, LOCAL), s.remote, 3, s.mapped_cp)
    s.host = second
    s.peer.send(s.asked, second)
    packet, where = s.receive(wire.ACCEPT)
    s.reply(wire.ACK, packet)
    s.close()
    subprocess.run(["ip", "-n", "a", "addr", "del", f"{second}/24", "dev", "eth"], check=True)
    expect("the accept's origin", where[0], world.by_kind(second, "10.88.0.1"))


def case_handles_cannot_be_guessed(world):
    """FIX 2."""
    s = Setup(world)
    handles = []
    for port in range(REMOTE, REMOTE + 8):
        seq = s.kernel.ask_query(s.local, (s.far, port))
        packet, where = s.receive(wire.REQUEST)
        handles.append(packet.handle)
        s.reply(wire.REJECT, packet, where=where)
        _answer(s.kernel, seq, s.local, (s.far, port))
    s.close()
    spread = max(handles) ^ min(handles)
    if world.kind == "reference":
        return f"the reference's: {min(handles):#x} to {max(handles):#x}"
    expect("different handles, top bits differ", (len(set(handles)), spread >> 48 != 0), (8, True))
    return f"{min(handles):#x} to {max(handles):#x}"
