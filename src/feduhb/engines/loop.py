"""The reference engine, which trains one client after another, and the helpers that all engines share."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from feduhb.core.draws import augment_batch, draw_at, make_key
from feduhb.core.flat import flatten, unflatten
from feduhb.core.inputs import call_model, map_tensors
from feduhb.core.local import BETAS, EPS, Local, Loss, describe_local, move_loss, scale_lr
from feduhb.core.loss import WeightedEntropy
from feduhb.core.modules import has_batch_norm, has_dropout, list_norms, list_trained, prepare_training
from feduhb.core.seeds import generator
from feduhb.core.types import ClientId, Updates, Work
from feduhb.data.federation import Examples, Federation
from feduhb.errors import AnswerError, ConfigError, DataError

CHUNK = 512  # examples in one pass of a full-batch gradient
Answer = tuple[ClientId, Tensor, int]  # client, update [P], number of examples


class Loop:
    """Train clients one at a time with the optimisers of `torch.optim`.

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
        self.local = local or make_local(federation)
        self.block = block
        self.device = torch.device(device)
        self._model = prepare_training(federation.fresh_model().to(self.device))
        self._loss = move_loss(self.local.loss, self.device)
        self._batches = Batches.of(self._model, self.local, federation)

    @property
    def about(self) -> Mapping[str, Any]:
        """The engine's name and settings, for the records of a run."""
        sizes = {"threads": self.threads, "block": self.block}
        made = {"name": "loop", "device": self.device.type, "precision": get_precision(self._model)}
        return {**made, **sizes, **describe_local(self.local), **self._batches.about}

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Train these clients one after another."""
        check_work(work, self._model, self.local)
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
        descent = Descent(self.local, [p for _, p in list_trained(model)])
        for step in self._batches.draw(len(examples), epochs, self.federation.seed, client, round):
            with draw_at(step.key):
                loss = self._compute_loss(model, examples, step.positions)
            descent.take_step(loss, step.scale)

    def _gradient(self, model: nn.Module, examples: Examples) -> Tensor:
        for positions, share in weigh_chunks(self.local.loss, examples):
            (self._compute_loss(model, examples, positions) * share).backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for _, p in list_trained(model)]
        return torch.cat([g.reshape(-1) for g in gradients]) + self.local.decay * flatten(model)

    def _compute_loss(self, model: nn.Module, examples: Examples, positions: Tensor) -> Tensor:
        x, y = examples.batch(positions)
        x = augment_batch(self.local.augment, map_tensors(lambda part: part.to(self.device), x))
        return self._loss(call_model(model, x), y.to(self.device))


def make_local(federation: Federation) -> Local:
    """Return how clients train by default, with the loss and the augmentation of a federation."""
    return Local(loss=federation.loss, augment=federation.augment)


class Descent:
    """The steps of one client in one round, by an optimiser of torch that has no state yet."""

    def __init__(self, local: Local, parameters: list[nn.Parameter]) -> None:
        self.local = local
        self.parameters = parameters
        self.start = [p.detach().clone() for p in parameters] if local.proximal else []
        if local.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(
                parameters, lr=local.lr, momentum=local.momentum, weight_decay=local.decay
            )
        else:
            kind = torch.optim.Adam if local.optimizer == "adam" else torch.optim.AdamW
            self.optimizer = kind(parameters, lr=local.lr, betas=BETAS, eps=EPS, weight_decay=local.decay)

    def take_step(self, loss: Tensor, scale: float) -> None:
        """Take a step; a parameter that the model does not use keeps its value."""
        self.optimizer.zero_grad()
        loss.backward()
        if self.start:
            for p, w in zip(self.parameters, self.start, strict=True):
                if p.grad is not None:
                    p.grad.add_(p.detach() - w, alpha=self.local.proximal)
        if self.local.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.local.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = self.local.lr * scale
        self.optimizer.step()


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a client in a round."""

    positions: Tensor  # [B] of the examples in its batch
    key: int  # the hash of the step's address, for its random draws
    scale: float  # the factor of the learning rate


@dataclass(frozen=True, slots=True)
class Batches:
    """How clients' examples are divided into batches.

    Under BatchNorm, which cannot normalise one example, a last batch of one joins the batch before it.
    """

    local: Local
    joins: bool
    draws: bool  # whether steps draw random numbers
    joined: tuple[ClientId, ...] = ()  # the clients whose last batch joins another

    @classmethod
    def of(cls, model: nn.Module, local: Local, federation: Federation) -> Batches:
        """Return the batches of a federation; raise DataError if BatchNorm cannot normalise a client's batches."""
        draws = has_dropout(model) or local.augment is not None
        if not has_batch_norm(model):
            return cls(local, joins=False, draws=draws)
        if local.batch_size == 1:
            raise ConfigError(
                "BatchNorm cannot normalise batches of one example; give a batch_size of 2 or more"
            )
        counts = {} if federation.is_remote else {c: len(e) for c, e in federation.clients.items()}
        if alone := [client for client, count in counts.items() if count == 1]:
            raise DataError(
                f"client {alone[0]} has one example, and BatchNorm needs two or more in a batch; leave that client out or forget "
                "it, or use GroupNorm"
            )
        joined = tuple(sorted(c for c, count in counts.items() if count % local.batch_size == 1))
        return cls(local, joins=True, draws=draws, joined=joined)

    @property
    def about(self) -> Mapping[str, Any]:
        """The clients whose last batch joins another, for the records of a run."""
        return {"joined_last_batch": list(self.joined)} if self.joined else {}

    def list_sizes(self, count: int) -> list[int]:
        """Return the sizes of the batches of one epoch of ``count`` examples."""
        return list_sizes(count, self.local.batch_size, joins=self.joins)

    def draw(self, count: int, epochs: int, seed: int, client: ClientId, round: int) -> Iterator[Step]:
        """Yield the steps of a client in a round."""
        sizes = self.list_sizes(count)
        for epoch in range(epochs):
            parts = draw_order(count, seed, client, round, epoch).split(sizes)
            for number, positions in enumerate(parts):
                key = make_key(seed, client, round, epoch, number) if self.draws else 0
                done, total = epoch * len(sizes) + number, epochs * len(sizes)
                yield Step(positions, key, scale_lr(self.local.schedule, round, done, total))


def list_sizes(count: int, size: int, *, joins: bool) -> list[int]:
    """Return the sizes of the batches of ``count`` examples; a last batch of one ``joins`` the batch before it, or not."""
    sizes = [min(size, count - begin) for begin in range(0, count, size)]
    if joins and len(sizes) > 1 and sizes[-1] == 1:
        sizes[-2:] = [size + 1]
    return sizes


def check_work(work: Work, model: nn.Module, local: Local) -> None:
    """Raise ConfigError for full-batch gradients if training gathers statistics of batches or draws random numbers."""
    if work.epochs == 0 and (what := _find_batchwise(model, local)) is not None:
        raise ConfigError(f"epochs=0 asks for full-batch gradients, but {what}; give epochs of 1 or more")


def _find_batchwise(model: nn.Module, local: Local) -> str | None:
    """Return what in training depends on batches or is random, in words."""
    if has_batch_norm(model):
        return "the model has BatchNorm, which depends on batches"
    if norms := list_norms(model):
        return f"layer {norms[0][0]} of the model gathers statistics of batches"
    if has_dropout(model):
        return "the model has dropout, which is random"
    return None if local.augment is None else "batches are augmented, which is random"


@contextlib.contextmanager
def _limit_threads(count: int) -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def draw_order(count: int, seed: int, client: ClientId, round: int, epoch: int) -> Tensor:
    """Return the order in which a client sees its examples, drawn at (seed, client, round, epoch)."""
    return torch.randperm(count, generator=generator(seed, client, round, epoch))


def split_chunks(count: int) -> Iterator[Tensor]:
    """Return the positions of the examples in each chunk of a full pass, in order."""
    return iter(torch.arange(count).split(CHUNK))


def weigh_chunks(loss: Loss, examples: Examples) -> Iterator[tuple[Tensor, float]]:
    """Yield the positions of each chunk of a full pass, and the share of its loss in the loss of all examples."""
    targets = examples.targets
    entropy = WeightedEntropy.of(loss, targets, scan=True)
    weights = None if entropy is None else entropy.weigh(targets).double().reshape(len(targets), -1).sum(1)
    for positions in split_chunks(len(examples)):
        if weights is None:
            yield positions, len(positions) / len(examples)
        elif weights[positions].any():
            yield positions, float(weights[positions].sum() / weights.sum())


def group_answers(answers: Iterable[Answer], size: int) -> Iterator[Updates]:
    """Group answers into blocks of ``size`` clients."""
    held: list[Answer] = []
    for answer in answers:
        held.append(answer)
        del answer
        if len(held) == size:
            yield _make_block(held)
            held = []
    if held:
        yield _make_block(held)


def _make_block(held: list[Answer]) -> Updates:
    clients, values, counts = zip(*held, strict=True)
    rows = values[0].unsqueeze(0) if len(values) == 1 else torch.stack(values)
    return Updates(clients, rows, torch.tensor(counts, dtype=torch.float64))


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
    """Return the name of the type of a model's trained parameters."""
    return str(list_trained(model)[0][1].dtype).removeprefix("torch.")
