"""An ASGI application that serves the files of the folder $WWW."""
import os
import pathlib

WWW = pathlib.Path(os.environ["WWW"])


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    path = WWW / scope["path"].lstrip("/")
    body = path.read_bytes() if path.is_file() else b""
    await send({"type": "http.response.start", "status": 200 if path.is_file() else 404,
                "headers": [(b"content-length", str(len(body)).encode())]})
    for start in range(0, len(body), 65536):
        await send({"type": "http.response.body", "body": body[start:start + 65536], "more_body": True})
    await send({"type": "http.response.body", "body": b""})
