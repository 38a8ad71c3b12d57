"""Echo servers and clients with Python's standard library and each of its ways to wait: echo.py MODE ADDRESS

The data must come back unchanged. An ordinary program, which knows nothing of rsockets.
"""

import asyncio
import os
import select
import selectors
import socket
import socketserver
import sys
import threading

DATA = os.urandom(1 << 19)


def listener(address):
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, 0))
    server.listen(8)
    return server


def client(name, got):
    """Sends and receives at the same time; otherwise both ends would wait for buffer space."""
    with socket.create_connection(name, timeout=60) as peer:
        peer.settimeout(None)  # as in many clients: a timeout for connecting only
        sender = threading.Thread(target=lambda: (peer.sendall(DATA), peer.shutdown(socket.SHUT_WR)))
        sender.start()
        part = peer.recv(65536)
        received = bytearray(part)
        while part:
            part = peer.recv(65536)
            received += part
        sender.join()
    got.append(bytes(received) == DATA)


def with_clients(server, serve, count=1):
    """Runs clients against serve(server)."""
    got = []
    clients = [threading.Thread(target=client, args=(server.getsockname(), got)) for _ in range(count)]
    for thread in clients:
        thread.start()
    serve(server, count)
    for thread in clients:
        thread.join()
    server.close()
    assert got == [True] * count, got


def blocking(server, _):
    peer, _ = server.accept()
    with peer:
        while part := peer.recv(65536):
            peer.sendall(part)


def timeouts(server, _):
    server.settimeout(60)
    peer, _ = server.accept()
    peer.settimeout(60)
    with peer:
        while part := peer.recv(65536):
            peer.sendall(part)


def by_select(server, _):
    peer, _ = server.accept()
    peer.setblocking(False)
    with peer:
        while True:
            readable, _, _ = select.select([peer, server], [], [])
            assert readable == [peer]
            part = peer.recv(65536)
            if not part:
                break
            while part:
                _, writable, _ = select.select([], [peer], [])
                part = part[writable[0].send(part):]


def by_selector(kind):
    """Several connections, non-blocking."""
    def serve(server, count):
        server.setblocking(False)
        waiting = {}
        with kind() as selector:
            selector.register(server, selectors.EVENT_READ)
            while count:
                for key, events in selector.select():
                    if key.fileobj is server:
                        try:
                            peer, _ = server.accept()
                        except BlockingIOError:
                            continue
                        peer.setblocking(False)
                        waiting[peer] = b""
                        selector.register(peer, selectors.EVENT_READ)
                        continue
                    peer = key.fileobj
                    if events & selectors.EVENT_READ:
                        part = peer.recv(65536)
                        if not part:
                            selector.unregister(peer)
                            peer.close()
                            count -= 1
                            continue
                        waiting[peer] = part
                    try:
                        sent = peer.send(waiting[peer])
                    except BlockingIOError:
                        sent = 0
                    waiting[peer] = waiting[peer][sent:]
                    selector.modify(peer, selectors.EVENT_WRITE if waiting[peer] else selectors.EVENT_READ)
    return serve


def by_asyncio(server, count):
    async def main():
        left = asyncio.Semaphore(0)

        async def serve(reader, writer):
            while part := await reader.read(65536):
                writer.write(part)
                await writer.drain()
            writer.close()
            await writer.wait_closed()  # includes buffered data
            left.release()

        async with await asyncio.start_server(serve, sock=server):
            for _ in range(count):
                await left.acquire()

    asyncio.run(main())


def by_socketserver(address):
    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            blocking_echo(self.request)

    with socketserver.ThreadingTCPServer((address, 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        got = []
        for _ in range(2):
            client(server.server_address, got)
        server.shutdown()
    assert got == [True, True], got


def blocking_echo(peer):
    while part := peer.recv(65536):
        peer.sendall(part)


def datagrams(address):
    with socket.socket(type=socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as other:
        one.bind((address, 0))
        other.bind((address, 0))
        one.sendto(b"question", other.getsockname())
        question, name = other.recvfrom(100)
        assert (question, name) == (b"question", one.getsockname()), (question, name)
        other.sendto(b"answer", name)
        assert one.recv(100) == b"answer"


SERVERS = {
    "blocking": (blocking, 1),
    "timeouts": (timeouts, 1),
    "select": (by_select, 1),
    "poll": (by_selector(selectors.PollSelector), 3),
    "select-many": (by_selector(selectors.SelectSelector), 3),
    "epoll": (by_selector(selectors.EpollSelector), 3),
    "asyncio": (by_asyncio, 3),
}


def main(mode, address):
    if mode == "socketserver":
        by_socketserver(address)
    elif mode == "datagrams":
        datagrams(address)
    else:
        serve, count = SERVERS[mode]
        with_clients(listener(address), serve, count)


main(sys.argv[1], sys.argv[2])
