"""FedUHB: retrain on the remaining clients, with Polyak's heavy ball on the server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from feduhb.core.aggregate import Aggregate, weighted_mean
from feduhb.core.checks import check_decay, check_step
from feduhb.core.types import Updates, Work
from feduhb.methods.rules import RuleMethod
from feduhb.stopping import StopRule, dynamic_stop


class HeavyBall(NamedTuple):
    """The model and the one before it."""

    params: Tensor  # [P] w[t]
    previous: Tensor  # [P] w[t-1]


@dataclass(frozen=True, slots=True)
class FedUHB(RuleMethod[HeavyBall]):
    """Fast exact unlearning: train a fresh model on the remaining clients with momentum on the server.

        w[t+1] = w[t] - α A(u_1 .. u_|Cr|) + β (w[t] - w[t-1]),    w[-1] = w[0],    w[0] fresh

    Args:
        step_size: α. With local training (epochs > 0) the updates contain the local learning rate, and 1.0 with
            β = 0 is FedAvg. With gradients (epochs = 0) it is the step size of the theorem.
        momentum: β, at least 0 and below 1. At 0.9 the step grows up to tenfold along a steady direction.
        epochs: local passes in a round; 0 asks for full-batch gradients.
        aggregate: A. The weighted mean needs only the sum of the updates and works under secure aggregation; the
            robust rules need every update.

    Differs from the paper: the paper's equations use gradients, but its experiments train five local epochs. Both
    are available here.
    Reference: Jiang, Tan and Lam, "FedUHB: Accelerating Federated Unlearning via Polyak Heavy Ball Method".
    """

    step_size: float = 1.0
    momentum: float = 0.9
    epochs: int = 5
    aggregate: Aggregate = weighted_mean

    name: ClassVar[str] = "feduhb"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_step(self.step_size, self.epochs, self.aggregate)
        check_decay("momentum", self.momentum)

    def default_stop(self) -> StopRule:
        """Return the paper's dynamic rule with this momentum."""
        return dynamic_stop(momentum=self.momentum)

    def init(self, params: Tensor) -> HeavyBall:
        """Return the state at rest: w[-1] = w[0]."""
        return HeavyBall(params, previous=params)

    def ask(self, state: HeavyBall) -> Work:
        """Return local training for all remaining clients."""
        return Work(state.params, self.epochs)

    def tell(self, state: HeavyBall, answers: Iterable[Updates]) -> HeavyBall:
        """Return the state after one heavy-ball step."""
        w, w_prev = state
        return HeavyBall(
            w - self.step_size * self.aggregate(answers) + self.momentum * (w - w_prev), previous=w
        )
