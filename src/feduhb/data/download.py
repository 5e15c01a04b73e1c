"""Download a file over HTTP. An interrupted download continues where it stopped."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Generator
from http.client import HTTPException, HTTPResponse, InvalidURL
from pathlib import Path
from urllib import request
from urllib.error import HTTPError, URLError

ATTEMPTS = 4  # connections to try before giving up
PATIENCE = 30.0  # seconds without a byte
CHUNK = 1 << 16  # bytes
LARGEST = 1 << 30  # bytes; every data set here is much smaller

Report = Callable[[int, int | None], None]  # called with the bytes so far and, if known, the total


class DownloadError(Exception):
    """A file cannot be downloaded."""


class _ConnectionBrokenError(Exception):
    """A connection ended too early; another attempt can continue."""


def download(url: str, part: Path, report: Report) -> None:
    """Download ``url`` into ``part``, after the bytes that an earlier attempt left there.

    If the download fails, the bytes that arrived are kept. The caller must verify the content.
    """
    reason = ""
    for _ in range(ATTEMPTS):
        try:
            return _download_rest(url, part, report)
        except _ConnectionBrokenError as error:
            reason = str(error)
    raise DownloadError(f"{reason}, {ATTEMPTS} times; start again to continue this download")


def _download_rest(url: str, part: Path, report: Report) -> None:
    present = part.stat().st_size if part.exists() else 0
    response = _request_rest(url, present)
    if response is None:
        return
    with response:
        stated = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        start = int(stated[1]) if response.status == 206 and stated else 0  # 0 if the server ignores Range
        if start not in (0, present):
            part.unlink()
            raise _ConnectionBrokenError(f"the server began at byte {start:,} instead of {present:,}")
        length = response.headers.get("Content-Length")
        total = start + int(length) if length and length.isdigit() else None
        _copy(response, part, start, total, report)


def _request_rest(url: str, present: int) -> HTTPResponse | None:
    """Request the bytes after those that are present; return None if the server says that there are none."""
    headers = {"User-Agent": "feduhb", **({"Range": f"bytes={present}-"} if present else {})}
    try:
        return _make_opener().open(request.Request(url, headers=headers), timeout=PATIENCE)  # noqa: S310 (this opener opens only http and https)
    except HTTPError as error:
        error.close()
        if error.code == 416 and present:
            return None
        raise DownloadError(f"HTTP {error.code} {error.reason}") from None
    except URLError as error:
        raise DownloadError(_format_reason(error.reason)) from None
    except (InvalidURL, ValueError) as error:
        raise DownloadError(f"not an address: {error}") from None
    except (HTTPException, OSError) as error:
        raise _ConnectionBrokenError(_format_reason(error)) from None


def _make_opener() -> request.OpenerDirector:
    """Return an opener for http and https, with proxies and redirects, that refuses file and ftp."""
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler, request.HTTPHandler, request.HTTPSHandler, request.HTTPRedirectHandler,
        request.HTTPDefaultErrorHandler, request.HTTPErrorProcessor, request.UnknownHandler,
    ):  # fmt: skip
        opener.add_handler(handler())
    return opener


def _copy(response: HTTPResponse, part: Path, start: int, total: int | None, report: Report) -> None:
    done = start
    with part.open("ab" if start else "wb") as file:
        while chunk := _read_chunk(response):
            done += len(chunk)
            if done > LARGEST:
                break
            file.write(chunk)
            report(done, total)
    if done > LARGEST:
        part.unlink()
        raise DownloadError(f"the server sends more than {LARGEST:,} bytes")
    if total is not None and done < total:
        raise _ConnectionBrokenError(f"the connection broke off after {done:,} of {total:,} bytes")


def _read_chunk(response: HTTPResponse) -> bytes:
    try:
        return response.read(CHUNK)
    except (HTTPException, OSError) as error:
        raise _ConnectionBrokenError(_format_reason(error)) from None


def _format_reason(error: object) -> str:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(reason).split())


@contextlib.contextmanager
def show_progress(name: str) -> Generator[Report]:
    """Show the progress of a download in megabytes if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None  # noqa: ARG005
        return
    shown = ""

    def report(done: int, total: int | None) -> None:
        nonlocal shown
        line = f"{name}  {done / 1e6:.1f}" + (f" of {total / 1e6:.1f} MB" if total else " MB")
        if line != shown:
            sys.stderr.write(f"\r{line}")
            sys.stderr.flush()
            shown = line

    try:
        yield report
    finally:
        sys.stderr.write("\n" if shown else "")


def print_notice(text: str) -> None:
    """Print a line on standard error."""
    sys.stderr.write(f"feduhb: {text}\n")
    sys.stderr.flush()
