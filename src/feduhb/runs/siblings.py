"""Find what else holds the data that a run has forgotten: other runs, and what audits left in `audit-work`.

A run holds the leavers if it is related to the old run by lineage, or has data in its config that the old run had and
the new one has not. It may hold them if a client with the id or the registered name of a leaver took part: over Flower
the server has no data to compare, and elsewhere the client's data may have changed since.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feduhb.data.request import Request
from feduhb.errors import FeduhbError
from feduhb.runs.config import upgrade
from feduhb.runs.folder import NAMES, WORK, RunFolder
from feduhb.runs.lineage import digest_config, read_ancestors, read_forgotten, read_successors


@dataclass(frozen=True, slots=True)
class Siblings:
    """Folders of other runs, and of audit work in runs that have themselves forgotten the leavers."""

    holding: tuple[Path, ...]
    may_hold: tuple[Path, ...]


def find_siblings(old: Path, new: Path, leavers: Request) -> Siblings:
    """Return the folders that hold or may hold the leavers, and the runs whose retirement was interrupted."""
    places, digests = _follow_lineage(old, new)
    gone = {*list_data(old).values()} - {*list_data(new).values()}
    names = _name_leavers(old, new, leavers)

    def is_related(place: Path) -> bool:
        return bool(list_digests(place) & digests or {*list_data(place).values()} & gone)

    def is_named(place: Path) -> bool:
        return bool(_list_names(place) & names)

    holding: list[Path] = []
    may_hold: list[Path] = []
    parents = {place.parent for place in places}
    for place in sorted({*_walk(parents, depth=2), *parents, *places} - {old}):
        work, inside = place / WORK, [place]
        found: Path | None = place if place != new and still_holds(place, leavers) else None
        if found is None and (work.exists() or work.is_symlink()):
            found, inside = work, [place, *find_runs([work], depth=1)]
        if found is not None and (found == new / WORK or any(map(is_related, inside))):
            holding.append(found)
        elif found is not None and any(map(is_named, inside)):
            may_hold.append(found)
    return Siblings(tuple(holding), tuple(may_hold))


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
    with contextlib.suppress(FeduhbError):
        return {one.digest for one in read_ancestors(place)}
    return set()


def list_data(place: Path) -> dict[str, str]:
    """Return size and digest of each client's data in a run's config; none if the data was never at the server."""
    with contextlib.suppress(FeduhbError):
        config = upgrade(RunFolder(place).config())
        return {} if config.get("remote") else _read_clients(config)
    return {}


def find_runs(places: Iterable[Path], *, depth: int) -> Iterator[Path]:
    """Yield the run folders in some folders, and in the folders there that are not runs, down to a depth."""
    return (folder for folder in _walk(places, depth=depth) if RunFolder(folder).exists())


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file; nothing if it is missing or damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _walk(places: Iterable[Path], *, depth: int) -> Iterator[Path]:
    """Yield the folders in some folders, down to a depth, but not those inside runs and audit work."""
    for place in places:
        try:
            inside = sorted(path for path in place.iterdir() if path.is_dir() and not path.is_symlink())
        except OSError:
            continue
        for folder in inside:
            if folder.name == WORK:
                continue
            yield folder
            if depth > 1 and not RunFolder(folder).exists():
                yield from _walk([folder], depth=depth - 1)


def _follow_lineage(*runs: Path) -> tuple[set[Path], set[str]]:
    """Return the folders that the lineage of some runs names, and the digests of the runs in it.

    A folder that holds an unrelated run now is not followed.
    """
    places, waiting = {*runs}, [*runs]
    digests = {digest for run in runs for digest in list_digests(run)}
    while waiting:
        place = waiting.pop()
        digests |= list_digests(place)
        others = {*(one.path for one in read_ancestors(place)), *read_successors(place)} - places
        places |= others
        waiting += [other for other in others if list_digests(other) & digests]
    return places, digests


def _name_leavers(old: Path, new: Path, leavers: Request) -> set[str]:
    """Return the ids and the registered names of the leavers; of all clients if a class leaves, which any may hold."""
    ids = {*leavers.clients, *leavers.rows, *(_list_names(old) if leavers.classes else ())}
    registered = {**read_json(old / NAMES), **read_json(new / NAMES)}
    return ids | {str(name) for client, name in registered.items() if client in ids and name}


def _list_names(place: Path) -> set[str]:
    """Return the ids and the registered names of the clients that a run knows."""
    files, found = RunFolder(place), set[str]()
    with contextlib.suppress(FeduhbError):
        found |= {*_read_clients(files.config())}
    with contextlib.suppress(FeduhbError):
        found |= {client for record in files.rounds() for client in (*record.asked, *record.answered)}
    registered = read_json(place / NAMES)
    return (found | {*registered} | {*map(str, registered.values())}) - {""}


def _read_clients(config: Mapping[str, Any]) -> dict[str, str]:
    clients = config.get("clients")
    return (
        {str(client): str(text) for client, text in clients.items()} if isinstance(clients, Mapping) else {}
    )
