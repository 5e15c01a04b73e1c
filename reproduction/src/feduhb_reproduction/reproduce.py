"""Make a grid cell by cell: finished cells are never made again, and missing ones are listed."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from feduhb.core import check_positive, check_whole
from feduhb.data import load_dataset
from feduhb.engines import check_engine
from feduhb.errors import ConfigError, FeduhbError, RunFolderError
from feduhb.runs import BeginStep, Show, show_steps, spread
from feduhb_reproduction.cell import clear_away, make_cell, show_nothing
from feduhb_reproduction.cell_plan import Job, list_lacking, refuse_other_grid
from feduhb_reproduction.cells import ORIGINAL, Place, cell_file
from feduhb_reproduction.grids import Grid

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
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
    places = choose_places(grid.places(), grid.seeds, seeds, only)
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
    check_engine(engine)
    at_once = count_workers(workers, engine)
    before = check_progress(grid, out, seeds=seeds, only=only)
    make = partial(Job, out=out, data=data, engine=engine, command=command, keep=keep)
    if before.missing:
        load_dataset(grid.data, data)  # fetched, or refused, before anything is computed
    for job in () if keep else (make(place=place) for place in before.done):
        if any(folder.exists() for folder in job.leavings):
            clear_away(job)  # killed after its file was written
    jobs = [make(place=place, alone=place.timed or at_once == 1) for place in before.missing]
    failed = attempt_all(
        attempt_cell, jobs, at_once, show, "reproduce", name=lambda job: job.place.name,
        count=lambda job: len(list_lacking(job.place, job.file)), is_alone=lambda job: job.alone,
    )  # fmt: skip
    if failed:
        rest = ", the others are done" if len(failed) < len(jobs) else ""
        raise CellsError(
            f"{len(failed)} of {len(jobs)} cells could not be made{rest}: {join_failures(failed)}"
        )
    return check_progress(grid, out, seeds=seeds, only=only)


class Attempt(Protocol[T_contra]):
    """Makes a cell."""

    def __call__(self, task: T_contra, /, show: BeginStep = ...) -> list[Failure]:
        """Return why it could not be made, and [] otherwise."""
        ...


def attempt_all(
    attempt: Attempt[T],
    tasks: Sequence[T],
    workers: int,
    show: Show,
    what: str,
    *,
    name: Callable[[T], str],
    count: Callable[[T], int],
    is_alone: Callable[[T], bool] = lambda _: False,
) -> list[Failure]:
    """Attempt to make cells, several at once in processes of their own if there are workers; return the failures.

    Args:
        what: is made, for display.
        name, count: return a task's name, and how many steps it shows if its cell is made alone.
        is_alone: whether a cell is made alone, before the others, even if there are workers.
    """
    alone = [task for task in tasks if workers == 1 or is_alone(task)]
    together = [task for task in tasks if task not in alone]
    failed: list[Failure] = []
    with show_steps(show, what, sum(map(count, alone)) + len(together)) as step:
        for task in alone:
            failed += attempt(task, _prefix_steps(step, name(task)))
        made = spread(attempt, together, workers, lambda task, error: [(name(task), str(error))])
        for task, why in zip(together, made, strict=True):
            step(name(task), 1)
            failed += why
    return failed


def attempt_cell(job: Job, show: BeginStep = show_nothing) -> list[Failure]:
    """Make a cell; return why if that failed, and [] otherwise."""
    return catch_failure(job.place.name, lambda: make_cell(job, show))


def catch_failure(name: str, make: Callable[[], object]) -> list[Failure]:
    """Make a cell; return its name and why if that failed, and [] otherwise."""
    try:
        make()
    except Exception as error:
        return [describe_failure(name, error)]
    return []


def describe_failure(name: str, error: Exception) -> Failure:
    """Return a name and the reason why it failed; print the traceback of an error that is not feduhb's own."""
    if isinstance(error, FeduhbError):
        return name, str(error)
    traceback.print_exception(error)
    return name, f"{type(error).__name__}: {error}"


def join_failures(failed: Sequence[Failure]) -> str:
    """Return every reason once, after the cells that it holds for."""
    reasons = dict.fromkeys(why for _, why in failed)
    return "; ".join(f"{', '.join(name for name, why in failed if why == each)}: {each}" for each in reasons)


def choose_places(
    every: Iterable[Place],
    known: Sequence[int],
    seeds: Sequence[int] | None,
    only: Sequence[str],
    *,
    what: str = "grid",
    name: Callable[[Place], str] = attrgetter("name"),
) -> list[Place]:
    """Return the chosen cells; raise ConfigError for a seed or a word that no cell has.

    Args:
        known: the seeds that there are.
        what: has these seeds, in words.
        name: returns the name of a cell.
    """
    places = list(every)
    if odd := sorted({*(seeds or ())} - {*known}):
        raise ConfigError(f"the {what} has no seed {odd[0]}; choose from {', '.join(map(str, known))}")
    if odd := [word for word in only if not any(name(place).startswith(word) for place in places)]:
        raise ConfigError(f"no cell's name begins with {odd[0]!r}; names are like {name(places[0])}")
    return [
        place
        for place in places
        if (not only or name(place).startswith(tuple(only))) and (seeds is None or place.seed in seeds)
    ]


def count_workers(workers: int | None, engine: str) -> int:
    """Return how many cells to make at once: as many as were asked for, or by default several on a GPU and one elsewhere."""
    if workers is not None:
        check_whole("workers", workers)
        return workers
    return AT_ONCE if torch.cuda.is_available() and engine not in {"pool", "loop"} else 1


def find_deadline(minutes: float | None, now: float) -> float:
    """Return the time after which no more runs begin; infinity without a number of minutes."""
    if minutes is None:
        return math.inf
    check_positive("--minutes", minutes, 8)
    return now + 60 * minutes


def _prefix_steps(step: BeginStep, cell: str) -> BeginStep:
    return lambda what, rounds: step(f"{cell}: {what}", rounds)
