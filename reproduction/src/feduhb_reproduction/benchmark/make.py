"""Make the cells of a benchmark: train, serve the request with every method, audit all of them, and write one file."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import feduhb
from feduhb import Audit, RapidRetrain, Round, Run, never
from feduhb.audit import audit_all
from feduhb.data import load_dataset
from feduhb.engines import check_engine
from feduhb.errors import ConfigError, DataError, DivergedError, FeduhbError
from feduhb.methods import METHODS, find_method
from feduhb.runs import BeginStep, RunFolder, Show, explain_refusals, hold_lock
from feduhb_reproduction.benchmark.design import Benchmark, list_runs
from feduhb_reproduction.cell import (
    PATIENCE,
    Scorer,
    describe_origin,
    list_series,
    load_federation,
    make_request,
    make_track,
    show_nothing,
    train_original,
)
from feduhb_reproduction.cell_plan import Job, refuse_other_grid
from feduhb_reproduction.cells import ORIGINAL, RETRAIN, Place, Track, cell_file
from feduhb_reproduction.reproduce import (
    CellsError,
    Failure,
    attempt_all,
    catch_failure,
    choose_places,
    count_workers,
    describe_failure,
    find_deadline,
    join_failures,
)
from feduhb_reproduction.study.make import add_run
from feduhb_reproduction.study.results import read_cell

UNLEARNED = "unlearned"  # the audited model in an audit
REFUSED = "refused"  # how a run ended that a method refused to begin


class OutOfTimeError(Exception):
    """The time for runs is over. The run that raised it continues from its folder."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A cell with the runs that its file lacks, by name."""

    place: Place
    runs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Progress:
    """The runs of a benchmark that are done and those that are missing."""

    done: int
    missing: tuple[Missing, ...]

    def __str__(self) -> str:
        left = sum(len(one.runs) for one in self.missing)
        lines = [f"{self.done} of {self.done + left} runs are done"]
        if self.missing:
            lines += ["missing: " + ", ".join(f"{one.place.name} ({len(one.runs)})" for one in self.missing)]
        return "\n".join(lines)


def check_benchmark(
    bench: Benchmark,
    out: Path,
    *,
    own: Mapping[str, str] | None = None,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
) -> Progress:
    """Return which runs are done; raise RunFolderError for cells of other settings.

    Args:
        own: methods of the user's own, by the name of their runs. Those whose code has changed since are missing.
        seeds, only: look only at the cells with these seeds, and at those whose names begin with one of these words.
    """
    refuse_other_grid(out, next(bench.places()))
    wanted = list_runs(own or {})
    codes = {name: digest_code(text) for name, text in wanted.items()}
    done, missing = 0, []
    for place in choose_places(bench.places(), bench.seeds, seeds, only):
        path = cell_file(out, place)
        known = read_cell(path, place).runs if path.exists() else {}
        lacking = {
            name: text
            for name, text in wanted.items()
            if name not in known or known[name].code != codes[name]
        }
        done += len(wanted) - len(lacking)
        if lacking:
            missing.append(Missing(place, lacking))
    return Progress(done, tuple(missing))


def run_benchmark(
    bench: Benchmark,
    out: Path,
    *,
    own: Mapping[str, str] | None = None,
    data: Path | None = None,
    engine: str = "auto",
    workers: int | None = None,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    minutes: float | None = None,
    command: str = "",
    show: Show = "auto",
) -> Progress:
    """Make the missing runs, cell by cell, and return the progress.

    A cell that cannot be made does not stop the others; the error at the end names it. A cell that another process is making is
    skipped. An interrupted cell continues from the folders of its runs.

    Args:
        own: methods of the user's own, by the name of their runs: "module:Class", "file.py:Class" or a registered name.
        workers: cells made at once, in processes of their own; None makes several on a GPU and one elsewhere.
        minutes: no run is begun after this time, and one that goes on is interrupted after its round. The runs that were made
            are audited and written; what is missing is made by the next call. Every cell that was begun gets at least one run.
        command: the command as it was typed, for the records.

    Raises:
        CellsError: some cells could not be made; the others are there.
        RunFolderError: the folder belongs to another benchmark; nothing was made.
    """
    check_engine(engine)
    workers = count_workers(workers, engine)
    deadline = find_deadline(minutes, time.time())
    before = check_benchmark(bench, out, own=own, seeds=seeds, only=only)
    if before.missing:
        load_dataset(bench.data, data)  # fetched, or refused, before anything is computed
    # Seconds are not compared, so a cell need not be alone on the machine.
    make_job = partial(Job, out=out, data=data, engine=engine, command=command, alone=False)
    attempt = partial(attempt_cell, make_job=make_job, own=frozenset(own or ()), deadline=deadline)
    failed = attempt_all(
        attempt, before.missing, workers, show, "benchmark", name=lambda one: one.place.name, count=lambda one: len(one.runs) + 2
    )  # fmt: skip
    if failed:
        raise CellsError(
            f"{len(failed)} of {len(before.missing)} cells are not complete: {join_failures(failed)}"
        )
    return check_benchmark(bench, out, own=own, seeds=seeds, only=only)


def attempt_cell(
    missing: Missing,
    show: BeginStep = show_nothing,
    *,
    make_job: Callable[..., Job],
    own: frozenset[str],
    deadline: float,
) -> list[Failure]:
    """Fill a cell; return why it is not complete, and [] if it is."""
    job = make_job(place=missing.place)
    return catch_failure(missing.place.name, lambda: fill_cell(job, missing.runs, own, deadline, show))


def fill_cell(
    job: Job,
    wanted: Mapping[str, str],
    own: frozenset[str] = frozenset(),
    deadline: float = math.inf,
    show: BeginStep = show_nothing,
) -> None:
    """Serve a cell's request with the methods that it lacks, audit their models together, and write the cell's file.

    The training and Retrain are made also if the file has them already: the audits need their models. A run that fails does
    not stop the others: it stays missing, and the error at the end names it.

    Args:
        wanted: the methods, by the name of their runs.
        own: the names of the runs whose methods the user named.
        deadline: when to begin no more runs, as `time.time` counts.

    Raises:
        CellsError: some runs failed; the others are in the file.
    """
    with hold_lock(job.lock) as mine:
        if not mine or time.time() > deadline:
            return
        began = time.perf_counter()
        place = job.place
        federation = load_federation(place, job.data)
        trained = train_original(job, federation, show)
        ended, failed = _serve_all(job, trained, wanted, own, deadline, show)
        runs = {name: one for name, one in ended.items() if isinstance(one, Run)}
        about = RunFolder(job.work / ORIGINAL).result()["engine"]
        scorer = Scorer(federation, make_request(place, federation), about["device"])
        show("audits", 1)
        diverged = {name: why for name, run in runs.items() if (why := scorer.explain_divergence(run))}
        if RETRAIN in diverged:
            raise _make_retrain_error(place)
        audits, unaudited = _audit_all({n: r for n, r in runs.items() if n not in diverged}, trained, place)
        audits |= {name: _record_divergence(runs[name], why) for name, why in diverged.items()}
        tracks = {name: one for name, one in ended.items() if isinstance(one, Track)}
        tracks |= {name: _record(runs[name], one, scorer) for name, one in audits.items()}
        cell = read_cell(job.file, place) if job.file.exists() else None
        made = describe_origin(job, about, began)
        for name in filter(tracks.__contains__, wanted):
            cell = add_run(cell, place, name, replace(tracks[name], code=digest_code(wanted[name])), made)
            made = {**made, "seconds": 0.0}  # the cell's seconds are counted once
        if cell is not None:
            cell.write(job.file.parent)
        if tracks.keys() >= wanted.keys():  # otherwise the next call continues from here
            shutil.rmtree(job.work)
    if failed := [*failed, *unaudited]:
        raise CellsError(join_failures(failed))


def _serve_all(
    job: Job, trained: Run, wanted: Mapping[str, str], own: frozenset[str], deadline: float, show: BeginStep
) -> tuple[dict[str, Run | Track], list[Failure]]:
    """Serve a cell's request with Retrain and the wanted methods; return what ended by the deadline, and what failed.

    The user's own methods come first, for which their author waits. RapidRetrain comes last: in the cells of mnist-5k its
    clients took eleven times as long as those of Retrain.
    """
    order = {RETRAIN: RETRAIN, **dict(sorted(wanted.items(), key=_rank))}
    ended, failed = dict[str, Run | Track](), list[Failure]()
    for name, text in order.items():
        end = math.inf if ended.keys().isdisjoint(wanted) else deadline
        if time.time() > end:
            break
        try:
            ended[name] = _serve(job, trained, name, text, is_own=name in own, show=end_in_time(show, end))
        except OutOfTimeError:
            break
        except Exception as error:
            if name == RETRAIN:
                raise
            failed.append(describe_failure(name, error))
        if isinstance(ended.get(RETRAIN), Track):
            raise _make_retrain_error(job.place)
    return ended, failed


def _make_retrain_error(place: Place) -> ConfigError:
    return ConfigError(
        f"Retrain diverged in {place.name}, and nothing can be compared with it; give a smaller lr"
    )


def _rank(run: tuple[str, str]) -> int:
    """Return a number by which runs are sorted before they are made."""
    _, text = run
    return (text in METHODS) + (text == RapidRetrain.name)


def end_in_time(show: BeginStep, deadline: float) -> BeginStep:
    """Return a function that shows rounds, and raises OutOfTimeError after the first one that ends too late."""

    def begin(what: str, rounds: int) -> Callable[[Round], None]:
        tell = show(what, rounds)

        def tell_in_time(record: Round) -> None:
            tell(record)
            if time.time() > deadline:
                raise OutOfTimeError

        return tell_in_time

    return begin


def _serve(job: Job, trained: Run, name: str, text: str, *, is_own: bool, show: BeginStep) -> Run | Track:
    """Serve the request with one method; return the run, or why there is none: the method refused, or diverged.

    A method that the user named raises the error with which it refuses, except where the request is for rows.
    """
    place, request = job.place, make_request(job.place, trained.original)
    refusal = explain_refusals(trained, request, [text]).get(text)
    if refusal is not None and (place.rows or not is_own):
        return _explain(refusal, REFUSED)
    code = digest_code(text)[:10]
    folder = job.work / (f"{name}-{code}" if code else name)  # changed code begins again
    try:
        return feduhb.unlearn(
            trained, request, method=text, rounds=place.rounds, stop=never, out=folder, keep_history=False,
            erase_history=False, resume=True, checkpoint_every=PATIENCE, show=show(name, place.rounds),
        )  # fmt: skip
    except DivergedError as error:
        return _record_divergence(folder, str(error))


def _record_divergence(run: Run | Path, why: str) -> Track:
    """Return the record of a run that diverged, from the run or its folder."""
    folder = run.folder if isinstance(run, Run) else run
    assert folder is not None  # noqa: S101 (every run of a cell has one)
    records = RunFolder(folder).rounds()
    sums = {"client_epochs": float(sum(record.client_epochs for record in records))}
    return _explain(why, "diverged", sums=sums, series=list_series(records))


def _explain(why: str, ended: str, **more: Any) -> Track:
    told: dict[str, Any] = {"series": {"moved": ()}, "sums": {}, **more}
    return Track(settings={}, exact=False, stopped=ended, weights="", scores={}, failed=why, **told)


def _audit_all(
    runs: Mapping[str, Run], trained: Run, place: Place
) -> tuple[dict[str, Audit | Track], list[Failure]]:
    """Audit runs together; return their audits, the records of runs whose scores are not finite, and what failed.

    If an error of feduhb stops the audits, it may be due to one run: its numbers, or its method, which trains shadows. Then
    the runs are audited one by one, and what they share is computed for each again. Any other error fails all of them.
    """
    audit = partial(
        audit_all, trained=trained, retrain=runs[RETRAIN], exactness=False, shadows=place.shadows, relearn=place.relearn, misr=False, show=None
    )  # fmt: skip
    try:
        return dict(zip(runs, audit(list(runs.values())), strict=True)), []
    except FeduhbError as error:
        sys.stderr.write(f"{place.name}: audits are made one by one, because together they failed: {error}\n")
    except Exception as error:
        return {}, [describe_failure("audits", error)]
    found, failed = dict[str, Audit | Track](), list[Failure]()
    for name, run in runs.items():
        try:
            (found[name],) = audit([run])
        except Exception as error:
            if name == RETRAIN:
                raise
            if isinstance(error, DataError):  # an attack's scores are not finite
                found[name] = _record_divergence(run, str(error))
            else:
                failed.append(describe_failure(name, error))
    return found, failed


def _record(run: Run, audit: Audit | Track, scorer: Scorer) -> Track:
    """Return the record of a run with its costs and what the audit found; one that diverged has it already."""
    if isinstance(audit, Track):
        return audit
    assert run.folder is not None  # noqa: S101 (every run of a cell has one)
    track, result = make_track(run, scorer), RunFolder(run.folder).result()
    cost = audit.cost[UNLEARNED]
    sums = {
        **track.sums, "leaver_epochs": result.get("leaver_epochs", 0), "stored_bytes": _count_stored(run, cost.history_bytes),
        "server_seconds": result["server_seconds"],
    }  # fmt: skip
    return replace(track, sums=sums, audit=summarise_audit(audit, tuple(result.get("requires", ()))))


def _count_stored(run: Run, history: int) -> int:
    """Return the bytes that a federation had to store for a method: the history, or the old model."""
    return history or (run.params.numel() * run.params.element_size() if run.method.needs_model else 0)


def summarise_audit(audit: Audit, requires: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a benchmark tells of an audit, as plain values."""
    distance, relearn = audit.distance.get(UNLEARNED), audit.relearn
    return {
        "requires": list(requires),
        "verdict": audit.verdict.word,
        "membership": [
            {
                "attack": one.attack, "on": one.on, "canaries": one.canaries, "outcome": one.verdict,
                "auc": {model: roc.auc for model, roc in one.models.items()},
                "against_retrain": None if one.against_retrain is None else one.against_retrain.value,
            }
            for one in audit.membership
        ],
        "backdoor": None if audit.backdoor is None else dict(audit.backdoor.success),
        "distance": None if distance is None else {"l2": distance.l2, "disagreement": distance.disagreement},
        "relearn": None if relearn is None else {UNLEARNED: relearn.unlearned, RETRAIN: relearn.retrain, "most": relearn.most},
    }  # fmt: skip


def digest_code(text: str) -> str:
    """Return the SHA-256 of the file of a method of the user's own; "" for a built-in one."""
    if text in METHODS:
        return ""
    if ":" not in text:
        file = inspect.getsourcefile(find_method(text))
    else:
        module = text.rpartition(":")[0]
        here = Path(module if module.endswith(".py") else f"{module.replace('.', '/')}.py")
        file = here if here.is_file() else None if module.endswith(".py") else _find_module(module)
    if file is None or not Path(file).is_file():
        raise ConfigError(f"the code of {text} is not found; give module:Class or file.py:Class")
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _find_module(name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return None if spec is None else spec.origin
