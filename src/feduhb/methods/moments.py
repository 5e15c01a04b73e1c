"""What FedAdam, FedYogi and FedNadam share: a state with two moving averages, their settings, and what they ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from feduhb.core.aggregate import Aggregate, weighted_mean
from feduhb.core.checks import check_decay, check_positive, check_step
from feduhb.core.types import Work
from feduhb.methods.rules import RuleMethod


class Moments(NamedTuple):
    """The model, moving averages of the updates and of their squares, and the number of steps taken."""

    params: Tensor  # [P] w[t]
    mean: Tensor  # [P] m[t]
    square: Tensor  # [P] q[t]
    steps: int  # t


@dataclass(frozen=True, slots=True)
class MomentsMethod(RuleMethod[Moments]):
    """A method whose server steps along the mean of the updates, divided by the root of the mean of their squares."""

    lr: float = 0.01
    b1: float = 0.9
    b2: float = 0.99
    tau: float = 1e-3
    epochs: int = 5
    aggregate: Aggregate = weighted_mean

    def __post_init__(self) -> None:
        check_step(self.lr, self.epochs, self.aggregate, name="lr", example=0.01)
        check_decay("b1", self.b1)
        check_decay("b2", self.b2, example=0.99)
        check_positive("tau", self.tau, example=0.001)

    def init(self, params: Tensor) -> Moments:
        """Return the initial state, with both averages at 0."""
        zero = torch.zeros_like(params)
        return Moments(params, mean=zero, square=zero, steps=0)

    def ask(self, state: Moments) -> Work:
        """Return local training for all remaining clients."""
        return Work(state.params, self.epochs)
