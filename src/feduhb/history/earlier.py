"""The runs that a run came from, named beside it, so that an erasure reaches what each of them kept."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from feduhb.errors import RunFolderError
from feduhb.records import RunFolder, write_atomically

FILE = "earlier.json"


@dataclass(frozen=True, slots=True)
class Earlier:
    """A run that another came from: where it was, and the digest of its config.toml, by which it is known again."""

    path: Path
    digest: str
    forgot: str = ""  # all that it had forgotten, as requests are spelled

    @classmethod
    def at(cls, folder: Path) -> Earlier:
        """Name the run in a folder."""
        place = folder.resolve()
        digest = _digest(place)
        told = RunFolder(place).config().get("unlearn", {}) if digest else {}
        return cls(place, digest, str(told.get("forget", "")))

    @property
    def there(self) -> bool:
        """Whether that run, and no other, is still where it was."""
        return bool(self.digest) and _digest(self.path) == self.digest


def read(folder: Path) -> tuple[Earlier, ...]:
    """Read which runs a run came from, nearest first; none where nothing is written."""
    path = folder / FILE
    if not path.exists():
        return ()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return tuple(
            Earlier((folder / str(one["run"])).resolve(), str(one["config"]), str(one.get("forgot", "")))
            for one in found
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise RunFolderError(
            f"{path} is damaged; restore it from a backup: it says whose histories an erasure must reach"
        ) from None


def note(folder: Path, earlier: Sequence[Earlier]) -> None:
    """Write down which runs a run came from, by paths that still hold where all of them are moved together."""
    found = [
        {"run": _relative(one.path, folder.resolve()), "config": one.digest, "forgot": one.forgot}
        for one in earlier
    ]
    path, text = folder / FILE, json.dumps(found, indent=2) + "\n"
    if found and not (path.exists() and path.read_text(encoding="utf-8") == text):
        write_atomically(path, text.encode())


def lost(one: Earlier) -> str:
    """Say that a run could not be found, and what to do."""
    return (
        f"{one.path}, a run that this one came from, is not there any more; if it was deleted, nothing is left to do, "
        f"but if it was moved, delete its history yourself: the leavers' updates are in it"
    )


def _relative(path: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # on another drive
        return path.as_posix()


def _digest(folder: Path) -> str:
    """Name a run by its config.toml, which is written once; nothing where there is none."""
    try:
        return sha256(RunFolder(folder).config_path.read_bytes()).hexdigest()
    except OSError:
        return ""
