"""Fine-tuning: continue the training from the old model with the remaining clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from feduhb.core.aggregate import Aggregate, weighted_mean
from feduhb.core.checks import check_step
from feduhb.core.types import Updates, Work
from feduhb.methods.binding import require_model
from feduhb.methods.retrain import Plain
from feduhb.methods.rules import RuleMethod


@dataclass(frozen=True, slots=True)
class FineTune(RuleMethod[Plain]):
    """The simplest approximate unlearning: continue the training without the forgotten data, and hope that it fades.

        w[t+1] = w[t] - α A(u_1 .. u_|Cr|),    w[0] the old model

    With no rounds it is the old model, which has forgotten nothing.

    Args:
        step_size: α; 1.0 is FedAvg.
        epochs: local passes in a round; 0 asks for full-batch gradients.
        aggregate: A. The weighted mean needs only the sum of the updates and works under secure aggregation; the
            robust rules need every update.
        model: the old model; `feduhb.unlearn` sets it.

    It has no paper of its own. Works on federated unlearning compare with it, among them those on PGA and NoT.
    """

    step_size: float = 1.0
    epochs: int = 5
    aggregate: Aggregate = weighted_mean
    model: Tensor | None = field(default=None, compare=False, repr=False)  # [P]

    name: ClassVar[str] = "finetune"
    exact: ClassVar[bool] = False
    needs_model: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_step(self.step_size, self.epochs, self.aggregate)

    def init(self, params: Tensor) -> Plain:
        """Return the state at the old model, whatever fresh model is given."""
        return Plain(require_model(self.model, params, self.name))

    def ask(self, state: Plain) -> Work:
        """Return local training for all remaining clients."""
        return Work(state.params, self.epochs)

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:
        """Return the state after one step."""
        return Plain(state.params - self.step_size * self.aggregate(answers))
