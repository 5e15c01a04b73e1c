"""Retrain: FedAvg from a fresh model on whoever takes part. With nobody forgotten it is plain training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

from feduhb.core.aggregate import Aggregate, weighted_mean
from feduhb.core.types import Updates, Work
from feduhb.methods.checking import check_step


class Plain(NamedTuple):
    """The model is all there is to remember."""

    params: Tensor  # [P] w[t]


@dataclass(frozen=True, slots=True)
class Retrain:
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
    def rounds(self) -> int | None:
        """As many as the user says."""
        return None

    @property
    def needs(self) -> Literal["sum", "each"]:
        """Only the weighted mean can be taken of a pre-summed answer."""
        return "sum" if self.aggregate is weighted_mean else "each"

    def init(self, params: Tensor) -> Plain:
        """Begin at these parameters."""
        return Plain(params)

    def ask(self, state: Plain) -> Work:
        """Ask everyone who takes part."""
        return Work(state.params, self.epochs)

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:
        """Take one averaged step."""
        return Plain(state.params - self.step_size * self.aggregate(answers))
