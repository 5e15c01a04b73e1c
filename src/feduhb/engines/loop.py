"""The reference engine, which trains one client after another, and the helpers that all engines share."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from feduhb.core.flat import flatten, unflatten
from feduhb.core.seeds import generator
from feduhb.core.types import ClientId, Local, Updates, Work
from feduhb.data.federation import Examples, Federation
from feduhb.errors import AnswerError, ConfigError

CHUNK = 512  # examples in one pass of a full-batch gradient
Answer = tuple[ClientId, Tensor, int]  # client, update [P], number of examples


class Loop:
    """Train clients one at a time with `torch.optim.SGD`.

    It computes with one thread by default, so that its bits do not depend on the number of cores.
    """

    def __init__(
        self,
        federation: Federation,
        local: Local | None = None,
        *,
        block: int = 1,
        device: str = "cpu",
        threads: int = 1,
    ) -> None:
        check_sizes("loop", threads, block)
        self.threads = threads
        self.federation = federation
        self.local = local or Local(loss=federation.loss)
        self.block = block
        self.device = torch.device(device)
        self._model = federation.fresh_model().to(self.device)

    @property
    def about(self) -> Mapping[str, Any]:
        """The engine's name and settings, for the records of a run."""
        sizes = {"threads": self.threads, "block": self.block}
        made = {"name": "loop", "device": self.device.type, "precision": get_precision(self._model)}
        return {**made, **sizes, **describe_local(self.local)}

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Train these clients one after another."""
        return group_answers((self._answer(work, client, round) for client in clients), self.block)

    def _answer(self, work: Work, client: ClientId, round: int) -> Answer:
        examples = self.federation.clients[client]
        model = copy.deepcopy(self._model)
        start = work.params.to(self.device)
        unflatten(start, model)
        strict = torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        )
        with _limit_threads(self.threads), strict, client_errors(client, round):
            if work.epochs == 0:
                update = self._gradient(model, examples)
            else:
                self._descend(model, examples, work.epochs, client, round)
                update = start - flatten(model)
        return client, update.to(work.params.device), len(examples)

    def _descend(
        self, model: nn.Module, examples: Examples, epochs: int, client: ClientId, round: int
    ) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=self.local.lr, weight_decay=self.local.l2)
        size, seed = self.local.batch_size, self.federation.seed
        for epoch in range(epochs):
            for positions in draw_batches(len(examples), size, seed, client, round, epoch):
                optimizer.zero_grad()
                self._loss(model, examples, positions).backward()
                optimizer.step()

    def _gradient(self, model: nn.Module, examples: Examples) -> Tensor:
        for positions in split_chunks(len(examples)):
            (self._loss(model, examples, positions) * (len(positions) / len(examples))).backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        return torch.cat([g.reshape(-1) for g in gradients]) + self.local.l2 * flatten(model)

    def _loss(self, model: nn.Module, examples: Examples, positions: Tensor) -> Tensor:
        x, y = examples.batch(positions)
        return self.local.loss(model(x.to(self.device)), y.to(self.device))


@contextlib.contextmanager
def _limit_threads(count: int) -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def draw_batches(
    count: int, size: int, seed: int, client: ClientId, round: int, epoch: int
) -> Iterator[Tensor]:
    """Return the positions of the examples in each batch of an epoch."""
    return iter(draw_order(count, seed, client, round, epoch).split(size))


def draw_order(count: int, seed: int, client: ClientId, round: int, epoch: int) -> Tensor:
    """Return the order in which a client sees its examples, drawn at (seed, client, round, epoch)."""
    return torch.randperm(count, generator=generator(seed, client, round, epoch))


def split_chunks(count: int) -> Iterator[Tensor]:
    """Return the positions of the examples in each chunk of a full pass, in order."""
    return iter(torch.arange(count).split(CHUNK))


def group_answers(answers: Iterable[Answer], size: int) -> Iterator[Updates]:
    """Group answers into blocks of ``size`` clients."""
    held: list[Answer] = []
    for answer in answers:
        held.append(answer)
        if len(held) == size:
            yield _make_block(held)
            held = []
    if held:
        yield _make_block(held)


def _make_block(held: list[Answer]) -> Updates:
    clients, values, counts = zip(*held, strict=True)
    return Updates(clients, torch.stack(values), torch.tensor(counts, dtype=torch.float64))


@contextlib.contextmanager
def client_errors(client: ClientId, round: int) -> Generator[None]:
    """Turn an error of a client's training into an AnswerError that names the client and the round."""
    try:
        yield
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        why = " ".join(str(error).split())
        raise AnswerError(
            f"client {client} could not train in round {round} ({why}); look at its inputs and labels"
        ) from error


def check_sizes(engine: str, threads: int, block: int) -> None:
    """Raise ConfigError unless there is at least one thread, and one client in a block."""
    if threads < 1 or block < 1:
        raise ConfigError(
            f"the {engine} has {threads} threads and {block} clients per block; give 1 or more of each"
        )


def get_precision(model: nn.Module) -> str:
    """Return the name of the type of a model's parameters."""
    return str(next(model.parameters()).dtype).removeprefix("torch.")


def describe_local(local: Local) -> Mapping[str, Any]:
    """Return how clients train, for the records of a run."""
    loss = getattr(local.loss, "__name__", type(local.loss).__name__)
    return {"batch_size": local.batch_size, "lr": local.lr, "loss": loss, "l2": local.l2}
