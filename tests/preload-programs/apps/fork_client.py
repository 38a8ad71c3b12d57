"""Client of fork_server.py and forkserver.c: five connections, blocks of many sizes; prints the byte count. The answer is
the block's SHA-256 (or 32 zero bytes) and the block. fork_client.py ADDRESS PORT [AT-ONCE]: so many connections alternate
(5)."""
import hashlib
import socket
import sys

ADDRESS = (sys.argv[1], int(sys.argv[2]))
SIZES = [1, 1000, 50_000, 100_000]


def main():
    at_once = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    print(sum(exchange(range(first, first + at_once)) for first in range(0, 5, at_once)))


def exchange(seeds):
    moved = 0
    connections = [socket.create_connection(ADDRESS) for _ in seeds]
    streams = [c.makefile("rwb") for c in connections]
    for size in SIZES:
        for seed, stream in zip(seeds, streams):
            block = hashlib.shake_128(f"{seed} {size}".encode()).digest(size)
            stream.write(size.to_bytes(4, "big") + block)
            stream.flush()
            digest, back = stream.read(32), stream.read(size)
            if digest not in (hashlib.sha256(block).digest(), bytes(32)) or back != block:
                sys.exit(f"connection {seed}: the {size} returned bytes differ ({len(back)})")
            moved += 2 * size
    for stream, connection in zip(streams, connections):
        stream.close()
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()
    return moved


main()
