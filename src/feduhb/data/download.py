"""One file over HTTP: what broke off goes on where it stopped, in this try or in a later one."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Generator
from http.client import HTTPException, HTTPResponse, InvalidURL
from pathlib import Path
from urllib import request
from urllib.error import HTTPError, URLError

TRIES = 4  # of a connection that breaks off
PATIENCE = 30.0  # seconds without a byte
CHUNK = 1 << 16  # bytes
LARGEST = 1 << 30  # bytes; no data set here comes near

Tell = Callable[[int, int | None], None]  # bytes so far, bytes in all if the server says


class FailedError(Exception):
    """A file that did not come, with the reason in words."""


class _BrokenOffError(Exception):
    """A connection that ended early; another may go on."""


def download(url: str, part: Path, tell: Tell) -> None:
    """Fetch ``url`` into ``part``, behind what an earlier try left there, and keep what came when it fails.

    Whether it is the right file is for its checksum to say.
    """
    reason = ""
    for _ in range(TRIES):
        try:
            return _go_on(url, part, tell)
        except _BrokenOffError as broken:
            reason = str(broken)
    raise FailedError(f"{reason}, {TRIES} times; what came is kept, and another start goes on from there")


def _go_on(url: str, part: Path, tell: Tell) -> None:
    there = part.stat().st_size if part.exists() else 0
    response = _asked(url, there)
    if response is None:
        return
    with response:
        begin = _begin(response)
        if begin not in (0, there):
            part.unlink()
            raise _BrokenOffError(f"the server began at byte {begin:,} instead of {there:,}")
        length = response.headers.get("Content-Length")
        total = begin + int(length) if length and length.isdigit() else None
        _copy(response, part, begin, total, tell)


def _asked(url: str, there: int) -> HTTPResponse | None:
    """Ask for the bytes behind those that are there; None: the server says that there are no more."""
    headers = {"User-Agent": "feduhb", **({"Range": f"bytes={there}-"} if there else {})}
    try:
        return _opener().open(request.Request(url, headers=headers), timeout=PATIENCE)  # noqa: S310 (the opener knows http and https alone)
    except HTTPError as error:
        error.close()
        if error.code == 416 and there:
            return None
        raise FailedError(f"HTTP {error.code} {error.reason}") from None
    except URLError as error:
        raise FailedError(_words(error.reason)) from None
    except (InvalidURL, ValueError) as error:
        raise FailedError(f"not an address: {error}") from None
    except (HTTPException, OSError) as error:
        raise _BrokenOffError(_words(error)) from None


def _opener() -> request.OpenerDirector:
    """Open http and https, also behind a proxy or a redirect, and nothing else: no file, no ftp."""
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler, request.HTTPHandler, request.HTTPSHandler, request.HTTPRedirectHandler,
        request.HTTPDefaultErrorHandler, request.HTTPErrorProcessor, request.UnknownHandler,
    ):  # fmt: skip
        opener.add_handler(handler())
    return opener


def _begin(response: HTTPResponse) -> int:
    """Read at which byte an answer begins. A server that ignores the question for a part begins at 0."""
    stated = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(stated[1]) if response.status == 206 and stated else 0


def _copy(response: HTTPResponse, part: Path, begin: int, total: int | None, tell: Tell) -> None:
    done = begin
    with part.open("ab" if begin else "wb") as file:
        while chunk := _chunk(response):
            done += len(chunk)
            if done > LARGEST:
                break
            file.write(chunk)
            tell(done, total)
    if done > LARGEST:
        part.unlink()
        raise FailedError(f"more than {LARGEST:,} bytes come from there")
    if total is not None and done < total:
        raise _BrokenOffError(f"the connection broke off after {done:,} of {total:,} bytes")


def _chunk(response: HTTPResponse) -> bytes:
    try:
        return response.read(CHUNK)
    except (HTTPException, OSError) as error:
        raise _BrokenOffError(_words(error)) from None


def _words(error: object) -> str:
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(said).split())


@contextlib.contextmanager
def watched(name: str) -> Generator[Tell]:
    """Show a download as it comes, in megabytes, where standard error is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None  # noqa: ARG005
        return
    shown = ""

    def tell(done: int, total: int | None) -> None:
        nonlocal shown
        now = f"{name}  {done / 1e6:.1f}" + (f" of {total / 1e6:.1f} MB" if total else " MB")
        if now != shown:
            sys.stderr.write(f"\r{now}")
            sys.stderr.flush()
            shown = now

    try:
        yield tell
    finally:
        sys.stderr.write("\n" if shown else "")


def say(text: str) -> None:
    """Tell the person who waits, in one line on standard error."""
    sys.stderr.write(f"feduhb: {text}\n")
    sys.stderr.flush()
