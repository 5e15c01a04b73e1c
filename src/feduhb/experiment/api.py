"""What a user types in Python: train, unlearn, compare."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from feduhb.core.aggregate import RULES, rule_named
from feduhb.core.checks import whole
from feduhb.core.flat import flatten
from feduhb.core.types import Method, Updates
from feduhb.data.federation import Federation
from feduhb.data.request import Forget, Request, as_request
from feduhb.errors import ConfigError, HistoryError, RequestError
from feduhb.experiment import succession
from feduhb.experiment.erasing import Erasure, erasure
from feduhb.experiment.plans import carried_out, nothing, spelled_engine
from feduhb.experiment.runs import EngineMaker, Run, method_for, open_run
from feduhb.experiment.settings import (
    KeepHistory,
    TrainSettings,
    UnlearnSettings,
)
from feduhb.history import Earlier
from feduhb.methods import METHODS, FedUHB, Retrain, replaying
from feduhb.methods.replaying import bound, replays
from feduhb.records import RunFolder
from feduhb.run.folder import identity, same_replay, settings_of
from feduhb.run.progress import Show
from feduhb.stopping import DynamicStop, StopRule, dynamic_stop, never

PARTS = ("name", "exact", "needs", "rounds", "init", "ask", "tell")  # of a method
FEW = 1000  # answers that a rule is tried on; with more it has enough


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
        rounds: how many.
        epochs: local passes of a client a round; 0 answers with full-batch gradients, stepped by 1.0.
        batch_size, lr, l2: of the clients' SGD.
        aggregate: "weighted_mean", "median", "trimmed_mean:0.1", "krum" or "geometric_median".
        clients_per_round: how many are sampled each round; None asks everyone.
        engine: "auto", "pool", "stacked", "stacked:tf32", "stacked:bf16", "loop", or a function of (federation, local) that makes one.
        block: clients that the stacked engine trains at once, for its bits depend on that; None fits it to free memory.
        out: a folder for records and checkpoints; ``resume`` goes on with what is there.
        keep_history: write every model and every update into that folder, for FedEraser and FedRecover:
            rounds x clients x parameters numbers, half the bytes with "float16".
        checkpoint_every: seconds at least between two checkpoints in that folder; 0 makes one every round.
        show: "auto" draws a progress bar on a terminal; or a function called with every `Round`; or None.
    """
    settings = TrainSettings(
        rounds=rounds, epochs=epochs, batch_size=batch_size, lr=lr, l2=l2, aggregate=aggregate,
        clients_per_round=clients_per_round, engine=spelled_engine(engine), keep_history=keep_history,
    )  # fmt: skip
    method = Retrain(epochs=epochs, aggregate=rule_named(aggregate))
    blank = Run(
        federation=federation, original=federation, settings=settings, method=method, state=None, rounds=(),
        scheduled=rounds, folder=Path(out) if out else None, engine=engine, block=block,
    )  # fmt: skip
    return carried_out(blank, "train", resume=resume, show=show, checkpoint_every=checkpoint_every)


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
        run: the run whose federation shall forget; nothing of its weights is used by exact methods.
        forget: client ids, {id: rows}, "class:3", or a `Request`.
        method: a name, which takes epochs and aggregation from the run, or an instance with its own.
        rounds: at most so many, unless the method has a number of its own.
        stop: "auto" is the dynamic rule with the method's momentum for FedUHB and never for the others.
        engine: None takes the run's.
        block: as for `train`; None fits it to free memory, whatever the run's was.
        out: a folder for the new run; ``resume`` goes on with what is there.
        keep_history: None keeps one where the run kept one, there is a folder, and the method is none that replays: it
            takes the old one's place.
        erase_history: delete from the leavers' first round on what this run and those that it came from kept of a history, as
            an erasure must: after a method that replays it, at once otherwise. False is for comparisons.
        checkpoint_every: seconds at least between two checkpoints in the folder; 0 makes one every round.
    """
    request = as_request(forget)
    if erase_history and (back := succession.brings_back(run, request)):
        sys.stderr.write(f"feduhb: {back}\n")
    remaining = run.federation.without(request)
    folder = Path(out) if out else None
    total = request if run.forgot is None else run.forgot.merged(request)
    erasing = erasure(run, request) if erase_history else Erasure()
    if resume and (ended := _finished_replay(folder, run, method, total)):
        erasing.close()
        return ended
    chosen = _ready(method, run, request, remaining)
    rule = _stop_for(chosen) if stop == "auto" else stop
    maker = run.engine if engine is None else engine
    kept = keep_history
    if kept is None:
        kept = run.settings.keep_history if folder is not None and not replays(chosen) else False
    if kept and replays(chosen):
        raise ConfigError(
            f"what {chosen.name} asks of clients is no history to replay; keep one with feduhb or retrain"
        )
    most = chosen.rounds or rounds
    whole("rounds", most)
    blank = Run(
        federation=remaining, original=run.original, method=chosen, state=None, rounds=(), forgot=total,
        earlier=((Earlier.at(run.folder),) if run.folder else ()) + run.earlier,
        settings=replace(run.settings, engine=spelled_engine(maker), keep_history=kept), folder=folder, engine=maker,
        block=block, scheduled=most, stop=rule,
    )  # fmt: skip
    described = UnlearnSettings(
        forget=str(total), method=chosen.name, rounds=most, settings=settings_of(chosen),
        stop=rule if isinstance(rule, DynamicStop) else None,
    )  # fmt: skip
    at_once = nothing if replays(chosen) else erasing.delete

    def begun() -> None:
        if erase_history and folder is not None:
            succession.note(run, folder)
        at_once()

    done = carried_out(
        blank, chosen.name, described, begun, resume=resume, show=show, checkpoint_every=checkpoint_every
    )
    erasing.close()
    return done


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
        methods: None takes all, those that replay a history only where the run kept one.
        out: gets a folder for each; a second feduhb is feduhb-2.
    """
    chosen = comparable(run, forget) if methods is None else list(methods)
    request = as_request(forget)
    for method in chosen:  # refuse before the first one trains
        _ready(method, run, request, run.federation.without(request))
    found: dict[str, Run] = {}
    for method in chosen:
        plain = method if isinstance(method, str) else method.name
        numbered = (f"{plain}-{i}" for i in itertools.count(2))
        name = next(n for n in itertools.chain([plain], numbered) if n not in found)
        found[name] = unlearn(
            run, forget, method=method, rounds=rounds, out=Path(out) / name if out else None,
            keep_history=False, erase_history=False, resume=resume, show=show,
        )  # fmt: skip
    return found


def comparable(run: Run, forget: Forget) -> list[str]:
    """Name the methods that can serve a request: those that replay only where all of a run's history is there for whole clients."""
    request, history = as_request(forget), run.history
    whole = history is not None and len(history.rounds) == len(run.rounds)
    plain = run.settings.epochs > 0 and run.settings.aggregate == "weighted_mean"
    served = whole and plain and not request.rows and not request.classes
    return [name for name in METHODS if served or not replaying(name)]


def _ready(method: str | Method[Any], run: Run, request: Request, remaining: Federation) -> Method[Any]:
    """Give the method, with the run's history where it replays one."""
    chosen = method_for(method, run.settings) if isinstance(method, str) else method
    if isinstance(chosen, type):
        raise ConfigError(f"{chosen.__name__} is a class; give an instance of it: {chosen.__name__}()")
    if lacks := [part for part in PARTS if not hasattr(chosen, part)]:
        raise ConfigError(f"{chosen!r} is no method: it has no {lacks[0]}; docs/design.md shows what one has")
    if not replays(chosen):
        everyone = len(remaining.clients)
        _check_rule(chosen, min(run.settings.clients_per_round or everyone, everyone))
        return chosen
    if run.settings.aggregate != "weighted_mean":
        raise ConfigError(
            f"{chosen.name} replays weighted means, but this run took the {run.settings.aggregate}; use feduhb or retrain"
        )
    if request.rows or request.classes:
        raise RequestError(
            f"{chosen.name} replays whole clients' updates and cannot take rows or a class out of them; use feduhb or retrain"
        )
    history = run.history
    if history is None or run.folder is None:
        raise HistoryError(
            f"{chosen.name} replays stored updates, but this run kept none, or an erasure took them; "
            "train with --keep-history, or use feduhb, which needs none"
        )
    history.check(identity(RunFolder(run.folder).config()), run.params.numel(), len(run.rounds))
    if not torch.equal(history.params(0), flatten(remaining.fresh_model())):
        raise HistoryError(
            f"the history of {run.folder} began at another model than the seed draws; train again with --keep-history"
        )
    return bound(chosen, history, list(remaining.clients))


def _check_rule(method: Method[Any], answers: int) -> None:
    """Refuse one of our rules that so few answers cannot satisfy: before a history is erased, not in the first round."""
    rule = getattr(method, "aggregate", None)
    ours = any(getattr(rule, "func", rule) is known for known, _ in RULES.values())
    if rule is not None and ours and answers <= FEW:
        names = tuple(str(number) for number in range(answers))
        rule([Updates(names, torch.zeros(answers, 1), torch.ones(answers))])


def _finished_replay(folder: Path | None, run: Run, method: str | Method[Any], total: Request) -> Run | None:
    """Find a replaying run that came to its end, and so took its history with it."""
    name = method if isinstance(method, str) else method.name
    if folder is None or name not in METHODS or not replaying(name) or not RunFolder(folder).finished():
        return None
    wanted = method_for(method, run.settings) if isinstance(method, str) else method
    same_replay(RunFolder(folder), wanted, str(total))
    return open_run(folder, run.original)


def _stop_for(method: Method[Any]) -> StopRule:
    return dynamic_stop(momentum=method.momentum) if isinstance(method, FedUHB) else never
