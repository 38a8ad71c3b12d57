"""A server with 4 processes that share a listener, and a client with 1,100 connections to it at once. The processes accept
only when all clients have connected: prefork_many.py server|client ADDRESS PORT"""

import os
import resource
import selectors
import signal
import socket
import sys

COUNT = 1100
WORKERS = 4


def work(listener, start):
    """Returns each message to its sender."""
    os.read(start, 1)
    listener.setblocking(False)
    watched = selectors.DefaultSelector()
    watched.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in watched.select():
            if key.fileobj is listener:
                try:
                    connection = listener.accept()[0]
                except BlockingIOError:
                    continue
                watched.register(connection, selectors.EVENT_READ)
            elif data := key.fileobj.recv(100):
                key.fileobj.sendall(data)
            else:
                watched.unregister(key.fileobj)
                key.fileobj.close()


def server(address):
    listener = socket.create_server(address, backlog=4096)
    start, go = os.pipe()
    workers = []
    for _ in range(WORKERS):
        workers.append(os.fork())
        if not workers[-1]:
            work(listener, start)
    signal.sigwait({signal.SIGUSR1, signal.SIGTERM})
    os.write(go, b"x" * WORKERS)
    signal.sigwait({signal.SIGTERM})
    for worker in workers:
        os.kill(worker, signal.SIGKILL)


def client(address):
    connections = [socket.create_connection(address, 300) for _ in range(COUNT)]
    for number, connection in enumerate(connections):
        connection.sendall(b"%8d" % number)
    print("connected", flush=True)
    sys.stdin.readline()
    for number, connection in enumerate(connections):
        data = b""
        while len(data) < 8:
            part = connection.recv(8 - len(data))
            assert part, f"connection {number} ended"
            data += part
        assert data == b"%8d" % number, f"connection {number} received {data}"
    print("served", len(connections))


resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM} if sys.argv[1] == "server" else set())
{"server": server, "client": client}[sys.argv[1]]((sys.argv[2], int(sys.argv[3])))
