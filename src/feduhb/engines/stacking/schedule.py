"""Who trains when: the longest clients first in the stack, which shrinks as the short ones finish.

Letters in shapes: C clients of a block, T steps of the longest, B examples a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feduhb.core.types import ClientId
from feduhb.engines.local import shuffled


@dataclass(frozen=True, slots=True)
class Phase:
    """Some steps in which the first so many clients of the stack take part."""

    clients: int
    steps: int


def phases(totals: Sequence[int], waste: float = 0.0) -> tuple[Phase, ...]:
    """Divide the steps of clients, the longest first, into phases.

    With no waste every client leaves as it finishes. Each number of clients costs a GPU a graph of its own, so
    finished clients may stay on, masked, as long as at most the share ``waste`` of all places in steps is lost.
    """
    ends = sorted(set(totals))
    exact = [
        Phase(sum(total >= end for total in totals), end - begin)
        for begin, end in zip([0, *ends[:-1]], ends, strict=True)
    ]
    spare = waste * sum(totals)
    while len(exact) > 1:
        costs = [(a.clients - b.clients) * b.steps for a, b in itertools.pairwise(exact)]
        cheapest = min(range(len(costs)), key=costs.__getitem__)
        spare -= costs[cheapest]
        if spare < 0:
            break
        first, second = exact[cheapest : cheapest + 2]
        exact[cheapest : cheapest + 2] = [Phase(first.clients, first.steps + second.steps)]
    return tuple(exact)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The batches of a block of clients, who stand in the order of their lengths."""

    clients: tuple[ClientId, ...]  # the longest first
    counts: tuple[int, ...]  # [C] examples of each
    size: int  # B
    epochs: int

    @classmethod
    def of(cls, clients: Sequence[ClientId], counts: Sequence[int], batch_size: int, epochs: int) -> Schedule:
        """Sort clients by length; those of equal length stay in the order they were asked."""
        pairs = sorted(zip(clients, counts, strict=True), key=lambda pair: -pair[1])
        names, sizes = zip(*pairs, strict=True)
        return cls(names, sizes, min(batch_size, max(sizes)), epochs)

    @property
    def epoch_steps(self) -> tuple[int, ...]:
        """The steps of one epoch of each client [C]."""
        return tuple(-(-count // self.size) for count in self.counts)

    @property
    def totals(self) -> tuple[int, ...]:
        """The steps of each client in all [C]."""
        return tuple(steps * self.epochs for steps in self.epoch_steps)

    def shares(self, dtype: torch.dtype) -> Tensor:
        """The weight of every example in its batch's mean [C, T, B]: 1 / its batch's size, and 0 for padding."""
        found = torch.zeros(len(self.clients), self.totals[0], self.size, dtype=dtype)
        for row, (count, steps) in enumerate(zip(self.counts, self.epoch_steps, strict=True)):
            epoch = torch.zeros(steps * self.size, dtype=dtype)
            epoch[:count] = 1
            epoch = epoch.view(steps, self.size)
            found[row, : steps * self.epochs] = (epoch / epoch.sum(1, keepdim=True)).repeat(self.epochs, 1)
        return found

    def ready(self, epoch: int) -> int:
        """How many steps may run once this epoch's batches are drawn."""
        return self.totals[0] if epoch == self.epochs - 1 else self.epoch_steps[-1] * (epoch + 1)

    def pad(self, order: Tensor, rows: Sequence[Tensor]) -> None:
        """Fill an order [C, T, B] with each client's own first example, whose share is 0."""
        for own, positions in zip(order, rows, strict=False):
            own.fill_(int(positions[0]))

    def draw(self, order: Tensor, rows: Sequence[Tensor], seed: int, round: int, epoch: int) -> None:
        """Write the batches of one epoch of every client into an order [C, T, B]; rows are positions in the data."""
        for row, (client, count, steps) in enumerate(
            zip(self.clients, self.counts, self.epoch_steps, strict=True)
        ):
            begin = epoch * steps * self.size
            shuffle = shuffled(count, seed, client, round, epoch)
            order[row].view(-1)[begin : begin + count] = rows[row][shuffle]
