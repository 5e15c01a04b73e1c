"""The server's side of a run: a strategy becomes a plan, which `feduhb.runs.execute` executes over a Flower grid."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w
from flwr.app import ArrayRecord, ConfigRecordValues, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor

from feduhb.core.seeds import sample_clients
from feduhb.core.types import ClientId, Local, Method
from feduhb.data.request import Request
from feduhb.errors import HistoryError, RequestError, RunFolderError
from feduhb.flower.engine import FlowerEngine, check_limits
from feduhb.flower.roster import (
    REQUEST,
    Forgotten,
    Roster,
    is_key_id,
    read_request,
    read_total,
    resolve_request,
)
from feduhb.flower.wire import Layout
from feduhb.methods import settings_of
from feduhb.methods.replay import bind_history, replayed_clients
from feduhb.methods.retrain import Plain
from feduhb.runs.checkpoint import digest_weights, load_params
from feduhb.runs.config import identify_run
from feduhb.runs.execute import Finished, execute, finish_replay
from feduhb.runs.folder import HISTORY, Round, RunFolder, explain_end, write_atomically
from feduhb.runs.history import DiskHistory
from feduhb.runs.lineage import Ancestor, Erasure, find_histories, read_ancestors
from feduhb.runs.loop import Participants, Rounds
from feduhb.runs.plan import Advice, Plan, Reporter
from feduhb.stopping import DynamicStop, StopRule

log = logging.getLogger("flwr.feduhb")
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
NAMES, LEFT_OUT = "names.json", "left_out.json"
SHOWN = 8  # clients that a line of the log names
BY_CLIENTS = "clients_"  # before the name of a score that the clients gave
ADVICE = Advice(
    writer="ServerApp",
    again="resubmit",
    elsewhere="choose another checkpoint folder",
    folder="checkpoint=FOLDER",
)


@dataclass(repr=False)
class Outcome(Result):
    """Flower's `Result`, and what our loop adds to it."""

    rounds: tuple[Round, ...] = ()
    stopped: str = ""  # why the run ended, in words
    left_out: dict[int, dict[ClientId, str]] = field(default_factory=dict)  # by round from 0: who, and why
    names: dict[ClientId, str] = field(default_factory=dict)  # registered names, for display

    @property
    def params(self) -> Tensor:
        """The weights, flat [P]."""
        return Layout.of(self.arrays).flatten(self.arrays)


@dataclass(kw_only=True)
class Options:
    """Options that all strategies share."""

    checkpoint: str | Path | None = None
    trained: str | Path | None = None
    keep_history: bool = False
    seed: int = 0
    local: Local = field(default_factory=Local)
    clients_per_round: int | None = None
    min_clients: int | None = None
    min_replies: int | None = None
    timeout: float = 600.0
    max_norm: float | None = None
    max_examples: float | None = None
    partitions: Sequence[ClientId] | None = None
    tell_leavers: bool = True
    evaluate_every: int = 0


def serve(
    grid: Grid,
    initial: ArrayRecord,
    options: Options,
    method: Method[Any],
    *,
    request: Request | None,
    rounds: int,
    stop: StopRule,
    unlearns: bool,
    evaluate: Evaluate | None = None,
    train_config: Mapping[str, ConfigRecordValues] | None = None,
) -> Outcome:
    """Run a method over a grid, from a fresh model or from the last checkpoint: resolve the request, plan, execute.

    Args:
        initial: the fresh model.
        request: as the user wrote it, by client ids or registered names.
        rounds: at most, unless the method has its own number.
        unlearns: whether the run is recorded as an unlearning; False for a training.
        evaluate: of (round counted from 1, arrays), scores a round's model on the server.
        train_config: more to tell the clients with each message.
    """
    check_limits(options.min_replies, options.timeout, options.max_norm, options.max_examples)
    start = Layout.of(initial).flatten(initial)
    folder = None if options.checkpoint is None else RunFolder(Path(options.checkpoint))
    trained = None if options.trained is None else RunFolder(Path(options.trained))
    if trained is not None:
        _check_start(trained, start)
    roster = Roster(grid, options.partitions, timeout=options.timeout)
    for known in filter(None, (trained, folder)):
        roster.names.update(_read_json(known.path / NAMES))
    forgotten = resolve_request(
        roster, request, before=None if trained is None else read_total(trained),
        written=None if folder is None else read_request(folder.path), min_clients=options.min_clients,
    )  # fmt: skip
    _warn_of_strangers(roster, forgotten)
    _check_keys(roster, trained, forgotten)
    engine = FlowerEngine(
        grid, initial, options.local, seed=options.seed, forget=forgotten, min_replies=options.min_replies,
        timeout=options.timeout, max_norm=options.max_norm, max_examples=options.max_examples, config=train_config,
        tell_leavers=options.tell_leavers, roster=roster,
    )  # fmt: skip
    erasure = _find_erasure(trained, forgotten)
    outcome = Outcome()
    if folder is not None and method.needs_history and folder.is_replayed():
        finish_replay(
            folder, method, str(forgotten.total), erasure, Reporter(inform=log.info, warn=log.warning), ADVICE
        )
        done = Finished(Plain(load_params(folder.state_path)), tuple(folder.rounds()))
        engine.left_out.update(_read_left_out(folder, len(done.rounds)))
        return _complete(outcome, engine, done)
    method = _bind(method, trained, forgotten, start)
    scheduled = method.rounds or rounds
    reporter = _Reporter(engine, start, scheduled, outcome, folder, evaluate, options.evaluate_every)
    plan = Plan(
        label=method.name, method=method, start=start, engine=engine, clients=_participants(method, engine, options),
        rounds=scheduled, stop=stop, on_bad="drop", score=reporter.score, folder=folder,
        config=_describe(options, method, stop, forgotten.total, start, scheduled, unlearns, train_config or {}),
        files={REQUEST: forgotten.to_json()}, resume=True,
        history_to_write=DiskHistory(Path(options.checkpoint or "") / HISTORY) if options.keep_history else None, advice=ADVICE,
        ancestors=() if trained is None else (Ancestor.at(trained.path), *read_ancestors(trained.path)),
        erasure=erasure, reporter=Reporter(inform=log.info, warn=log.warning), show=reporter.show, observe=reporter.observe,
    )  # fmt: skip
    return _complete(outcome, engine, execute(plan))


def _check_start(trained: RunFolder, start: Tensor) -> None:
    """Raise RunFolderError if a run does not start from the fresh model of the training that shall forget."""
    if trained.config().get("flower", {}).get("start") != digest_weights(start):
        raise RunFolderError(
            f"these initial arrays are not the ones that the training in {trained.path} began with, and nothing of what it learned may "
            "flow in; draw them again: feduhb.flower.fresh_arrays(model, seed) with the training's seed"
        )


def _warn_of_strangers(roster: Roster, forgotten: Forgotten) -> None:
    """Warn if a forgotten client could return without being recognised."""
    if forgotten.total is not None and roster.lacks_names():
        log.warning(
            "no client has a registered name; if nodes are not authenticated, each makes up another key at every start, and one "
            "that is forgotten comes back as a stranger: start the SuperLink with --enable-supernode-auth and register nodes by --name"
        )


def _check_keys(roster: Roster, trained: RunFolder | None, forgotten: Forgotten) -> None:
    """Raise RequestError for a key that took no part in the training and is not known otherwise: it is mistyped."""
    request = forgotten.request
    if trained is None or request is None:
        return
    earlier = () if forgotten.earlier is None else (*forgotten.earlier.clients, *forgotten.earlier.rows)
    known = {*roster.names, *earlier, *(client for record in trained.rounds() for client in record.asked)}
    for client in (*request.clients, *request.rows):
        if is_key_id(client) and client not in known:
            raise RequestError(
                f"nobody with the key {client} took part in the training in {trained.path}; see that it is spelled right: "
                "feduhb.flower.key_id('its-key.pub')"
            )


def _find_erasure(trained: RunFolder | None, forgotten: Forgotten) -> Erasure:
    """Return the histories that the request must reach: of the training, and of the runs that it came from."""
    request, total = forgotten.request, forgotten.total
    if trained is None or request is None or total is None:
        return Erasure()

    def find_holders(classes: Request, history: DiskHistory) -> Collection[ClientId]:
        return history.all_clients() if classes.classes else ()  # only the clients know who holds a class

    holders = find_holders(request, DiskHistory(trained.path / HISTORY))
    leavers = (*request.clients, *request.rows, *holders)
    return find_histories(trained.path, read_ancestors(trained.path), leavers, total, find_holders)


def _bind(method: Method[Any], trained: RunFolder | None, forgotten: Forgotten, start: Tensor) -> Method[Any]:
    """Return the method, with the training's history bound if it replays one; raise an error if it cannot serve the request."""
    if not method.needs_history:
        return method
    if trained is None:
        raise HistoryError(
            f"{method.name} replays stored updates; say which training kept them: trained=FOLDER, its checkpoint"
        )
    request = forgotten.request
    if request is not None and (request.rows or request.classes):
        raise RequestError(
            f"{method.name} replays whole clients' updates and cannot take rows or a class out of them; use FedUHB or Retrain"
        )
    history = DiskHistory(trained.path / HISTORY)
    history.check(identify_run(trained.config()), start.numel(), len(trained.rounds()))
    leavers = set() if request is None else {*request.clients}
    return bind_history(method, history, sorted(history.all_clients() - leavers))


def _participants(method: Method[Any], engine: FlowerEngine, options: Options) -> Participants:
    """Return the clients of a replay, or the function that returns a round's: all who are connected and remain, or a sample."""
    if method.needs_history:
        return replayed_clients(method)

    def list_clients(round: int) -> Sequence[ClientId]:
        here = list(engine.roster.wait(engine.forgotten, options.min_replies))
        count = options.clients_per_round
        return here if count is None else sample_clients(options.seed, round, here, min(count, len(here)))

    return list_clients


def _describe(
    options: Options,
    method: Method[Any],
    stop: StopRule,
    forgotten: Request | None,
    start: Tensor,
    rounds: int,
    unlearns: bool,
    train_config: Mapping[str, ConfigRecordValues],
) -> str:
    """Return the content of config.toml: everything that must be the same for a run to be resumed."""
    settings, local = settings_of(method), options.local
    train = {
        "rounds": rounds,
        "epochs": settings["epochs"],
        "batch_size": local.batch_size,
        "lr": local.lr,
        "l2": local.l2,
        "aggregate": settings.get("aggregate", "weighted_mean"),
        "engine": "flower",
        "keep_history": options.keep_history,
    }
    if options.clients_per_round is not None:
        train["clients_per_round"] = options.clients_per_round
    flower: dict[str, Any] = {"start": digest_weights(start)}
    if train_config:
        flower["train_config"] = {key: _to_toml(value) for key, value in train_config.items()}
    config: dict[str, Any] = {"seed": options.seed, "made_by": "flower", "train": train, "flower": flower}
    if not unlearns:
        flower |= {} if forgotten is None else {"forget": str(forgotten)}
        flower["settings"] = settings
    elif forgotten is not None:
        rule = asdict(stop) if isinstance(stop, DynamicStop) else {}
        unlearn = {"forget": str(forgotten), "method": method.name, "rounds": rounds, "settings": settings}
        written = {key: value for key, value in rule.items() if value is not None}
        config["unlearn"] = {**unlearn, "stop": written} if rule else unlearn
    return tomli_w.dumps(config)


def _to_toml(value: ConfigRecordValues) -> Any:
    """Return a value as TOML can hold it: bytes by their digest."""
    if isinstance(value, list):
        return [_to_toml(part) for part in value]
    return f"sha256:{sha256(value).hexdigest()}" if isinstance(value, bytes) else value


@dataclass(frozen=True, slots=True)
class _Reporter:
    """What a run over a grid reports while it runs: scores, lines of the log, and the files beside its records."""

    engine: FlowerEngine
    start: Tensor
    rounds: int
    outcome: Outcome
    folder: RunFolder | None
    evaluate: Evaluate | None
    evaluate_every: int

    def score(self, number: int, params: Tensor) -> dict[str, float]:
        """Return the finite scores of the model after ``number`` rounds, by the user's function and by the clients."""
        if number == 1:
            self._score_here(0, self.start)
        found = self._score_here(number, params)
        if self.evaluate_every and number % self.evaluate_every == 0:
            mean = self.engine.score(params)
            self.outcome.evaluate_metrics_clientapp[number] = MetricRecord(dict(mean))
            found.update({BY_CLIENTS + key: value for key, value in mean.items()})
        return {key: value for key, value in found.items() if math.isfinite(value)}

    def _score_here(self, number: int, params: Tensor) -> dict[str, float]:
        found = None if self.evaluate is None else self.evaluate(number, self.engine.layout.to_arrays(params))
        if found is None:
            return {}
        self.outcome.evaluate_metrics_serverapp[number] = found
        return {key: float(value) for key, value in found.items() if isinstance(value, int | float)}

    def observe(self, rounds: Rounds[Any]) -> Rounds[Any]:
        """Tell leavers to leave; write names, and who was left out, before the checkpoint that ends each round."""
        is_over = False
        if self.folder is not None:
            is_over = self.folder.is_finished()
            self.engine.left_out.update(_read_left_out(self.folder, len(self.folder.rounds())))
            _write_json(self.folder.path / NAMES, self.engine.roster.names)
        if is_over:
            return
        self.engine.tell_leavers()
        for state, record in rounds:
            if self.folder is not None:
                _write_json(self.folder.path / NAMES, self.engine.roster.names)
                _write_json(self.folder.path / LEFT_OUT, self.engine.left_out)
            yield state, record
        self.engine.check_leavers()

    def show(self, record: Round) -> None:
        """Log who answered a round, by name if they are few."""
        names = [self.engine.roster.names.get(client) or client for client in record.answered]
        listed = f" ({', '.join(names)})" if 0 < len(names) <= SHOWN else ""
        count = f"{len(record.answered)} of {len(record.asked)} answered{listed}"
        log.info("round %s of %s: %s, %s", record.round + 1, self.rounds, count, record)


def _complete(outcome: Outcome, engine: FlowerEngine, done: Finished) -> Outcome:
    """Return the outcome with everything that is known once the run has ended, scores of resumed rounds included."""
    for record in done.rounds:
        own = {key: value for key, value in record.scores.items() if not key.startswith(BY_CLIENTS)}
        others = {key.removeprefix(BY_CLIENTS): record.scores[key] for key in {*record.scores} - {*own}}
        if own:
            outcome.evaluate_metrics_serverapp.setdefault(record.round + 1, MetricRecord(dict(own)))
        if others:
            outcome.evaluate_metrics_clientapp.setdefault(record.round + 1, MetricRecord(dict(others)))
    ended = replace(
        outcome, arrays=engine.layout.to_arrays(done.state.params), rounds=done.rounds, stopped=explain_end(done.rounds),
        left_out=engine.left_out, names={client: name for client, name in engine.roster.names.items() if name},
    )  # fmt: skip
    log.info("%s rounds: %s", len(done.rounds), ended.stopped)
    return ended


def _read_left_out(folder: RunFolder, before: int) -> dict[int, dict[ClientId, str]]:
    """Return who was left out of the rounds before this one, and why."""
    return {int(t): found for t, found in _read_json(folder.path / LEFT_OUT).items() if int(t) < before}


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise RunFolderError(
            f"{path} is damaged; delete it: only names and reasons for people are lost"
        ) from None


def _write_json(path: Path, values: Mapping[Any, Any]) -> None:
    """Write a small file beside the records of a run, unless it already has this content."""
    text = json.dumps(values, indent=2, sort_keys=True) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_atomically(path, text.encode())
