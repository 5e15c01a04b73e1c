"""What a user types in Python: train, unlearn, compare, open_run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from feduhb.core.aggregate import rule_named
from feduhb.core.flat import flatten, with_params
from feduhb.core.types import Engine, Local, Method
from feduhb.data.federation import Federation
from feduhb.data.request import Forget, Request, as_request
from feduhb.engines import engine_named
from feduhb.errors import RunFolderError
from feduhb.experiment.conduct import Task, carry_out, settings_of
from feduhb.experiment.config import parse_config, to_toml
from feduhb.experiment.federations import build_federation
from feduhb.experiment.settings import (
    Config,
    FederationSettings,
    TrainSettings,
    UnlearnSettings,
    check_rounds,
)
from feduhb.methods import METHODS, FedUHB, Retrain, method_named
from feduhb.records import Round, RunFolder, why_ended
from feduhb.run.checkpoint import load_state
from feduhb.run.progress import Show, watched
from feduhb.stopping import DynamicStop, StopRule, dynamic_stop, never

EngineMaker = Callable[[Federation, Local], Engine]


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: what took part, how, and what came out."""

    federation: Federation  # those who took part
    original: Federation  # before anybody was forgotten
    settings: TrainSettings
    method: Method[Any]
    state: Any
    rounds: tuple[Round, ...]
    forgot: Request | None = None
    folder: Path | None = None
    engine: str | EngineMaker = "auto"

    @property
    def params(self) -> Tensor:
        """The weights, flat [P]."""
        return self.state.params

    @property
    def stopped(self) -> str:
        """Why it ended, in words."""
        return why_ended(self.rounds)

    def model(self) -> nn.Module:
        """Give the module with these weights."""
        return with_params(self.federation.fresh_model(), self.params.cpu())

    def __repr__(self) -> str:
        accuracy = self.rounds[-1].scores.get("test_accuracy") if self.rounds else None
        scored = "" if accuracy is None else f", test accuracy {accuracy:.1%}"
        without = f" without {self.forgot}" if self.forgot else ""
        return f"Run({self.method.name}{without}, {len(self.rounds)} rounds{scored}: {self.stopped})"


def train(
    federation: Federation,
    rounds: int = 40,
    *,
    epochs: int = 5,
    batch_size: int = 64,
    lr: float = 0.005,
    l2: float = 0.0,
    aggregate: str = "weighted_mean",
    clients_per_round: int | None = None,
    engine: str | EngineMaker = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    show: Show = "auto",
) -> Run:
    """Train a federation by FedAvg from a fresh model.

    Args:
        rounds: how many.
        epochs: local passes of a client a round; 0 answers with full-batch gradients, stepped by 1.0.
        batch_size, lr, l2: of the clients' SGD.
        aggregate: "weighted_mean", "median", "trimmed_mean:0.1", "krum" or "geometric_median".
        clients_per_round: how many are sampled each round; None asks everyone.
        engine: "auto", "pool", "loop", or a function of (federation, local) that makes one.
        out: a folder for records and checkpoints; ``resume`` goes on with what is there.
        show: "auto" draws a progress bar on a terminal; or a function called with every `Round`; or None.
    """
    settings = TrainSettings(
        rounds=rounds, epochs=epochs, batch_size=batch_size, lr=lr, l2=l2, aggregate=aggregate,
        clients_per_round=clients_per_round, engine=engine if isinstance(engine, str) else "own",
    )  # fmt: skip
    method = Retrain(epochs=epochs, aggregate=rule_named(aggregate))
    task = _task(federation, settings, method, rounds, never, engine, out, _config(federation, settings))
    state, records = _carried_out(task, "train", resume=resume, show=show)
    return Run(
        federation,
        federation,
        settings,
        method,
        state,
        tuple(records),
        None,
        Path(out) if out else None,
        engine,
    )


def unlearn(
    run: Run,
    forget: Forget,
    *,
    method: str | Method[Any] = "feduhb",
    rounds: int = 40,
    stop: Literal["auto"] | StopRule = "auto",
    engine: str | EngineMaker | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    show: Show = "auto",
) -> Run:
    """Forget clients, rows of clients or a class: start fresh and retrain on what remains.

    Args:
        run: the run whose federation shall forget; nothing of its weights is used by exact methods.
        forget: client ids, {id: rows}, "class:3", or a `Request`.
        method: a name, which takes epochs and aggregation from the run, or an instance with its own.
        rounds: at most so many, unless the method has a number of its own.
        stop: "auto" is the dynamic rule with the method's momentum for FedUHB and never for the others.
        engine: None takes the run's.
    """
    request = as_request(forget)
    remaining = run.federation.without(request)
    chosen = method_for(method, run.settings) if isinstance(method, str) else method
    rule = _stop_for(chosen) if stop == "auto" else stop
    most = chosen.rounds or rounds
    check_rounds(most)
    total = request if run.forgot is None else run.forgot.merged(request)
    described = UnlearnSettings(
        forget=str(total), method=chosen.name, rounds=most, settings=settings_of(chosen),
        stop=rule if isinstance(rule, DynamicStop) else None,
    )  # fmt: skip
    maker = run.engine if engine is None else engine
    config = _config(run.original, run.settings, described)
    task = _task(remaining, _sampling(run.settings, remaining), chosen, most, rule, maker, out, config)
    state, records = _carried_out(task, chosen.name, resume=resume, show=show)
    return Run(
        remaining,
        run.original,
        run.settings,
        chosen,
        state,
        tuple(records),
        total,
        Path(out) if out else None,
        maker,
    )


def compare(
    run: Run,
    forget: Forget,
    methods: Iterable[str | Method[Any]] = tuple(METHODS),
    *,
    rounds: int = 40,
    out: str | Path | None = None,
    resume: bool = False,
    show: Show = "auto",
) -> dict[str, Run]:
    """Serve one request with several methods; ``out`` gets a folder for each. A second feduhb is feduhb-2."""
    found: dict[str, Run] = {}
    for method in methods:
        plain = method if isinstance(method, str) else method.name
        numbered = (f"{plain}-{i}" for i in itertools.count(2))
        name = next(n for n in itertools.chain([plain], numbered) if n not in found)
        folder = Path(out) / name if out else None
        found[name] = unlearn(run, forget, method=method, rounds=rounds, out=folder, resume=resume, show=show)
    return found


def open_run(
    folder: str | Path, federation: Federation | None = None, *, data: str | Path | None = None
) -> Run:
    """Open a finished run folder. Data that a config cannot name is brought along as ``federation``, nobody forgotten yet."""
    files = RunFolder(Path(folder))
    config = parse_config(files.config(), str(files.config_path))
    files.result()
    original = federation or _described(files, config, data)
    remaining = original.without(config.unlearn.forget) if config.unlearn else original
    method = _method_of(config)
    fresh = method.init(flatten(remaining.fresh_model()))
    state, done = load_state(files.state_path, fresh)
    forgot = Request.parse(config.unlearn.forget) if config.unlearn else None
    return Run(
        remaining,
        original,
        config.train,
        method,
        state,
        tuple(files.rounds()[:done]),
        forgot,
        files.path,
        config.train.engine,
    )


def method_for(name: str, settings: TrainSettings, **changes: Any) -> Method[Any]:
    """Make a method by name with the epochs and the aggregation of a run."""
    return method_named(name, epochs=settings.epochs, aggregate=rule_named(settings.aggregate), **changes)


def _method_of(config: Config) -> Method[Any]:
    if config.unlearn is None:
        return method_for("retrain", config.train)
    settings: dict[str, Any] = dict(config.unlearn.settings)
    return method_named(
        config.unlearn.method,
        **{**settings, "aggregate": rule_named(str(settings.get("aggregate", "weighted_mean")))},
    )


def _stop_for(method: Method[Any]) -> StopRule:
    return dynamic_stop(momentum=method.momentum) if isinstance(method, FedUHB) else never


def _sampling(settings: TrainSettings, remaining: Federation) -> TrainSettings:
    """Ask everyone where fewer remain than a round would sample."""
    if settings.clients_per_round is None or settings.clients_per_round <= len(remaining.clients):
        return settings
    return replace(settings, clients_per_round=None)


def _described(files: RunFolder, config: Config, data: str | Path | None) -> Federation:
    if config.federation is None:
        raise RunFolderError(
            f"the clients' data of {files.path} came from Python code; open it there: feduhb.open_run({str(files.path)!r}, federation)"
        )
    return build_federation(config.federation, config.seed, Path(data) if data else None)


def _config(federation: Federation, settings: TrainSettings, unlearn: UnlearnSettings | None = None) -> str:
    described = federation.about if isinstance(federation.about, FederationSettings) else None
    return to_toml(Config(seed=federation.seed, federation=described, train=settings, unlearn=unlearn))


def _task(
    federation: Federation,
    settings: TrainSettings,
    method: Method[Any],
    rounds: int,
    stop: StopRule,
    engine: str | EngineMaker,
    out: str | Path | None,
    config: str,
) -> Task:
    local = Local(batch_size=settings.batch_size, lr=settings.lr, loss=federation.loss, l2=settings.l2)
    made = engine_named(engine, federation, local) if isinstance(engine, str) else engine(federation, local)
    folder = RunFolder(Path(out)) if out else None
    return Task(method, federation, made, rounds, stop, settings.clients_per_round, folder, config)


def _carried_out(task: Task, label: str, *, resume: bool, show: Show) -> tuple[Any, Sequence[Round]]:
    with watched(show, label, task.rounds) as tell:
        return carry_out(task, resume=resume, show=tell)


__all__ = ["Run", "compare", "open_run", "train", "unlearn"]
