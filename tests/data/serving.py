"""A server on this machine alone, that can be as bad as servers are; and an address where none is."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Shelf:
    """The files of a test server, its behaviour, and the requests that it received."""

    files: dict[str, bytes]  # by path
    ranges: bool = True  # whether it answers for a part
    cuts: list[int] = field(default_factory=list)  # bytes after which each of the next answers breaks off
    moved: dict[str, str] = field(default_factory=dict)  # redirects, by path
    begins: int | None = None  # a wrong first byte to state, always
    sized: bool = True  # whether it says how long an answer is
    gate: threading.Event | None = None  # what every answer waits for
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and Range
    reached: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


class Handler(BaseHTTPRequestHandler):
    shelf: Shelf

    def do_GET(self) -> None:
        shelf, part = self.shelf, self.headers.get("Range")
        shelf.asked.append((self.path, part))
        shelf.reached.set()
        if shelf.gate:
            shelf.gate.wait(20)
        if self.path in shelf.moved:
            self.answer(302, {"Location": shelf.moved[self.path]})
        elif self.path not in shelf.files:
            self.answer(404, {})
        else:
            self.give(shelf.files[self.path], part if shelf.ranges else None)

    def give(self, body: bytes, part: str | None) -> None:
        stated = re.fullmatch(r"bytes=(\d+)-", part or "")
        start = int(stated[1]) if stated else 0
        if start and start >= len(body):
            self.answer(416, {"Content-Range": f"bytes */{len(body)}"})
            return
        headers = {"Content-Length": str(len(body) - start)} if self.shelf.sized else {}
        if stated or self.shelf.begins is not None:
            said = start if self.shelf.begins is None else self.shelf.begins
            headers["Content-Range"] = f"bytes {said}-{len(body) - 1}/{len(body)}"
        self.answer(206 if stated else 200, headers)
        length = self.shelf.cuts.pop(0) if self.shelf.cuts else len(body)
        self.wfile.write(body[start : start + length])

    def answer(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(files: dict[str, bytes], **behaviour: Any) -> Generator[Shelf]:
    """Serve files on a free port of the loopback."""
    shelf = Shelf(files, **behaviour)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Serving", (Handler,), {"shelf": shelf}))
    shelf.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield shelf
    finally:
        if shelf.gate:
            shelf.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def nobody() -> Generator[str]:
    """Return a loopback address that refuses connections: the port is bound, but nothing listens on it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def digests(files: dict[str, bytes]) -> dict[str, str]:
    """Return the SHA-256 of files by name."""
    return {name: sha256(content).hexdigest() for name, content in files.items()}


def left_behind(place: Path) -> set[str]:
    """Name what lies in a folder of the cache, the lock apart."""
    return {path.name for path in place.iterdir()} - {".lock"}
