"""The CPU engine: one thread per core, and each of them trains whole clients."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from feduhb.core.draws import augment_batch, draw_at
from feduhb.core.flat import channels_last, flatten, unflatten
from feduhb.core.inputs import call_model, map_tensors
from feduhb.core.local import Local, describe_local
from feduhb.core.modules import is_large, list_trained, prepare_training
from feduhb.core.types import ClientId, Updates, Work
from feduhb.data.federation import Examples, Federation
from feduhb.engines.batches import Batches, check_work, weigh_chunks
from feduhb.engines.descent import Descent
from feduhb.engines.loop import (
    Answer,
    Loop,
    check_sizes,
    client_errors,
    find_examples,
    get_precision,
    group_answers,
    make_local,
    watch_draws,
)
from feduhb.engines.points import use_points

AHEAD = 2  # clients per thread that may wait for earlier ones to be collected; it bounds memory
PLAIN = (bool, int, float, str, type(None))  # attributes that a model's own code may change


class Pool:
    """Train as many clients at once as there are cores.

    Convolutions run channels-last or by points, and ReLU runs after pooling. A client's bits do not depend on the
    number of threads or on the blocks, because one thread trains the whole client. Using the pool sets torch to one
    intra-op thread in every thread that the process starts later. A large model is collected client by client, whatever
    the block, to save memory. Tasks other than plain training run as in `Loop`, a client in each thread.
    """

    tasks = Loop.tasks

    def __init__(
        self,
        federation: Federation,
        local: Local | None = None,
        *,
        threads: int | None = None,
        block: int = 4,
    ) -> None:
        self.federation = federation
        self.local = local or make_local(federation)
        self.threads = count_cores() if threads is None else threads
        self._model = prepare_training(federation.fresh_model())
        has_large = is_large(self._model)
        self.block = 1 if has_large else block
        self._ahead = self.threads if has_large else AHEAD * self.threads
        check_sizes("pool", self.threads, block)
        self._batches = Batches.of(self._model, self.local, federation)
        self._model = use_points(postpone_relu(channels_last(self._model)))
        self._spare = [self._model]  # models that no thread is using
        self._fresh = _read_values(self._model)
        self._loop: Loop | None = None  # for tasks
        self._has_trained = False

    @property
    def about(self) -> Mapping[str, Any]:
        """The engine's name and settings, for the records of a run."""
        sizes = {"threads": self.threads, "block": self.block}
        made = {"name": "pool", "device": "cpu", "precision": get_precision(self._model)}
        return {**made, **sizes, **describe_local(self.local), **self._batches.about}

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Train these clients, several at once; return the answers in the order of the clients."""
        if work.task is not None:
            self._loop = self._loop or Loop(self.federation, self.local)
            self._loop.prepare(work)
        check_work(work, self._model, self.local)
        ready = min(self.threads, max(len(self.federation.clients), len(self.federation.leaving)))
        while len(self._spare) < ready:  # only before the first round, while the model is untouched
            self._spare.append(copy.deepcopy(self._model))
        return group_answers(self._answers(work, clients, round), self.block)

    def _answers(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Answer]:
        with ThreadPoolExecutor(
            self.threads, "feduhb", initializer=functools.partial(torch.set_num_threads, 1)
        ) as pool:

            def submit(client: ClientId) -> Future[Answer]:
                return pool.submit(self._answer, work, client, round)

            answers = _collect(submit, clients, self._ahead)
            if not self._has_trained:
                answers = watch_draws(answers, lambda client: submit(client).result())
            self._has_trained = True
            try:
                yield from answers
            finally:
                pool.shutdown(cancel_futures=True)

    def _answer(self, work: Work, client: ClientId, round: int) -> Answer:
        if work.task is not None and self._loop is not None:
            return self._loop.answer(work, client, round)
        examples = find_examples(self.federation, work, client)
        with self._borrow_model() as model, client_errors(client, round):
            unflatten(work.params, model)
            if work.epochs == 0:
                return client, self._gradient(model, examples, work.params), len(examples)
            self._descend(model, examples, work, client, round)
            end = flatten(model)
        return client, torch.sub(work.params, end, out=end), len(examples)

    @contextlib.contextmanager
    def _borrow_model(self) -> Generator[nn.Module]:
        """Yield a model that no other thread is using, without what the client before left in it."""
        model = self._spare.pop()
        for layer, (buffers, values) in zip(model.modules(), self._fresh, strict=True):
            layer.__dict__.update(values)
            for name, buffer in buffers.items():
                layer.get_buffer(name).copy_(buffer)
        try:
            yield model
        finally:
            self._spare.append(model)

    def _descend(
        self, model: nn.Module, examples: Examples, work: Work, client: ClientId, round: int
    ) -> None:
        parameters = [p for _, p in list_trained(model)]
        descent = None if self.local.is_plain else Descent(self.local, parameters)
        for step in self._batches.draw(len(examples), work.epochs, self.federation.seed, client, round):
            with draw_at(step.key):
                loss = self._loss(model, examples, step.positions)
            if descent is None:
                self._take_plain_step(loss, parameters)
            else:
                descent.take_step(loss, step.scale)
        if descent is not None:
            descent.optimizer.zero_grad()

    def _take_plain_step(self, loss: Tensor, parameters: list[nn.Parameter]) -> None:
        """w <- w - lr (∇loss + l2 w); a parameter that the model does not use keeps its value."""
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        with torch.no_grad():
            for w, g in zip(parameters, gradients, strict=True):
                if g is None:
                    continue
                if self.local.decay:
                    w.mul_(1 - self.local.lr * self.local.decay)
                w.sub_(g, alpha=self.local.lr)

    def _gradient(self, model: nn.Module, examples: Examples, params: Tensor) -> Tensor:
        total = self.local.decay * params
        for positions, share in weigh_chunks(self.local.loss, examples):
            loss = self._loss(model, examples, positions) * share
            parts = torch.autograd.grad(
                loss, [p for _, p in list_trained(model)], allow_unused=True, materialize_grads=True
            )
            total += torch.cat([part.reshape(-1) for part in parts])
        return total

    def _loss(self, model: nn.Module, examples: Examples, positions: Tensor) -> Tensor:
        x, y = examples.batch(positions)
        x = map_tensors(_use_channels_last, augment_batch(self.local.augment, x))
        return self.local.loss(call_model(model, x), y)


def _collect(
    submit: Callable[[ClientId], Future[Answer]], clients: Sequence[ClientId], ahead: int
) -> Iterator[Answer]:
    """Yield the answers of clients in their order; submit at most ``ahead`` of them before the first is collected."""
    running: deque[Future[Answer]] = deque()
    for client in clients:
        running.append(submit(client))
        if len(running) >= ahead:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


def _read_values(model: nn.Module) -> list[tuple[dict[str, Tensor], dict[str, Any]]]:
    """Return copies of each layer's own buffers, and its attributes that are plain values."""
    return [
        (
            {name: buffer.clone() for name, buffer in layer.named_buffers(recurse=False)},
            {key: value for key, value in layer.__dict__.items() if isinstance(value, PLAIN)},
        )
        for layer in model.modules()
    ]


def _use_channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def postpone_relu(model: nn.Module) -> nn.Module:
    """Move each ReLU of an `nn.Sequential` behind the max pooling that follows it.

    The bits stay the same, and ReLU runs on about a quarter of the numbers: max(relu(x)) = relu(max(x)), and in both
    orders the gradient goes to the maximum if it is positive.
    """
    if type(model) is not nn.Sequential or any(map(_has_hooks, model.modules())):
        return model
    layers = list(model)
    for i in range(len(layers) - 1):
        relu, pool = layers[i : i + 2]
        if type(relu) is nn.ReLU and type(pool) is nn.MaxPool2d and not pool.return_indices:
            layers[i : i + 2] = pool, relu
    return nn.Sequential(*layers)


def _has_hooks(layer: nn.Module) -> bool:
    """Return whether a layer has hooks, which may read what the layers pass to each other."""
    return bool(
        layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    )


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
