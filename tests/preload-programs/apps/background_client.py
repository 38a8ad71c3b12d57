"""A client that goes into the background after it has connected: HOST PORT SEND RECEIVED REPORT exit|_exit.
The child waits for its parent's end, sends the file SEND, and receives to the peer's end. REPORT says then that it got
there, or the error."""
import os
import socket
import sys

host, port, send, received, report, how = sys.argv[1:]
stream = socket.create_connection((host, int(port)))
alive, parents = os.pipe()
if os.fork():
    # The write end, parents, is closed by this process's end only.
    if how == "exit":
        sys.exit(0)
    os._exit(0)
os.close(parents)
os.read(alive, 1)
text = "to the end"
with open(send, "rb") as source, open(received, "wb") as to:
    try:
        stream.sendall(source.read())
        stream.shutdown(socket.SHUT_WR)
        while data := stream.recv(65536):
            to.write(data)
    except OSError as error:
        text = f"error: {error.strerror}"
with open(f"{report}.new", "w", encoding="utf-8") as out:
    out.write(text)
os.rename(f"{report}.new", report)
