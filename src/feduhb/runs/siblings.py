"""Find what else holds the data that a run has forgotten: other runs, and what audits left in `audit-work`.

An audit works in a folder of the auditor, see `feduhb.runs.private`. With --keep, and in earlier versions, its work is in
the run folder.

A run holds the leavers if it is related to the old run by lineage, or has data in its config that the old run had and
the new one has not. It may hold them if a client with the id or the registered name of a leaver took part: over Flower
the server has no data to compare, and elsewhere the client's data may have changed since. A folder that cannot be read
does not stop the search: it is reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from feduhb.data.request import Request
from feduhb.errors import FeduhbError
from feduhb.runs.config import upgrade
from feduhb.runs.files import find_json
from feduhb.runs.folder import NAMES, WORK, RunFolder
from feduhb.runs.lineage import digest_config, read_ancestors, read_forgotten, read_successors
from feduhb.runs.private import find_work, list_work


@dataclass(frozen=True, slots=True)
class Siblings:
    """Folders of other runs, and of audit work in runs that have themselves forgotten the leavers."""

    holding: tuple[Path, ...]
    may_hold: tuple[Path, ...]
    unread: tuple[Path, ...]  # could not be read, or not enough of them to tell


def find_siblings(old: Path, new: Path, leavers: Request) -> Siblings:
    """Return the folders that hold or may hold the leavers, and the runs whose retirement was interrupted."""
    unread: set[Path] = set()
    places, digests = _follow_lineage(old, new, unread=unread)
    gone = {*list_data(old).values()} - {*list_data(new).values()}
    names = _name_leavers(old, new, leavers)

    def is_related(place: Path) -> bool:
        return bool(list_digests(place) & digests or {*list_data(place).values()} & gone)

    def is_named(place: Path) -> bool:
        return bool(list_names(place) & names)

    holding: list[Path] = []
    may_hold: list[Path] = []
    parents = {place.parent for place in places}
    around = sorted({*walk(parents, depth=2, unread=unread), *parents, *places} - {old})
    for place in around:
        try:
            work, inside = place / WORK, [place]
            found: Path | None = place if place != new and still_holds(place, leavers) else None
            if found is None and (work.exists() or work.is_symlink()):
                found, inside = work, [place, *find_runs([work], unread=unread)]
            if found is not None and (found == new / WORK or any(map(is_related, inside))):
                holding.append(found)
            elif found is not None and any(map(is_named, inside)):
                may_hold.append(found)
            elif found is not None:
                for run in inside:
                    _check_readable(run)
        except (OSError, FeduhbError):
            unread.add(place)
    owners = {find_work(place): place for place in around}
    for work in {*list_work()} - {find_work(place) for place in (old, *holding, *may_hold)}:
        try:
            inside = [*find_runs([work], unread=unread), *([owners[work]] if work in owners else [])]
            if work == find_work(new) or any(map(is_related, inside)):
                holding.append(work)
            elif any(map(is_named, inside)):
                may_hold.append(work)
        except (OSError, FeduhbError):
            unread.add(work)
    listed = {*holding, *may_hold}
    rest = [place for place in unread if not {place, *place.parents} & listed]
    return Siblings(tuple(sorted(holding)), tuple(sorted(may_hold)), tuple(sorted(rest)))


def still_holds(place: Path, leavers: Request) -> bool:
    """Whether a folder holds a run that has not forgotten the leavers, and has not been retired completely."""
    files, forgotten = RunFolder(place), None
    if (tombstone := files.tombstone()) is not None:
        return tombstone["finished"] is None
    with contextlib.suppress(FeduhbError):  # a damaged config says nothing
        forgotten = read_forgotten(files)
    return files.exists() and leavers.subtract(forgotten) is not None


def list_digests(place: Path) -> set[str]:
    """Return the digests of a run and of those that it came from; if it was retired, also of the run that replaced it."""
    tombstone = RunFolder(place).tombstone()
    own = [digest_config(place)]
    if tombstone is not None:
        own = [tombstone["config_sha256"], tombstone["replaced_by"]["config_sha256"]]
    return {*own, *list_ancestor_digests(place)} - {""}


def list_ancestor_digests(place: Path) -> set[str]:
    """Return the digests of the runs that a run came from; none if they cannot be read."""
    with contextlib.suppress(FeduhbError, OSError):
        return {one.digest for one in read_ancestors(place)}
    return set()


def list_data(place: Path) -> dict[str, str]:
    """Return size and digest of each client's data in a run's config; none if the data was never at the server."""
    with contextlib.suppress(FeduhbError):
        config = upgrade(RunFolder(place).config())
        return {} if config.get("remote") else config.get("clients", {})
    return {}


def find_runs(places: Iterable[Path], *, unread: set[Path]) -> Iterator[Path]:
    """Yield the run folders that lie directly in some folders; add the folders that cannot be read to ``unread``."""
    for folder in walk(places, depth=1, unread=unread):
        try:
            is_run = RunFolder(folder).exists()
        except FeduhbError:
            unread.add(folder)
            continue
        if is_run:
            yield folder


def is_run(place: Path) -> bool:
    """Whether a folder holds a run, or the tombstone of one; a config.toml that a user wrote is not a run."""
    files = RunFolder(place)
    if not files.exists() or files.tombstone_path.exists() or files.find_remains() is not None:
        return files.exists()
    try:
        return "made_by" in files.config()
    except FeduhbError:  # damaged, so it may be one
        return True


def read_names(place: Path) -> dict[str, str]:
    """Return the registered names of a Flower run's clients, by id; none if it has no such file."""
    return find_json(place / NAMES, dict[str, str], "restore a backup") or {}


def walk(places: Iterable[Path], *, depth: int, unread: set[Path]) -> Iterator[Path]:
    """Yield the folders in some folders, down to a depth, but not those inside runs and audit work.

    Add the folders whose content cannot be listed to ``unread``.
    """
    for place in places:
        try:
            inside = sorted(filter(_may_be_folder, place.iterdir()))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            unread.add(place)
            continue
        for folder in inside:
            if folder.name == WORK:
                continue
            yield folder
            try:
                is_deeper = depth > 1 and not is_run(folder)
            except (OSError, FeduhbError):
                unread.add(folder)
                continue
            if is_deeper:
                yield from walk([folder], depth=depth - 1, unread=unread)


def _may_be_folder(path: Path) -> bool:
    """Whether a path is a folder and not a link, or cannot be read."""
    try:
        return not path.is_symlink() and path.is_dir()
    except OSError:
        return True


def _check_readable(place: Path) -> None:
    """Raise an error if a run's lineage, settings or records cannot be read, by which the leavers would be found."""
    files = RunFolder(place)
    if files.exists() and files.tombstone() is None:
        read_ancestors(place)
        files.config()
        files.rounds()


def _follow_lineage(*runs: Path, unread: set[Path]) -> tuple[set[Path], set[str]]:
    """Return the folders that the lineage of some runs names, and the digests of the runs in it.

    A folder that holds an unrelated run now is not followed; one that cannot be read is added to ``unread``.
    """
    places, waiting = {*runs}, [*runs]
    digests = {digest for run in runs for digest in list_digests(run)}
    while waiting:
        place = waiting.pop()
        digests |= list_digests(place)
        others = {*(one.path for one in read_ancestors(place)), *read_successors(place)} - places
        places |= others
        for other in others:
            try:
                if list_digests(other) & digests:
                    read_ancestors(other)
                    waiting.append(other)
            except (OSError, FeduhbError):
                unread.add(other)
    return places, digests


def _name_leavers(old: Path, new: Path, leavers: Request) -> set[str]:
    """Return the ids and the registered names of the leavers; of all clients if a class leaves, which any may hold."""
    ids = {*leavers.clients, *leavers.rows, *(list_names(old) if leavers.classes else ())}
    registered = {**read_names(old), **read_names(new)}
    return ids | {name for client, name in registered.items() if client in ids and name}


def list_names(place: Path) -> set[str]:
    """Return the ids and the registered names of the clients that a run knows."""
    files, found = RunFolder(place), set[str]()
    with contextlib.suppress(FeduhbError):
        found |= {*files.config().get("clients", ())}
    with contextlib.suppress(FeduhbError):
        found |= {client for record in files.rounds() for client in (*record.asked, *record.answered)}
    registered = read_names(place)
    return (found | {*registered} | {*registered.values()}) - {""}
