"""What a user types in Python: train, unlearn, compare. Each is a plan that `feduhb.runs.execute` executes."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from feduhb.core.aggregate import is_built_in_rule
from feduhb.core.checks import check_whole
from feduhb.core.flat import flatten
from feduhb.core.seeds import sample_clients
from feduhb.core.types import ClientId, Engine, Method, Updates
from feduhb.data.federation import Federation
from feduhb.data.load import FederationSettings, build_federation
from feduhb.data.request import Forget, Request, as_request
from feduhb.engines import EngineMaker, block_of, describe_engine, make_engine, name_engine
from feduhb.engines.scoring import make_evaluator
from feduhb.errors import ConfigError, HistoryError, RequestError
from feduhb.methods import METHODS, check_method, rule_of, settings_of
from feduhb.methods.replay import bind_history
from feduhb.runs.config import (  # fmt: skip
    Config,
    KeepHistory,
    TrainSettings,
    UnlearnSettings,
    identify_run,
    to_toml,
    upgrade,
)
from feduhb.runs.execute import execute, finish_replay
from feduhb.runs.folder import HISTORY, RunFolder
from feduhb.runs.history import DiskHistory
from feduhb.runs.lineage import Ancestor, Erasure, explain_revival, find_histories
from feduhb.runs.loop import Participants, Score
from feduhb.runs.plan import Advice, Plan, Reporter, Show
from feduhb.runs.run import Run, method_for, open_run
from feduhb.stopping import DynamicStop, Never, StopRule, never

FEW = 1000  # answers that an aggregation rule is tried on; with more it has enough


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
    block: int | None = None,
    out: str | Path | None = None,
    keep_history: KeepHistory = False,
    resume: bool = False,
    checkpoint_every: float = 0.0,
    show: Show = "auto",
) -> Run:
    """Train a federation by FedAvg from a fresh model.

    Args:
        rounds: the number of rounds.
        epochs: local passes of a client a round; 0 answers with full-batch gradients, stepped by 1.0.
        batch_size, lr, l2: of the clients' SGD.
        aggregate: "weighted_mean", "median", "trimmed_mean:0.1", "krum" or "geometric_median".
        clients_per_round: how many clients are sampled each round; None asks everyone.
        engine: "auto", "pool", "stacked", "stacked:tf32", "stacked:bf16", "loop", or a function of (federation, local) that makes one.
        block: clients that the stacked engine trains at once, because its bits depend on that; None fits it to free memory.
        out: a folder for records and checkpoints; ``resume`` continues the run that is there.
        keep_history: write every model and every update into that folder, for FedEraser and FedRecover:
            rounds x clients x parameters numbers, half the bytes with "float16".
        checkpoint_every: seconds at least between two checkpoints in that folder; 0 makes one every round.
        show: "auto" draws a progress bar on a terminal; or a function called with every `Round`; or None.
    """
    settings = TrainSettings(
        rounds=rounds, epochs=epochs, batch_size=batch_size, lr=lr, l2=l2, aggregate=aggregate,
        clients_per_round=clients_per_round, engine=name_engine(engine), keep_history=keep_history,
    )  # fmt: skip
    return run_method(
        federation, method_for("retrain", settings), settings, rounds=rounds, engine=engine, block=block, out=out,
        resume=resume, checkpoint_every=checkpoint_every, show=show, label="train",
    )  # fmt: skip


def train_from(
    config: Config, out: Path, *, data: Path | None = None, resume: bool = False, show: Show = "auto"
) -> Run:
    """Train as a config file says."""
    if config.unlearn is not None:
        raise ConfigError(
            "this config has an [unlearn] table, so it describes an unlearning; train without it, then feduhb unlearn"
        )
    federation = build_federation(config.federation or FederationSettings(), config.seed, data)
    return run_method(
        federation, method_for("retrain", config.train), config.train, rounds=config.train.rounds,
        engine=config.train.engine, out=out, resume=resume, show=show, label="train",
    )  # fmt: skip


def unlearn(
    run: Run,
    forget: Forget,
    *,
    method: str | Method[Any] = "feduhb",
    rounds: int = 40,
    stop: Literal["auto"] | StopRule = "auto",
    engine: str | EngineMaker | None = None,
    block: int | None = None,
    out: str | Path | None = None,
    keep_history: KeepHistory | None = None,
    erase_history: bool = True,
    resume: bool = False,
    checkpoint_every: float = 0.0,
    show: Show = "auto",
) -> Run:
    """Forget clients, rows of clients or a class: start fresh and retrain on what remains.

    Args:
        run: the run whose federation shall forget; exact methods use nothing of its weights.
        forget: client ids, {id: rows}, "class:3", or a `Request`.
        method: a name, which takes epochs and aggregation from the run, or an instance with its own.
        rounds: the number of rounds at most, unless the method has its own.
        stop: "auto" is the method's own rule: the dynamic one for FedUHB, never for the others.
        engine: None takes the run's.
        block: as for `train`; None fits it to free memory, whatever the run's was.
        out: a folder for the new run; ``resume`` continues the run that is there.
        keep_history: None keeps one if the run kept one, there is a folder, and the method does not replay one: the new
            history takes the old one's place.
        erase_history: delete from the leavers' first round on the histories of this run and of those it came from, as
            an erasure must: after a method that replays them, at once otherwise. False is for comparisons.
        checkpoint_every: seconds at least between two checkpoints in the folder; 0 makes one every round.
        show: as for `train`.
    """
    request = as_request(forget)
    if erase_history and (revival := explain_revival(run.folder, run.forgot, request)):
        _warn(revival)
    remaining = run.federation.without(request)
    total = request if run.forgot is None else run.forgot.merge(request)
    erasure = _plan_erasure(run, request, total) if erase_history else Erasure()
    chosen = method_for(method, run.settings) if isinstance(method, str) else check_method(method)
    if resume and out and chosen.needs_history and RunFolder(Path(out)).is_replayed():
        finish_replay(RunFolder(Path(out)), chosen, str(total), erasure, REPORTER, Advice())
        return open_run(out, run.original, method=chosen)
    chosen = _prepare_method(chosen, run, request, remaining)
    kept = keep_history
    if kept is None:
        kept = run.settings.keep_history if out is not None and not chosen.needs_history else False
    maker = run.engine if engine is None else engine
    before = [run.folder, *(one.path for one in run.earlier if one.is_there)]
    return run_method(
        remaining, chosen, replace(run.settings, engine=name_engine(maker), keep_history=kept),
        rounds=chosen.rounds or rounds, stop=chosen.default_stop() if stop == "auto" else stop,
        original=run.original, forgot=total, engine=maker, block=block, out=out, resume=resume,
        checkpoint_every=checkpoint_every, show=show, label=chosen.name,
        ancestors=((Ancestor.at(run.folder),) if run.folder else ()) + run.earlier, erasure=erasure,
        supersedes=tuple(path for path in before if path is not None) if erase_history else (),
    )  # fmt: skip


def compare(
    run: Run,
    forget: Forget,
    methods: Iterable[str | Method[Any]] | None = None,
    *,
    rounds: int = 40,
    out: str | Path | None = None,
    resume: bool = False,
    show: Show = "auto",
) -> dict[str, Run]:
    """Serve one request with several methods, and leave the run's history as it is: a comparison erases nothing.

    Args:
        methods: None takes all that are built in; those that replay a history only if the run kept one.
        out: gets a folder for each; a second feduhb is feduhb-2.
    """
    request = as_request(forget)
    chosen = list_comparable(run, request) if methods is None else list(methods)
    remaining = run.federation.without(request)
    for method in chosen:  # refuse before the first one trains
        made = method_for(method, run.settings) if isinstance(method, str) else check_method(method)
        _prepare_method(made, run, request, remaining)
    found: dict[str, Run] = {}
    for method in chosen:
        plain = method if isinstance(method, str) else method.name
        numbered = (f"{plain}-{i}" for i in itertools.count(2))
        name = next(n for n in itertools.chain([plain], numbered) if n not in found)
        found[name] = unlearn(
            run, request, method=method, rounds=rounds, out=Path(out) / name if out else None,
            keep_history=False, erase_history=False, resume=resume, show=show,
        )  # fmt: skip
    return found


def list_comparable(run: Run, forget: Forget) -> list[str]:
    """Return the names of the built-in methods that can serve a request.

    Those that replay a history can, if all of a run's history is there and whole clients are to be forgotten.
    """
    request, history = as_request(forget), run.history
    is_whole = history is not None and len(history.rounds) == len(run.rounds)
    is_plain = run.settings.epochs > 0 and run.settings.aggregate == "weighted_mean"
    replayable = is_whole and is_plain and not request.rows and not request.classes
    return [name for name, kind in METHODS.items() if replayable or not kind.needs_history]


def run_method(
    federation: Federation,
    method: Method[Any],
    settings: TrainSettings,
    *,
    rounds: int,
    stop: StopRule = never,
    original: Federation | None = None,
    forgot: Request | None = None,
    engine: str | EngineMaker = "auto",
    block: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: float = 0.0,
    scored: bool = True,
    show: Show = None,
    label: str = "",
    ancestors: tuple[Ancestor, ...] = (),
    supersedes: tuple[Path, ...] = (),
    erasure: Erasure | None = None,
) -> Run:
    """Run a method from a fresh model on a federation: plan it, execute it, and return the run.

    `train`, `unlearn` and the runs that an audit makes all come here.

    Args:
        federation: those who take part, and nobody else.
        method: with its history bound, if it needs one.
        original: the federation before anybody was forgotten; None if nobody was.
        forgot: everything forgotten, earlier requests included; None makes the run a training in its records.
        scored: False saves the time of scoring the model of every round.
    """
    check_method(method)  # also in another process, which has not seen it yet
    check_whole("rounds", rounds)
    before, folder = original or federation, RunFolder(Path(out)) if out else None
    if folder is not None and folder.exists():  # bits depend on the block that a run was begun with
        block = upgrade(folder.config()).get("block")
    made = make_engine(engine, federation, settings.local(federation.loss), block=block)
    clients, per_round = _choose_clients(federation, method, settings, refuse_too_few=forgot is None)
    config = Config(
        seed=federation.seed,
        federation=before.about if isinstance(before.about, FederationSettings) else None,
        train=settings,
        unlearn=None if forgot is None else _describe(method, rounds, stop, forgot),
        made_by=describe_engine(made),
        block=block_of(made),
        remote=federation.is_remote or None,
        clients=federation.fingerprints() if folder else {},
    )
    why = made.about.get("why")  # "auto" picked it
    plan = Plan(
        label=label,
        method=method,
        start=flatten(federation.fresh_model()),
        engine=made,
        clients=clients,
        rounds=rounds,
        stop=stop,
        score=_make_score(federation, made) if scored else None,
        folder=folder,
        config=to_toml(config),
        resume=resume,
        history_to_write=_make_history(out, settings.keep_history),
        checkpoint_every=checkpoint_every,
        everyone=tuple(federation.clients),
        per_round=per_round,
        ancestors=ancestors,
        supersedes=supersedes,
        erasure=erasure or Erasure(),
        reporter=REPORTER,
        show=show,
        notice=f"engine: {made.about['name']} ({why})\n" if show == "lines" and why else "",
    )
    done = execute(plan)
    return Run(
        federation=federation, original=before, settings=settings, method=method, state=done.state, rounds=done.rounds,
        forgot=forgot, earlier=ancestors, folder=None if folder is None else folder.path, engine=engine,
        block=block_of(made), scheduled=rounds, stop=stop,
    )  # fmt: skip


def _describe(method: Method[Any], rounds: int, stop: StopRule, forgot: Request) -> UnlearnSettings:
    """Return the [unlearn] table of a run's config.toml."""
    return UnlearnSettings(
        forget=str(forgot),
        method=method.name,
        rounds=rounds,
        settings=settings_of(method),
        stop=stop if isinstance(stop, DynamicStop) else None,
        own_stop=None if isinstance(stop, DynamicStop | Never) else True,
    )


def _make_score(federation: Federation, engine: Engine) -> Score:
    """Return the function that scores the model of every round, on the GPU if the clients train there."""
    evaluate = make_evaluator(federation, "cuda" if engine.about["device"] == "cuda" else "cpu")
    return lambda _, params: evaluate(params)


def _make_history(out: str | Path | None, keep: KeepHistory) -> DiskHistory | None:
    """Return the history to write into a run's folder; None if none is kept."""
    return DiskHistory(Path(out or "") / HISTORY, half=keep == "float16") if keep else None


def _choose_clients(
    federation: Federation, method: Method[Any], settings: TrainSettings, *, refuse_too_few: bool
) -> tuple[Participants, int | None]:
    """Return the clients of a run, or the function that samples a round's, and how many it samples.

    An unlearning that leaves fewer clients than a round samples asks everyone; a training refuses.
    """
    clients, count = list(federation.clients), settings.clients_per_round
    if count is None or not method.samples_clients or (count > len(clients) and not refuse_too_few):
        return clients, None
    sample_clients(federation.seed, 0, clients, count)  # refuses a count that cannot be
    return lambda round: sample_clients(federation.seed, round, clients, count), count


def _prepare_method(method: Method[Any], run: Run, request: Request, remaining: Federation) -> Method[Any]:
    """Return the method, with the run's history bound if it replays one; raise an error if it cannot serve the request."""
    if not method.needs_history:
        everyone = len(remaining.clients)
        _check_rule(method, min(run.settings.clients_per_round or everyone, everyone))
        return method
    if run.settings.aggregate != "weighted_mean":
        raise ConfigError(
            f"{method.name} replays weighted means, but this run took the {run.settings.aggregate}; use feduhb or retrain"
        )
    if request.rows or request.classes:
        raise RequestError(
            f"{method.name} replays whole clients' updates and cannot take rows or a class out of them; use feduhb or retrain"
        )
    history = run.history
    if history is None or run.folder is None:
        raise HistoryError(
            f"{method.name} replays stored updates, but this run kept none, or an erasure took them; "
            "train with --keep-history, or use feduhb, which needs none"
        )
    history.check(identify_run(RunFolder(run.folder).config()), run.params.numel(), len(run.rounds))
    if not torch.equal(history.params(0), flatten(remaining.fresh_model())):
        raise HistoryError(
            f"the history of {run.folder} began at another model than the seed draws; train again with --keep-history"
        )
    return bind_history(method, history, list(remaining.clients))


def _check_rule(method: Method[Any], answers: int) -> None:
    """Try one of our aggregation rules on so many answers: it shall refuse before a history is erased."""
    rule = rule_of(method)
    if rule is not None and is_built_in_rule(rule) and answers <= FEW:
        names = tuple(str(number) for number in range(answers))
        rule([Updates(names, torch.zeros(answers, 1), torch.ones(answers))])


def _plan_erasure(run: Run, request: Request, total: Request) -> Erasure:
    """Look up everything that a request must reach, before anything is touched."""

    def find_holders(classes: Request, history: DiskHistory) -> Collection[ClientId]:
        try:
            return run.original.forgotten(classes)
        except RequestError:  # their examples are deleted: anybody may have held the class
            return history.all_clients()

    return find_histories(
        run.folder, run.earlier, tuple(run.federation.forgotten(request)), total, find_holders
    )


def _warn(text: str) -> None:
    sys.stderr.write(f"feduhb: {text}\n")


REPORTER = Reporter(warn=_warn)
