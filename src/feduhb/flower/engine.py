"""The engine over a Flower grid: work goes out as messages, answers come back as validated updates."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from feduhb.core.checks import check_whole
from feduhb.core.types import ClientId, Local, Updates, Work
from feduhb.data.request import Forget
from feduhb.engines.local import described
from feduhb.errors import AnswerError, ConfigError
from feduhb.flower.messages import PAUSE, Farewell, exchange
from feduhb.flower.roster import Forgotten, Roster, resolve_request
from feduhb.flower.validation import Answer, average_scores, split_answers
from feduhb.flower.wire import (
    ARRAYS,
    CLASSES,
    CONFIG,
    EVALUATE,
    ROWS,
    TRAIN,
    Layout,
    MalformedError,
    describe_work,
    read_example_count,
    read_update,
)

log = logging.getLogger("flwr.feduhb")


class FlowerEngine:
    """Trains the clients of a Flower federation, wherever they are.

    A malformed answer (wrong names or shapes, NaN, infinity, an absurd norm or number of examples) is left out and noted
    under the client's name in ``left_out``; so is every client that was asked and did not answer. All answers of a round
    are held in memory, because the norm of one is judged by the others. `feduhb.train` and `feduhb.unlearn` get an engine
    from `feduhb.flower.connected`, which lets the clients know which rows they must drop.

    Args:
        grid: the federation.
        like: arrays of the model that the clients hold; their names and shapes count, not their numbers.
        local: batch size, learning rate and l2 that clients are told; the loss is their own.
        seed: of the clients' batches.
        forget: clients that are never asked, rows and classes that clients are told to drop. A request that names
            clients is resolved here, once: it waits until clients are connected.
        partitions: clients' names in simulation, by partition id.
        min_replies: sound answers that a round needs; None needs half of those asked. A method that asks certain clients
            needs no more than those, and none if it can do without them. A round begins once this many of those asked are
            connected, or ``timeout`` has passed. If fewer answer, the others are asked once more.
        timeout: seconds to wait for answers.
        max_norm: of an update; None takes 1,000 times the median of the round, or the model's own norm if that is more.
        max_examples: that an answer may stand for; None takes 1,000 times the median of the round, and 100,000 at least.
        config: more to tell the clients with each message.
        tell_leavers: tell clients that are forgotten whole, when they are connected, to delete their cache.
        before: what earlier runs forgot, where ``forget`` is not resolved yet.
        roster: of the federation, if there is one already.
    """

    def __init__(
        self,
        grid: Grid,
        like: ArrayRecord,
        local: Local | None = None,
        *,
        seed: int = 0,
        forget: Forget | Forgotten | None = None,
        partitions: Sequence[ClientId] | None = None,
        min_replies: int | None = None,
        timeout: float = 600.0,
        max_norm: float | None = None,
        max_examples: float | None = None,
        config: Mapping[str, ConfigRecordValues] | None = None,
        tell_leavers: bool = True,
        before: Forgotten | None = None,
        roster: Roster | None = None,
    ) -> None:
        check_limits(min_replies, timeout, max_norm, max_examples)
        self.layout = Layout.of(like)
        self.roster = roster or Roster(grid, partitions, timeout=timeout)
        self.left_out: dict[int, dict[ClientId, str]] = {}  # by round, counted from 0: who, and why
        self._grid = grid
        self._local = local or Local()
        self._seed = seed
        self._min_replies = min_replies
        self._timeout = timeout
        self._max_norm = max_norm
        self._max_examples = max_examples
        self._config = dict(config or {})
        if isinstance(forget, Forgotten):
            self.forgotten = forget
        elif forget is None:
            self.forgotten = Forgotten.of(None, self.roster.names, before=before)
        else:
            self.forgotten = resolve_request(self.roster, forget, before=before)
        self._farewell = Farewell(grid, self.roster.format_client, timeout) if tell_leavers else None

    @property
    def about(self) -> Mapping[str, Any]:
        """What made these numbers."""
        precision = str(self.layout.dtype).removeprefix("torch.")
        local = {key: value for key, value in described(self._local).items() if key != "loss"}
        own = {"name": "flower", "device": "remote", "precision": precision, "flwr": version("flwr")}
        return {**own, **local}

    def clients(self) -> dict[ClientId, int]:
        """Return the node ids of the clients that are connected now and not forgotten whole."""
        return self.roster.split(self.forgotten)[0]

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Let these clients do this work; yield the sound answers in the order of the clients asked."""
        self.tell_leavers()
        if leavers := [client for client in clients if self._is_forgotten(client)]:
            raise AnswerError(f"{self.roster.format_client(leavers[0])} is forgotten and must not be asked")
        needed = self._count_needed(work, len(clients))
        self._wait(clients, needed)
        answers: dict[ClientId, Answer] = {}
        for _ in range(2):
            missing = [client for client in clients if client not in answers]
            answers.update(self._ask(work, missing, round))
            answers, faulty = split_answers(answers, work.params, self._max_norm, self._max_examples)
            self.left_out[round].update(faulty)
            if len(answers) >= needed:
                break
        reasons = [
            (self.roster.format_client(client), why) for client, why in sorted(self.left_out[round].items())
        ]
        for name, why in reasons:
            log.warning("round %s: %s is left out: %s", round + 1, name, why)
        if len(answers) < needed:
            listed = "; ".join(f"{name}: {why}" for name, why in reasons) or "no others were asked"
            raise AnswerError(
                f"{len(answers)} of {len(clients)} clients gave a sound answer in round {round}, but {needed} are needed: "
                f"{listed}. See to them and start again: finished rounds are kept if the run has a checkpoint folder"
            )
        if not self.left_out[round]:
            del self.left_out[round]
        self.tell_leavers()
        for client in clients:
            if client in answers:
                update, examples = answers[client]
                yield Updates(
                    (client,), update.to(work.params)[None], torch.tensor([examples], dtype=torch.float64)
                )

    def tell_leavers(self) -> None:
        """Tell the clients that are forgotten whole, and are connected now, to leave; do not wait for them."""
        total = self.forgotten.total
        if self._farewell is not None and total is not None and total.clients:
            self._farewell.tell(self.roster.split(self.forgotten)[1])

    def check_leavers(self) -> None:
        """Warn of leavers of this request that did not answer, or were never connected to be told."""
        if self._farewell is not None and self.forgotten.request is not None:
            self._farewell.close(self.forgotten.request.clients)

    def score(self, params: Tensor) -> dict[str, float]:
        """Let the remaining clients score a model; return the mean of each score, weighted by examples."""
        arrays = self.layout.to_arrays(params)
        messages = {
            client: Message(RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(self._list_forgotten(client))}), node, EVALUATE, ttl=self._timeout)
            for client, node in self.clients().items()
        }  # fmt: skip
        replies, silent = exchange(self._grid, messages, self._timeout)
        contents = {client: reply.content for client, reply in replies.items()}
        scores, faulty = average_scores(contents, self._max_examples)
        for client, why in {**silent, **faulty}.items():
            log.warning("%s gave no scores that count: %s", self.roster.format_client(client), why)
        return scores

    def _wait(self, clients: Sequence[ClientId], needed: int) -> None:
        """Wait until enough of these clients are connected, as after a SuperLink's restart, or the time is up."""
        end = time.monotonic() + self._timeout
        while len({*clients} & {*self.clients()}) < min(needed, len(clients)) and time.monotonic() < end:
            time.sleep(PAUSE)

    def _ask(self, work: Work, clients: Sequence[ClientId], round: int) -> dict[ClientId, Answer]:
        """Ask clients and return the answers that can be read; note in ``left_out`` why there is none of the others."""
        connected = self.clients()
        arrays = self.layout.to_arrays(work.params)
        messages = {
            client: Message(self._write(work, arrays, client, round), connected[client], TRAIN, ttl=self._timeout, group_id=str(round + 1))
            for client in clients
            if client in connected
        }  # fmt: skip
        replies, failed = exchange(self._grid, messages, self._timeout)
        failed.update({client: "it is not connected" for client in clients if client not in connected})
        self.left_out[round] = failed
        found: dict[ClientId, Answer] = {}
        for client, reply in replies.items():
            try:
                found[client] = (
                    read_update(reply.content, work, self.layout),
                    read_example_count(reply.content),
                )
            except MalformedError as error:
                failed[client] = f"it answered with {error}"
        return found

    def _write(self, work: Work, arrays: ArrayRecord, client: ClientId, round: int) -> RecordDict:
        """Return the content of a train message."""
        config = {
            **self._config,
            **describe_work(work, self._local, client, round, self._seed),
            **self._list_forgotten(client),
        }
        return RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(config)})

    def _list_forgotten(self, client: ClientId) -> dict[str, ConfigRecordValues]:
        """Return what a client must drop: its own rows, by its own keys, and all classes."""
        if (total := self.forgotten.total) is None:
            return {}
        rows = self.forgotten.list_rows(client, self.roster.names.get(client))
        return {key: some for key, some in {ROWS: rows, CLASSES: list(total.classes)}.items() if some}

    def _count_needed(self, work: Work, asked: int) -> int:
        if not work.needed:
            return 0
        if self._min_replies is None:
            return max(1, math.ceil(asked / 2))
        return self._min_replies if work.clients is None else min(self._min_replies, asked)

    def _is_forgotten(self, client: ClientId) -> bool:
        return self.forgotten.is_forgotten(client, self.roster.names.get(client))


def check_limits(
    min_replies: int | None, timeout: float, max_norm: float | None, max_examples: float | None
) -> None:
    """Raise ConfigError for limits that no run could keep."""
    if min_replies is not None:
        check_whole("min_replies", min_replies)
    if not 0 < timeout < math.inf:
        raise ConfigError(f"timeout is {timeout}; give a positive number of seconds, such as 600")
    for name, limit in (("max_norm", max_norm), ("max_examples", max_examples)):
        if limit is not None and not limit > 0:
            raise ConfigError(f"{name} is {limit}; give a positive number")
