"""Where audits work: in folders of this user, outside every run folder.

A run folder may come from the people who are audited. What lies in it must never count as the auditor's own work.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from hashlib import sha256
from pathlib import Path

from feduhb.errors import StorageError
from feduhb.runs.files import disk_errors, make_private_folder, read_bytes, resolve, write_new
from feduhb.runs.folder import WORK

STATE = "FEDUHB_STATE"  # the environment variable that names another folder
KEY_SIZE = 32  # bytes


def find_audits() -> Path:
    """Return the folder for the work of all audits of this user."""
    named, standard = os.environ.get(STATE), os.environ.get("XDG_STATE_HOME")
    state = Path(named) if named else Path(standard or Path.home() / ".local" / "state") / "feduhb"
    return resolve(state.expanduser()) / "audits"


def find_work(place: Path) -> Path:
    """Return the folder in which an audit works whose audit.json goes into ``place``."""
    return find_audits() / sha256(os.fsencode(resolve(place))).hexdigest()[:16] / WORK


def list_work() -> list[Path]:
    """Return the folders of audits that are at work or were interrupted."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        places = sorted(place / WORK for place in find_audits().iterdir())
        return [work for work in places if work.is_dir() and not work.is_symlink()]
    return []


def make_work(place: Path) -> Path:
    """Make the folder in which an audit works; raise StorageError if it does not belong to this user alone."""
    work = find_work(place)
    for folder in (work.parent.parent, work.parent, work):
        make_private_folder(folder)
        _check_private(folder)
    return work


def read_key() -> bytes:
    """Return this user's secret, by which feduhb recognises what it has written itself; make it if there is none."""
    path = find_audits() / "key"
    make_private_folder(path.parent)
    with disk_errors(path):
        _check_private(path.parent)
        with contextlib.suppress(FileExistsError):
            write_new(path, secrets.token_bytes(KEY_SIZE))
        _check_private(path)
        key = read_bytes(path)
    if len(key) != KEY_SIZE:
        raise StorageError(
            f"{path} is damaged; delete it: interrupted audits then begin again, and runs of own code must be trusted again"
        )
    return key


def _check_private(path: Path) -> None:
    found = path.lstat()
    is_private = not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o077 == 0
    if os.name == "posix" and not (is_private and found.st_uid == os.getuid()):
        raise StorageError(
            f"{path} is not private to this user; delete it, or name another folder for the work of audits by {STATE}"
        )
