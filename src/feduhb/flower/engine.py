"""Our Engine over a Flower grid: work goes out as messages, answers come in as updates that have been looked at."""

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

from feduhb.core.checks import whole
from feduhb.core.types import ClientId, Local, Updates, Work
from feduhb.data.request import Forget, Request, as_request
from feduhb.engines.local import described
from feduhb.errors import AnswerError, ConfigError
from feduhb.flower.farewell import Farewell
from feduhb.flower.forgetting import Forgotten, text, understood
from feduhb.flower.identity import Roster
from feduhb.flower.judging import Answer, averaged, parted
from feduhb.flower.post import PAUSE, exchange
from feduhb.flower.wire import (
    ARRAYS,
    CLASSES,
    CONFIG,
    EVALUATE,
    ROWS,
    TRAIN,
    Layout,
    MalformedError,
    examples_of,
    order,
    update_of,
)

log = logging.getLogger("flwr.feduhb")


class FlowerEngine:
    """Trains the clients of a Flower federation, wherever they are.

    What is malformed (names, shapes, NaN, infinity, an absurd norm or number of examples) is left out and noted under the
    client's name in ``left_out``; so is everyone who was asked and did not answer. The answers of a round are held together,
    for the length of one is judged by the others. `feduhb.train` and `feduhb.unlearn` get one from `feduhb.flower.connected`,
    which sees to it that clients are told of the rows they must drop.

    Args:
        grid: the federation.
        like: arrays of the model that the clients hold; their names and shapes, not their numbers.
        local: batch size, learning rate and l2 that clients are told; the loss is their own.
        seed: of the clients' batches.
        forget: clients who are never asked, rows and classes that clients are told to drop.
        partitions: clients' names in simulation, by partition id.
        min_replies: sound answers that a round needs; None needs half of those asked, and where a method asks certain clients
            no more than those are needed, or none where it can do without them. A round begins once so many of those asked are
            connected, or ``timeout`` has passed. Where fewer answer, the others are asked once more.
        timeout: seconds to wait for answers.
        max_norm: of an update; None takes 1,000 times the median of the round, or the model's own norm where that is more.
        max_examples: that an answer may stand for; None takes 1,000 times the median of the round, and 100,000 at least.
        config: more to tell the clients with each message.
        tell_leavers: tell clients that are forgotten whole, when they are connected, to delete their cache.
        before: what runs before this one forgot.
        roster: who is who, where that is known already.
    """

    def __init__(
        self,
        grid: Grid,
        like: ArrayRecord,
        local: Local | None = None,
        *,
        seed: int = 0,
        forget: Forget | None = None,
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
        if min_replies is not None:
            whole("min_replies", min_replies)
        if not 0 < timeout < math.inf:
            raise ConfigError(f"timeout is {timeout}; give a positive number of seconds, such as 600")
        for name, limit in (("max_norm", max_norm), ("max_examples", max_examples)):
            if limit is not None and not limit > 0:
                raise ConfigError(f"{name} is {limit}; give a positive number")
        self.layout = Layout.of(like)
        self.roster = roster or Roster(grid, partitions, timeout=timeout)
        self.farewell = Farewell(self.roster, timeout) if tell_leavers else None
        self.left_out: dict[int, dict[ClientId, str]] = {}
        self._grid = grid
        self._local = local or Local()
        self._seed = seed
        self._spelled = None if forget is None else as_request(forget)
        self._before = before or Forgotten()
        self._forgotten: Forgotten | None = None
        self._min_replies = min_replies
        self._timeout = timeout
        self._max_norm = max_norm
        self._max_examples = max_examples
        self._config = dict(config or {})

    @property
    def about(self) -> Mapping[str, Any]:
        """What made these numbers."""
        precision = str(self.layout.dtype).removeprefix("torch.")
        told = {key: value for key, value in described(self._local).items() if key != "loss"}
        return {"name": "flower", "device": "remote", "precision": precision, "flwr": version("flwr"), **told}

    def request(self) -> Request | None:
        """Give all that is forgotten, by client ids; refuse what names nobody. Those who are named are known from then on."""
        return self.forgotten().all

    def forgotten(self) -> Forgotten:
        """Give how the request is understood: as it was the first time, or else among those who are known now."""
        if self._forgotten is None:
            here = self.roster.look()
            self._forgotten = understood(self._spelled, self.roster, self._before, here)
        return self._forgotten

    def asks_for(self, written: Forgotten) -> bool:
        """Whether this is the request that was written down, by its spelling."""
        return written.asked == text(self._spelled) and written.earlier == self._before.all

    def understand(self, written: Forgotten) -> None:
        """Take the request as it was understood when the run began."""
        self._forgotten = written

    def clients(self) -> dict[ClientId, int]:
        """Give the node ids of those who are connected now and are not forgotten whole."""
        return {client: node for client, node in self.roster.look().items() if not self._barred(client)}

    def leavers(self) -> dict[ClientId, int]:
        """Give the node ids of those who are connected now and are forgotten whole."""
        return {client: node for client, node in self.roster.look().items() if self._barred(client)}

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Let these clients do this work; give the sound answers in the order of the clients asked."""
        self.see_off()
        if strangers := [client for client in clients if self._barred(client)]:
            raise AnswerError(f"{self.roster.called(strangers[0])} is forgotten and must not be asked")
        needed = self._needed(work, len(clients))
        self._wait(clients, needed)
        answers: dict[ClientId, Answer] = {}
        for _ in range(2):
            missing = [client for client in clients if client not in answers]
            answers.update(self._asked(work, missing, round))
            answers, faulty = parted(answers, work.params, self._max_norm, self._max_examples)
            self.left_out[round].update(faulty)
            if len(answers) >= needed:
                break
        self._tell(round)
        if len(answers) < needed:
            raise AnswerError(
                f"{len(answers)} of {len(clients)} clients gave a sound answer in round {round}, but {needed} are needed: "
                f"{self._why(round)}. See to them and start again: what is finished is kept where a checkpoint is"
            )
        if not self.left_out[round]:
            del self.left_out[round]
        self.see_off()
        for client in clients:
            if client in answers:
                update, examples = answers[client]
                yield Updates(
                    (client,), update.to(work.params)[None], torch.tensor([examples], dtype=torch.float64)
                )

    def see_off(self) -> None:
        """Tell those who are forgotten whole, and are connected now, to leave; nobody waits for them."""
        request = self.request()
        if self.farewell is not None and request is not None and request.clients:
            self.farewell.look(self.leavers())

    def mean_scores(self, params: Tensor) -> dict[str, float]:
        """Let those who remain score a model; give the mean of each score, weighted by the examples it was taken on."""
        arrays = self.layout.arrays(params)
        messages = {
            client: Message(RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(self._forgetting(client))}), node, EVALUATE, ttl=self._timeout)
            for client, node in self.clients().items()
        }  # fmt: skip
        replies, silent = exchange(self._grid, messages, self._timeout)
        scores, faulty = averaged({c: reply.content for c, reply in replies.items()}, self._max_examples)
        for client, why in {**silent, **faulty}.items():
            log.warning("%s gave no scores that count: %s", self.roster.called(client), why)
        return scores

    def _wait(self, clients: Sequence[ClientId], needed: int) -> None:
        """Wait until so many of these are connected, as after a SuperLink's restart; who is still away then is told of as such."""
        end = time.monotonic() + self._timeout
        while len({*clients} & {*self.clients()}) < min(needed, len(clients)) and time.monotonic() < end:
            time.sleep(PAUSE)

    def _asked(self, work: Work, clients: Sequence[ClientId], round: int) -> dict[ClientId, Answer]:
        """Ask, and read what comes; note why of everyone else there is nothing."""
        connected = self.clients()
        arrays = self.layout.arrays(work.params)
        messages = {
            client: Message(self._content(work, arrays, client, round), connected[client], TRAIN, ttl=self._timeout, group_id=str(round + 1))
            for client in clients
            if client in connected
        }  # fmt: skip
        replies, silent = exchange(self._grid, messages, self._timeout)
        silent.update({client: "it is not connected" for client in clients if client not in connected})
        self.left_out[round] = silent
        read: dict[ClientId, Answer] = {}
        for client, reply in replies.items():
            try:
                read[client] = update_of(reply.content, work, self.layout), examples_of(reply.content)
            except MalformedError as error:
                silent[client] = f"it answered with {error}"
        return read

    def _content(self, work: Work, arrays: ArrayRecord, client: ClientId, round: int) -> RecordDict:
        told = {
            **self._config,
            **order(work, self._local, client, round, self._seed),
            **self._forgetting(client),
        }
        return RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(told)})

    def _forgetting(self, client: ClientId) -> dict[str, ConfigRecordValues]:
        """What a client must drop: rows by its own keys, and nobody else's; classes, whoever holds them."""
        if (request := self.request()) is None:
            return {}
        rows = self.forgotten().dropped(client, self.roster.names.get(client))
        return {key: some for key, some in {ROWS: rows, CLASSES: list(request.classes)}.items() if some}

    def _needed(self, work: Work, asked: int) -> int:
        if not work.needed:
            return 0
        if self._min_replies is None:
            return max(1, math.ceil(asked / 2))
        return self._min_replies if work.clients is None else min(self._min_replies, asked)

    def _barred(self, client: ClientId) -> bool:
        """Whether a client is forgotten whole: by its id, or by the name that its key is registered under."""
        name = self.roster.names.get(client)
        spelled = () if self._spelled is None else self._spelled.clients
        known = (self._before, self._forgotten or self._before)
        return client in spelled or name in spelled or any(some.bars(client, name) for some in known)

    def _tell(self, round: int) -> None:
        for client, why in sorted(self.left_out[round].items()):
            log.warning("round %s: %s is left out: %s", round + 1, self.roster.called(client), why)

    def _why(self, round: int) -> str:
        found = sorted(self.left_out[round].items())
        return "; ".join(f"{self.roster.called(c)}: {why}" for c, why in found) or "no others were asked"
