"""The CPU engine: one thread a core, each training whole clients with one intra-op thread."""

from __future__ import annotations

import copy
import functools
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from feduhb.core.flat import channels_last, flatten, unflatten
from feduhb.core.types import ClientId, Local, Updates, Work
from feduhb.data.federation import Examples, Federation
from feduhb.engines.local import batches, blocked, chunks, described, named
from feduhb.engines.points import by_points
from feduhb.errors import ConfigError

Answer = tuple[ClientId, Tensor, int]
AHEAD = 2  # clients a thread may be ahead of the one being folded in: what bounds memory


class Pool:
    """Trains as many clients at once as there are cores, convolutions channels-last or by points, ReLU after pooling.

    A client's bits depend on neither the number of threads nor the blocks: each is trained whole by one
    thread that computes alone. One setting of the whole process goes
    with it: threads started later find torch at one intra-op thread.
    """

    def __init__(
        self,
        federation: Federation,
        local: Local | None = None,
        *,
        threads: int | None = None,
        block: int = 4,
    ) -> None:
        self.federation = federation
        self.local = local or Local(loss=federation.loss)
        self.threads = cores() if threads is None else threads
        self.block = block
        if self.threads < 1 or block < 1:
            raise ConfigError(
                f"the pool needs 1 thread and 1 client a block or more, not {self.threads} and {block}"
            )
        self._model = federation.fresh_model()
        self._mine = threading.local()

    @property
    def about(self) -> Mapping[str, Any]:
        """What made these numbers."""
        precision = str(next(self._model.parameters()).dtype).removeprefix("torch.")
        return {
            "name": "pool",
            "device": "cpu",
            "precision": precision,
            "threads": self.threads,
            "block": self.block,
            **described(self.local),
        }

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Let these clients do this work, several at once; answers come in the order of the clients."""
        return blocked(self._answers(work, clients, round), self.block)

    def _answers(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Answer]:
        with ThreadPoolExecutor(
            self.threads, "feduhb", initializer=functools.partial(torch.set_num_threads, 1)
        ) as pool:
            running: deque[Future[Answer]] = deque()
            try:
                for client in clients:
                    running.append(pool.submit(self._answer, work, client, round))
                    if len(running) >= AHEAD * self.threads:
                        yield running.popleft().result()
                while running:
                    yield running.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _answer(self, work: Work, client: ClientId, round: int) -> Answer:
        examples = self.federation.clients[client]
        model = self._own_model()
        unflatten(work.params, model)
        with named(client, round):
            if work.epochs == 0:
                return client, self._gradient(model, examples, work.params), len(examples)
            for epoch in range(work.epochs):
                self._descend(model, examples, client, round, epoch)
        return client, work.params - flatten(model), len(examples)

    def _descend(
        self, model: nn.Module, examples: Examples, client: ClientId, round: int, epoch: int
    ) -> None:
        parameters = list(model.parameters())
        size, seed = self.local.batch_size, self.federation.seed
        for positions in batches(len(examples), size, seed, client, round, epoch):
            self._step(model, parameters, examples, positions)

    def _own_model(self) -> nn.Module:
        """Give the calling thread a model of its own."""
        if not hasattr(self._mine, "model"):
            self._mine.model = by_points(postponed(channels_last(copy.deepcopy(self._model))))
        return self._mine.model

    def _step(
        self, model: nn.Module, parameters: list[nn.Parameter], examples: Examples, positions: Tensor
    ) -> None:
        """w <- w - lr (∇loss + l2 w); a parameter that the model does not use stays where it is."""
        loss = self._loss(model, examples, positions)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        with torch.no_grad():
            for w, g in zip(parameters, gradients, strict=True):
                if g is None:
                    continue
                if self.local.l2:
                    w.mul_(1 - self.local.lr * self.local.l2)
                w.sub_(g, alpha=self.local.lr)

    def _gradient(self, model: nn.Module, examples: Examples, params: Tensor) -> Tensor:
        total = self.local.l2 * params
        for positions in chunks(len(examples)):
            share = len(positions) / len(examples)
            loss = self._loss(model, examples, positions) * share
            parts = torch.autograd.grad(
                loss, list(model.parameters()), allow_unused=True, materialize_grads=True
            )
            total += torch.cat([part.reshape(-1) for part in parts])
        return total

    def _loss(self, model: nn.Module, examples: Examples, positions: Tensor) -> Tensor:
        x, y = examples.batch(positions)
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return self.local.loss(model(x), y)


def postponed(model: nn.Module) -> nn.Module:
    """Let each ReLU of a plain chain wait until after pooling: the same bits, from a quarter of the numbers or so.

    max(relu(x)) = relu(max(x)), and either way a gradient goes to the largest where that is positive.
    """
    if type(model) is not nn.Sequential or any(map(_hooked, model.modules())):
        return model
    layers = list(model)
    for i in range(len(layers) - 1):
        relu, pool = layers[i : i + 2]
        if type(relu) is nn.ReLU and type(pool) is nn.MaxPool2d and not pool.return_indices:
            layers[i : i + 2] = pool, relu
    return nn.Sequential(*layers)


def _hooked(layer: nn.Module) -> bool:
    """Whether somebody looks on as a layer works, and so may ask what comes between."""
    return bool(
        layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    )


def cores() -> int:
    """Count the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
