"""Make a grid cell by cell: finished cells are never made again, and missing ones are listed."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from feduhb.core import check_whole
from feduhb.data import load_dataset
from feduhb.engines import check_engine
from feduhb.errors import ConfigError, FeduhbError, RunFolderError
from feduhb.runs import BeginStep, Show, show_steps, spread
from feduhb_reproduction.cell import clear_away, make_cell, show_nothing
from feduhb_reproduction.cell_plan import Job, cell_file, list_lacking, refuse_other_grid
from feduhb_reproduction.cells import ORIGINAL, Place
from feduhb_reproduction.grids import Grid

Failure = tuple[str, str]  # a cell's name, and why it could not be made
AT_ONCE = 6  # cells on one GPU: while one's server computes, another's clients train


class CellsError(RunFolderError):
    """Some cells could not be made; the others were."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The cells of a grid that are done and those that are missing."""

    done: tuple[Place, ...]
    missing: tuple[Place, ...]
    partly: Mapping[str, str]  # of those missing that have a file, by name: what it lacks

    def __str__(self) -> str:
        lines = [f"{len(self.done)} of {len(self.done) + len(self.missing)} cells are done"]
        names = [place.name for place in self.missing]
        phrases = [f"{name} ({self.partly[name]})" if name in self.partly else name for name in names]
        return "\n".join([*lines, *(["missing: " + ", ".join(phrases)] if phrases else [])])


def check_progress(
    grid: Grid, out: Path, *, seeds: Sequence[int] | None = None, only: Sequence[str] = ()
) -> Standing:
    """Return which cells are done; raise RunFolderError for a folder with cells of other data or settings.

    Args:
        seeds, only: look only at the cells with these seeds, and at those whose names begin with one of these words.
    """
    places = _choose_places(grid, seeds, only)
    refuse_other_grid(out, next(grid.places()))
    done, missing, partly = [], [], {}
    for place in places:
        path = cell_file(out, place)
        lacks = list_lacking(place, path)
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
    """Make the missing cells, one file each, and return the progress.

    A cell that cannot be made does not stop the others; the error at the end names it. A cell that another process is making is skipped.

    Args:
        workers: cells made at once, in processes of their own; None makes several on a GPU and one elsewhere, because one cell
            keeps every core busy. Timed cells run alone.
        seeds, only: make only the cells with these seeds, and those whose names begin with one of these words.
        keep: keep the run folders, with gigabytes of history.
        command: the command as it was typed, for the records.

    Raises:
        CellsError: some cells could not be made; the others are there.
        RunFolderError: the folder belongs to another grid; nothing was made.
    """
    if workers is not None:
        check_whole("workers", workers)
    check_engine(engine)
    before = check_progress(grid, out, seeds=seeds, only=only)
    make = partial(Job, out=out, data=data, engine=engine, command=command, keep=keep)
    if before.missing:
        load_dataset(grid.data, data)  # fetched, or refused, before anything is computed
    for job in () if keep else (make(place=place) for place in before.done):
        if any(folder.exists() for folder in job.leavings):
            clear_away(job)  # killed after its file was written
    at_once = workers or (AT_ONCE if _uses_gpu(engine) else 1)
    jobs = [make(place=place) for place in before.missing]
    alone = [job for job in jobs if job.place.timed or at_once == 1]
    together = [replace(job, alone=False) for job in jobs if job not in alone]
    failed: list[Failure] = []
    with show_steps(
        show, "reproduce", sum(len(list_lacking(job.place, job.file)) for job in alone) + len(together)
    ) as step:
        for job in alone:
            failed += attempt_cell(job, _prefix_steps(step, job.place.name))
        for job, why in zip(together, spread(attempt_cell, together, at_once, _explain_failure), strict=True):
            step(job.place.name, 1)
            failed += why
    if failed:
        rest = ", the others are done" if len(failed) < len(jobs) else ""
        raise CellsError(
            f"{len(failed)} of {len(jobs)} cells could not be made{rest}: {_join_failures(failed)}"
        )
    return check_progress(grid, out, seeds=seeds, only=only)


def attempt_cell(job: Job, show: BeginStep = show_nothing) -> list[Failure]:
    """Make a cell; return why if that failed, and [] otherwise."""
    try:
        make_cell(job, show)
    except FeduhbError as error:
        return _explain_failure(job, error)
    except Exception as error:
        traceback.print_exc()
        return _explain_failure(job, error)
    return []


def _explain_failure(job: Job, error: Exception) -> list[Failure]:
    kind = "" if isinstance(error, FeduhbError) else f"{type(error).__name__}: "
    return [(job.place.name, f"{kind}{error}")]


def _join_failures(failed: Sequence[Failure]) -> str:
    """Return every reason once, after the cells that it holds for."""
    reasons = dict.fromkeys(why for _, why in failed)
    return "; ".join(f"{', '.join(name for name, why in failed if why == each)}: {each}" for each in reasons)


def _choose_places(grid: Grid, seeds: Sequence[int] | None, only: Sequence[str]) -> list[Place]:
    """Return the chosen cells; raise ConfigError for a seed or a word that no cell has."""
    places = list(grid.places())
    if odd := sorted(set(seeds or ()) - set(grid.seeds)):
        raise ConfigError(f"the grid has no seed {odd[0]}; choose from {', '.join(map(str, grid.seeds))}")
    if odd := [word for word in only if not any(place.name.startswith(word) for place in places)]:
        raise ConfigError(f"no cell's name begins with {odd[0]!r}; names are like {places[0].name}")
    return [
        place
        for place in places
        if (not only or place.name.startswith(tuple(only))) and (seeds is None or place.seed in seeds)
    ]


def _uses_gpu(engine: str) -> bool:
    return torch.cuda.is_available() and engine not in {"pool", "loop"}


def _prefix_steps(step: BeginStep, cell: str) -> BeginStep:
    return lambda what, rounds: step(f"{cell}: {what}", rounds)
