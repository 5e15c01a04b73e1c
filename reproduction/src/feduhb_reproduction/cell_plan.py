"""What a cell of a grid is to hold: its runs by name, and which of them its file lacks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from feduhb.core.types import Method
from feduhb.errors import RunFolderError
from feduhb.runs.config import TrainSettings, find_difference
from feduhb.runs.run import method_for
from feduhb.stopping import StopRule, dynamic_stop, never
from feduhb_reproduction.cells import ORIGINAL, RETRAIN, Cell, Place, read_cells

RULED, ON = "feduhb", "feduhb-on"


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
        """Where the cell's runs live until it is done; those to be timed apart from any that were not alone."""
        return self.leavings[self.place.timed]

    @property
    def leavings(self) -> tuple[Path, Path]:
        """Where runs of the cell may lie, timed or not."""
        return self.out / "work" / self.place.name, self.out / "work" / f"{self.place.name}-timed"

    @property
    def lock(self) -> Path:
        """What a process holds while it is at the cell."""
        return self.out / "work" / f"{self.place.name}.lock"


class Planned(NamedTuple):
    """A run of a cell: which method, and when it stops."""

    method: Method[Any]
    stop: StopRule = never


def cell_file(out: Path, place: Place) -> Path:
    """Name the file of a cell in a grid's folder."""
    return out / "cells" / f"{place.name}.json"


def refuse_strange(out: Path, place: Place) -> None:
    """Refuse as a grid's folder a file, and a folder with cells of another data set or other settings than a place of the grid.

    Their report would be refused too, yet only when everything is computed.
    """
    try:
        nearest = next(
            path for path in (out / "cells", out, *out.parents) if path.is_symlink() or path.exists()
        )
        folder = nearest.is_dir()
    except OSError as error:
        raise RunFolderError(f"cannot look into {out}: {error.strerror}; choose another --out") from None
    if not folder:
        raise RunFolderError(f"{nearest} is no folder; choose another --out")
    for cell in read_cells(out / "cells"):
        there = replace(
            place, partition=cell.place.partition, per_client=cell.place.per_client,
            backdoor=cell.place.backdoor, seed=cell.place.seed,
        )  # fmt: skip
        _refuse_other(cell_file(out, cell.place), cell.place, there)


def plans(place: Place) -> dict[str, Planned]:
    """Return the runs that follow the training, by name."""

    def make(name: str, **settings: float) -> Method[Any]:
        return method_for(name, TrainSettings(epochs=place.epochs), **settings)

    heavy = make("feduhb", momentum=place.momentum)
    found = {
        RETRAIN: Planned(make("retrain")),
        "federaser": Planned(make("federaser")),
        "fedrecover": Planned(make("fedrecover", **{**place.fedrecover, "correction": 0})),
        "fedrecover-corrected": Planned(make("fedrecover", **place.fedrecover)),
        RULED: Planned(heavy, dynamic_stop(place.scale, momentum=place.momentum)),
        ON: Planned(heavy),
    }
    found |= {f"momentum-{beta:g}": Planned(make("feduhb", momentum=beta)) for beta in place.momenta}
    return found | {
        f"step-{step:g}": Planned(make("feduhb", momentum=0.0, step_size=step)) for step in place.steps
    }


def lacking(place: Place, path: Path) -> tuple[str, ...]:
    """Name the runs that a cell's file lacks; refuse a file of other settings.

    A grid that asks for more momenta or steps than before lacks those alone. A cell to be timed that was made among others
    lacks everything: seconds cannot be added to a run.
    """
    wanted = plans(place)
    if not path.exists():
        return (ORIGINAL, *wanted)
    cell = Cell.read(path)
    _refuse_other(path, cell.place, place)
    if place.timed and not cell.made["alone"]:
        return (ORIGINAL, *wanted)
    return tuple(name for name in wanted if name not in cell.runs)


def joined(before: Place, after: Place) -> Place:
    """Return the place of a cell that was made for one grid and had runs added for another."""
    return replace(
        before,
        momenta=tuple(sorted({*before.momenta, *after.momenta})),
        steps=tuple(sorted({*before.steps, *after.steps})),
    )


def _refuse_other(path: Path, made: Place, wanted: Place) -> None:
    if difference := find_difference(_bare(made).as_json(), _bare(wanted).as_json()):
        raise RunFolderError(f"{path} was made with {difference}; choose another --out for this grid")


def _bare(place: Place) -> Place:
    """A place without what may be added to a cell: momenta, steps, seconds."""
    return replace(place, momenta=(), steps=(), timed=False)
