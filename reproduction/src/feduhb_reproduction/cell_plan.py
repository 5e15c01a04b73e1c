"""The runs that a cell of a grid holds, and which of them its file lacks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from feduhb import Method
from feduhb.errors import RunFolderError
from feduhb.methods import make_method
from feduhb.runs import find_difference
from feduhb_reproduction.cells import ORIGINAL, RETRAIN, Cell, Place, cell_file, read_cells

RULED, ON = "feduhb", "feduhb-on"
Recorded = Literal["held_out", "distance"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A cell to make."""

    place: Place
    out: Path  # the grid's folder
    data: Path | None = None
    engine: str = "auto"
    command: str = ""
    alone: bool = True  # whether nothing else of ours computes meanwhile, so that seconds mean something
    keep: bool = False  # the run folders, with their histories

    @property
    def file(self) -> Path:
        """The cell's file."""
        return cell_file(self.out, self.place)

    @property
    def work(self) -> Path:
        """The folder of the cell's runs until it is done. Timed runs have a folder of their own."""
        return self.leavings[self.place.timed]

    @property
    def leavings(self) -> tuple[Path, Path]:
        """The folders in which runs of the cell may be: untimed, timed."""
        return self.out / "work" / self.place.name, self.out / "work" / f"{self.place.name}-timed"

    @property
    def lock(self) -> Path:
        """The lock that a process holds while it makes the cell."""
        return self.out / "work" / f"{self.place.name}.lock"


class Planned(NamedTuple):
    """A run of a cell."""

    method: Method[Any]
    ruled: bool = False  # whether FedUHB's stop rule may end it
    rounds: int | None = None  # scheduled; None: as many as the training had
    record: tuple[Recorded, ...] = ()  # what stop rules need besides movements


def refuse_other_grid(out: Path, place: Place) -> None:
    """Raise RunFolderError if a grid's folder is a file, or holds cells of another data set or of other settings.

    This is checked first, because such cells would make the report fail after everything is computed.
    """
    try:
        nearest = next(
            path for path in (out / "cells", out, *out.parents) if path.is_symlink() or path.exists()
        )
        folder = nearest.is_dir()
    except OSError as error:
        raise RunFolderError(f"cannot look into {out}: {error.strerror}; choose another --out") from None
    if not folder:
        raise RunFolderError(f"{nearest} is not a folder; choose another --out")
    for cell in read_cells(out / "cells"):
        there = replace(
            place, partition=cell.place.partition, per_client=cell.place.per_client,
            backdoor=cell.place.backdoor, seed=cell.place.seed, shadows=cell.place.shadows, rows=cell.place.rows,
        )  # fmt: skip
        _refuse_other(cell_file(out, cell.place), cell.place, there)


def plan_runs(place: Place) -> dict[str, Planned]:
    """Return the runs that follow the training, by name."""

    def make(name: str, **settings: float) -> Method[Any]:
        return make_method(name, epochs=place.epochs, **settings)

    heavy = make("feduhb", momentum=place.momentum)
    found = {
        RETRAIN: Planned(make("retrain")),
        "federaser": Planned(make("federaser")),
        "fedrecover": Planned(make("fedrecover", **{**place.fedrecover, "correction": 0})),
        "fedrecover-corrected": Planned(make("fedrecover", **place.fedrecover)),
        RULED: Planned(heavy, ruled=True),
        ON: Planned(heavy),
    }
    found |= {f"momentum-{beta:g}": Planned(make("feduhb", momentum=beta)) for beta in place.momenta}
    return found | {
        f"step-{step:g}": Planned(make("feduhb", momentum=0.0, step_size=step)) for step in place.steps
    }


def list_lacking(place: Place, path: Path) -> tuple[str, ...]:
    """Return the names of the runs that a cell's file lacks; raise RunFolderError for a file of other settings.

    If a grid has new momenta or steps, the cell lacks only those. A cell to be timed that was not made alone lacks everything,
    because seconds cannot be added to a run.
    """
    wanted = plan_runs(place)
    if not path.exists():
        return (ORIGINAL, *wanted)
    cell = Cell.read(path)
    _refuse_other(path, cell.place, place)
    if place.timed and not cell.made["alone"]:
        return (ORIGINAL, *wanted)
    return tuple(name for name in wanted if name not in cell.runs)


def merge_places(before: Place, after: Place) -> Place:
    """Return the place of a cell that was made for one grid and had runs added for another."""
    return replace(
        before,
        momenta=tuple(sorted({*before.momenta, *after.momenta})),
        steps=tuple(sorted({*before.steps, *after.steps})),
    )


def _refuse_other(path: Path, made: Place, wanted: Place) -> None:
    if difference := find_difference(_strip_additions(made).as_json(), _strip_additions(wanted).as_json()):
        raise RunFolderError(f"{path} was made with {difference}; choose another --out for this grid")


def _strip_additions(place: Place) -> Place:
    """Return a place without the settings that may be added to a cell: momenta, steps, seconds."""
    return replace(place, momenta=(), steps=(), timed=False)
