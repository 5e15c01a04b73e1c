"""Lineage: which run came from which, which histories an erasure must delete, and which run superseded another.

``lineage.json`` in a run folder names the runs that the run came from, whose histories an erasure must delete too, and
the runs that were made from it, so that a later request does not bring a forgotten client back. It has a checksum, and
``result.json`` repeats the digests of the runs that the run came from, so a file that is missing or changed is noticed.
Earlier versions wrote ``earlier.json`` and ``later.json`` instead. ``erased.json`` records what erasures deleted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Required

from typing_extensions import TypedDict

from feduhb.core.types import ClientId
from feduhb.data.request import Request
from feduhb.errors import RequestError, RunFolderError, StorageError
from feduhb.runs.files import (
    Count,
    digest,
    digest_json,
    disk_errors,
    find_json,
    lock_folder,
    read_bytes,
    remove,
    resolve,
    write_json,
)
from feduhb.runs.folder import HISTORY, KEPT_MODELS, RunFolder, now
from feduhb.runs.history import DiskHistory
from feduhb.runs.kept import KeptModels

LINEAGE, ERASED = "lineage.json", "erased.json"
EARLIER, LATER = "earlier.json", "later.json"  # written by earlier versions
RESTORE = (
    "restore it from a backup: without it an erasure misses histories, and forgotten clients may come back"
)
SHARED_SEED = (
    "the difference of their first sums is the update of the forgotten clients; leave seed out, so that every run "
    "draws its own"
)
INSIST = "To serve the request all the same: --allow-revival, in Python allow_revival=True"
Store = DiskHistory | KeptModels  # what an erasure deletes from the leavers' first round on
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
        place = resolve(folder)
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

    def read_forgot(self) -> str | None:
        """Return what the run itself, or its tombstone, says that it had forgotten; None if neither is there."""
        files = RunFolder(self.path)
        if self.is_there:
            return str(read_forgotten(files) or "")
        found = files.tombstone()
        return found["forgot"] if found is not None and found["config_sha256"] == self.digest else None


class Entry(TypedDict, total=False):
    """An ancestor in lineage.json. Its path is relative to the folder, so that all folders can be moved together."""

    run: Required[str]
    config: Required[str]
    forgot: str


class Lineage(TypedDict, total=False):
    """The content of lineage.json."""

    earlier: Required[list[Entry]]  # the runs that this run came from, nearest first
    later: Required[list[str]]  # the folders of the runs that superseded it
    sha256: str  # of the rest


def read_lineage(folder: Path) -> Lineage:
    """Return the lineage of a run; raise RunFolderError if it is damaged, or if a run that has one lost it."""
    path = folder / LINEAGE
    found = find_json(path, Lineage, RESTORE)
    if found is not None and found.get("sha256") != _digest(found):
        raise RunFolderError(f"{path} is damaged; {RESTORE} (its checksum does not match)")
    files = RunFolder(folder)
    recorded = files.result().get("came_from") if files.is_finished() else None
    if found is None:
        if recorded is not None:
            raise RunFolderError(f"{path} is missing; {RESTORE}")
        earlier = find_json(folder / EARLIER, list[Entry], RESTORE) or []
        return {"earlier": earlier, "later": find_json(folder / LATER, list[str], RESTORE) or []}
    if recorded not in (None, [one["config"] for one in found["earlier"]]):
        raise RunFolderError(f"{path} names other runs than result.json; {RESTORE}")
    return found


def _digest(found: Lineage) -> str:
    return digest_json({"earlier": found["earlier"], "later": found["later"]})


def write_lineage(folder: Path, earlier: list[Entry], later: list[str]) -> None:
    """Write a lineage; delete the files of earlier versions, which it replaces."""
    found: Lineage = {"earlier": earlier, "later": later}
    write_json(folder / LINEAGE, {**found, "sha256": _digest(found)})
    for old in (EARLIER, LATER):
        remove(folder / old)


def read_ancestors(folder: Path) -> tuple[Ancestor, ...]:
    """Return the runs that a run came from, nearest first."""
    found = read_lineage(folder)["earlier"]
    return tuple(
        Ancestor(resolve(folder / one["run"]), one["config"], one.get("forgot", "")) for one in found
    )


def write_ancestors(folder: Path, ancestors: Sequence[Ancestor]) -> None:
    """Write which runs a run came from."""
    earlier: list[Entry] = [
        {"run": relate(a.path, folder), "config": a.digest, "forgot": a.forgot} for a in ancestors
    ]
    with _lock(folder):
        found = read_lineage(folder)
        if not (folder / LINEAGE).exists() or found["earlier"] != earlier:
            write_lineage(folder, earlier, found["later"])


def check_chain(folder: Path, ancestors: Sequence[Ancestor], total: Request | None) -> None:
    """Raise RunFolderError if the runs that a run came from cannot have come before it.

    A run has forgotten everything that the runs before it had forgotten. What a run had forgotten is in its config.toml,
    or in its tombstone if it was retired.
    """
    later, name = total, folder
    for one in ancestors:
        before = Request.parse(one.forgot) if one.forgot else None
        if before is not None and before.subtract(later) is not None:
            raise RunFolderError(
                f"the lineage of {folder} is not that of this run: it names {one.path}, which has forgotten {before}, "
                f"but {name} after it has forgotten {later or 'nothing'}; {RESTORE}"
            )
        if (recorded := one.read_forgot()) is not None and recorded != one.forgot:
            raise RunFolderError(
                f"the lineage of {folder} says that {one.path} had forgotten {one.forgot or 'nothing'}, "
                f"but that run records {recorded or 'nothing'}; {RESTORE}"
            )
        later, name = before, one.path


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
class Erased:
    """What an erasure deleted of a history or of kept models, as erased.json records it in the folder of their run."""

    history: str  # the folder of the history, or of the kept models
    first_round: Count  # counted from 0
    last_round: Count
    bytes: Count
    run: str | None  # the folder of the run for which it was deleted, relative to that of the history's run
    begun: str
    finished: str | None = None  # None: it was interrupted

    @property
    def what(self) -> str:
        """What was deleted, in words."""
        rounds = f"{self.first_round} to {self.last_round}"
        if Path(self.history).name == KEPT_MODELS:
            return f"kept models after {rounds} rounds"
        return f"rounds {rounds} of its history"

    def __str__(self) -> str:
        where = f"{self.history}: rounds {self.first_round} to {self.last_round}"
        kind = "kept models" if Path(self.history).name == KEPT_MODELS else "history"
        return f"erased {self.bytes:,} bytes of {kind} in {where}; {Path(self.history).with_name(ERASED)} records it"


def read_erased(folder: Path) -> list[Erased]:
    """Return what erasures deleted of the history of a run."""
    return find_json(folder / ERASED, list[Erased], "delete it: it is a record for people to read") or []


def _is_open(one: Erased, store: Store) -> bool:
    """Whether a record is of an erasure of a store that was interrupted."""
    return one.finished is None and Path(one.history).name == store.folder.name


def _is_left(history: Store, leavers: Sequence[ClientId]) -> bool:
    """Whether a store holds the leavers, or an interrupted erasure was not recorded as finished."""
    begun = read_erased(history.folder.parent)
    return bool(history.rounds_to_forget(leavers)) or any(_is_open(one, history) for one in begun)


def _erase_claimed(chosen: Sequence[tuple[Store, tuple[ClientId, ...]]], by: Path | None) -> list[Erased]:
    """Delete stores whose folders this process has claimed. Another one may have erased them while this one waited."""
    for history, _ in chosen:
        history.check_links()
    return [_erase(history, leavers, by) for history, leavers in chosen if _is_left(history, leavers)]


def _erase(history: Store, leavers: Sequence[ClientId], by: Path | None) -> Erased:
    """Delete a store from the leavers' first round on. Record it before and after, so that a crash loses no record."""
    folder, rounds = history.folder.parent, history.rounds_to_forget(leavers)
    records = read_erased(folder)
    done, begun = ([one for one in records if _is_open(one, history) == is_open] for is_open in (False, True))
    new = begun[0] if begun else Erased(
        str(history.folder), rounds[0], rounds[-1], history.measure(rounds), by and relate(by.resolve(), folder), now()
    )  # fmt: skip
    _record(folder, [*done, new])
    history.forget(leavers)
    new = replace(new, finished=now())
    _record(folder, [*done, new])
    return new


def _record(folder: Path, erased: Sequence[Erased]) -> None:
    write_json(folder / ERASED, [asdict(one) for one in erased])


@dataclass(frozen=True, slots=True)
class Erasure:
    """The histories and kept models that a request must delete, each with its leavers, and the runs that could not be found."""

    histories: tuple[tuple[Store, tuple[ClientId, ...]], ...] = ()
    missing: tuple[Ancestor, ...] = ()

    def delete(self, by: Path | None = None) -> list[Erased]:
        """Delete each history from its leavers' first round on; return and record what was deleted.

        Raise an error, and delete nothing, if another process is writing one of these runs, which would continue to store
        updates of the leavers, or if a part of a history is a link.

        Args:
            by: the folder of the run that serves the request.
        """
        chosen = [(history, who) for history, who in self.histories if _is_left(history, who)]
        with contextlib.ExitStack() as claims:
            for folder in sorted({history.folder.parent.resolve() for history, _ in chosen}):
                claims.enter_context(RunFolder(folder).claim(advice="stop it", patience=PATIENCE))
            return _erase_claimed(chosen, by)

    def warnings(self) -> list[str]:
        """Return a sentence for each run that could not be found, or that was not completely retired."""
        return [_explain_missing(one.path) for one in self.missing]


def _explain_missing(run: Path) -> str:
    """Return in words why the stores of a run that the present one came from were not erased, and what to do."""
    if RunFolder(run).tombstone_path.exists():
        return (
            f"retiring {run}, a run that this one came from, was interrupted; finish it: feduhb retire {run}"
        )
    rest = "delete its history and its kept models yourself: they contain the leavers' updates"
    if run.exists():
        return f"{run} does not hold the run that this one came from: its config is another one, or damaged; find that run and {rest}"
    return f"{run}, a run that this one came from, no longer exists; if you moved it, {rest}"


def _list_stores(folder: Path) -> list[Store]:
    kinds = ((HISTORY, DiskHistory), (KEPT_MODELS, KeptModels))
    return [kind(folder / name) for name, kind in kinds if (folder / name).is_dir()]


def find_histories(
    folder: Path | None,
    ancestors: Sequence[Ancestor],
    leavers: Sequence[ClientId],
    total: Request,
    holders: Callable[[Request, Store], Collection[ClientId]],
) -> Erasure:
    """Return what a request must delete: histories and kept models of a run and of the runs that it came from.

    Args:
        folder: the folder of the run that is to forget.
        leavers: the clients of that run whose data the request names.
        total: everything that is forgotten once the request is served.
        holders: a function of a request for classes and a store that returns the clients with these classes.
    """
    found: list[tuple[Store, tuple[ClientId, ...]]] = []
    if folder is not None:
        found += [(store, tuple(leavers)) for store in _list_stores(folder)]
    for one in ancestors:
        stores = _list_stores(one.path) if one.is_there else []
        later = total.subtract(read_forgotten(RunFolder(one.path))) if stores else None
        if later is not None:
            for store in stores:
                held = holders(Request(classes=later.classes), store) if later.classes else ()
                found.append((store, (*leavers, *later.clients, *later.rows, *held)))
    return Erasure(tuple(found), tuple(a for a in ancestors if not a.is_there and not a.is_retired))


@contextlib.contextmanager
def supersede(
    folders: Sequence[Path], later: Path, total: Request | None, warn: Callable[[str], object]
) -> Generator[None]:
    """Hold the lineage of older runs during the block, then record there that a later run supersedes them.

    Of two requests that are served at the same moment, the second one waits here and then finds the first. Raise
    RequestError if the later run would bring back what a run that superseded an older one has forgotten.

    Args:
        total: everything that the later run forgets; None does not check it.
    """
    held: list[Path] = []
    with contextlib.ExitStack() as locks:
        for folder in sorted({folder.resolve() for folder in folders}):
            try:
                locks.enter_context(_lock(folder))
            except StorageError as error:
                warn(
                    f"{folder} could not be marked as superseded by {later} ({error}); nothing will warn you if a later request "
                    f"names {folder} and so brings back what {later} forgets: keep a note of that"
                )
                continue
            others = [one for one in _find_successors(folder) if one[0].resolve() != later.resolve()]
            if total is not None and (revival := _explain(folder, others, total)):
                raise RequestError(f"{revival}. {INSIST}")
            held.append(folder)
        yield
        for folder in held:
            found, name = read_lineage(folder), relate(later.resolve(), folder)
            if name not in found["later"]:
                write_lineage(folder, found["earlier"], [*found["later"], name])


@contextlib.contextmanager
def _lock(folder: Path) -> Generator[None]:
    """Hold the lineage of a run; raise StorageError if it cannot be written."""
    with contextlib.ExitStack() as locks:
        with disk_errors(folder / LINEAGE):
            locks.enter_context(lock_folder(folder, ".lineage.lock"))
        yield


def check_revival(folder: Path, total: Request | None, *, allow: bool, warn: Callable[[str], object]) -> None:
    """Raise RequestError if a new run made from a run would bring back data that a later run has forgotten.

    Args:
        total: everything that the new run forgets; None if nothing.
        allow: only warn.
    """
    revival = _explain(folder, _find_successors(folder), total)
    if revival is not None and not allow:
        raise RequestError(f"{revival}. {INSIST}")
    if revival is not None:
        warn(revival)


def _explain(folder: Path, successors: Iterable[tuple[Path, Request]], total: Request | None) -> str | None:
    for later, gone in successors:
        if (back := gone.subtract(total)) is not None:
            here, more = shorten(folder), back if total is None else total.merge(back)
            return (
                f"{later} came from {here} and has forgotten {gone}; another request to {here} would bring {back} back: "
                f"unlearn {later} instead, or forget {more}. To compare methods, use feduhb compare; if {later} was a mistake, delete it"
            )
    return None


def read_successors(folder: Path) -> list[Path]:
    """Return the folders of the runs that superseded a run, whether they are still there or not."""
    return [resolve(folder / name) for name in read_lineage(folder)["later"]]


def _find_successors(folder: Path) -> list[tuple[Path, Request]]:
    """Return the runs that superseded a run and were not deleted, with what each has forgotten; retired runs come last."""
    living: list[tuple[Path, str]] = []
    retired: list[tuple[Path, str]] = []
    for later in map(shorten, read_successors(folder)):
        files = RunFolder(later)
        if (tombstone := files.tombstone()) is not None:
            retired.append((later, tombstone["forgot"]))
        elif files.exists():
            living.append((later, str(read_forgotten(files) or "")))
    return [(later, Request.parse(text)) for later, text in (*living, *retired) if text]


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
        return "" if files.tombstone_path.exists() else digest(read_bytes(files.config_path))
    except OSError:
        return ""
