"""Make the cells of a study run by run, in pieces: a cell's file is written after every run, and no finished run is repeated."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from feduhb import Round
from feduhb.core import check_whole
from feduhb.data import load_dataset
from feduhb.engines import check_engine
from feduhb.errors import FeduhbError
from feduhb.methods import make_method
from feduhb.runs import BeginStep, Show, hold_lock, show_steps, spread_ready
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
    catch_failure,
    choose_places,
    find_deadline,
    join_failures,
)
from feduhb_reproduction.study.choose import (
    BestRule,
    Choice,
    Fast,
    MethodFamily,
    choose,
    find_contenders,
    find_finalists,
    guess_contenders,
    read_choice,
)
from feduhb_reproduction.study.cost import estimate_minutes
from feduhb_reproduction.study.design import BESIDE, PAPER, Study, label_place
from feduhb_reproduction.study.results import is_whole, read_cell

Wanted = list[tuple[Place, dict[str, Planned]]]  # cells with runs
RECORD: tuple[Recorded, ...] = ("held_out", "distance")
# Runs are made in these phases. With the first three, every criterion can be judged; with two, those on rounds and stop rules.
TUNING, JUDGED, WORK = "tuning", "rounds and stop rules", "FedEraser and FedRecover"
CONTROL, OTHERS = "FedUHB", "the other methods"
PHASES = (TUNING, JUDGED, WORK, CONTROL, OTHERS)
REPLAYING = 3  # one of so many workers replays histories, which keeps a disk and a processor busy while the others keep the GPU busy


@dataclass(frozen=True, slots=True)
class Task:
    """A cell to fill, and the time after which no further run is begun."""

    job: Job
    plan: Mapping[str, Planned]
    deadline: float  # seconds since 1970, which all processes count alike

    @property
    def cell(self) -> str:
        """The name of the cell with its data set."""
        return label_place(self.job.place)

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from other tasks of a study."""
        return self.cell, *((name, one.rounds) for name, one in self.plan.items())

    @property
    def is_replay(self) -> bool:
        """Whether its runs replay the history of a training."""
        return all(one.method.needs_history for one in self.plan.values())


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a study's runs, with minutes on a GPU, one run after the other; None for data whose rounds were not measured."""

    name: str
    missing: int  # runs
    minutes: float | None  # of the missing runs
    whole: float | None  # of all its runs


@dataclass(frozen=True, slots=True)
class Known:
    """What earlier runs decided about later ones, or a guess."""

    choice: Choice | None
    contenders: Sequence[str]  # candidates that run on every data set; none as long as that is open
    finalists: Sequence[str]  # candidates that run on every tuning seed; none as long as that is open


@dataclass(frozen=True, slots=True)
class Progress:
    """The runs of a study that are done and those that are missing."""

    done: int
    missing: Wanted
    choice: Choice | None
    later: int  # runs that cannot begin before others have been compared; an estimate

    def __str__(self) -> str:
        left = sum(len(plan) for _, plan in self.missing)
        total = self.done + left + self.later
        lines = [f"{self.done} of {total} runs are done"]
        if self.missing:
            lines += [
                "missing: " + ", ".join(f"{label_place(place)} ({len(plan)})" for place, plan in self.missing)
            ]
        if self.later:
            lines += [f"{self.later} runs wait until candidates have been compared on the tuning seeds"]
        return "\n".join(lines)


def read_known(study: Study, out: Path) -> Known:
    """Return what was decided by the runs in a folder."""
    return Known(read_choice(study, out), find_contenders(study, out), find_finalists(study, out))


def guess_known(study: Study, out: Path) -> Known:
    """Return what was decided, to estimate with: what is not known yet counts as the first candidates."""
    known, contenders = read_known(study, out), guess_contenders(study, out)
    others = [name for name in contenders if name not in {RETRAIN, PAPER}] or [PAPER]
    places = {name: n for n, name in enumerate(contenders)}  # the best first, if they were compared
    ranked = [others[0], *(name for name in contenders if name not in {RETRAIN, others[0]})]
    finalists = known.finalists or [RETRAIN, *ranked[: study.finalists]]
    choice = known.choice or Choice(
        seeds=study.tune, methods_by="", rules_by="", rules=None, rule=None, fast=Fast(others[0], "", {}, ""),
        methods={
            family: MethodFamily(best.name if best.is_control or best.name in contenders else None, {})
            for family, those in study.list_families().items()
            for best in [min(those, key=lambda one: places.get(one.name, len(places)))]
        },
    )  # fmt: skip
    rule = choice.rule or BestRule(study.rules[0].family, "")
    return Known(replace(choice, rule=rule), contenders, finalists)


def plan_cell(study: Study, place: Place, known: Known) -> dict[str, Planned]:
    """Return the runs of a cell: the candidates that still compete for a tuning seed, the chosen ones for a reported seed.

    Before methods and rules are chosen, a cell of a reported seed has only the runs that are reported whatever is chosen. Stop rules are
    chosen on longer runs of the fastest candidate, which replace its shorter ones, and reported on those of the paper's settings too.
    """
    is_tuned, choice = place.seed in study.tune, known.choice
    if place.seed in study.confirm:
        return _plan_confirmation(study, choice)
    if not is_tuned:
        chosen = [RETRAIN, PAPER]
        if choice is not None and choice.rule is not None:
            chosen = list(choice.families.values())
    elif place.seed != study.tune[0]:
        chosen = known.finalists
    elif study.limit is not None and place.data != study.data[0]:
        chosen = known.contenders
    else:
        chosen = [one.name for one in study.list_candidates()]
    long = {*(() if is_tuned else (PAPER,)), *([] if choice is None else [choice.fast.run])}
    found = {
        one.name: Planned(one.make(study.epochs), rounds=study.long, record=RECORD)
        if one.name in long
        else Planned(one.make(study.epochs), rounds=study.rounds)
        for one in study.list_candidates()
        if one.name in chosen
    }
    beside = () if is_tuned else BESIDE
    return found | {name: Planned(make_method(name, epochs=study.epochs)) for name in beside}


def _plan_confirmation(study: Study, choice: Choice | None) -> dict[str, Planned]:
    """Return the run on which alone the chosen stop rule is judged: the fastest candidate's."""
    if choice is None or choice.rule is None:
        return {}
    fast = next(one for one in study.list_candidates() if one.name == choice.fast.run)
    return {fast.name: Planned(fast.make(study.epochs), rounds=study.long, record=RECORD)}


def check_study(
    study: Study, out: Path, *, seeds: Sequence[int] | None = None, only: Sequence[str] = ()
) -> Progress:
    """Return which runs are done; raise RunFolderError for cells of other settings.

    Args:
        seeds, only: look only at the cells with these seeds, and at those whose names begin with one of these words.
    """
    known, guessed = read_known(study, out), guess_known(study, out)
    places = choose_places(study.places(), study.seeds, seeds, only, what="study", name=label_place)
    plans = [(place, plan_cell(study, place, known)) for place in places]
    begun = sum(len(plan) for _, plan in plans)
    missing = _list_missing(out, plans)
    return Progress(
        begun - sum(len(plan) for _, plan in missing),
        missing,
        known.choice,
        sum(len(plan_cell(study, place, guessed)) for place in places) - begun,
    )


def _list_missing(out: Path, plans: Wanted) -> Wanted:
    """Return the cells that lack runs, with these."""
    found = Wanted()
    for place, plan in plans:
        path = cell_file(out / place.data, place)
        if lacking := _list_lacking(plan, read_cell(path, place).runs if path.exists() else {}):
            found.append((place, lacking))
    return found


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
    if place.seed in study.tune:
        return TUNING
    if run == RETRAIN or (choice is not None and run == choice.fast.run):
        return JUDGED
    if run in BESIDE:
        return WORK
    return CONTROL if run == PAPER else OTHERS


def estimate_study(study: Study, out: Path) -> list[Phase]:
    """Return for each phase the runs that are not in a folder, and the minutes on a GPU of these and of all, see `guess_known`."""
    known = guess_known(study, out)
    whole = [(place, plan_cell(study, place, known)) for place in study.places()]
    every, missing = (split_phases(study, known.choice, one) for one in (whole, _list_missing(out, whole)))
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

    A worker that has finished begins the most urgent runs that can begin, also those of a later phase that depend on no choice. A
    run that cannot be made does not stop those of other cells; the error at the end names it. A cell that another process is making
    is skipped.

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
    failed, tried = list[Failure](), set[tuple[object, ...]]()
    found = check_study(study, out, seeds=seeds, only=only)
    for name in dict.fromkeys(place.data for place, _ in found.missing):
        load_dataset(name, data)  # fetched, or refused, before anything is computed

    def find_next(running: Sequence[Task]) -> Task | None:
        """Return the most urgent runs of a cell that is not being made, none of which were tried before."""
        choose(study, out)
        if time.time() > deadline:
            return None
        left_out = {task.cell for task in running} | {name for name, _ in failed}
        ready = [
            Task(job(place=place, out=out / place.data), plan, deadline)
            for place, plan in list_next(study, check_study(study, out, seeds=seeds, only=only))
            if label_place(place) not in left_out
        ]
        ready = [task for task in ready if task.key not in tried]
        if sum(task.is_replay for task in running) < workers // REPLAYING:
            ready.sort(key=lambda task: not task.is_replay)
        if not ready:
            return None
        tried.add(ready[0].key)
        return ready[0]

    def count_left() -> int:
        now = check_study(study, out, seeds=seeds, only=only)
        left = sum(len(plan) for _, plan in now.missing) + now.later
        return left - (workers == 1)  # one worker shows a run when it begins, several when its cell has ended

    with show_steps(show, "study", count_left) as step:
        attempt = partial(attempt_cell, show=step) if workers == 1 else attempt_cell
        for task, why in spread_ready(attempt, find_next, workers, _describe_loss):
            failed += why
            for name in () if workers == 1 else task.plan:
                step(f"{task.cell}: {name}", 1)
    if failed:
        cells = {cell for cell, *_ in tried}
        raise CellsError(f"{len(failed)} of {len(cells)} cells could not be made: {join_failures(failed)}")
    return check_study(study, out, seeds=seeds, only=only)


def list_next(study: Study, found: Progress) -> Wanted:
    """Return the missing runs, each with those of its cell in the same phase, in the order of the phases."""
    return list(chain(*split_phases(study, found.choice, found.missing).values()))


def attempt_cell(task: Task, show: BeginStep = show_nothing) -> list[Failure]:
    """Fill a cell; return why if that failed, and [] otherwise."""

    def show_run(what: str, rounds: int) -> Callable[[Round], None]:
        return show(f"{task.cell}: {what}", rounds)

    return catch_failure(task.cell, lambda: fill_cell(task, show_run))


def _describe_loss(task: Task, error: FeduhbError) -> list[Failure]:
    return [(task.cell, str(error))]


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
