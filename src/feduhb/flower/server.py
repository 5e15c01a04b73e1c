"""The server's side: plan the run of a strategy, and execute it over a Flower grid with `feduhb.runs.execute`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from flwr.app import ArrayRecord, ConfigRecordValues, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor

from feduhb.core.flat import draw_model
from feduhb.core.local import list_added
from feduhb.core.seeds import sample_clients
from feduhb.core.types import ClientId, Method
from feduhb.data.request import Request
from feduhb.engines.batches import check_work
from feduhb.engines.tasks import check_task
from feduhb.errors import ConfigError, HistoryError, RequestError, RunFolderError
from feduhb.flower.engine import FlowerEngine, check_waiting
from feduhb.flower.files import ONLY_WORDS, Names
from feduhb.flower.messages import log
from feduhb.flower.names import clean_name
from feduhb.flower.roster import Forgotten, Roster, read_request, read_total, resolve_request
from feduhb.flower.start import Start, choose_start, warn_of_shared_seed, warn_of_shared_start
from feduhb.flower.wire import AUTO, Layout, get_source
from feduhb.methods import settings_of
from feduhb.methods.binding import bind, get_leavers, get_replayed_clients, uses_old_run
from feduhb.methods.retrain import Plain
from feduhb.runs.checkpoint import digest_weights, load_params
from feduhb.runs.config import drop_none, identify_run
from feduhb.runs.execute import Finished, execute, finish_replay
from feduhb.runs.files import find_json
from feduhb.runs.folder import HISTORY, KEPT_MODELS, NAMES, REQUEST, Round, RunFolder, explain_end
from feduhb.runs.held_out import Recording, list_recorded
from feduhb.runs.history import DiskHistory
from feduhb.runs.kept import KeptModels
from feduhb.runs.lineage import Ancestor, Erasure, Store, check_revival, find_histories, read_ancestors
from feduhb.runs.loop import Participants, Rounds
from feduhb.runs.plan import Advice, Plan, Reporter
from feduhb.runs.start import explain_given
from feduhb.stopping import RecordedRule

if TYPE_CHECKING:
    from feduhb.flower.strategies import OwnLoop

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
SHOWN = 8  # at most this many clients are named in a line of the log
BY_CLIENTS = "clients_"  # prefix of the scores that clients measured
ADVICE = Advice(
    writer="ServerApp",
    again="resubmit",
    elsewhere="choose another checkpoint folder",
    folder="checkpoint=FOLDER",
)


@dataclass(repr=False)
class Outcome(Result):
    """The result of a run: Flower's `Result` with our records."""

    rounds: tuple[Round, ...] = ()
    stopped: str = ""  # why the run ended
    left_out: dict[int, dict[ClientId, str]] = field(default_factory=dict)  # reasons, by round from 0
    bounded: dict[int, dict[ClientId, str]] = field(default_factory=dict)  # whose weight was bounded, and why
    names: dict[ClientId, str] = field(default_factory=dict)  # registered names
    seed: int | None = None  # of the fresh model and of every draw

    @property
    def params(self) -> Tensor:
        """The weights, flat [P]."""
        return Layout.of(self.arrays).flatten(self.arrays)


def serve(
    grid: Grid,
    initial: ArrayRecord | None,
    strategy: OwnLoop,
    rounds: int,
    evaluate: Evaluate | None = None,
    train_config: Mapping[str, ConfigRecordValues] | None = None,
) -> Outcome:
    """Run a strategy over a grid, from a fresh model or from the last checkpoint; the arguments are those of its `start`."""
    method = strategy.method()
    check_waiting(strategy.min_replies, strategy.timeout)
    limits = strategy.limits()
    folder = None if strategy.checkpoint is None else RunFolder(Path(strategy.checkpoint))
    trained = None if strategy.trained is None else RunFolder(Path(strategy.trained))
    forgets = strategy.request() is not None or trained is not None
    begun = choose_start(
        method, strategy.model, strategy.seed, initial, folder, trained, forgets=forgets, given=strategy.given
    )
    warn_of_shared_seed(method, begun.seed, trained)
    warn_of_shared_start(begun)
    strategy, start = replace(strategy, seed=begun.seed), begun.params
    roster = Roster(grid, strategy.partitions, timeout=strategy.timeout)
    for known in filter(None, (trained, folder)):
        found = find_json(known.path / NAMES, Names, ONLY_WORDS) or {}
        roster.names.update({client: clean_name(name) for client, name in found.items()})
    forgotten = resolve_request(
        roster, strategy.request(), before=None if trained is None else read_total(trained),
        written=None if folder is None else read_request(folder.path), min_clients=strategy.min_clients,
    )  # fmt: skip
    _check_request(roster, trained, forgotten)
    reporter = Reporter(inform=log.info, warn=log.warning)
    if trained is not None:
        check_revival(trained.path, forgotten.total, allow=strategy.allow_revival, warn=reporter.warn)
    engine = FlowerEngine(
        grid, begun.arrays, strategy.local, seed=begun.seed, forget=forgotten, min_replies=strategy.min_replies,
        timeout=strategy.timeout, max_norm=limits.max_norm, max_examples=limits.max_examples, max_share=limits.max_share,
        examples=limits.examples, config=train_config, tell_leavers=strategy.tell_leavers, roster=roster,
        asks_leavers=method.asks_leaver,
    )  # fmt: skip
    erasure = _find_erasure(trained, forgotten)
    outcome = Outcome(seed=begun.seed)
    if folder is not None and method.needs_history and folder.is_replayed():
        finish_replay(folder, method, str(forgotten.total), erasure, reporter, ADVICE)
        done = Finished(Plain(load_params(folder.state_path)), tuple(folder.rounds()))
        engine.recall(folder)
        return _complete(outcome, engine, done)
    method = _bind(method, trained, forgotten, start, engine.layout)
    _check_work(method, strategy, begun, start[: len(start) - engine.layout.statistics])
    scheduled = method.rounds or rounds
    observer = _Observer(engine, start, scheduled, outcome, folder, evaluate, strategy.evaluate_every)
    ancestors = () if trained is None else (Ancestor.at(trained.path), *read_ancestors(trained.path))
    plan = Plan(
        label=method.name, method=method, start=lambda: start, statistics=engine.layout.statistics, declaration=explain_given(begun.settings) if begun.settings else None, engine=engine,
        clients=_choose_clients(method, engine, strategy, begun.seed), leavers=get_leavers(method),
        layout=tuple(engine.layout.shapes.items()),
        rounds=scheduled, stop=strategy.stop_rule(), on_bad="drop", score=observer.score, folder=folder,
        recording=_plan_recording(strategy, engine), config=_describe(strategy, method, forgotten.total, begun, scheduled, train_config or {}),
        files={REQUEST: forgotten.to_json()}, resume=True,
        history_to_write=DiskHistory(Path(strategy.checkpoint or "") / HISTORY) if strategy.keep_history else None, advice=ADVICE,
        ancestors=ancestors, supersedes=tuple(one.path for one in ancestors if one.is_there),
        forgets=None if strategy.allow_revival else forgotten.total, erasure=erasure, reporter=reporter, show=observer.show, observe=observer.observe,
    )  # fmt: skip
    return _complete(outcome, engine, execute(plan))


def _plan_recording(strategy: OwnLoop, engine: FlowerEngine) -> Recording:
    """Return what a run records besides movements. Its held-out score is the accuracy, if clients have one."""
    needs = list_recorded(strategy.stop_rule(), strategy.keep, strategy.record)
    held_out = engine.ask_held_out(AUTO) if "held_out" in needs else None
    return Recording(held_out, "high", "distance" in needs, strategy.keep)


def _check_request(roster: Roster, trained: RunFolder | None, forgotten: Forgotten) -> None:
    """Warn if a forgotten client could return unrecognised; raise RequestError for a key that no known client has."""
    if forgotten.total is not None and roster.names and not any(roster.names.values()):
        log.warning(
            "no client has a registered name; without node authentication a SuperNode makes a new key at every start, so a "
            "forgotten client that returns is not recognised: start the SuperLink with --enable-supernode-auth and register nodes by --name"
        )
    leavers = () if forgotten.total is None else forgotten.total.clients
    for leaver in leavers:
        for other in roster.find_holders(roster.names.get(leaver, "")):
            if not forgotten.is_forgotten(other, roster.names[other]):
                log.warning(
                    "%s is forgotten, but %s is registered under the same name and takes part; if both are the same client, "
                    "forget the other key too", roster.format_client(leaver), roster.format_client(other),
                )  # fmt: skip
    if trained is not None and forgotten.request is not None:
        asked = {client for record in trained.rounds() for client in record.asked}
        roster.check_keys(forgotten.request, asked, forgotten.earlier)


def _find_erasure(trained: RunFolder | None, forgotten: Forgotten) -> Erasure:
    """Return the histories that the request must erase: of the training, and of the runs that it came from."""
    request, total = forgotten.request, forgotten.total
    if trained is None or request is None or total is None:
        return Erasure()

    def find_holders(classes: Request, history: Store) -> Collection[ClientId]:
        return history.all_clients() if classes.classes else ()  # any client may hold a class

    stores = DiskHistory(trained.path / HISTORY), KeptModels(trained.path / KEPT_MODELS)
    holders = {client for store in stores for client in find_holders(request, store)}
    leavers = (*request.clients, *request.rows, *sorted(holders))
    return find_histories(trained.path, read_ancestors(trained.path), leavers, total, find_holders)


def _bind(
    method: Method[Any], trained: RunFolder | None, forgotten: Forgotten, start: Tensor, layout: Layout
) -> Method[Any]:
    """Return the method, bound to what it needs of the training; raise an error if it cannot serve the request."""
    request, total = forgotten.request, forgotten.total
    _check_served(method, request)
    if not uses_old_run(method):
        return method
    if trained is None:
        what = "replays stored updates" if method.needs_history else "begins at the model that is to forget"
        kind = HistoryError if method.needs_history else ConfigError
        raise kind(f"{method.name} {what}; give the checkpoint folder of the training: trained=FOLDER")
    _check_rule(method, trained)
    parts: dict[str, Any] = {"layout": tuple(layout.shapes.items())}
    leavers = set() if request is None else {*request.clients, *request.rows}
    if method.needs_history:
        parts["history"] = history = DiskHistory(trained.path / HISTORY).freeze()
        history.check(identify_run(trained.config()), start.numel(), len(trained.rounds()))
        asked = history.all_clients() - leavers
    else:
        asked = {client for record in trained.rounds() for client in record.asked}
        asked -= set() if total is None else {*total.clients}
    if method.needs_model:
        parts["model"] = load_params(trained.state_path)
        if parts["model"].shape != start.shape:
            raise RunFolderError(
                f"{trained.path} trained another model than this strategy; give the one that it trained"
            )
    return bind(method, {**parts, "clients": tuple(sorted(asked)), "leavers": tuple(sorted(leavers))})


def _check_work(method: Method[Any], strategy: OwnLoop, begun: Start, params: Tensor) -> None:
    """Raise ConfigError for work that clients cannot do with this model, before anything is erased.

    A method that uses the old run is judged by the clients in the first round.
    """
    source = get_source(begun.arrays) if strategy.model is None else strategy.model
    if source is None or uses_old_run(method):
        return
    module = draw_model(source, begun.seed, check=False, given=begun.given)
    work = method.ask(method.init(params))
    if work is not None:
        check_work(work, module, strategy.local)
    for task in method.tasks:
        check_task(task, module, strategy.local)


def _check_served(method: Method[Any], request: Request | None) -> None:
    """Raise RequestError if a method cannot serve a request."""
    if request is None:
        return
    if method.needs_history and (request.rows or request.classes):
        raise RequestError(
            f"{method.name} replays the updates of whole clients and cannot remove rows or a class from them; use FedUHB or Retrain"
        )
    named = {"clients": request.clients, "rows": request.rows, "classes": request.classes}
    if refused := [kind for kind, some in named.items() if some and kind not in method.serves]:
        raise RequestError(f"{method.name} cannot forget {refused[0]}; use FedUHB or Retrain")
    if method.asks_leaver and request.classes:
        raise RequestError(
            f"{method.name} asks the clients that hold a class, and the server does not know them; use FedUHB or Retrain"
        )


def _check_rule(method: Method[Any], trained: RunFolder) -> None:
    """Raise ConfigError if the run that is to forget combined updates by a rule that a method cannot follow."""
    config = trained.config()
    own = config.get("unlearn", {}).get("settings", {})
    rule = own.get("aggregate", config["train"].get("aggregate", "weighted_mean"))
    if rule == "weighted_mean" or not (method.needs_history or method.asks_leaver):
        return
    what = "can replay only training by" if method.needs_history else "averages by"
    raise ConfigError(
        f"{method.name} {what} weighted_mean, but {trained.path} used {rule}; use FedUHB or Retrain"
    )


def _choose_clients(method: Method[Any], engine: FlowerEngine, strategy: OwnLoop, seed: int) -> Participants:
    """Return the clients of a replay, or a function that returns those of a round: the remaining ones, or a sample of them."""
    if method.needs_history:
        return get_replayed_clients(method)

    def list_clients(round: int) -> Sequence[ClientId]:
        here = list(engine.roster.wait(engine.forgotten, strategy.min_replies))
        count = strategy.clients_per_round
        return here if count is None else sample_clients(seed, round, here, min(count, len(here)))

    return list_clients


def _describe(
    strategy: OwnLoop,
    method: Method[Any],
    forgotten: Request | None,
    begun: Start,
    rounds: int,
    train_config: Mapping[str, ConfigRecordValues],
) -> str:
    """Return the content of config.toml: everything that must stay the same when the run is resumed."""
    settings, local, stop = settings_of(method), strategy.local, strategy.stop_rule()
    train = {
        "rounds": rounds,
        "epochs": settings["epochs"],
        "batch_size": local.batch_size,
        "lr": local.lr,
        "l2": local.l2,
        "aggregate": settings.get("aggregate", "weighted_mean"),
        "engine": "flower",
        "keep_history": strategy.keep_history,
    }
    train |= list_added(local)
    kept: dict[str, Any] = {"stop": drop_none(asdict(stop))} if isinstance(stop, RecordedRule) else {}
    kept |= {"keep": "best"} if strategy.keep == "best" else {}
    kept |= {"record": list(strategy.record)} if strategy.record else {}
    if strategy.clients_per_round is not None:
        train["clients_per_round"] = strategy.clients_per_round
    flower: dict[str, Any] = {"start": digest_weights(begun.params)}
    if train_config:
        flower["train_config"] = {key: _to_toml(value) for key, value in train_config.items()}
    config: dict[str, Any] = {"seed": strategy.seed, "made_by": "flower", "train": train, "flower": flower}
    if begun.settings is not None:
        config["start"] = drop_none(asdict(begun.settings))
    if not strategy.unlearns:
        flower |= {} if forgotten is None else {"forget": str(forgotten)}
        flower["settings"] = settings
        train |= kept
    elif forgotten is not None:
        unlearn = {"forget": str(forgotten), "method": method.name, "rounds": rounds, "settings": settings}
        config["unlearn"] = unlearn | kept
    return tomli_w.dumps(config)


def _to_toml(value: ConfigRecordValues) -> Any:
    """Return a value for a TOML file; bytes, which may be secret, become a digest."""
    if isinstance(value, list):
        return [_to_toml(part) for part in value]
    return f"sha256:{sha256(value).hexdigest()}" if isinstance(value, bytes) else value


@dataclass(frozen=True, slots=True)
class _Observer:
    """Scores and logs the rounds of a run over a grid, and tells leavers to leave."""

    engine: FlowerEngine
    start: Tensor
    rounds: int
    outcome: Outcome
    folder: RunFolder | None
    evaluate: Evaluate | None
    evaluate_every: int

    def score(self, number: int, params: Tensor) -> dict[str, float]:
        """Return the finite scores of the model after ``number`` rounds, from the user's function and from the clients."""
        if number == 1:
            self._score_on_server(0, self.start)
        found = self._score_on_server(number, params)
        if self.evaluate_every and number % self.evaluate_every == 0:
            mean = self.engine.score(params)
            self.outcome.evaluate_metrics_clientapp[number] = MetricRecord(dict(mean))
            found.update({BY_CLIENTS + key: value for key, value in mean.items()})
        return {key: value for key, value in found.items() if math.isfinite(value)}

    def _score_on_server(self, number: int, params: Tensor) -> dict[str, float]:
        found = None if self.evaluate is None else self.evaluate(number, self.engine.layout.to_arrays(params))
        if found is None:
            return {}
        self.outcome.evaluate_metrics_serverapp[number] = found
        return {key: float(value) for key, value in found.items() if isinstance(value, int | float)}

    def observe(self, rounds: Rounds[Any]) -> Rounds[Any]:
        """Ask leavers to leave, and warn at the end about those that did not."""
        if self.folder is not None and self.folder.is_finished():
            yield from rounds
            return
        self.engine.tell_leavers()
        yield from rounds
        self.engine.check_leavers()

    def show(self, record: Round) -> None:
        """Log how many clients answered a round, by name if they are few."""
        names = [self.engine.roster.names.get(client) or client for client in record.answered]
        listed = f" ({', '.join(names)})" if 0 < len(names) <= SHOWN else ""
        count = f"{len(record.answered)} of {len(record.asked)} answered{listed}"
        log.info("round %s of %s: %s, %s", record.round + 1, self.rounds, count, record)


def _complete(outcome: Outcome, engine: FlowerEngine, done: Finished) -> Outcome:
    """Return the outcome of an ended run, with the scores of the rounds before a resume."""
    for record in done.rounds:
        own = {key: value for key, value in record.scores.items() if not key.startswith(BY_CLIENTS)}
        others = {key.removeprefix(BY_CLIENTS): record.scores[key] for key in {*record.scores} - {*own}}
        if own:
            outcome.evaluate_metrics_serverapp.setdefault(record.round + 1, MetricRecord(dict(own)))
        if others:
            outcome.evaluate_metrics_clientapp.setdefault(record.round + 1, MetricRecord(dict(others)))
    ended = replace(
        outcome, arrays=engine.layout.to_arrays(done.state.params), rounds=done.rounds, stopped=explain_end(done.rounds),
        left_out=engine.left_out, bounded=engine.bounded, names={client: name for client, name in engine.roster.names.items() if name},
    )  # fmt: skip
    log.info("the run ended after %s rounds: %s", len(done.rounds), ended.stopped)
    return ended
