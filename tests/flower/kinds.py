"""Federations of models with statistics, frozen parts or several inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import feduhb

NAMES = ("ant", "bee", "cat", "dog", "elk")
SIZES = dict(zip(NAMES, (9, 5, 13, 24, 8), strict=True))  # 9 and 13 leave a last batch of one
HOW = {"batch_size": 4, "lr": 0.05}


class Tagger(nn.Module):
    """Reads tokens and their mask."""

    places: Tensor

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 3)
        self.register_buffer("places", torch.linspace(0, 1, 4)[:, None])

    def forward(self, tokens, mask):
        """Return the outputs of the mean token."""
        found = (self.table(tokens) + self.places) * mask[..., None]
        return self.head(found.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


def make_normed():
    layers = (
        nn.Linear(4, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Linear(8, 6),
        nn.BatchNorm1d(6),
        nn.Linear(6, 3),
    )
    return nn.Sequential(*layers)


def make_frozen():
    """Return a module with a frozen backbone, with a frozen norm in it, and a head to train."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        backbone = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh())
        backbone(torch.randn(50, 4) + 1)
        return nn.Sequential(backbone.requires_grad_(False), nn.Linear(8, 3))


def make_inputs(client, size, *, as_tokens):
    draw = torch.Generator().manual_seed(sum(client.encode()))
    y = torch.randint(0, 3, (size,), generator=draw)
    if not as_tokens:
        return torch.randn(size, 4, generator=draw) * 2 + y[:, None], y
    mask = (torch.rand(size, 4, generator=draw) < 0.8).float()
    return {"tokens": torch.randint(0, 11, (size, 4), generator=draw), "mask": mask}, y


def make_federation(model: Any = make_normed, *, as_tokens=False, **more):
    data = {client: make_inputs(client, size, as_tokens=as_tokens) for client, size in SIZES.items()}
    test = make_inputs("test", 20, as_tokens=as_tokens)
    return feduhb.Federation(data, test, model, **{"seed": 7, **more})


def make_settings(federation, local=None, **more):
    return {
        "model": federation.model, "start": federation.start, "seed": 7, "epochs": 2, "partitions": NAMES, "timeout": 5,
        "local": feduhb.Local(**HOW, **(local or {})), **more,
    }  # fmt: skip
