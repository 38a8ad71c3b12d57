"""The real kernel as the daemon's client: soft-iWARP with port mapping, with the module siw_mapped."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess

import netlink as nl
import wire
from basics import TIMEOUT, Failure, Skip, expect, until
from net import Wire
from world import Daemon

SIW, PEER = os.environ.get("SIW_ADDR"), os.environ.get("SIW_PEER_ADDR")
SIW6, PEER6 = os.environ.get("SIW_ADDR6"), os.environ.get("SIW_PEER_ADDR6")
LIST_BEGINS = r"print_iwpm_mapped_ports:|(\d+) mappings, \d+ questions"  # not the line on descriptors at the start
LIST_ENTRY = re.compile(r"([LlMm])(?:ocal|apped) address (?:IPV[46] )?([^\s,(]+)")


def start(world):
    """Starts a daemon on the kernel's netlink; siw0 and siw1 request ports from it."""
    if world.module == "none":
        raise Skip("the kernel module siw_mapped is not available here")
    if not os.path.exists("/sys/module/siw_mapped"):
        subprocess.run(["insmod", world.module, "links=w0,w1"], check=True)
    daemon = Daemon(world, world.path)
    world.reference_pause()
    return daemon


def mappings(world, daemon):
    """Returns the list that SIGUSR1 prints: {local: mapped}."""
    began = len(world.syslog.lines)
    daemon.process.send_signal(signal.SIGUSR1)
    head = re.search(LIST_BEGINS, world.syslog.wait(daemon.pid, LIST_BEGINS, began))
    if head.group(1):
        world.syslog.await_line(lambda: len(_listed(world, daemon, began)) >= int(head.group(1)), TIMEOUT)
    else:
        world.reference_pause()
    return _listed(world, daemon, began)


def _listed(world, daemon, began):
    found, local = {}, None
    for line in world.syslog.lines[began:]:
        for which, address in LIST_ENTRY.findall(line) if f"[{daemon.pid}]" in line else ():
            host, _, port = address.rpartition(":")
            if which in "Ll":
                local = host.strip("[]"), int(port)
            else:
                found[local] = host.strip("[]"), int(port)
    return found


def mappings_become(world, daemon, wanted):
    try:
        until(lambda: mappings(world, daemon) == wanted, "the mappings")
    except Failure:
        expect("mappings", mappings(world, daemon), wanted)


def gone(world, daemon):
    """Waits until there are no mappings."""
    try:
        until(lambda: mappings(world, daemon) == {}, "the end of all mappings")
    except Failure as why:
        raise Failure(f"{why}: {mappings(world, daemon)}, {_ids()}") from None


def _ids():
    return subprocess.run(["rdma", "resource", "show", "cm_id"], capture_output=True, check=False).stdout.decode()


def rping_server(address, port, *options):
    server = subprocess.Popen(["rping", "-s", "-a", address, "-p", str(port), *options], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run(["lab-await-listener", str(port), str(server.pid)], check=True, timeout=TIMEOUT)
    return server


def rping_client(address, port, count=5):
    return subprocess.run(["rping", "-c", "-a", address, "-p", str(port), "-C", str(count), "-V"], check=False,
                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          timeout=TIMEOUT).returncode


def end(*processes):
    for process in processes:
        process.kill()
        process.wait()


def held(where):
    family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(where)
        except OSError:
            return True
    return False


def _listen(world, address):
    daemon = start(world)
    expect("mappings before", mappings(world, daemon), {})
    server = rping_server(address, 7174, "-P")
    found = mappings(world, daemon)
    expect("local addresses", list(found), [(address, 7174)])
    mapped = found[address, 7174]
    expect("held", held(mapped), True)
    end(server)
    gone(world, daemon)
    expect("held after the end", held(mapped), False)
    return f"port 7174 was mapped to {mapped}"


def case_listen_ipv4(world):
    return _listen(world, PEER)


def case_listen_ipv6(world):
    return _listen(world, PEER6)


def case_listen_wildcard_ipv4(world):
    """The kernel creates a listener for each siw device with the wildcard address: references to one mapping."""
    return _listen(world, "0.0.0.0")


def case_listen_wildcard_ipv6(world):
    return _listen(world, "::")


def _connect(world, listen, address):
    """The client's kernel queries the server's port. One daemon serves both, over the link."""
    daemon = start(world)
    server = rping_server(listen, 7174, "-P")
    expect("status of the first client", rping_client(address, 7174), 0)
    expect("status of the second client", rping_client(address, 7174), 0)
    end(server)
    gone(world, daemon)
    lines = [line for line in daemon.log() if "rror" in line]
    return f"errors in the log: {lines}"


def case_connect_ipv4(world):
    return _connect(world, PEER, PEER)


def case_connect_ipv6(world):
    return _connect(world, PEER6, PEER6)


def case_connect_wildcard(world):
    return _connect(world, "0.0.0.0", PEER)


def case_connect_own_address(world):
    return _connect(world, SIW, SIW)


def _ucmatose(world, daemon):
    """Makes twenty connections at once. Returns the two statuses; None for a process that hangs."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(["ucmatose", "-c", "20", "-b", PEER, "-C", "3"], **quiet)
    subprocess.run(["lab-await-listener", "7471", str(server.pid)], check=True, timeout=TIMEOUT)
    client = subprocess.Popen(["ucmatose", "-c", "20", "-s", PEER, "-C", "3"], **quiet)
    for process in client, server:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
    statuses = client.poll(), server.poll()
    if statuses != (0, 0):
        mappings(world, daemon)  # and its counters
        end(client, server)
    gone(world, daemon)
    return statuses


def case_connect_many(world):
    """ucmatose with 20 connections: as many mappings, all removed afterwards. One connection in some hundred fails
    over siw, with either daemon (docs/iwpmd.md): all are repeated then, if the daemon has answered all requests."""
    daemon, failed = start(world), []
    while (statuses := _ucmatose(world, daemon)) != (0, 0):
        failed.append(statuses)
        counts = [line for line in daemon.log() if "since the start" in line]
        if len(failed) > 3 or any("rejected: 0" not in line or "unanswered: 0" not in line for line in counts):
            raise Failure(f"statuses {failed}, {_ids()}, {counts}")
    return f"failed before: {failed}" if failed else None


def case_restart(world):
    """A new daemon gets the mappings from the kernel, with the same ports, also if the old one was killed."""
    for sig in signal.SIGTERM, signal.SIGKILL:
        daemon = start(world)
        servers = [rping_server(address, port, "-P") for address, port in ((PEER, 7174), (PEER6, 7175), ("0.0.0.0", 7176))]
        before = mappings(world, daemon)
        expect("mappings", len(before), 3)
        daemon.end(sig)
        expect("held without a daemon", [held(where) for where in before.values()], [False] * 3)
        daemon = Daemon(world, world.path)
        world.reference_pause()
        mappings_become(world, daemon, before)
        expect("held", [held(where) for where in before.values()], [True] * 3)
        expect("status of a client", rping_client(PEER, 7174), 0)
        end(*servers)
        gone(world, daemon)
        daemon.end()
    return str(before)


def case_started_after_the_listener(world):
    """A listener from before the daemon has no mapping; requests are rejected, and clients use the port itself."""
    daemon = start(world)
    daemon.end()
    server = rping_server(PEER, 7174, "-P")
    daemon = Daemon(world, world.path)
    world.reference_pause()
    found = mappings(world, daemon)
    status = rping_client(PEER, 7174)
    end(server)
    expect("status", status, 0)
    return f"mappings: {found}"


def case_messages_of_other_processes(world):
    """Only the kernel may request mappings. (Sending to another process needs CAP_NET_ADMIN.)"""
    daemon = start(world)
    end(rping_server(PEER, 7173, "-P"))  # the kernel has registered as a client
    forged = ("10.77.2.1", 7999)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20) as sock:
        sock.bind((0, 0))
        payload = nl.u32(1, 1) + nl.attribute(2, nl.sockaddr(forged)) + nl.u32(3, 0)
        sock.sendto(nl.message(nl.ADD, 77, payload), (daemon.pid, 0))
    # The kernel's next request is processed after the forged one.
    servers = rping_server(PEER, 7174, "-P"), rping_server(PEER, 7175, "-P")
    found = until(lambda: [m for m in [mappings(world, daemon)] if (PEER, 7175) in m], "the kernel's mapping")[0]
    end(*servers)
    expect("a mapping was made", forged in found, world.by_kind(False, True))
    if world.kind == "reference":
        return "the reference accepts requests from any process"


def case_queries_cross_the_link(world):
    """The messages on the wire when a client connects: request, accept, ack."""
    daemon = start(world)
    server = rping_server(PEER, 7174, "-P")
    packets = LinkWire()
    expect("status", rping_client(PEER, 7174), 0)
    seen = list(dict.fromkeys((f"{where[0]} to {to[0]}", wire.parse(data)) for where, to, data in packets.messages()))
    packets.close()
    end(server)
    daemon.alive()
    expect("messages", [wire.NAMES[p.kind] for _, p in seen], ["request", "accept", "ack"])
    return "; ".join(f"{way}: {wire.describe(p)}" for way, p in seen)


class LinkWire(Wire):
    """The messages on the guest's own links; each is captured when sent and when received."""

    def __init__(self):  # not in a namespace
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
        self.seen = []


def _lose_messages(link, loss):
    """Drops UDP packets of the port mapper's port (3935). Losses of ARP, TCP and MPA fail with any daemon."""
    for command in (f"qdisc add dev {link} root handle 1: prio bands 4",
                    f"qdisc add dev {link} parent 1:4 netem loss {loss}",
                    *(f"filter add dev {link} parent 1: protocol ip u32 match ip protocol 17 0xff"
                      f" match ip {end} 3935 0xffff flowid 1:4" for end in ("dport", "sport"))):
        subprocess.run(["tc", *command.split()], check=True)


def case_loss(world):
    """Every fifth message of the daemons is lost, until three were lost. (A query fails after 10 s.)"""
    daemon, statuses = start(world), []
    server = rping_server(PEER, 7174, "-P")
    for link in "w0", "w1":
        _lose_messages(link, "20%")
    while _lost("w0") + _lost("w1") < 3 and len(statuses) < 60:
        statuses.append(rping_client(PEER, 7174, 1))
    lost = _lost("w0") + _lost("w1")
    for link in "w0", "w1":
        subprocess.run(["tc", "qdisc", "del", "dev", link, "root"], check=True)
    end(server)
    daemon.alive()
    expect("statuses", set(statuses), {0})
    expect("three messages were lost", lost >= 3, True)
    return f"{lost} messages lost for {len(statuses)} clients"


def _lost(link):
    listed = subprocess.run(["tc", "-s", "-j", "qdisc", "show", "dev", link], capture_output=True, check=True).stdout
    return sum(qdisc["drops"] for qdisc in json.loads(listed) if qdisc["kind"] == "netem")
