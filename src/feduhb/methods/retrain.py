"""Retrain: FedAvg from a fresh model on those who take part. With nobody forgotten it is plain training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

from feduhb.core.aggregate import Aggregate, weighted_mean
from feduhb.core.checks import check_step
from feduhb.core.types import Method, Updates, Work


class Plain(NamedTuple):
    """The model is all there is to remember."""

    params: Tensor  # [P] w[t]


@dataclass(frozen=True, slots=True)
class Retrain(Method[Plain]):
    """The yardstick of exact unlearning: train again without the forgotten data.

        w[t+1] = w[t] - α A(u_1 .. u_C)

    Args:
        step_size: α; 1.0 is FedAvg.
        epochs: local passes a round; 0 asks for full-batch gradients instead.
        aggregate: A.

    Reference: McMahan et al. 2017 (FedAvg).
    """

    step_size: float = 1.0
    epochs: int = 5
    aggregate: Aggregate = weighted_mean

    name: ClassVar[str] = "retrain"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_step(self.step_size, self.epochs, self.aggregate)

    @property
    def needs(self) -> Literal["sum", "each"]:
        """Return "sum" for the weighted mean, the only rule that works on a pre-summed answer."""
        return "sum" if self.aggregate is weighted_mean else "each"

    def init(self, params: Tensor) -> Plain:
        """Return the state to start with at these parameters."""
        return Plain(params)

    def ask(self, state: Plain) -> Work:
        """Return local training for everyone who takes part."""
        return Work(state.params, self.epochs)

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:
        """Return the state after one averaged step."""
        return Plain(state.params - self.step_size * self.aggregate(answers))
