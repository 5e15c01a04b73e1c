"""One cell of a grid: a federation trained once, unlearned by every method, and attacked."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import feduhb
from feduhb import Backdoor, Federation, Method, Request, Retrain, Round, Run, never
from feduhb.audit import compute_misr
from feduhb.data import Examples
from feduhb.engines import compute_accuracy, compute_outputs
from feduhb.errors import ConfigError, DivergedError
from feduhb.methods import settings_of
from feduhb.runs import BeginStep, RunFolder, TrainSettings, explain_end, hold_lock, versions
from feduhb_reproduction.cell_plan import ON, RULED, Job, Planned, list_lacking, merge_places, plan_runs
from feduhb_reproduction.cells import ORIGINAL, RETRAIN, SERIES, Cell, Place, Track, round_series

SUMS = (
    "client_epochs", "client_rounds", "client_rounds_saved", "bytes_up", "bytes_down",
    "history_bytes_read", "history_bytes_kept", "parameters",
)  # fmt: skip
# Seconds of work that an interruption may cost: FedRecover's checkpoints are hundreds of megabytes.
PATIENCE = 10.0
ATTACKED = (ORIGINAL, RETRAIN, "federaser", "fedrecover", "fedrecover-corrected", RULED, ON)


def show_nothing(what: str, rounds: int) -> Callable[[Round], None]:  # noqa: ARG001
    """Show nothing."""
    return lambda record: None  # noqa: ARG005


def make_cell(job: Job, show: BeginStep = show_nothing) -> Path | None:
    """Make a cell, continue an interrupted one, write its file, and delete its runs.

    Return its file; None if the cell is done already, or another process is making it.
    """
    with hold_lock(job.lock) as mine:
        wanted = list_lacking(job.place, job.file) if mine else ()
        if not wanted:
            return None
        cell = _make(job, show) if ORIGINAL in wanted else _extend(job, wanted, show)
        written = cell.write(job.file.parent)
        if not job.keep:
            _delete_runs(job)
        return written


def clear_away(job: Job) -> None:
    """Delete the runs of a cell with their histories, unless another process is making it."""
    with hold_lock(job.lock) as mine:
        if mine:
            _delete_runs(job)


def _delete_runs(job: Job) -> None:
    for folder in job.leavings:
        shutil.rmtree(folder, ignore_errors=True)


def _make(job: Job, show: BeginStep) -> Cell:
    began = time.perf_counter()
    place = merge_places(job.place, Cell.read(job.file).place) if job.file.exists() else job.place
    federation = load_federation(place, job.data)
    original = train_original(job, federation, show)
    about = dict(RunFolder(job.work / ORIGINAL).result()["engine"])
    scorer = Scorer(federation, make_request(place, federation), about["device"])
    models, broken = _unlearn(job, original, plan_runs(place), show)
    models = {ORIGINAL: original, **models}
    return Cell(
        place=place,
        runs=_sort_tracks(place, broken, models, scorer),
        misr=_attack({name: models[name] for name in ATTACKED if name in models}, scorer, place.seed),
        made=describe_origin(job, about, began),
    )


def train_original(job: Job, federation: Federation, show: BeginStep = show_nothing) -> Run:
    """Train a cell's federation with a history, or continue that training."""
    place = job.place
    return feduhb.train(
        federation, place.rounds, epochs=place.epochs, batch_size=place.batch_size, lr=place.lr, engine=job.engine,
        keep_history=True, out=job.work / ORIGINAL, resume=True, checkpoint_every=PATIENCE, show=show(ORIGINAL, place.rounds),
    )  # fmt: skip


def _extend(job: Job, wanted: Sequence[str], show: BeginStep) -> Cell:
    """Add runs to a finished cell. They need the federation and nothing else of its training."""
    began = time.perf_counter()
    before = Cell.read(job.file)
    place = merge_places(before.place, job.place)
    federation = load_federation(place, job.data)
    untrained = describe_training(job, federation)
    about = untrained.make_engine().about
    scorer = Scorer(federation, make_request(place, federation), about["device"])
    models, broken = _unlearn(job, untrained, {name: plan_runs(place)[name] for name in wanted}, show)
    added = {"runs": list(wanted), **describe_origin(job, about, began)}
    return replace(
        before,
        place=place,
        runs=_sort_tracks(place, {**before.runs, **broken}, models, scorer),
        made={**before.made, "added": [*before.made.get("added", ()), added]},
    )


def describe_training(job: Job, federation: Federation) -> Run:
    """Return the cell's training as a run without rounds: exact methods need its settings and not its weights."""
    place = job.place
    settings = TrainSettings(
        rounds=place.rounds, epochs=place.epochs, batch_size=place.batch_size, lr=place.lr, engine=job.engine
    )
    return Run(
        federation=federation, original=federation, settings=settings, method=Retrain(epochs=place.epochs), state=None,
        rounds=(), engine=job.engine, scheduled=place.rounds,
    )  # fmt: skip


def _unlearn(
    job: Job, trained: Run, planned: Mapping[str, Planned], show: BeginStep
) -> tuple[dict[str, Run], dict[str, Track]]:
    """Serve the request with each planned method; return the runs that ended, and the records of those that diverged."""
    ended = {name: serve_request(job, trained, name, plan, show) for name, plan in planned.items()}
    models = {name: one for name, one in ended.items() if isinstance(one, Run)}
    return models, {name: one for name, one in ended.items() if isinstance(one, Track)}


def serve_request(
    job: Job, trained: Run, name: str, plan: Planned, show: BeginStep = show_nothing
) -> Run | Track:
    """Serve a cell's request with a planned method; return the run, or its record if it diverged."""
    place, rounds = job.place, plan.rounds or job.place.rounds
    rule = feduhb.dynamic_stop(place.scale, momentum=place.momentum) if plan.ruled else never
    try:
        return feduhb.unlearn(
            trained, make_request(place, trained.original), method=plan.method, rounds=rounds, stop=rule, record=plan.record, out=job.work / name,
            keep_history=False, erase_history=False, resume=True, checkpoint_every=PATIENCE, show=show(name, rounds),
        )  # fmt: skip
    except DivergedError as error:  # that is a result too
        return make_broken_track(job.work / name, plan.method, str(error))


def _sort_tracks(
    place: Place, known: Mapping[str, Track], models: Mapping[str, Run], scorer: Scorer
) -> dict[str, Track]:
    tracks = {**known, **{name: make_track(run, scorer) for name, run in models.items()}}
    return {name: tracks[name] for name in (ORIGINAL, *plan_runs(place))}


def describe_origin(job: Job, about: Mapping[str, Any], began: float) -> dict[str, Any]:
    """Return a record of who made a cell: command, commit, engine, device, versions, date and seconds."""
    return {
        "command": job.command, "commit": find_commit(), "engine": dict(about), "device": name_device(about["device"]),
        "versions": versions(), "finished": datetime.now(UTC).isoformat(timespec="seconds"), "alone": job.alone,
        "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def load_federation(place: Place, data: Path | None = None) -> Federation:
    """Return a cell's federation. Nothing is held out in the paper's grids."""
    leavers = tuple(Request.parse(place.forget).clients)
    return feduhb.load(
        place.data, clients=place.clients, partition=place.partition, per_client=place.per_client, held_out=place.held_out,
        backdoor=Backdoor(leavers) if place.backdoor else None, canaries=leavers if place.canaries else None,
        public=place.public, model=place.model, seed=place.seed, data=data,
    )  # fmt: skip


def make_request(place: Place, federation: Federation) -> Request:
    """Return the request of a cell: its leavers, or only the rows with what they planted, canaries and the trigger."""
    leavers = Request.parse(place.forget)
    if not place.rows:
        return leavers
    planted = {client: _list_planted(federation, client) for client in leavers.clients}
    if not any(planted.values()):
        raise ConfigError(
            f"nothing was planted in {', '.join(leavers.clients)}, so no rows are to be forgotten; give more data a client"
        )
    return Request(rows={client: rows for client, rows in planted.items() if rows})


def _list_planted(federation: Federation, client: str) -> tuple[int, ...]:
    examples = federation.clients[client]
    planted = torch.zeros(len(examples), dtype=torch.bool) if examples.marked is None else examples.marked
    if federation.backdoor is not None:
        planted = planted | federation.backdoor.detect(examples.all()[0])
    return tuple(examples.keys[planted].tolist())


class Scorer:
    """Scores the models of a cell on its forgotten, retained and test data."""

    def __init__(self, federation: Federation, forget: Request, device: str) -> None:
        self.device = device
        self.forgotten = list(federation.forgotten(forget).values())
        self.retained = list(federation.without(forget).clients.values())
        self.test = [federation.test]
        leavers = {*forget.clients, *forget.rows}
        self.held_out = [held for client, held in federation.held_out.items() if client in leavers]

    def logits(self, run: Run, parts: Sequence[Examples]) -> Iterator[torch.Tensor]:
        """Yield a model's outputs on each list of examples."""
        model = run.model().to(self.device)
        return (compute_outputs(model, examples.all()[0]) for examples in parts)

    def explain_divergence(self, run: Run) -> str | None:
        """Return why a model cannot be attacked: its weights, or outputs that attacks look at, are not finite; None if it can."""
        if not run.params.isfinite().all():
            return "some weights of the model are not finite"
        parts = [part for part in (*self.forgotten, *self.held_out, *self.test) if len(part)]
        if all(bool(outputs.isfinite().all()) for outputs in self.logits(run, parts)):
            return None
        return "the model's outputs are not finite on some examples"

    def compute_accuracy(self, run: Run, parts: Sequence[Examples]) -> float:
        """Return a model's accuracy over several lists of examples together."""
        labels = torch.cat([examples.targets for examples in parts])
        return compute_accuracy(torch.cat(list(self.logits(run, parts))), labels)


def make_track(run: Run, scorer: Scorer | None = None) -> Track:
    """Return the record of a run that ended; without a scorer, without its accuracy on forgotten and retained data."""
    assert run.folder is not None  # noqa: S101 (every run of a cell has one)
    result = RunFolder(run.folder).result()
    scores = {}
    if scorer is not None:
        parts = {"forgotten": scorer.forgotten, "retained": scorer.retained}
        scores = {name: scorer.compute_accuracy(run, part) for name, part in parts.items()}
    return Track(
        series=list_series(run.rounds), settings=result["settings"], exact=result["exact"], stopped=result["stopped"],
        sums={name: result[name] for name in SUMS}, weights=result["weights_sha256"], scores=scores,
    )  # fmt: skip


def make_broken_track(folder: Path, method: Method[Any], why: str) -> Track:
    """Return the track of a run that diverged."""
    records = RunFolder(folder).rounds()
    sums = {
        "client_epochs": sum(record.client_epochs for record in records),
        "client_rounds": sum(len(record.answered) for record in records),
    }
    return Track(
        series=list_series(records), settings=settings_of(method), exact=method.exact, stopped=explain_end(records),
        sums=sums, weights="", scores={}, failed=why,
    )  # fmt: skip


def list_series(records: Sequence[Round]) -> dict[str, tuple[float, ...]]:
    """Return the rounds as columns, without the scores that a round lacks."""
    found: dict[str, tuple[float, ...]] = {}
    for name in SERIES:
        scored = [_list_scores(record).get(name) for record in records]
        values = [getattr(record, name, score) for record, score in zip(records, scored, strict=True)]
        present = [value for value in values if value is not None]
        if present or name == "moved":
            found[name] = round_series(present)
    return found


def _list_scores(record: Round) -> dict[str, float]:
    return {**record.scores, **{f"held_out_{name}": value for name, value in record.held_out.items()}}


def _attack(
    models: Mapping[str, Run], scorer: Scorer, seed: int
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the MISR of every model that has finite outputs, by attackers that were fitted on the original."""
    said = {
        name: tuple(torch.cat(list(scorer.logits(run, parts))) for parts in (scorer.forgotten, scorer.test))
        for name, run in models.items()
    }
    sound = {name: (a, b) for name, (a, b) in said.items() if a.isfinite().all() and b.isfinite().all()}
    if ORIGINAL not in sound:
        return {}
    return {
        attacker: {name: (one.misr, one.on_test) for name, one in by_model.items()}
        for attacker, by_model in compute_misr(sound, seed=seed).items()
    }


def find_commit() -> str:
    """Return the commit of this code: FEDUHB_COMMIT if it is set, else what git says, with "+" for changes, else "unknown"."""
    if given := os.environ.get("FEDUHB_COMMIT"):
        return given
    here = Path(__file__).parent
    found = _git(here, "rev-parse", "--short=10", "HEAD")
    tracked = found and _git(here, "ls-files", Path(__file__).name)
    if not tracked:  # installed inside somebody else's repository
        return "unknown"
    return f"{found}+" if _git(here, "status", "--porcelain", "--", str(here.parent)) else found


def name_device(kind: str) -> str:
    """Return the name of the GPU, or of the processor with its cores."""
    if kind == "cuda":
        return torch.cuda.get_device_name()
    return f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores of {_processor()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of git; "" if there is no git or no repository."""
    git = shutil.which("git")
    if git is None:
        return ""
    asked = subprocess.run([git, "-C", str(folder), *arguments], capture_output=True, text=True, check=False)  # noqa: S603
    return asked.stdout.strip() if asked.returncode == 0 else ""
