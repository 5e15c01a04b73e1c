"""The public functions train, unlearn and compare. Each describes what to run; `feduhb.runs.prepare` plans and executes it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from feduhb.core.own_code import find_code, is_code
from feduhb.core.types import RECORDED, BlockSize, ClientId, Method
from feduhb.data.download import print_notice
from feduhb.data.federation import Federation
from feduhb.data.load import FederationSettings, build_federation
from feduhb.data.own import make_federation
from feduhb.data.request import Forget, Request, as_request
from feduhb.engines import EngineMaker, name_engine
from feduhb.errors import ConfigError, RequestError
from feduhb.methods import COMPARED, METHODS
from feduhb.methods.binding import select_once, uses_old_run
from feduhb.runs.config import Config, KeepHistory, TrainSettings
from feduhb.runs.execute import finish_replay
from feduhb.runs.folder import ROUNDS, RunFolder
from feduhb.runs.held_out import Keep, Recorded
from feduhb.runs.lineage import (
    SHARED_SEED,
    Ancestor,
    Erasure,
    Store,
    check_revival,
    explain_shared_seed,
    find_histories,
)
from feduhb.runs.plan import Advice, Show
from feduhb.runs.prepare import REPORTER, check_first_work, explain_refusals, prepare_method, run_method
from feduhb.runs.rollback import (
    REFUSED,
    SHARED_NOTICE,
    Restart,
    explain_restart,
    find_restart,
    resume_restart,
)
from feduhb.runs.run import Chosen, Run, adapt_method, choose_method, open_run
from feduhb.runs.start import GIVEN_NOTICE
from feduhb.stopping import Never, RecordedRule, StopRule, check_training_stop, never

ALL = "all"  # among the methods of a comparison: every built-in one that can serve the request


def train(
    federation: Federation,
    rounds: int = 40,
    *,
    epochs: int = 5,
    batch_size: int = 64,
    lr: float = 0.005,
    l2: float = 0.0,
    optimizer: str = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    schedule: str = "constant",
    proximal: float = 0.0,
    aggregate: str = "weighted_mean",
    clients_per_round: int | None = None,
    stop: RecordedRule | Never = never,
    keep: Keep = "last",
    record: Sequence[Recorded] = (),
    engine: str | EngineMaker = "auto",
    block: BlockSize | None = None,
    out: str | Path | None = None,
    keep_history: KeepHistory = False,
    resume: bool = False,
    checkpoint_every: float = 0.0,
    show: Show = "auto",
    keep_models: int | str | None = None,
) -> Run:
    """Train a federation by FedAvg from a fresh model.

    Example:
        trained = feduhb.train(federation, rounds=3, epochs=1, lr=0.05, out="runs/first")

    Args:
        rounds: the number of rounds.
        epochs: local passes of each client in a round; 0 asks for full-batch gradients, with a step size of 1.0.
        batch_size: examples in a batch of a client.
        lr: the learning rate of a client's optimiser.
        l2: adds l2/2 * ‖w‖² to a client's loss.
        optimizer: "sgd", "adam" or "adamw"; its state starts afresh in every round.
        momentum: the momentum of SGD.
        weight_decay: the optimiser's weight decay; "adamw" applies it apart from the gradient.
        clip_norm: the largest norm of a step's gradient; None does not clip.
        schedule: of lr over a client's steps in a round: "constant", "linear" or "cosine"; or over rounds: "decay:0.99".
        proximal: adds proximal/2 * ‖w - w[t]‖² to a client's loss, as FedProx does.
        aggregate: "weighted_mean", "median", "trimmed_mean:0.1", "krum" or "geometric_median".
        clients_per_round: the number of clients sampled in each round; None asks all clients.
        stop: feduhb.patience("held_out_score"), feduhb.distance_stop() or feduhb.dynamic_stop(0.6) ends the training early;
            feduhb.never runs every round.
        keep: "last" returns the last model, "best" the one with the best main score on the clients' held-out data.
        record: "held_out" and "distance" record these in every round, so that `replay` can try rules on them. A rule
            that needs them has them recorded anyway.
        engine: "auto", "pool", "stacked", "stacked:tf32", "stacked:bf16", "loop", or a function of (federation, local)
            that returns an engine.
        block: the number of clients that the stacked engine computes together, on which its bits depend, or "recorded": each
            client alone, by recorded steps. None fits it to free memory, or lets a trial decide. Records hold what was taken.
        out: a folder for records and checkpoints.
        keep_history: write every model and every update into that folder, for methods that read a history. This takes
            rounds x (clients + 1) x parameters numbers; "float16" halves the bytes of the updates.
        resume: continue the run in the folder.
        checkpoint_every: the least number of seconds between two checkpoints; 0 writes one in every round.
        show: "auto" draws a progress bar on a terminal, and before an unlearning prints there what it will cost; "lines" writes
            lines everywhere; a function is called with every `Round`; `feduhb.TensorBoard` writes curves; None shows nothing. A
            list does several of these.
        keep_models: the bytes that models for the method "rollback" may take in the folder, such as "1GiB". Which models
            are kept is chosen so that the expected number of rounds to redo is smallest. Needs clients_per_round, fewer than
            there are clients.
    """
    check_training_stop(stop)
    settings = TrainSettings(
        rounds=rounds, epochs=epochs, batch_size=batch_size, lr=lr, l2=l2, optimizer=optimizer, momentum=momentum,
        weight_decay=weight_decay, clip_norm=clip_norm, schedule=schedule, proximal=proximal, aggregate=aggregate,
        clients_per_round=clients_per_round, engine=name_engine(engine), keep_history=keep_history,
        stop=None if isinstance(stop, Never) else stop, keep="best" if keep == "best" else None, record=tuple(record) or None,
        keep_models=keep_models,
    )  # fmt: skip
    _print_notices(federation)
    return run_method(
        federation, adapt_method("retrain", settings), settings, rounds=rounds, stop=stop, keep=keep, record=record, engine=engine,
        block=block, out=out, resume=resume, checkpoint_every=checkpoint_every, show=show, label="train",
    )  # fmt: skip


def train_from(
    config: Config,
    out: Path,
    *,
    base: Path | None = None,
    data: Path | None = None,
    resume: bool = False,
    show: Show = "auto",
) -> Run:
    """Train a federation as a config file describes.

    Args:
        base: the folder of the config file, in which code that it names is looked for; None: the working directory.
        data: the folder with the files of the data set.
    """
    if config.unlearn is not None:
        raise ConfigError(
            "this config has an [unlearn] table, so it describes an unlearning; remove that table and train, then use feduhb unlearn"
        )
    if config.start is not None:
        raise ConfigError(
            "this config has a [start] table, so its model was made in Python; train it there: feduhb.train(federation)"
        )
    settings = config.federation or FederationSettings()
    if is_code(settings.data):
        if config.made_by or config.clients:  # a run writes both
            raise ConfigError(
                f"this config was written by a run, which may be anybody's, and names code, {settings.data!r}; copy what you need of "
                "it into a config of your own"
            )
        federation = make_federation(find_code(settings.data, base or Path.cwd())).reseed(config.seed)
        _print_notices(federation)
    else:
        federation = build_federation(settings, config.seed, data)
    return run_method(
        federation, adapt_method("retrain", config.train), config.train, rounds=config.train.rounds,
        stop=config.train.stop or never, keep=config.train.keep or "last", record=config.train.record or (),
        engine=config.train.engine, block=config.block, out=out, resume=resume, show=show, label="train",
    )  # fmt: skip


def _print_notices(federation: Federation) -> None:
    """Print what its user should know of the start of a training."""
    if (unused := federation.explain_unused()) is not None:
        print_notice(unused)
    if federation.start == "given":
        federation.fresh_model()  # a model that is refused starts no run
        print_notice(GIVEN_NOTICE)


def unlearn(
    run: Run,
    forget: Forget,
    *,
    method: str | Method[Any] | Chosen = "feduhb",
    rounds: int | None = None,
    stop: Literal["auto"] | StopRule = "auto",
    keep: Keep = "last",
    record: Sequence[Recorded] = (),
    engine: str | EngineMaker | None = None,
    block: BlockSize | None = None,
    out: str | Path | None = None,
    keep_history: KeepHistory | None = None,
    erase_history: bool = True,
    allow_revival: bool = False,
    resume: bool = False,
    checkpoint_every: float = 0.0,
    show: Show = "auto",
    allow_shared_start: bool = False,
) -> Run:
    """Forget clients, rows of clients or a class: retrain on the remaining data from a fresh model.

    The new run has the seed of ``run``, so that methods can be compared; `Run.reseed` gives another. Over the clients of a
    Flower grid, `feduhb.flower.connected`, it draws its own. The other arguments are those of `train`.

    Example:
        unlearned = feduhb.unlearn(trained, ["c03"], rounds=3, out="runs/second")
        rows = feduhb.unlearn(unlearned, {"c01": [0, 7]}, rounds=3)

    Args:
        run: the run that is to forget. Exact methods do not use its weights.
        forget: client ids, {id: rows}, "class:3", or a `Request`.
        method: a name, or "module:Class" or "file.py:Class" of your own, for a method with the run's epochs and
            aggregation rule; or a method. "fast" is the recommended one; records hold the method and settings that it stands
            for.
        rounds: the largest number of rounds, unless the method has its own; None is 40, whatever the training used. 0 is
            possible for methods that start from the old model. "rollback" repeats the training with its number of
            rounds, its stop rule and its choice of the model, and refuses another rule or choice.
        stop: "auto" is the method's own rule: the dynamic rule for FedUHB, none for the others.
        engine: None takes the engine of the run.
        block: None also takes recorded steps if the run has them.
        out: a folder for the new run.
        keep_history: None keeps a history if the run kept one, ``out`` is given, and the method starts afresh (a rollback
            does not).
        erase_history: delete the histories and the kept models of this run and of those that it came from, from the leavers'
            first round on: before the new run, or after it if the method replays them. False is for comparisons.
        allow_revival: serve the request although a later run has forgotten more than ``run``, and the new run would learn
            that again. False raises RequestError.
        allow_shared_start: let "rollback" start from a model of the old run over the clients of a Flower grid, although a
            server can then work out the update of the clients that left. False raises ConfigError.
    """
    request = as_request(forget)
    known = () if run.forgot is None or run.federation.is_remote else run.forgot.clients
    if again := {*request.clients} & {*known}:
        raise RequestError(f"this run has already forgotten {min(again)}; leave it out of the request")
    remaining = run.federation.without(request)
    total = request if run.forgot is None else run.forgot.merge(request)
    if erase_history and run.folder is not None:
        check_revival(run.folder, total, allow=allow_revival, warn=print_notice)
    erasure = _plan_erasure(run, request, total) if erase_history else Erasure()
    chosen, code = choose_method(method, run.settings)
    if resume and out and chosen.needs_history and RunFolder(Path(out)).is_replayed():
        erased = finish_replay(RunFolder(Path(out)), chosen, str(total), erasure, REPORTER, Advice())
        return replace(open_run(out, run.original, method=chosen), erased=tuple(erased))
    chosen = select_once(prepare_method(chosen, run, request, remaining))
    restart = None
    if chosen.continues_training:
        repeated = _Repeated.of(run.settings)
        repeated.check(stop, keep, record)
        if rounds not in {None, repeated.rounds}:
            print_notice(f"{chosen.name} repeats all {repeated.rounds} rounds of the training, not {rounds}")
        begun = RunFolder(Path(out)) if resume and out else None
        restart = _plan_rollback(run, remaining, begun, allow_shared_start)
        rounds, stop, keep, record = repeated
    if block is None and restart is not None:
        block = restart.block
    elif block is None and (chosen.continues_training or run.block == RECORDED):
        block = run.block
    if not chosen.needs_history and (shared := _explain_shared_seed(run)):
        print_notice(shared)
    if erase_history and remaining.start == "given":  # comparisons erase nothing
        print_notice(GIVEN_NOTICE)
    if keep_history is None:
        is_whole = not uses_old_run(chosen) and restart is None  # a replay needs the updates of every round
        keep_history = run.settings.keep_history if out is not None and is_whole else False
    # No later request reaches a comparison.
    is_keeping = out is not None and chosen.continues_training and erase_history
    keep_models = run.settings.keep_models if is_keeping else None
    maker, own_rounds = run.engine if engine is None else engine, chosen.rounds
    before = [run.folder, *(one.path for one in run.earlier if one.is_there)]
    return run_method(
        remaining, chosen,
        replace(run.settings, engine=name_engine(maker), keep_history=keep_history, keep_models=keep_models),
        rounds=own_rounds or (ROUNDS if rounds is None else rounds),
        stop=chosen.default_stop() if stop == "auto" else stop, keep=keep, record=record,
        original=run.original, forgot=total, engine=maker, block=block, out=out, resume=resume,
        checkpoint_every=checkpoint_every, show=show, label=chosen.name,
        ancestors=((Ancestor.at(run.folder),) if run.folder else ()) + run.earlier, erasure=erasure,
        supersedes=tuple(path for path in before if path is not None) if erase_history else (), allow_revival=allow_revival,
        notice=_explain_rounds(run) if rounds is None and not own_rounds else "", code=code, restart=restart, before=run,
        leaving=run.federation.forgotten(request) if chosen.asks_leaver else None,
    )  # fmt: skip


class _Repeated(NamedTuple):
    """What a rollback repeats of the training."""

    rounds: int
    stop: StopRule
    keep: Keep
    record: tuple[Recorded, ...]

    @classmethod
    def of(cls, settings: TrainSettings) -> _Repeated:
        return cls(settings.rounds, settings.stop or never, settings.keep or "last", settings.record or ())

    def check(self, stop: Literal["auto"] | StopRule, keep: Keep, record: Sequence[Recorded]) -> None:
        """Raise ConfigError if what was given, and not left at its default, is something else."""
        given = self._replace(
            stop=self.stop if stop == "auto" else stop,
            keep=self.keep if keep == "last" else keep,
            record=tuple(record) or self.record,
        )
        if given != self:
            raise ConfigError(
                "rollback repeats the training, with its stop rule, its choice of the model and its records; leave stop, keep and record "
                "out, or use retrain"
            )


def _plan_rollback(
    run: Run, remaining: Federation, begun: RunFolder | None, allow_shared_start: bool
) -> Restart | None:
    """Return where a rollback continues the training of a run; None if it starts from the fresh model.

    Args:
        begun: the folder of a rollback that is resumed, if there is one.
    """
    if remaining.is_remote and not allow_shared_start:
        raise ConfigError(REFUSED)
    if begun is not None and begun.exists():
        return resume_restart(run, remaining, begun)
    restart = find_restart(run, remaining)
    print_notice(explain_restart(restart, run, run.settings.rounds))
    if restart is not None and remaining.is_remote:
        print_notice(SHARED_NOTICE)
    return restart


def compare(
    run: Run,
    forget: Forget,
    methods: Iterable[str | Method[Any] | Chosen] | None = None,
    *,
    rounds: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    show: Show = "auto",
) -> dict[str, Run]:
    """Serve one request with several methods, without erasing any history; return the runs by name.

    Example:
        runs = feduhb.compare(trained, ["c03"], ["feduhb", "retrain"], rounds=3)
        print(runs["retrain"])

    Args:
        methods: names, "module:Class" of your own, or methods. "all" stands for every built-in method that can serve the
            request; None takes those of FedUHB, Retrain, FedEraser and FedRecover that can. A line is printed about each
            method that is left out. One that is named and cannot serve raises an error before anything is trained.
        rounds: as for `unlearn`.
        out: a folder in which each run gets a folder by its name; a second feduhb is feduhb-2.
    """
    request = as_request(forget)
    given, _ = expand_methods(run, request, methods)
    chosen = [choose_method(method, run.settings) for method in given]
    remaining = run.federation.without(request)
    for made, _ in chosen:  # raise an error before the first method trains
        check_first_work(prepare_method(made, run, request, remaining), remaining, run.settings)
    found: dict[str, Run] = {}
    for method in chosen:
        plain = method.method.name
        numbered = (f"{plain}-{i}" for i in itertools.count(2))
        name = next(n for n in itertools.chain([plain], numbered) if n not in found)
        found[name] = unlearn(
            run, request, method=method, rounds=rounds, out=Path(out) / name if out else None,
            keep_history=False, erase_history=False, resume=resume, show=show,
        )  # fmt: skip
    return found


def expand_methods(
    run: Run, forget: Forget, methods: Iterable[str | Method[Any] | Chosen] | None
) -> tuple[list[str | Method[Any] | Chosen], dict[str, str]]:
    """Return the methods of a comparison, and why others are left out, by name; print a line about each of these.

    Args:
        methods: as for `compare`.
    """
    if methods is None:
        named, among = [ALL], COMPARED
    else:
        named, among = [methods] if isinstance(methods, str) else [*methods], tuple(METHODS)
    left_out = explain_refusals(run, forget, among) if ALL in named else {}
    for name, reason in left_out.items():
        print_notice(f"{name} is left out: {reason}")
    able = [name for name in among if name not in left_out]
    return [each for one in named for each in (able if one == ALL else [one])], left_out


def _explain_rounds(run: Run) -> str:
    """Return a line if the default number of rounds is not that of the training; nothing if it is."""
    had = run.settings.rounds
    return "" if had == ROUNDS else f"at most {ROUNDS} rounds, the default; the training had {had}\n"


def _explain_shared_seed(run: Run) -> str | None:
    """Return a warning if the runs over connected clients share a seed; None if each draws its own, and in a simulation."""
    if not run.federation.is_remote or run.federation.draws_seeds:
        return None
    if run.folder is None:
        return f"this run has the seed of the run that it replaces: {SHARED_SEED}"
    return explain_shared_seed(run.seed, (run.folder, *(one.path for one in run.earlier)))


def _plan_erasure(run: Run, request: Request, total: Request) -> Erasure:
    """Find the histories that a request must delete."""

    def find_holders(classes: Request, history: Store) -> Collection[ClientId]:
        try:
            return run.original.forgotten(classes)
        except RequestError:  # the examples are deleted, so any client may have held the class
            return history.all_clients()

    leavers = tuple(run.federation.forgotten(request))
    return find_histories(run.folder, run.earlier, leavers, total, find_holders)
