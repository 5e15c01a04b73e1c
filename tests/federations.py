"""Small federations for tests: ragged, seeded, in float64 where bits are compared across engines."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import feduhb

SIZES = {"ant": 1, "bee": 5, "cat": 13, "dog": 24, "elk": 8}


def tensors(client: str, size: int, *, seed: int = 0, dtype: torch.dtype = torch.float64):
    """A client's images and labels, drawn from its name alone."""
    draw = torch.Generator().manual_seed(seed * 1000 + sum(client.encode()))
    x = torch.rand(size, 1, 12, 12, generator=draw, dtype=torch.float64) * 2 - 1
    return x.to(dtype), torch.randint(0, 3, (size,), generator=draw)


def small_cnn(dtype: torch.dtype = torch.float64) -> nn.Module:
    layers = (
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(54, 3),
    )
    return nn.Sequential(*layers).to(dtype)


def ragged(clients=SIZES, *, dtype: Any = torch.float64, seed: Any = 7, **changes: Any) -> feduhb.Federation:
    """A federation of five: a client of one example, one smaller than a batch, some larger."""
    data = {client: tensors(client, size, dtype=dtype) for client, size in clients.items()}
    data.update(changes)
    return feduhb.Federation(data, tensors("test", 20, dtype=dtype), small_cnn(dtype), seed=seed)
