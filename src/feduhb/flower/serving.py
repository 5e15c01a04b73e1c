"""A strategy carried out: the one loop over a federation, from fresh weights or a checkpoint to its end."""

from __future__ import annotations

import logging
import math
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecordValues, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor

from feduhb.core.seeds import sample_clients
from feduhb.core.types import ClientId, Engine, Local, Method
from feduhb.data.request import Forget
from feduhb.errors import AnswerError, ConfigError, RequestError
from feduhb.flower import folder as files
from feduhb.flower import forgetting
from feduhb.flower.engine import FlowerEngine
from feduhb.flower.forgetting import Forgotten, forgotten_in
from feduhb.flower.past import Past
from feduhb.flower.post import PAUSE
from feduhb.flower.wire import Layout
from feduhb.history import DiskHistory, Recorded
from feduhb.methods.replaying import replays
from feduhb.methods.retrain import Plain
from feduhb.records import Round, RunFolder, why_ended
from feduhb.run.checkpoint import load_params
from feduhb.run.folder import identity
from feduhb.run.loop import Participants, run
from feduhb.run.pipes import saved, shown
from feduhb.run.progress import told
from feduhb.stopping import StopRule

log = logging.getLogger("flwr.feduhb")
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
Rounds = Iterator[tuple[Any, Round]]
SHOWN = 8  # clients that a line of the log names
BY_CLIENTS = "clients_"  # before the name of a score that the clients gave


@dataclass(repr=False)
class Outcome(Result):
    """Flower's `Result`, and what our loop knows beside it."""

    rounds: tuple[Round, ...] = ()
    stopped: str = ""  # why it ended, in words
    left_out: dict[int, dict[ClientId, str]] = field(
        default_factory=dict
    )  # by round, counted from 0: who, and why
    names: dict[ClientId, str] = field(default_factory=dict)  # registered names, for display

    @property
    def params(self) -> Tensor:
        """The weights, flat [P]."""
        return Layout.of(self.arrays).flat(self.arrays)


@dataclass(kw_only=True)
class Options:
    """What all strategies can be told."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One run to carry out."""

    method: Method[Any]
    stop: StopRule
    forget: Forget | None
    options: Options
    rounds: int
    evaluate: Evaluate | None = None
    config: Mapping[str, ConfigRecordValues] = field(default_factory=dict)
    unlearns: bool = True


def serve(order: Order, grid: Grid, initial: ArrayRecord) -> Outcome:
    """Carry an order out on a federation; resume it where its checkpoint stands."""
    options = order.options
    trained, folder = (
        None if place is None else RunFolder(Path(place)) for place in (options.trained, options.checkpoint)
    )
    engine = FlowerEngine(
        grid, initial, options.local, seed=options.seed, forget=order.forget, partitions=options.partitions,
        min_replies=options.min_replies, timeout=options.timeout, max_norm=options.max_norm, config=order.config,
        max_examples=options.max_examples, tell_leavers=options.tell_leavers,
        before=None if trained is None else forgotten_in(trained),
    )  # fmt: skip
    for known in filter(None, (trained, folder)):
        engine.roster.names.update(files.names(known.path))
    forgotten = _understood(engine, options, None if folder is None else forgetting.read(folder.path))
    start = engine.layout.flat(initial)
    past = Past.of(trained, forgotten, start)
    past.check(engine.roster.names)
    with files.held(folder):
        if folder is not None and folder.finished() and replays(order.method):
            files.same_request(folder, order.method, forgotten.all)
            state, records = Plain(load_params(folder.state_path)), folder.rounds()
            engine.left_out.update(files.left_out(folder.path, len(records)))
            outcome = Outcome()
        else:
            method = past.given_to(order.method, start)
            state, records, outcome = _carried_out(replace(order, method=method), engine, past, folder, start)
        past.erase()
    return _told(outcome, engine, state.params, records)


def _understood(engine: FlowerEngine, options: Options, written: Forgotten | None) -> Forgotten:
    """Wait for clients and see who is to be forgotten: as it was written down when the run began, and not anew."""
    if written is not None and engine.asks_for(written):
        engine.understand(written)
    wait(engine, options.min_clients, options.timeout)
    found = engine.forgotten()
    if written is not None and found.same_as(written):
        engine.understand(written)
    if found.all is not None and engine.roster.unnamed():
        log.warning(
            "no client has a registered name; where nodes are not authenticated each makes up another key at every start, and one "
            "that is forgotten comes back as a stranger: start the SuperLink with --enable-supernode-auth and register nodes by --name"
        )
    return engine.forgotten()


def _carried_out(
    order: Order, engine: FlowerEngine, past: Past, folder: RunFolder | None, start: Tensor
) -> tuple[Any, list[Round], Outcome]:
    """Run what is left of a run, from its folder's last checkpoint if it has one."""
    options, method, outcome = order.options, order.method, Outcome()
    scheduled = method.rounds or order.rounds
    text = files.described(
        method, order.stop, engine.request(), options.local, start, rounds=scheduled, seed=options.seed,
        clients_per_round=options.clients_per_round, keep_history=options.keep_history, unlearns=order.unlearns,
        told=order.config,
    )  # fmt: skip
    state, records = method.init(start), []
    if folder is not None:
        state, records = files.begin(folder, text, state, engine.forgotten())
        engine.left_out.update(files.left_out(folder.path, len(records)))
        files.note(folder.path, files.NAMES, engine.roster.names)
        past.note(folder)
        if folder.finished():
            return state, records, outcome
    answering = _recorded(engine, options, method, folder, text)
    if not replays(method):
        past.erase()
    engine.see_off()
    stream = run(
        method, answering, _participants(method, engine, options), state,
        rounds=scheduled, stop=order.stop, first=len(records), moved=[r.moved for r in records], on_bad="drop",
    )  # fmt: skip
    stream = _scored(stream, engine, order, outcome, start)
    if folder is not None:
        stream = saved(_noted(stream, folder, engine), folder)
    for new, record in shown(stream, partial(_say, engine, scheduled)):
        state = new
        records.append(record)
    if folder is not None:
        files.finish(folder, method, state, records, scheduled, engine)
    if engine.farewell is not None and past.request is not None:
        engine.farewell.close(past.request.clients)
    return state, records, outcome


def _told(outcome: Outcome, engine: FlowerEngine, params: Tensor, records: Sequence[Round]) -> Outcome:
    for record in records:
        own = {key: value for key, value in record.scores.items() if not key.startswith(BY_CLIENTS)}
        others = {key.removeprefix(BY_CLIENTS): record.scores[key] for key in {*record.scores} - {*own}}
        if own:
            outcome.evaluate_metrics_serverapp.setdefault(record.round + 1, MetricRecord(dict(own)))
        if others:
            outcome.evaluate_metrics_clientapp.setdefault(record.round + 1, MetricRecord(dict(others)))
    ended = replace(
        outcome, arrays=engine.layout.arrays(params), rounds=tuple(records), stopped=why_ended(records),
        left_out=engine.left_out, names={client: name for client, name in engine.roster.names.items() if name},
    )  # fmt: skip
    log.info("%s rounds: %s", len(records), ended.stopped)
    return ended


def wait(engine: FlowerEngine, needed: int | None, timeout: float) -> None:
    """Wait until so many who take part are connected, one at least; in simulation all of them."""
    end = time.monotonic() + timeout
    while True:
        here = engine.clients()
        everyone = engine.roster.expected is None or len(engine.roster.look()) >= engine.roster.expected
        if everyone and len(here) >= (needed or 1):
            return
        if everyone and engine.roster.expected is not None and not here:
            raise RequestError(
                "nobody would remain to retrain on; leave at least one client, or delete the model instead"
            )
        if time.monotonic() > end:
            raise AnswerError(
                f"{len(here)} clients who take part are connected after {timeout:g} s, but {needed or 1} are needed "
                f"({', '.join(map(engine.roster.called, here)) or 'none'}); start the others, or lower min_clients and min_replies"
            )
        time.sleep(PAUSE)


def _participants(method: Method[Any], engine: FlowerEngine, options: Options) -> Participants:
    """Give whoever is connected and remains, or a sample of them by (seed, round, client); in a replay those it replays."""
    if replays(method):
        return method.clients  # pyright: ignore[reportAttributeAccessIssue]

    def taking_part(round: int) -> Sequence[ClientId]:
        wait(engine, options.min_replies, options.timeout)
        here = list(engine.clients())
        count = options.clients_per_round
        return here if count is None else sample_clients(options.seed, round, here, min(count, len(here)))

    return taking_part


def _recorded(
    engine: FlowerEngine, options: Options, method: Method[Any], folder: RunFolder | None, config: str
) -> Engine:
    """Let the engine keep a history where one is wanted."""
    if not options.keep_history:
        return engine
    if replays(method):
        raise ConfigError(
            f"what {method.name} asks of clients is no history to replay; keep one with FedUHB or Retrain"
        )
    if folder is None:
        raise ConfigError("a history is kept on disk; say in which folder: checkpoint=FOLDER")
    history = DiskHistory(folder.path / files.HISTORY)
    history.claim(identity(tomllib.loads(config)))
    return Recorded(engine, history)


def _scored(rounds: Rounds, engine: FlowerEngine, order: Order, outcome: Outcome, start: Tensor) -> Rounds:
    """Score the models of rounds: by the user's function on the server, and by the clients every so many rounds."""

    def on_server(number: int, params: Tensor) -> dict[str, float]:
        found = None if order.evaluate is None else order.evaluate(number, engine.layout.arrays(params))
        if found is None:
            return {}
        outcome.evaluate_metrics_serverapp[number] = found
        return {key: float(value) for key, value in found.items() if isinstance(value, int | float)}

    def by_clients(number: int, params: Tensor) -> dict[str, float]:
        every = order.options.evaluate_every
        if not every or number % every:
            return {}
        mean = engine.mean_scores(params)
        outcome.evaluate_metrics_clientapp[number] = MetricRecord(dict(mean))
        return {BY_CLIENTS + key: value for key, value in mean.items()}

    for state, record in rounds:
        began, number = time.perf_counter(), record.round + 1
        if number == 1:
            on_server(0, start)
        found = {**on_server(number, state.params), **by_clients(number, state.params)}
        scores = {key: value for key, value in found.items() if math.isfinite(value)}
        yield state, replace(record, scores=scores, evaluate_seconds=time.perf_counter() - began)


def _noted(rounds: Rounds, folder: RunFolder, engine: FlowerEngine) -> Rounds:
    """Keep names and who was left out beside the records, before a checkpoint says that the round is over."""
    for state, record in rounds:
        files.note(folder.path, files.NAMES, engine.roster.names)
        files.note(folder.path, files.LEFT_OUT, engine.left_out)
        yield state, record


def _say(engine: FlowerEngine, rounds: int, record: Round) -> None:
    """Say who answered, by name where they are few."""
    few = len(record.answered) <= SHOWN
    names = [engine.roster.names.get(client) or client for client in record.answered]
    who = f" ({', '.join(names)})" if names and few else ""
    count = f"{len(record.answered)} of {len(record.asked)} answered{who}"
    log.info("round %s of %s: %s, %s", record.round + 1, rounds, count, told(record))
