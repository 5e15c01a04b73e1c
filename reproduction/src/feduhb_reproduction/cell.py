"""One cell of a grid: a federation trained once, unlearned by every method, and attacked."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from feduhb.api import run_method, unlearn
from feduhb.audit.attacks.misr import compute_misr
from feduhb.core.types import Method
from feduhb.data.backdoor import Backdoor
from feduhb.data.federation import Examples, Federation
from feduhb.data.load import FederationSettings, build_federation
from feduhb.data.request import Request
from feduhb.engines import make_engine
from feduhb.engines.scoring import compute_accuracy, compute_outputs
from feduhb.errors import AnswerError
from feduhb.methods import settings_of
from feduhb.runs.config import TrainSettings, parse_config, to_toml
from feduhb.runs.folder import Round, RunFolder, explain_end, hold_lock, now, versions
from feduhb.runs.progress import BeginStep
from feduhb.runs.run import Run, method_for
from feduhb_reproduction.cell_plan import ON, RULED, Job, Planned, joined, lacking, plans
from feduhb_reproduction.cells import ORIGINAL, RETRAIN, SERIES, Cell, Place, Track, shortened
from feduhb_reproduction.provenance import find_commit, name_device

SUMS = (
    "client_epochs", "client_rounds", "client_rounds_saved", "bytes_up", "bytes_down",
    "history_bytes_read", "history_bytes_kept", "parameters",
)  # fmt: skip
PATIENCE = (
    10.0  # seconds of work that an interruption may cost: FedRecover's checkpoints are hundreds of megabytes
)
ATTACKED = (ORIGINAL, RETRAIN, "federaser", "fedrecover", "fedrecover-corrected", RULED, ON)


def silent(what: str, rounds: int) -> Callable[[Round], None]:  # noqa: ARG001
    """Show nothing."""
    return lambda record: None  # noqa: ARG005


def make_cell(job: Job, show: BeginStep = silent) -> Path | None:
    """Make a cell from its start or from where an earlier try stood, write its file, and clear its runs away.

    None where it is done already, or another process is at it.
    """
    with hold_lock(job.lock) as mine:
        wanted = lacking(job.place, job.file) if mine else ()
        if not wanted:
            return None
        cell = _made(job, show) if ORIGINAL in wanted else _grown(job, wanted, show)
        written = cell.write(job.file.parent)
        if not job.keep:
            _cleared(job)
        return written


def clear_away(job: Job) -> None:
    """Delete what a cell's runs left, histories included, where another process is not at it."""
    with hold_lock(job.lock) as mine:
        if mine:
            _cleared(job)


def _cleared(job: Job) -> None:
    for folder in job.leavings:
        shutil.rmtree(folder, ignore_errors=True)


def _made(job: Job, show: BeginStep) -> Cell:
    began = time.perf_counter()
    place = joined(job.place, Cell.read(job.file).place) if job.file.exists() else job.place
    federation = build_federation(federation_of(place), place.seed, job.data)
    how = _training(job)
    original = run_method(
        federation, method_for(RETRAIN, how), how, rounds=how.rounds, engine=how.engine, out=job.work / ORIGINAL,
        resume=True, checkpoint_every=PATIENCE, show=show(ORIGINAL, place.rounds), label="train",
    )  # fmt: skip

    def serve(name: str, planned: Planned) -> Run:
        return unlearn(
            original, place.forget, method=planned.method, rounds=place.rounds, stop=planned.stop, out=job.work / name,
            keep_history=False, erase_history=False, resume=True, checkpoint_every=PATIENCE, show=show(name, place.rounds),
        )  # fmt: skip

    about = dict(RunFolder(job.work / ORIGINAL).result()["engine"])
    asked = _Asked(federation, place.forget, about["device"])
    models, broken = _unlearned(job, plans(place), serve)
    models = {ORIGINAL: original, **models}
    return Cell(
        place=place,
        runs=_in_order(place, broken, models, asked),
        misr=_misr({name: models[name] for name in ATTACKED if name in models}, asked, place.seed),
        made=_made_by(job, about, began),
    )


def _grown(job: Job, wanted: Sequence[str], show: BeginStep) -> Cell:
    """Add runs to a finished cell: they need nothing of its training but the federation."""
    began = time.perf_counter()
    before, how = Cell.read(job.file), _training(job)
    place = joined(before.place, job.place)
    federation = build_federation(federation_of(place), place.seed, job.data)
    remaining, forgot = federation.without(place.forget), Request.parse(place.forget)
    about = make_engine(job.engine, federation, how.local(federation.loss)).about
    asked = _Asked(federation, place.forget, about["device"])

    def serve(name: str, planned: Planned) -> Run:
        return run_method(
            remaining, planned.method, replace(how, keep_history=False), rounds=place.rounds, stop=planned.stop,
            original=federation, forgot=forgot, engine=job.engine, out=job.work / name, resume=True,
            checkpoint_every=PATIENCE, show=show(name, place.rounds), label=name,
        )  # fmt: skip

    models, broken = _unlearned(job, {name: plans(place)[name] for name in wanted}, serve)
    added = {"runs": list(wanted), **_made_by(job, about, began)}
    return replace(
        before,
        place=place,
        runs=_in_order(place, {**before.runs, **broken}, models, asked),
        made={**before.made, "added": [*before.made.get("added", ()), added]},
    )


def _training(job: Job) -> TrainSettings:
    place = job.place
    return TrainSettings(
        rounds=place.rounds, epochs=place.epochs, batch_size=place.batch_size, lr=place.lr,
        engine=job.engine, keep_history=True,
    )  # fmt: skip


def _unlearned(
    job: Job, planned: Mapping[str, Planned], serve: Callable[[str, Planned], Run]
) -> tuple[dict[str, Run], dict[str, Track]]:
    """Serve the request with each planned method; return the runs that ended, and what is left of those that diverged."""
    models: dict[str, Run] = {}
    broken: dict[str, Track] = {}
    for name, plan in planned.items():
        if name == ON:
            go_on(job.work / RULED, job.work / ON)
        try:
            models[name] = serve(name, plan)
        except AnswerError as error:  # it diverged: that is a result too
            broken[name] = _broken(job.work / name, plan.method, str(error))
    return models, broken


def _in_order(
    place: Place, known: Mapping[str, Track], models: Mapping[str, Run], asked: _Asked
) -> dict[str, Track]:
    tracks = {**known, **{name: _track(run, asked) for name, run in models.items()}}
    return {name: tracks[name] for name in (ORIGINAL, *plans(place))}


def _made_by(job: Job, about: Mapping[str, Any], began: float) -> dict[str, Any]:
    return {
        "command": job.command, "commit": find_commit(), "engine": dict(about), "device": name_device(about["device"]),
        "versions": versions(), "finished": now(), "alone": job.alone, "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def federation_of(place: Place) -> FederationSettings:
    """Describe a cell's federation: nothing held out, as in the paper."""
    leavers = tuple(Request.parse(place.forget).clients)
    return FederationSettings(
        data=place.data, clients=place.clients, partition=place.partition, per_client=place.per_client,
        held_out=0.0, model=place.model, backdoor=Backdoor(leavers) if place.backdoor else None,
    )  # fmt: skip


def go_on(ended: Path, further: Path) -> None:
    """Let a run that its stop rule ended be gone on with, in a folder of its own, as if there had been no rule.

    The rule only watches, so the rounds up to its end are those of a run without one.
    """
    source, target = RunFolder(ended), RunFolder(further)
    if target.exists() or not source.is_finished():
        return
    config = parse_config(source.config(), str(source.config_path))
    assert config.unlearn is not None  # noqa: S101 (it was an unlearning)
    further.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source.state_path, target.state_path)
    target.rewrite_rounds([replace(record, threshold=None, stopped=None) for record in source.rounds()])
    target.create(to_toml(replace(config, unlearn=replace(config.unlearn, stop=None))))


class _Asked:
    """What the models of a cell are asked about, and where that is computed."""

    def __init__(self, federation: Federation, forget: str, device: str) -> None:
        self.device = device
        self.forgotten = list(federation.forgotten(forget).values())
        self.retained = list(federation.without(forget).clients.values())
        self.test = [federation.test]

    def logits(self, run: Run, parts: Sequence[Examples]) -> Iterator[torch.Tensor]:
        """A model's outputs on each list of examples."""
        model = run.model().to(self.device)
        return (compute_outputs(model, examples.all()[0]) for examples in parts)

    def compute_accuracy(self, run: Run, parts: Sequence[Examples]) -> float:
        """A model's accuracy over several lists of examples together."""
        labels = torch.cat([examples.targets for examples in parts])
        return compute_accuracy(torch.cat(list(self.logits(run, parts))), labels)


def _track(run: Run, asked: _Asked) -> Track:
    assert run.folder is not None  # noqa: S101 (every run of a cell has one)
    result = RunFolder(run.folder).result()
    scores = {
        "forgotten": asked.compute_accuracy(run, asked.forgotten),
        "retained": asked.compute_accuracy(run, asked.retained),
    }
    return Track(
        series=_series(run.rounds), settings=result["settings"], exact=result["exact"], stopped=result["stopped"],
        sums={name: result[name] for name in SUMS}, weights=result["weights_sha256"], scores=scores,
    )  # fmt: skip


def _broken(folder: Path, method: Method[Any], why: str) -> Track:
    """What a run that diverged has left."""
    records = RunFolder(folder).rounds()
    sums = {
        "client_epochs": sum(record.client_epochs for record in records),
        "client_rounds": sum(len(record.answered) for record in records),
    }
    return Track(
        series=_series(records), settings=settings_of(method), exact=method.exact, stopped=explain_end(records),
        sums=sums, weights="", scores={}, failed=why,
    )  # fmt: skip


def _series(records: Sequence[Round]) -> dict[str, tuple[float, ...]]:
    """The rounds as columns; a score that a round lacks ends its column."""
    found: dict[str, tuple[float, ...]] = {}
    for name in SERIES:
        scored = [record.scores.get(name) for record in records]
        values = [getattr(record, name, score) for record, score in zip(records, scored, strict=True)]
        present = [value for value in values if value is not None]
        if present or name == "moved":
            found[name] = shortened(present)
    return found


def _misr(models: Mapping[str, Run], asked: _Asked, seed: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Ask the attackers of the original about every model that has finite outputs."""
    said = {
        name: tuple(torch.cat(list(asked.logits(run, parts))) for parts in (asked.forgotten, asked.test))
        for name, run in models.items()
    }
    sound = {name: (a, b) for name, (a, b) in said.items() if a.isfinite().all() and b.isfinite().all()}
    if ORIGINAL not in sound:
        return {}
    return {
        attacker: {name: (one.misr, one.on_test) for name, one in by_model.items()}
        for attacker, by_model in compute_misr(sound, seed=seed).items()
    }
