"""Engines and models whose answers can be worked out on paper, and the settings that keep property tests repeatable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import settings
from torch import Tensor, nn

from feduhb.core.types import ClientId, Updates, Work

quick = settings(deadline=None, derandomize=True, max_examples=40)


def block_of(rows: Mapping[ClientId, Sequence[float]], weights: Sequence[float] | None = None) -> Updates:
    """Write a block of answers as one would on paper: {"a": [1, 2], "b": [3, 4]}; weights 1 if not given."""
    values = torch.tensor([list(row) for row in rows.values()], dtype=torch.float64)
    return Updates(tuple(rows), values, torch.tensor(weights or [1.0] * len(rows), dtype=torch.float64))


def summed(blocks: Sequence[Updates]) -> Updates:
    """Return what secure aggregation shows the server: the weighted means of all and of their squared lengths, and the total weight."""
    values, weights = torch.cat([b.values for b in blocks]), torch.cat([b.weights for b in blocks])
    square = float(weights.double() @ values.double().square().sum(dim=1) / weights.sum())
    mean = (weights.to(values.dtype) @ values / weights.sum()).unsqueeze(0).to(values.dtype)
    return Updates(tuple(c for b in blocks for c in b.clients), mean, weights.sum().unsqueeze(0), square)


class Table(nn.Module):
    """Looks the input, a whole number, up in a table of outputs."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows of these numbers."""
        return self.rows[x.flatten().long()]


@dataclass
class Quadratics:
    """A federation of f_c(w) = 1/2 (w - m_c)' A_c (w - m_c), client c holding n_c examples.

    The gradient is A_c (w - m_c); the optimum of any group is (Σ n_c A_c)⁻¹ Σ n_c A_c m_c.
    ``epochs=0`` is answered with the gradient, ``epochs=k`` with the update of k gradient steps of ``lr``, whatever the task.
    """

    curvature: dict[ClientId, Tensor]  # A_c [P, P]
    centre: dict[ClientId, Tensor]  # m_c [P]
    examples: dict[ClientId, float]  # n_c
    lr: float = 0.1
    block: int = 2
    presummed: bool = False
    asked: list[tuple[int, tuple[ClientId, ...]]] = field(default_factory=list)

    @property
    def about(self) -> Mapping[str, Any]:
        return {"name": "quadratics", "lr": self.lr, "block": self.block}

    def gradient(self, client: ClientId, w: Tensor) -> Tensor:
        return self.curvature[client].to(w.dtype) @ (w - self.centre[client].to(w.dtype))

    def answer(self, client: ClientId, work: Work) -> Tensor:
        if work.epochs == 0:
            return self.gradient(client, work.params)
        w = work.params
        for _ in range(work.epochs):
            w = w - self.lr * self.gradient(client, w)
        return work.params - w

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        self.asked.append((round, tuple(clients)))
        groups = [tuple(clients[i : i + self.block]) for i in range(0, len(clients), self.block)]
        blocks = (
            Updates(
                group,
                torch.stack([self.answer(c, work) for c in group]),
                torch.tensor([self.examples[c] for c in group]),
            )
            for group in groups
        )
        if self.presummed:
            yield summed(list(blocks))
        else:
            yield from blocks

    def hessian(self, clients: Sequence[ClientId]) -> Tensor:
        total = sum(self.examples[c] for c in clients)
        return torch.stack([self.examples[c] / total * self.curvature[c] for c in clients]).sum(dim=0)

    def optimum(self, clients: Sequence[ClientId]) -> Tensor:
        total = sum(self.examples[c] for c in clients)
        pulls = [self.examples[c] / total * self.curvature[c] @ self.centre[c] for c in clients]
        return torch.linalg.solve(self.hessian(clients), torch.stack(pulls).sum(dim=0))


def quadratics(
    names: Sequence[ClientId] = ("a", "b", "c", "d", "e"),
    size: int = 3,
    *,
    lr: float = 0.1,
    block: int = 2,
    presummed: bool = False,
) -> Quadratics:
    """Draw a federation with 0.5 I <= A_c <= (0.5 + 1) I; a client's draw depends on its name alone."""
    curvature, centre, examples = {}, {}, {}
    for name in names:
        draw = torch.Generator().manual_seed(sum(map(ord, name)))
        root = torch.randn(size, size, generator=draw, dtype=torch.float64)
        curvature[name] = 0.5 * torch.eye(size, dtype=torch.float64) + root @ root.T / root.square().sum()
        centre[name] = torch.randn(size, generator=draw, dtype=torch.float64)
        examples[name] = float(torch.randint(1, 50, (), generator=draw))
    return Quadratics(curvature, centre, examples, lr, block, presummed)


@dataclass
class Scripted:
    """Answers with the given blocks of each round, whichever clients are asked.

    ``asked`` notes who was asked, ``told`` how many blocks were taken and ``closed`` the rounds whose stream
    has ended, by running out or by being closed.
    """

    script: Mapping[int, Sequence[Updates]]
    asked: list[tuple[int, tuple[ClientId, ...]]] = field(default_factory=list)
    told: int = 0
    closed: list[int] = field(default_factory=list)
    streams: list[Iterator[Updates]] = field(default_factory=list)

    @property
    def about(self) -> Mapping[str, Any]:
        return {"name": "scripted"}

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:  # noqa: ARG002
        self.asked.append((round, tuple(clients)))
        self.streams.append(
            self._stream(round)
        )  # held, so that only being closed can end it, not its last reader
        return self.streams[-1]

    def _stream(self, round: int) -> Iterator[Updates]:
        try:
            for block in self.script[round]:
                self.told += 1
                yield block
        finally:
            self.closed.append(round)
