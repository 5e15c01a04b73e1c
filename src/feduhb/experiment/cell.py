"""One cell of a grid: a federation trained once, unlearned by every method, and attacked."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from feduhb.cells import ORIGINAL, RETRAIN, SERIES, Cell, Place, Track, shortened
from feduhb.core.types import Method
from feduhb.data.backdoor import Backdoor
from feduhb.data.federation import Examples, Federation
from feduhb.data.request import Request
from feduhb.errors import AnswerError
from feduhb.evaluate.accuracy import accuracy, outputs
from feduhb.evaluate.misr import misr
from feduhb.experiment.api import unlearn
from feduhb.experiment.config import parse_config, to_toml
from feduhb.experiment.federations import build_federation
from feduhb.experiment.provenance import commit, device_called
from feduhb.experiment.runner import train_in
from feduhb.experiment.runs import Run, method_for
from feduhb.experiment.settings import FederationSettings, TrainSettings
from feduhb.records import Round, RunFolder, disk_errors, locked, why_ended
from feduhb.run.folder import now, settings_of, versions
from feduhb.run.progress import Step
from feduhb.stopping import StopRule, dynamic_stop, never

SUMS = (
    "client_epochs", "client_rounds", "client_rounds_saved", "bytes_up", "bytes_down",
    "history_bytes_read", "history_bytes_kept", "parameters",
)  # fmt: skip
PATIENCE = (
    10.0  # seconds of work that an interruption may cost: FedRecover's checkpoints are hundreds of megabytes
)
RULED, ON = "feduhb", "feduhb-on"
ATTACKED = (ORIGINAL, RETRAIN, "federaser", "fedrecover", "fedrecover-corrected", RULED, ON)

Show = Callable[
    [str, int], Callable[[Round], None]
]  # begins a run: its name and rounds; gives what shows a round


def silent(what: str, rounds: int) -> Callable[[Round], None]:  # noqa: ARG001
    """Show nothing."""
    return lambda record: None  # noqa: ARG005


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
        return self.out / "cells" / f"{self.place.name}.json"

    @property
    def work(self) -> Path:
        """Where the cell's runs live until it is done."""
        return self.out / "work" / self.place.name


class Planned(NamedTuple):
    """A run of a cell: which method, and when it stops."""

    method: Method[Any]
    stop: StopRule = never


def plans(place: Place) -> dict[str, Planned]:
    """Give the runs that follow the training, by name."""

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


def make_cell(job: Job, show: Step = silent) -> Path | None:
    """Make a cell from its start or from where an earlier try stood, write its file, and clear its runs away.

    None where it is done already, or another process is at it.
    """
    with _held(job) as mine:
        return _made(job, show) if mine and not job.file.exists() else None


@contextlib.contextmanager
def _held(job: Job) -> Generator[bool]:
    """Hold a cell for this process alone; give whether that could be. The lock goes with its process, however that ends."""
    with disk_errors(job.out):
        job.work.parent.mkdir(parents=True, exist_ok=True)
    with job.work.with_suffix(job.work.suffix + ".lock").open("wb") as file:
        yield locked(file)


def clear_away(job: Job) -> None:
    """Delete what a cell's runs left, histories included, where another process is not at it."""
    with _held(job) as mine:
        if mine:
            shutil.rmtree(job.work, ignore_errors=True)


def _made(job: Job, show: Step) -> Path:
    began = time.perf_counter()
    place = job.place
    federation = build_federation(federation_of(place), place.seed, job.data)
    original = train_in(
        federation,
        TrainSettings(
            rounds=place.rounds, epochs=place.epochs, batch_size=place.batch_size, lr=place.lr,
            engine=job.engine, keep_history=True,
        ),
        job.work / ORIGINAL,
        resume=True,
        checkpoint_every=PATIENCE,
        show=show(ORIGINAL, place.rounds),
    )  # fmt: skip
    tracks: dict[str, Track] = {}
    models: dict[str, Run] = {ORIGINAL: original}
    for name, planned in plans(place).items():
        if name == ON:
            go_on(job.work / RULED, job.work / ON)
        try:
            models[name] = unlearn(
                original, place.forget, method=planned.method, rounds=place.rounds, stop=planned.stop,
                out=job.work / name, keep_history=False, erase_history=False, resume=True,
                checkpoint_every=PATIENCE, show=show(name, place.rounds),
            )  # fmt: skip
        except AnswerError as error:  # it diverged: that is a result too
            tracks[name] = _broken(job.work / name, planned.method, str(error))
    about = original_engine(job.work / ORIGINAL)
    where = "cuda" if about["device"] == "cuda" else "cpu"
    asked = _Asked(federation, place.forget, where)
    tracks |= {name: _track(run, asked) for name, run in models.items()}
    ordered = {name: tracks[name] for name in (ORIGINAL, *plans(place))}
    cell = Cell(
        place=place,
        runs=ordered,
        misr=_misr({name: models[name] for name in ATTACKED if name in models}, asked, place.seed),
        made={
            "command": job.command, "commit": commit(), "engine": about, "device": device_called(where),
            "versions": versions(), "finished": now(), "alone": job.alone, "seconds": round(time.perf_counter() - began, 1),
        },
    )  # fmt: skip
    written = cell.write(job.out / "cells")
    if not job.keep:
        shutil.rmtree(job.work, ignore_errors=True)
    return written


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
    if target.exists() or not source.finished():
        return
    config = parse_config(source.config(), str(source.config_path))
    assert config.unlearn is not None  # noqa: S101 (it was an unlearning)
    further.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source.state_path, target.state_path)
    target.keep([replace(record, threshold=None, stopped=None) for record in source.rounds()])
    target.create(to_toml(replace(config, unlearn=replace(config.unlearn, stop=None))))


def original_engine(folder: Path) -> dict[str, Any]:
    """What trained the clients, as a finished run tells it."""
    return dict(RunFolder(folder).result()["engine"])


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
        return (outputs(model, examples.all()[0]) for examples in parts)

    def accuracy(self, run: Run, parts: Sequence[Examples]) -> float:
        """A model's accuracy over several lists of examples together."""
        labels = torch.cat([examples.targets for examples in parts])
        return accuracy(torch.cat(list(self.logits(run, parts))), labels)


def _track(run: Run, asked: _Asked) -> Track:
    assert run.folder is not None  # noqa: S101 (every run of a cell has one)
    result = RunFolder(run.folder).result()
    scores = {
        "forgotten": asked.accuracy(run, asked.forgotten),
        "retained": asked.accuracy(run, asked.retained),
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
        series=_series(records), settings=settings_of(method), exact=method.exact, stopped=why_ended(records),
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
        for attacker, by_model in misr(sound, seed=seed).items()
    }
