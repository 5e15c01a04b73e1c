"""Draws that the trial of a model does not see, because it computes fewer examples than a batch has."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import feduhb
from data.wording import refused
from feduhb.core.flat import flatten
from feduhb.core.types import Work
from feduhb.errors import ModelError

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(120, 6, generator=G), torch.arange(120) % 3
ENGINES = {
    "loop": feduhb.Loop,
    "pool": functools.partial(feduhb.Pool, threads=2),
    "pool, one thread": functools.partial(feduhb.Pool, threads=1),
}
DRAWS: dict[str, Callable[[], float]] = {
    "torch": lambda: float(torch.rand(1)),
    "numpy": lambda: float(np.random.rand()),  # noqa: NPY002
    "python": random.random,
}


class Drawing(nn.Module):
    """Draws in training, if a batch has more examples than the trial; the number counts or it does not."""

    def __init__(self, draw: Callable[[], float], share: float) -> None:
        super().__init__()
        self.draw = draw
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + self.share * self.draw()) if self.training and len(x) > 16 else x


def make_federation(*layers: nn.Module) -> feduhb.Federation:
    net = nn.Sequential(nn.Linear(6, 8), *layers, nn.ReLU(), nn.Linear(8, 3))
    own = {name: (X[40 * i : 40 * i + 40], Y[40 * i : 40 * i + 40]) for i, name in enumerate("abc")}
    return feduhb.Federation(own, (X, Y), net)


def train(engine: str, federation: feduhb.Federation, rounds: int = 2) -> feduhb.Run:
    return feduhb.train(federation, rounds, epochs=1, batch_size=20, engine=ENGINES[engine], show=None)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("source", DRAWS)
def test_draws_in_larger_batches_than_the_trials_are_refused(engine, source):
    federation = make_federation(Drawing(DRAWS[source], 0.1))
    words = "the model, the loss or the augmentation of client a draws random numbers that have no address, so no seed"
    with refused(ModelError, words):
        train(engine, federation)


@pytest.mark.parametrize("engine", ENGINES)
def test_draws_that_change_nothing_are_no_reason_to_refuse(engine):
    """They could be those of another thread."""
    quiet = make_federation(nn.Identity())
    found = train(engine, make_federation(Drawing(DRAWS["torch"], 0.0)))
    assert torch.equal(found.params, train(engine, quiet).params)


@pytest.mark.parametrize("engine", ENGINES)
def test_only_the_first_round_is_watched(engine, monkeypatch):
    """No client trains twice, unless a generator has changed."""
    read = []
    monkeypatch.setattr("feduhb.engines.loop.read_generators", lambda: read.append(1))
    federation = make_federation()
    made = ENGINES[engine](federation)
    work = Work(flatten(federation.fresh_model()), 1)
    for number in range(3):
        assert [block.clients for block in made.train(work, tuple("abc"), number)]
        assert len(read) == 2 * 3 + 1
