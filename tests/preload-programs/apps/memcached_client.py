"""Writes values of many sizes to memcached over several connections, reads and compares them; prints the byte count."""
import hashlib
import socket
import sys

ADDRESS = (sys.argv[1], int(sys.argv[2]))
SIZES = [0, 1, 100, 1000, 8191, 8192, 65535, 65536, 300_000, 900_000]


def value(seed, size):
    return hashlib.shake_128(str(seed).encode()).digest(size)


def line(stream):
    text = stream.readline()
    if not text.endswith(b"\r\n"):
        sys.exit(f"connection ended within {text!r}")
    return text[:-2]


def main():
    moved = 0
    connections = [socket.create_connection(ADDRESS) for _ in range(4)]
    streams = [c.makefile("rwb") for c in connections]
    for seed, size in enumerate(SIZES):
        data = value(seed, size)
        writer, reader = streams[seed % 4], streams[(seed + 1) % 4]
        writer.write(b"set key%d 7 0 %d\r\n%s\r\n" % (seed, size, data))
        writer.flush()
        if (answer := line(writer)) != b"STORED":
            sys.exit(f"set of {size} bytes: {answer!r}")
        reader.write(b"get key%d\r\n" % seed)
        reader.flush()
        if (head := line(reader)) != b"VALUE key%d 7 %d" % (seed, size):
            sys.exit(f"get of {size} bytes: {head!r}")
        if reader.read(size) != data or line(reader) != b"" or line(reader) != b"END":
            sys.exit(f"value of {size} bytes differs")
        moved += 2 * size
    print(moved)


main()
