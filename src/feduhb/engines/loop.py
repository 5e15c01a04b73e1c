"""The reference engine, which trains one client after another, and helpers that engines share."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from feduhb.core.draws import augment_batch, draw_at
from feduhb.core.flat import flatten, unflatten
from feduhb.core.inputs import Inputs, call_model, map_tensors
from feduhb.core.local import Local, describe_local, move_loss
from feduhb.core.modules import DRAWS, draw_otherwise, list_trained, prepare_training, read_generators
from feduhb.core.tasks import TASKS, Ascend, Precondition, Relabel
from feduhb.core.types import ClientId, Updates, Work
from feduhb.data.federation import Examples, Federation
from feduhb.engines.batches import Batches, check_work, weigh_chunks
from feduhb.engines.descent import Ascent, Descent, PreconditionedDescent
from feduhb.engines.precision import compute_alike
from feduhb.engines.tasks import (
    Elastic,
    check_task,
    draw_teachers,
    label_by_teachers,
    measure_fisher,
    square_gradients,
)
from feduhb.errors import AnswerError, ConfigError, ModelError

Answer = tuple[ClientId, Tensor, int]  # client, update [P], number of examples


class Loop:
    """Train clients one at a time with the optimisers of `torch.optim`.

    It computes with one thread by default, so that its bits do not depend on the number of cores.
    """

    tasks = tuple(TASKS.values())

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
        self._teachers: list[nn.Module] = []
        self._has_trained = False

    @property
    def about(self) -> Mapping[str, Any]:
        """The engine's name and settings, for the records of a run."""
        sizes = {"threads": self.threads, "block": self.block}
        made = {"name": "loop", "device": self.device.type, "precision": get_precision(self._model)}
        return {**made, **sizes, **describe_local(self.local), **self._batches.about}

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Train these clients one after another."""
        self.prepare(work)
        answers = (self.answer(work, client, round) for client in clients)
        if not self._has_trained:
            answers = watch_draws(answers, lambda client: self.answer(work, client, round))
        self._has_trained = True
        return group_answers(answers, self.block)

    def prepare(self, work: Work) -> None:
        """Check work, and draw the teachers that it needs. Draws use a generator that threads would share."""
        check_work(work, self._model, self.local)
        if work.task is not None:
            check_task(type(work.task), self._model, self.local)
        if isinstance(work.task, Relabel) and len(self._teachers) != work.task.teachers:
            self._teachers = draw_teachers(self.federation, work.task.teachers, self.device)

    def answer(self, work: Work, client: ClientId, round: int) -> Answer:
        """Return the answer of one client, after `prepare`."""
        examples = find_examples(self.federation, work, client)
        model = copy.deepcopy(self._model)
        start = work.params.to(self.device)
        unflatten(start, model)
        with limit_threads(self.threads), compute_alike(self.device), client_errors(client, round):
            if work.epochs == 0:
                update = self._gradient(model, examples)
            else:
                self._descend(model, examples, work, client, round)
                update = start - flatten(model)
        return client, update.to(work.params.device), len(examples)

    def _descend(
        self, model: nn.Module, examples: Examples, work: Work, client: ClientId, round: int
    ) -> None:
        compute_loss = self._choose_loss(model, examples, work, client)
        descent = self._make_descent(model, work)
        for step in self._batches.draw(len(examples), work.epochs, self.federation.seed, client, round):
            with draw_at(step.key):
                loss = compute_loss(step.positions)
            if isinstance(descent, PreconditionedDescent):
                descent.fisher = self._measure_batch(model, examples, step.positions)
            descent.take_step(loss, step.scale)

    def _make_descent(self, model: nn.Module, work: Work) -> Descent | Ascent:
        parameters = [p for _, p in list_trained(model)]
        if isinstance(work.task, Precondition):
            return PreconditionedDescent(self.local, parameters, work.task)
        return (
            Ascent(parameters, work.task)
            if isinstance(work.task, Ascend)
            else Descent(self.local, parameters)
        )

    def _choose_loss(
        self, model: nn.Module, examples: Examples, work: Work, client: ClientId
    ) -> Callable[[Tensor], Tensor]:
        """Return the function that computes the loss of a batch from its positions."""
        if not isinstance(work.task, Relabel):
            return lambda positions: self._compute_loss(model, examples, positions)
        labels = label_by_teachers(self._teachers, examples, self.device)
        penalty = self._make_penalty(model, client, work.task.penalty)

        def compute(positions: Tensor) -> Tensor:
            x, _ = self._read_batch(examples, positions)
            loss = cross_entropy(call_model(model, x), labels[positions])
            return loss if penalty is None else loss + penalty.compute()

        return compute

    def _make_penalty(self, model: nn.Module, client: ClientId, penalty: float) -> Elastic | None:
        if not penalty:
            return None
        kept = self.federation.clients[client]
        fisher = measure_fisher(model, self._loss, kept, self.device)
        return Elastic([p for _, p in list_trained(model)], fisher, penalty)

    def _measure_batch(self, model: nn.Module, examples: Examples, positions: Tensor) -> list[Tensor]:
        """Return the mean over a batch of the squared gradients of its examples."""
        found = square_gradients(model, self._loss, *self._read_batch(examples, positions))
        return [part / len(positions) for part in found]

    def _gradient(self, model: nn.Module, examples: Examples) -> Tensor:
        for positions, share in weigh_chunks(self.local.loss, examples):
            (self._compute_loss(model, examples, positions) * share).backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for _, p in list_trained(model)]
        return torch.cat([g.reshape(-1) for g in gradients]) + self.local.decay * flatten(model)

    def _compute_loss(self, model: nn.Module, examples: Examples, positions: Tensor) -> Tensor:
        x, y = self._read_batch(examples, positions)
        return self._loss(call_model(model, x), y)

    def _read_batch(self, examples: Examples, positions: Tensor) -> tuple[Inputs, Tensor]:
        """Return the inputs and targets of a batch, augmented if the clients augment."""
        x, y = examples.batch(positions)
        x = augment_batch(self.local.augment, map_tensors(lambda part: part.to(self.device), x))
        return x, y.to(self.device)


def find_examples(federation: Federation, work: Work, client: ClientId) -> Examples:
    """Return the examples that a client works on: its own, or those that it asked to forget if leavers are asked."""
    return (federation.leaving if work.leavers else federation.clients)[client]


def make_local(federation: Federation) -> Local:
    """Return how clients train by default, with the loss and the augmentation of a federation."""
    return Local(loss=federation.loss, augment=federation.augment)


@contextlib.contextmanager
def limit_threads(count: int) -> Generator[None]:
    """Let torch compute with some threads inside the block, so that bits do not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def watch_draws(answers: Iterator[Answer], train: Callable[[ClientId], Answer]) -> Iterator[Answer]:
    """Yield the answers of a round; raise ModelError for one that depends on a global random generator.

    The trial of a model computes a few examples, so it does not see a layer that draws only in larger batches. A
    generator that has changed is only a suspicion, because another thread may have drawn. From then on each client trains
    again, with the generators in another state.

    Args:
        train: returns the answer of a client once more.
    """
    has_changed = False
    while True:
        before = read_generators()
        answer = next(answers, None)
        if answer is None:
            return
        has_changed = has_changed or read_generators() != before
        if has_changed:
            client, update, _ = answer
            with draw_otherwise():
                again = train(client)[1]
            if not torch.allclose(update, again, 0, 0, equal_nan=True):
                raise ModelError(f"the model, the loss or the augmentation of client {client} {DRAWS}")
            del update, again
        yield answer
        del answer


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
    """Turn an error of a client's training into an AnswerError that names the client and the round.

    Memory that runs out is not the client's fault: torch.OutOfMemoryError passes.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
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
