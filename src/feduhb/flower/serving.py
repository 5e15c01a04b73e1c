"""A strategy carried out: the one loop over a federation, from fresh weights or a checkpoint to its end."""

from __future__ import annotations

import logging
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecordValues, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor

from feduhb.core.seeds import sample_clients
from feduhb.core.types import ClientId, Engine, Local, Method
from feduhb.data.request import Forget, Request
from feduhb.errors import AnswerError, ConfigError, HistoryError, RequestError, RunFolderError
from feduhb.flower import folder as files
from feduhb.flower.engine import FlowerEngine
from feduhb.flower.post import PAUSE, post
from feduhb.flower.wire import LEAVE, Layout
from feduhb.history import DiskHistory, Recorded
from feduhb.methods.replaying import bound, replays
from feduhb.records import Round, RunFolder, why_ended
from feduhb.run.checkpoint import load_params
from feduhb.run.loop import Participants, run
from feduhb.run.pipes import saved, shown
from feduhb.run.progress import told
from feduhb.stopping import StopRule

log = logging.getLogger("flwr.feduhb")
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


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


def serve(order: Order, grid: Grid, initial: ArrayRecord) -> Outcome:
    """Carry an order out on a federation; resume it where its checkpoint stands."""
    options = order.options
    engine = FlowerEngine(
        grid, initial, options.local, seed=options.seed, forget=order.forget, partitions=options.partitions,
        min_replies=options.min_replies, timeout=options.timeout, max_norm=options.max_norm, config=order.config,
    )  # fmt: skip
    folder = None if options.checkpoint is None else RunFolder(Path(options.checkpoint))
    for known in filter(None, (options.trained, options.checkpoint)):
        engine.roster.names.update(files.names(Path(known)))
    wait(engine, options)
    return _served(order, engine, engine.request(), folder, engine.layout.flat(initial))


def _served(
    order: Order, engine: FlowerEngine, request: Request | None, folder: RunFolder | None, start: Tensor
) -> Outcome:
    options = order.options
    past = _past(options, request, start, order.method)
    if folder is not None and past is not None and replays(order.method) and folder.finished():
        _erase(past, request)
        return _replayed(order, engine, request, folder)
    method = (
        order.method
        if past is None or not replays(order.method)
        else bound(order.method, past, _there(past, request))
    )
    scheduled = method.rounds or order.rounds
    text = files.described(
        method, order.stop, request, options.local, start, rounds=scheduled, seed=options.seed,
        clients_per_round=options.clients_per_round, keep_history=options.keep_history,
    )  # fmt: skip
    with files.sole_writer(folder):
        state, records = (
            (method.init(start), []) if folder is None else files.begin(folder, text, method.init(start))
        )
        if folder is not None:
            engine.left_out.update(files.left_out(folder.path, len(records)))
            files.note(folder.path, files.NAMES, engine.roster.names)
        if past is not None and not replays(method):
            _erase(past, request)
        outcome = Outcome(
            arrays=engine.layout.arrays(state.params), names=engine.roster.names, left_out=engine.left_out
        )
        if folder is None or not folder.finished():
            leaving = _farewell(engine, options) if request is not None else {}
            stream = run(
                method, _recorded(engine, options, folder, text), _participants(method, engine, options), state,
                rounds=scheduled, stop=order.stop, first=len(records), moved=[r.moved for r in records],
            )  # fmt: skip
            stream = _scored(stream, engine, order, outcome)
            for new, record in shown(stream if folder is None else saved(stream, folder), _teller(scheduled)):
                state = new
                records.append(record)
                if folder is not None:
                    files.note(folder.path, files.NAMES, engine.roster.names)
                    files.note(folder.path, files.LEFT_OUT, engine.left_out)
            if folder is not None:
                files.finish(folder, method, state, records, scheduled, engine)
            _farewells(engine, leaving)
        if past is not None:
            _erase(past, request)
    return _told(outcome, engine, state.params, records)


def _replayed(order: Order, engine: FlowerEngine, request: Request | None, folder: RunFolder) -> Outcome:
    """Give what a replay came to that has ended, and so took its history with it."""
    files.same_request(folder, order.method, request)
    records = folder.rounds()
    outcome = Outcome(names=engine.roster.names, left_out=files.left_out(folder.path, len(records)))
    return _told(outcome, engine, load_params(folder.state_path), records)


def _told(outcome: Outcome, engine: FlowerEngine, params: Tensor, records: Sequence[Round]) -> Outcome:
    for record in records:
        if record.scores and record.round + 1 not in outcome.evaluate_metrics_serverapp:
            outcome.evaluate_metrics_serverapp[record.round + 1] = MetricRecord(dict(record.scores))
    ended = replace(
        outcome, arrays=engine.layout.arrays(params), rounds=tuple(records), stopped=why_ended(records)
    )
    log.info("%s rounds: %s", len(records), ended.stopped)
    return ended


def wait(engine: FlowerEngine, options: Options) -> None:
    """Wait until the clients who shall begin are connected: in simulation all of them."""
    end = time.monotonic() + options.timeout
    while True:
        here = engine.clients()
        everyone = engine.roster.expected is None or len(engine.roster.look()) >= engine.roster.expected
        if everyone and len(here) >= (options.min_clients or 1):
            return
        if everyone and engine.roster.expected is not None and not here:
            raise RequestError(
                "nobody would remain to retrain on; leave at least one client, or delete the model instead"
            )
        if time.monotonic() > end:
            raise AnswerError(
                f"{len(here)} clients who take part are connected after {options.timeout:g} s, but {options.min_clients or 1} are needed "
                f"to begin ({', '.join(map(engine.roster.called, here)) or 'none'}); start the others, or lower min_clients"
            )
        time.sleep(PAUSE)


def _participants(method: Method[Any], engine: FlowerEngine, options: Options) -> Participants:
    """Give whoever is connected and remains, or a sample of them by (seed, round, client); in a replay those it replays."""
    if replays(method):
        return method.clients  # pyright: ignore[reportAttributeAccessIssue]

    def taking_part(round: int) -> Sequence[ClientId]:
        wait(engine, replace(options, min_clients=options.min_replies))
        here = list(engine.clients())
        count = options.clients_per_round
        return here if count is None else sample_clients(options.seed, round, here, min(count, len(here)))

    return taking_part


def _past(
    options: Options, request: Request | None, start: Tensor, method: Method[Any]
) -> DiskHistory | None:
    """Open the training that shall forget: see that this run begins where it began, and find what it kept."""
    if options.trained is None:
        if replays(method):
            raise HistoryError(
                f"{method.name} replays stored updates; say which training kept them: trained=FOLDER, its checkpoint"
            )
        return None
    folder = RunFolder(Path(options.trained))
    config = folder.config()
    if config.get("flower", {}).get("start") != files.digest(start):
        raise RunFolderError(
            f"these initial arrays are not the ones that the training in {folder.path} began with, and nothing of what it learned may "
            "flow in; draw them again: feduhb.flower.fresh_arrays(model, seed) with the training's seed"
        )
    history = DiskHistory(folder.path / files.HISTORY)
    if not replays(method):
        return history if history.rounds else None
    if options.keep_history:
        raise ConfigError(
            f"what {method.name} asks of clients is no history to replay; keep one with FedUHB or Retrain"
        )
    if request is not None and (request.rows or request.classes):
        raise RequestError(
            f"{method.name} replays whole clients' updates and cannot take rows or a class out of them; use FedUHB or Retrain"
        )
    finished = options.checkpoint is not None and RunFolder(Path(options.checkpoint)).finished()
    if not finished:  # a finished replay took its history with it
        history.check(files.owner(config), start.numel(), len(folder.rounds()))
    return history


def _there(history: DiskHistory, request: Request | None) -> list[ClientId]:
    """Name everyone of a history who remains."""
    gone = set() if request is None else set(request.clients)
    return sorted({client for t in history.rounds for client in history.clients(t)} - gone)


def _erase(history: DiskHistory, request: Request | None) -> None:
    """Delete a history from the leavers' first round on; all of it where a class is forgotten, whoever held it."""
    if request is None:
        return
    everyone = {client for t in history.rounds for client in history.clients(t)} if request.classes else set()
    freed = history.forget([*request.clients, *request.rows, *everyone])
    if freed:
        log.info("erased %s bytes of history in %s", freed, history.folder)


def _recorded(engine: FlowerEngine, options: Options, folder: RunFolder | None, config: str) -> Engine:
    if not options.keep_history:
        return engine
    if folder is None:
        raise ConfigError("a history is kept on disk; say in which folder: checkpoint=FOLDER")
    history = DiskHistory(folder.path / files.HISTORY)
    history.claim(files.owner(tomllib.loads(config)))
    return Recorded(engine, history)


def _scored(
    stream: Iterator[tuple[Any, Round]], engine: FlowerEngine, order: Order, outcome: Outcome
) -> Iterator[tuple[Any, Round]]:
    """Score the models of rounds: by the user's function on the server, and by the clients every so many rounds."""
    every = order.options.evaluate_every
    for state, record in stream:
        began, number, scores = time.perf_counter(), record.round + 1, {}
        if order.evaluate is not None:
            found = order.evaluate(number, engine.layout.arrays(state.params))
            if found is not None:
                outcome.evaluate_metrics_serverapp[number] = found
                scores.update({key: value for key, value in found.items() if isinstance(value, int | float)})
        if every and number % every == 0:
            mean = engine.mean_scores(state.params)
            outcome.evaluate_metrics_clientapp[number] = MetricRecord(dict(mean))
            scores.update({f"clients_{key}": value for key, value in mean.items()})
        yield state, replace(record, scores=scores, evaluate_seconds=time.perf_counter() - began)


def _teller(rounds: int) -> Callable[[Round], None]:
    def tell(record: Round) -> None:
        asked, answered = len(record.asked), len(record.answered)
        log.info(
            "round %s of %s: %s of %s answered, %s", record.round + 1, rounds, answered, asked, told(record)
        )

    return tell


def _farewell(engine: FlowerEngine, options: Options) -> dict[str, ClientId]:
    """Tell those who are forgotten whole, and are connected, to leave; nobody waits for them."""
    if not options.tell_leavers:
        return {}
    leavers = engine.leavers()
    messages = {
        client: Message(RecordDict(), node, LEAVE, ttl=options.timeout) for client, node in leavers.items()
    }
    return post(engine.roster.grid, messages)


def _farewells(engine: FlowerEngine, leaving: Mapping[str, ClientId]) -> None:
    for reply in engine.roster.grid.pull_messages(list(leaving)) if leaving else ():
        client = engine.roster.called(leaving[reply.metadata.reply_to_message_id])
        log.info(
            "%s was told to leave: %s",
            client,
            reply.error.reason if reply.has_error() else "it has deleted its cache",
        )
