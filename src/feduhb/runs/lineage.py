"""Lineage: which run came from which, what an erasure must reach, and which run has taken another's place.

``earlier.json`` in a run's folder names the runs that it came from, so that an erasure reaches what each of them kept.
``later.json`` names the runs that `feduhb.unlearn` made of it, so that nobody who was forgotten is brought back. Flower's
strategies write ``earlier.json`` alone: an operator names the training there by ``trained=``.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from feduhb.core.types import ClientId
from feduhb.data.request import Request
from feduhb.errors import FeduhbError, RunFolderError
from feduhb.runs.folder import HISTORY, RunFolder, update_atomically, write_atomically
from feduhb.runs.history import DiskHistory

EARLIER, LATER = "earlier.json", "later.json"
PATIENCE = 10.0  # seconds to wait for another process that erases a history, or audits a run


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A run that another came from: where it was, and the digest of its config.toml, by which it is recognised."""

    path: Path
    digest: str
    forgot: str = ""  # everything that it had forgotten, as text that `Request.parse` reads

    @classmethod
    def at(cls, folder: Path) -> Ancestor:
        """Return the run in a folder."""
        place = folder.resolve()
        digest = _digest(place)
        forgot = RunFolder(place).config().get("unlearn", {}) if digest else {}
        return cls(place, digest, str(forgot.get("forget", "")))

    @property
    def is_there(self) -> bool:
        """Whether that run, and no other, is still where it was."""
        return bool(self.digest) and _digest(self.path) == self.digest


def read_ancestors(folder: Path) -> tuple[Ancestor, ...]:
    """Return the runs that a run came from, nearest first."""
    path = folder / EARLIER
    if not path.exists():
        return ()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return tuple(
            Ancestor((folder / str(one["run"])).resolve(), str(one["config"]), str(one.get("forgot", "")))
            for one in found
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise RunFolderError(
            f"{path} is damaged; restore it from a backup: it says whose histories an erasure must reach"
        ) from None


def write_ancestors(folder: Path, ancestors: Sequence[Ancestor]) -> None:
    """Write which runs a run came from, by paths that stay valid if all of them are moved together."""
    found = [
        {"run": _relative(one.path, folder.resolve()), "config": one.digest, "forgot": one.forgot}
        for one in ancestors
    ]
    path, text = folder / EARLIER, json.dumps(found, indent=2) + "\n"
    if found and not (path.exists() and path.read_text(encoding="utf-8") == text):
        write_atomically(path, text.encode())


def read_forgotten(folder: RunFolder) -> Request | None:
    """Return everything that the run in a folder has forgotten, earlier requests included; None if nothing."""
    config = folder.config()
    found = config.get("unlearn", {}).get("forget") or config.get("flower", {}).get("forget")
    return Request.parse(found) if found else None


@dataclass(frozen=True, slots=True)
class Erasure:
    """The histories that a request must reach, with the leavers of each, and the runs that could not be found.

    They are looked up before anything is deleted, and deleted by `feduhb.runs.execute`.
    """

    histories: tuple[tuple[DiskHistory, tuple[ClientId, ...]], ...] = ()
    missing: tuple[Ancestor, ...] = ()

    def delete(self) -> dict[Path, int]:
        """Delete every history from its leavers' first round on; return the bytes freed, by the history's folder.

        Raise RunFolderError, and delete nothing, if another process keeps writing one of these runs: it would continue
        to store updates of the leavers.
        """
        doomed = [
            (history, leavers) for history, leavers in self.histories if history.rounds_to_forget(leavers)
        ]
        with contextlib.ExitStack() as claims:
            for folder in sorted({history.folder.parent.resolve() for history, _ in doomed}):
                claims.enter_context(RunFolder(folder).claim(advice="stop it", patience=PATIENCE))
            return {history.folder: history.forget(leavers) for history, leavers in doomed}

    def warnings(self) -> list[str]:
        """Return a sentence on each run that could not be found, and what to do."""
        return [
            f"{one.path}, a run that this one came from, is not there any more; if it was deleted, nothing is left to do, "
            "but if it was moved, delete its history yourself: the leavers' updates are in it"
            for one in self.missing
        ]


def find_histories(
    folder: Path | None,
    ancestors: Sequence[Ancestor],
    leavers: Sequence[ClientId],
    total: Request,
    holders: Callable[[Request, DiskHistory], Collection[ClientId]],
) -> Erasure:
    """Return what a request must reach: the history of a run, and those of the runs that it came from.

    Args:
        folder: of the run that shall forget.
        leavers: the clients that the request touches in that run.
        total: everything forgotten once the request is served.
        holders: of a request for classes and a history, the clients that held them.
    """
    found: list[tuple[DiskHistory, tuple[ClientId, ...]]] = []
    if folder is not None and (folder / HISTORY).is_dir():
        found.append((DiskHistory(folder / HISTORY), tuple(leavers)))
    for one in ancestors:
        if not one.is_there or not (one.path / HISTORY).is_dir():
            continue
        later = total.subtract(read_forgotten(RunFolder(one.path)))
        if later is not None:
            history = DiskHistory(one.path / HISTORY)
            held = holders(Request(classes=later.classes), history) if later.classes else ()
            found.append((history, (*leavers, *later.clients, *later.rows, *held)))
    return Erasure(tuple(found), tuple(one for one in ancestors if not one.is_there))


def note_successor(folders: Sequence[Path], later: Path) -> None:
    """Write into the folders of a run and its ancestors which run now serves a request that was made of it.

    A folder that cannot be written stays as it is.
    """
    for folder in folders:
        name = Path(os.path.relpath(later.resolve(), folder.resolve())).as_posix()
        with contextlib.suppress(FeduhbError):
            update_atomically(folder / LATER, lambda old, name=name: _add_name(old, name))


def explain_revival(folder: Path | None, forgot: Request | None, asked: Request) -> str | None:
    """Return whom a request would bring back because a later run has forgotten them, and what to do; None if nobody.

    Args:
        folder, forgot: of the run that the request is made of.
    """
    total = asked if forgot is None else forgot.merge(asked)
    for later, gone in _successors(folder):
        if (back := gone.subtract(total)) is not None:
            return (
                f"{later} came from {folder} and has forgotten {gone}; a request made of {folder} again would bring {back} back: "
                f"make it of {later}, or name them too: {total.merge(back)}. To try things out use feduhb compare; if {later} was a mistake, delete it"
            )
    return None


def _successors(folder: Path | None) -> Iterator[tuple[Path, Request]]:
    """Yield the runs that took a run's place and are still there, with what each has forgotten."""
    if folder is None:
        return
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = _read_names((folder / LATER).read_bytes())
    for name in names:
        later = _shorten((folder.resolve() / name).resolve())
        with contextlib.suppress(FeduhbError, KeyError, TypeError):  # deleted, or no run any more
            yield later, Request.parse(RunFolder(later).config()["unlearn"]["forget"])


def _read_names(content: bytes) -> list[str]:
    try:
        return [str(name) for name in json.loads(content)]
    except (ValueError, TypeError):
        return []


def _add_name(content: bytes, name: str) -> bytes:
    return (json.dumps([*dict.fromkeys([*_read_names(content), name])], indent=1) + "\n").encode()


def _shorten(path: Path) -> Path:
    """Return a path relative to the current directory, if it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _relative(path: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # on another drive
        return path.as_posix()


def _digest(folder: Path) -> str:
    """Return the digest of a run's config.toml, which is written once; nothing if there is none."""
    try:
        return sha256(RunFolder(folder).config_path.read_bytes()).hexdigest()
    except OSError:
        return ""
