#!/usr/bin/env python3
"""Servers and clients of several processes, for automatic mode.

auto_processes.py fork|prefork|daemon|nobody ADDRESS PORT CONNECTIONS: an echo server; prints "listening".
    nobody accepts nothing until a line arrives on its standard input.
auto_processes.py child-reads ADDRESS PORT: a client whose child receives what its parent sends.
auto_processes.py sink ADDRESS PORT CONNECTIONS: a server that only receives.
auto_processes.py child-writes ADDRESS PORT: a client whose child sends; its parent ends right after the child.
auto_processes.py inetd ADDRESS PORT CONNECTIONS: a server that executes cat(1) for each connection, by vfork(2).
auto_processes.py go ADDRESS PORT COUNT: a client that connects and goes at once.
auto_processes.py asks ADDRESS PORT CONNECTIONS: a server that executes a program for each connection that has not the
    library, and prints the peer that this sees.
auto_processes.py hands-on ADDRESS PORT CONNECTIONS: a server whose listener is served by a program that has not the
    library.
auto_processes.py orphan ADDRESS PORT: a client that ends while its child has the connection, which the child uses then.
auto_processes.py datagrams ADDRESS PORT CONNECTIONS: answers a datagram each; datagram ADDRESS PORT: sends one.
auto_processes.py says ADDRESS PORT: a client that sends a byte and prints how the connection ends."""

import os
import signal
import socket
import subprocess
import sys

SIZE = 200_000


def echo(connection):
    """Returns the number of bytes."""
    total = 0
    while data := connection.recv(65536):
        connection.sendall(data)
        total += len(data)
    connection.close()
    return total


def listen(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(50)
    print("listening", listener.getsockname()[1], flush=True)
    return listener


def without_library():
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def hands_on(address, port, connections):
    program = f"""
import socket
listener = socket.socket(fileno=0)
for _ in range({connections}):
    connection, _ = listener.accept()
    try:
        print("received", len(connection.recv(1)), flush=True)
        connection.sendall(b"x")
    except ConnectionError as error:
        print("lost", error, flush=True)
"""
    # The program prints "listening" before.
    subprocess.run([sys.executable, "-c", program], stdin=listen(address, port), env=without_library(), check=True)


def datagrams(address, port, count):
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, port))
    print("listening", port, flush=True)
    for _ in range(count):
        server.sendto(*server.recvfrom(100))


def datagram(address, port):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.connect((address, port))
    client.send(b"question")
    print("got", client.recv(100).decode())


def child(run):
    """Returns the child's id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            run()
            status = 0
        finally:
            os._exit(status)
    return pid


def ended_well(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def tell(connection, peer):
    assert connection.getpeername() == peer, "the child has another peer"
    print("echoed", echo(connection), flush=True)


def server(way, address, port, connections):
    listener = listen(address, port)
    if way == "daemon" and os.fork():
        os._exit(0)
    if way == "nobody":
        sys.stdin.readline()
    if way == "prefork":
        def work():
            for _ in range(connections):
                tell(*listener.accept())
        workers = [child(work) for _ in range(3)]
        sys.stdin.readline()
        for worker in workers:
            os.kill(worker, 9)
        return
    for _ in range(connections):
        connection, peer = listener.accept()
        if way == "fork":
            def serve(connection=connection, peer=peer):
                listener.close()
                tell(connection, peer)
            pid = child(serve)
            connection.close()
            assert ended_well(pid)
        elif way == "sink":
            total = 0
            while data := connection.recv(65536):
                total += len(data)
            print("received", total, flush=True)
        elif way == "asks":
            program = "import socket; print('peer', socket.socket(fileno=0).getpeername()[0])"
            subprocess.run([sys.executable, "-c", program], stdin=connection, env=without_library(), check=True)
            connection.close()
        elif way == "inetd":
            with subprocess.Popen(["cat"], stdin=connection, stdout=connection):
                connection.close()
            print("echoed 100000", flush=True)
        else:
            tell(connection, peer)


def child_reads(address, port):
    connection = socket.create_connection((address, port))
    data = os.urandom(SIZE)

    def receive():
        got = b""
        while more := connection.recv(65536):
            got += more
        assert got == data, f"{len(got)} bytes, or other ones"

    pid = child(receive)
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
    assert ended_well(pid)
    print("ok")


def child_writes(address, port):
    connection = socket.create_connection((address, port))
    assert ended_well(child(lambda: connection.sendall(b"x" * 40 * SIZE)))
    print("ok")


def go(address, port, count):
    for _ in range(count):
        socket.create_connection((address, port)).close()
    print("ok")


def orphan(address, port):
    connection = socket.create_connection((address, port))
    reading, writing = os.pipe()
    if os.fork():
        os._exit(0)
    # The parent has ended when the pipe is read to its end.
    os.close(writing)
    os.read(reading, 1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        print("the connection ended", connection.recv(1))
    except ConnectionError as error:
        print("the connection ended", error)


def says(address, port):
    connection = socket.create_connection((address, port))
    try:
        connection.sendall(b"x")
        print("got", len(connection.recv(1)))
    except ConnectionError:
        print("got reset")


def main():
    way, address, port, *count = sys.argv[1:]
    if way == "child-reads":
        child_reads(address, int(port))
    elif way == "child-writes":
        child_writes(address, int(port))
    elif way == "orphan":
        orphan(address, int(port))
    elif way == "says":
        says(address, int(port))
    elif way == "datagrams":
        datagrams(address, int(port), int(count[0]))
    elif way == "datagram":
        datagram(address, int(port))
    elif way == "hands-on":
        hands_on(address, int(port), int(count[0]))
    elif way == "go":
        go(address, int(port), int(count[0]))
    else:
        server(way, address, int(port), int(count[0]))


main()
