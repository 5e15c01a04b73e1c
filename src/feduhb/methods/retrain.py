"""Retrain: FedAvg from a fresh model on the remaining clients. If no client was forgotten, it is plain training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from feduhb.core.aggregate import Aggregate, weighted_mean
from feduhb.core.checks import check_step
from feduhb.core.types import Updates, Work
from feduhb.methods.rules import RuleMethod


class Plain(NamedTuple):
    """The model alone."""

    params: Tensor  # [P] w[t]


@dataclass(frozen=True, slots=True)
class Retrain(RuleMethod[Plain]):
    """The reference for exact unlearning: train again without the forgotten data.

        w[t+1] = w[t] - α A(u_1 .. u_C),    w[0] fresh

    Args:
        step_size: α; 1.0 is FedAvg.
        epochs: local passes in a round; 0 asks for full-batch gradients.
        aggregate: A.

    Reference: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017.
    """

    step_size: float = 1.0
    epochs: int = 5
    aggregate: Aggregate = weighted_mean

    name: ClassVar[str] = "retrain"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_step(self.step_size, self.epochs, self.aggregate)

    def init(self, params: Tensor) -> Plain:
        """Return the initial state at these parameters."""
        return Plain(params)

    def ask(self, state: Plain) -> Work:
        """Return local training for all clients that take part."""
        return Work(state.params, self.epochs)

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:
        """Return the state after one step."""
        return Plain(state.params - self.step_size * self.aggregate(answers))
