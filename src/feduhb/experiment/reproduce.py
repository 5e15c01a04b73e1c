"""A grid, cell by cell: what is done is never done again, what is missing is listed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from feduhb.cells import Cell, Place
from feduhb.data.sources import dataset_named
from feduhb.errors import ConfigError, RunFolderError
from feduhb.experiment.cell import Job, make_cell, plans
from feduhb.experiment.config import first_difference
from feduhb.experiment.grids import Grid
from feduhb.experiment.workers import spread
from feduhb.run.progress import Show, Step, stepped

AT_ONCE = 6  # cells on one GPU: while one's server computes, another's clients train


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a grid is."""

    done: tuple[Place, ...]
    missing: tuple[Place, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.done)} of {len(self.done) + len(self.missing)} cells are done"]
        if self.missing:
            lines.append("missing: " + ", ".join(place.name for place in self.missing))
        return "\n".join(lines)


def standing(grid: Grid, out: Path) -> Standing:
    """Look which cells have their file; refuse files of a grid with other settings."""
    done, missing = [], []
    for place in grid.places():
        path = out / "cells" / f"{place.name}.json"
        if not path.exists():
            missing.append(place)
            continue
        if difference := first_difference(Cell.read(path).place.as_json(), place.as_json()):
            raise RunFolderError(f"{path} was made with {difference}; choose another --out for this grid")
        done.append(place)
    return Standing(tuple(done), tuple(missing))


def reproduce(
    grid: Grid,
    out: Path,
    *,
    data: Path | None = None,
    engine: str = "auto",
    workers: int | None = None,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    keep: bool = False,
    command: str = "",
    show: Show = "auto",
) -> Standing:
    """Make the cells that are missing, one file each; give how far the grid is then.

    Args:
        workers: cells at once, in processes of their own; None takes several on a GPU and one elsewhere, where one cell
            keeps every core busy. Cells to be timed run alone.
        seeds, only: of all cells those with these seeds, and whose names begin with one of these words.
        keep: the run folders too, with histories of gigabytes.
        command: what was typed, for the records.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"workers is {workers}; give 1 or more")
    if odd := sorted(set(seeds or ()) - set(grid.seeds)):
        raise ConfigError(f"the grid has no seed {odd[0]}; it has {', '.join(map(str, grid.seeds))}")
    wanted = [place for place in standing(grid, out).missing if _chosen(place, seeds, only)]
    if wanted:
        dataset_named(grid.data, data)  # fetched, or refused, before anything is computed
    at_once = workers or (AT_ONCE if _on_gpu(engine) else 1)
    jobs = [
        Job(place=place, out=out, data=data, engine=engine, command=command, keep=keep) for place in wanted
    ]
    alone = [job for job in jobs if job.place.timed or at_once == 1]
    together = [replace(job, alone=False) for job in jobs if job not in alone]
    with stepped(show, "reproduce", sum(1 + len(plans(job.place)) for job in alone) + len(together)) as step:
        for job in alone:
            make_cell(job, _named(step, job.place.name))
        for path in spread(make_cell, together, at_once):
            step(path.stem, 1)
    return standing(grid, out)


def _chosen(place: Place, seeds: Sequence[int] | None, only: Sequence[str]) -> bool:
    named = not only or any(place.name.startswith(word) for word in only)
    return named and (seeds is None or place.seed in seeds)


def _on_gpu(engine: str) -> bool:
    return torch.cuda.is_available() and engine not in {"pool", "loop"}


def _named(step: Step, cell: str) -> Step:
    return lambda what, rounds: step(f"{cell}: {what}", rounds)
