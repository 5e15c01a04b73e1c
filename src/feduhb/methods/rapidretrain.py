"""Rapid Retrain: retrain on the remaining clients, whose local steps are preconditioned by the diagonal Fisher."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from feduhb.core.aggregate import Aggregate, weighted_mean
from feduhb.core.checks import check_step
from feduhb.core.tasks import Precondition, Task
from feduhb.core.types import Updates, Work
from feduhb.errors import ConfigError
from feduhb.methods.retrain import Plain
from feduhb.methods.rules import RuleMethod


@dataclass(frozen=True, slots=True)
class RapidRetrain(RuleMethod[Plain]):
    """Exact unlearning: train a fresh model on the remaining clients, each of which approximates Newton's steps.

        at a client:  m <- β1 m + (1 - β1) g,    q <- β2 q + (1 - β2) F²,    w <- w - lr m̂ / (√q̂ + ε)
        at the server:  w[t+1] = w[t] - A(u_1 .. u_C),    w[0] fresh

    g is the gradient of a batch, F the mean over the batch of the squared gradients of its examples, and m̂, q̂ are m, q
    without the bias of their start at 0. See `feduhb.core.tasks.Precondition`.

    Args:
        lr: of these steps, in place of the learning rate of the training.
        b1: β1, the decay of m.
        b2: β2, the decay of q.
        eps: ε; it bounds the step where F is small.
        epochs: local passes in a round.
        aggregate: A.

    Differs from the paper: both averages start afresh in every round, because clients keep no state; F is not averaged over
    blocks of parameters.
    Reference: Liu et al., "The Right to be Forgotten in Federated Learning: An Efficient Realization with Rapid
    Retraining", 2022.
    """

    lr: float = 0.001
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-3
    epochs: int = 5
    aggregate: Aggregate = weighted_mean

    name: ClassVar[str] = "rapidretrain"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_step(self.lr, self.epochs, self.aggregate, name="lr", example=0.001)
        if self.epochs == 0:
            raise ConfigError("epochs is 0; rapidretrain preconditions local steps, give 1 or more")
        self._make_task()

    @property
    def tasks(self) -> tuple[type[Task], ...]:
        """Preconditioned training."""
        return (Precondition,)

    def init(self, params: Tensor) -> Plain:
        """Return the initial state at these parameters."""
        return Plain(params)

    def ask(self, state: Plain) -> Work:
        """Return preconditioned training for all clients that take part."""
        return Work(state.params, self.epochs, task=self._make_task())

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:
        """Return the state after one step."""
        return Plain(state.params - self.aggregate(answers))

    def _make_task(self) -> Precondition:
        return Precondition(self.lr, self.b1, self.b2, self.eps)
