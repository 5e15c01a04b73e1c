"""The reference engine, which trains one client after another, and helpers that engines share."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from feduhb.core.draws import augment_batch, draw_at
from feduhb.core.flat import flatten, unflatten
from feduhb.core.inputs import call_model, map_tensors
from feduhb.core.local import BETAS, EPS, Local, describe_local, move_loss
from feduhb.core.modules import list_trained, prepare_training
from feduhb.core.types import ClientId, Updates, Work
from feduhb.data.federation import Examples, Federation
from feduhb.engines.batches import Batches, check_work, weigh_chunks
from feduhb.errors import AnswerError, ConfigError

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
        with limit_threads(self.threads), strict, client_errors(client, round):
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


@contextlib.contextmanager
def limit_threads(count: int) -> Generator[None]:
    """Let torch compute with some threads inside the block, so that bits do not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
