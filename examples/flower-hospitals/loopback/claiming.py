"""One federation in a folder at a time, also where whoever started the last one is gone and its programs are not."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import IO

from feduhb.records import locked
from loopback.programs import FederationError

LOCK = "in-use"


def claimed(folder: Path) -> IO[bytes]:
    """Lock a folder, or refuse in words. Programs inherit the open file, so that it stays locked as long as one of them runs."""
    file = (folder / LOCK).open("ab")
    if locked(file):
        return file
    file.close()
    running = " ".join(map(str, holders(folder / LOCK)))
    ending = f"end them (kill {running})" if running else f"end them (lsof {folder / LOCK} names them)"
    raise FederationError(
        f"{folder} is in use: another start works there, or programs of an earlier one were left behind; "
        f"{ending}, or take another folder"
    )


def holders(file: Path) -> list[int]:
    """Give the ids of the processes that have a file open, where the system can tell (Linux)."""
    return sorted(
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if file.resolve() in _open_files(process)
    )


def _open_files(process: Path) -> set[Path]:
    found: set[Path] = set()
    with contextlib.suppress(OSError):  # it is another user's, or has just ended
        for handle in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # it has just been closed
                found.add(handle.readlink())
    return found
