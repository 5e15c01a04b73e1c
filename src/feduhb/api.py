"""The public functions train, unlearn and compare. Each makes a plan, which `feduhb.runs.execute` executes."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from feduhb.core.aggregate import is_built_in_rule
from feduhb.core.checks import check_show, check_stop, check_whole, list_shows
from feduhb.core.flat import count_statistics, flatten, list_parts
from feduhb.core.local import describe_function
from feduhb.core.modules import list_carried, list_trained
from feduhb.core.own_code import Code, find_code, is_code
from feduhb.core.scores import list_built_in
from feduhb.core.seeds import draw_seed, sample_clients
from feduhb.core.types import ClientId, Method, Updates
from feduhb.data.download import print_notice
from feduhb.data.federation import Federation
from feduhb.data.load import FederationSettings, build_federation
from feduhb.data.own import make_federation
from feduhb.data.request import Forget, Request, as_request
from feduhb.engines import EngineMaker, block_of, describe_engine, make_engine, name_engine
from feduhb.engines.batches import check_work
from feduhb.engines.scoring import make_evaluator
from feduhb.errors import ConfigError, HistoryError, RequestError
from feduhb.methods import COMPARED, METHODS, check_method, rule_of, settings_of
from feduhb.methods.replay import bind_history
from feduhb.runs.checkpoint import keep_models
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
from feduhb.runs.held_out import Keep, Recorded, plan_recording
from feduhb.runs.history import DiskHistory
from feduhb.runs.lineage import (
    SHARED_SEED,
    Ancestor,
    Erasure,
    check_revival,
    explain_shared_seed,
    find_histories,
)
from feduhb.runs.loop import Participants
from feduhb.runs.plan import Advice, Plan, Reporter, Show
from feduhb.runs.run import Chosen, Run, adapt_method, choose_method, open_run
from feduhb.runs.start import GIVEN_NOTICE, StartSettings, describe_start, explain_given
from feduhb.runs.trust import prepare_trust
from feduhb.stopping import Never, RecordedRule, StopRule, never

ROUNDS = 40  # of an unlearning, at most, if no number is given
ALL = "all"  # among the methods of a comparison: every built-in one that can serve the request
FEW = 1000  # with more clients than this, every aggregation rule has enough answers


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
    block: int | None = None,
    out: str | Path | None = None,
    keep_history: KeepHistory = False,
    resume: bool = False,
    checkpoint_every: float = 0.0,
    show: Show = "auto",
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
        block: the number of clients that the stacked engine trains at once, on which its bits depend; None fits it to
            free memory.
        out: a folder for records and checkpoints.
        keep_history: write every model and every update into that folder, for FedEraser and FedRecover. This takes
            rounds x clients x parameters numbers, in half the bytes with "float16".
        resume: continue the run in the folder.
        checkpoint_every: the least number of seconds between two checkpoints; 0 writes one in every round.
        show: "auto" draws a progress bar on a terminal; a function is called with every `Round`; `feduhb.TensorBoard` writes
            curves; None shows nothing. A list does several of these.
    """
    if not isinstance(stop, RecordedRule | Never):
        raise ConfigError(
            f"stop is {stop!r}, which config.toml cannot record for a training; give feduhb.dynamic_stop(0.6) or another rule of feduhb, or feduhb.never"
        )
    settings = TrainSettings(
        rounds=rounds, epochs=epochs, batch_size=batch_size, lr=lr, l2=l2, optimizer=optimizer, momentum=momentum,
        weight_decay=weight_decay, clip_norm=clip_norm, schedule=schedule, proximal=proximal, aggregate=aggregate,
        clients_per_round=clients_per_round, engine=name_engine(engine), keep_history=keep_history,
        stop=None if isinstance(stop, Never) else stop, keep="best" if keep == "best" else None, record=tuple(record) or None,
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
        if config.made_by:
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
        engine=config.train.engine, out=out, resume=resume, show=show, label="train",
    )  # fmt: skip


def _print_notices(federation: Federation) -> None:
    """Print what its user should know of the start of a training."""
    if (unused := federation.explain_unused()) is not None:
        print_notice(unused)
    if federation.start == "given":
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
    block: int | None = None,
    out: str | Path | None = None,
    keep_history: KeepHistory | None = None,
    erase_history: bool = True,
    allow_revival: bool = False,
    resume: bool = False,
    checkpoint_every: float = 0.0,
    show: Show = "auto",
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
            aggregation rule; or a method.
        rounds: the largest number of rounds, unless the method has its own; None is 40, whatever the training used.
        stop: "auto" is the method's own rule: the dynamic rule for FedUHB, none for the others.
        engine: None takes the engine of the run.
        out: a folder for the new run.
        keep_history: None keeps a history if the run kept one, ``out`` is given, and the method does not replay one.
        erase_history: delete the histories of this run and of those that it came from, from the leavers' first round
            on: before the new run, or after it if the method replays them. False is for comparisons.
        allow_revival: serve the request although a later run has forgotten more than ``run``, and the new run would learn
            that again. False raises RequestError.
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
    chosen = prepare_method(chosen, run, request, remaining)
    if not chosen.needs_history and (shared := _explain_shared_seed(run)):
        print_notice(shared)
    if erase_history and remaining.start == "given":  # comparisons erase nothing
        print_notice(GIVEN_NOTICE)
    if keep_history is None:
        keep_history = run.settings.keep_history if out is not None and not chosen.needs_history else False
    maker = run.engine if engine is None else engine
    before = [run.folder, *(one.path for one in run.earlier if one.is_there)]
    return run_method(
        remaining, chosen, replace(run.settings, engine=name_engine(maker), keep_history=keep_history),
        rounds=chosen.rounds or (ROUNDS if rounds is None else rounds),
        stop=chosen.default_stop() if stop == "auto" else stop, keep=keep, record=record,
        original=run.original, forgot=total, engine=maker, block=block, out=out, resume=resume,
        checkpoint_every=checkpoint_every, show=show, label=chosen.name,
        ancestors=((Ancestor.at(run.folder),) if run.folder else ()) + run.earlier, erasure=erasure,
        supersedes=tuple(path for path in before if path is not None) if erase_history else (), allow_revival=allow_revival,
        notice=_explain_rounds(run) if rounds is None and not chosen.rounds else "", code=code,
    )  # fmt: skip


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
            request; None takes those of FedUHB, Retrain, FedEraser and FedRecover.
        rounds: as for `unlearn`.
        out: a folder in which each run gets a folder by its name; a second feduhb is feduhb-2.
    """
    request = as_request(forget)
    if methods is None:
        given = list_comparable(run, request, COMPARED)
    else:
        named = [methods] if isinstance(methods, str) else methods
        given = [each for one in named for each in (list_comparable(run, request) if one == ALL else [one])]
    chosen = [choose_method(method, run.settings) for method in given]
    remaining = run.federation.without(request)
    for made, _ in chosen:  # raise an error before the first method trains
        prepare_method(made, run, request, remaining)
        _check_first_work(made, remaining, run.settings)
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


def list_comparable(run: Run, forget: Forget, among: Iterable[str] = METHODS) -> list[str]:
    """Return the names of the built-in methods that can serve a request.

    Methods that replay a history need a complete one, and can forget whole clients only. Some methods refuse the
    aggregation rule of the run.
    """
    request, history = as_request(forget), run.history
    is_whole = history is not None and len(history.rounds) == len(run.rounds)
    is_plain = run.settings.epochs > 0 and run.settings.aggregate == "weighted_mean"
    replayable = is_whole and is_plain and not request.rows and not request.classes
    able = [name for name in among if replayable or not METHODS[name].needs_history]
    return [name for name in able if _can_adapt(name, run.settings)]


def _can_adapt(name: str, settings: TrainSettings) -> bool:
    try:
        adapt_method(name, settings)
    except ConfigError:
        return False
    return True


def run_method(
    federation: Federation,
    method: Method[Any],
    settings: TrainSettings,
    *,
    rounds: int,
    stop: StopRule = never,
    keep: Keep = "last",
    record: Sequence[Recorded] = (),
    original: Federation | None = None,
    forgot: Request | None = None,
    engine: str | EngineMaker = "auto",
    block: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: float = 0.0,
    models: Path | None = None,
    scored: bool = True,
    show: Show = None,
    label: str = "",
    ancestors: tuple[Ancestor, ...] = (),
    supersedes: tuple[Path, ...] = (),
    allow_revival: bool = False,
    erasure: Erasure | None = None,
    notice: str = "",
    code: Code | None = None,
) -> Run:
    """Run a method on a federation from a fresh model. `train`, `unlearn` and audits call this.

    Args:
        federation: the clients that take part.
        method: the method, with its history bound if it needs one.
        original: the federation before any client was forgotten; None if none was.
        forgot: everything that is forgotten, with earlier requests; None for a training.
        models: a folder for the model after every round; None keeps only the last one.
        scored: False does not score the model of every round, which saves time.
        notice: a line to show before the first round.
        code: what names the method, if a command or config can name it as the user's own.
    """
    check_method(method)  # a worker process has not checked it yet
    check_whole("rounds", rounds)
    check_stop(stop)
    check_show(show)
    before, folder = original or federation, RunFolder(Path(out)) if out else None
    if federation.draws_seeds and not method.needs_history:  # a replay keeps the seed of the training
        seed = folder.config()["seed"] if folder is not None and folder.exists() else draw_seed()
        federation, before = federation.reseed(seed), before.reseed(seed)
    if folder is not None and folder.exists():  # a resumed run keeps its block, on which its bits depend
        block = upgrade(folder.config()).get("block")
    _check_first_work(method, federation, settings)
    made = make_engine(engine, federation, settings.local(federation), block=block)
    clients, per_round = _choose_clients(federation, method, settings, refuse_too_few=forgot is None)
    device = "cuda" if made.about["device"] == "cuda" else "cpu"
    evaluate = make_evaluator(federation, device) if scored else None
    score = None if evaluate is None else lambda _, params: evaluate(params)
    history, first = settings.keep_history, _prepare_start(federation, recorded=folder is not None)
    recording = plan_recording(federation, made, stop, keep, record)
    config = Config(
        seed=federation.seed,
        federation=_describe_federation(before),
        train=settings,
        unlearn=None if forgot is None else _describe(method, rounds, stop, forgot, code, keep, record),
        start=first.table,
        loss=None if federation.loss is cross_entropy else describe_function(federation.loss),
        augment=None if federation.augment is None else describe_function(federation.augment),
        made_by=describe_engine(made),
        block=block_of(made),
        remote=federation.is_remote or None,
        clients=federation.fingerprints() if folder else {},
        scores=None if federation.scores is None else {one.name: one.best for one in federation.scores},
    )
    written, is_own = to_toml(config), code is not None or isinstance(before.about, Code)
    why = made.about.get("why")  # set if "auto" chose the engine
    notices = (notice, f"engine: {made.about['name']} ({why})\n" if why else "")
    plan = Plan(
        label=label,
        method=method,
        start=first.params,
        statistics=first.statistics,
        declaration=None if first.table is None else explain_given(first.table),
        layout=first.layout,
        engine=made,
        clients=clients,
        rounds=rounds,
        stop=stop,
        score=score,
        recording=recording,
        folder=folder,
        config=written,
        files=prepare_trust(written, before.about, code) if folder is not None and is_own else {},
        resume=resume,
        history_to_write=DiskHistory(Path(out or "") / HISTORY, half=history == "float16")
        if history
        else None,
        checkpoint_every=checkpoint_every,
        everyone=tuple(federation.clients),
        per_round=per_round,
        ancestors=ancestors,
        supersedes=supersedes,
        forgets=None if allow_revival else forgot,
        erasure=erasure or Erasure(),
        reporter=REPORTER,
        show=show,
        notice="".join(notices) if "lines" in list_shows(show) else "",
        observe=None if models is None else partial(keep_models, folder=models),
    )
    done = execute(plan)
    return Run(
        federation=federation, original=before, settings=settings, method=method, state=done.state, rounds=done.rounds,
        forgot=forgot, earlier=ancestors, folder=None if folder is None else folder.path, engine=engine,
        block=block_of(made), scheduled=rounds, stop=stop, keep=keep, erased=done.erased,
    )  # fmt: skip


def _describe_federation(federation: Federation) -> FederationSettings | None:
    """Return the [federation] table of a run's config.toml; None if only code can make the federation."""
    about = federation.about
    if isinstance(about, Code):
        return FederationSettings(data=about.text)
    if not isinstance(about, FederationSettings):
        return None
    return replace(about, scores=list_built_in(federation.scores))


class _First(NamedTuple):
    """What a run needs to know of the model that it starts from."""

    params: Tensor  # [P]
    statistics: int  # how many numbers at their end are statistics
    layout: tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes
    table: (
        StartSettings | None
    )  # [start] of config.toml; None if everything was drawn, or nothing is recorded


def _prepare_start(federation: Federation, *, recorded: bool) -> _First:
    """Return what a run needs of its fresh model. The module itself is freed: a large one would be missed in training."""
    fresh, given = federation.fresh_model(), federation.start == "given"
    layout = tuple((name, tuple(part.shape)) for name, part in list_parts(fresh))
    has_table = recorded and bool(given or list_carried(fresh))
    table = describe_start(fresh, given=given) if has_table else None
    return _First(flatten(fresh), count_statistics(fresh), layout, table)


def _check_first_work(method: Method[Any], federation: Federation, settings: TrainSettings) -> None:
    """Raise ConfigError for full-batch gradients of a model that has none, before a history is erased.

    A method that replays a history erases it last, and its engine raises the same error in the first round.
    """
    if method.needs_history:
        return
    model = federation.fresh_model()
    size = sum(p.numel() for _, p in list_trained(model))
    work = method.ask(method.init(flatten(model)[:size]))
    if work is not None:
        check_work(work, model, settings.local(federation))


def _explain_rounds(run: Run) -> str:
    """Return a line if the default number of rounds is not that of the training; nothing if it is."""
    had = run.settings.rounds
    return "" if had == ROUNDS else f"at most {ROUNDS} rounds, the default; the training had {had}\n"


def _describe(
    method: Method[Any],
    rounds: int,
    stop: StopRule,
    forgot: Request,
    code: Code | None,
    keep: Keep,
    record: Sequence[Recorded],
) -> UnlearnSettings:
    """Return the [unlearn] table of a run's config.toml."""
    return UnlearnSettings(
        forget=str(forgot),
        method=method.name,
        code=None if code is None else code.text,
        rounds=rounds,
        settings=settings_of(method),
        stop=stop if isinstance(stop, RecordedRule) else None,
        own_stop=None if isinstance(stop, RecordedRule | Never) else True,
        keep="best" if keep == "best" else None,
        record=tuple(record) or None,
    )


def _choose_clients(
    federation: Federation, method: Method[Any], settings: TrainSettings, *, refuse_too_few: bool
) -> tuple[Participants, int | None]:
    """Return the clients of a run and None, or a function that samples clients for a round and their number.

    If there are fewer clients than a round samples, an unlearning asks all of them, and a training raises ConfigError.
    """
    clients, count = list(federation.clients), settings.clients_per_round
    if count is None or not method.samples_clients or (count > len(clients) and not refuse_too_few):
        return clients, None
    sample_clients(federation.seed, 0, clients, count)  # raises ConfigError for too large a count
    return lambda round: sample_clients(federation.seed, round, clients, count), count


def prepare_method(method: Method[Any], run: Run, request: Request, remaining: Federation) -> Method[Any]:
    """Return the method, with the run's history if it replays one; raise an error if it cannot serve the request."""
    if not method.needs_history:
        rule, everyone = rule_of(method), len(remaining.clients)
        answers = min(run.settings.clients_per_round or everyone, everyone)
        if rule is not None and is_built_in_rule(rule) and answers <= FEW:
            # A rule that needs more answers must raise its error before a history is erased.
            rule([Updates(tuple(map(str, range(answers))), torch.zeros(answers, 1), torch.ones(answers))])
        return method
    if run.settings.aggregate != "weighted_mean":
        raise ConfigError(
            f"{method.name} can replay only training by weighted_mean, but this run used {run.settings.aggregate}; use feduhb or retrain"
        )
    if request.rows or request.classes:
        raise RequestError(
            f"{method.name} replays the updates of whole clients and cannot forget rows or a class; use feduhb or retrain"
        )
    history = run.history
    if history is None or run.folder is None:
        raise HistoryError(
            f"{method.name} replays stored updates, but this run kept none, or they were erased; "
            "train with --keep-history, or use feduhb, which needs none"
        )
    history.check(identify_run(RunFolder(run.folder).config()), run.params.numel(), len(run.rounds))
    if not torch.equal(history.params(0), flatten(remaining.fresh_model())):
        raise HistoryError(
            f"the history of {run.folder} does not start at the fresh model of its seed; train again with --keep-history"
        )
    return bind_history(method, history, list(remaining.clients))


def _explain_shared_seed(run: Run) -> str | None:
    """Return a warning if the runs over connected clients share a seed; None if each draws its own, and in a simulation."""
    if not run.federation.is_remote or run.federation.draws_seeds:
        return None
    if run.folder is None:
        return f"this run has the seed of the run that it replaces: {SHARED_SEED}"
    return explain_shared_seed(run.seed, (run.folder, *(one.path for one in run.earlier)))


def _plan_erasure(run: Run, request: Request, total: Request) -> Erasure:
    """Find the histories that a request must delete."""

    def find_holders(classes: Request, history: DiskHistory) -> Collection[ClientId]:
        try:
            return run.original.forgotten(classes)
        except RequestError:  # the examples are deleted, so any client may have held the class
            return history.all_clients()

    leavers = tuple(run.federation.forgotten(request))
    return find_histories(run.folder, run.earlier, leavers, total, find_holders)


REPORTER = Reporter(warn=print_notice)
