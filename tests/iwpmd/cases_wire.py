"""Requests of a peer: one daemon in namespace a; its kernel and its peer are scripted."""

import subprocess

import netlink as nl
import wire
from basics import TIMEOUT, Failure, expect
from setup import LOCAL, MOST_SENDINGS, Setup


def _accepts(world, version, old=False):
    s = Setup(world, version)
    mapped = s.kernel.add(s.local)
    s.request(old=old)
    packet, where = s.receive(wire.ACCEPT)
    expect("the accept", (packet.ap, packet.cp, packet.handle, packet.size, packet.reserved),
           (mapped, s.remote, s.handle, 48, 0))
    expect("from", where, (s.host, wire.PORT))
    info = s.kernel.answer(nl.REMOTE_INFO)
    addresses = [nl.endpoint(info.attrs[kind]) for kind in (2, 3, 4, 5)]
    s.reply(wire.ACK, packet)
    s.close()
    if not old:
        expect("REMOTE_INFO", addresses, [s.local, s.remote, mapped, s.mapped_cp])
        expect("REMOTE_INFO's error", nl.number(info.attrs.get(6, b"\0\0")), 0)
    return f"sent to the kernel: mapped remote {addresses[3]}, attributes {sorted(info.attrs)}"


def case_accept_ipv4(world):
    return _accepts(world, 4)


def case_accept_ipv6(world):
    return _accepts(world, 6)


def case_accept_request_of_48_bytes(world):
    """Requests of old peers, without the mapped address."""
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
    packet = None
    for port, handle in (LOCAL + 1, 1), (LOCAL, 2):
        s.request(port, handle)
        packet, _ = s.receive(wire.REJECT, f"reject for port {port}", after=packet)
        expect("the reject", (packet.ap, packet.cp, packet.handle, packet.size), ((s.host, port), s.remote, handle, 48))
    s.close()


def case_reject_again(world):
    """A request that is repeated because the reject was lost."""
    s = Setup(world)
    s.request()
    first, _ = s.receive(wire.REJECT)
    s.request()
    again = s.peer.receive(timeout=3 if world.kind == "reference" else TIMEOUT)
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
    """The reference repeats it until it is acknowledged. Ours repeats it when the request is repeated."""
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
        pass  # one may have been in transit
    s.reply(wire.ACK, packet)
    s.kernel.answer(nl.REMOTE_INFO)
    s.close()


def case_request_again(world):
    """A request that is repeated because the accept was lost creates only one connection."""
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
    """The number of accepts for one request that is never acknowledged: no amplification."""
    s = Setup(world)
    s.kernel.add(s.local)
    s.request()
    sent = 0
    while s.peer.receive(timeout=4):
        sent += 1
    s.close()
    if world.kind == "ours" and sent != 1 or sent > MOST_SENDINGS:
        raise Failure(f"{sent} accepts for one request")
    return f"{sent} accepts, {48 * sent} bytes for 64"


def _asked_at_second_address(world, version, second, length):
    """A host with two addresses: answers come from the address that was queried, the only one that ours accepts."""
    s = Setup(world, version)
    address = f"{second}/{length}"
    subprocess.run(["ip", "-n", "a", "addr", "replace", address, "dev", "eth", *(["nodad"] if version == 6 else [])], check=True)
    s.kernel.add((second, LOCAL))
    first, s.host = s.host, second
    s.asked = wire.build(wire.REQUEST, (second, LOCAL), s.remote, 3, s.mapped_cp)
    s.peer.send(s.asked, second)
    packet, where = s.receive(wire.ACCEPT)
    s.reply(wire.ACK, packet)
    s.close()
    subprocess.run(["ip", "-n", "a", "addr", "del", address, "dev", "eth"], check=True)
    if world.kind == "reference":
        return f"asked at {second}, the reference answers from {where[0]}; its first address is {first}"
    expect("the accept's origin", where[0], second)


def case_answers_come_from_the_address_asked(world):
    return _asked_at_second_address(world, 4, "10.88.0.51", 24)


def case_answers_come_from_the_address_asked_ipv6(world):
    return _asked_at_second_address(world, 6, "fd00:88::51", 64)
