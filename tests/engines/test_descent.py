"""Clients' optimisers on a quadratic, held to their formulas: each starts afresh in every round.

A client's loss is f(w) = 1/2 Σ a_i (w_i - m_i)², the same in every batch, so its gradient is a (w - m).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import feduhb
from feduhb.core.local import Local, scale_lr
from feduhb.core.types import Work

A, M = torch.tensor([3.0, 1.0, 0.2]).double(), torch.tensor([1.0, -2.0, 4.0]).double()
W0 = torch.tensor([0.5, 0.5, -1.0]).double()
LR, EPOCHS, BATCHES = 0.1, 2, 3  # 5 examples in batches of 2
STEPS = EPOCHS * BATCHES
ENGINES = {"loop": feduhb.Loop, "pool": feduhb.Pool}
every_engine = pytest.mark.parametrize("engine", ENGINES)


class Point(nn.Module):
    """A model that returns its parameters, whatever the input."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.rand(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w.expand(len(x), 3)


def bowl(outputs: Tensor, y: Tensor) -> Tensor:
    return (A * (outputs - y).square()).sum(1).mean() / 2


def train(engine: str, *, rounds: int = 1, **settings: Any) -> Tensor:
    """Return one client's parameters after some rounds from W0."""
    data = torch.zeros(5, 1).double(), M.expand(5, 3)
    federation = feduhb.Federation({"a": data}, data, Point, loss=bowl)
    made = ENGINES[engine](federation, Local(batch_size=2, lr=LR, loss=bowl, **settings))
    w = W0
    for t in range(rounds):
        (block,) = made.train(Work(w, EPOCHS), ["a"], t)
        w = w - block.values[0]
    return w


def descend(step: Callable[[int, Tensor, Tensor, dict[str, Tensor]], Tensor], *, rounds: int = 1) -> Tensor:
    """Return W0 after the steps w <- w - step(s, g, w, memory), s = 1, 2, ...; the memory of a round starts empty."""
    w = W0
    for _ in range(rounds):
        memory = {"m": torch.zeros(3).double(), "v": torch.zeros(3).double()}
        for s in range(1, STEPS + 1):
            w = w - step(s, A * (w - M), w, memory)
    return w


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@every_engine
def test_sgd_has_a_closed_form(engine):
    """w - m = (1 - lr a)^s (w[0] - m)."""
    close(train(engine), M + (1 - LR * A) ** STEPS * (W0 - M))


@every_engine
@pytest.mark.parametrize("name", ["l2", "weight_decay"])
def test_weight_decay_of_sgd_is_part_of_the_gradient(engine, name):
    """The optimum of f + λ/2 ‖w‖² is a m / (a + λ)."""
    best = A * M / (A + 0.3)
    settings: dict[str, Any] = {name: 0.3}
    close(train(engine, **settings), best + (1 - LR * (A + 0.3)) ** STEPS * (W0 - best))


@every_engine
def test_momentum_starts_at_zero_in_every_round(engine):
    def step(_: int, g: Tensor, w: Tensor, memory: dict[str, Tensor]) -> Tensor:
        memory["m"] = 0.9 * memory["m"] + g + 0.2 * w
        return LR * memory["m"]

    close(train(engine, rounds=2, momentum=0.9, weight_decay=0.2), descend(step, rounds=2))


def adam(s: int, g: Tensor, memory: dict[str, Tensor]) -> Tensor:
    memory["m"] = 0.9 * memory["m"] + 0.1 * g
    memory["v"] = 0.999 * memory["v"] + 0.001 * g * g
    m, v = memory["m"] / (1 - 0.9**s), memory["v"] / (1 - 0.999**s)
    return m / (v.sqrt() + 1e-8)


@every_engine
def test_adam(engine):
    """Kingma and Ba, algorithm 1; weight decay is part of the gradient, and so of both moments."""
    expected = descend(lambda s, g, w, memory: LR * adam(s, g + 0.2 * w, memory), rounds=2)
    close(train(engine, rounds=2, optimizer="adam", weight_decay=0.2), expected)
    close(train(engine, rounds=2, optimizer="adam", l2=0.2), expected)


@every_engine
def test_adamw_decays_apart_from_the_gradient(engine):
    """Loshchilov and Hutter, algorithm 2 without a warm restart."""
    expected = descend(lambda s, g, w, memory: LR * (adam(s, g, memory) + 0.2 * w), rounds=2)
    close(train(engine, rounds=2, optimizer="adamw", weight_decay=0.2), expected)


@every_engine
def test_the_first_step_of_adam_has_the_size_of_lr(engine):
    """m / √v is the sign of the gradient in the first step, whatever its length."""
    data = torch.zeros(2, 1).double(), M.expand(2, 3)
    federation = feduhb.Federation({"a": data}, data, Point, loss=bowl)
    made = ENGINES[engine](federation, Local(batch_size=2, lr=LR, loss=bowl, optimizer="adam"))
    (block,) = made.train(Work(W0, 1), ["a"], 0)
    torch.testing.assert_close(block.values[0], LR * torch.sign(A * (W0 - M)), rtol=1e-6, atol=0)


@every_engine
def test_proximal_has_a_closed_form(engine):
    """FedProx: the optimum of f + μ/2 ‖w - w[t]‖² is (a m + μ w[t]) / (a + μ), the centre moves with the round."""
    mu, w = 0.7, W0
    for _ in range(2):
        best = (A * M + mu * w) / (A + mu)
        w = best + (1 - LR * (A + mu)) ** STEPS * (w - best)
    close(train(engine, rounds=2, proximal=mu), w)


@every_engine
def test_a_large_proximal_weight_keeps_the_client_at_the_servers_model(engine):
    near, far = (train(engine, proximal=mu) for mu in (9.0, 0.1))
    assert (near - W0).norm() < (far - W0).norm()


@every_engine
def test_clipping_is_by_the_norm_over_all_parameters(engine):
    """g min(1, c / ‖g‖), with torch's 1e-6 in the denominator; the proximal part is clipped with the gradient."""

    def clip(c: float, mu: float) -> Tensor:
        def step(_: int, g: Tensor, w: Tensor, __: dict[str, Tensor]) -> Tensor:
            g = g + mu * (w - W0)
            return LR * g * min(1.0, c / (float(g.norm()) + 1e-6))

        return descend(step)

    for c in (0.5, 3.0, 100.0):
        close(train(engine, clip_norm=c), clip(c, 0.0))
    close(train(engine, clip_norm=0.5, proximal=2.0), clip(0.5, 2.0))
    assert float((train(engine, clip_norm=0.1) - W0).norm()) <= STEPS * LR * 0.1


@every_engine
@pytest.mark.parametrize("schedule", ["linear", "cosine", "decay:0.5"])
def test_schedules_count_the_steps_of_a_round(engine, schedule):
    """Over both epochs: linear and cosine end near 0 in every round, decay counts rounds."""
    w = W0
    for t in range(3):
        for s in range(STEPS):
            w = w - LR * scale_lr(schedule, t, s, STEPS) * A * (w - M)
    close(train(engine, rounds=3, schedule=schedule), w)
    first = {"linear": 1 - 1 / STEPS, "cosine": (1 + math.cos(math.pi / STEPS)) / 2, "decay:0.5": 1.0}
    assert scale_lr(schedule, 0, 1, STEPS) == first[schedule]


@every_engine
def test_a_parameter_without_a_gradient_keeps_its_value(engine):
    """Not even weight decay moves what the model does not use."""

    class Half(Point):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Parameter(torch.rand(2, dtype=torch.float64))

    data = torch.zeros(5, 1).double(), M.expand(5, 3)
    federation = feduhb.Federation({"a": data}, data, Half, loss=bowl)
    for optimizer in ("sgd", "adamw"):
        how = Local(batch_size=2, lr=LR, loss=bowl, optimizer=optimizer, weight_decay=0.3, proximal=0.1)
        (block,) = ENGINES[engine](federation, how).train(Work(torch.ones(5).double(), 1), ["a"], 0)
        assert block.values[0, 3:].tolist() == [0.0, 0.0]
        assert block.values[0, :3].all()
