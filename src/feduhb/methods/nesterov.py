"""Nesterov: retrain on the remaining clients, with Nesterov's accelerated gradient on the server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from feduhb.core.aggregate import Aggregate, weighted_mean
from feduhb.core.checks import check_decay, check_step
from feduhb.core.types import Updates, Work
from feduhb.methods.rules import RuleMethod


class Velocity(NamedTuple):
    """The model and its velocity."""

    params: Tensor  # [P] w[t]
    velocity: Tensor  # [P] v[t]


@dataclass(frozen=True, slots=True)
class Nesterov(RuleMethod[Velocity]):
    """Exact unlearning: train a fresh model on the remaining clients with Nesterov's momentum on the server.

        g = A(u_1 .. u_|Cr|),    v[t+1] = β v[t] + g,    w[t+1] = w[t] - α (g + β v[t+1]),    v[0] = 0,    w[0] fresh

    Args:
        step_size: α. With local training (epochs > 0) the updates contain the local learning rate, and 1.0 with
            β = 0 is FedAvg.
        momentum: β, at least 0 and below 1. At 0.9 the step grows up to tenfold along a steady direction.
        epochs: local passes in a round; 0 asks for full-batch gradients.
        aggregate: A. The weighted mean needs only the sum of the updates and works under secure aggregation; the
            robust rules need every update.

    Differs from the paper: Nesterov takes the gradient at a look-ahead point. Here, as in `torch.optim.SGD(nesterov=True)`,
    w is that point, so the clients train from it and it is the model that is returned.
    Reference: Nesterov, "A method for solving the convex programming problem with convergence rate O(1/k²)", 1983;
    Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013.
    """

    step_size: float = 1.0
    momentum: float = 0.9
    epochs: int = 5
    aggregate: Aggregate = weighted_mean

    name: ClassVar[str] = "nesterov"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_step(self.step_size, self.epochs, self.aggregate)
        check_decay("momentum", self.momentum)

    def init(self, params: Tensor) -> Velocity:
        """Return the state at rest: v[0] = 0."""
        return Velocity(params, velocity=torch.zeros_like(params))

    def ask(self, state: Velocity) -> Work:
        """Return local training for all remaining clients."""
        return Work(state.params, self.epochs)

    def tell(self, state: Velocity, answers: Iterable[Updates]) -> Velocity:
        """Return the state after one step."""
        w, v = state
        g = self.aggregate(answers)
        v = self.momentum * v + g
        return Velocity(w - self.step_size * (g + self.momentum * v), velocity=v)
