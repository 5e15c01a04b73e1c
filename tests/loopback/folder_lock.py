"""Lock a folder, so that one federation uses it at a time."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path
from typing import IO

from loopback.programs import FederationError

LOCK = "in-use"


def lock_folder(folder: Path) -> IO[bytes]:
    """Lock a folder and return the open lock file, or raise a FederationError that names who holds it.

    Programs inherit the open file. The folder therefore stays locked as long as one of them runs, even after the
    process that started them was killed.
    """
    file = (folder / LOCK).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
    else:
        return file
    holders = " ".join(map(str, list_holders(folder / LOCK)))
    ending = f"end them (kill {holders})" if holders else f"end them (lsof {folder / LOCK} names them)"
    raise FederationError(
        f"{folder} is in use: another start works there, or programs of an earlier one were left behind; "
        f"{ending}, or take another folder"
    )


def list_holders(file: Path) -> list[int]:
    """Return the ids of the processes that have a file open; empty on systems without /proc."""
    return sorted(
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if file.resolve() in _list_open_files(process)
    )


def _list_open_files(process: Path) -> set[Path]:
    found: set[Path] = set()
    with contextlib.suppress(OSError):  # the process belongs to another user, or has just ended
        for handle in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # the file has just been closed
                found.add(handle.readlink())
    return found
