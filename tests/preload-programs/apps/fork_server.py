"""A process for each connection: answers each block (4 bytes of length, then the block) with its SHA-256 and itself."""
import hashlib
import socketserver
import sys


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while head := self.rfile.read(4):
            block = self.rfile.read(int.from_bytes(head, "big"))
            self.wfile.write(hashlib.sha256(block).digest() + block)
            self.wfile.flush()


class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True


with Server((sys.argv[1], int(sys.argv[2])), Handler) as server:
    server.serve_forever()
