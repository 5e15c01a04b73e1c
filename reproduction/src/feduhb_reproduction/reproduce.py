"""A grid, cell by cell: what is done is never done again, what is missing is listed."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from feduhb.core.checks import check_whole
from feduhb.data.load import load_dataset
from feduhb.engines import check_engine
from feduhb.errors import ConfigError, FeduhbError, RunFolderError
from feduhb.runs.plan import Show
from feduhb.runs.progress import BeginStep, stepped
from feduhb.runs.workers import spread
from feduhb_reproduction.cell import clear_away, make_cell, silent
from feduhb_reproduction.cell_plan import Job, cell_file, lacking, refuse_strange
from feduhb_reproduction.cells import ORIGINAL, Place
from feduhb_reproduction.grids import Grid

Failure = tuple[str, str]  # a cell's name, and why it could not be made
AT_ONCE = 6  # cells on one GPU: while one's server computes, another's clients train


class CellsError(RunFolderError):
    """Cells that could not be made, after all the others were."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a grid is."""

    done: tuple[Place, ...]
    missing: tuple[Place, ...]
    partly: Mapping[str, str]  # of those missing that have a file, by name: what it lacks

    def __str__(self) -> str:
        lines = [f"{len(self.done)} of {len(self.done) + len(self.missing)} cells are done"]
        names = [place.name for place in self.missing]
        told = [f"{name} ({self.partly[name]})" if name in self.partly else name for name in names]
        return "\n".join([*lines, *(["missing: " + ", ".join(told)] if told else [])])


def standing(
    grid: Grid, out: Path, *, seeds: Sequence[int] | None = None, only: Sequence[str] = ()
) -> Standing:
    """Look which cells have their file; refuse a folder with cells of another data set or other settings.

    Args:
        seeds, only: of all cells those with these seeds, and whose names begin with one of these words.
    """
    places = _chosen(grid, seeds, only)
    refuse_strange(out, next(grid.places()))
    done, missing, partly = [], [], {}
    for place in places:
        path = cell_file(out, place)
        lacks = lacking(place, path)
        (missing if lacks else done).append(place)
        if lacks and path.exists():
            partly[place.name] = "its seconds" if ORIGINAL in lacks else ", ".join(lacks)
    return Standing(tuple(done), tuple(missing), partly)


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

    A cell that cannot be made does not stop the others; it is told of at the end. One that another process is at is left to it.

    Args:
        workers: cells at once, in processes of their own; None takes several on a GPU and one elsewhere, where one cell
            keeps every core busy. Cells to be timed run alone.
        seeds, only: of all cells those with these seeds, and whose names begin with one of these words.
        keep: the run folders too, with histories of gigabytes.
        command: what was typed, for the records.

    Raises:
        CellsError: some cells could not be made; the others are there.
        RunFolderError: the folder is another grid's; nothing was made.
    """
    if workers is not None:
        check_whole("workers", workers)
    check_engine(engine)
    before = standing(grid, out, seeds=seeds, only=only)
    make = partial(Job, out=out, data=data, engine=engine, command=command, keep=keep)
    if before.missing:
        load_dataset(grid.data, data)  # fetched, or refused, before anything is computed
    for job in () if keep else (make(place=place) for place in before.done):
        if any(folder.exists() for folder in job.leavings):
            clear_away(job)  # killed after its file was written
    at_once = workers or (AT_ONCE if _on_gpu(engine) else 1)
    jobs = [make(place=place) for place in before.missing]
    alone = [job for job in jobs if job.place.timed or at_once == 1]
    together = [replace(job, alone=False) for job in jobs if job not in alone]
    failed: list[Failure] = []
    with stepped(
        show, "reproduce", sum(len(lacking(job.place, job.file)) for job in alone) + len(together)
    ) as step:
        for job in alone:
            failed += attempted(job, _named(step, job.place.name))
        for job, why in zip(together, spread(attempted, together, at_once, _told), strict=True):
            step(job.place.name, 1)
            failed += why
    if failed:
        rest = ", the others are done" if len(failed) < len(jobs) else ""
        raise CellsError(f"{len(failed)} of {len(jobs)} cells could not be made{rest}: {_joined(failed)}")
    return standing(grid, out, seeds=seeds, only=only)


def attempted(job: Job, show: BeginStep = silent) -> list[Failure]:
    """Make a cell; give why it could not be, if it could not."""
    try:
        make_cell(job, show)
    except FeduhbError as error:
        return _told(job, error)
    except Exception as error:
        traceback.print_exc()
        return _told(job, error)
    return []


def _told(job: Job, error: Exception) -> list[Failure]:
    kind = "" if isinstance(error, FeduhbError) else f"{type(error).__name__}: "
    return [(job.place.name, f"{kind}{error}")]


def _joined(failed: Sequence[Failure]) -> str:
    """Return every reason once, after the cells that it holds for."""
    reasons = dict.fromkeys(why for _, why in failed)
    return "; ".join(f"{', '.join(name for name, why in failed if why == each)}: {each}" for each in reasons)


def _chosen(grid: Grid, seeds: Sequence[int] | None, only: Sequence[str]) -> list[Place]:
    """The cells that are asked for; refuse what no cell answers to."""
    places = list(grid.places())
    if odd := sorted(set(seeds or ()) - set(grid.seeds)):
        raise ConfigError(f"the grid has no seed {odd[0]}; it has {', '.join(map(str, grid.seeds))}")
    if odd := [word for word in only if not any(place.name.startswith(word) for place in places)]:
        raise ConfigError(f"no cell's name begins with {odd[0]!r}; they are called such as {places[0].name}")
    return [
        place
        for place in places
        if (not only or place.name.startswith(tuple(only))) and (seeds is None or place.seed in seeds)
    ]


def _on_gpu(engine: str) -> bool:
    return torch.cuda.is_available() and engine not in {"pool", "loop"}


def _named(step: BeginStep, cell: str) -> BeginStep:
    return lambda what, rounds: step(f"{cell}: {what}", rounds)
