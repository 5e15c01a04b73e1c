"""Make the cells of a study run by run, in pieces: a cell's file is written after every run, and no finished run is repeated."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from feduhb.core import check_whole
from feduhb.data import load_dataset
from feduhb.engines import check_engine
from feduhb.methods import make_method
from feduhb.runs import BeginStep, Show, hold_lock
from feduhb_reproduction.cell import (
    describe_origin,
    describe_training,
    load_federation,
    make_track,
    serve_request,
    show_nothing,
    train_original,
)
from feduhb_reproduction.cell_plan import Job, Planned, Recorded
from feduhb_reproduction.cells import MADE, RETRAIN, Cell, Place, Track, cell_file
from feduhb_reproduction.reproduce import (
    CellsError,
    Failure,
    attempt_all,
    catch_failure,
    choose_places,
    find_deadline,
    join_failures,
)
from feduhb_reproduction.study.choose import Choice, choose, find_finalists, read_choice
from feduhb_reproduction.study.cost import estimate_minutes
from feduhb_reproduction.study.design import BESIDE, PAPER, Candidate, Study, label_place
from feduhb_reproduction.study.results import is_whole, read_cell

Wanted = list[tuple[Place, dict[str, Planned]]]  # cells with runs
RECORD: tuple[Recorded, ...] = ("held_out", "distance")
# Runs are made in these phases. With the first three, every criterion can be judged; with two, those on rounds and stop rules.
TUNING, JUDGED, WORK = "tuning", "rounds and stop rules", "FedEraser and FedRecover"
CONTROL, OTHERS = "FedUHB", "the other methods"
PHASES = (TUNING, JUDGED, WORK, CONTROL, OTHERS)


@dataclass(frozen=True, slots=True)
class Task:
    """A cell to fill, and the time after which no further run is begun."""

    job: Job
    plan: Mapping[str, Planned]
    deadline: float  # seconds since 1970, which all processes count alike


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a study's runs, with minutes on a GPU, one run after the other; None for data whose rounds were not measured."""

    name: str
    missing: int  # runs
    minutes: float | None  # of the missing runs
    whole: float | None  # of all its runs


@dataclass(frozen=True, slots=True)
class Progress:
    """The runs of a study that are done and those that are missing."""

    done: int
    missing: Wanted
    choice: Choice | None
    later: int = 0  # runs that cannot begin before others have been compared

    def __str__(self) -> str:
        left = sum(len(plan) for _, plan in self.missing)
        total = self.done + left + self.later
        lines = [f"{self.done} of {total} runs are done"]
        if self.missing:
            lines += [
                "missing: " + ", ".join(f"{label_place(place)} ({len(plan)})" for place, plan in self.missing)
            ]
        if self.later:
            lines += [
                f"{self.later} runs wait: the later tuning seeds for a comparison on the first, the reported seeds for one on all of them"
            ]
        return "\n".join(lines)


def plan_cell(
    study: Study, place: Place, choice: Choice | None, finalists: Sequence[str]
) -> dict[str, Planned]:
    """Return the runs of a cell: every candidate, or the finalists, for a tuning seed, the chosen ones for a reported seed.

    Before methods and rules are chosen, a cell of a reported seed has no runs. Stop rules are chosen on longer runs of the
    fastest candidate, which replace its shorter ones, and reported on those of the paper's settings too.
    """
    candidates = {one.name: one for one in study.list_candidates()}
    is_tuned = place.seed in study.tune
    if not is_tuned and (choice is None or choice.rule is None):
        return {}
    if is_tuned:
        chosen = finalists if place.seed != study.tune[0] else list(candidates)
    else:
        chosen = [] if choice is None else list(choice.families.values())
    long = {*(() if is_tuned else (PAPER,)), *([] if choice is None else [choice.fast])}
    found = {name: _plan_run(study, candidates[name], is_long=name in long) for name in chosen}
    beside = () if is_tuned else BESIDE
    return found | {name: Planned(make_method(name, epochs=study.epochs)) for name in beside}


def _plan_run(study: Study, candidate: Candidate, *, is_long: bool) -> Planned:
    method = make_method(candidate.method, epochs=study.epochs, **candidate.settings)
    if is_long:
        return Planned(method, rounds=study.long, record=RECORD)
    return Planned(method, rounds=study.rounds)


def check_study(
    study: Study, out: Path, *, seeds: Sequence[int] | None = None, only: Sequence[str] = ()
) -> Progress:
    """Return which runs are done; raise RunFolderError for cells of other settings.

    Args:
        seeds, only: look only at the cells with these seeds, and at those whose names begin with one of these words.
    """
    choice, finalists = read_choice(study, out), find_finalists(study, out)
    done, missing = 0, Wanted()
    known = (*study.tune, *study.report)
    places = choose_places(study.places(), known, seeds, only, what="study", name=label_place)
    for place in places:
        plan = plan_cell(study, place, choice, finalists)
        path = cell_file(out / place.data, place)
        lacking = _list_lacking(plan, read_cell(path, place).runs if path.exists() else {})
        done += len(plan) - len(lacking)
        if lacking:
            missing.append((place, lacking))
    later = 0
    if choice is None or choice.rule is None:
        later += sum(one.seed in study.report for one in places) * (len(study.list_families()) + len(BESIDE))
    if study.finalists is not None and not finalists:
        later += sum(one.seed in study.tune[1:] for one in places) * (1 + study.finalists)
    return Progress(done, missing, choice, later)


def plan_whole(study: Study, choice: Choice, finalists: Sequence[str]) -> Wanted:
    """Return every run of a study, as if nothing were there."""
    return [(place, plan_cell(study, place, choice, finalists)) for place in study.places()]


def guess_choice(study: Study, known: Choice | None = None) -> Choice:
    """Return a choice to estimate with: what is not known yet counts as the first candidates."""
    first = {family: {"chosen": those[0].name} for family, those in study.list_families().items()}
    fast = next(one.name for one in study.list_candidates() if one.name not in {PAPER, RETRAIN})
    rule = {"family": study.rules[0].family}
    guessed = {"methods": first, "fast": {"run": fast}, "rules": None, "rule": rule}
    chosen = {} if known is None else known.record
    return Choice({**guessed, **{key: value for key, value in chosen.items() if value is not None}})


def split_phases(study: Study, choice: Choice | None, wanted: Wanted) -> dict[str, Wanted]:
    """Return the runs of each phase, in the order of the phases."""
    found: dict[str, Wanted] = {}
    for phase in PHASES:
        parts = [
            (
                place,
                {
                    name: plan
                    for name, plan in plans.items()
                    if find_phase(study, choice, place, name) == phase
                },
            )
            for place, plans in wanted
        ]
        found[phase] = [(place, plans) for place, plans in parts if plans]
    return found


def find_phase(study: Study, choice: Choice | None, place: Place, run: str) -> str:
    """Return the phase in which a run is made."""
    if choice is None or place.seed in study.tune:
        return TUNING
    if run in {RETRAIN, choice.fast}:
        return JUDGED
    if run in BESIDE:
        return WORK
    return CONTROL if run == PAPER else OTHERS


def estimate_study(study: Study, out: Path | None = None) -> list[Phase]:
    """Return for each phase the runs that are not there, and the minutes on a GPU of these and of all.

    What is not chosen yet counts as the first candidates.

    Args:
        out: the folder of the study; None counts as an empty one.
    """
    choice = guess_choice(study, None if out is None else read_choice(study, out))
    finalists = [] if out is None else find_finalists(study, out)
    if not finalists:
        others = [one.name for one in study.list_candidates() if one.name not in {choice.fast, RETRAIN}]
        finalists = [RETRAIN, *[choice.fast, *others][: study.finalists]]
    whole, left = plan_whole(study, choice, finalists), Wanted()
    for place, plan in whole:
        path = None if out is None else cell_file(out / place.data, place)
        there = read_cell(path, place).runs if path is not None and path.exists() else {}
        left.append((place, _list_lacking(plan, there)))
    every, missing = (split_phases(study, choice, wanted) for wanted in (whole, left))
    return [
        Phase(name, sum(len(plan) for _, plan in missing[name]), estimate_minutes(missing[name]), estimate_minutes(every[name]))
        for name in PHASES
    ]  # fmt: skip


def run_study(
    study: Study,
    out: Path,
    *,
    data: Path | None = None,
    engine: str = "auto",
    workers: int = 1,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    minutes: float | None = None,
    command: str = "",
    show: Show = "auto",
) -> Progress:
    """Make the missing runs: those of the tuning seeds, then choose, then those of the reported seeds, see `list_next`.

    A run that cannot be made does not stop those of other cells; the error at the end names it. A cell that another process is
    making is skipped.

    Args:
        workers: cells made at once, in processes of their own.
        seeds, only: make only the cells with these seeds, and those whose names begin with one of these words.
        minutes: no run is begun after this time. What is missing is made by the next call.
        command: the command as it was typed, for the records.

    Raises:
        CellsError: some runs could not be made; the others are there.
        RunFolderError: the folder belongs to another study; nothing was made.
    """
    check_engine(engine)
    check_whole("workers", workers)
    deadline = find_deadline(minutes, time.time())
    job = partial(Job, data=data, engine=engine, command=command, alone=workers == 1)
    failed: list[Failure] = []
    before: Wanted | None = None
    choose(study, out)
    while True:
        found = check_study(study, out, seeds=seeds, only=only)
        if not found.missing or found.missing == before or failed or time.time() > deadline:
            break
        before = found.missing
        for name in dict.fromkeys(place.data for place, _ in found.missing):
            load_dataset(name, data)  # fetched, or refused, before anything is computed
        tasks = [
            Task(job(place=place, out=out / place.data), plan, deadline)
            for place, plan in list_next(study, found)
        ]
        failed += attempt_all(
            attempt_cell, tasks, workers, show, "study", name=lambda task: label_place(task.job.place),
            count=lambda task: len(task.plan),
        )  # fmt: skip
        choose(study, out)  # the next turn of the loop makes what follows from it
    if failed:
        raise CellsError(
            f"{len(failed)} of {len(before or ())} cells could not be made: {join_failures(failed)}"
        )
    return found


def list_next(study: Study, found: Progress) -> Wanted:
    """Return the missing runs to make next: those of the first phase that lacks any."""
    return next(wanted for wanted in split_phases(study, found.choice, found.missing).values() if wanted)


def attempt_cell(task: Task, show: BeginStep = show_nothing) -> list[Failure]:
    """Fill a cell; return why if that failed, and [] otherwise."""
    return catch_failure(label_place(task.job.place), lambda: fill_cell(task, show))


def fill_cell(task: Task, show: BeginStep = show_nothing) -> None:
    """Make the runs that a cell lacks, until the deadline, and write its file after each.

    The folder of a run is deleted once its numbers are written; that of the training, once no run needs its history.
    """
    job = task.job
    with hold_lock(job.lock) as mine:
        before = read_cell(job.file, job.place) if job.file.exists() else None
        lacking = _list_lacking(task.plan, before.runs if before else {}) if mine else {}
        if not lacking or time.time() > task.deadline:
            return
        federation = load_federation(job.place, job.data)
        untrained = describe_training(job, federation)
        about = untrained.make_engine().about
        for name, plan in lacking.items():
            if time.time() > task.deadline:
                return
            began = time.perf_counter()
            trained = train_original(job, federation, show) if plan.method.needs_history else untrained
            ended = serve_request(job, trained, name, plan, show)
            track = ended if isinstance(ended, Track) else make_track(ended)
            before = add_run(before, job.place, name, track, describe_origin(job, about, began))
            before.write(job.file.parent)
            shutil.rmtree(job.work / name)
        shutil.rmtree(job.work)


def _list_lacking(plan: Mapping[str, Planned], runs: Mapping[str, Track]) -> dict[str, Planned]:
    return {
        name: one for name, one in plan.items() if name not in runs or not is_whole(runs[name], one.rounds)
    }


def add_run(before: Cell | None, place: Place, name: str, track: Track, made: Mapping[str, Any]) -> Cell:
    """Return a cell with one more run. Runs that were made alike share one record of who made them."""
    if before is None:
        return Cell(place=place, runs={name: track}, misr={}, made=made)
    *earlier, last = before.origins
    alike = all(last[key] == made[key] for key in MADE if key != "finished")
    if alike:
        origins = [
            *earlier,
            {**last, "finished": made["finished"], "seconds": round(last["seconds"] + made["seconds"], 1)},
        ]
    else:
        origins = [*earlier, last, {"runs": [], **made}]
    if len(origins) > 1:
        origins[-1] = {**origins[-1], "runs": [*origins[-1]["runs"], name]}
    first = {key: value for key, value in origins[0].items() if key != "added"}
    added = {"added": origins[1:]} if len(origins) > 1 else {}
    return replace(before, runs={**before.runs, name: track}, made={**first, **added})
