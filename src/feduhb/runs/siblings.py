"""Find the runs that still hold what another run has forgotten: by their lineage, and by the data in their configs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from feduhb.data.request import Request
from feduhb.errors import FeduhbError
from feduhb.runs.folder import RunFolder
from feduhb.runs.lineage import digest_config, read_ancestors, read_forgotten, read_successors


def find_holders(old: RunFolder, new: Path, leavers: Request) -> tuple[Path, ...]:
    """Return the other runs that still hold the leavers, or whose retirement was interrupted.

    They are related to the old run by lineage, or have data in their config that the old run had and the new one has not.
    """
    folders, waiting = {old.path, new}, [old.path, new]
    digests = _list_digests(old.path) | _list_digests(new)
    while waiting:
        place = waiting.pop()
        ancestors = read_ancestors(place)
        digests.update(one.digest for one in ancestors if one.digest)
        others = {*(one.path for one in ancestors), *read_successors(place)} - folders
        folders |= others
        waiting += others
    gone = _list_data(old.path) - _list_data(new)

    def is_related(place: Path) -> bool:
        named = _list_digests(place) | list_ancestor_digests(place)
        return place in folders or bool(named & digests) or bool(_list_data(place) & gone)

    found = {*find_runs({place.parent for place in folders}, depth=2), *folders} - {old.path, new}
    return tuple(sorted(place for place in found if is_related(place) and is_left(place, leavers)))


def is_left(place: Path, leavers: Request | None = None) -> bool:
    """Whether a folder holds a run that has not been retired completely, and has not forgotten the leavers."""
    files = RunFolder(place)
    if (tombstone := files.tombstone()) is not None:
        return tombstone["finished"] is None
    return files.exists() and (leavers is None or leavers.subtract(read_forgotten(files)) is not None)


def list_ancestor_digests(place: Path) -> set[str]:
    """Return the digests of the runs that a run came from; none if they cannot be read."""
    with contextlib.suppress(FeduhbError):
        return {one.digest for one in read_ancestors(place)}
    return set()


def _list_digests(place: Path) -> set[str]:
    """Return the digest of a run's config; if it was retired, also that of the run that replaced it."""
    tombstone = RunFolder(place).tombstone()
    if tombstone is None:
        return {digest_config(place)} - {""}
    return {tombstone["config_sha256"], tombstone["replaced_by"]["config_sha256"]} - {""}


def _list_data(place: Path) -> set[str]:
    """Return the digests of the clients' data in a run's config; none if the data was never at the server."""
    with contextlib.suppress(FeduhbError):
        texts = RunFolder(place).config().get("clients", {}).values()
        return {text for text in texts if not text.startswith("remote")}
    return set()


def find_runs(places: Iterable[Path], *, depth: int) -> Iterator[Path]:
    """Yield the run folders in some folders, and in the folders there that are not runs, down to a depth."""
    for place in places:
        try:
            inside = sorted(path for path in place.iterdir() if path.is_dir() and not path.is_symlink())
        except OSError:
            continue
        for folder in inside:
            if RunFolder(folder).exists():
                yield folder
            elif depth > 1:
                yield from find_runs([folder], depth=depth - 1)
