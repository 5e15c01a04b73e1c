"""Lineage: which run came from which, which histories an erasure must delete, and which run superseded another.

``earlier.json`` in a run folder names the runs that the run came from, whose histories an erasure must delete too.
``later.json`` names the runs that `feduhb.unlearn` made from it, so that a later request does not bring a forgotten
client back. Flower's strategies write ``earlier.json`` only; there an operator names the training by ``trained=``.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from feduhb.core.types import ClientId
from feduhb.data.request import Request
from feduhb.errors import FeduhbError, RunFolderError
from feduhb.runs.folder import HISTORY, RunFolder, update_atomically, write_atomically
from feduhb.runs.history import DiskHistory

EARLIER, LATER = "earlier.json", "later.json"
SHARED_SEED = (
    "the difference of their first sums is the update of the forgotten clients; leave seed out, so that every run "
    "draws its own"
)
PATIENCE = 10.0  # seconds to wait for another process that uses a run folder


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A run that another run came from."""

    path: Path
    digest: str  # of its config.toml, by which the run is recognised
    forgot: str = ""  # everything that it had forgotten, as text that `Request.parse` reads

    @classmethod
    def at(cls, folder: Path) -> Ancestor:
        """Return the run in a folder."""
        place = folder.resolve()
        digest = digest_config(place)
        forgot = RunFolder(place).config().get("unlearn", {}) if digest else {}
        return cls(place, digest, str(forgot.get("forget", "")))

    @property
    def is_there(self) -> bool:
        """Whether the run is still at its path."""
        return bool(self.digest) and digest_config(self.path) == self.digest

    @property
    def is_retired(self) -> bool:
        """Whether the run was retired at its path, so that nothing of it is left to erase."""
        found = RunFolder(self.path).tombstone()
        return found is not None and found["finished"] is not None and found["config_sha256"] == self.digest


def read_ancestors(folder: Path) -> tuple[Ancestor, ...]:
    """Return the runs that a run came from, nearest first."""
    path = folder / EARLIER
    if not path.exists():
        return ()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        texts = [(str(one["run"]), str(one["config"]), str(one.get("forgot", ""))) for one in found]
        return tuple(Ancestor((folder / path).resolve(), digest, forgot) for path, digest, forgot in texts)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise RunFolderError(
            f"{path} is damaged; restore it from a backup: an erasure needs it to find histories"
        ) from None


def write_ancestors(folder: Path, ancestors: Sequence[Ancestor]) -> None:
    """Write which runs a run came from. The paths are relative, so that all folders can be moved together."""
    found = [{"run": relate(a.path, folder), "config": a.digest, "forgot": a.forgot} for a in ancestors]
    path, text = folder / EARLIER, json.dumps(found, indent=2) + "\n"
    if found and not (path.exists() and path.read_text(encoding="utf-8") == text):
        write_atomically(path, text.encode())


def explain_shared_seed(seed: int, folders: Iterable[Path]) -> str | None:
    """Return a warning for an exact run over real clients if a run that it replaces has its seed; None if none has.

    A run that was retired does not count: its sums are deleted.
    """
    for path in folders:
        folder = RunFolder(path)
        if folder.exists() and folder.tombstone() is None and int(folder.config().get("seed", 0)) == seed:
            return f"this run has the seed of {path}: {SHARED_SEED}"
    return None


def read_forgotten(folder: RunFolder) -> Request | None:
    """Return everything that a run has forgotten, with earlier requests; None if nothing."""
    config = folder.config()
    found = config.get("unlearn", {}).get("forget") or config.get("flower", {}).get("forget")
    return Request.parse(found) if found else None


@dataclass(frozen=True, slots=True)
class Erasure:
    """The histories that a request must delete, each with its leavers, and the runs that could not be found."""

    histories: tuple[tuple[DiskHistory, tuple[ClientId, ...]], ...] = ()
    missing: tuple[Ancestor, ...] = ()

    def delete(self) -> dict[Path, int]:
        """Delete each history from its leavers' first round on; return the bytes freed, by the history's folder.

        Raise RunFolderError, and delete nothing, if another process is writing one of these runs: it would continue to
        store updates of the leavers.
        """
        chosen = [(history, who) for history, who in self.histories if history.rounds_to_forget(who)]
        with contextlib.ExitStack() as claims:
            for folder in sorted({history.folder.parent.resolve() for history, _ in chosen}):
                claims.enter_context(RunFolder(folder).claim(advice="stop it", patience=PATIENCE))
            return {history.folder: history.forget(leavers) for history, leavers in chosen}

    def warnings(self) -> list[str]:
        """Return a sentence for each run that could not be found, or that was not completely retired."""
        return [
            f"retiring {one.path}, a run that this one came from, was interrupted; finish it: feduhb retire {one.path}"
            if RunFolder(one.path).tombstone_path.exists()
            else f"{one.path}, a run that this one came from, no longer exists; if you moved it, "
            "delete its history yourself: it contains the leavers' updates"
            for one in self.missing
        ]


def find_histories(
    folder: Path | None,
    ancestors: Sequence[Ancestor],
    leavers: Sequence[ClientId],
    total: Request,
    holders: Callable[[Request, DiskHistory], Collection[ClientId]],
) -> Erasure:
    """Return what a request must delete: the history of a run and those of the runs that it came from.

    Args:
        folder: the folder of the run that is to forget.
        leavers: the clients of that run whose data the request names.
        total: everything that is forgotten once the request is served.
        holders: a function of a request for classes and a history that returns the clients with these classes.
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
    return Erasure(tuple(found), tuple(a for a in ancestors if not a.is_there and not a.is_retired))


def note_successor(folders: Sequence[Path], later: Path) -> None:
    """Write into the folders of a run and its ancestors that a later run supersedes them, where they can be written."""

    def add_name(content: bytes, name: str) -> bytes:
        return (json.dumps([*dict.fromkeys([*_read_names(content), name])], indent=1) + "\n").encode()

    for folder in folders:
        with contextlib.suppress(FeduhbError):
            update_atomically(folder / LATER, partial(add_name, name=relate(later.resolve(), folder)))


def explain_revival(folder: Path | None, forgot: Request | None, asked: Request) -> str | None:
    """Return a warning if a request to a run would bring back data that a later run has forgotten; else None."""
    total = asked if forgot is None else forgot.merge(asked)
    for later, gone in _find_successors(folder):
        if (back := gone.subtract(total)) is not None:
            return (
                f"{later} came from {folder} and has forgotten {gone}; another request to {folder} would bring {back} back: "
                f"unlearn {later} instead, or forget {total.merge(back)}. To compare methods, use feduhb compare; if {later} was a mistake, delete it"
            )
    return None


def read_successors(folder: Path) -> list[Path]:
    """Return the folders of the runs that superseded a run, whether they are still there or not."""
    try:
        names = _read_names((folder / LATER).read_bytes())
    except OSError:
        return []
    return [(folder.resolve() / name).resolve() for name in names]


def _find_successors(folder: Path | None) -> Iterator[tuple[Path, Request]]:
    """Yield the runs that superseded a run and are still there, with what each has forgotten."""
    for later in map(shorten, read_successors(folder) if folder else ()):
        with contextlib.suppress(FeduhbError, KeyError, TypeError):  # deleted, or not a run any more
            yield later, Request.parse(RunFolder(later).config()["unlearn"]["forget"])


def _read_names(content: bytes) -> list[str]:
    try:
        return [str(name) for name in json.loads(content)]
    except (ValueError, TypeError):
        return []


def relate(path: Path, folder: Path) -> str:
    """Return a path relative to a folder; an absolute path if they are on different drives."""
    try:
        return Path(os.path.relpath(path, folder.resolve())).as_posix()
    except ValueError:
        return path.as_posix()


def shorten(path: Path) -> Path:
    """Return a path for people: relative to the working directory if it lies there."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def digest_config(folder: Path) -> str:
    """Return the digest of a run's config.toml, which never changes; empty if there is none, or the run was retired."""
    files = RunFolder(folder)
    try:
        return "" if files.tombstone_path.exists() else sha256(files.config_path.read_bytes()).hexdigest()
    except OSError:
        return ""
