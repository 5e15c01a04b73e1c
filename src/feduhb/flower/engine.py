"""Our Engine over a Flower grid: work goes out as messages, answers come in as updates that have been looked at."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from feduhb.core.types import ClientId, Local, Updates, Work
from feduhb.data.request import Forget, Request, as_request
from feduhb.engines.local import described
from feduhb.errors import AnswerError, ConfigError
from feduhb.flower.identity import Roster
from feduhb.flower.post import exchange
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
    weighted,
)
from feduhb.run.answers import faults

OUTLIER = 1000.0  # an update so many times longer than the round's median is no honest one
log = logging.getLogger("flwr.feduhb")

Answer = tuple[Tensor, float]  # an update [P] and the examples it stands for


class FlowerEngine:
    """Trains the clients of a Flower federation, wherever they are.

    What is malformed (names, shapes, NaN, infinity, an absurd norm) is left out and noted under the client's name in
    ``left_out``; so is everyone who was asked and did not answer. The answers of a round are held together, for the length
    of one is judged by the others. `feduhb.train` and `feduhb.unlearn` get one from `feduhb.flower.connected`, which sees to it
    that clients are told of the rows they must drop.

    Args:
        grid: the federation.
        like: arrays of the model that the clients hold; their names and shapes, not their numbers.
        local: batch size, learning rate and l2 that clients are told; the loss is their own.
        seed: of the clients' batches.
        forget: clients who are never asked, rows and classes that clients are told to drop.
        partitions: clients' names in simulation, by partition id.
        min_replies: sound answers that a round needs; None needs half of those asked. Where there are fewer, the others
            are asked once more.
        timeout: seconds to wait for answers.
        max_norm: of an update; None takes 1,000 times the median of the round.
        config: more to tell the clients with each message.
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
        config: Mapping[str, ConfigRecordValues] | None = None,
    ) -> None:
        if min_replies is not None and min_replies < 1:
            raise ConfigError(f"min_replies is {min_replies}; give 1 or more")
        if not 0 < timeout < math.inf:
            raise ConfigError(f"timeout is {timeout}; give a positive number of seconds, such as 600")
        if max_norm is not None and not max_norm > 0:
            raise ConfigError(f"max_norm is {max_norm}; give a positive number")
        self.layout = Layout.of(like)
        self.roster = Roster(grid, partitions, timeout=timeout)
        self.left_out: dict[int, dict[ClientId, str]] = {}
        self._grid = grid
        self._local = local or Local()
        self._seed = seed
        self._spelled = None if forget is None else as_request(forget)
        self._request: Request | None = None
        self._min_replies = min_replies
        self._timeout = timeout
        self._max_norm = max_norm
        self._config = dict(config or {})

    @property
    def about(self) -> Mapping[str, Any]:
        """What made these numbers."""
        precision = str(self.layout.dtype).removeprefix("torch.")
        told = {key: value for key, value in described(self._local).items() if key != "loss"}
        return {"name": "flower", "device": "remote", "precision": precision, "flwr": version("flwr"), **told}

    def request(self) -> Request | None:
        """Give what is forgotten, by client ids; refuse what names nobody. Those who are named are known from then on."""
        if self._request is None and self._spelled is not None:
            self._request = self.roster.resolved(self._spelled, self.roster.look())
        return self._request

    def clients(self) -> dict[ClientId, int]:
        """Give the node ids of those who are connected now and are not forgotten whole."""
        return {client: node for client, node in self.roster.look().items() if not self._barred(client)}

    def leavers(self) -> dict[ClientId, int]:
        """Give the node ids of those who are connected now and are forgotten whole."""
        return {client: node for client, node in self.roster.look().items() if self._barred(client)}

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Let these clients do this work; give the sound answers in the order of the clients asked."""
        self.request()
        if strangers := [client for client in clients if self._barred(client)]:
            raise AnswerError(f"{self.roster.called(strangers[0])} is forgotten and must not be asked")
        needed = max(1, math.ceil(len(clients) / 2) if self._min_replies is None else self._min_replies)
        answers: dict[ClientId, Answer] = {}
        for _ in range(2):
            missing = [client for client in clients if client not in answers]
            answers.update(self._asked(work, missing, round))
            answers, faulty = self._sound(answers, work.params)
            self.left_out[round].update(faulty)
            if len(answers) >= needed:
                break
        self._tell(round)
        if not self.left_out[round]:
            del self.left_out[round]
        if len(answers) < needed:
            raise AnswerError(
                f"{len(answers)} of {len(clients)} clients gave a sound answer in round {round}, but {needed} are needed: "
                f"{self._why(round)}. See to them and start again: what is finished is kept where a checkpoint is"
            )
        for client in clients:
            if client in answers:
                update, examples = answers[client]
                yield Updates(
                    (client,), update.to(work.params)[None], torch.tensor([examples], dtype=torch.float64)
                )

    def mean_scores(self, params: Tensor) -> dict[str, float]:
        """Let those who remain score a model; give the mean of each score, weighted by the examples it was taken on."""
        arrays = self.layout.arrays(params)
        messages = {
            client: Message(RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(self._forgetting(client))}), node, EVALUATE, ttl=self._timeout)
            for client, node in self.clients().items()
        }  # fmt: skip
        replies, silent = exchange(self._grid, messages, self._timeout)
        for client, why in silent.items():
            log.warning("%s gave no scores: %s", self.roster.called(client), why)
        return weighted([reply.content for reply in replies.values()])

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
        if self._request is None:
            return {}
        wanted = {ROWS: list(self._request.rows.get(client, ())), CLASSES: list(self._request.classes)}
        return {key: some for key, some in wanted.items() if some}

    def _sound(
        self, answers: Mapping[ClientId, Answer], params: Tensor
    ) -> tuple[dict[ClientId, Answer], dict[ClientId, str]]:
        """Part the answers that may be averaged from those that may not, with the reason."""
        limit = self._limit([update for update, _ in answers.values()], params)
        found = {client: _fault(answer, params, limit) for client, answer in answers.items()}
        sound = {client: answer for client, answer in answers.items() if found[client] is None}
        return sound, {client: f"it answered with {fault}" for client, fault in found.items() if fault}

    def _limit(self, updates: Sequence[Tensor], params: Tensor) -> float:
        """The longest update that is taken: against the median of a round, or against the model where one stands alone."""
        if self._max_norm is not None:
            return self._max_norm
        norms = sorted(n for n in map(_norm, updates) if math.isfinite(n))
        typical = norms[(len(norms) - 1) // 2] if len(norms) > 1 else 0.0
        return OUTLIER * (typical or max(1.0, _norm(params)))

    def _barred(self, client: ClientId) -> bool:
        """Whether a client is forgotten whole: by its id, or by the name that its key is registered under."""
        called = {client, self.roster.names.get(client)}
        return any(
            request is not None and called & {*request.clients} for request in (self._spelled, self._request)
        )

    def _tell(self, round: int) -> None:
        for client, why in sorted(self.left_out[round].items()):
            log.warning("round %s: %s is left out: %s", round + 1, self.roster.called(client), why)

    def _why(self, round: int) -> str:
        return "; ".join(f"{self.roster.called(c)}: {why}" for c, why in sorted(self.left_out[round].items()))


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values.double()))


def _fault(answer: Answer, params: Tensor, limit: float) -> str | None:
    update, examples = answer
    block = Updates(("it",), update[None], torch.tensor([examples], dtype=torch.float64))
    return faults(block, params, limit)[0]
