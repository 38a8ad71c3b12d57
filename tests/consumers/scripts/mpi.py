"""One of two processes: sends messages to the other one, and verifies those that come back."""

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, other = world.Get_rank(), 1 - world.Get_rank()
for size in (1, 1000, 65536, 1000000):
    data = bytes([size % 251]) * size
    if rank == 0:
        world.Send([data, MPI.BYTE], dest=other)
    received = bytearray(size)
    world.Recv([received, MPI.BYTE], source=other)
    assert received == data, "the message differs"
    if rank == 1:
        world.Send([received, MPI.BYTE], dest=other)
if rank == 0:
    print("result: 4 messages there and back", flush=True)
