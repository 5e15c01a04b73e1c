"""Histories for tests: one in memory that can be shuffled and counted, and ways to fill it and the one on disk."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feduhb.core.types import ClientId, Engine, Updates, Work
from feduhb.methods import Retrain
from feduhb.runs.history import DiskHistory
from feduhb.runs.loop import Participants, run


@dataclass
class Remembered:
    """A history in memory. It counts what is read of it, so that a test can see that nothing more was."""

    models: dict[int, Tensor]  # round -> [P]
    blocks: dict[int, list[Updates]]
    final: Tensor | None = None  # the model after the last round
    read_rounds: list[int] = field(default_factory=list)

    @property
    def rounds(self) -> Sequence[int]:
        return sorted(self.models)

    @property
    def bytes(self) -> int:
        return sum(b.values.numel() * b.values.element_size() for part in self.blocks.values() for b in part)

    def clients(self, round: int) -> tuple[ClientId, ...]:
        return tuple(client for block in self.blocks[round] for client in block.clients)

    def params(self, round: int) -> Tensor:
        return self.models[round]

    def read(self, round: int, clients: Sequence[ClientId]) -> Iterator[Updates]:
        self.read_rounds.append(round)
        for block in self.blocks[round]:
            rows = [i for i, client in enumerate(block.clients) if client in set(clients)]
            if rows:
                yield Updates(tuple(block.clients[i] for i in rows), block.values[rows], block.weights[rows])

    def forget(self, clients: Sequence[ClientId]) -> int:  # noqa: ARG002
        return 0

    def update(self, round: int, client: ClientId) -> Tensor:
        """One client's stored update [P]."""
        (block,) = self.read(round, [client])
        return block.values[0]

    def to(self, dtype: torch.dtype) -> Remembered:
        """The same in another precision."""
        return Remembered(
            {t: w.to(dtype) for t, w in self.models.items()},
            {
                t: [Updates(b.clients, b.values.to(dtype), b.weights) for b in part]
                for t, part in self.blocks.items()
            },
        )

    def shuffled(self, seed: int) -> Remembered:
        """The same answers in other blocks and another order: nothing may depend on it."""
        draw, blocks = random.Random(seed), {}
        for t, part in self.blocks.items():
            rows = [
                (c, v, float(n)) for b in part for c, v, n in zip(b.clients, b.values, b.weights, strict=True)
            ]
            draw.shuffle(rows)
            size = draw.randint(1, 3)
            blocks[t] = [block_of_rows(rows[i : i + size]) for i in range(0, len(rows), size)]
        return Remembered(dict(self.models), blocks)


def block_of_rows(rows: Sequence[tuple[ClientId, Tensor, float]]) -> Updates:
    clients, values, weights = zip(*rows, strict=True)
    return Updates(clients, torch.stack(values), torch.tensor(weights, dtype=torch.float64))


@dataclass
class _Remembering:
    """An engine that fills a `Remembered`."""

    engine: Engine
    into: Remembered

    @property
    def about(self) -> Mapping[str, Any]:
        return self.engine.about

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        self.into.models[round] = work.params.clone()
        self.into.blocks[round] = []
        for block in self.engine.train(work, clients, round):
            self.into.blocks[round].append(block)
            yield block


def remember(
    engine: Engine, clients: Participants, start: Tensor, *, rounds: int, epochs: int = 1
) -> Remembered:
    """Train by FedAvg and remember every round."""
    found, method = Remembered({}, {}), Retrain(epochs=epochs)
    *_, (state, _) = run(method, _Remembering(engine, found), clients, method.init(start), rounds=rounds)
    found.final = state.params
    return found


def written(
    folder: Path,
    rounds: Mapping[int, Sequence[Updates]],
    params: Tensor,
    *,
    half: bool = False,
    run: str = "own",
) -> DiskHistory:
    """A history on disk of these blocks, every round started from the same model."""
    history = DiskHistory(folder, half=half)
    history.claim(run)
    for t, blocks in rounds.items():
        history.begin(t, params)
        history.finish(t, params, [history.append(t, i, block) for i, block in enumerate(blocks)])
    return history


def drawn(clients: Sequence[ClientId], size: int = 4, *, seed: int = 0, dtype: torch.dtype = torch.float32):
    """A block of random updates."""
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(len(clients), size, generator=draw, dtype=torch.float64).to(dtype)
    return Updates(tuple(clients), values, torch.arange(1, len(clients) + 1, dtype=torch.float64))


def files(folder: Path) -> dict[str, bytes]:
    """Every file under a folder with its content."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
