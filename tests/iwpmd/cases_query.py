"""Queries that the daemon sends to a peer for its kernel: one daemon in namespace a; kernel and peer are scripted."""

import time

import netlink as nl
import wire
from basics import Failure, expect
from setup import LOCAL, MOST_SENDINGS, REMOTE, Setup, answer


def _query(world, version):
    s = Setup(world, version)
    seq, packet, where = s.query()
    expect("the request", (packet.ap, packet.cp, packet.size), (s.remote, s.local, 64))
    expect("its mapped address", packet.mapped_cp[0], s.host)
    if where[1] == wire.PORT:
        raise Failure("a request from port 3935 itself")
    s.reply(wire.ACCEPT, packet, (s.far, 45000), where=where)
    local, remote, error = answer(s.kernel, seq, s.local, s.remote)
    expect("mapped", (local, remote, error), (packet.mapped_cp, (s.far, 45000), 0))
    ack, ack_from = s.receive(wire.ACK, after=packet)
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
    """An accept that is sent to the daemon's port instead of the querying socket: the reference accepts it."""
    s = Setup(world)
    seq, packet, where = s.query()
    s.reply(wire.ACCEPT, packet, (s.far, 45001 if world.kind == "ours" else 45000))
    if world.kind == "ours":
        expect("messages to the kernel", s.kernel.acknowledged(0), 0)
        s.reply(wire.ACCEPT, packet, (s.far, 45000), where=where)
    _, remote, error = answer(s.kernel, seq, s.local, s.remote)
    expect("mapped", (remote, error), ((s.far, 45000), 0))
    s.receive(wire.ACK, after=packet)
    s.close()


def case_query_accepted_with_wildcard(world):
    """The kernel replaces the wildcard by the remote address."""
    s = Setup(world)
    seq, packet, where = s.query()
    s.reply(wire.ACCEPT, packet, ("0.0.0.0", 45000), where=where)
    _, remote, error = answer(s.kernel, seq, s.local, s.remote)
    expect("the mapped port", (remote[1], error), (45000, 0))
    s.close()
    return f"sent to the kernel: {remote}"


def case_query_rejected(world):
    s = Setup(world)
    seq, packet, where = s.query()
    s.reply(wire.REJECT, packet, where=where)
    local, remote, error = answer(s.kernel, seq, s.local, s.remote)
    expect("mapped", (local, remote, error), (packet.mapped_cp, s.remote, nl.REJECTED))
    s.close()


def case_query_is_repeated(world):
    s = Setup(world)
    seq, packet, where = s.query()
    second, third = (s.receive(wire.REQUEST)[0] for _ in range(2))
    expect("repetitions", (second, third), (packet, packet))
    s.reply(wire.ACCEPT, packet, (s.far, 45000), where=where)
    expect("error", answer(s.kernel, seq, s.local, s.remote)[2], 0)
    s.close()


def case_query_is_given_up(world):
    """The kernel gets an error, and the mapping's reference is released."""
    s = Setup(world)
    before = s.daemon.descriptors()
    seq, _, _ = s.query()
    sent = 1
    while s.peer.receive(timeout=4):
        sent += 1
    if not 9 <= sent <= MOST_SENDINGS:
        raise Failure(f"{sent} requests for one query")
    answer = s.kernel.receive(timeout=0)
    s.close()
    if world.kind == "reference":
        expect("the reference's answer, descriptors", (answer, s.daemon.descriptors()), (None, before + 1))
        return f"{sent} requests; no answer to the kernel, and the port stays in use"
    if not answer or answer.op not in (nl.QUERY, nl.HANDLE_ERR):
        raise Failure("no answer to the kernel")
    expect("SEQ", nl.number(answer.attrs[1]), seq)
    error = nl.number(answer.attrs[6 if answer.op == nl.QUERY else 2])
    if error == 0:
        raise Failure("an answer without an error")
    expect("descriptors", s.daemon.descriptors(), before)
    slept = s.daemon.wakeups()
    time.sleep(0.5)
    expect("wake-ups with nothing to do", s.daemon.wakeups() - slept, 0)
    return f"{sent} requests; error {error} in {nl.NAMES[answer.op]}"


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
        answer(s.kernel, seq, s.local, (s.far, port))
        s.receive(wire.ACK, after=packet)
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
    """NO_PORT_MAP: the peer is queried nevertheless, with the local address as the mapped one."""
    s = Setup(world)
    before = s.daemon.descriptors()
    seq = s.kernel.ask_query(s.local, s.remote, nl.NO_PORT_MAP)
    packet, where = s.receive(wire.REQUEST)
    expect("the mapped address", packet.mapped_cp, s.local)
    s.reply(wire.ACCEPT, packet, s.remote, where=where)
    expect("mapped", answer(s.kernel, seq, s.local, s.remote), (s.local, s.remote, 0))
    expect("descriptors", s.daemon.descriptors(), before)
    s.close()


def case_handles_cannot_be_guessed(world):
    """Handles of requests differ and are not sequential."""
    s = Setup(world)
    handles = []
    for port in range(REMOTE, REMOTE + 8):
        seq = s.kernel.ask_query(s.local, (s.far, port))
        packet, where = s.receive(wire.REQUEST)
        handles.append(packet.handle)
        s.reply(wire.REJECT, packet, where=where)
        answer(s.kernel, seq, s.local, (s.far, port))
    s.close()
    spread = max(handles) ^ min(handles)
    if world.kind == "reference":
        return f"the reference's: {min(handles):#x} to {max(handles):#x}"
    expect("different handles, top bits differ", (len(set(handles)), spread >> 48 != 0), (8, True))
    return f"{min(handles):#x} to {max(handles):#x}"
