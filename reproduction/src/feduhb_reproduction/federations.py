"""The cells of a grid, grouped into federations with one cell for each seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from feduhb.errors import RunFolderError
from feduhb_reproduction.cells import Cell, Place, Track

ORDER = ("iid", "dirichlet:0.5", "dirichlet:0.1", "shards:2")
KINDS = {"iid": "iid", "dirichlet": "Dirichlet {}", "shards": "{} classes a client"}
_Key = tuple[bool, str, int | None]  # of a federation: rows, partition, images of a client
# What cells of a grid differ in.
APART = {"seed", "partition", "per_client", "backdoor", "timed", "shadows", "momenta", "steps", "rows"}


@dataclass(frozen=True, slots=True)
class Federation:
    """One partition of the data with one kind of request, and its cells, one for each seed."""

    partition: str
    per_client: int | None  # images of each client; None: all, shared out
    backdoor: bool
    cells: tuple[Cell, ...]  # seeds rising

    @property
    def name(self) -> str:
        """The name, as in the names of its cells' files."""
        return self.cells[0].place.name.rpartition("-s")[0]

    @property
    def short(self) -> str:
        """The name of the partition, and of the request if it is for rows."""
        kind, _, detail = self.partition.partition(":")
        return KINDS.get(kind, self.partition).format(detail) + (", rows" if self.rows else "")

    @property
    def rows(self) -> bool:
        """Whether only planted examples are forgotten, and their clients stay."""
        return self.cells[0].place.rows

    @property
    def label(self) -> str:
        """The name for tables: the partition, the images of a client, and a backdoor if there is one."""
        return f"{self.short}, {format_size(self.per_client)}" + (", backdoor" if self.backdoor else "")

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that have a cell."""
        return tuple(cell.place.seed for cell in self.cells)

    @property
    def rounds(self) -> int:
        """The scheduled rounds."""
        return self.cells[0].place.rounds

    @property
    def timed(self) -> Federation | None:
        """The cells that ran alone on their machine; None if there are none."""
        alone = tuple(cell for cell in self.cells if cell.made["alone"])
        return Federation(self.partition, self.per_client, self.backdoor, alone) if alone else None

    def every(self, run: str) -> dict[int, Track]:
        """Return a run's tracks by seed, including those that broke off."""
        return {cell.place.seed: cell.runs[run] for cell in self.cells if run in cell.runs}

    def tracks(self, run: str) -> dict[int, Track]:
        """Return a run's tracks by seed, without those that broke off."""
        return {seed: track for seed, track in self.every(run).items() if track.failed is None}

    def failed(self, run: str) -> dict[int, str]:
        """Return by seed why a run broke off."""
        return {seed: track.failed for seed, track in self.every(run).items() if track.failed is not None}

    def has(self, run: str) -> bool:
        """Whether any seed has that run."""
        return bool(self.every(run))


def group_cells(cells: Sequence[Cell], *, backdoor: bool = False) -> list[Federation]:
    """Return the federations with, or without, a backdoor: by size, then iid first and the most skewed last; requests of rows after all."""
    check_cells(cells)
    found: dict[_Key, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.place.seed):
        if cell.place.backdoor == backdoor:
            found.setdefault((cell.place.rows, cell.place.partition, cell.place.per_client), []).append(cell)
    return [Federation(*key[1:], backdoor, tuple(found[key])) for key in sorted(found, key=_sort_key)]


def group_by_size(found: Sequence[Federation]) -> dict[str, list[Federation]]:
    """Return federations by the number of images of a client, written as in file names.

    A federation that shares out all images is in the group of the largest number: its clients have about as many.
    """
    sizes = sorted({each.per_client for each in found if each.per_client is not None})
    largest = str(sizes[-1]) if sizes else "all"
    sorted_ones: dict[str, list[Federation]] = {str(size): [] for size in sizes}
    for each in found:
        name = largest if each.per_client is None else str(each.per_client)
        sorted_ones.setdefault(name, []).append(each)
    return sorted_ones


def format_size(per_client: int | None) -> str:
    """Return the images of a client in words."""
    return "all images" if per_client is None else f"{per_client:,} images a client"


def check_cells(cells: Sequence[Cell]) -> None:
    """Raise RunFolderError for cells of two experiments."""
    for cell in cells[1:]:
        one, other = _shared_settings(cells[0].place), _shared_settings(cell.place)
        unlike = [name for name in one if one[name] != other[name]]
        if unlike:
            phrases = "; ".join(f"{name} {one[name]} and {other[name]}" for name in unlike)
            raise RunFolderError(
                f"cells {cells[0].place.name} and {cell.place.name} are of different experiments ({phrases}); "
                "keep each experiment's cells in a folder of its own"
            )


def _shared_settings(place: Place) -> dict[str, Any]:
    return {field.name: getattr(place, field.name) for field in fields(place) if field.name not in APART}


def _sort_key(key: _Key) -> tuple[bool, float, int, str]:
    rows, partition, size = key
    place = ORDER.index(partition) if partition in ORDER else len(ORDER)
    return rows, float("inf") if size is None else size, place, partition
