"""An echo server and its client, each with one thread and the named selector: non-blocking sockets, partial writes,
half-close. The client uses six connections concurrently, compares, and prints the number of bytes transferred."""
import hashlib
import selectors
import socket
import sys

ROLE, SELECTOR, ADDRESS, PORT = sys.argv[1], getattr(selectors, sys.argv[2]), sys.argv[3], int(sys.argv[4])
CONNECTIONS, SIZE, LIMIT = 6, 150_000, 65536


class Connection:
    """A socket with the data to send and the received data."""

    def __init__(self, sock, data=b"", ended=False):
        sock.setblocking(False)
        self.sock, self.out, self.ended, self.closed = sock, bytearray(data), ended, False
        self.received = bytearray()

    def events(self):
        wanted = selectors.EVENT_READ if len(self.out) < LIMIT or ROLE == "client" else 0
        return wanted | (selectors.EVENT_WRITE if self.out else 0)

    def send(self):
        try:
            del self.out[: self.sock.send(self.out[:20_000])]
        except BlockingIOError:
            return
        if not self.out and self.ended:
            self.sock.shutdown(socket.SHUT_WR)


def serve(selector):
    listener = socket.create_server((ADDRESS, PORT))
    listener.setblocking(False)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, events in selector.select():
            if key.fileobj is listener:
                sock, _ = listener.accept()
                selector.register(sock, selectors.EVENT_READ, Connection(sock))
                continue
            connection = key.data
            if events & selectors.EVENT_READ:
                try:
                    data = connection.sock.recv(30_000)
                except BlockingIOError:
                    continue
                connection.out += data
                if not data:
                    connection.ended = True
            if events & selectors.EVENT_WRITE and connection.out:
                connection.send()
            if connection.ended and not connection.out:
                selector.unregister(connection.sock)
                connection.sock.close()
            elif connection.ended:
                selector.modify(connection.sock, selectors.EVENT_WRITE, connection)
            else:
                selector.modify(connection.sock, connection.events(), connection)


def ask(selector):
    data = [hashlib.shake_128(b"%d" % seed).digest(SIZE) for seed in range(CONNECTIONS)]
    open_ones = 0
    connections = []
    for block in data:
        connection = Connection(socket.create_connection((ADDRESS, PORT)), block, ended=True)
        connections.append(connection)
        selector.register(connection.sock, connection.events(), connection)
        open_ones += 1
    while open_ones:
        for key, events in selector.select():
            connection = key.data
            if events & selectors.EVENT_WRITE and connection.out:
                connection.send()
            if events & selectors.EVENT_READ:
                try:
                    piece = connection.sock.recv(30_000)
                except BlockingIOError:
                    piece = None
                if piece == b"":
                    selector.unregister(connection.sock)
                    connection.sock.close()
                    open_ones -= 1
                    continue
                connection.received += piece or b""
            selector.modify(connection.sock, connection.events(), connection)
    for seed, (connection, block) in enumerate(zip(connections, data)):
        if connection.received != block:
            sys.exit(f"connection {seed}: {len(connection.received)} of {SIZE} bytes, or different ones")
    print(2 * CONNECTIONS * SIZE)


with SELECTOR() as chosen:
    serve(chosen) if ROLE == "server" else ask(chosen)
