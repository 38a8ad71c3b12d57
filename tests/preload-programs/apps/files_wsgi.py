"""A WSGI application that serves the files of the folder $WWW."""
import os
import pathlib

WWW = pathlib.Path(os.environ["WWW"])


def app(environment, start):
    path = WWW / environment["PATH_INFO"].lstrip("/")
    body = path.read_bytes() if path.is_file() else b""
    start("200 OK" if path.is_file() else "404 Not Found", [("Content-Length", str(len(body)))])
    return [body[at:at + 65536] for at in range(0, len(body), 65536)]
