#!/usr/bin/env python3
"""Calls on sockets in states in which programs seldom make them, as auto_compare.py: auto_states.py CASE ADDRESS ADDRESS6
SILENT PORT. Nobody answers at SILENT."""

import ctypes
import errno
import os
import select
import socket
import struct
import sys

from auto_compare import RDMA, TCP, ask, connect, echo, exchange, listener, serve

LIBC = ctypes.CDLL(None, use_errno=True)
NOBODY = struct.pack("H14x", socket.AF_UNSPEC)


def name(call, *arguments):
    """The errno value's name, or "done"."""
    try:
        call(*arguments)
    except TimeoutError as error:
        return "TimeoutError" if error.errno is None else errno.errorcode[error.errno]
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"


def new_socket(way, family=socket.AF_INET):
    new = socket.socket(family)
    if way == TCP:
        new.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 1)
    return new


def connect_to(client, address):
    """connect(2) to a structure."""
    return "done" if LIBC.connect(client.fileno(), address, len(address)) == 0 else errno.errorcode[ctypes.get_errno()]


def four(address, port):
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(address) + bytes(8)


def six(address, port):
    parts = struct.pack("=H", socket.AF_INET6), struct.pack("!HI", port, 0), socket.inet_pton(socket.AF_INET6, address), bytes(4)
    return b"".join(parts)


def disconnect(address, _address6, silent, port):
    """connect(2) with AF_UNSPEC: of a connection, an attempt, and a listener. The socket can be used again."""
    listening = listener(address, port)
    for way in RDMA, TCP:
        client = connect(way, address, port)
        server = listening.accept()[0]
        client.sendall(b"x")
        print(way, server.recv(1), connect_to(client, NOBODY), name(client.getpeername), "server:", name(server.recv, 1))
        print(way, "again", name(client.connect, (address, port)), exchange(client, listening.accept()[0]))
        client = new_socket(way)
        client.setblocking(False)
        print(way, "attempt", name(client.connect, (silent, port)), connect_to(client, NOBODY), name(client.bind, (address, 0)))
        client.setblocking(True)
        print(way, "again", name(client.connect, (address, port)), exchange(client, listening.accept()[0]))
    print("listener", connect_to(listening, NOBODY), [connect(way, address, port) for way in (RDMA, TCP)])
    print("again", name(listening.listen, 5), [serve([listening], way, address, port)[1:] for way in (RDMA, TCP)])


def calls_in_states(address, _address6, silent, port):
    listening = listener(address, port)
    for way in RDMA, TCP:
        client = new_socket(way)
        client.setblocking(False)
        connecting = name(client.connect, (silent, port))
        calls = name(client.bind, (address, 0)), name(client.listen), name(client.connect, (address, port)), name(client.accept)
        print(way, connecting, *calls)
        client.close()
        client = connect(way, address, port)
        server = listening.accept()[0]
        for end in client, server:
            calls = name(end.bind, (address, 0)), name(end.listen), name(end.connect, (address, port)), name(end.accept)
            print(way, "connected", *calls)
        print(exchange(client, server))
    print("listening", name(listening.bind, (address, port)), name(listening.connect, (address, port)), name(listening.listen))
    print(*[serve([listening], way, address, port)[1:] for way in (RDMA, TCP)])
    listening.shutdown(socket.SHUT_RDWR)
    print("shut down", [connect(way, address, port) for way in (RDMA, TCP)], name(listening.accept), name(listening.listen))
    print(*[serve([listening], way, address, port)[1:] for way in (RDMA, TCP)])


def families(address, address6, _silent, port):
    """Destinations that a socket's family does not have; mapped ones, also from sockets that are bound."""
    mapped = "::ffff:" + address
    listening = listener("::", port)
    ends = [("IPv4 to IPv6", socket.AF_INET, six(address6, port)), ("IPv4 to mapped", socket.AF_INET, six(mapped, port)),
            ("IPv6 to IPv4", socket.AF_INET6, four(address, port)), ("IPv4, short", socket.AF_INET, four(address, port)[:8])]
    for way in RDMA, TCP:
        for what, family, to in ends:
            print(way, what, connect_to(new_socket(way, family), to))
        client = new_socket(way, socket.AF_INET6)
        client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        print(way, "IPV6_V6ONLY to mapped", name(client.connect, (mapped, port)))
        for at in "::", mapped, address6:
            client = new_socket(way, socket.AF_INET6)
            client.bind((at, 0))
            own = client.getsockname()[1]
            error = name(client.connect, (mapped, port))
            print(way, "bound to", at, error, client.getsockname()[0], client.getsockname()[1] == own)
            if error == "done":
                server, peer = listening.accept()
                print(peer[0], peer[1] == own, exchange(client, server))
        print(way, "then", serve([listening], way, address, port)[1:])


def ports(address, _address6, _silent, port):
    """Sockets that are bound when they connect; the port of the listener; a socket that connects to itself."""
    listening = listener(address, port)
    for number, way in enumerate((RDMA, TCP)):
        for at in (address, port + 2), ("0.0.0.0", port + 3), (address, 0), ("0.0.0.0", 0):
            client = new_socket(way)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind(at)
            own = client.getsockname()[1]
            client.connect((address, port))
            server, peer = listening.accept()
            print(way, client.getsockname() == (address, own), peer[1] == own, exchange(client, server))
            # Server first: its end has no TIME_WAIT then, and the port is free for the next one.
            server.close()
            client.close()
        client = new_socket(way)
        client.setsockopt(socket.IPPROTO_IP, 24, 1)
        client.bind((address, 0))
        print(way, "IP_BIND_ADDRESS_NO_PORT", client.getsockname()[1], name(client.connect, (address, port)))
        listening.accept()[0].close()
        print(way, "the listener's port", name(new_socket(way).bind, (address, port)))
        client = new_socket(way)
        client.bind((address, port + 4 + number))
        print(way, "itself", name(client.connect, client.getsockname()), client.send(b"x"), client.recv(1))
        print(way, "port 0", name(new_socket(way).connect, (address, 0)), serve([listening], way, address, port)[1:])


def device(address, _address6, _silent, port):
    """A listener is bound to another device than that of the address."""
    listening = listener(address, port)
    print(*[serve([listening], way, address, port)[1:] for way in (RDMA, TCP)])
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
    print(*[serve([listening], way, address, port)[1:] for way in (RDMA, TCP)])


MSG_ZEROCOPY = 0x4000000
ZEROCOPY = socket.SOL_SOCKET, 60, 1
TIMESTAMPING = socket.SOL_SOCKET, 37, 1 << 4
ULP = socket.IPPROTO_TCP, 31, b"tls"


def filter_of(length, buffer=ctypes.create_string_buffer(8)):
    """SO_ATTACH_FILTER: takes so many bytes of a packet."""
    struct.pack_into("HBBI", buffer, 0, 6, 0, 0, length)
    return socket.SOL_SOCKET, 26, struct.pack("HxxxxxxP", 1, ctypes.addressof(buffer))


def tls_is_encryption(client, server):
    if name(client.setsockopt, *ULP) != "done":
        return True
    # TLS_1_2_VERSION and TLS_CIPHER_AES_GCM_128, with a key of zeros; TLS_TX is 1.
    client.setsockopt(282, 1, struct.pack("HH", 0x303, 51) + bytes(36))
    client.sendall(b"secret")
    return b"secret" not in server.recv(100)


def filter_filters(client, server):
    accepted = name(server.setsockopt, *filter_of(0)) == "done"
    client.sendall(b"x")
    server.settimeout(0.3)
    return accepted == (name(server.recv, 1) == "TimeoutError")


def zerocopy_completes(client, server):
    if name(client.setsockopt, *ZEROCOPY) != "done":
        return True
    client.send(b"x" * 10, MSG_ZEROCOPY)
    ready = select.poll()
    ready.register(client, 0)
    return bool(server.recv(10) and ready.poll(1000))


def options(address, _address6, _silent, port):
    """An option that only TCP has: set on a connection it fails or works, and set before the socket stays with TCP."""
    listening = listener(address, port)
    for way in RDMA, TCP:
        for has_effect in tls_is_encryption, filter_filters, zerocopy_completes:
            client = connect(way, address, port)
            server = listening.accept()[0]
            print(way, has_effect.__name__, has_effect(client, server))
    for option in ZEROCOPY, TIMESTAMPING, filter_of(65535):
        client = new_socket(RDMA)
        client.setsockopt(*option)
        print("before connect", option[1], name(client.connect, (address, port)), exchange(client, listening.accept()[0]))
    client = new_socket(RDMA)
    client.setblocking(False)
    client.connect_ex((address, port))
    # Fails if the attempt has ended by then.
    name(client.setsockopt, *TIMESTAMPING)
    server = listening.accept()[0]
    client.setblocking(True)
    print("while it connects", exchange(client, server))
    listening.setsockopt(*TIMESTAMPING)
    print("listener", *[serve([listening], way, address, port)[1:] for way in (RDMA, TCP)])


def shut_down_by_child(address, _address6, _silent, port):
    """The first client by RDMA is reset, the next ones are refused."""
    listening = listener(address, port)
    pid = os.fork()
    if pid == 0:
        listening.shutdown(socket.SHUT_RDWR)
        os._exit(0)
    os.waitpid(pid, 0)
    print("first", ask(RDMA, address, port))
    print("then", [ask(way, address, port) for way in (RDMA, TCP, RDMA)], name(listening.accept))
    print("again", name(listening.listen, 5), [serve([listening], way, address, port)[1:] for way in (RDMA, TCP)])


def child(bound, told):
    bound.listen(16)
    os.write(told, b"x")
    echo(bound)


def bound_before(address, _address6, _silent, port):
    """A socket is bound by a process, and its children, or programs that these execute, listen and accept."""
    for executes in False, True:
        bound = listener(address, port, listen=False)
        ready, told = os.pipe()
        children = []
        for _ in range(2):
            children.append(os.fork())
            if children[-1] == 0:
                try:
                    if executes:
                        bound.set_inheritable(True)
                        os.set_inheritable(told, True)
                        os.execv(sys.executable, [sys.executable, __file__, "child", str(bound.fileno()), str(told)])
                    child(bound, told)
                finally:
                    os._exit(1)
            os.read(ready, 1)
        for number in range(8):
            print("executed" if executes else "forked", number, *[ask(way, address, port) for way in (RDMA, TCP)])
        for process in children:
            os.kill(process, 9)
            os.waitpid(process, 0)
        bound.close()
        port += 1


if __name__ == "__main__":
    if sys.argv[1] == "child":
        child(socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3]))
    else:
        globals()[sys.argv[1]](*sys.argv[2:5], int(sys.argv[5]))
