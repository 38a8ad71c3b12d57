"""Two daemons: the tested one in namespace a, the other in b, each with its own simulated kernel."""

import os

import netlink as nl
import wire
from basics import Failure, Skip, expect, until
from kernel_side import Kernel
from net import Wire
from world import Daemon

LOCAL, REMOTE = 5000, 6000


class Pair:
    """`ask` is the kernel that connects, `tell` the one that listens; each has a daemon."""

    def __init__(self, world, swapped):
        if not os.access(world.other_path, os.X_OK):
            raise Skip(f"there is no {world.other_path}")
        self.world, nets = world, [world.net("a"), world.net("b")]
        kernels = [Kernel(), Kernel()]
        for kernel, net, path in zip(kernels, nets, (world.path, world.other_path)):
            Daemon(world, path, net=net, kernel=kernel)
            kernel.register()
        self.packets = Wire(nets[0])
        if swapped:
            nets, kernels = nets[::-1], kernels[::-1]
        self.ask, self.tell = kernels
        self.asker = world.other_kind if swapped else world.kind
        self.ask_net, self.tell_net = nets

    def query(self, local, remote):
        """(mapped local, mapped remote, error)"""
        seq = self.ask.ask_query(local, remote)
        got = self.ask.answer(nl.QUERY)
        expect("SEQ", nl.number(got.attrs[1]), seq)
        expect("addresses", (nl.endpoint(got.attrs[2]), nl.endpoint(got.attrs[3])), (local, remote))
        return nl.endpoint(got.attrs[4]), nl.endpoint(got.attrs[5]), nl.number(got.attrs[6])

    def _kinds(self):
        return [wire.NAMES[wire.parse(data).kind] for _, _, data in self.packets.messages()]

    def seen(self, least, last="request"):
        """Waits for at least so many messages on the link and one of the kind `last`. Returns all kinds."""
        until(lambda: len(self._kinds()) >= least and last in self._kinds(), f"{least} messages with a {last}")
        return self._kinds()


def both_ways(check):
    def case(world):
        facts = [check(Pair(world, False))]
        for daemon in list(world.daemons):
            daemon.end()
        world.tidy()
        facts.append(check(Pair(world, True)))
        return f"{world.kind} and {world.other_kind}: {'; other way: '.join(map(str, facts))}"
    case.__doc__ = check.__doc__
    return case


def _connects(pair, version, listen=None):
    local, remote = (pair.ask_net.address(version), LOCAL), (pair.tell_net.address(version), REMOTE)
    listener = (listen or remote[0], REMOTE)
    mapped = pair.tell.add(listener)
    mapped_local, mapped_remote, error = pair.query(local, remote)
    expect("mapped port and error", (mapped_remote[1], error), (mapped[1], 0))
    info = pair.tell.answer(nl.REMOTE_INFO)
    addresses = [nl.endpoint(info.attrs[kind]) for kind in (3, 5)]
    expect("REMOTE_INFO's remote addresses", addresses, [local, mapped_local])
    seen = pair.seen(3, "ack")
    expect("messages", list(dict.fromkeys(seen)), ["request", "accept", "ack"])
    if "reference" not in (pair.world.kind, pair.world.other_kind):  # which may be asked twice, see Setup.receive
        expect("number of messages", len(seen), 3)
    pair.ask.remove(local)
    pair.tell.remove(listener)
    expect("acknowledged", (pair.ask.acknowledged(0), pair.tell.acknowledged(0)), (0, 0))
    return ", ".join(seen)


@both_ways
def case_accept_ipv4(pair):
    return _connects(pair, 4)


@both_ways
def case_accept_ipv6(pair):
    return _connects(pair, 6)


@both_ways
def case_accept_wildcard_ipv4(pair):
    return _connects(pair, 4, "0.0.0.0")


@both_ways
def case_accept_wildcard_ipv6(pair):
    return _connects(pair, 6, "::")


@both_ways
def case_reject(pair):
    local, remote = (pair.ask_net.v4, LOCAL), (pair.tell_net.v4, REMOTE)
    mapped_local, mapped_remote, error = pair.query(local, remote)
    expect("unmapped remote address, error", (mapped_remote, error), (remote, nl.REJECTED))
    return pair.seen(2, "reject")


@both_ways
def case_many_connections(pair):
    """Fifty clients of one listener."""
    remote = pair.tell_net.v4, REMOTE
    mapped = pair.tell.add(remote)
    for port in range(LOCAL, LOCAL + 50):
        pair.ask.ask_query((pair.ask_net.v4, port), remote)
    answers = [pair.ask.answer(nl.QUERY) for _ in range(50)]
    expect("mapped, errors", {(nl.endpoint(a.attrs[5]), nl.number(a.attrs[6])) for a in answers}, {(mapped, 0)})
    expect("local ports", {nl.endpoint(a.attrs[2])[1] for a in answers}, set(range(LOCAL, LOCAL + 50)))
    infos = [pair.tell.answer(nl.REMOTE_INFO) for _ in range(50)]
    expect("remote ports", {nl.endpoint(i.attrs[3])[1] for i in infos}, set(range(LOCAL, LOCAL + 50)))
    return f"{len(pair.seen(150))} messages"


def _lossy(pair, loss):
    """Messages are repeated until they arrive. A query whose messages are all lost for ten seconds fails, and is
    repeated, as by a program that connects again: one query in four hundred, one in twenty with a loss of a half."""
    remote, given_up = (pair.tell_net.v4, REMOTE), 0
    mapped = pair.tell.add(remote)
    for net in pair.ask_net, pair.tell_net:
        net.quality("loss", loss)
    def ask(port):
        asked[pair.ask.ask_query((pair.ask_net.v4, port), remote)] = port

    asked = {}
    for port in range(LOCAL, LOCAL + 10):
        ask(port)
    while asked:
        # The reference sends nothing when a query fails. Ours sends only the sequence number.
        got = pair.ask.receive("an answer", *([15] if pair.asker == "reference" else []))
        if got is None or got.op == nl.HANDLE_ERR:
            for seq in list(asked) if got is None else [nl.number(got.attrs[1])]:
                ask(asked.pop(seq))
                given_up += 1
            if given_up > 20:
                raise Failure("no more messages arrive")
            continue
        expect("answer", nl.NAMES[got.op], "QUERY")
        port = asked.pop(nl.number(got.attrs[1]))
        values = nl.endpoint(got.attrs[2])[1], nl.endpoint(got.attrs[5]), nl.number(got.attrs[6])
        expect("local port, mapped, error", values, (port, mapped, 0))
    ports = set()
    while len(ports) < 10:
        ports.add(nl.endpoint(pair.tell.answer(nl.REMOTE_INFO).attrs[3])[1])
    return f"{len(pair.seen(1))} messages for 10 connections, {given_up} queries failed and were repeated"


@both_ways
def case_loss(pair):
    """Every third message is lost in each direction."""
    return _lossy(pair, "33%")


@both_ways
def case_heavy_loss(pair):
    """Every second message is lost in each direction."""
    return _lossy(pair, "50%")


@both_ways
def case_peer_restarts(pair):
    """The listener's daemon starts after the query."""
    local, remote = (pair.ask_net.v4, LOCAL), (pair.tell_net.v4, REMOTE)
    other = next(d for d in pair.world.daemons if d.kernel is pair.tell)
    path = pair.world.path if other is pair.world.daemons[0] else pair.world.other_path
    other.end()
    seq = pair.ask.ask_query(local, remote)
    pair.seen(1)
    kernel = Kernel()
    kernel.mapinfo_at_start = [(remote, (remote[0], 42001), 0)]
    Daemon(pair.world, path, net=pair.tell_net, kernel=kernel)
    got = pair.ask.answer(nl.QUERY)
    expect("SEQ, mapped, error", (nl.number(got.attrs[1]), nl.endpoint(got.attrs[5]), nl.number(got.attrs[6])),
           (seq, (remote[0], 42001), 0))
    return "answered after the restart"
