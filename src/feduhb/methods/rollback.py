"""Rollback: continue the training without the leavers, from the last kept model that none of them had touched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from feduhb.core.aggregate import Aggregate, weighted_mean
from feduhb.core.checks import check_step
from feduhb.core.types import Updates, Work
from feduhb.methods.retrain import Plain
from feduhb.methods.rules import RuleMethod


@dataclass(frozen=True, slots=True)
class Rollback(RuleMethod[Plain]):
    """Exact unlearning by repeating only the rounds from the leavers' first one on.

        w[t+1] = w[t] - A(u_1 .. u_C),    t = r, r+1, ...

    r is at most the first round that asked a leaver, and w[r] is a model that the training kept (`keep_models`), or the
    fresh one, w[0]. Clients are sampled by a hash of (seed, round, client), so up to there the training asked exactly the
    clients that it would have asked without the leavers. The weights are those of a training in a federation that never
    held the leavers, bit for bit.

    Args:
        epochs: local passes in a round, as in the training; 0 asks for full-batch gradients.
        aggregate: A, as in the training.
    """

    epochs: int = 5
    aggregate: Aggregate = weighted_mean

    name: ClassVar[str] = "rollback"
    exact: ClassVar[bool] = True
    continues_training: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_step(1.0, self.epochs, self.aggregate)

    def init(self, params: Tensor) -> Plain:
        """Return the state at these parameters: those of a kept model, or the fresh ones."""
        return Plain(params)

    def ask(self, state: Plain) -> Work:
        """Return local training for all clients that take part."""
        return Work(state.params, self.epochs)

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:
        """Return the state after one step of the training's rule."""
        return Plain(state.params - self.aggregate(answers))
