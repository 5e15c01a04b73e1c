"""What FedAdam, FedYogi and FedNadam share: a state with two moving averages, and checks of their settings."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from feduhb.core.checks import check_decay, check_positive, check_step


class Moments(NamedTuple):
    """The model, moving averages of the updates and of their squares, and the number of steps taken."""

    params: Tensor  # [P] w[t]
    mean: Tensor  # [P] m[t]
    square: Tensor  # [P] q[t]
    steps: int  # t


def check_moments(lr: Any, b1: Any, b2: Any, tau: Any, epochs: Any, aggregate: Any) -> None:
    """Raise ConfigError if a setting of FedAdam, FedYogi or FedNadam is invalid."""
    check_step(lr, epochs, aggregate, name="lr", example=0.01)
    check_decay("b1", b1)
    check_decay("b2", b2, example=0.99)
    check_positive("tau", tau, example=0.001)
