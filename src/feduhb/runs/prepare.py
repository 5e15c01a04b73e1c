"""What a run needs before it is executed: its method with what that needs of the old run, and its plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from feduhb.core.aggregate import format_rule, is_built_in_rule
from feduhb.core.checks import check_show, check_stop, check_whole, wants_lines
from feduhb.core.describe import describe_as_recorded, digest_layers
from feduhb.core.flat import count_statistics, flatten, list_parts
from feduhb.core.inputs import count_rows
from feduhb.core.modules import list_carried, list_trained
from feduhb.core.own_code import Code
from feduhb.core.scores import list_built_in
from feduhb.core.seeds import draw_seed, sample_clients
from feduhb.core.types import BlockSize, ClientId, History, Method, Updates, Work
from feduhb.data.download import print_notice
from feduhb.data.examples import Examples, fingerprint
from feduhb.data.federation import Federation
from feduhb.data.load import FederationSettings
from feduhb.data.request import Forget, Request, as_request
from feduhb.engines import EngineMaker, block_of, describe_engine, device_of, make_engine
from feduhb.engines.batches import check_work
from feduhb.engines.distillation import make_distiller
from feduhb.engines.scoring import make_evaluator
from feduhb.engines.tasks import check_tasks
from feduhb.errors import ConfigError, FeduhbError, HistoryError, RequestError
from feduhb.methods import METHODS, check_method, rule_of, settings_of
from feduhb.methods.binding import bind, get_leavers, list_asked, list_bound
from feduhb.methods.replay import average_stored
from feduhb.runs.config import (
    KEEPS_NOTHING,
    Config,
    TrainSettings,
    UnlearnSettings,
    identify_run,
    to_toml,
    upgrade,
)
from feduhb.runs.execute import execute
from feduhb.runs.expected import expect_cost
from feduhb.runs.folder import HISTORY, KEPT_MODELS, RunFolder
from feduhb.runs.held_out import Keep, Recorded, plan_recording
from feduhb.runs.history import DiskHistory
from feduhb.runs.kept import Keeper, KeptModels, plan_keeper
from feduhb.runs.lineage import Ancestor, Erasure
from feduhb.runs.loop import Participants
from feduhb.runs.plan import Plan, Reporter, Show
from feduhb.runs.rollback import SHARED_RECORD, Restart, check_same_engine
from feduhb.runs.run import Run, adapt_method, choose_method
from feduhb.runs.start import StartSettings, describe_start, explain_given
from feduhb.runs.trust import prepare_trust
from feduhb.stopping import Never, RecordedRule, StopRule, never

REPORTER = Reporter(warn=print_notice)
FEW = 1000  # with more clients than this, every aggregation rule has enough answers


@contextlib.contextmanager
def explain_memory() -> Generator[None]:
    """Raise a ConfigError with advice if the memory of the GPU runs out."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        why = str(error).partition(". ")[0]
        raise ConfigError(
            f"the GPU's memory ran out ({why}); stop other programs that use it, give a smaller batch_size, or use engine 'pool'"
        ) from error


@explain_memory()
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
    block: BlockSize | None = None,
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
    restart: Restart | None = None,
    leaving: Mapping[ClientId, Examples] | None = None,
    before: Run | None = None,
) -> Run:
    """Run a method on a federation from a fresh model. `train`, `unlearn` and audits call this.

    Args:
        federation: the clients that take part.
        method: the method, with its history bound if it needs one.
        original: the federation before any client was forgotten; None if none was.
        forgot: everything that is forgotten, with earlier requests; None for a training.
        models: a folder for the model after every round; None keeps only the last one.
        scored: False does not score the model of every round, which saves time.
        notice: lines to show before the first round.
        code: what names the method, if a command or config can name it as the user's own.
        restart: where a rollback continues a training; None starts from the fresh model.
        leaving: what is forgotten, by client, if the method asks leavers to work on it.
        before: the run that is to forget, from whose records the cost is expected; None expects nothing.
    """
    check_method(method)  # a worker process has not checked it yet
    check_whole("rounds", rounds, least=0 if method.needs_model else 1)  # the old model is there without any
    check_stop(stop)
    check_show(show)
    whole, folder = original or federation, RunFolder(Path(out)) if out else None
    # Replays and rollbacks keep the training's seed.
    if federation.draws_seeds and not method.needs_history and restart is None:
        seed = folder.config()["seed"] if folder is not None and folder.exists() else draw_seed()
        federation, whole = federation.reseed(seed), whole.reseed(seed)
    is_new = folder is None or not folder.exists()
    old = {} if folder is None or is_new else upgrade(folder.config())
    if old:  # a resumed run keeps its block, on which its bits depend
        block = old.get("block")
    work = check_first_work(method, federation, settings)
    at_work = federation.with_leaving(leaving) if leaving else federation
    made = make_engine(engine, at_work, settings.local(federation), block=block, method=method)
    clients, per_round = _choose_clients(federation, method, settings, is_training=forgot is None)
    if work is not None:  # before anything is erased, as the loop does in every round
        list_asked(method, work, clients(0) if callable(clients) else clients, get_leavers(method))
    evaluate = make_evaluator(federation, device_of(made)) if scored else None
    score = None if evaluate is None else lambda _, params: evaluate(params)
    history, first = settings.keep_history, _prepare_start(federation, recorded=folder is not None)
    recording = plan_recording(federation, made, stop, keep, record)
    if restart is not None:
        check_same_engine(restart, made)
    config = Config(
        seed=federation.seed,
        federation=_describe_federation(whole),
        train=settings,
        unlearn=None
        if forgot is None
        else _describe(method, rounds, stop, forgot, code, keep, record, restart),
        start=first.table,
        loss=None
        if federation.loss is cross_entropy
        else describe_as_recorded(federation.loss, old.get("loss")),
        augment=None
        if federation.augment is None
        else describe_as_recorded(federation.augment, old.get("augment")),
        layers=first.layers,
        made_by=describe_engine(made),
        block=block_of(made),
        remote=federation.is_remote or None,
        clients=federation.fingerprints() if folder else {},
        scores=None if federation.scores is None else {one.name: one.best for one in federation.scores},
        public=_digest_public(federation) if method.needs_public else None,
    )
    written, is_own = to_toml(config), code is not None or isinstance(whole.about, Code)
    why = made.about.get("why")  # set if "auto" chose the engine
    expected = None
    if before is not None and is_new:
        expected = expect_cost(
            before, at_work, method, work, clients=clients, scheduled=rounds, restart=restart, stop=stop,
            size=first.size, machine=made.about, keeps_history=bool(history),
        )  # fmt: skip
    del work  # it holds a model, whose memory the clients need
    engine_line = f"engine: {made.about['name']} ({why})" if why else None
    if wants_lines(show):
        notice += "".join(f"{line}\n" for line in (engine_line, expected) if line is not None)
    else:
        notice = ""
    plan = Plan(
        label=label,
        method=method,
        start=lambda: flatten(federation.fresh_model()),
        restart=restart,
        statistics=first.statistics,
        declaration=_declare_start(first, restart, federation),
        layout=first.layout,
        engine=made,
        clients=clients,
        leavers=get_leavers(method),
        rounds=rounds,
        stop=stop,
        score=score,
        recording=recording,
        folder=folder,
        config=written,
        files=prepare_trust(written, whole.about, code) if folder is not None and is_own else {},
        resume=resume,
        history_to_write=DiskHistory(Path(out or "") / HISTORY, half=history == "float16")
        if history
        else None,
        keeper=_plan_keeper(settings, folder, first.size, whole, rounds, keep)
        if per_round or forgot is None
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
        notice=notice,
        observe=None if models is None else Keeper(KeptModels(models), range(1, rounds + 1), rounds).watch,
    )
    done = execute(plan)
    return Run(
        federation=federation, original=whole, settings=settings, method=method, state=done.state, rounds=done.rounds,
        forgot=forgot, earlier=ancestors, folder=None if folder is None else folder.path, engine=engine,
        block=block_of(made), scheduled=rounds, stop=stop, keep=keep, erased=done.erased,
        restart_round=0 if restart is None else restart.round, machine=dict(made.about), expected=expected,
    )  # fmt: skip


def _plan_keeper(
    settings: TrainSettings,
    folder: RunFolder | None,
    size: int,
    whole: Federation,
    rounds: int,
    keep: Keep,
) -> Keeper | None:
    """Return what keeps models for rollbacks; None if the run keeps none.

    All rollbacks of a training choose the same rounds: clients that were forgotten count.
    """
    budget, per_round = settings.keep_models, settings.clients_per_round
    if budget is None or per_round is None:
        return None
    if folder is None:
        raise ConfigError("kept models are on disk; name a folder: out='runs/first'")
    return plan_keeper(
        folder.path / KEPT_MODELS, budget, size, rounds=rounds, share=min(1.0, per_round / len(whole.clients)), with_best=keep == "best"
    )  # fmt: skip


def _describe_federation(federation: Federation) -> FederationSettings | None:
    """Return the [federation] table of a run's config.toml; None if only code can make the federation."""
    about = federation.about
    if isinstance(about, Code):
        return FederationSettings(data=about.text)
    if not isinstance(about, FederationSettings):
        return None
    return replace(about, scores=list_built_in(federation.scores))


def _digest_public(federation: Federation) -> str | None:
    """Return the size and a digest of the server's unlabelled data, by which a resumed run recognises it."""
    x = federation.public
    return None if x is None else fingerprint(Examples.of(x, torch.zeros(count_rows(x))))


class _First(NamedTuple):
    """What a run needs to know of the model that it starts from."""

    size: int  # bytes
    statistics: int  # how many numbers at the end of its vector are statistics
    layout: tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes
    # [start] of config.toml; None if everything was drawn, or nothing is recorded.
    table: StartSettings | None
    layers: str | None  # a digest of them for config.toml; None if the model is one of this package


def _prepare_start(federation: Federation, *, recorded: bool) -> _First:
    """Return what a run needs of its fresh model. The module itself is freed: a large one would be missed in training."""
    fresh, given = federation.fresh_model(), federation.start == "given"
    parts = list_parts(fresh)
    layout = tuple((name, tuple(part.shape)) for name, part in parts)
    size = sum(part.nbytes for _, part in parts)
    has_table = recorded and bool(given or list_carried(fresh))
    table = describe_start(fresh, given=given) if has_table else None
    layers = None if isinstance(federation.about, FederationSettings) else digest_layers(fresh)
    return _First(size, count_statistics(fresh), layout, table, layers)


def _declare_start(first: _First, restart: Restart | None, federation: Federation) -> str | None:
    """Return what result.json says of a start that was given, or that a rollback shares with a run over clients elsewhere."""
    given = None if first.table is None else explain_given(first.table)
    shared = SHARED_RECORD if restart is not None and federation.is_remote else None
    return " ".join(filter(None, [given, shared])) or None


def check_first_work(method: Method[Any], federation: Federation, settings: TrainSettings) -> Work | None:
    """Return the work of the first round; raise ConfigError for work that clients cannot do with this model.

    Such an error must come before a history is erased. A method that replays a history erases it last, and its engine
    raises the same error in the first round: for it, return None.
    """
    if method.needs_history:
        return None
    model = federation.fresh_model()
    size = sum(p.numel() for _, p in list_trained(model))
    work = method.ask(method.init(flatten(model)[:size]))
    local = settings.local(federation)
    if work is not None:
        check_work(work, model, local)
    check_tasks(method, federation, local)
    return work


def explain_refusals(run: Run, forget: Forget, among: Iterable[str] = METHODS) -> dict[str, str]:
    """Return why some methods cannot serve a request, by name; methods that can are left out.

    A rollback could start from the fresh model without kept models, but it would be Retrain.

    Args:
        among: names, or "module:Class" or "file.py:Class" of your own.
    """
    request = as_request(forget)
    remaining, found = run.federation.without(request), dict[str, str]()
    for name in among:
        try:
            made = choose_method(name, run.settings).method
            check_first_work(prepare_method(made, run, request, remaining), remaining, run.settings)
        except FeduhbError as error:
            found[name] = str(error)
        else:
            if made.continues_training and run.settings.keep_models is None:
                found[name] = (
                    f"{name} continues from a model that training kept, but this run kept none; train with --keep-models, or use "
                    "retrain"
                )
    return found


def _describe(
    method: Method[Any],
    rounds: int,
    stop: StopRule,
    forgot: Request,
    code: Code | None,
    keep: Keep,
    record: Sequence[Recorded],
    restart: Restart | None,
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
        restart_round=None if restart is None else restart.round,
        restart_sha256=None if restart is None else restart.sha256,
    )


def _choose_clients(
    federation: Federation, method: Method[Any], settings: TrainSettings, *, is_training: bool
) -> tuple[Participants, int | None]:
    """Return the clients of a run and None, or a function that samples clients for a round and their number.

    If there are fewer clients than a round samples, an unlearning asks all of them, and a training raises ConfigError. So does a
    training that would keep models for rollbacks although each round asks every client.
    """
    clients, count = list(federation.clients), settings.clients_per_round
    if count is None or not method.samples_clients or (count > len(clients) and not is_training):
        return clients, None
    sample_clients(federation.seed, 0, clients, count)  # raises ConfigError for too large a count
    if is_training and count == len(clients) and settings.keep_models is not None:
        raise ConfigError(KEEPS_NOTHING)
    return lambda round: sample_clients(federation.seed, round, clients, count), count


def prepare_method(method: Method[Any], run: Run, request: Request, remaining: Federation) -> Method[Any]:
    """Return the method with what it needs of the run; raise an error if it cannot serve the request."""
    if not method.needs_history:
        rule, everyone = rule_of(method), len(remaining.clients)
        answers = min(run.settings.clients_per_round or everyone, everyone)
        if rule is not None and is_built_in_rule(rule) and answers <= FEW:
            # A rule that needs more answers must raise its error before a history is erased.
            rule([Updates(tuple(map(str, range(answers))), torch.zeros(answers, 1), torch.ones(answers))])
        if method.continues_training and settings_of(method) != settings_of(
            adapt_method(type(method), run.settings)
        ):
            raise ConfigError(
                f"{method.name} repeats the training with its own settings; leave them out, or use retrain"
            )
        _check_request(method, run, request, remaining)
        return bind_method(method, run, remaining, run.federation.forgotten(request))
    if (used := _name_rule(run)) != "weighted_mean":
        raise ConfigError(
            f"{method.name} can replay only training by weighted_mean, but this run used {used}; use feduhb or retrain"
        )
    if request.rows or request.classes:
        raise RequestError(
            f"{method.name} replays the updates of whole clients and cannot forget rows or a class; use feduhb or retrain"
        )
    if method.needs_model and run.keep == "best":
        raise ConfigError(
            f"{method.name} takes stored updates of every round back from the model after the last round, but this run kept the best "
            "model; use feduhb or retrain"
        )
    history = run.history
    if history is None or run.folder is None:
        raise HistoryError(
            f"{method.name} replays stored updates, but this run kept none, or they were erased; "
            "train with --keep-history, or use feduhb, which needs none"
        )
    history = history.freeze()
    history.check(identify_run(RunFolder(run.folder).config()), run.params.numel(), len(run.rounds))
    fresh = remaining.fresh_model()
    if not torch.equal(history.params(0), flatten(fresh)):
        raise HistoryError(
            f"the history of {run.folder} does not start at the fresh model of its seed; train again with --keep-history"
        )
    if method.needs_model and not _ends_with_mean(history, run.params, count_statistics(fresh)):
        raise ConfigError(
            f"{method.name} takes stored updates back, so each step must have been their mean, but {run.method.name} made other steps "
            "in this run; use feduhb or retrain"
        )
    return bind_method(method, run, remaining, history=history)


def _name_rule(run: Run) -> str:
    """Return the name of the rule by which a run combined updates."""
    rule = rule_of(run.method)
    return run.settings.aggregate if rule is None else format_rule(rule)


def _ends_with_mean(history: History, params: Tensor, statistics: int) -> bool:
    """Return whether the last round's step to these weights [P] was the mean of its updates, to the precision of a history.

    Statistics are left out: every method averages them, and they may be much larger than the parameters.
    """
    last = history.rounds[-1]
    before, mean = history.params(last), average_stored(history, last)
    step = before - params.to(before)
    error = step if mean is None else step - mean
    size, rounding = len(params) - statistics, max(1e-6, torch.finfo(before.dtype).eps)
    error, step, before = error[:size], step[:size], before[:size]
    return bool(error.norm() <= 0.01 * step.norm() + rounding * before.norm())


def bind_method(
    method: Method[Any],
    run: Run,
    remaining: Federation,
    leavers: Iterable[ClientId] = (),
    history: DiskHistory | None = None,
) -> Method[Any]:
    """Return the method with those parts of a run that it declares.

    Args:
        remaining: the federation without the forgotten data.
        leavers: the clients that asked to forget something.
        history: what the run stored, as it was checked; None takes what is there now.
    """
    makers: dict[str, Callable[[], Any]] = {
        "history": lambda: history or run.history,
        "clients": lambda: tuple(sorted(remaining.clients)),
        "leavers": lambda: tuple(sorted(leavers)),
        "model": lambda: run.params.detach().cpu(),
        "layout": lambda: tuple((name, tuple(p.shape)) for name, p in list_trained(remaining.fresh_model())),
        "losses": lambda: _list_losses(method, run),
        "seed": lambda: remaining.seed,
        "distil": lambda: make_distiller(remaining, run.params.detach().cpu(), method.name),
        "selection": lambda: None,  # made when a run begins, see `select_once`
    }
    return bind(method, {name: makers[name]() for name in list_bound(method)})


def _list_losses(method: Method[Any], run: Run) -> tuple[float, ...]:
    """Return the test loss after each round of a run; raise ConfigError if it was not recorded."""
    losses = [record.scores.get("test_loss") for record in run.rounds]
    if None in losses:
        raise ConfigError(
            f"{method.name} cuts the training into windows by its test loss, which this run did not record; use federaser"
        )
    return tuple(loss for loss in losses if loss is not None)


def _check_request(method: Method[Any], run: Run, request: Request, remaining: Federation) -> None:
    """Raise RequestError if a method cannot serve a request, or ConfigError if it may not ask the leavers here."""
    named = {"clients": request.clients, "rows": request.rows, "classes": request.classes}
    if refused := [kind for kind, some in named.items() if some and kind not in method.serves]:
        raise RequestError(
            f"{method.name} cannot forget {refused[0]}, only {' or '.join(method.serves)}; use feduhb or retrain"
        )
    if not method.asks_leaver:
        return
    if run.federation.is_remote:
        raise ConfigError(
            f"{method.name} asks leavers to work on the data that they asked to forget, and clients elsewhere delete it when "
            "they are told to leave; use feduhb or retrain"
        )
    if (used := _name_rule(run)) != "weighted_mean":
        raise ConfigError(
            f"{method.name} averages by weighted_mean, but this run used {used}; use feduhb or retrain"
        )
    gone = [c for c in run.federation.forgotten(request) if c not in remaining.clients]
    if "clients" not in method.serves and gone:
        raise RequestError(
            f"{method.name} asks clients that keep some of their data, but {gone[0]} would keep none; use feduhb or retrain"
        )
