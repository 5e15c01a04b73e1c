"""The reference engine: one client after another, in the plainest PyTorch there is."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from feduhb.core.flat import flatten, unflatten
from feduhb.core.types import ClientId, Local, Updates, Work
from feduhb.data.federation import Examples, Federation
from feduhb.engines.local import batches, blocked, chunks, described, named
from feduhb.errors import ConfigError


class Loop:
    """Trains clients one at a time with `torch.optim.SGD`.

    It computes with one thread unless told otherwise, so that its bits do not depend on how many there are.
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
        if threads < 1 or block < 1:
            raise ConfigError(
                f"the loop needs 1 thread and 1 client a block or more, not {threads} and {block}"
            )
        self.threads = threads
        self.federation = federation
        self.local = local or Local(loss=federation.loss)
        self.block = block
        self.device = torch.device(device)
        self._model = federation.fresh_model().to(self.device)

    @property
    def about(self) -> Mapping[str, Any]:
        """What made these numbers."""
        precision = str(next(self._model.parameters()).dtype).removeprefix("torch.")
        return {
            "name": "loop",
            "device": self.device.type,
            "precision": precision,
            "threads": self.threads,
            "block": self.block,
            **described(self.local),
        }

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Let these clients do this work, one after another."""
        return blocked((self._answer(work, client, round) for client in clients), self.block)

    def _answer(self, work: Work, client: ClientId, round: int) -> tuple[ClientId, Tensor, int]:
        examples = self.federation.clients[client]
        model = copy.deepcopy(self._model)
        start = work.params.to(self.device)
        unflatten(start, model)
        strict = torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        )
        with _threads(self.threads), strict, named(client, round):
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
        for epoch in range(epochs):
            for positions in batches(
                len(examples), self.local.batch_size, self.federation.seed, client, round, epoch
            ):
                optimizer.zero_grad()
                self._loss(model, examples, positions).backward()
                optimizer.step()

    def _gradient(self, model: nn.Module, examples: Examples) -> Tensor:
        for positions in chunks(len(examples)):
            (self._loss(model, examples, positions) * (len(positions) / len(examples))).backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        return torch.cat([g.reshape(-1) for g in gradients]) + self.local.l2 * flatten(model)

    def _loss(self, model: nn.Module, examples: Examples, positions: Tensor) -> Tensor:
        x, y = examples.batch(positions)
        return self.local.loss(model(x.to(self.device)), y.to(self.device))


@contextlib.contextmanager
def _threads(count: int) -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
