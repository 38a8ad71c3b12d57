"""The daemon's answers to the kernel, which kernel_side.py simulates."""

import errno
import socket

import netlink as nl
from basics import Failure, expect
from kernel_side import Kernel
from world import Daemon

V4, V6, ANY4, ANY6 = "10.88.0.1", "fd00:88::1", "0.0.0.0", "::"


def start(world, version=4, register=True):
    kernel = Kernel(version)
    daemon = Daemon(world, world.path, net=world.net("a"), kernel=kernel)
    if register:
        kernel.register()
    return kernel, daemon


def held(world, where, net="a"):
    """Returns whether this TCP port is in use, so that a server cannot bind it."""
    family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
    with world.net(net), socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(where)
        except OSError as why:
            if why.errno == errno.EADDRINUSE:
                return True
            raise
    return False


def listening(world, where):
    with world.net("a"), socket.socket() as probe:
        return probe.connect_ex(where) == 0


def case_hello_4(world):
    kernel, daemon = start(world, register=False)
    hello, mapinfo = kernel.sent_first
    expect("HELLO's version", hello.attrs, {1: b"\4\0"})
    expect("MAPINFO's name", mapinfo.attrs[1], nl.ULIB)
    expect("MAPINFO's client", mapinfo.client, nl.IWCM)
    expect("the header's process", {hello.pid, mapinfo.pid}, {daemon.pid})
    return f"library version {nl.number(mapinfo.attrs[2])}, notified {daemon.notified!r}"


def _version_3(world, version):
    kernel, _ = start(world, version, register=False)
    first, second = kernel.sent_first[1:]
    expect("clients asked for mappings", (first.client, second.client), (nl.IWCM, nl.IWCM + 1))
    expect("library version", (first.attrs[2], second.attrs[2]), (b"\3\0", b"\3\0"))
    _, answer = kernel.register()
    expect("REG_PID's version", nl.number(answer.attrs[4]), 3)
    mapped = kernel.add((V4, 5000))
    expect("the port is held", held(world, (V4, mapped[1])), True)


def case_hello_3(world):
    _version_3(world, 3)


def case_hello_unknown_to_kernel(world):
    _version_3(world, "old")


def case_hello_5(world):
    kernel, _ = start(world, 5, register=False)
    expect("the error", kernel.error()[1], nl.VERSION)


def case_register(world):
    kernel, _ = start(world, register=False)
    seq, answer = kernel.register()
    expect("SEQ", nl.number(answer.attrs[1]), seq)
    expect("device", answer.attrs[2].rstrip(b"\0"), b"siw0")
    expect("library", answer.attrs[3], nl.ULIB)
    expect("version and error", (nl.number(answer.attrs[4]), nl.number(answer.attrs[5])), (4, 0))
    again, answer = kernel.register()
    expect("SEQ of the second", nl.number(answer.attrs[1]), again)
    expect("error of the second", nl.number(answer.attrs[5]), 0)
    seq = kernel.ask_register(name=b"another\0")
    expect("another library", kernel.error(), (seq, nl.LIB_INFO))


def case_unregistered(world):
    kernel, _ = start(world, register=False)
    for ask in (lambda: kernel.ask_add((V4, 5000)), lambda: kernel.ask_query((V4, 5000), ("10.88.0.3", 6000))):
        seq, answer = ask(), "nothing"
        kernel.send(nl.MAPINFO_NUM, nl.u32(1, 1) + nl.u32(2, 0))
        got = kernel.receive()
        if got.op == nl.HANDLE_ERR:
            answer = nl.number(got.attrs[2])
            expect("the error's sequence", nl.number(got.attrs[1]), seq)
            got = kernel.receive()
        expect("the next answer", nl.NAMES[got.op], "MAPINFO_NUM")
    return f"rejected, answer to the kernel: {answer}"


def _add(world, address):
    kernel, daemon = start(world)
    before = daemon.descriptors()
    mapped = kernel.add((address, 5000))
    expect("the mapped address", mapped[0], address)
    expect("the port is held", held(world, mapped), True)
    expect("descriptors", daemon.descriptors(), before + 1)
    if ":" not in address and listening(world, ("127.0.0.1", mapped[1])):
        raise Failure("the daemon listens on the mapped port")
    kernel.remove((address, 5000))
    kernel.acknowledged(0)
    expect("the port is held after removal", held(world, mapped), False)
    expect("descriptors after removal", daemon.descriptors(), before)
    return f"{address} port 5000 was mapped to {mapped[1]}"


def case_add_ipv4(world):
    return _add(world, V4)


def case_add_ipv6(world):
    return _add(world, V6)


def case_add_wildcard_ipv4(world):
    return _add(world, ANY4)


def case_add_wildcard_ipv6(world):
    return _add(world, ANY6)


def case_mapped_ports_are_for_one_family_only(world):
    """A TCP server of the other family may use the port."""
    kernel, _ = start(world)
    port4, port6 = kernel.add((V4, 5000))[1], kernel.add((V6, 5001))[1]
    expect("held by the IPv4 mapping: IPv4, IPv6", (held(world, (V4, port4)), held(world, (V6, port4))), (True, False))
    expect("held by the IPv6 mapping: IPv6", held(world, (V6, port6)), True)
    return f"the IPv6 mapping holds the port for IPv4 too: {held(world, (V4, port6))}"


def case_add_twice(world):
    kernel, _ = start(world)
    kernel.add((V4, 5000))
    seq = kernel.ask_add((V4, 5000))
    expect("the second", kernel.error(), (seq, nl.DUPLICATE))
    other = kernel.add(("10.88.0.9", 5000))
    return f"another address, same port: mapped to {other}"


def case_add_beside_wildcard(world):
    kernel, _ = start(world)
    kernel.add((ANY4, 5000))
    seq = kernel.ask_add((V4, 5000))
    expect("an address beside the wildcard", kernel.error(), (seq, nl.DUPLICATE))
    kernel.add((V4, 5001))
    seq = kernel.ask_add((ANY4, 5001))
    expect("the wildcard beside an address", kernel.error(), (seq, nl.DUPLICATE))


def case_wildcard_references(world):
    """A wildcard address that is added again is one mapping with two references."""
    kernel, _ = start(world)
    mapped = kernel.add((ANY4, 5000))
    expect("mapped the second time", kernel.add((ANY4, 5000)), mapped)
    kernel.remove((ANY4, 5000))
    kernel.acknowledged(0)
    expect("held after the first removal", held(world, mapped), True)
    kernel.remove((ANY4, 5000))
    kernel.acknowledged(0)
    expect("held after the second removal", held(world, mapped), False)


def case_remove_unknown(world):
    kernel, _ = start(world)
    mapped = kernel.add((V4, 5000))
    kernel.remove((V4, 5001))
    kernel.remove(("10.88.0.9", 5000))
    kernel.remove((ANY4, 5000))
    kernel.acknowledged(0)
    expect("held", held(world, mapped), True)


def case_no_port_map(world):
    kernel, daemon = start(world)
    before = daemon.descriptors()
    expect("mapped", kernel.add((V4, 5000), nl.NO_PORT_MAP), (V4, 5000))
    expect("descriptors", daemon.descriptors(), before)
    expect("held", held(world, (V4, 5000)), False)
    kernel.remove((V4, 5000))
    expect("mapped again", kernel.add((V4, 5000), nl.NO_PORT_MAP), (V4, 5000))


def case_mapinfo(world):
    """After a restart the kernel's mappings get the same ports."""
    kernel, daemon = start(world, register=False)
    before = daemon.descriptors()
    kernel.mapinfo(((V4, 5000), (V4, 42001), 0), ((V6, 5001), (V6, 42002), 0), ((ANY4, 5002), (ANY4, 42003), 0),
                   ((V4, 5003), (V4, 5003), nl.NO_PORT_MAP))
    taken = kernel.acknowledged(4)
    kernel.register()
    expect("held", [held(world, (V4, 42001)), held(world, (V6, 42002)), held(world, (V4, 42003))], [True] * 3)
    expect("descriptors", daemon.descriptors(), before + 3)
    for local in (V4, 5000), (V6, 5001), (ANY4, 5002), (V4, 5003):
        kernel.remove(local)
    kernel.acknowledged(0)
    expect("descriptors after removal", daemon.descriptors(), before)
    return f"4 sent, {taken} acknowledged"


def case_mapinfo_many(world):
    """Twelve in each datagram, as the kernel sends them."""
    kernel, _ = start(world, register=False)
    every = [((V4, port), (V4, 40000 + port), 0) for port in range(1, 121)]
    for first in range(0, 120, 12):
        kernel.mapinfo(*every[first:first + 12])
    taken = kernel.acknowledged(120)
    expect("held", sum(held(world, mapped) for _, mapped, _ in every), 120)
    kernel.register()
    return f"{taken} acknowledged"


def case_mapinfo_again(world):
    """The same mappings have no effect when repeated; different ones for the same address are a conflict."""
    kernel, _ = start(world)
    kernel.mapinfo(((V4, 5000), (V4, 42001), 0))
    kernel.acknowledged(1)
    kernel.mapinfo(((V4, 5000), (V4, 42001), 0))
    taken = kernel.acknowledged(1)
    kernel.mapinfo(((V4, 5000), (V4, 42002), 0))
    expect("a conflict", kernel.error()[1], nl.DUPLICATE)
    expect("held", [held(world, (V4, 42001)), held(world, (V4, 42002))], [True, False])
    return f"repeated: {taken} acknowledged"


def case_mapinfo_port_taken(world):
    """Another process has bound the port while no daemon ran."""
    kernel, _ = start(world)
    with world.net("a"):
        other = socket.create_server((V4, 42005))
    kernel.mapinfo(((V4, 5000), (V4, 42005), 0))
    code = kernel.error()[1]
    other.close()
    kernel.add((V4, 5001))
    return f"error {code}"


def case_overrun(world):
    """The socket's buffer overflowed: messages are lost, and the daemon requests the mappings again."""
    kernel, daemon = start(world)
    kernel.add((V4, 5000))
    kernel.lose_messages()
    if world.kind == "reference":
        kernel.add((V4, 5001))
        return "the reference continues without requesting the mappings"
    asked = kernel.answer(nl.MAPINFO)
    expect("client", asked.client, nl.IWCM)
    kernel.add((V4, 5001))
    daemon.alive()
