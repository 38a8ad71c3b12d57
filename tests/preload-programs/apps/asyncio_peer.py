"""Streams of asyncio: the server answers each block with its SHA-256 and the reversed block, and the half-close with
the digest of all blocks. The client uses ten connections concurrently, and prints the number of bytes transferred."""
import asyncio
import hashlib
import sys

ROLE, ADDRESS, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])
SIZES = [1, 100, 5000, 70_000, 200_000]


async def serve(reader, writer):
    total = hashlib.sha256()
    while head := await reader.read(1):
        head += await reader.readexactly(3)
        block = await reader.readexactly(int.from_bytes(head, "big"))
        total.update(block)
        writer.write(hashlib.sha256(block).digest() + block[::-1])
        await writer.drain()
    writer.write(total.digest())
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def connection(seed):
    reader, writer = await asyncio.open_connection(ADDRESS, PORT)
    total, moved = hashlib.sha256(), 0
    for size in SIZES:
        block = hashlib.shake_128(f"{seed} {size}".encode()).digest(size)
        total.update(block)
        writer.write(size.to_bytes(4, "big") + block)
        await writer.drain()
        if await reader.readexactly(32) != hashlib.sha256(block).digest():
            sys.exit(f"connection {seed}: the server received other data ({size} bytes)")
        if await reader.readexactly(size) != block[::-1]:
            sys.exit(f"connection {seed}: the {size} returned bytes differ")
        moved += 2 * size
    writer.write_eof()
    if await reader.read() != total.digest():
        sys.exit(f"connection {seed}: wrong digest after the half-close")
    writer.close()
    await writer.wait_closed()
    return moved


async def main():
    if ROLE == "server":
        server = await asyncio.start_server(serve, ADDRESS, PORT)
        await server.serve_forever()
    else:
        print(sum(await asyncio.gather(*(connection(seed) for seed in range(10)))))


asyncio.run(main())
