"""The engine over a Flower grid: it sends work to clients as messages and returns their answers as validated updates."""

from __future__ import annotations

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
from feduhb.core.local import describe_local
from feduhb.core.tasks import TASKS
from feduhb.core.types import ClientId, Local, Updates, Work
from feduhb.data.request import Forget
from feduhb.errors import AnswerError, ConfigError
from feduhb.flower import wire
from feduhb.flower.files import ONLY_FIRST, ONLY_WORDS, Memory, Reasons, write_file
from feduhb.flower.messages import PAUSE, Farewell, exchange, log
from feduhb.flower.names import fold_name
from feduhb.flower.roster import Forgotten, Roster, resolve_request
from feduhb.flower.validation import (
    Answer,
    Limits,
    Scores,
    Usual,
    average_scores,
    bound_weights,
    judge_answers,
)
from feduhb.runs.files import find_json
from feduhb.runs.folder import LEFT_OUT, LIMITS, NAMES, RunFolder
from feduhb.runs.loop import HeldOut, Rounds


class FlowerEngine:
    """The engine that trains the clients of a Flower federation.

    The engine leaves out malformed answers (wrong names or shapes, unexpected records, NaN, infinity, a norm far above
    the others', of the update or of the change of a statistic, a negative variance, an absurd number of examples) and
    clients that do not answer. It bounds the weight of a client that claims
    too many examples. ``left_out`` and ``bounded`` hold the reasons by client. All answers of a round are held in
    memory, because each is judged by the others.

    `feduhb.train` and `feduhb.unlearn` get their engine from `feduhb.flower.connected`.

    Args:
        grid: the federation.
        like: arrays of the model that the clients hold. Their names and shapes are used, and, if `fresh_arrays` made them,
            the digest of the model's frozen parameters and constant buffers, with which clients compare their own.
        local: how the clients train; the loss and the augmentation are their own.
        seed: the seed of the clients' batches.
        forget: clients that never get work; rows and classes that clients must drop. A request that names
            clients is resolved once, when the engine is made; this waits until clients are connected.
        min_replies: answers that a round needs; None needs half of the clients asked. A method that asks certain clients
            needs at most these, and none if it can do without them. A round begins once this many of the clients asked
            are connected, or ``timeout`` has passed. If fewer answer, the others are asked once more.
        partitions, timeout, max_norm, max_examples, max_share, examples, tell_leavers: as for the strategies.
        config: additional values to send to the clients with each train message.
        before: what earlier runs forgot, if ``forget`` is not resolved yet.
        roster: an existing roster of the federation.
        asks_leavers: let leavers do work, before they are told to leave: the operator allowed it.
    """

    tasks = tuple(TASKS.values())

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
        max_share: float | None = None,
        examples: Mapping[str, float] | None = None,
        config: Mapping[str, ConfigRecordValues] | None = None,
        tell_leavers: bool = True,
        before: Forgotten | None = None,
        roster: Roster | None = None,
        asks_leavers: bool = False,
    ) -> None:
        self._limits = Limits(max_norm, max_examples, max_share, examples or {})
        check_waiting(min_replies, timeout)
        self.layout = wire.Layout.of(like)
        self._carried = wire.get_carried(like)[1]
        self.roster = roster or Roster(grid, partitions, timeout=timeout)
        self.left_out: dict[int, dict[ClientId, str]] = {}  # reasons by client, by round counted from 0
        self.memory = Memory()
        self._grid = grid
        self._local = local or Local()
        self._seed = seed
        self._min_replies = min_replies
        self._timeout = timeout
        self._config = dict(config or {})
        if isinstance(forget, Forgotten):
            self.forgotten = forget
        elif forget is None:
            self.forgotten = Forgotten.of(None, self.roster.names, before=before)
        else:
            self.forgotten = resolve_request(self.roster, forget, before=before)
        self._held_out: str | None = None  # the score that clients are asked for; None: no held-out values
        self._said: dict[ClientId, Scores] = {}  # held-out values of this round, by client
        # The clients that say in this round that their last batch joined another.
        self._joined: set[ClientId] = set()
        self._farewell = Farewell(grid, self.roster.format_client, timeout) if tell_leavers else None
        self._asks_leavers = asks_leavers  # until the remaining clients are asked for the first time

    @property
    def about(self) -> Mapping[str, Any]:
        """The engine's name, precision and settings, for the records of a run."""
        precision = str(self.layout.dtype).removeprefix("torch.")
        described = describe_local(self._local)
        local = {key: value for key, value in described.items() if key not in {"loss", "augment"}}
        own = {"name": "flower", "device": "remote", "precision": precision, "flwr": version("flwr")}
        joined = {"joined_last_batch": sorted(self.memory.joined)} if self.memory.joined else {}
        return {**own, **local, **joined}

    @property
    def bounded(self) -> dict[int, dict[ClientId, str]]:
        """Why the weight of a client was bounded, by client, by round counted from 0."""
        return self.memory.bounded

    def clients(self) -> dict[ClientId, int]:
        """Return the node ids of the clients that are connected now and not forgotten whole."""
        return self.roster.split(self.forgotten)[0]

    def _list_connected(self, work: Work) -> dict[ClientId, int]:
        """Return the node ids of the connected clients that some work may be sent to."""
        remaining, leavers = self.roster.split(self.forgotten)
        return {**remaining, **leavers} if work.leavers else remaining

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Let these clients do this work; yield the sound answers in the order of the clients asked."""
        self._check_asked(work, clients)
        self.tell_leavers()
        if round == 0:
            self._warn_of_unknown(clients)
        needed = self._count_needed(work, len(clients))
        self._wait(work, clients, needed)
        answers: dict[ClientId, Answer] = {}
        self._said.clear()
        self._joined.clear()
        usual = before = Usual() if work.leavers else self.memory.get_usual(work.epochs)
        for _ in range(2):
            missing = [client for client in clients if client not in answers]
            answers.update(self._ask(work, missing, round))
            answers, faulty, usual = judge_answers(
                answers, work.params.cpu(), self.layout, self._limits, before, is_first=round == 0
            )
            self.left_out[round].update(faulty)
            if len(answers) >= needed:
                break
        if not work.leavers:
            self.memory.set_usual(work.epochs, usual)
        reasons = {self.roster.format_client(c): why for c, why in sorted(self.left_out[round].items())}
        for name, why in reasons.items():
            log.warning("round %s: %s is left out: %s; look at its SuperNode's log", round + 1, name, why)
        if len(answers) < needed:
            listed = "; ".join(f"{name}: {why}" for name, why in reasons.items()) or "no others were asked"
            raise AnswerError(
                f"{len(answers)} of {len(clients)} clients sent a valid update in round {round}, but {needed} are needed: "
                f"{listed}. Repair these clients and start again: a run with a checkpoint folder keeps its finished rounds"
            )
        if not self.left_out[round]:
            del self.left_out[round]
        if not work.leavers:
            self.memory.joined |= self._joined & {*answers}
        weights = self._bound_weights(answers, round, {} if work.leavers else self.memory.examples)
        self.tell_leavers()
        for client in (client for client in clients if client in answers):
            weight = torch.tensor([weights[client]], dtype=torch.float64)
            yield Updates((client,), answers[client][0].to(work.params)[None], weight)

    def _check_asked(self, work: Work, clients: Sequence[ClientId]) -> None:
        """Raise AnswerError for work of leavers that nobody allowed, and for any other work of a forgotten client."""
        if work.leavers and not self._asks_leavers:
            raise AnswerError(
                "leavers must not be asked: the operator did not allow it, or they have been told to leave; use FedUHB or Retrain"
            )
        if work.leavers:
            return
        self._asks_leavers = False
        for client in clients:
            if self.forgotten.is_forgotten(client, self.roster.names.get(client)):
                raise AnswerError(f"{self.roster.format_client(client)} is forgotten and must not be asked")

    def tell_leavers(self) -> None:
        """Ask the forgotten clients that are connected now to leave, unless they are still asked for work; do not wait for answers."""
        total = None if self._asks_leavers else self.forgotten.total
        if self._farewell is not None and total is not None and total.clients:
            self._farewell.tell(self.roster.split(self.forgotten)[1])

    def check_leavers(self) -> None:
        """Warn about leavers of this request that did not answer or were never connected."""
        if self._asks_leavers:  # no round was left for the remaining clients
            self._asks_leavers = False
            self.tell_leavers()
        if self._farewell is not None and self.forgotten.request is not None:
            self._farewell.close(self.forgotten.request.clients)

    def recorded(self, rounds: Rounds[Any], folder: RunFolder) -> Rounds[Any]:
        """Write names, limits and left-out clients before the checkpoint that ends each round; begin with those of a resumed run."""
        self.recall(folder)
        write_file(folder.path / NAMES, self.roster.names)
        for state, record in rounds:
            write_file(folder.path / NAMES, self.roster.names)
            write_file(folder.path / LIMITS, self.memory.to_json())
            write_file(folder.path / LEFT_OUT, self.left_out)
            yield state, record

    def recall(self, folder: RunFolder) -> None:
        """Continue with what a run folder says of the rounds that it records."""
        before, left_out = len(folder.rounds()), find_json(folder.path / LEFT_OUT, Reasons, ONLY_WORDS) or {}
        self.left_out.update({t: found for t, found in left_out.items() if t < before})
        self.memory = find_json(folder.path / LIMITS, Memory, ONLY_FIRST) or Memory()
        for t in [t for t in self.bounded if t >= before]:
            del self.bounded[t]

    def score(self, params: Tensor) -> dict[str, float]:
        """Let the remaining clients score a model; return the mean of each score, weighted by examples."""
        arrays = self.layout.to_arrays(params)
        # The seed, because a factory may draw constant buffers.
        own = {} if self._carried is None else {"seed": self._seed, wire.CARRIED: self._carried}
        messages = {
            client: Message(
                _make_content(arrays, {**own, **self._list_forgotten(client)}), node, wire.EVALUATE, ttl=self._timeout
            )
            for client, node in self.clients().items()
        }  # fmt: skip
        answers, silent = exchange(self._grid, messages, self._timeout, wire.read_scores)
        scores, faulty = average_scores(answers, self._limits, self._find_declared, self.memory.scored)
        for client, why in {**silent, **faulty}.items():
            name = self.roster.format_client(client)
            log.warning(
                "%s is left out of the scores, or bounded: %s; look at its SuperNode's log", name, why
            )
        return scores

    def ask_held_out(self, score: str) -> HeldOut:
        """Ask the clients, with each train message from now on, for the loss and a score of the model in it.

        Return the function that averages those of a round. Raise ConfigError if every remaining client that is connected has no
        held-out examples. The function raises AnswerError if none sends values in the first round: clients of an earlier
        version do not answer how many they have.

        Args:
            score: the name of a built-in score, "" for the loss alone, or "auto" for the accuracy if there is one.
        """
        self._held_out = score
        messages = {
            client: Message(
                RecordDict({wire.CONFIG: ConfigRecord({wire.HELD_OUT: score, **self._list_forgotten(client)})}),
                node, wire.WHO, ttl=self._timeout,
            )
            for client, node in self.clients().items()
        }  # fmt: skip
        may, silent = exchange(self._grid, messages, self._timeout, wire.may_hold_out, suffices=bool)
        if may and not silent and not any(may.values()):
            raise ConfigError(
                f"none of the {len(may)} remaining clients that are connected has held-out data; give it to their apps, "
                "client_app(held_out=...), or choose a stop rule that needs none, such as feduhb.distance_stop()"
            )
        return self._average_held_out

    def _average_held_out(self, round: int, _: Tensor, clients: Sequence[ClientId]) -> dict[str, float]:
        said = {client: self._said[client] for client in sorted(clients) if client in self._said}
        means, faulty = average_scores(
            said, self._limits, self._find_declared, self.memory.held_out, shares=("accuracy", "auroc", "f1")
        )
        for client, why in faulty.items():
            name = self.roster.format_client(client)
            log.warning(
                "round %s: %s is left out of the held-out values, or bounded: %s", round + 1, name, why
            )
        score = "accuracy" if self._held_out == wire.AUTO else self._held_out
        names = ("loss", *filter(None, [score]))
        diverged = {
            name: client for client, (_, own) in said.items() for name in names if not math.isfinite(own.get(name, 0.0))
        }  # fmt: skip
        for name, client in diverged.items():
            log.warning(
                "round %s: the held-out %s is not recorded, because that of %s is not finite",
                round + 1, name, self.roster.format_client(client),
            )  # fmt: skip
        if round == 0 and clients and "loss" not in {*means, *diverged}:
            raise AnswerError(
                "no client sent held-out values in round 0; give client_app(held_out=...), or choose a stop rule that needs none"
            )
        return {name: means[name] for name in names if name in means and name not in diverged}

    def _wait(self, work: Work, clients: Sequence[ClientId], needed: int) -> None:
        """Wait until enough of these clients are connected, or the time is up: a SuperLink may just have restarted."""
        end = time.monotonic() + self._timeout
        while (
            len({*clients} & {*self._list_connected(work)}) < min(needed, len(clients))
            and time.monotonic() < end
        ):
            time.sleep(PAUSE)

    def _ask(self, work: Work, clients: Sequence[ClientId], round: int) -> dict[ClientId, Answer]:
        """Send work to clients; return the answers that can be read, and put the reasons for the others into ``left_out``."""
        connected = self._list_connected(work)
        arrays = self.layout.to_arrays(work.params)
        messages: dict[ClientId, Message] = {}
        for client in (client for client in clients if client in connected):
            own = wire.describe_work(work, self._local, client, round, self._seed)
            if self._carried is not None:
                own[wire.CARRIED] = self._carried
            if self._held_out is not None:
                own[wire.HELD_OUT] = self._held_out
            content = _make_content(arrays, {**self._config, **own, **self._list_forgotten(client)})
            messages[client] = Message(
                content, connected[client], wire.TRAIN, ttl=self._timeout, group_id=str(round + 1)
            )

        more = () if self._held_out is None else (wire.HELD_OUT,)

        def read(content: RecordDict) -> tuple[Answer, Scores | None, bool]:
            answer = wire.read_update(content, work, self.layout, *more), wire.read_example_count(content)
            return answer, wire.read_held_out(content), wire.has_joined(content)

        replies, failed = exchange(self._grid, messages, self._timeout, read)
        found = {client: answer for client, (answer, _, _) in replies.items()}
        self._said.update({client: held for client, (_, held, _) in replies.items() if held is not None})
        self._joined |= {client for client, (_, _, has_joined) in replies.items() if has_joined}
        failed.update({client: "it is not connected" for client in clients if client not in connected})
        self.left_out[round] = failed
        return found

    def _bound_weights(
        self, answers: Mapping[ClientId, Answer], round: int, first: dict[ClientId, float]
    ) -> dict[ClientId, float]:
        """Return the examples that each client counts for; log and record the clients that claim too many.

        Args:
            first: the number of examples in each client's first answer, to which those of new clients are added.
        """
        counts = {client: count for client, (_, count) in answers.items()}
        weights, why = bound_weights(counts, self._find_declared, first, self._limits.max_share)
        self.bounded.pop(round, None)
        if why:
            self.bounded[round] = why
        for client, reason in sorted(why.items()):
            log.warning("round %s: %s: %s", round + 1, self.roster.format_client(client), reason)
        return weights

    def _warn_of_unknown(self, clients: Sequence[ClientId]) -> None:
        """Warn about declared numbers of examples that belong to no client, for example because of a typing error."""
        known = {
            fold_name(name) for client in clients for name in (client, self.roster.names.get(client, ""))
        }
        for name in self._limits.examples:
            if fold_name(name) not in known:
                log.warning(
                    "examples names %s, but no client that takes part has that id or name; check it", name
                )

    def _find_declared(self, client: ClientId) -> float | None:
        """Return the number of examples that the operator declared for a client, by its id or its registered name."""
        declared = self._limits.examples
        if client in declared:
            return declared[client]
        name = fold_name(self.roster.names.get(client, ""))
        return next((count for other, count in declared.items() if name and fold_name(other) == name), None)

    def _list_forgotten(self, client: ClientId) -> dict[str, ConfigRecordValues]:
        """Return the part of a message that names what a client must drop: rows by its own keys, and classes.

        As long as leavers are asked, the rows of this request are named as those to work on, and dropped after that.
        """
        if (total := self.forgotten.total) is None:
            return {}
        rows = self.forgotten.list_rows(client, self.roster.names.get(client))
        request = self.forgotten.request if self._asks_leavers else None
        targets = [] if request is None else list(request.rows.get(client, ()))
        named = {
            wire.ROWS: [row for row in rows if row not in {*targets}],
            wire.TARGETS: targets,
            wire.CLASSES: list(total.classes),
        }
        return {key: some for key, some in named.items() if some}

    def _count_needed(self, work: Work, asked: int) -> int:
        if not work.needed:
            return 0
        if self._min_replies is None:
            return max(1, math.ceil(asked / 2))
        return self._min_replies if work.clients is None else min(self._min_replies, asked)


def _make_content(arrays: ArrayRecord, config: dict[str, ConfigRecordValues]) -> RecordDict:
    return RecordDict({wire.ARRAYS: arrays, wire.CONFIG: ConfigRecord(config)})


def check_waiting(min_replies: int | None, timeout: float) -> None:
    """Raise ConfigError for a number of replies or seconds that is not positive."""
    if min_replies is not None:
        check_whole("min_replies", min_replies)
    if not 0 < timeout < math.inf:
        raise ConfigError(f"timeout is {timeout}; give a positive number of seconds, such as 600")
